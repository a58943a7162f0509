"""A governor on the maxima of a recorded run: what its scale would have made of them.

Open loop: the run is the recorded one whatever the governor decides. Steps that a governor skips were taken, steps that the recorded
scaler skipped were not. docs/governor.md has the rules.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from opd.governor.baseline import Baseline
from opd.governor.fp8_scale import TensorScale
from opd.governor.loss_scale import LARGEST, LossScale, Outcome
from opd.trace import FORMATS, Probe, Trace

OVERFLOW_FP16 = 65520.0  # the smallest magnitude that is rounded to Inf


@dataclass
class Tally:
    """Counts of a replay; those of several add up.

    samples    executions of operators that were judged, steps in which there were any
    overflows  executions that overflowed, steps in which one did; a step under a loss scale also where the recorded scaler skipped it
               at no larger a scale, though no probe shows the gradient that overflowed
    unknown    steps that the recorded scaler skipped and the governor took at a smaller scale: counted as fitting
    above      steps taken at a larger scale than the recorded one: gradients that are not probed may have overflowed unseen
    wasted     sum over `measured` of log2(limit / scaled maximum) of what did not overflow, in bits: of FP8 per execution, of a loss
               scale per step, of the largest gradient
    beyond     sum over the overflows of FP8 of log2(scaled maximum / limit), in bits
    lost       executions whose smallest element would be rounded to 0, among the `floors` of which it is known
    """
    samples: int = 0
    steps: int = 0
    overflows: int = 0
    overflow_steps: int = 0
    unknown: int = 0
    above: int = 0
    wasted: float = 0.0
    measured: int = 0
    beyond: float = 0.0
    lost: int = 0
    floors: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Tally)))


def _forward(trace: Trace) -> np.ndarray:
    return np.array([probe.kind == "activation" for probe in trace.probes])


def end_of(trace: Trace) -> int:
    """Row of the first step in which an activation or the loss is not finite; the number of steps without one."""
    bad = (trace.nonfinite[:, _forward(trace)] > 0).any(axis=1)
    if trace.loss is not None:
        bad |= ~np.isfinite(trace.loss)
    return int(bad.argmax()) if bad.any() else len(trace.step)


def _device(probes: Sequence[Probe], config: Mapping[str, float] | None) -> Baseline:
    return Baseline([probe.format for probe in probes], np.array([min(probe.elements, 0xFFFFFFFF) for probe in probes], np.uint32), config)


# --- loss scales


class Gradients:
    """What a trace says of its gradients in FP16. None of it depends on a governor. Raises ValueError where it has no loss scale, or no
    gradient in FP16."""

    def __init__(self, trace: Trace):
        if trace.loss_scale is None:
            raise ValueError("has no loss scale")
        self.trace = trace
        self.gradients = np.array([op for op, probe in enumerate(trace.probes) if probe.kind == "gradient" and probe.format == "FP16"], int)
        if not len(self.gradients):
            raise ValueError("has no gradient in FP16")
        self.activations = np.flatnonzero(_forward(trace))
        self.all = np.sort(np.concatenate((self.activations, self.gradients)))
        self.end = end_of(trace)
        self.skipped = (trace.nonfinite[:, self.gradients] > 0).any(axis=1)  # by the recorded scaler
        self.skipped[:-1] |= trace.loss_scale[1:] < trace.loss_scale[:-1]

    def device(self, config: Mapping[str, float] | None = None) -> Baseline:
        """A device with every operator of the trace."""
        return _device(self.trace.probes, config)


def replay_loss_scale(gradients: Gradients, governor: LossScale) -> tuple[Tally, np.ndarray]:
    """Returns the counts, and the scale of each step: float64 [steps before the first non-finite forward value]."""
    trace, tally = gradients.trace, Tally()
    is_gradient = np.isin(gradients.all, gradients.gradients)
    floor = None if trace.min_abs is None else trace.min_abs[:, gradients.gradients].astype(np.float64)
    scales = np.empty(gradients.end)
    for row in range(gradients.end):
        recorded = float(trace.loss_scale[row])
        governor.begin(int(trace.step[row]), recorded)
        scales[row] = governor.scale
        ratio = governor.scale / recorded
        max_abs = trace.max_abs[row, gradients.all].astype(np.float64) * np.where(is_gradient, ratio, 1.0)
        burst = (trace.nonfinite[row, gradients.all] > 0) & is_gradient  # at the recorded scale
        overflow = (max_abs >= OVERFLOW_FP16) & is_gradient | burst & (ratio >= 1.0)
        finite = ~(overflow | burst)
        count = int(overflow.sum())
        tally.samples += int(is_gradient.sum())
        tally.steps += 1
        tally.overflows += count
        skips = count > 0 or bool(gradients.skipped[row]) and ratio >= 1.0
        tally.overflow_steps += skips
        tally.unknown += not skips and bool(gradients.skipped[row])
        tally.above += not skips and ratio > 1.0
        largest = float(max_abs[is_gradient & finite].max(initial=0.0))
        if not skips and not burst.any() and largest > 0:
            tally.wasted += np.log2(LARGEST / largest)
            tally.measured += 1
        if floor is not None:
            known = floor[row] > 0
            tally.floors += int(known.sum())
            tally.lost += int((floor[row][known] * ratio <= 2.0**-25).sum())  # half of the smallest FP16: rounds to even, 0
        log2_scale = int(np.clip(np.floor(np.log2(governor.scale)), -128, 127))
        with np.errstate(over="ignore"):
            seen = np.where(is_gradient, max_abs.astype(np.float16).astype(np.float64), max_abs)
        governor.update(Outcome(int(trace.step[row]), recorded, skips, gradients.all[finite], seen[finite],
                                np.where(is_gradient, log2_scale, 0).astype(np.int8)[finite]))
    return tally, scales


# --- FP8 scales


class Casts:
    """The casts to FP8 of a trace and the tensors before them. A cast is an activation in E4M3 or E5M2 right behind, in the order of
    execution, an activation of a wider format with as many elements. Raises ValueError where there is none."""

    def __init__(self, trace: Trace):
        self.trace = trace
        activations = [op for op, probe in enumerate(trace.probes) if probe.kind == "activation"]
        pairs = [(before, op) for before, op in zip(activations, activations[1:]) if trace.probes[op].format in ("E4M3", "E5M2")
                 and trace.probes[before].format not in ("E4M3", "E5M2") and trace.probes[before].elements == trace.probes[op].elements]
        if not pairs:
            raise ValueError("has no cast to FP8 with the tensor before it")
        self.sources, self.casts = (np.array(column) for column in zip(*pairs))
        self.types = [FORMATS[trace.probes[op].format].numpy for op in self.casts]
        self.limit = np.array([float(FORMATS[trace.probes[op].format].max_value) for op in self.casts])
        self.end = min(end_of(trace) + 1, len(trace.step))  # what overflowed is judged

    def device(self, config: Mapping[str, float] | None = None) -> Baseline:
        """A device that watches the tensors before the casts."""
        return _device([self.trace.probes[op] for op in self.sources], config)

    def cast(self, values: np.ndarray) -> np.ndarray:
        """float32 [P] as the cast stores them: NaN or Inf where they are beyond the format."""
        stored = np.empty(len(values), np.float32)
        for dtype in set(self.types):
            own = [place for place, found in enumerate(self.types) if found == dtype]
            with np.errstate(over="ignore", invalid="ignore"):
                stored[own] = values[own].astype(dtype).astype(np.float32)
        return stored


def replay_fp8_scale(casts: Casts, governor: TensorScale) -> tuple[Tally, np.ndarray]:
    """Returns the counts, and where a cast overflowed: bool [steps, P]."""
    trace, tally = casts.trace, Tally()
    overflowed = np.zeros((casts.end, len(casts.casts)), bool)
    for row in range(casts.end):
        amax = trace.max_abs[row, casts.sources].astype(np.float32)
        seen = trace.nonfinite[row, casts.sources] == 0
        scale = governor.scale(np.where(seen, amax, 0).astype(np.float32))
        with np.errstate(over="ignore"):
            scaled = amax * scale
        overflow = overflowed[row] = ~np.isfinite(casts.cast(scaled)) & seen
        tally.samples += int(seen.sum())
        tally.steps += bool(seen.any())
        tally.overflows += int(overflow.sum())
        tally.overflow_steps += bool(overflow.any())
        tally.beyond += float(np.log2(scaled[overflow].astype(np.float64) / casts.limit[overflow]).sum())
        measured = seen & ~overflow & (scaled > 0)
        tally.wasted += float(np.log2(casts.limit[measured] / scaled[measured].astype(np.float64)).sum())
        tally.measured += int(measured.sum())
        if trace.min_abs is not None:
            smallest = trace.min_abs[row, casts.sources].astype(np.float32)
            known = seen & (smallest > 0)
            tally.floors += int(known.sum())
            tally.lost += int((casts.cast(smallest * scale)[known] == 0).sum())
        governor.update(int(trace.step[row]), seen, amax)
    return tally, overflowed
