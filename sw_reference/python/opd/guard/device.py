"""The device that a guard asks, one training step at a time: here the C++ reference itself (opd._reference.Unit)."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from opd.device_config import DeviceConfig
from opd.reference import module
from opd.guard.errors import GuardError
from opd.registers import Cause


class Event(NamedTuple):
    """A completion that changed a mode, escalated or found an upset (docs/controller.md)."""
    step: int
    op: int
    old_mode: int
    new_mode: int
    cause: int
    flags: int
    risk: int


@dataclass(frozen=True)
class Hints:
    """What the training loop should do now: loss scale * 2^shift, clip threshold * 2^shift, learning rate * factor."""
    loss_scale_shift: int = 0
    clip_shift: int = 0
    learning_rate_factor: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """Of one step: records (fields of OpRecord), events, mode of every operator from now on, hints."""
    records: np.ndarray
    events: list[Event]
    modes: np.ndarray
    hints: Hints
    escalate: bool
    last_clean_step: int | None
    cycles: int = 0


class ReferenceDevice:
    """The reference's detection unit. config: fields of the configuration that are not at their reset value."""

    def __init__(self, num_ops: int, config: Mapping[str, float]):
        self._unit = module().Unit(num_ops, dict(config))

    def step(self, step: int, op: np.ndarray, format: np.ndarray, max_mag: np.ndarray, element_count: np.ndarray,
             nonfinite: np.ndarray, saturated: np.ndarray | None = None, scale_log2: np.ndarray | None = None) -> Outcome:
        records, events = self._unit.step(step, op, format, max_mag, element_count, nonfinite,
                                          np.zeros(len(op), np.uint32) if saturated is None else saturated,
                                          np.zeros(len(op), np.int8) if scale_log2 is None else scale_log2)
        found = [Event(*event) for event in events]
        loss_scale, clip, rate = self._unit.hints()
        return Outcome(records, found, self._unit.modes(), Hints(loss_scale, clip, rate / 65536),
                       any(event.cause == Cause.ESCALATE for event in found), self._unit.last_clean_step())

    def announce_learning_rate(self, step: int) -> None:
        self._unit.announce_learning_rate(step)

    def set_operator(self, op: int, mode: int | None = None, locked: bool | None = None, disabled: bool | None = None) -> None:
        """The command SET; None keeps."""
        now = self._unit.operator(op)
        self._unit.set_operator(op, *(old if new is None else new for old, new in zip(now, (mode, locked, disabled))))

    def close(self) -> None:
        pass


def factory(device: str | Callable, config: Mapping[str, float] | DeviceConfig | None) -> Callable[[int], object]:
    """What makes the device once the number of operators is known. Raises GuardError."""
    if callable(device):
        return device
    if device != "cpu":
        raise GuardError(f"device: {device!r} is unknown; use \"cpu\", or a function (number of operators) -> device")
    settings = config.settings() if isinstance(config, DeviceConfig) else dict(config or {})
    try:
        module().Unit(1, settings)
    except ValueError as error:
        raise GuardError(f"config: {error}") from None
    except RuntimeError as error:
        raise GuardError(f"device: {error}") from None
    return lambda num_ops: ReferenceDevice(num_ops, settings)
