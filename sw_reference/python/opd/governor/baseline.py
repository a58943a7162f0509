"""The forecast baseline of the device, one training step at a time: the C++ reference's own (opd._reference.Unit)."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opd.evaluate.reference import CONTROLLER_BITS
from opd.reference import module
from opd.registers import Format
from opd.trace import FORMATS

DAMPING = 3.0  # a scale moves by at most this factor from one step to the next
LAG_1 = {"baseline_max_lag": 1}  # the baseline follows a peak up to 1 bit below it at once, 3 by reset


def state_bits() -> int:
    """Of the forecast engine, per operator, without the controller: baseline, age, run of non-finite samples."""
    return module().state_bits(True, False) - CONTROLLER_BITS


class Baseline:
    """The detection unit of so many operators. formats: their formats; elements: their numbers of elements, uint32 [P]; config: fields
    that are not at their reset value."""

    def __init__(self, formats: list[str], elements: np.ndarray, config: Mapping[str, float] | None = None):
        self._format = np.array([Format[name] for name in formats], np.uint8)
        self._types = [FORMATS[name].numpy for name in formats]
        self._elements = elements
        self.unit = module().Unit(len(formats), dict(config or {}))

    def see(self, step: int, chosen: np.ndarray, max_abs: np.ndarray, nonfinite: np.ndarray, scale_log2: np.ndarray) -> None:
        """Completions of a step. chosen: operators, in order; max_abs float [chosen], a value of the operator's format; nonfinite
        uint32 [chosen]; scale_log2 int8 [chosen]."""
        bits = np.empty(len(chosen), np.uint32)
        for dtype in set(self._types):
            own = [place for place, op in enumerate(chosen) if self._types[op] == dtype]
            bits[own] = max_abs[own].astype(dtype).view(f"<u{dtype.itemsize}")
        self.unit.step(step & 0xFFFFFFFF, chosen.astype(np.uint16), self._format[chosen], bits, self._elements[chosen], nonfinite,
                       np.zeros(len(chosen), np.uint32), scale_log2)

    def log2(self) -> np.ndarray:
        """float64 [P], NaN where nothing was seen yet."""
        return self.unit.baselines()
