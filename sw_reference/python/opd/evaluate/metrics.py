"""What one detector did on one run: lead, false alarms, alarms upstream of the incident (docs/evaluation.md).

Words and definitions are those of docs/metrics.md: alarm, standing alarm, incident, lead, first incident.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from opd.evaluate.corpus import CLEAN, UNKNOWN, Run
from opd.evaluate.detector import Detector, Samples, Verdict
from opd.evaluate.log import Log, said
from opd.trace import LABELS

LEAD_WINDOW = 128       # steps
WARM_UP = 32            # first samples of a run
INCIDENT_CLASSES = tuple(kind for kind in LABELS if kind not in (*CLEAN, UNKNOWN))


def first_nonfinite(samples: Samples) -> np.ndarray:
    """Index of the sample at which each operator first goes non-finite: int64 [P], S where it never does."""
    bad = ~samples.finite
    return np.where(bad.any(axis=0), bad.argmax(axis=0), len(bad))


def first_incident(run: Run, first_bad: np.ndarray) -> int | None:
    """Operator of the run's first incident: the one its label names, else the earliest activation, else the earliest of all.
    None for a healthy or near-limit run: a gradient that overflows there is the loss scaler at work."""
    if run.label.kind in (*CLEAN, UNKNOWN):
        return None
    steps = len(run.trace.step)
    names = [probe.name for probe in run.trace.probes]
    if run.label.first_bad_op in names:
        return names.index(run.label.first_bad_op)
    order = [op for op in np.argsort(first_bad, kind="stable") if first_bad[op] < steps]
    forward = [op for op in order if run.trace.probes[op].kind == "activation"]
    return int((forward or order)[0]) if order else None


def lead_steps(standing: np.ndarray, step: np.ndarray, bad: int) -> int:
    """Steps for which an alarm had been standing at the incident, sample `bad`; 0 when none was."""
    before = standing[:bad]
    if not len(before) or not before[-1]:
        return 0
    quiet = np.flatnonzero(~before)
    start = quiet[-1] + 1 if len(quiet) else 0
    return int(min(step[bad] - step[start], LEAD_WINDOW))


def judged(samples: Samples, first_bad: np.ndarray) -> np.ndarray:
    """Samples at which an alarm is a false one: bool [S, P]. Not those from an operator's first non-finite value on, nor the
    LEAD_WINDOW steps before it, where an alarm is a warning."""
    steps = len(samples.step)
    index = np.arange(steps)[:, None]
    bad_step = samples.step[np.minimum(first_bad, steps - 1)]
    return (index < first_bad) & ((first_bad == steps) | (samples.step[:, None] < bad_step - LEAD_WINDOW))


@dataclass(frozen=True)
class Count:
    """Alarms among so many probe-steps."""
    alarms: int = 0
    probe_steps: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.alarms + other.alarms, self.probe_steps + other.probe_steps)


@dataclass(frozen=True)
class Upstream:
    """Alarms of the operators before that of the first incident, which is not itself one of them."""
    op: int | None              # the earliest that raises an alarm in the step of the incident
    operators: int | None       # from it to the incident's; 1 is the one right before
    by_chance: float | None     # share of the steps long before the incident in which any of them raises one; None: none


def upstream(alarms: np.ndarray, samples: Samples, op: int, bad: int) -> Upstream:
    """Of the incident in operator `op` at sample `bad`. alarms: bool [S, P]. An alarm counts only in its own step: one that
    merely stands does not, and a non-finite value is none."""
    raised = (alarms & samples.finite)[:, :op]
    flagged = np.flatnonzero(raised[bad])
    first = int(flagged[0]) if len(flagged) else None
    before = samples.step < samples.step[bad] - LEAD_WINDOW
    before[:WARM_UP] = False
    return Upstream(first, None if first is None else op - first,
                    float(raised[before].any(axis=1).mean()) if before.any() else None)


@dataclass(frozen=True)
class RunResult:
    """What a detector did on one run."""
    kind: str                       # class
    split: str
    lead: int | None                # of the first incident; None without one
    operators_detected: int         # of all operators that went non-finite
    operators: int
    false_alarms: Count             # after the warm-up
    warm_up: Count
    upstream: Upstream | None       # of the first incident
    log: Log                        # what it says, step by step
    sweep: list[tuple[bool | None, Count]] = field(default_factory=list)  # at each threshold: first incident seen, false alarms


def assess(detector: Detector, run: Run, samples: Samples) -> RunResult:
    """Runs a detector over a trace, at its published threshold and at those of its sweep."""
    first_bad = first_nonfinite(samples)
    steps = len(samples.step)
    incident = first_incident(run, first_bad)
    negative = judged(samples, first_bad)
    steady, early = slice(WARM_UP, None), slice(0, WARM_UP)
    steady_steps = int(negative[steady].sum())

    def count(verdict: Verdict, rows: slice, probe_steps: int) -> Count:
        return Count(int((verdict.alarms[rows] & negative[rows]).sum()), probe_steps)

    def lead(verdict: Verdict, op: int) -> int:
        return lead_steps(verdict.standing(op), samples.step, int(first_bad[op]))

    verdict, sweep = None, []
    for threshold, moved in zip(detector.sweep, detector.judge_sweep(samples)):
        sweep.append((None if incident is None else lead(moved, incident) > 0, count(moved, steady, steady_steps)))
        if threshold == detector.threshold:
            verdict = moved
    verdict = verdict or detector.judge(samples)
    bad_ops = np.flatnonzero(first_bad < steps)
    bad = None if incident is None else int(first_bad[incident])
    event = event_step(run, samples, first_bad)
    at_event = incident if bad is not None and event == samples.step[bad] else None
    return RunResult(run.label.kind, run.label.split, None if incident is None else lead(verdict, incident),
                     sum(lead(verdict, op) > 0 for op in bad_ops), len(bad_ops), count(verdict, steady, steady_steps),
                     count(verdict, early, int(negative[early].sum())),
                     None if incident is None else upstream(verdict.alarms, samples, incident, bad),
                     said(detector, verdict, samples, first_bad, event, at_event, LEAD_WINDOW),
                     sweep)


def event_step(run: Run, samples: Samples, first_bad: np.ndarray) -> int | None:
    """Step of the event that the label names, else of the first incident; None without either."""
    op = first_incident(run, first_bad)
    return run.label.event_step if run.label.event_step is not None or op is None else int(samples.step[first_bad[op]])
