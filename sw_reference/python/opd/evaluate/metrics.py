"""What one detector did on one run: lead, false alarms, alarms upstream of the incident (docs/evaluation.md).

Words and definitions are those of docs/metrics.md: alarm, standing alarm, incident, lead, first incident.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opd.evaluate.corpus import Run
from opd.evaluate.detector import Detector, Samples, Verdict, hold
from opd.evaluate.incident import CLEAN, SATURATING, UNKNOWN, earliest, first_bad
from opd.evaluate.log import Log, said
from opd.trace import LABELS

LEAD_WINDOW = 128       # steps
WARM_UP = 32            # first samples of a run
INCIDENT_CLASSES = tuple(kind for kind in LABELS if kind not in (*CLEAN, UNKNOWN))


def first_incident(run: Run, first: np.ndarray) -> int | None:
    """Operator of the run's first incident: the one its label names, else the earliest activation, else the earliest of the
    other operator outputs. None without one: in a clean run a gradient that overflows is the loss scaler at work."""
    if run.label.kind in (*CLEAN, UNKNOWN) or run.label.no_incident or run.unlocated is not None:
        return None
    names = [probe.name for probe in run.trace.probes]
    return names.index(run.label.first_bad_op) if run.label.first_bad_op in names else earliest(run.trace, first)


def event_step(run: Run, samples: Samples, first: np.ndarray) -> int | None:
    """Step of the event that the label names, else of the incident; None without either."""
    if run.label.event_step is not None:
        return run.label.event_step
    op = first_incident(run, first)
    if op is None:
        return None if run.unlocated is None else run.unlocated.step
    return int(samples.step[first[op]])


def lead_steps(standing: np.ndarray, step: np.ndarray, bad: int) -> int:
    """Steps for which an alarm had been standing at the incident, sample `bad`; 0 when none was."""
    before = standing[:bad]
    if not len(before) or not before[-1]:
        return 0
    quiet = np.flatnonzero(~before)
    start = quiet[-1] + 1 if len(quiet) else 0
    return int(min(step[bad] - step[start], LEAD_WINDOW))


def judged(samples: Samples, first: np.ndarray) -> np.ndarray:
    """Samples at which an alarm is a false one: bool [S, P]. Not those from an operator's first bad value on, nor the
    LEAD_WINDOW steps before it, where an alarm is a warning."""
    steps = len(samples.step)
    index = np.arange(steps)[:, None]
    bad_step = samples.step[np.minimum(first, steps - 1)]
    return (index < first) & ((first == steps) | (samples.step[:, None] < bad_step - LEAD_WINDOW))


@dataclass(frozen=True)
class Count:
    """Alarms among so many probe-steps."""
    alarms: int = 0
    probe_steps: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.alarms + other.alarms, self.probe_steps + other.probe_steps)


@dataclass(frozen=True)
class Facts:
    """What is known of a run, whatever a detector says of it: S steps, P operators."""
    run: Run
    samples: Samples
    first: np.ndarray      # int64 [P], each operator's first bad sample, S without one
    incident: int | None   # operator of the first incident
    event: int | None      # step of the event
    negative: np.ndarray   # bool [S, P], `judged`
    overflows: list[tuple[int, np.ndarray]]  # of gradients: `gradient_overflows`

    @staticmethod
    def of(run: Run) -> Facts:
        samples = Samples.of(run.trace, run.label.kind == SATURATING)
        first = first_bad(samples.bad)
        return Facts(run, samples, first, first_incident(run, first), event_step(run, samples, first), judged(samples, first),
                     gradient_overflows(samples) if run.label.kind != UNKNOWN else [])

    @property
    def bad(self) -> int | None:
        """Sample of the first incident."""
        return None if self.incident is None else int(self.first[self.incident])

    @cached_property
    def judged_steps(self) -> tuple[int, int]:
        """Probe-steps that are judged: after the warm-up, and in it."""
        return int(self.negative[WARM_UP:].sum()), int(self.negative[:WARM_UP].sum())


def gradient_overflows(samples: Samples) -> list[tuple[int, np.ndarray]]:
    """The overflows of gradients under a loss scale: the first sample of each stretch of samples with a non-finite gradient,
    and the gradients, int64 [n], that are so in it. None from the first non-finite activation on: there it is a consequence."""
    if samples.trace.loss_scale is None:
        return []
    kinds = np.array([probe.kind for probe in samples.trace.probes])
    bad = ~samples.finite & (kinds == "gradient")
    any_bad, forward = bad.any(axis=1), (~samples.finite & (kinds == "activation")).any(axis=1)
    end = int(forward.argmax()) if forward.any() else len(forward)
    starts = np.flatnonzero(any_bad & ~np.concatenate([[False], any_bad[:-1]]))
    return [(int(start), np.flatnonzero(bad[start])) for start in starts if start < end]


def overflows_forecast(alarms: np.ndarray, facts: Facts) -> Count:
    """Of the overflows of gradients those before which an alarm of one of the gradients concerned was standing: one that was
    raised since its last overflow, on a finite sample, and not withdrawn."""
    samples, seen = facts.samples, 0
    for start, ops in facts.overflows:
        raised, index = (alarms & samples.finite)[:start, ops], np.arange(start)[:, None]
        last_bad = np.where(samples.finite[:start, ops], -1, index).max(axis=0, initial=-1)
        seen += bool(start and hold(raised & (index > last_bad), samples.step[:start])[-1].any())
    return Count(seen, len(facts.overflows))


@dataclass(frozen=True)
class Upstream:
    """Alarms of the operators before that of the first incident, which is not itself one of them."""
    op: int | None              # the earliest that raises an alarm in the step of the incident
    operators: int | None       # from it to the incident's; 1 is the one right before
    by_chance: float | None     # share of the steps long before the incident in which any of them raises one; None: none


def upstream(alarms: np.ndarray, samples: Samples, op: int, bad: int) -> Upstream:
    """Of the incident in operator `op` at sample `bad`. alarms: bool [S, P]. An alarm counts only in its own step: one that
    merely stands does not, and a bad value is none."""
    raised = (alarms & ~samples.bad)[:, :op]
    flagged = np.flatnonzero(raised[bad])
    first = int(flagged[0]) if len(flagged) else None
    before = samples.step < samples.step[bad] - LEAD_WINDOW
    before[:WARM_UP] = False
    return Upstream(first, None if first is None else op - first,
                    float(raised[before].any(axis=1).mean()) if before.any() else None)


@dataclass(frozen=True)
class Outcome:
    """What a detector did on one run, with one threshold."""
    lead: int | None            # of the first incident; None without one
    upstream: Upstream | None
    false_alarms: Count         # after the warm-up
    warm_up: Count

    @staticmethod
    def of(verdict: Verdict, facts: Facts) -> Outcome:
        op, bad, false = facts.incident, facts.bad, verdict.alarms & facts.negative
        steady, early = facts.judged_steps
        return Outcome(None if op is None else lead_steps(verdict.standing(op), facts.samples.step, bad),
                       None if op is None else upstream(verdict.alarms, facts.samples, op, bad),
                       Count(int(false[WARM_UP:].sum()), steady), Count(int(false[:WARM_UP].sum()), early))


@dataclass(frozen=True)
class RunResult(Outcome):
    """The same with the published threshold, and what else there is to say of it."""
    kind: str                       # class
    split: str
    unlocated: bool                 # an incident without an operator
    operators_detected: int         # of all operators that went bad
    operators: int
    before_incident: Count          # false alarms before the step of the first incident, after the warm-up
    before_own_alarm: Count         # any alarms before the one that stands at the incident, after the warm-up
    gradients: Count                # overflows of gradients: forecast, and all
    log: Log                        # what it says, step by step
    sweep: list[Outcome]            # at each threshold of the detector's sweep


def assess(detector: Detector, facts: Facts) -> RunResult:
    """Runs a detector over a trace, at its published threshold and at those of its sweep."""
    samples, verdict, sweep = facts.samples, None, []
    for threshold, moved in zip(detector.sweep, detector.judge_sweep(samples)):
        sweep.append(Outcome.of(moved, facts))
        if threshold == detector.threshold:
            verdict = moved
    verdict = verdict or detector.judge(samples)
    outcome = Outcome.of(verdict, facts)
    bad_ops = np.flatnonzero(facts.first < len(samples.step))
    good = np.arange(len(samples.step))[:, None] < facts.first
    at_event = facts.incident if facts.bad is not None and facts.event == samples.step[facts.bad] else None
    return RunResult(**vars(outcome), kind=facts.run.label.kind, split=facts.run.label.split,
                     unlocated=facts.run.unlocated is not None,
                     operators_detected=sum(lead_steps(verdict.standing(op), samples.step, int(facts.first[op])) > 0
                                            for op in bad_ops),
                     operators=len(bad_ops), before_incident=_before(verdict, facts, facts.negative, 0),
                     before_own_alarm=_before(verdict, facts, good, outcome.lead),
                     gradients=overflows_forecast(verdict.alarms, facts),
                     log=said(detector, verdict, samples, facts.first, facts.event, at_event, LEAD_WINDOW), sweep=sweep)


def _before(verdict: Verdict, facts: Facts, counted: np.ndarray, lead: int | None) -> Count:
    """Alarms and samples, of those `counted`, after the warm-up and more than `lead` steps before the first incident."""
    if facts.bad is None:
        return Count()
    step = facts.samples.step
    rows = step < step[facts.bad] - lead
    rows[:WARM_UP] = False
    return Count(int((verdict.alarms & counted)[rows].sum()), int(counted[rows].sum()))
