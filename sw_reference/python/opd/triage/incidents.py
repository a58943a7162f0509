"""The incidents of a trace, a page each: what happened is opd.evaluate's to say (docs/evaluation.md), the words are made here."""
from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from opd.evaluate.corpus import Run, own_run
from opd.evaluate.detector import Detector
from opd.evaluate.log import said
from opd.evaluate.metrics import LEAD_WINDOW, Facts, gradient_overflows, lead_steps
from opd.localise.advice import COLLAPSE, FLIP, history_advice
from opd.reference import ReferenceMissing
from opd.texts import printable
from opd.trace import FORMATS, Trace
from opd.triage.history import History
from opd.triage.kinds import NEAR, Case, Kind, collapse_of, isolated_jumps, kind_of, without_operator
from opd.triage.page import NONFINITE, ROSE, WAS_CLIPPED, Caught, Nearest, Page, RateThen, Triage, rate_words

SEPARATE = 32   # clean samples between two incidents of a run
MOST_PAGES = 4  # of a run


def triage(trace: Trace, detectors: Sequence[Detector] | None = None) -> Triage:
    """Of a trace, with the label that it has itself. detectors: those that are asked what they would have seen; None: all of opd evaluate's,
    none where the C++ reference is not built."""
    return triage_run(own_run(trace, Path(trace.name)), detectors)


def triage_run(run: Run, detectors: Sequence[Detector] | None = None) -> Triage:
    """The same of a run whose label is known."""
    facts = Facts.of(run)
    return _Triage(facts, _asked(detectors)).run()


def of_file(path: str) -> Triage:
    """Of a trace file, asked for twice by a replay: for its report and for its last lines. Raises TraceError."""
    try:
        state = os.stat(path)
    except OSError:
        return triage(Trace.read(path))
    return _of_file(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _of_file(path: str, changed: int, size: int) -> Triage:
    return triage(Trace.read(path))


def sentences(paths: Sequence[str]) -> list[str]:
    """Of each trace file, with its name. Raises TraceError."""
    return [printable(f"{found.name}: {found.sentence()}") for found in map(of_file, paths)]


def _asked(detectors: Sequence[Detector] | None) -> Sequence[Detector]:
    if detectors is not None:
        return detectors
    from opd.evaluate import all_detectors

    try:
        return all_detectors()
    except ReferenceMissing:
        return ()


class _Triage:
    def __init__(self, facts: Facts, detectors: Sequence[Detector]):
        self.facts, self.detectors = facts, detectors
        self.trace, self.samples = facts.run.trace, facts.samples
        self.history = History(self.trace)
        self.pages: list[Page] = []
        self.verdicts: list = []

    def run(self) -> Triage:
        facts = self.facts
        if facts.incident is not None:
            self._operator(facts.incident, facts.bad)
            for op, bad in self._later():
                self._operator(op, bad)
        elif facts.run.unlocated is not None:
            lost = facts.run.unlocated
            bad = int(np.searchsorted(self.trace.step, lost.step))
            self._add(bad, None, lost.what, NONFINITE, without_operator(lost.what, self._least_words(bad)))
        else:
            for op, sample in self._unlike_others():
                self._jump(op, sample)
            if not self.pages:
                self._collapse()
        return Triage(self.trace.name, tuple(self.pages), self._nearest(), self._note())

    # --- incidents

    def _operator(self, op: int, bad: int) -> None:
        if len(self.pages) == MOST_PAGES:
            return
        clipped = bool(self.samples.finite[bad, op])
        case = Case(self.history, op, bad, clipped, self.history.growth(op, bad))
        self._add(bad, op, (), WAS_CLIPPED if clipped else NONFINITE, kind_of(case), case)

    def _later(self) -> list[tuple[int, int]]:
        """First operators of the later incidents: of the forward pass, after SEPARATE clean samples, of other operators each."""
        bad, seen, found = self.samples.bad[:, self.history.activations], {self.facts.incident}, []
        for start in self._starts(bad.any(axis=1)):
            op = self.history.activations[int(bad[start].argmax())]
            if start > self.facts.bad and op not in seen:
                seen.add(op)
                found.append((op, start))
        return found

    @staticmethod
    def _starts(bad: np.ndarray) -> list[int]:
        """Samples at which bad ones begin after SEPARATE clean ones, or at all."""
        at = np.flatnonzero(bad)
        return [int(s) for i, s in enumerate(at) if i == 0 or s - at[i - 1] > SEPARATE]

    def _unlike_others(self) -> list[tuple[int, int]]:
        """Of the operators that jump alone in a step, the first in the pass."""
        first: dict[int, int] = {}
        for op, sample in isolated_jumps(self.history):
            first.setdefault(sample, op)
        return [(op, sample) for sample, op in sorted(first.items())][:MOST_PAGES]

    def _jump(self, op: int, sample: int) -> None:
        usual, now = float(self.history.usual(sample, op)), float(self.history.log2[sample, op])
        returns = np.flatnonzero(self.history.log2[sample + 1:, op] < usual + 0.5 * (now - usual))
        stays = not len(returns)
        told = (f"It rises from 2^{usual:.1f} to 2^{now:.1f} in one step; everything before it in the pass is as usual, and no learning rate moved.",
                "It stays there: a value that it reads in every step, a weight, has changed." if stays else
                f"It is back {int(returns[0]) + 1} step{'s' if returns[0] else ''} later: what changed was not stored.")
        self._add(sample, op, (), ROSE, Kind(FLIP, told, is_stored=stays), Case(self.history, op, sample, False, None))

    def _collapse(self) -> None:
        found = collapse_of(self.history)
        if found is None:
            return
        at, halvings = found
        scale = self.trace.loss_scale
        told = (f"The loss scale falls from {scale[at - 1]:g} at step {int(self.trace.step[at])} to {scale[-1]:g} at the end, {halvings} times by half, "
                "and never rises in between.", self._least_words(len(scale) - 1))
        self._add(at, None, ("the loss scale",), ROSE, Kind(COLLAPSE, told))

    def _add(self, bad: int, op: int | None, series: tuple[str, ...], what: str, kind: Kind, case: Case | None = None) -> None:
        trace = self.trace
        probe = None if op is None else trace.probes[op]
        scale = None if trace.loss_scale is None else float(trace.loss_scale[bad])
        rates = self._rates(bad)
        role = None if op is None else self.history.role(op)
        counts = trace.saturated if what == WAS_CLIPPED else trace.nonfinite
        advice = history_advice(kind.kind, role or "", "" if probe is None else probe.format,
                                rate_words(rates, kind.jump.group if kind.jump is not None else 0), scale or 1.0, kind.is_stored)
        self.pages.append(Page(
            len(self.pages) + 1, int(trace.step[bad]), None if probe is None else probe.name, series, None if probe is None else probe.kind, role,
            None if probe is None else probe.format, what, 0 if op is None or what == ROSE else int(counts[bad, op]),
            0 if probe is None else probe.elements, kind.kind, kind.also, case.growth if case is not None else None,
            case.before if case is not None and math.isfinite(case.before) else None, kind.jump, scale, rates, self._again(op, bad, what),
            () if op is None else self._caught(op, bad), kind.evidence, advice))

    def _again(self, op: int | None, bad: int, what: str) -> tuple[int, ...]:
        if op is None or what == ROSE:
            return ()
        if self.trace.probes[op].kind != "activation":
            return tuple(int(self.trace.step[start]) for start, _ in self.facts.overflows if start > bad)
        return tuple(int(self.trace.step[s]) for s in self._starts(self.samples.bad[:, op]) if s > bad)

    def _rates(self, bad: int) -> tuple[RateThen, ...]:
        return tuple(RateThen(rate.group, rate.first, rate.parameters, float(rate.lr[bad]) if math.isfinite(rate.lr[bad]) else None)
                     for rate in self.history.rates)

    # --- detectors

    def _caught(self, op: int, bad: int) -> tuple[Caught, ...]:
        if not self.verdicts:
            self.verdicts = [detector.judge(self.samples) for detector in self.detectors]
        step, found = self.samples.step, []
        for detector, verdict in zip(self.detectors, self.verdicts):
            lead = lead_steps(verdict.standing(op), step, bad)
            log = said(detector, verdict, self.samples, np.minimum(self.facts.first, bad), int(step[bad]), None, LEAD_WINDOW)
            alarms = verdict.alarms[:bad] & self.samples.finite[:bad]
            own = int(alarms[step[:bad] >= step[bad] - lead, op].sum())
            count = int(alarms.sum()) - own
            found.append(Caught(detector.name, lead, int(step[bad]) - lead if lead else None,
                                None if log.before is None else self.trace.probes[log.before.op].name,
                                None if log.before is None else log.before.step, count,
                                1000 * count / alarms.size if alarms.size else None))
        return tuple(found)

    # --- what did not happen

    def _nearest(self, end: int | None = None) -> Nearest | None:
        """In the samples before `end`."""
        ops = self.history.activations
        rows = self.history.log2[:end][:, ops]
        if not rows.size:
            return None
        limits = np.array([math.log2(float(FORMATS[self.trace.probes[op].format].max_value)) for op in ops])
        room = np.where(self.samples.finite[:end][:, ops], limits - rows, math.inf)
        s, place = np.unravel_index(int(room.argmin()), room.shape)
        if not math.isfinite(room[s, place]):
            return None
        probe = self.trace.probes[ops[place]]
        return Nearest(probe.name, probe.format, int(self.trace.step[s]), float(room[s, place]), int((room < NEAR).any(axis=1).sum()), len(room))

    def _least_words(self, end: int) -> str:
        nearest = self._nearest(end)
        if nearest is None:
            return "No operator of the forward pass is watched."
        return f"Nearest to its limit before: {nearest.operator}, {nearest.headroom:.1f} bits at step {nearest.step}."

    def _note(self) -> str:
        """Overflows of gradients that are the loss scaler's ordinary work."""
        if any(page.where == "gradient" for page in self.pages):
            return ""
        steps = [int(self.trace.step[start]) for start, _ in gradient_overflows(self.samples)
                 if self.facts.bad is None or start < self.facts.bad]
        if not steps:
            return ""
        shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
        return f"Gradients overflowed under the loss scale at step{'s' if len(steps) > 1 else ''} {shown}: the scaler skips such a step, and halves."

