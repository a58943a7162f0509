"""What a detector says of one run, step by step: for logs of real incidents, where a figure over runs says little."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opd.evaluate.detector import Detector, Samples, Verdict


@dataclass(frozen=True)
class Alarm:
    """An alarm of operator `op` at a step."""
    op: int
    step: int


@dataclass(frozen=True)
class Log:
    """Alarms of a run; none of an operator from its first bad value on."""
    has_verdict: bool           # whether any operator has more samples than the rule needs before its first verdict
    alarms: int
    first: Alarm | None         # the earliest of the run
    before: Alarm | None        # the earliest in the window of steps before the event; None without an event
    same_step: Alarm | None     # the earliest operator in the step of the event, of those before the one that goes bad
    at_incident: bool           # an alarm on the bad value itself
    overflows: int              # stretches of steps in which some operator is bad: non-finite, or clipped where that counts
    overflows_warned: int       # of them, those with an alarm in the window of steps before


def said(detector: Detector, verdict: Verdict, samples: Samples, first_bad: np.ndarray, event: int | None,
         incident: int | None, window: int) -> Log:
    """The log of a detector. first_bad: sample of each operator's first bad value, S without one: int64 [P];
    event: step; incident: operator that goes bad at that step, None when none does; window: steps before an event in
    which an alarm counts as near."""
    own = np.arange(len(samples.step))[:, None] < first_bad
    alarms = verdict.alarms & own

    def earliest(rows: np.ndarray, ops: slice = slice(None)) -> Alarm | None:
        found = np.argwhere(alarms[rows, ops])
        return Alarm(int(found[0][1]), int(samples.step[rows][found[0][0]])) if len(found) else None

    near = [step for step in overflow_steps(samples) if alarms[(samples.step < step) & (samples.step >= step - window)].any()]
    before = same = np.zeros(len(samples.step), bool)
    if event is not None:
        before = (samples.step < event) & (samples.step >= event - window)
        same = samples.step == event
    return Log(bool((own.sum(axis=0) > detector.samples_needed).any()), int(alarms.sum()),
               earliest(np.ones(len(samples.step), bool)), earliest(before),
               earliest(same, slice(incident)), incident is not None and bool(verdict.alarms[same, incident].any()),
               len(overflow_steps(samples)), len(near))


def overflow_steps(samples: Samples) -> list[int]:
    """First step of each stretch of samples in which some operator is bad."""
    bad = samples.bad.any(axis=1)
    return samples.step[bad & ~np.concatenate([[False], bad[:-1]])].tolist()
