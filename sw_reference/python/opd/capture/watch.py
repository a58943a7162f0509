"""What the hooks of a model see of one training step: statistics of every probe, in the order in which they ran. Recording
(opd.capture.session) and steering (opd.guard) are both built on it."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from opd.capture import statistics
from opd.capture.journal import ProbeEntry
from opd.capture.observation import Observation
from opd.capture.operators import Operator
from opd.capture.probes import Registry

GRADIENT = ":grad"
MAX_CALLS = 16   # probes of one module that is called several times in a pass; when it is called more often it has one


class Watch:
    """The session of opd.capture.hooks.ModelHooks: it collects the observations of the open step.

    columns: of opd.capture.statistics; inference: forward passes in evaluation mode and without gradients count as well.
    What a class that is built on it says: `listening` (this step is recorded), `_failed(error)`, which must not raise, and perhaps
    `operands` and `see_operator`.
    """
    operands = None

    def __init__(self, columns: tuple[str, ...], inference: bool = False):
        self.listening = False
        self.inference = inference
        self._columns = columns
        self._registry = Registry()
        self._observations: list[Observation] = []
        self._sequence = 0                       # of the last observation
        self._passing = 0                        # number of the forward pass
        self._calls: dict[tuple[str, str], int] = {}   # of each module in the pass
        self._entries: dict[tuple, ProbeEntry | None] = {}  # of what an observation is of
        self._split: dict[tuple[str, str], bool] = {}  # whether the calls of a module have probes of their own
        self._passes: dict[int, tuple[bool, bool]] = {}  # passes of the open step: model in training mode, gradients enabled

    def _failed(self, error: Exception) -> None:
        raise NotImplementedError

    def _wants_raw(self, name: str) -> bool:
        """Whether the elements of a probe are kept in this step."""
        return False

    # --- what hooks call

    def guard(self, function: Callable) -> Callable:
        """The function, but a failure is handled by _failed, it does not end the run."""
        def guarded(*arguments) -> None:
            self.guarded(function, *arguments)
        return guarded

    def guarded(self, function: Callable, *arguments):
        try:
            return function(*arguments)
        except Exception as error:
            self._failed(error)
            return None

    def observe(self, name: str, kind: str, tensor: Tensor, suffix: str = "", raw: bool = True) -> Observation | None:
        """Statistics of a tensor as it is now; None for one without elements or whose type no trace knows."""
        if not tensor.numel() or not tensor.is_floating_point():
            return None
        form = self._registry.format_of(name + suffix, tensor.dtype)
        if form is None:
            return None
        self._sequence += 1
        with torch.no_grad():
            partials = statistics.measure(tensor, self._columns)
            keep_raw = raw and self._wants_raw(name + suffix)
            return Observation(name, suffix, kind, form, partials, tuple(tensor.shape),
                               tensor.detach().clone() if keep_raw else None, self._sequence, self._passing, True, True)

    def keep(self, observations: list[Observation | None], shape: tuple[int, ...] | None, training: bool, gradients: bool) -> None:
        """Makes what was observed of a forward pass part of the step. shape: they are slices of one tensor of that shape, else
        there is one. training, gradients: what the model and autograd are set to."""
        present = [observation for observation in observations if observation is not None]
        if not present:
            return
        first = present[0]
        if shape is not None:
            join = torch.cat if isinstance(first.partials, Tensor) else np.concatenate
            first.partials, first.shape, first.raw = join([observation.partials for observation in present]), shape, None
        self._count(first, training, gradients)
        self._observations.append(first)

    def see_output(self, name: str, suffix: str, tensor: Tensor, training: bool, gradients: bool,
                   find: Callable[[], Operator] | None = None) -> int:
        """An output of a module, as part of the step. find: gives the operator that made it, or raises NotKnown. Returns which
        call of the pass it is."""
        observation = self.observe(name, "activation", tensor, suffix)
        if observation is None:
            return 1
        if find is not None:
            self.see_operator(observation, find, tensor)
        self._count(observation, training, gradients)
        self._observations.append(observation)
        return observation.call

    def see_operator(self, observation: Observation, find: Callable[[], Operator], output: Tensor | None) -> None:
        """What made an observation that is about to be counted. Called where there are `operands`."""
        raise NotImplementedError

    def record(self, name: str, kind: str, tensor: Tensor, suffix: str = "", call: int = 1) -> None:
        """A tensor that is no output of a module, as part of the step. call: of the module whose gradient it is."""
        observation = self.observe(name, kind, tensor, suffix)
        if observation is not None:
            observation.call = call
            self._observations.append(observation)

    def begin_pass(self, training: bool, gradients: bool) -> None:
        """The model is called, not from within itself."""
        self._next_pass()
        self._passes[self._passing] = (training, gradients)

    # --- within

    def _count(self, observation: Observation, training: bool, gradients: bool) -> None:
        key = (observation.name, observation.suffix)
        observation.call = self._calls[key] = self._calls.get(key, 0) + 1
        observation.training, observation.gradients = training, gradients

    def _next_pass(self) -> None:
        """What comes now belongs to another forward pass: calls are counted anew."""
        self._passing += 1
        self._calls.clear()

    def _resolve(self, observations: list[Observation]) -> list[ProbeEntry]:
        """The probe of each observation. The calls of a module in one pass have probes of their own, NAME, NAME#2, ..., unless
        there are more than MAX_CALLS when it is first seen: then they share one, and so do those that are more in a later step
        with the last."""
        most: dict[tuple[str, str], int] = {}
        for observation in observations:
            if observation.kind == "activation":
                key = (observation.name, observation.suffix)
                most[key] = max(most.get(key, 1), observation.call)
        for key, calls in most.items():
            self._split.setdefault(key, calls <= MAX_CALLS)
        entries = []
        for observation in observations:
            key = (observation.name, observation.suffix, observation.kind, observation.format, observation.call)
            if key not in self._entries:
                call = observation.call
                if call > 1:
                    separate = self._split.get((observation.name, observation.suffix.removesuffix(GRADIENT)), False)
                    call = min(call, MAX_CALLS) if separate else 1
                numbered = f"{observation.name}#{call}" if call > 1 else observation.name
                self._entries[key] = self._registry.find(numbered + observation.suffix, observation.kind, observation.format)
            entries.append(self._entries[key])
        if None in entries:  # a trace is full
            observations[:] = [observation for observation, entry in zip(observations, entries) if entry is not None]
        return [entry for entry in entries if entry is not None]


def merge(arrays: Sequence[np.ndarray], entries: Sequence[ProbeEntry],
          columns: tuple[str, ...]) -> tuple[dict[int, list[int]], dict[str, np.ndarray]]:
    """Partial statistics of a step's observations, probe by probe: number of the probe -> its observations, and the columns merged,
    a value a probe in that order. arrays may be longer than entries."""
    groups: dict[int, list[int]] = {}
    for i, entry in enumerate(entries):
        groups.setdefault(entry.index, []).append(i)
    parts = [arrays[i] for members in groups.values() for i in members]
    ends = np.cumsum([sum(len(arrays[i]) for i in members) for members in groups.values()])
    return groups, statistics.combine(np.concatenate(parts), columns, np.concatenate(([0], ends[:-1])))


def first_bad(arrays: Sequence[np.ndarray], members: Sequence[int]) -> int:
    """Which of a probe's observations was the first with a non-finite element."""
    nonfinite = statistics.CORE.index("nonfinite")
    return next(i for i in members if arrays[i][:, nonfinite].any())
