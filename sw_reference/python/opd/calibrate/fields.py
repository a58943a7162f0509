"""The registers that are searched: one table. A change of the engines' arithmetic is followed here.

Every threshold must be monotone: a less sensitive value never raises its flag at a sample where a more sensitive one did not.
The search tests nothing between; opd.calibrate.calibration checks the outcome against the reference.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from opd.device_config import is_float, register_value
from opd.registers import CONFIG_RANGE, CONFIG_RESET, Flag


@dataclass(frozen=True)
class Threshold:
    """A flag and the register that decides how easily it is raised."""
    flag: Flag
    weight: str                       # field of its weight
    field: str
    sensitive: float                  # most sensitive value that is ever proposed
    insensitive: float                # least sensitive one
    unit: str
    mantissa_bits: int = 0            # of a binary32 field: bits of the significand that are searched
    follows: tuple[str, ...] = ()     # fields that keep their reset ratio to it

    @property
    def positions(self) -> int:
        """Position 0 is the most sensitive value, this one the least."""
        return abs(self._code(self.insensitive) - self._code(self.sensitive))

    def value(self, position: int) -> float:
        first = self._code(self.sensitive)
        code = first + position if self._code(self.insensitive) > first else first - position
        if not is_float(self.field):
            return code
        return float(np.array(code << (23 - self.mantissa_bits), np.int32).view(np.float32))

    def fields(self, position: int) -> dict[str, float]:
        value = self.value(position)
        scale = value / CONFIG_RESET[self.field]
        following = {name: register_value(name, min(CONFIG_RESET[name] * scale, CONFIG_RANGE[name][1]))
                     for name in self.follows}
        return {self.field: value, **following}

    def _code(self, value: float) -> int:
        return int(np.float32(value).view(np.int32)) >> (23 - self.mantissa_bits) if is_float(self.field) else int(value)


@dataclass(frozen=True)
class Horizon:
    """A second register of a flag: how many steps ahead it looks, 2^(window + field) of them."""
    threshold: str   # field of the flag's threshold with which it is searched; further ones of the flag take what is found
    field: str
    longest: int     # log2 of the longest horizon that is proposed
    enough: float    # value of that threshold that a horizon must keep, else the next shorter one is tried
    follows: tuple[str, ...] = ()  # fields that keep their reset distance to it, within their range

    def fields(self, value: int | None) -> dict[str, float]:
        """The registers of a horizon; None: the reset values."""
        moved = 0 if value is None else value - CONFIG_RESET[self.field]
        return {name: int(np.clip(CONFIG_RESET[name] + moved, *CONFIG_RANGE[name])) for name in (self.field, *self.follows)}


@dataclass(frozen=True)
class Engine:
    """What is searched for one engine; its name is that of its risk profile."""
    name: str
    window: str                              # field of the baseline window
    windows: tuple[float, ...]
    thresholds: tuple[Threshold, ...]        # in the order in which they are set; the last one chooses the window
    plain: tuple[tuple[Flag, str], ...] = ()  # flags without a threshold, and the field of their weight
    horizon: Horizon | None = None

    @property
    def searched(self) -> tuple[str, ...]:
        """All fields that are proposed."""
        names = [self.window, *((self.horizon.field, *self.horizon.follows) if self.horizon else ())]
        for threshold in self.thresholds:
            names += [threshold.field, *threshold.follows]
        return (*names, *(weight for _, weight in self.flags))

    @property
    def flags(self) -> tuple[tuple[Flag, str], ...]:
        """Flags of the table, each once, with the field of its weight."""
        return (*dict.fromkeys((threshold.flag, threshold.weight) for threshold in self.thresholds), *self.plain)


def no_more_sensitive_than_reset(engine: Engine) -> Engine:
    """The engine with its reset window and horizon, and thresholds that start at their reset value: these were chosen on runs
    that fail as well (docs/corpus.md), of which healthy runs know nothing."""
    thresholds = tuple(replace(threshold, sensitive=CONFIG_RESET[threshold.field]) for threshold in engine.thresholds)
    horizon = engine.horizon
    if horizon is not None:
        longest = CONFIG_RESET[engine.window] + CONFIG_RESET[horizon.field]
        horizon = replace(horizon, longest=min(horizon.longest, longest))
    return replace(engine, windows=(), thresholds=thresholds, horizon=horizon)


def alpha(window: int) -> float:
    """published_alpha of a window of so many samples."""
    return register_value("published_alpha", 2 / (window + 1))


ENGINES = {
    "forecast": Engine(
        "forecast", "baseline_shift", (2, 3, 4, 5, 6),
        # 8 bits of headroom: half of the range of FP16. Wider, the gate would decide nothing. 0: no sample is forecast.
        (Threshold(Flag.FORECAST, "weight_forecast", "forecast_headroom", 256, 0, "1/32 bit"),
         # Of operands under a loss scale: never wider than by reset, where it is about one doubling of the scale.
         Threshold(Flag.FORECAST, "weight_forecast", "forecast_headroom_scaled", CONFIG_RESET["forecast_headroom_scaled"], 0,
                   "1/32 bit"),
         # JUMP_HEADROOM stays at reset: healthy runs do not say how near to the limit a jump has to end to matter.
         Threshold(Flag.JUMP, "weight_jump", "jump_threshold", 0, 1023, "1/32 bit")),
        ((Flag.SATURATED, "weight_saturated"),),
        # 64 steps: looking further, the deviation of a single sample would decide. That of E4M3 and E5M2 stays half of it.
        Horizon("forecast_headroom", "forecast_shift", 6, CONFIG_RESET["forecast_headroom"], ("forecast_shift_fp8",))),
    "published": Engine(
        "published", "published_alpha", tuple(alpha(window) for window in (32, 64, 128, 256, 512)),
        # D2 speaks only in the upper half of a format, where those of up to 16 bits have no finer step than its reset value.
        (Threshold(Flag.D2, "weight_d2", "d2_threshold", CONFIG_RESET["d2_threshold"], 2.0 ** 127, "operand", 3,
                   ("d2_threshold_desensitised",)),
         Threshold(Flag.Z, "weight_z", "z_threshold", 1.0, 32768.0, "sd", 6, ("z_threshold_desensitised",)))),
}
