"""The incident bundle of a capture: the first step in which a forward value, the loss, or without a loss scale a gradient is not finite, written
before the optimizer makes its step, while the weights are still those of the step (docs/capture.md "Incident bundle").

To know it in time each backward waits for the statistics so far: one read a backward pass, which a capture without a bundle does not have.
"""
from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture import statistics
from opd.capture.errors import CaptureError
from opd.capture.journal import ProbeEntry
from opd.capture.observation import Observation, start_transfer

log = logging.getLogger("opd.capture")

_MAX, _BAD = statistics.CORE.index("max_abs"), statistics.CORE.index("nonfinite")


class BundleKeeper:
    """Of one capture. folder: gets one bundle, in a folder of its own. Raises CaptureError for a folder that cannot be made, or a package that is
    missing."""

    def __init__(self, folder, model: nn.Module):
        try:
            from opd.localise.calls import Calls
            from opd.localise.script import main_script
            from opd.triage.keeper import Keeper
        except ImportError as error:
            raise CaptureError(f"bundle: the Python package {error.name} is not installed here, and a bundle needs it; pip install {error.name}") \
                from None
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CaptureError(f"bundle: {folder} cannot be made ({error.strerror}); give a folder that can be written to") from None
        main_script()
        self._calls, self._keeper = Calls(model), Keeper()
        self._looked = 0     # observations of the open step
        self._is_done = False
        self.outcome: str | None = None  # what became of the bundle, in a sentence

    def look(self, number: int, observations: Sequence[Observation], losses: Iterable[Tensor], scale: Tensor | float | None,
             optimizers: Sequence[Optimizer], scaler) -> None:
        """Before and after each backward, and at the end of the run. Never raises."""
        if self._is_done:
            return
        try:
            new, self._looked = observations[self._looked:], len(observations)
            losses = [loss.detach().double().reshape(1) for loss in losses]
            fetch, _ = start_transfer([observation.partials for observation in new] + losses)
            arrays = fetch()
            values = [float(array[0]) for array in arrays[len(new):]]
            shown = next(((observation, array) for observation, array in zip(new, arrays)
                          if array[:, _BAD].any() and (observation.kind == "activation" or scale is None and observation.kind == "gradient")), None)
            if shown is None and all(map(math.isfinite, values)):
                return
            self._is_done = True
            self._write(number, observations, shown, values, scale, optimizers, scaler)
        except Exception as error:
            self._is_done = True
            self._refuse(number, f"{type(error).__name__}: {error}")

    def closed(self, number: int, entries: Sequence[ProbeEntry], rows: np.ndarray, series: Mapping[str, float], rates: Sequence[float]) -> None:
        """A step that is over, as the journal has it."""
        if not self._is_done:
            self._keeper.add(number, [(entry.name, entry.kind, entry.format, int(row["elements"])) for entry, row in zip(entries, rows)],
                             rows["max_abs"], rows["nonfinite"], {name: series.get(name) for name in ("loss", "loss_scale")}, rates)

    def next_step(self) -> None:
        self._calls.next_step()
        self._looked = 0

    def remove(self) -> None:
        self._calls.remove()

    # --- within

    def _write(self, number: int, observations: Sequence[Observation], shown, losses: list[float], scale, optimizers, scaler) -> None:
        from opd.localise.bundle import free_path, write_bundle
        from opd.localise.calls import MOST_CALLS, NO_LOSS, NO_LOSS_TEXT, ReplayedCalls
        from opd.localise.errors import LocaliseError
        from opd.localise.finding import Seen

        calls = self._calls
        if not calls.calls or calls.too_many or calls.model is None:
            self._refuse(number, f"the model was called more than {MOST_CALLS} times in the step" if calls.too_many else
                         "the model was not called with gradients in the step, or is gone")
            return
        scale = None if scale is None else float(scale)
        self._keep_open_step(number, observations, losses, scale, _rates_now(optimizers))
        names = set(calls.model.state_dict(keep_vars=True))
        note = NO_LOSS_TEXT if calls.how == NO_LOSS else ""
        seen = None
        if shown is not None and (shown[0].kind == "activation" or not note):
            observation, array = shown
            seen = Seen(_name(observation), int(array[:, _BAD].sum()), float(array[:, _MAX].max()))
        path = free_path(self._folder / f"step-{number:08d}")
        model = calls.model.module if isinstance(calls.model, nn.parallel.DistributedDataParallel) else calls.model
        prefix = "module." if model is not calls.model else ""
        buffers = {name.removeprefix(prefix): buffer for name, buffer in calls.buffers.items() if name in names}
        try:
            write_bundle(path, model, calls.calls, ReplayedCalls(calls.how), number=number, loss_scale=scale or 1.0, autocast=calls.autocast,
                         optimizer=optimizers, seen=seen, state=buffers, states=calls.random, scaler=scaler,
                         history=self._keeper.trace("capture", _groups(model, optimizers)), note=note)
        except LocaliseError as error:
            self._refuse(number, str(error))
            return
        self.outcome = f"incident bundle of step {number}: {path}; opd localise {path} --trust"
        log.warning("%s", self.outcome)

    def _keep_open_step(self, number: int, observations: Sequence[Observation], losses: list[float], scale: float | None,
                        rates: Sequence[float]) -> None:
        """What is known of the step so far is the last row of the history."""
        fetch, _ = start_transfer([observation.partials for observation in observations])
        arrays, merged = fetch(), {}
        for observation, array in zip(observations, arrays):
            key = (_name(observation), observation.kind, observation.format)
            largest, bad, elements = merged.get(key, (0.0, 0, 0))
            merged[key] = (max(largest, float(array[:, _MAX].max())), bad + int(array[:, _BAD].sum()), elements + math.prod(observation.shape))
        self._keeper.add(number, [(*key, elements) for key, (_, _, elements) in merged.items()], [largest for largest, _, _ in merged.values()],
                         [bad for _, bad, _ in merged.values()], {"loss": float(np.mean(losses)) if losses else None, "loss_scale": scale},
                         rates)

    def _refuse(self, number: int, why: str) -> None:
        self.outcome = f"no incident bundle of step {number}: {why}"
        log.warning("%s", self.outcome)


def _name(observation: Observation) -> str:
    numbered = f"{observation.name}#{observation.call}" if observation.call > 1 else observation.name
    return numbered + observation.suffix


def _groups(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, int]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(next((names[id(p)] for p in group["params"] if id(p) in names), ""), len(group["params"]))
            for optimizer in optimizers for group in optimizer.param_groups]


def _rates_now(optimizers: Sequence[Optimizer]) -> list[float]:
    """Learning rates of all parameter groups, 0 where a group has none. Waits where one is a tensor on a device."""
    return [float(group.get("lr") or 0.0) for optimizer in optimizers for group in optimizer.param_groups]
