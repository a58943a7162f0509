"""The capture of one run: hooks, statistics, steps, journal, trace."""
from __future__ import annotations

import atexit
import json
import logging
import math
import operator
import os
import platform
import re
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture import statistics
from opd.capture.amp import HAND_SCALE, BackwardCalls, GradientNorm, LossScale, scale_by_hand
from opd.capture.attention import SIDEBANDS
from opd.capture.collectives import Collectives
from opd.capture.errors import CaptureError
from opd.capture.hooks import COMPILED, ModelHooks
from opd.capture.incident import find_incident
from opd.capture.journal import SUFFIX, JournalWriter, ProbeEntry, row_type
from opd.capture.observation import Observation, PendingStep, bytes_of, merge_shapes, start_transfer
from opd.capture.operands import Operands
from opd.capture.operators import NotKnown, Operator
from opd.capture.optimizer import OptimizerProbes, unwrap
from opd.capture.probes import Selection
from opd.capture.recovery import make_trace, set_aside
from opd.capture.watch import Watch, first_bad, merge
from opd.trace_layout import LABELS, SERIES

log = logging.getLogger("opd.capture")

RING = 20        # steps whose raw elements are at hand when a value turns non-finite
LR_CHANGE = 0.01  # part by which a learning rate has to move to be noted again, where there are several
STATISTICS = {"core": statistics.CORE, "full": statistics.FULL}

_open_paths: set[Path] = set()  # of this process; other processes are kept out by a lock on the journal
_captures: weakref.WeakSet = weakref.WeakSet()  # those that are open
os.register_at_fork(after_in_child=lambda: [capture.forget() for capture in list(_captures)])


@dataclass(frozen=True)
class _Mark:
    """Where the open step stood when the last backward ended: numbers of observations and losses, the loss scale, and the
    number of the pass that comes next."""
    observations: int = 0
    losses: int = 0
    scale: Tensor | float | None = None
    passing: int = 0


class Capture(Watch):
    """Records statistics of a training run into a trace file; a context manager. opd.capture(...) makes one.

    model       a module, or a dictionary of prefix -> module for a run of several
    path        of the trace; in a run of several processes each writes STEM.rankN.SUFFIX. Replaced when it is there.
    optimizer   a torch optimizer or a list of them: gives moments and learning rate
    probes      groups and patterns, see opd.capture.probes; by default the five key probes
    every       records every n-th step only; steps between cost next to nothing
    statistics  "core": largest finite magnitude and number of non-finite elements; "full": all of the trace format
    raw         patterns of probe names whose elements are kept ...
    raw_steps   ... in these steps (anything with `in`, such as range(100, 120)); by default in a ring of the last `ring`
                recorded steps, which is written when a value turns non-finite
    operands    patterns of forward probes whose operators' inputs are kept, by default in a ring of 8 recorded steps, which is
                written when a value turns non-finite; the operators of all forward probes are then listed in the trace
    operand_steps  ... in these steps (anything with `in`), or "last": the ring is written at the end even without an incident
    operand_ring   ... number of steps in the ring; 0 by default where steps are chosen
    sideband    logits of fused attention: "logits" (recomputed), "full" (softmax as well) or "off"
    compiled    inside code of torch.compile: "skip" leaves it alone, "split" cuts it at every probe (slower, and may round
                differently)
    auto_loss   takes the loss from the calls of backward, the mean over the calls in a step, and the gradient norm from the last
                call of clip_grad_norm_
    inference   records forward passes in evaluation mode and without gradients as well
    bundle      folder that gets an incident bundle of the first step that is not finite (docs/localise.md); each backward then waits for the
                statistics
    first_step  number of the first step
    name, label, seed, model_text, manifest   texts of the trace; without a label it is "sudden" when something turned non-finite
                that is not ordinary (docs/capture.md, "Label"), else "healthy"

    Raises CaptureError for arguments that cannot work. Once the run is on its way nothing is raised into it: a failure of the
    capture itself (a full disk, a bug) is logged, ends the capture and leaves the trace up to there.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module], path: str | os.PathLike, *,
                 optimizer: Optimizer | Iterable[Optimizer] | None = None, probes: str | Iterable[str] = "key", every: int = 1,
                 statistics: str = "core", raw: str | Iterable[str] = (), raw_steps: Container[int] | None = None,
                 ring: int = RING, operands: str | Iterable[str] = (), operand_steps: Container[int] | str | None = None,
                 operand_ring: int | None = None, sideband: str = "logits", compiled: str = "skip", auto_loss: bool = False,
                 inference: bool = False, bundle: str | os.PathLike | None = None, first_step: int = 0, name: str | None = None, label: str | None = None, seed: int | str = "",
                 model_text: str | None = None, manifest: Mapping | None = None,
                 _launch: str | None = None, _strict: bool = True):
        _choose("statistics", statistics, STATISTICS)
        _choose("sideband", sideband, SIDEBANDS)
        _choose("compiled", compiled, COMPILED)
        if label is not None:
            _choose("label", label, LABELS)
        _at_least("every", every, 1)
        _at_least("ring", ring, 1)
        _at_least("first_step", first_step, 0)
        models = dict(model) if isinstance(model, Mapping) else {"": model}
        for prefix, module in models.items():
            if not isinstance(module, nn.Module):
                raise CaptureError(f"model: {type(module).__name__} is not a torch.nn.Module; pass the model, or a dictionary of "
                                   "prefix -> model")
            if isinstance(module, nn.DataParallel):
                raise CaptureError("model: DataParallel runs copies in threads, whose hooks would mix; use DistributedDataParallel")
        if not models:
            raise CaptureError("model: an empty dictionary; pass at least one model")
        optimizers = [optimizer] if optimizer is not None and not isinstance(optimizer, (list, tuple)) else list(optimizer or ())

        try:
            json.dumps(manifest or {}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CaptureError(f"manifest: {error}; use dictionaries, lists, texts and finite numbers") from None

        self.selection = Selection(probes)
        self._raw_patterns = Selection(raw).modules if raw else []
        if raw_steps is not None and not hasattr(raw_steps, "__contains__"):
            raise CaptureError("raw_steps: give something with steps in it, for instance range(100, 120)")
        self._raw_steps, self._ring = raw_steps, deque(maxlen=ring)
        if operands == () and (operand_steps is not None or operand_ring is not None):
            raise CaptureError(f"{'operand_steps' if operand_steps is not None else 'operand_ring'}: no operator's operands are kept; "
                               "name some with operands")
        own_operands = Operands(operands, operand_steps, operand_ring) if operands != () else None
        super().__init__(STATISTICS[statistics], inference)
        self.operands = own_operands
        self._every = every
        self._row = row_type(statistics == "full")
        self._sideband, self._compiled = sideband, compiled
        self._pending: deque[PendingStep] = deque()
        self._number = first_step
        self._closed_steps = 0
        self._trains = False                     # a closed step had a pass in training mode
        self._mark = _Mark()
        self._served = -1                        # the last pass that served another model's step
        self._backwards = 0
        self._rates_noted: list[float | str | None] = []
        self._groups_noted: list = []
        self._losses: list[Tensor] = []
        self._seen_loss: Tensor | float | None = None
        self._grad_norm: Tensor | None = None
        self._loss_is_scaled = False
        self._loss_scale: Tensor | float | None = None
        self._scales_by_hand = False
        self._incident: str | None = None
        self._advice: str | None = None
        self._stopped: str | None = None
        self._closed = False
        self._bundle = None
        self._models: list[ModelHooks] = []
        self._parts: list = []  # whatever has a remove()
        self._alive: list = [*models.values(), *optimizers]
        self.is_alone = True  # no other model is trained beside it
        self.watcher = None  # of an AutoCapture: before_backward(), after_backward(), before_close(), closed(outcome)
        self.listening = self._samples(first_step)

        self.path = _rank_path(Path(path))
        if not self.path.parent.is_dir():
            raise CaptureError(f"{self.path}: its folder does not exist; create {self.path.parent}, or give another path")
        journal = self.path.with_name(self.path.name + SUFFIX)
        if journal in _open_paths:
            raise CaptureError(f"{journal}: another capture of this process writes it; give every capture a path of its own")
        try:
            self._collectives = Collectives(self, self.selection)
            self._parts.append(self._collectives)
            for prefix, module in models.items():
                self._add_hooks(prefix, module)
            parameters = {k: v for hooks in self._models for k, v in hooks.parameters().items()}
            if _strict:
                self.selection.check({name for hooks in self._models for name in hooks.names}, parameters)
            self._optimizer = OptimizerProbes(map(unwrap, optimizers), parameters, self.selection)
            self._parts.append(self._optimizer)
            self._scale_calls = LossScale(self._on_scale)
            self._parts.append(self._scale_calls)
            if bundle is not None:
                from opd.capture.bundles import BundleKeeper

                self._bundle = BundleKeeper(bundle, next(iter(models.values())))
                self._parts.append(self._bundle)
            self._parts.append(BackwardCalls(self.guard(self._before_backward), self.guard(self._after_backward)))
            self._auto_loss = auto_loss
            if auto_loss:
                self._parts.append(GradientNorm(self.guard(self._on_norm)))
            self.saved = set_aside(journal)
            if self.saved is not None:
                log.warning("%s: %s", self.saved, "the trace of an earlier run that was killed" if self.saved.suffix != SUFFIX else
                            "the journal of an earlier run, kept as it is: it cannot be turned into a trace here")
            options = {"probes": self.selection.texts, "every": every, "statistics": statistics, "raw": self._raw_patterns,
                       "sideband": f"logits of fused attention: {_SIDEBAND_TEXT[sideband]}", "compiled": compiled}
            texts = {"capture": options} if self.operands is None else {"capture": options, "operands": self.operands.options()}
            self._journal = JournalWriter(journal, {
                "launch": _launch, "full": statistics == "full", "label": label, "seed": str(seed),
                "framework": f"torch {torch.__version__}",
                "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", name or self.path.stem) or "run",
                "model": model_text if model_text is not None else ", ".join(map(_describe, models.values())),
                "manifest": {**(manifest or {}), **texts, "rank": list(_rank()), "versions": {
                    "torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__}}})
        except BaseException:
            self._remove_hooks()
            raise
        self.journal = journal
        if self.operands is not None:
            self.operands.journal = self._journal
        _open_paths.add(journal)
        _captures.add(self)
        atexit.register(self.close)

    # --- what the user calls

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None and self._closed_steps == 0:
            self._observations.clear()  # of no step: the loop lacks c.step()
        self.close()
        if kind is None and self._closed_steps == 0:
            raise CaptureError(f"{self.path}: no trace was written, because no step was recorded; call c.step(loss=loss) after "
                               "optimizer.step(), with the model in training mode")

    def step(self, loss: Tensor | float | None = None, *, grad_norm: Tensor | float | None = None,
             lr: Tensor | float | None = None, loss_scale: Tensor | float | None = None, step: int | None = None,
             _notes: Mapping | None = None) -> None:
        """Closes a training step: call it once, after optimizer.step(). Tensors may be on any device; nothing waits for them.

        lr and loss_scale are found by themselves when an optimizer and a GradScaler are in use. step: its number, when the run
        counts otherwise than from first_step on by one; it must grow. Raises CaptureError for values of a wrong type.
        """
        series = {"loss": loss, "grad_norm": grad_norm, "lr": lr, "loss_scale": loss_scale}
        for name, value in series.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise CaptureError(f"{name}: a tensor of shape {list(value.shape)}; give a scalar")
            if value is not None and not isinstance(value, (Tensor, int, float, np.number)):
                raise CaptureError(f"{name}: {type(value).__name__} is not a number; give a float or a tensor of one element")
        number = self._number if step is None else operator.index(step)
        if number < self._number:
            raise CaptureError(f"step: {number} does not come after {self._number - 1}; number the steps in growing order")
        if number >= 1 << 32:
            raise CaptureError(f"step: {number} is not in 0..2^32-1; number the steps from 0")
        if not self._closed and self._stopped is None:
            self.guarded(self._close_step, number, series, dict(_notes or {}))
        self._number = number + 1
        self.listening = self._samples(self._number)

    @property
    def step_number(self) -> int:
        """Number of the step that is open."""
        return self._number

    @property
    def incident(self) -> str | None:
        """What turned non-finite first, as text; None so far. Known one step late on a device."""
        return self._incident

    @property
    def is_open(self) -> bool:
        """Whether it still records: it was not closed, and nothing has failed in it."""
        return not self._closed and self._stopped is None

    def add_model(self, prefix: str, model: nn.Module) -> None:
        """Hooks a further model, whose probes are named PREFIX.NAME."""
        self._add_hooks(prefix, model)
        self._optimizer.add(self._models[-1].parameters())
        self._alive.append(model)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Takes moments and learning rates from a further optimizer."""
        self._optimizer.add_optimizer(unwrap(optimizer))
        self._alive.append(optimizer)

    def close(self) -> None:
        """Removes the hooks and writes the trace; of a step that is open, what was seen of it. A second call does nothing."""
        if self._closed:
            return
        if self._stopped is None:
            if self.watcher is not None:
                self.guarded(self.watcher.before_close)
            seen = self._seen_loss
            self.guarded(self._look, self._losses or ([seen] if isinstance(seen, Tensor) else []))
            self.guarded(self._close_open_step)
            self.guarded(self._drain)
        self._closed = True
        self.listening = False
        self._remove_hooks()
        self._alive.clear()
        atexit.unregister(self.close)
        _captures.discard(self)
        _open_paths.discard(self.journal)
        error = self._make_trace()
        if self.watcher is None and error is None and self._incident is not None:
            log.warning("%s: %s", self.path, incident_text(self._incident, self._advice))
        if self.watcher is not None:  # the launcher says it
            self.watcher.closed({"path": str(self.path), "journal": str(self.journal), "steps": self._closed_steps,
                                 "stopped": self._stopped, "error": error,
                                 "bundle": None if self._bundle is None else self._bundle.outcome})

    def _make_trace(self) -> str | None:
        """Ends the journal; returns why it did not become a trace."""
        try:
            if self.operands is not None:
                self.operands.end()
            ending = {"complete": self._stopped is None, "skipped": self._registry.skipped}
            self._journal.end(ending | ({"stopped": self._stopped} if self._stopped else {}))
            if self._closed_steps:
                make_trace(self.journal, self.path)
            else:
                self.journal.unlink(missing_ok=True)
        except Exception as error:  # a full disk, a library that is not installed; the process is about to end
            remedy = "python -m opd capture --recover turns them into a trace"
            if isinstance(error, ImportError):
                remedy = f"with ml_dtypes and safetensors (pip install ml_dtypes safetensors), {remedy}"
            if self.watcher is None or not isinstance(error, ImportError):  # else the launcher makes the trace
                log.error("the trace was not written: %s; its steps are in %s: %s", error, self.journal, remedy)
            return str(error)
        finally:
            self._journal.close()
        return None

    def forget(self) -> None:
        """In a forked child: the parent goes on with this capture, the child leaves journal and trace alone."""
        self._closed, self.listening = True, False
        atexit.unregister(self.close)
        _captures.discard(self)
        _open_paths.discard(self.journal)
        self._journal.close()

    # --- what an opd.capture.auto.AutoCapture calls

    def let_go(self) -> None:
        """From now on the capture keeps neither models nor optimizers alive."""
        self._alive.clear()

    def add_masters(self, optimizer: Optimizer) -> None:
        """Takes learning rates, and where they fit moments, from an optimizer that holds copies of the parameters."""
        self._optimizer.add_masters(optimizer)

    def leave_to_other(self) -> None:
        """The open step so far served another model's step: what backward was called on was not this one's loss, and should the
        run end now, it ends in no step of this one."""
        self._losses.clear()
        self._mark = replace(self._mark, losses=0)
        self._served = self._passing

    def see_loss(self, loss: Tensor | float) -> None:
        """A number that may be the loss of the open step, should the step not come to its backward."""
        self._seen_loss = loss

    @property
    def backwards(self) -> int:
        """Number of backward passes so far."""
        return self._backwards

    def step_before_pass(self, skipped: bool) -> None:
        """Closes a step whose optimizer did nothing, which is noted when it has `skipped` it: what came after the last backward
        belongs to the next step."""
        mark = self._mark
        rest = (self._observations[mark.observations:], self._losses[mark.losses:], self._loss_scale, self._loss_is_scaled,
                self._passing, dict(self._calls), {number: how for number, how in self._passes.items() if number >= mark.passing})
        del self._observations[mark.observations:], self._losses[mark.losses:]
        self._loss_scale = mark.scale
        self.step(_notes={"no_optimizer_step": True} if skipped else None)
        (self._observations, self._losses, self._loss_scale, self._loss_is_scaled, self._passing, self._calls,
         self._passes) = rest

    def step_without_optimizer(self) -> None:
        """Closes a step that the optimizer has skipped."""
        self.step(_notes={"no_optimizer_step": True})

    def stop(self, why: str) -> None:
        """Ends the capture, the run goes on."""
        self.listening = False
        self._stopped = self._stopped or why
        self._observations.clear()

    # --- what hooks call

    def _failed(self, error: Exception) -> None:
        self.listening = False
        if self._stopped is None:
            self._stopped = f"step {self._number}: {type(error).__name__}: {error}"
            is_disk = isinstance(error, OSError)  # what is wrong then is nothing of the program
            log.error("capture ends, the run goes on: %s", self._stopped, exc_info=not is_disk)

    def see_operator(self, observation: Observation, find: Callable[[], Operator], output: Tensor | None) -> None:
        """What made an observation that is about to be counted. find: gives the operator, or raises NotKnown."""
        call = self._calls.get((observation.name, observation.suffix), 0) + 1
        try:
            operator = find()
        except NotKnown as why:
            name = f"{observation.name}#{call}" if call > 1 else observation.name
            self.operands.miss(name + observation.suffix, str(why))
            return
        observation.execution = self.operands.take(observation.name, call, observation.suffix, self._number, operator, output)

    # --- within

    def _samples(self, number: int) -> bool:
        return number % self._every == 0 and self._stopped is None and not self._closed

    def _wants_raw(self, name: str) -> bool:
        if self._raw_steps is not None and self._number not in self._raw_steps:
            return False
        return any(fnmatchcase(name, pattern) for pattern in self._raw_patterns)

    def _check_raw(self) -> None:
        """Says which patterns match no probe so far. Names are only known once the probes have run."""
        names = [entry.name for entry in self._registry.entries]
        for pattern in self._raw_patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                log.warning("raw: no probe is called %r after the first step, so that none of its elements are kept; the probes "
                            "are %s", pattern, ", ".join(names[:20]) + (", ..." if len(names) > 20 else ""))

    def _check_operands(self) -> None:
        entries = self._registry.entries
        self.operands.check([entry.name for entry in entries if entry.kind == "activation"],
                            [entry.name for entry in entries if entry.kind != "activation"],
                            [name for hooks in self._models for name in hooks.names],
                            [name for hooks in self._models for name in hooks.skipped_names])

    def _add_hooks(self, prefix: str, model: nn.Module) -> None:
        hooks = ModelHooks(self, prefix, model, self.selection, self._sideband, self._compiled)
        self._models.append(hooks)
        self._parts.append(hooks)
        self._collectives.add_model(model, hooks.parameters())
        if hooks.skipped_names:
            log.warning("%d modules are inside code of torch.compile and are not probed; compiled=\"split\" probes them, at the "
                        "price of a graph break each", len(hooks.skipped_names))

    def _remove_hooks(self) -> None:
        for part in self._parts:
            part.remove()
        self._parts.clear()

    def _on_scale(self, loss, scale: Tensor | float) -> None:
        self._loss_scale = scale
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())
            self._loss_is_scaled = True  # the backward() that follows is called on the product

    def _before_backward(self, scalars: list[Tensor]) -> None:
        if self.watcher is not None:
            self.watcher.before_backward()
        self._backwards += 1
        seen = scalars
        if self._loss_is_scaled:
            self._loss_is_scaled = False
            seen = self._losses[-1:]
        elif self._auto_loss:
            seen = [self._unscaled(loss) for loss in scalars]
            self._losses += seen
        self._look(seen)

    def _unscaled(self, loss: Tensor) -> Tensor:
        """The loss of what backward is called on: without the scale that the script multiplied it by."""
        scale = scale_by_hand(loss, 2.0 if self._scales_by_hand else HAND_SCALE)
        if scale is None:
            return loss.detach()
        self._scales_by_hand, self._loss_scale = True, scale
        return loss.detach() / scale

    def _look(self, losses: list[Tensor]) -> None:
        if self._bundle is not None and not self._closed:
            self._bundle.look(self._number, self._observations, losses, self._loss_scale, self._optimizer.living, self._scale_calls.scaler)

    def _after_backward(self) -> None:
        self._look([])
        self._next_pass()
        self._mark = _Mark(len(self._observations), len(self._losses), self._loss_scale, self._passing)
        if self.watcher is not None:
            self.watcher.after_backward()

    def _on_norm(self, parameters: list[Tensor], norm: Tensor) -> None:
        if self.is_alone or self._optimizer.concerns(parameters):
            self._grad_norm = norm

    def _close_step(self, number: int, series: dict[str, object], notes: dict) -> None:
        if self.listening:
            self._optimizer.read(self.record)
        rates = self._optimizer.take_rates()
        if series["lr"] is None:
            series["lr"] = rates[0] if rates else None
        if series["loss_scale"] is None:
            series["loss_scale"] = self._loss_scale
        if series["grad_norm"] is None:
            series["grad_norm"] = self._grad_norm
        if series["loss"] is None and self._losses:
            series["loss"] = torch.stack([loss.double().reshape(()) for loss in self._losses]).mean()
        self._losses.clear()
        self._loss_scale, self._loss_is_scaled, self._grad_norm, self._seen_loss = None, False, None, None
        self._collectives.next_step()
        if self.operands is not None:
            self.operands.next_step()
        observations, self._observations = self._observations, []
        if self._bundle is not None:
            self._bundle.next_step()
        if not self._trains:
            self._trains = any(training for training, _ in self._all_passes(observations).values())
        self._passes = {}
        self._mark, self._served = _Mark(), -1
        self._next_pass()
        if not (self.listening and observations):
            return
        observations.sort(key=lambda observation: observation.sequence)  # a product is known to be one of attention late
        entries = self._resolve(observations)
        order = [name for name in SERIES if isinstance(series[name], Tensor)]
        rates = rates if len(rates) > 1 else []
        waiting = [series[name] for name in order] + [rate for rate in rates if isinstance(rate, Tensor)]
        fetch, on_device = start_transfer([observation.partials for observation in observations]
                                          + [value.detach().double().reshape(1) for value in waiting])
        values = {name: float(value) for name, value in series.items() if value is not None and not isinstance(value, Tensor)}
        self._pending.append(PendingStep(number, observations, entries, values | dict.fromkeys(order),
                                         [None if isinstance(rate, Tensor) else rate for rate in rates], notes, fetch, on_device))
        if rates:
            self._note_groups(notes)
        self._closed_steps += 1
        if self._closed_steps == 1:
            self._check_raw()
            if self.operands is not None:
                self._check_operands()
        while self._pending and not (len(self._pending) == 1 and self._pending[0].on_device):
            self._write(self._pending.popleft())

    def _close_open_step(self) -> None:
        """Writes what was seen of a step that never ended, when it was training: a pass with gradients, in the mode of the steps
        before. A pass after the last step that is validation is left out."""
        if not self.listening:
            return
        counted = {number for number, (training, gradients) in self._all_passes(self._observations).items()
                   if number > self._served and (self.inference or (gradients and (training or not self._trains)))}
        if not counted or (self._closed_steps == 0 and self._backwards == 0 and len(counted) > 1):
            return  # many passes and never a backward: no training
        self._observations = [observation for observation in self._observations
                              if observation.passing in counted or observation.kind != "activation"]
        self.step(loss=None if self._losses else self._seen_loss, _notes={"unfinished": True})

    def _all_passes(self, observations: list[Observation]) -> dict[int, tuple[bool, bool]]:
        """The forward passes of a step and how they ran: those of the model as a whole, and those that only its parts saw."""
        found = dict(self._passes)
        for observation in observations:
            if observation.kind == "activation":
                training, gradients = found.get(observation.passing, (False, False))
                found[observation.passing] = (training or observation.training, gradients or observation.gradients)
        return found

    def _note_groups(self, notes: dict) -> None:
        groups = self._optimizer.groups()
        if groups != self._groups_noted:
            self._groups_noted = notes["groups"] = groups

    def _drain(self) -> None:
        while self._pending:
            self._write(self._pending.popleft())

    def _write(self, step: PendingStep) -> None:
        """Merges what a step observed, probe by probe, and appends it to the journal."""
        arrays = step.fetch()
        fetched = iter(arrays[len(step.observations):])
        series = {name: float(next(fetched)[0]) if value is None else value for name, value in step.series.items()}
        rates = [float(next(fetched)[0]) if rate is None else rate for rate in step.rates]
        groups, merged = merge(arrays, step.entries, self._columns)
        entries = [step.entries[members[0]] for members in groups.values()]
        rows = np.zeros(len(groups), self._row)
        rows["probe"] = [entry.index for entry in entries]
        rows["elements"] = [self._note_shape(entry, [step.observations[i].shape for i in members])
                            for entry, members in zip(entries, groups.values())]
        with np.errstate(over="ignore"):  # a variance may be beyond FP32
            for name, values in merged.items():
                rows[name] = values
        raw = [(entry, [step.observations[i].raw for i in members]) for entry, members in zip(entries, groups.values())
               if step.observations[members[0]].raw is not None]
        notes = step.notes | self._moved(rates)
        bad = np.flatnonzero(rows["nonfinite"])
        is_new = self._incident is None and self._notice(step.number, [
            (entries[g], int(rows["nonfinite"][g])) for g in sorted(bad, key=lambda g: first_bad(arrays, groups[entries[g].index]))],
            series, notes)
        if self._bundle is not None:
            self._bundle.closed(step.number, entries, rows, series, rates)
        if notes:
            self._journal.note(step.number, notes)
        self._journal.step(step.number, series, rows)
        if raw and self._raw_steps is not None:
            self._write_raw(step.number, raw)
        elif raw and (is_new or self._incident is None):
            self._ring.append((step.number, raw))
        if is_new:
            for ringed in self._ring:
                self._write_raw(*ringed)
            self._ring.clear()
        if self.operands is not None:
            probes = [(entry, elements, [step.observations[i].execution for i in members]) for entry, elements, members
                      in zip(entries, rows["elements"].tolist(), groups.values()) if entry.kind == "activation"]
            self.operands.close_step(step.number, self.operands.rows(probes), is_new)
        if is_new:
            self._journal.sync()

    def _moved(self, rates: list) -> dict:
        """The note of learning rates, when one has moved by more than LR_CHANGE since the last: of several groups only."""
        given = [rate for rate in rates if rate is not None]
        if len(given) < len(rates) or not rates:
            return {}
        shown = [float(rate) if math.isfinite(rate) else str(float(rate)) for rate in rates]  # JSON has no Inf
        before = self._rates_noted
        if len(before) == len(shown) and not any(_has_moved(old, new) for old, new in zip(before, shown)):
            return {}
        self._rates_noted = shown
        return {"lr": shown}

    def _notice(self, number: int, bad: list[tuple[ProbeEntry, int]], series: Mapping[str, float], notes: dict) -> bool:
        """Whether the step holds the first incident of the run; says so, and notes it. bad: in order of calls."""
        incident = find_incident(number, bad, series, self.selection.whole_groups())
        if incident is None:
            return False
        self._incident, self._advice = incident.text, incident.advice
        notes["incident"] = {"text": incident.text, "advice": incident.advice}
        notes["order"] = [entry.index for entry, _ in bad if entry.kind == "activation"]
        log.warning("%s", incident_text(incident.text, incident.advice))
        return True

    def _write_raw(self, number: int, raw: list[tuple[ProbeEntry, list[Tensor]]]) -> None:
        for entry, tensors in raw:
            self._journal.raw(number, entry, b"".join(bytes_of(tensor) for tensor in tensors if tensor is not None))

    def _note_shape(self, entry: ProbeEntry, shapes: list[tuple[int, ...]]) -> int:
        """Number of elements a probe saw in a step; the journal is told when that is more than ever."""
        shape = merge_shapes(shapes)
        elements = math.prod(shape)
        if elements > entry.elements:
            entry.shape, entry.elements = shape, elements
            self._journal.probe(entry)
        return elements


_SIDEBAND_TEXT = {"off": "not recorded", "logits": "recomputed in FP32 from query and key",
                  "full": "recomputed in FP32 from query and key, and their softmax"}


def incident_text(text: str, advice: str | None) -> str:
    return text if advice is None else f"{text}; {advice}"


def _has_moved(old: float | str, new: float | str) -> bool:
    if isinstance(old, str) or isinstance(new, str):
        return old != new
    return abs(new - old) > LR_CHANGE * abs(old)


def _describe(model: nn.Module) -> str:
    inner = getattr(model, "module", model) if isinstance(model, nn.parallel.DistributedDataParallel) else model
    inner = getattr(inner, "_orig_mod", inner)
    return f"{type(inner).__name__}, {sum(parameter.numel() for parameter in model.parameters())} parameters"


def _rank() -> tuple[int, int]:
    """Rank and number of processes of the run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def _rank_path(path: Path) -> Path:
    rank, world = _rank()
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if world > 1 else path


def _choose(argument: str, value, choices) -> None:
    if value not in choices:
        raise CaptureError(f"{argument}: {value!r} is unknown; use one of {', '.join(choices)}")


def _at_least(argument: str, value, smallest: int) -> None:
    if not isinstance(value, int) or value < smallest:
        raise CaptureError(f"{argument}: {value!r} is not a whole number from {smallest} on; correct it")
