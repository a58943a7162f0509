"""Recall, lead, false alarms, their intervals and the ROC of one detector over runs (docs/evaluation.md).

Words and definitions are those of docs/metrics.md: alarm, standing alarm, incident, lead, first incident.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from opd.evaluate.corpus import CLEAN, Run
from opd.evaluate.detector import Detector, Samples, Verdict

LEAD_WINDOW = 128       # steps
WARM_UP = 32            # first samples of a run
CONFIDENCE = 0.95
RESAMPLES = 2000
INCIDENT_CLASSES = ("gradual", "sudden", "injected", "data")


def first_nonfinite(samples: Samples) -> np.ndarray:
    """Index of the sample at which each operator first goes non-finite: int64 [P], S where it never does."""
    bad = ~samples.finite
    return np.where(bad.any(axis=0), bad.argmax(axis=0), len(bad))


def first_incident(run: Run, first_bad: np.ndarray) -> int | None:
    """Operator of the run's first incident: the one its label names, else the earliest activation, else the earliest of all.
    None for a healthy or near-limit run: a gradient that overflows there is the loss scaler at work."""
    if run.label.kind in CLEAN:
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
class RunResult:
    """What a detector did on one run."""
    name: str
    kind: str    # class
    split: str
    lead: int | None                # of the first incident; None without one
    operators_detected: int         # of all operators that went non-finite
    operators: int
    false_alarms: Count             # after the warm-up
    warm_up: Count
    sweep: list[tuple[bool | None, Count]] = field(default_factory=list)  # at each threshold: first incident seen, false alarms


def assess(detector: Detector, run: Run, samples: Samples) -> RunResult:
    """Runs a detector over a trace, at its published threshold and at those of its sweep."""
    first_bad = first_nonfinite(samples)
    steps = len(samples.step)
    incident = first_incident(run, first_bad)
    negative = judged(samples, first_bad)

    def count(verdict: Verdict, rows: slice) -> Count:
        return Count(int((verdict.alarms & negative)[rows].sum()), int(negative[rows].sum()))

    def lead(verdict: Verdict, op: int) -> int:
        return lead_steps(verdict.standing(op), samples.step, int(first_bad[op]))

    verdict = detector.judge(samples)
    bad_ops = np.flatnonzero(first_bad < steps)
    steady, early = slice(WARM_UP, None), slice(0, WARM_UP)
    sweep = []
    for moved in detector.judge_sweep(samples):
        sweep.append((None if incident is None else lead(moved, incident) > 0, count(moved, steady)))
    return RunResult(run.trace.name, run.label.kind, run.label.split, None if incident is None else lead(verdict, incident),
                     sum(lead(verdict, op) > 0 for op in bad_ops), len(bad_ops), count(verdict, steady), count(verdict, early),
                     sweep)


# --- figures over runs -----------------------------------------------------------------------------------------------------

def quantile(values: Sequence[float], q: float) -> float | None:
    """The value at index floor(q (N - 1)) of the sorted ones, without interpolation, as in docs/metrics.md; None for none."""
    return sorted(values)[math.floor(q * (len(values) - 1))] if values else None


def per_1000(counts: Sequence[Count]) -> float | None:
    total = sum(counts, Count())
    return 1000 * total.alarms / total.probe_steps if total.probe_steps else None


def clopper_pearson(successes: int, trials: int) -> tuple[float, float] | None:
    """Exact two-sided interval of a proportion; None without a trial."""
    if trials == 0:
        return None

    def at_least(k: int, p: float) -> float:
        return sum(math.exp(math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) +
                            i * math.log(p) + (trials - i) * math.log1p(-p)) for i in range(k, trials + 1))

    def solve(k: int, probability: float) -> float:  # P(X >= k) rises with p
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_least(k, middle) < probability else (low, middle)
        return (low + high) / 2

    tail = (1 - CONFIDENCE) / 2
    return (0.0 if successes == 0 else solve(successes, tail), 1.0 if successes == trials else solve(successes + 1, 1 - tail))


def bootstrap(runs: Sequence, figure: Callable[[Sequence], float | None], seed: int) -> tuple[float, float] | None:
    """Percentile interval of a figure over runs drawn with replacement; None for fewer than two runs."""
    if len(runs) < 2:
        return None
    draws = np.random.default_rng(seed).integers(len(runs), size=(RESAMPLES, len(runs)))
    values = sorted(value for draw in draws if (value := figure([runs[i] for i in draw])) is not None)
    tail = (1 - CONFIDENCE) / 2
    return (quantile(values, tail), quantile(values, 1 - tail)) if values else None


def _recall(leads: Sequence[int]) -> dict:
    detected = sum(lead > 0 for lead in leads)
    return {"incidents": len(leads), "detected": detected, "recall": detected / len(leads) if leads else None,
            "recall_interval": clopper_pearson(detected, len(leads))}


def summarise(detector: Detector, results: Sequence[RunResult], split: str, seed: int) -> dict:
    """One entry of `detectors` in evaluation.json (docs/evaluation.md). results: the runs of that split."""
    leads = [result.lead for result in results if result.lead is not None]
    entry = {
        "name": detector.name, "split": split, "source": detector.source, "settings": dict(detector.settings),
        "unit": detector.unit, "threshold": detector.threshold,
        **_recall(leads),
        "recall_by_class": {kind: _recall([r.lead for r in results if r.kind == kind and r.lead is not None])
                            for kind in INCIDENT_CLASSES},
        "operators": sum(result.operators for result in results if result.kind not in CLEAN),
        "operators_detected": sum(result.operators_detected for result in results if result.kind not in CLEAN),
        "lead_median": quantile(leads, 0.5), "lead_median_interval": bootstrap(leads, lambda drawn: quantile(drawn, 0.5), seed),
        "lead_p10": quantile(leads, 0.1), "lead_p10_interval": bootstrap(leads, lambda drawn: quantile(drawn, 0.1), seed),
    }
    counts = {"healthy": [r.false_alarms for r in results if r.kind == "healthy"],
              "near_limit": [r.false_alarms for r in results if r.kind == "near-limit"],
              "warm_up": [r.warm_up for r in results if r.kind in CLEAN]}
    for what, runs in counts.items():
        entry[f"false_alarms_{what}_per_1000"] = per_1000(runs)
        entry[f"false_alarms_{what}_interval"] = bootstrap(runs, per_1000, seed)
        entry[f"probe_steps_{what}"] = sum(runs, Count()).probe_steps
    entry["state_bits"] = detector.state_bits
    entry["operations"] = sum(detector.operations.values())
    entry["operations_by_kind"] = dict(detector.operations)
    entry["roc"] = []
    for index, threshold in enumerate(detector.sweep):
        seen = [r.sweep[index][0] for r in results if r.sweep[index][0] is not None]
        rates = {kind: per_1000([r.sweep[index][1] for r in results if r.kind == kind]) for kind in CLEAN}
        entry["roc"].append({"threshold": threshold, "recall": sum(seen) / len(seen) if seen else None,
                             "false_alarms_healthy_per_1000": rates["healthy"],
                             "false_alarms_near_limit_per_1000": rates["near-limit"]})
    return entry
