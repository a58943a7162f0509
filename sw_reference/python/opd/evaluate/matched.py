"""Every detector at the same price: its threshold is the most sensitive one whose rate of near-limit alarms on the tuning half
is at most so much, and the figures are those of the held-out half (docs/evaluation.md "At a matched rate").
"""
from __future__ import annotations

from collections.abc import Sequence

from opd.evaluate.corpus import SPLITS
from opd.evaluate.detector import Detector
from opd.evaluate.figures import incident_figures, per_1000, quiet_rates
from opd.evaluate.metrics import RunResult

RATES = (1.0, 3.0)  # near-limit alarms per 1000 probe-steps
CLASSES = ("gradual", "sudden")


def matched(detectors: Sequence[Detector], results: Sequence[Sequence[RunResult]], seed: int) -> list[dict]:
    """`matched` of evaluation.json: one entry for each rate and rule; empty when the tuning half has no near-limit run or
    there is no held-out one. results: of each detector, those of all runs."""
    if not any(result.split == SPLITS[0] and result.kind == "near-limit" and result.false_alarms.probe_steps
               for result in results[0]) or all(result.split != SPLITS[1] for result in results[0]):
        return []
    rules = {detector.rule: (detector, of_detector) for detector, of_detector in zip(detectors, results)}
    return [_entry(detector, of_detector, rate, seed) for rate in RATES for detector, of_detector in rules.values()]


def near_limit_rate(results: Sequence[RunResult], index: int) -> float:
    """Near-limit alarms per 1000 at one threshold of the sweep."""
    return per_1000([result.sweep[index].false_alarms for result in results if result.kind == "near-limit"])


def _entry(detector: Detector, results: Sequence[RunResult], rate: float, seed: int) -> dict:
    tuning, held_out = ([result for result in results if result.split == split] for split in SPLITS)
    rates = [near_limit_rate(tuning, index) for index in range(len(detector.sweep))]
    allowed = [index for index, found in enumerate(rates) if found <= rate]
    entry = {"rule": detector.rule, "rate": rate, "unit": detector.unit, "lowest_rate": min(rates), "threshold": None,
             "end_of_sweep": None, "tuning": None, "held_out": None}
    if not allowed:
        return entry
    index = min(allowed, key=lambda index: detector.sweep[index])  # an alarm is a score above it: the least is most sensitive
    at = [(result.kind, result.sweep[index]) for result in held_out]
    quiet = per_1000([result.sweep[index].warm_up + result.sweep[index].false_alarms for result in tuning
                      if result.kind == "healthy"])
    return entry | {
        "threshold": detector.sweep[index], "end_of_sweep": detector.sweep[index] == min(detector.sweep),
        "tuning": {"false_alarms_near_limit_per_1000": rates[index], "false_alarms_healthy_with_warm_up_per_1000": quiet},
        "held_out": {**{kind: incident_figures([outcome for of, outcome in at if of == kind], seed) for kind in CLASSES},
                     **quiet_rates(at, seed)}}
