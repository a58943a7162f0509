"""The device's own detectors, computed by the C++ reference itself (module opd._reference, target opd_python).

Alarms and modes are those of the records: an alarm is a risk of at least RISK.STABLE, as in docs/metrics.md.
"""
from __future__ import annotations

import numpy as np

from opd.device_config import DeviceConfig
from opd.evaluate.detector import Detector, Samples, Verdict, scale_log2, spread
from opd.evaluate.limits import HEADROOMS
from opd.reference import module
from opd.registers import CONFIG_RESET, PROFILES, Format, Order
from opd.trace import FORMATS, Trace

CONTROLLER_BITS = 20  # of state per operator, the same for every detector: docs/controller.md, with the lock and disable bits


def learning_rate_changes(trace: Trace) -> np.ndarray:
    """Steps whose change is announced to the device (docs/metrics.md "Learning-rate changes"): bool [S]."""
    changes = np.zeros(len(trace.step), bool)
    if trace.lr is not None:
        before, now = trace.lr[:-1].astype(np.float64), trace.lr[1:].astype(np.float64)
        changes[1:] = (now > 1.25 * before) | (now < 0.8 * before)
    return changes


def statistics(trace: Trace) -> dict[str, np.ndarray]:
    """The arguments of opd._reference.run but its configuration: what a replay of the trace's statistics hands to the device
    (docs/formats.md "Replay of a probe at a step")."""
    max_mag = np.empty(trace.max_abs.shape, np.uint32)
    for op, probe in enumerate(trace.probes):
        dtype = FORMATS[probe.format].numpy
        max_mag[:, op] = np.abs(trace.max_abs[:, op]).astype(dtype).view(f"<u{dtype.itemsize}")
    saturated = trace.saturated if trace.saturated is not None else np.zeros(trace.max_abs.shape)

    def count(values) -> np.ndarray:
        return np.minimum(values, 0xFFFFFFFF).astype(np.uint32)

    return {"step": trace.step.astype(np.uint32),
            "format": np.array([Format[probe.format] for probe in trace.probes], np.uint8),
            "element_count": count(np.array([probe.elements for probe in trace.probes])), "max_mag": max_mag,
            "nonfinite": count(trace.nonfinite), "saturated": count(saturated), "scale_log2": scale_log2(trace),
            "learning_rate_changes": learning_rate_changes(trace)}


class _Reference(Detector):
    """A risk profile of the device."""
    adaptive = True
    samples_needed = 1  # the first one seeds the baseline
    engines: dict[str, bool] = {}  # arguments of opd._reference.run; an engine whose flags have no weight need not be there

    def config_at(self, threshold: float) -> dict[str, float]:
        """Fields that are not at their reset value."""
        raise NotImplementedError

    def judge(self, samples: Samples, threshold: float | None = None) -> Verdict:
        config = self.config_at(self.threshold if threshold is None else threshold)
        if "statistics" not in samples.derived:
            samples.derived["statistics"] = statistics(samples.trace)
        records, _ = module().run(**samples.derived["statistics"], config=config, **self.engines)
        alarms = (records["risk"] >= config.get("risk_stable", CONFIG_RESET["risk_stable"])) & samples.finite
        return Verdict(samples.step, alarms, records["mode"])


def bits_of(name: str) -> float:
    """Reset value of a field in 1/32 bit, in bits."""
    return CONFIG_RESET[name] / 32


class Forecast(_Reference):
    """opd's default profile: log2 deviation against headroom, jumps, saturation; or the same without jumps.

    The sweep moves FORECAST.HEADROOM, but not that of operands under a loss scale, nor what JUMP asks for."""
    source = "docs/numerics.md, forecast engine; the reset values of the device"
    unit = "-FORECAST.HEADROOM in bits"
    engines = {"published_engine": False}

    def __init__(self, jump: bool = True):
        self.jump = jump
        self.name = "forecast" if jump else "forecast-no-jump"
        self.settings = {"headroom_bits": bits_of("forecast_headroom"),
                         "headroom_scaled_bits": bits_of("forecast_headroom_scaled"),
                         "horizon_shift": CONFIG_RESET["forecast_shift"],
                         "horizon_shift_fp8": CONFIG_RESET["forecast_shift_fp8"],
                         "baseline_shift": CONFIG_RESET["baseline_shift"], "max_lag_bits": CONFIG_RESET["baseline_max_lag"]}
        if jump:
            self.settings |= {"jump_bits": bits_of("jump_threshold"), "jump_headroom_bits": bits_of("jump_headroom")}
        self.threshold = -bits_of("forecast_headroom")
        self.sweep = tuple(sorted({-float(bits) for bits in HEADROOMS} | {self.threshold}, reverse=True))
        self.operations = {"add": 11, "compare": 8} if jump else {"add": 10, "compare": 5}  # integer
        self.state_bits = module().state_bits(True, False) - CONTROLLER_BITS

    def config_at(self, threshold: float) -> dict[str, float]:
        return {"forecast_headroom": -32 * threshold} | ({} if self.jump else {"weight_jump": 0})


class Published(_Reference):
    """The published rule, z or second difference, scored before or after the update. The ROC moves the z threshold (and, in
    proportion, the one after a learning-rate change); the second difference stays."""
    source = "the rule of the literature (EMA of max|x|, z-score, second difference), docs/numerics.md, published engine"
    settings = {"window": 128, "z_threshold": 5, "d2_threshold": 3, "d2_floor": 0.5, "min_samples": 32}
    unit = "z"
    engines = {"forecast_engine": False}
    threshold = 5.0
    sweep = spread(1, 5.0, 100)
    samples_needed = 32
    operations = {"add": 12, "multiply": 5, "compare": 11}  # 5 additions and the multiplications in binary32

    def __init__(self, order: str):
        self.order = Order[order]
        self.name = f"published-{order.lower()}"
        self.state_bits = module().state_bits(False, True) - CONTROLLER_BITS
        if self.order is Order.AFTER:
            self.operations = {"add": 13, "multiply": 6, "compare": 11}

    def config_at(self, threshold: float) -> dict[str, float]:
        scale = CONFIG_RESET["z_threshold_desensitised"] / CONFIG_RESET["z_threshold"]
        return {**PROFILES["published"], "published_order": int(self.order), "z_threshold": threshold,
                "z_threshold_desensitised": threshold * scale}


class Configured(_Reference):
    """The device with the configuration of a file; nothing of it moves for the ROC."""
    name = "configured"

    def __init__(self, config: DeviceConfig):
        like = Published("BEFORE") if config.profile == "published" else Forecast()
        self.source = f"a device configuration file, profile {config.profile}"
        self.settings = dict(config.fields)
        self._fields = config.settings()
        self.unit = like.unit
        self.threshold = config.value("z_threshold") if config.profile == "published" else -config.value("forecast_headroom") / 32
        self.sweep = (self.threshold,)
        self.samples_needed, self.operations, self.state_bits = like.samples_needed, like.operations, like.state_bits

    def config_at(self, threshold: float) -> dict[str, float]:
        return self._fields
