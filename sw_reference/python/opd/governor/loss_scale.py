"""Governors of a loss scale: one factor for all gradients of a run. Each says the scale of the step that comes, and is then told what
the step did under it."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from opd.governor.baseline import DAMPING, Baseline, state_bits
from opd.reference import module
from opd.trace import FORMATS

LARGEST = float(FORMATS["FP16"].max_value)
FP32_BITS, INT32_BITS, EXPONENT_BITS = 32, 32, 8


@dataclass(frozen=True)
class Outcome:
    """What a step did under a scale. step: its number; recorded: the scale of the recorded run in it; overflow: a gradient was not
    finite; operators, max_abs float64 [N], scale_log2 int8 [N]: completions that are finite, in order, as the device sees them."""
    step: int
    recorded: float
    overflow: bool
    operators: np.ndarray
    max_abs: np.ndarray
    scale_log2: np.ndarray


class LossScale:
    """A governor. scale: of the step that comes."""
    name: str
    source: str
    bits_per_operator: int = 0   # of state
    bits_per_run: int = 0
    scale: float

    def begin(self, step: int, recorded: float) -> None:
        """A step comes, whose scale was `recorded` in the recorded run."""

    def update(self, outcome: Outcome) -> None:
        raise NotImplementedError


class GradScaler(LossScale):
    """torch.amp.GradScaler: a step with a non-finite gradient multiplies the scale by `backoff`, `interval` steps without one in a row
    by `growth`; a product that is not finite is not taken. In FP32."""
    name = "gradscaler"
    source = "torch.amp.GradScaler and its defaults"
    bits_per_run = FP32_BITS + INT32_BITS  # scale, steps since

    def __init__(self, init: float = 65536.0, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000):
        self._scale, self._growth, self._backoff = np.float32(init), np.float32(growth), np.float32(backoff)
        self._interval, self._since = interval, 0

    @property
    def scale(self) -> float:
        return float(self._scale)

    def update(self, outcome: Outcome) -> None:
        if outcome.overflow:
            self._scale, self._since = self._scale * self._backoff, 0
            return
        self._since += 1
        if self._since == self._interval:
            with np.errstate(over="ignore"):
                grown = self._scale * self._growth
            if np.isfinite(grown):
                self._scale = grown
            self._since = 0


class Recorded(LossScale):
    """The scale that the recorded run had: a GradScaler with the run's own settings."""
    name = "recorded"
    source = "the run's own GradScaler, as it ran"
    bits_per_run = GradScaler.bits_per_run
    scale = 1.0

    def begin(self, step: int, recorded: float) -> None:
        self.scale = recorded

    def update(self, outcome: Outcome) -> None:
        pass


class Hinted(LossScale):
    """Another governor's scale times 2^loss_scale_shift while the device hints so, 1 at least, as opd.guard applies it. The device sees
    every operator of the run, and the hint after a step acts on the next one."""
    source = "docs/controller.md, hints; the reset values of the device"

    def __init__(self, base: LossScale, device: Baseline):
        self.name = f"{base.name}-hints"
        self._base, self._device, self._shift = base, device, 0
        self.bits_per_run = base.bits_per_run
        self.bits_per_operator = module().state_bits(True, False)

    @property
    def scale(self) -> float:
        own = self._base.scale
        return own * max(2.0**self._shift, min(1.0, 1.0 / own))

    def begin(self, step: int, recorded: float) -> None:
        self._base.begin(step, recorded)

    def update(self, outcome: Outcome) -> None:
        self._base.update(outcome)
        self._device.see(outcome.step, outcome.operators, outcome.max_abs, np.zeros(len(outcome.operators), np.uint32), outcome.scale_log2)
        self._shift = self._device.unit.hints()[0]


class Forecast(LossScale):
    """A power of two that keeps the highest baseline of the gradients `margin` bits below the format's limit. It moves by at most a
    factor of DAMPING a step: a power of two, by 2. A step that overflows halves it, since the baseline did not see it.

    gradients: operators whose baselines count."""
    source = "docs/numerics.md, forecast engine; scale changes damped to a factor of 3 a step"
    bits_per_run = EXPONENT_BITS

    def __init__(self, device: Baseline, gradients: np.ndarray, margin: float, init: float = 65536.0, name: str = "forecast"):
        self.name = name
        self._device, self._gradients, self._margin = device, gradients, margin
        self._log2 = round(math.log2(init))
        self.bits_per_operator = state_bits()

    @property
    def scale(self) -> float:
        return 2.0**self._log2

    def update(self, outcome: Outcome) -> None:
        own = np.isin(outcome.operators, self._gradients)
        self._device.see(outcome.step, outcome.operators[own], outcome.max_abs[own], np.zeros(int(own.sum()), np.uint32),
                         outcome.scale_log2[own])
        if outcome.overflow:
            self._log2 = max(self._log2 - 1, -126)
            return
        baselines = self._device.log2()[self._gradients]
        if np.isnan(baselines).all():
            return
        wanted = math.floor(math.log2(LARGEST) - float(np.nanmax(baselines)) - self._margin)
        step = math.floor(math.log2(DAMPING))
        self._log2 = min(max(wanted, self._log2 - step, -126), self._log2 + step, 126)
