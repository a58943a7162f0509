"""Figures of a detector over runs: recall, lead, false alarms, alarms upstream, their intervals, the ROC.

Definitions: docs/evaluation.md.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from opd.evaluate.detector import Detector
from opd.evaluate.incident import CLEAN
from opd.evaluate.metrics import INCIDENT_CLASSES, Count, Outcome, RunResult

CONFIDENCE = 0.95
RESAMPLES = 2000


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


def bootstrap(values: Sequence, figure: Callable[[np.ndarray], np.ndarray], seed: int) -> tuple[float, float] | None:
    """Percentile interval of a figure over runs drawn with replacement; None for fewer than two runs.

    values: one number or tuple of numbers for each of N runs; figure: draws [RESAMPLES, N, ...] -> one value for each draw,
    NaN where it does not exist."""
    if len(values) < 2:
        return None
    found = figure(np.asarray(values)[_draws(len(values), seed)])
    found = sorted(found[~np.isnan(found)].tolist())
    tail = (1 - CONFIDENCE) / 2
    return (quantile(found, tail), quantile(found, 1 - tail)) if found else None


@lru_cache(maxsize=32)
def _draws(runs: int, seed: int) -> np.ndarray:
    """Runs drawn with replacement: int64 [RESAMPLES, runs]."""
    draws = np.random.default_rng(seed).integers(runs, size=(RESAMPLES, runs))
    draws.flags.writeable = False
    return draws


def rate_interval(counts: Sequence[Count], seed: int) -> tuple[float, float] | None:
    """Interval of per_1000."""
    def rates(draws: np.ndarray) -> np.ndarray:
        alarms, probe_steps = draws.sum(axis=1).T
        with np.errstate(invalid="ignore"):
            return np.where(probe_steps > 0, 1000 * alarms / probe_steps, np.nan)

    return bootstrap([(count.alarms, count.probe_steps) for count in counts], rates, seed)


def quantile_interval(values: Sequence[int], q: float, seed: int) -> tuple[int, int] | None:
    """Interval of quantile(values, q)."""
    index = math.floor(q * (len(values) - 1))
    bounds = bootstrap(values, lambda draws: np.sort(draws, axis=1)[:, index].astype(float), seed) if values else None
    return None if bounds is None else (int(bounds[0]), int(bounds[1]))


def incident_figures(outcomes: Sequence[Outcome], seed: int) -> dict:
    """Recall, lead and alarms upstream of the runs that have an incident."""
    outcomes = [outcome for outcome in outcomes if outcome.lead is not None]
    leads = [outcome.lead for outcome in outcomes]
    incidents, detected = len(leads), sum(lead > 0 for lead in leads)
    operators = [outcome.upstream.operators for outcome in outcomes if outcome.upstream.operators is not None]
    chances = [outcome.upstream.by_chance for outcome in outcomes if outcome.upstream.by_chance is not None]
    return {
        "incidents": incidents, "detected": detected, "recall": detected / incidents if incidents else None,
        "recall_interval": clopper_pearson(detected, incidents),
        "lead_median": quantile(leads, 0.5), "lead_median_interval": quantile_interval(leads, 0.5, seed),
        "lead_p10": quantile(leads, 0.1), "lead_p10_interval": quantile_interval(leads, 0.1, seed),
        "upstream_same_step": len(operators) / incidents if incidents else None, "upstream_same_step_events": len(operators),
        "upstream_same_step_interval": clopper_pearson(len(operators), incidents),
        "upstream_operators_median": quantile(operators, 0.5),
        "upstream_by_chance": sum(chances) / len(chances) if chances else None}


def rate_figures(what: str, counts: Sequence[Count], seed: int) -> dict:
    """The rate of these alarms, its interval, and the probe-steps behind it."""
    return {f"false_alarms_{what}_per_1000": per_1000(counts), f"false_alarms_{what}_interval": rate_interval(counts, seed),
            f"probe_steps_{what}": sum(counts, Count()).probe_steps}


def quiet_rates(outcomes: Sequence[tuple[str, Outcome]], seed: int) -> dict:
    """Rates of false alarms in the runs without an incident. outcomes: each with the class of its run."""
    def of(kinds: Sequence[str], count: Callable[[Outcome], Count]) -> list[Count]:
        return [count(outcome) for kind, outcome in outcomes if kind in kinds]

    def whole(outcome: Outcome) -> Count:
        return outcome.warm_up + outcome.false_alarms

    figures = {}
    for what, counts in (("healthy", of(("healthy",), lambda o: o.false_alarms)),
                         ("healthy_with_warm_up", of(("healthy",), whole)),
                         ("stressed", of(("stressed",), lambda o: o.false_alarms)),
                         ("stressed_with_warm_up", of(("stressed",), whole)),
                         ("near_limit", of(("near-limit",), lambda o: o.false_alarms)),
                         ("warm_up", of(CLEAN, lambda o: o.warm_up))):
        figures |= rate_figures(what, counts, seed)
    return figures


def _of_incidents(results: Sequence[RunResult], seed: int) -> dict:
    """`incident_figures`, and what only the published setting is asked for."""
    known = [result for result in results if result.lead is not None]
    return {**incident_figures(results, seed), "incidents_without_operator": sum(result.unlocated for result in results),
            **rate_figures("before_incident", [result.before_incident for result in known], seed),
            **rate_figures("before_own_alarm", [result.before_own_alarm for result in known], seed)}


def summarise(detector: Detector, results: Sequence[RunResult], split: str, seed: int) -> dict:
    """One entry of `detectors` in evaluation.json (docs/evaluation.md). results: the runs of that split."""
    gradients = [result.gradients for result in results]
    total = sum(gradients, Count())
    share = rate_interval(gradients, seed)
    entry = {
        "name": detector.name, "split": split, "source": detector.source, "settings": dict(detector.settings),
        "unit": detector.unit, "threshold": detector.threshold,
        **_of_incidents(results, seed),
        "recall_by_class": {kind: _of_incidents([r for r in results if r.kind == kind], seed) for kind in INCIDENT_CLASSES},
        "operators": sum(result.operators for result in results if result.kind in INCIDENT_CLASSES),
        "operators_detected": sum(result.operators_detected for result in results if result.kind in INCIDENT_CLASSES),
        "gradient_overflows": total.probe_steps, "gradient_overflows_forecast": total.alarms,
        "gradient_overflows_share": total.alarms / total.probe_steps if total.probe_steps else None,
        "gradient_overflows_interval": share and (share[0] / 1000, share[1] / 1000),
        **quiet_rates([(result.kind, result) for result in results], seed),
    }
    entry["state_bits"] = detector.state_bits
    entry["operations"] = sum(detector.operations.values())
    entry["operations_by_kind"] = dict(detector.operations)
    entry["roc"] = []
    for index, threshold in enumerate(detector.sweep):
        seen = [r.sweep[index].lead > 0 for r in results if r.lead is not None]
        rates = {kind: per_1000([r.sweep[index].false_alarms for r in results if r.kind == kind]) for kind in CLEAN}
        entry["roc"].append({"threshold": threshold, "recall": sum(seen) / len(seen) if seen else None,
                             **{f"false_alarms_{kind.replace('-', '_')}_per_1000": rate for kind, rate in rates.items()}})
    return entry
