"""The capture of one run: hooks, statistics, steps, journal, trace."""
from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import platform
import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture import statistics
from opd.capture.amp import BackwardLoss, LossScale
from opd.capture.attention import SIDEBANDS
from opd.capture.collectives import Collectives
from opd.capture.errors import CaptureError
from opd.capture.hooks import COMPILED, ModelHooks
from opd.capture.journal import SUFFIX, JournalWriter, ProbeEntry, recover, row_type, set_aside
from opd.capture.optimizer import OptimizerProbes, unwrap
from opd.capture.probes import Registry, Selection
from opd.trace import LABELS, SERIES, TraceError

log = logging.getLogger("opd.capture")

RING = 20  # steps whose raw elements are at hand when a value turns non-finite
STATISTICS = {"core": statistics.CORE, "full": statistics.FULL}
_STORAGE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # bytes per element -> a type that numpy has

_open_paths: set[Path] = set()  # of this process; other processes are kept out by a lock on the journal


@dataclass
class Observation:
    """One execution of a probe: partial statistics on its device."""
    entry: ProbeEntry
    partials: Tensor | np.ndarray
    shape: tuple[int, ...]
    raw: Tensor | None


@dataclass
class PendingStep:
    """A closed step whose values are on their way to the host."""
    number: int
    observations: list[Observation]
    series: dict[str, object]
    fetch: Callable[[], list[np.ndarray]] = field(repr=False)
    on_device: bool = False


def start_transfer(tensors: list[Tensor | np.ndarray]) -> tuple[Callable[[], list[np.ndarray]], bool]:
    """Starts to copy float64 tensors to the host, one copy per device, without waiting; what is an array is there already.
    Returns a function that waits and gives the arrays in order, and whether there is anything to wait for."""
    by_device: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor):
            by_device.setdefault(tensor.device, []).append(i)
    copies = []
    for device, members in by_device.items():
        flat = torch.cat([tensors[i].reshape(-1) for i in members])
        event = None
        if device.type == "cuda":
            host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            host.copy_(flat, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            flat = host
        copies.append((members, flat, event))

    def fetch() -> list[np.ndarray]:
        result = list(tensors)
        for members, flat, event in copies:
            if event is not None:
                event.synchronize()
            values, at = flat.cpu().numpy(), 0
            for i in members:
                size = tensors[i].numel()
                result[i] = values[at:at + size].reshape(tensors[i].shape)
                at += size
        return result

    return fetch, any(device.type != "cpu" for device in by_device)


class Capture:
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
    sideband    logits of fused attention: "logits" (recomputed), "full" (softmax as well) or "off"
    compiled    inside code of torch.compile: "skip" leaves it alone, "split" cuts it at every probe (slower, and may round
                differently)
    auto_loss   takes the loss from the calls of backward: the mean over the calls in a step
    first_step  number of the first step
    name, label, seed, model_text, manifest   texts of the trace; without a label it is "sudden" when a forward value is
                non-finite, else "healthy"

    Raises CaptureError for arguments that cannot work. Once the run is on its way nothing is raised into it: a failure of the
    capture itself (a full disk, a bug) is logged, ends the capture and leaves the trace up to there.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module], path: str | os.PathLike, *,
                 optimizer: Optimizer | Iterable[Optimizer] | None = None, probes: str | Iterable[str] = "key", every: int = 1,
                 statistics: str = "core", raw: str | Iterable[str] = (), raw_steps: Container[int] | None = None,
                 ring: int = RING, sideband: str = "logits", compiled: str = "skip", auto_loss: bool = False,
                 first_step: int = 0, name: str | None = None, label: str | None = None, seed: int | str = "",
                 model_text: str | None = None, manifest: Mapping | None = None):
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

        self.selection = Selection(probes)
        self._raw_patterns = Selection(raw).modules if raw else []
        if raw_steps is not None and not hasattr(raw_steps, "__contains__"):
            raise CaptureError("raw_steps: give something with steps in it, for instance range(100, 120)")
        self._raw_steps, self._ring = raw_steps, deque(maxlen=ring)
        self._columns, self._every = STATISTICS[statistics], every
        self._row = row_type(statistics == "full")
        self._sideband, self._compiled = sideband, compiled
        self._registry = Registry()
        self._observations: list[Observation] = []
        self._pending: deque[PendingStep] = deque()
        self._number = first_step
        self._closed_steps = 0
        self._losses: list[Tensor] = []
        self._loss_is_scaled = False
        self._loss_scale: Tensor | float | None = None
        self._incident: str | None = None
        self._stopped: str | None = None
        self._closed = False
        self._pid = os.getpid()
        self._models: list[ModelHooks] = []
        self._parts: list = []  # whatever has a remove()
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
            parameters = {k: v for hooks in self._models for k, v in hooks.parameters.items()}
            self.selection.check({name for hooks in self._models for name in hooks.names.values()}, parameters)
            self._optimizer = OptimizerProbes(map(unwrap, optimizers), parameters, self.selection)
            self._parts.append(self._optimizer)
            self._parts.append(LossScale(self._on_scale))
            if auto_loss:
                self._parts.append(BackwardLoss(self._on_backward))
            saved = set_aside(journal)
            if saved is not None:
                log.warning("%s: the trace of an earlier run that was killed", saved)
            options = {"probes": self.selection.texts, "every": every, "statistics": statistics, "raw": self._raw_patterns,
                       "sideband": f"logits of fused attention: {_SIDEBAND_TEXT[sideband]}", "compiled": compiled}
            self._journal = JournalWriter(journal, {
                "full": statistics == "full", "label": label, "seed": str(seed), "framework": f"torch {torch.__version__}",
                "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", name or self.path.stem) or "run",
                "model": model_text if model_text is not None else ", ".join(map(_describe, models.values())),
                "manifest": {**(manifest or {}), "capture": options, "rank": list(_rank()), "versions": {
                    "torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__}}})
        except BaseException:
            self._remove_hooks()
            raise
        self._journal_path = journal
        _open_paths.add(journal)
        atexit.register(self.close)

    # --- what the user calls

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close()
        if kind is None and self._closed_steps == 0:
            raise CaptureError(f"{self.path}: no trace was written, because no step was recorded; call c.step(loss=loss) after "
                               "optimizer.step(), with the model in training mode")

    def step(self, loss: Tensor | float | None = None, *, grad_norm: Tensor | float | None = None,
             lr: Tensor | float | None = None, loss_scale: Tensor | float | None = None, step: int | None = None) -> None:
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
            self.guarded(self._close_step, number, series)
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

    def add_model(self, prefix: str, model: nn.Module) -> None:
        """Hooks a further model, whose probes are named PREFIX.NAME."""
        self._add_hooks(prefix, model)
        self._optimizer.add(self._models[-1].parameters)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Takes moments and, when it is the first, the learning rate from a further optimizer."""
        self._optimizer.add_optimizer(unwrap(optimizer))

    def close(self) -> None:
        """Removes the hooks and writes the trace; what is open of a step is dropped. A second call does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.listening = False
        self._remove_hooks()
        atexit.unregister(self.close)
        if self._stopped is None:
            self.guarded(self._drain)
        _open_paths.discard(self._journal_path)
        try:
            ending = {"complete": self._stopped is None, "skipped": self._registry.skipped}
            self._journal.end(ending | ({"stopped": self._stopped} if self._stopped else {}))
            if self._closed_steps:
                recover(self._journal_path, self.path)
            else:
                self._journal_path.unlink()
        except (OSError, CaptureError, TraceError) as error:
            log.error("the trace was not written: %s; its steps are in %s: python -m opd capture --recover turns them into a trace",
                      error, self._journal_path)

    # --- what hooks call

    def guard(self, function: Callable) -> Callable:
        """The function, but a failure ends the capture instead of the run."""
        def guarded(*arguments) -> None:
            self.guarded(function, *arguments)
        return guarded

    def guarded(self, function: Callable, *arguments):
        try:
            return function(*arguments)
        except Exception as error:
            self.listening = False
            if self._stopped is None:
                self._stopped = f"step {self._number}: {type(error).__name__}: {error}"
                log.error("capture ends, the run goes on: %s", self._stopped, exc_info=True)
            return None

    def observe(self, name: str, kind: str, tensor: Tensor, raw: bool = True) -> Observation | None:
        """Statistics of a tensor as it is now; None for one without elements or whose type no trace knows."""
        if not tensor.numel() or not tensor.is_floating_point():
            return None
        entry = self._registry.find(name, kind, tensor.dtype)
        if entry is None:
            return None
        with torch.no_grad():
            partials = statistics.measure(tensor, self._columns)
            keep_raw = raw and self._wants_raw(entry)
            return Observation(entry, partials, tuple(tensor.shape), tensor.detach().clone() if keep_raw else None)

    def keep(self, observations: list[Observation | None], shape: tuple[int, ...] | None = None) -> None:
        """Makes observations part of the step. shape: they are slices of one tensor of that shape."""
        present = [observation for observation in observations if observation is not None]
        if shape is not None and present:
            first = present[0]
            join = torch.cat if isinstance(first.partials, Tensor) else np.concatenate
            present = [Observation(first.entry, join([observation.partials for observation in present]), shape, None)]
        self._observations += present

    def record(self, name: str, kind: str, tensor: Tensor) -> None:
        observation = self.observe(name, kind, tensor)
        if observation is not None:
            self._observations.append(observation)

    # --- within

    def _samples(self, number: int) -> bool:
        return number % self._every == 0 and self._stopped is None and not self._closed

    def _wants_raw(self, entry: ProbeEntry) -> bool:
        if self._raw_steps is not None and self._number not in self._raw_steps:
            return False
        return any(fnmatchcase(entry.name, pattern) for pattern in self._raw_patterns)

    def _check_raw(self) -> None:
        """Says which patterns match no probe so far. Names are only known once the probes have run."""
        names = [entry.name for entry in self._registry.entries]
        for pattern in self._raw_patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                log.warning("raw: no probe is called %r after the first step, so that none of its elements are kept; the probes "
                            "are %s", pattern, ", ".join(names[:20]) + (", ..." if len(names) > 20 else ""))

    def _add_hooks(self, prefix: str, model: nn.Module) -> None:
        hooks = ModelHooks(self, prefix, model, self.selection, self._sideband, self._compiled)
        self._models.append(hooks)
        self._parts.append(hooks)
        self._collectives.add_model(model, hooks.parameters)
        if hooks.skipped_modules:
            log.warning("%d modules are inside code of torch.compile and are not probed; compiled=\"split\" probes them, at the "
                        "price of a graph break each", hooks.skipped_modules)

    def _remove_hooks(self) -> None:
        for part in self._parts:
            part.remove()
        self._parts.clear()

    def _on_scale(self, loss, scale: Tensor | float) -> None:
        self._loss_scale = scale
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())
            self._loss_is_scaled = True  # the backward() that follows is called on the product

    def _on_backward(self, loss: Tensor) -> None:
        if self._loss_is_scaled:
            self._loss_is_scaled = False
        else:
            self._losses.append(loss)

    def _close_step(self, number: int, series: dict[str, object]) -> None:
        if self.listening:
            self._optimizer.read(self.record)
        lr = self._optimizer.take_lr()
        if series["lr"] is None:
            series["lr"] = lr
        if series["loss_scale"] is None:
            series["loss_scale"] = self._loss_scale
        if series["loss"] is None and self._losses:
            series["loss"] = torch.stack([loss.double().reshape(()) for loss in self._losses]).mean()
        self._losses.clear()
        self._loss_scale, self._loss_is_scaled = None, False
        self._collectives.next_step()
        observations, self._observations = self._observations, []
        if not (self.listening and observations):
            return
        tensors = [observation.partials for observation in observations]
        order = [name for name in SERIES if isinstance(series[name], Tensor)]
        tensors += [series[name].detach().double().reshape(1) for name in order]
        fetch, on_device = start_transfer(tensors)
        values = {name: float(value) for name, value in series.items() if value is not None and not isinstance(value, Tensor)}
        self._pending.append(PendingStep(number, observations, values | dict.fromkeys(order), fetch, on_device))
        self._closed_steps += 1
        if self._closed_steps == 1:
            self._check_raw()
        while self._pending and not (len(self._pending) == 1 and self._pending[0].on_device):
            self._write(self._pending.popleft())

    def _drain(self) -> None:
        while self._pending:
            self._write(self._pending.popleft())

    def _write(self, step: PendingStep) -> None:
        """Merges what a step observed, probe by probe, and appends it to the journal."""
        arrays = step.fetch()
        fetched = iter(arrays[len(step.observations):])
        series = {name: float(next(fetched)[0]) if value is None else value for name, value in step.series.items()}
        groups: dict[int, list[int]] = {}
        for i, observation in enumerate(step.observations):
            groups.setdefault(observation.entry.index, []).append(i)
        parts = [arrays[i] for members in groups.values() for i in members]
        ends = np.cumsum([sum(len(arrays[i]) for i in members) for members in groups.values()])
        merged = statistics.combine(np.concatenate(parts), self._columns, np.concatenate(([0], ends[:-1])))
        entries = [step.observations[members[0]].entry for members in groups.values()]
        rows = np.zeros(len(groups), self._row)
        rows["probe"] = [entry.index for entry in entries]
        rows["elements"] = [self._note_shape(entry, [step.observations[i].shape for i in members])
                            for entry, members in zip(entries, groups.values())]
        with np.errstate(over="ignore"):  # a variance may be beyond FP32
            for name, values in merged.items():
                rows[name] = values
        bad = [(entries[i], int(rows["nonfinite"][i])) for i in np.flatnonzero(rows["nonfinite"])]
        raw = [(entry, [step.observations[i].raw for i in members]) for entry, members in zip(entries, groups.values())
               if step.observations[members[0]].raw is not None]
        self._journal.step(step.number, series, rows)
        if raw and self._raw_steps is not None:
            self._write_raw(step.number, raw)
        elif raw and self._incident is None:
            self._ring.append((step.number, raw))
        self._notice(step.number, bad, "loss_scale" in series)

    def _notice(self, number: int, bad: list[tuple[ProbeEntry, int]], scaled: bool) -> None:
        """On the first non-finite value: says so, writes the ring and synchronises the journal. Gradients that overflow under a
        loss scale are ordinary."""
        bad = [(entry, count) for entry, count in bad if not (entry.kind in ("gradient", "collective") and scaled)]
        if not bad or self._incident is not None:
            return
        entry, count = min(bad, key=lambda item: item[0].index)
        self._incident = f"step {number}: {entry.name} holds {count} non-finite elements"
        log.warning("%s%s", self._incident, f", and so do {len(bad) - 1} other probes" if len(bad) > 1 else "")
        for ringed in self._ring:
            self._write_raw(*ringed)
        self._ring.clear()
        self._journal.sync()

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


def merge_shapes(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of what a probe saw in a step: its own when it ran once, [n, *shape] for n runs of one shape, else [elements]."""
    if len(shapes) == 1:
        return shapes[0]
    if all(shape == shapes[0] for shape in shapes):
        return (len(shapes), *shapes[0])
    return (sum(map(math.prod, shapes)),)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(_STORAGE[tensor.element_size()]).cpu().numpy().tobytes()


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
