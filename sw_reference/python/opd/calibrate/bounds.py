"""What k alarms in n probe-steps say of the rate behind them (docs/calibration.md "How sure")."""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from opd.evaluate.figures import CONFIDENCE, rate_interval
from opd.evaluate.metrics import Count


@cache
def expected_at_most(alarms: int) -> float:
    """Exact upper bound, one-sided, of the expectation of a Poisson count that came out as `alarms`: 3.00 for none."""
    # Terms further below than this add nothing to the sum: the expectation lies above the count.
    first = max(0, alarms - 40 * math.isqrt(alarms + 1) - 100)
    counts = np.arange(first, alarms + 1)
    log_factorial = np.array([math.lgamma(count + 1) for count in counts.tolist()])

    def at_most(expectation: float) -> float:
        return float(np.exp(counts * math.log(expectation) - expectation - log_factorial).sum())

    low, high = float(alarms), 10.0 + 2 * alarms + 10 * math.sqrt(alarms)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 1 - CONFIDENCE else (low, middle)
    return high


def spent(alarms: int, thresholds: int) -> int:
    """Alarms to reckon with when `thresholds` thresholds were set on the very samples that are counted: each beyond the first
    has cut one sample off for itself."""
    return alarms + max(0, thresholds - 1)


def needed(alarms: int, thresholds: int, rate: float) -> int:
    """Probe-steps from which on so many alarms keep the rate (per 1000)."""
    return math.ceil(1000 * expected_at_most(spent(alarms, thresholds)) / rate)


def allowed(probe_steps: int, thresholds: int, rate: float) -> int | None:
    """Most alarms that keep the rate (per 1000) with its upper bound on samples; None when not even 0 do."""
    if needed(0, thresholds, rate) > probe_steps:
        return None
    low, high = 0, max(1, math.ceil(probe_steps * rate / 1000))  # the bound lies above the count: high never keeps the rate
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle, thresholds, rate) <= probe_steps else (low, middle)
    return low


def on_samples(alarms: int, thresholds: int, probe_steps: int) -> float:
    """Upper bound of the rate per 1000, if alarms come independently of each other."""
    return 1000 * expected_at_most(spent(alarms, thresholds)) / probe_steps


def over_runs(counts: Sequence[Count], seed: int) -> float | None:
    """Upper end of the bootstrap interval of opd evaluate over runs, per 1000; None for fewer than two runs."""
    bounds = rate_interval(counts, seed)
    return None if bounds is None else bounds[1]
