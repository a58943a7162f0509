"""Governors of FP8 scales: one factor per tensor, by which it is multiplied before the cast. Each says the scales of the step that
comes, and is then told the largest magnitudes of the tensors before the cast. P tensors at a time."""
from __future__ import annotations

import numpy as np

from opd.governor.baseline import DAMPING, Baseline, state_bits

FP32_BITS = 32
_LARGEST = np.float32(np.finfo(np.float32).max)


def quotient(limit: np.ndarray, amax: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """limit / amax in FP32; the scale as it is where amax is 0 or not finite, the largest FP32 number where the quotient is beyond it:
    float32 [P] each."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = limit.astype(np.float32) / amax.astype(np.float32)
    found = np.where(np.isfinite(amax) & (amax > 0), found, scale)
    return np.where(np.isinf(found), _LARGEST, found).astype(np.float32)


class TensorScale:
    """A governor. limit: largest finite magnitude of each tensor's format, float [P]."""
    name: str
    source: str
    bits_per_operator: int  # of state, scale included

    def __init__(self, limit: np.ndarray):
        self.limit = limit.astype(np.float32)
        self._scale = np.ones(len(limit), np.float32)

    def scale(self, amax: np.ndarray) -> np.ndarray:
        """Of the step that comes, float32 [P]. amax: largest magnitudes in it, which only current scaling may look at."""
        return self._scale

    def update(self, step: int, seen: np.ndarray, amax: np.ndarray) -> None:
        """After the step. seen: tensors that ran and were finite, bool [P]; amax float32 [P]."""


class Static(TensorScale):
    name = "static-1"
    source = "a cast without a scale, as the recorded runs have it"
    bits_per_operator = 0


class Current(TensorScale):
    """The largest magnitude of the tensor itself goes to the format's limit: the tensor is read twice. The yardstick."""
    name = "current"
    source = "NVIDIA/TransformerEngine, Float8CurrentScaling"
    bits_per_operator = FP32_BITS

    def scale(self, amax: np.ndarray) -> np.ndarray:
        self._scale = quotient(self.limit, amax, self._scale)
        return self._scale


class Delayed(TensorScale):
    """Delayed scaling: (limit / 2^margin) / amax, amax the largest ("max") or the latest ("most_recent") of the last `length`. An amax
    of 0 or Inf leaves the scale as it is, an Inf in the history for `length` steps."""
    source = "NVIDIA/TransformerEngine, transformer_engine/common/recipe/delayed_scaling.cu"

    def __init__(self, limit: np.ndarray, length: int = 1024, algorithm: str = "max", margin: int = 0):
        super().__init__(limit)
        self.name = ("delayed" if algorithm == "max" else f"delayed-{algorithm.replace('_', '-')}") + (f"-margin-{margin}" if margin else "")
        self._length, self._algorithm = length, algorithm
        self._target = (self.limit * np.float32(2.0**-margin)).astype(np.float32)
        self._history = np.zeros((length, len(limit)), np.float32)  # a ring
        self._count = np.zeros(len(limit), np.int64)
        self.bits_per_operator = length * FP32_BITS + FP32_BITS

    def update(self, step: int, seen: np.ndarray, amax: np.ndarray) -> None:
        own = np.flatnonzero(seen)
        self._history[self._count[own] % self._length, own] = amax[own]
        self._count[own] += 1
        used = self._history[:max(int(self._count.max()), 1)].max(axis=0) if self._algorithm == "max" else amax
        self._scale = np.where(seen, quotient(self._target, used, self._scale), self._scale)


class Forecast(TensorScale):
    """The baseline of the tensor goes `margin` bits below the format's limit. damping: factor by which a scale moves in a step at most,
    None without. Until a tensor was seen the scale is 1."""
    source = "docs/numerics.md, forecast engine; scale changes damped to a factor of 3 a step"

    def __init__(self, limit: np.ndarray, device: Baseline, margin: float, damping: float | None = DAMPING,
                 name: str = "forecast"):
        super().__init__(limit)
        self.name = name
        self._device, self._margin, self._damping = device, margin, damping
        self.bits_per_operator = state_bits() + FP32_BITS

    def update(self, step: int, seen: np.ndarray, amax: np.ndarray) -> None:
        own = np.flatnonzero(seen)
        self._device.see(step, own, amax[own], np.zeros(len(own), np.uint32), np.zeros(len(own), np.int8))
        baseline = self._device.log2()
        known = ~np.isnan(baseline)
        wanted = self.limit.astype(np.float64) * 2.0**-(np.where(known, baseline, 0.0) + self._margin)
        before = self._scale.astype(np.float64)
        if self._damping is not None:
            wanted = np.clip(wanted, before / self._damping, before * self._damping)
        self._scale = np.where(known, np.minimum(wanted, _LARGEST), before).astype(np.float32)
