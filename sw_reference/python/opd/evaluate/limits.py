"""Rules on the distance to the format's limit alone: no state, no warm-up."""
from __future__ import annotations

import numpy as np

from opd.evaluate.detector import NO_VERDICT, Detector, Samples, scale_log2
from opd.registers import CONFIG_RESET

HEADROOMS = (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 5, 6, 8, 10, 12, 16)  # bits


class StaticHeadroom(Detector):
    """An alarm while the headroom log2(limit / max) is at most so many bits. 1 bit is half of the format's largest value, the
    floor that the published rule has for its second difference; 3 bits trades false alarms for lead."""
    source = "the plain threshold; 1 bit: the published rule's floor of 50 % of the format's largest value"
    unit = "-headroom in bits"
    inclusive = True
    state_bits = 0
    operations = {"compare": 1}
    sweep = tuple(-bits for bits in HEADROOMS)
    rule = "static-headroom"

    def __init__(self, bits: float):
        self.name = f"static-headroom-{bits:g}"
        self.settings = {"headroom_bits": bits}
        self.threshold = -float(bits)

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        if "headroom" not in samples.derived:
            with np.errstate(divide="ignore"):
                samples.derived["headroom"] = -np.log2(samples.magnitude / samples.limit)
        return np.where(samples.finite, -samples.derived["headroom"], NO_VERDICT)


class StaticHeadroomScaled(StaticHeadroom):
    """The same with the forecast engine's special case: an operand under a loss scale alarms in the last HEADROOM_SCALED alone,
    whatever the threshold. What forecast has beyond this rule is forecasting."""
    source = "the plain threshold, with FORECAST.HEADROOM_SCALED of docs/numerics.md for operands under a loss scale"
    rule = "static-headroom-scaled"

    def __init__(self, bits: float):
        super().__init__(bits)
        self.name += "-scaled"
        self.settings = {**self.settings, "headroom_scaled_bits": CONFIG_RESET["forecast_headroom_scaled"] / 32}

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        score = super().score(samples, threshold)
        fixed = np.where(score >= -self.settings["headroom_scaled_bits"], np.inf, NO_VERDICT)
        return np.where(scale_log2(samples.trace) != 0, fixed, score)


class FpCheckerDangerZone(Detector):
    """FPChecker's warning before an overflow: a result within 5 % of the largest finite value."""
    name = "fpchecker-5-percent"
    source = "LLNL/FPChecker, FPC_DANGER_ZONE_PERCENT, default 0.05; I. Laguna, ASE 2019"
    settings = {"danger_zone": 0.05}
    unit = "max / limit"
    threshold = 0.95
    sweep = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.999)
    state_bits = 0
    operations = {"compare": 1}

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        return np.where(samples.finite, samples.magnitude / samples.limit, NO_VERDICT)


class NonfiniteOnly(Detector):
    """The check that most frameworks have: an Inf or NaN is there. It has no lead by construction."""
    name = "nonfinite-only"
    source = "huggingface/transformers DebugUnderflowOverflow; torch.amp.GradScaler; lead 0 by construction"
    settings = {}
    unit = "non-finite elements"
    threshold = 0.0
    sweep = (0.0,)
    state_bits = 0
    operations = {"compare": 1}

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        return samples.trace.nonfinite.astype(np.float64)
