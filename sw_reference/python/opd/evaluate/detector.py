"""What a detector is: a rule that says at each sample of an operator whether it raises an alarm.

All detectors see the same samples, the largest finite magnitude of each operator output, and all act through the same
controller: an alarm moves an operator out of FAST, QUIET_STEPS steps without one bring it back (docs/controller.md). What the
peers look at in their own programs (a gradient norm, a loss) is one number per step; here each operator has its own state.

A non-finite sample changes no state and raises no alarm, except in NonfiniteOnly: what an operator does after its first one
is not judged (docs/evaluation.md).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from opd.registers import CONFIG_RESET
from opd.trace import FORMATS, Trace

NO_VERDICT = -np.inf  # score where a rule has not enough samples


@dataclass(frozen=True)
class Samples:
    """A trace as the detectors see it: S steps, P operators."""
    trace: Trace
    magnitude: np.ndarray  # float64 [S, P], largest finite magnitude
    finite: np.ndarray     # bool [S, P]
    bad: np.ndarray        # bool [S, P], not finite; where clipped values count, an activation that holds one as well
    limit: np.ndarray      # float64 [P], largest finite magnitude of the operator's format
    derived: dict = field(default_factory=dict, compare=False)  # what detectors of one kind compute only once for a trace

    @property
    def step(self) -> np.ndarray:
        return self.trace.step

    @staticmethod
    def of(trace: Trace, clipped: bool = False) -> Samples:
        """clipped: whether a clipped value of an activation is an incident (class saturating)."""
        finite = trace.nonfinite == 0
        return Samples(trace, trace.max_abs.astype(np.float64), finite, ~finite | clipped_values(trace) if clipped else ~finite,
                       np.array([float(FORMATS[probe.format].max_value) for probe in trace.probes]))


def clipped_values(trace: Trace) -> np.ndarray:
    """Where an activation holds a value of the format's largest magnitude, as a cast that saturates leaves it: bool [S, P]."""
    if trace.saturated is None:
        return np.zeros(trace.max_abs.shape, bool)
    return (trace.saturated > 0) & np.array([probe.kind == "activation" for probe in trace.probes])


def scale_log2(trace: Trace) -> np.ndarray:
    """floor(log2) of the loss scale in each operand, 0 where there is none (docs/formats.md): int8 [S, P]."""
    scale = np.zeros(trace.max_abs.shape, np.int8)
    if trace.loss_scale is not None:
        gradients = [op for op, probe in enumerate(trace.probes) if probe.kind == "gradient"]
        exponent = np.frexp(trace.loss_scale)[1] - 1  # exact
        scale[:, gradients] = np.clip(exponent, -128, 127).astype(np.int8)[:, None]
    return scale


def of_kinds(trace: Trace, kinds: set[str]) -> Trace:
    """The trace with the probes of these kinds alone, without raw rows and operators. ValueError when none is left."""
    chosen = [op for op, probe in enumerate(trace.probes) if probe.kind in kinds]
    if not chosen:
        raise ValueError("has no probe of the kinds asked for")
    columns = {name: getattr(trace, name)[:, chosen] for name in ("max_abs", "nonfinite", "saturated")
               if getattr(trace, name) is not None}
    return replace(trace, probes=[trace.probes[op] for op in chosen], raw={}, raw_step=None, operators=[], operand_step=None,
                   operands={}, outputs={}, **columns)


def hold(alarms: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Whether an alarm stands after each sample: bool [S] or [S, P], int64 [S] -> as the alarms.

    The STABLE row of docs/controller.md with every sample without an alarm as a quiet one; steps are counted as there."""
    elapsed = np.diff(step, prepend=step[:1]) % 256
    timer = np.cumsum(np.where(elapsed < 128, elapsed, 0)).reshape(-1, *[1] * (alarms.ndim - 1))
    last = np.maximum.accumulate(np.where(alarms, timer, -CONFIG_RESET["quiet_steps"]), axis=0)  # at the last alarm
    return timer - last < CONFIG_RESET["quiet_steps"]


@dataclass(frozen=True)
class Verdict:
    """What a detector says of a trace."""
    step: np.ndarray
    alarms: np.ndarray                   # bool [S, P]
    modes: np.ndarray | None = None      # uint8 [S, P] after each sample; None: `hold` of the alarms

    def standing(self, op: int) -> np.ndarray:
        """Whether an alarm of the operator stands after each sample: bool [S]."""
        return self.modes[:, op] != 0 if self.modes is not None else hold(self.alarms[:, op], self.step)


class Detector:
    """A rule with a score and one threshold: an alarm is a score above it (`inclusive`: or at it)."""
    name: str
    source: str                   # where rule and settings were published
    settings: Mapping[str, float | str]
    unit: str                     # of score and threshold
    threshold: float              # as published
    sweep: tuple[float, ...]      # thresholds of the ROC
    inclusive = False
    adaptive = False              # the state depends on the threshold: every threshold is a run of its own
    samples_needed = 0            # of an operator before the first verdict on it
    state_bits: int               # per operator, without the controller's 20
    operations: Mapping[str, int]  # per sample, by kind; shifts and selections are not counted, a maximum is a comparison

    @property
    def rule(self) -> str:
        """Name of the rule, whatever its published threshold: the same for detectors that differ in nothing else."""
        return self.name

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        """float64 [S, P]; NO_VERDICT where the rule says nothing. The threshold matters to adaptive rules only."""
        raise NotImplementedError

    def judge(self, samples: Samples, threshold: float | None = None) -> Verdict:
        """What the detector says of a trace, with another threshold than the published one when it is given."""
        threshold = self.threshold if threshold is None else threshold
        return self._verdict(samples, self.score(samples, threshold), threshold)

    def judge_sweep(self, samples: Samples) -> Iterator[Verdict]:
        """The same at each threshold of the sweep."""
        score = None if self.adaptive else self.score(samples, self.threshold)
        for threshold in self.sweep:
            yield self.judge(samples, threshold) if score is None else self._verdict(samples, score, threshold)

    def _verdict(self, samples: Samples, score: np.ndarray, threshold: float) -> Verdict:
        return Verdict(samples.step, score >= threshold if self.inclusive else score > threshold)


def spread(low: float, published: float, high: float, count: int = 12) -> tuple[float, ...]:
    """Thresholds in equal ratios from low to published and on to high; the published one is exact."""
    below = np.geomspace(low, published, count + 1)[:-1]
    above = np.geomspace(published, high, count + 1)[1:]
    return tuple(float(f"{value:.4g}") for value in below) + (published,) + tuple(float(f"{value:.4g}") for value in above)


def ratio(value: np.ndarray, base: np.ndarray) -> np.ndarray:
    """value / base of non-negative numbers; x / 0 is infinite, 0 / 0 is NO_VERDICT."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((base == 0) & (value == 0), NO_VERDICT, value / base)
