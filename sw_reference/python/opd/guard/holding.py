"""Operators that would overflow again in FAST: kept in STABLE while their own format could not hold what they hand out.

The device counts quiet steps in the format that it is told, and that of a downshifted operator is BF16, whose limit is far away: it would go
back into the format that it left, and overflow there.
"""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from opd.guard.monitor import FORWARD, Operator
from opd.registers import Format, Mode
from opd.trace import FORMATS

MARGIN = 2.0  # as far below the limit it has to be
_NARROW = {name: FORMATS[Format[name].name].max_value for name in ("FP16", "E4M3", "E5M2")}


def is_too_narrow(operator: Operator, magnitude: float, margin: float = MARGIN) -> bool:
    """Whether the format that an output was first seen in could not hold a magnitude."""
    limit = _NARROW.get(operator.own) if operator.kind == FORWARD else None
    return limit is not None and magnitude * margin > limit


class Holding:
    """What is held, of one device."""

    def __init__(self):
        self._held: set[int] = set()

    def update(self, device, completions: Iterable[tuple[Operator, float]], in_force: np.ndarray) -> tuple[list[str], list[str]]:
        """Locks and unlocks operators. completions: operators with the largest finite magnitudes of this step; in_force: modes from now
        on. Returns the names of those that are held from now on, and of those that no longer are."""
        taken, released = [], []
        for operator, magnitude in completions:
            held = in_force[operator.op] == Mode.STABLE and is_too_narrow(operator, magnitude)
            if held == (operator.op in self._held):
                continue
            device.set_operator(operator.op, locked=held)
            (self._held.add if held else self._held.discard)(operator.op)
            (taken if held else released).append(operator.name)
        return taken, released
