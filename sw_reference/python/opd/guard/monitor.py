"""What a guard sees of a step: the statistics of the capture's hooks, operator by operator, as the device takes them."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from opd.capture import statistics
from opd.capture.hooks import ModelHooks, compiled_parts
from opd.capture.journal import ProbeEntry
from opd.capture.observation import Observation, start_transfer
from opd.capture.optimizer import OptimizerProbes
from opd.capture.probes import FORMAT_NAMES, Registry, Selection
from opd.capture.watch import Watch, first_bad, merge
from opd.registers import Format
from opd.trace import FORMATS

WIDEST_FIRST = ("FP32", "BF16", "FP16", "E5M2", "E4M3")
_TYPES = {name: dtype for dtype, name in FORMAT_NAMES.items()}
FORWARD = "activation"
SCALED = ("gradient", "collective")  # kinds with the loss scale in them


@dataclass
class Operator:
    """An operator of the device. module: whose mode is its own, "" for none; part: "whole", "logits" or "softmax" of it; own: the format
    that it was first seen in; is_ordinary: its Inf or NaN mean nothing."""
    op: int
    name: str
    kind: str
    own: str
    module: str = ""
    part: str = "whole"
    is_ordinary: bool = False


@dataclass
class Seen:
    """Completions of a step, in order. order: of the first non-finite observation of each, Inf where there is none; start: that of the
    first observation of all."""
    operators: list[Operator]
    format: np.ndarray
    max_abs: np.ndarray
    elements: np.ndarray
    nonfinite: np.ndarray
    order: np.ndarray
    start: int = 0

    @classmethod
    def nothing(cls) -> Seen:
        return cls([], np.zeros(0, np.uint8), np.zeros(0), np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0))

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.operators + other.operators, *(np.concatenate((getattr(self, name), getattr(other, name))) for name in
                                                        ("format", "max_abs", "elements", "nonfinite", "order")), start=self.start)

    def without(self, kinds: tuple[str, ...]) -> Seen:
        """The same without operators of some kinds."""
        places = [i for i, operator in enumerate(self.operators) if operator.kind not in kinds]
        return Seen([self.operators[i] for i in places], *(getattr(self, name)[places] for name in
                                                           ("format", "max_abs", "elements", "nonfinite", "order")), start=self.start)

    def bad(self, kinds: tuple[str, ...]) -> list[int]:
        """Places of those of some kinds that are non-finite and should not be, in the order in which they became so."""
        found = [i for i, operator in enumerate(self.operators)
                 if self.nonfinite[i] and operator.kind in kinds and not operator.is_ordinary]
        return sorted(found, key=lambda i: self.order[i])

    def max_mag(self) -> np.ndarray:
        bits = np.zeros(len(self.operators), np.uint32)
        for i, code in enumerate(self.format):
            dtype = FORMATS[Format(int(code)).name].numpy
            bits[i] = np.asarray(self.max_abs[i]).astype(dtype).view(f"<u{dtype.itemsize}")
        return bits


class _Operators(Registry):
    """One probe of a name, whatever its type: a mode changes it."""

    def __init__(self):
        super().__init__()
        self._named: dict[tuple[str, str], ProbeEntry | None] = {}

    def find(self, name: str, kind: str, format_name: str) -> ProbeEntry | None:
        if (name, kind) not in self._named:
            self._named[name, kind] = super().find(name, kind, format_name)
        return self._named[name, kind]


class Monitor(Watch):
    """Watches one model. failed: told an error of ours, must not raise; inference: passes in evaluation mode without gradients count as
    well. Raises CaptureError for probes that match nothing."""

    def __init__(self, model: nn.Module, optimizers: list[Optimizer], probes, sideband: str, compiled: str,
                 failed: Callable[[Exception], None], inference: bool = False):
        super().__init__(statistics.CORE, inference)
        self._failed_ = failed
        self._registry = _Operators()
        self._selection = Selection(probes)
        self.operators: list[Operator] = []
        self._of_entry: dict[int, Operator] = {}  # number of a probe -> its operator
        self._hooks = ModelHooks(self, "", model, self._selection, sideband, compiled)
        try:
            self._selection.check(self._hooks.names, self._hooks.parameters())
            self._optimizer = OptimizerProbes(optimizers, self._hooks.parameters(), self._selection)
        except BaseException:
            self._hooks.remove()
            raise
        self.modules = {name: module for module, name in zip(model.modules(), self._hooks.names)}
        self.compiled = compiled_parts(model)
        self.skipped = list(self._hooks.skipped_names)

    def _failed(self, error: Exception) -> None:
        self._failed_(error)

    def observe(self, *arguments, **options) -> Observation | None:
        """Beside the function modes of a module that is not in FAST, which have no business with what is read here."""
        with torch._C.DisableTorchFunction():
            return super().observe(*arguments, **options)

    def remove(self) -> None:
        self.listening = False
        self._hooks.remove()
        self._optimizer.remove()

    def drop(self) -> None:
        """Forgets what was seen of the open step."""
        self._observations.clear()
        self._passes.clear()
        self._next_pass()

    def take(self) -> Seen:
        """What was seen since the last call; waits for it."""
        observations = sorted(self._observations, key=lambda observation: observation.sequence)
        self.drop()
        entries = self._resolve(observations)
        if not entries:
            return Seen.nothing()
        fetch, _ = start_transfer([observation.partials for observation in observations])
        arrays = fetch()
        groups, merged = merge(arrays, entries, self._columns)
        members = list(groups.values())
        nonfinite = merged["nonfinite"]
        return Seen([self._operator(entries[own[0]], observations[own[0]]) for own in members],
                    np.array([self._format([observations[i] for i in own]) for own in members], np.uint8), merged["max_abs"],
                    np.array([min(sum(math.prod(observations[i].shape) for i in own), 0xFFFFFFFF) for own in members], np.uint32),
                    np.minimum(nonfinite, 0xFFFFFFFF).astype(np.uint32),
                    np.array([observations[first_bad(arrays, own)].sequence if bad else math.inf for own, bad in zip(members, nonfinite)]),
                    observations[0].sequence)

    def take_parameters(self) -> Seen:
        """Parameters and moments as they are now, as far as they are probed."""
        self._optimizer.read(self.record)
        return self.take()

    def add_optimizer(self, optimizer: Optimizer) -> None:
        self._optimizer.add_optimizer(optimizer)

    def rates(self) -> list:
        return self._optimizer.take_rates()

    def own_type(self, name: str, number: int) -> torch.dtype | None:
        """What a module's output is in FAST."""
        wanted = f"{name}[{number}]" if number else name
        found = next((operator for operator in self.operators if operator.name == wanted and operator.kind == FORWARD), None)
        return None if found is None else _TYPES[found.own]

    @staticmethod
    def _format(observations: list[Observation]) -> int:
        """The widest format of a probe's executions: a value that was carried on may be BF16 in one micro-batch."""
        names = {observation.format for observation in observations}
        return int(Format[next(name for name in WIDEST_FIRST if name in names)])

    def number(self, operators: list[Operator]) -> None:
        """Numbers that several ranks have agreed on: the operators in their order, with those that only other ranks have seen."""
        own = {(operator.name, operator.kind): operator for operator in self.operators}
        self.operators[:] = [own.get((operator.name, operator.kind), operator) for operator in operators]
        for op, (operator, agreed) in enumerate(zip(self.operators, operators)):
            operator.op, operator.own = op, agreed.own

    def _operator(self, entry: ProbeEntry, observation: Observation) -> Operator:
        if entry.index not in self._of_entry:
            known = next((found for found in self.operators if (found.name, found.kind) == (entry.name, entry.kind)), None)
            self._of_entry[entry.index] = self._new_operator(entry, observation) if known is None else known
        return self._of_entry[entry.index]

    def _new_operator(self, entry: ProbeEntry, observation: Observation) -> Operator:
        made = Operator(len(self.operators), entry.name, entry.kind, observation.format)
        if entry.kind in (FORWARD, "gradient"):
            name = observation.name
            made.module = name if name in self.modules else name.rpartition(".")[0] or "model"
            made.part = next((part for part in ("logits", "softmax") if observation.suffix.startswith(f":{part}")), "whole")
        self.operators.append(made)
        return made
