"""The device for a training loop, one training step at a time: the C++ reference, the SystemC model or the Verilated RTL.

    device = Device("rtl", num_ops=64, config={"quiet_steps": 32})
    outcome = device.step(0, op, format, max_mag, element_count, nonfinite)

opd.guard uses it. The simulated devices are driven at their pins and registers (docs/guard.md, "Co-simulation").
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from opd.device_config import DeviceConfig
from opd.reference import module, simulated_devices
from opd.registers import Cause

KINDS = ("cpu", "systemc", "rtl")
MOST_OPS = 65536


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
    """Of one step: records (fields of OpRecord, [completions]), events, mode of every operator from now on (uint8 [num_ops]), hints;
    cycles: clocks that the device took, 0 for the reference, which has none."""
    records: np.ndarray
    events: list[Event]
    modes: np.ndarray
    hints: Hints
    escalate: bool
    last_clean_step: int | None
    cycles: int = 0


class Setting(NamedTuple):
    """What a host may set of an operator."""
    mode: int
    locked: bool
    disabled: bool


class Device:
    """One device, in the state after reset.

    kind     "cpu": the reference; "systemc": the cycle-accurate model; "rtl": the Verilated RTL
    num_ops  operators 0..num_ops-1; largest(kind) at most
    config   fields of the configuration that are not at their reset value, or a DeviceConfig

    A process has one SystemC device: a second one is refused until the first is closed. Of the others there may be any number.
    Raises ValueError for an argument out of range, ReferenceMissing for what is not built, RuntimeError for a simulated device that
    does not answer as it should; such a device cannot be used any more.
    """

    def __init__(self, kind: str, num_ops: int, config: Mapping[str, float] | DeviceConfig | None = None):
        most = largest(kind)
        if not 1 <= num_ops <= most:
            raise ValueError(f"num_ops: {num_ops} must be 1..{most}" + (_MORE_OPS if kind == "rtl" and num_ops > most else ""))
        settings = config.settings() if isinstance(config, DeviceConfig) else dict(config or {})
        self.kind, self.num_ops = kind, num_ops
        self._unit = module().Unit(num_ops, settings)  # what it refuses, all refuse in the same words
        if kind != "cpu":
            self._unit = simulated_devices().Simulated(kind, num_ops, settings)

    def step(self, step: int, op: np.ndarray, format: np.ndarray, max_mag: np.ndarray, element_count: np.ndarray,
             nonfinite: np.ndarray, saturated: np.ndarray | None = None, scale_log2: np.ndarray | None = None) -> Outcome:
        """The completions of a training step, in order: arrays [completions]. step: uint32; op: uint16; format: Format codes, uint8;
        max_mag: bits of the largest finite magnitude, in that format, uint32; element_count, nonfinite, saturated: elements, uint32;
        scale_log2: of the loss scale in the values, int8. Raises ValueError before anything is given to the device."""
        before = self.cycles
        records, events = self._unit.step(step, op, format, max_mag, element_count, nonfinite,
                                          np.zeros(len(op), np.uint32) if saturated is None else saturated,
                                          np.zeros(len(op), np.int8) if scale_log2 is None else scale_log2)
        found = [Event(*event) for event in events]
        loss_scale, clip, rate = self._unit.hints()
        return Outcome(records, found, self._unit.modes(), Hints(loss_scale, clip, rate / 65536),
                       any(event.cause == Cause.ESCALATE for event in found), self._unit.last_clean_step(), self.cycles - before)

    @property
    def cycles(self) -> int:
        """Clocks since the reset, those of register accesses included; 0 for the reference."""
        return getattr(self._unit, "cycles", 0)

    def announce_learning_rate(self, step: int) -> None:
        """The learning rate changes with this step (uint32), of which nothing has been given yet."""
        self._unit.announce_learning_rate(step)

    def operator(self, op: int) -> Setting:
        """The command READ. Raises IndexError for an operator that there is not."""
        return Setting(*self._unit.operator(op))

    def set_operator(self, op: int, mode: int | None = None, locked: bool | None = None, disabled: bool | None = None) -> Setting:
        """The command SET; None keeps. Raises IndexError for an operator that there is not, ValueError for a mode."""
        now = self.operator(op)
        return Setting(*self._unit.set_operator(op, *(old if new is None else new for old, new in zip(now, (mode, locked, disabled)))))

    def close(self) -> None:
        """Lets the device go; a second call does nothing."""
        self._unit = _Closed()


class _Closed:
    def __getattr__(self, name: str):
        raise RuntimeError("the device is closed; make another")


_MORE_OPS = "; the RTL is built for that many: cmake -DOPD_NUM_OPS=NUMBER builds it for more"


def largest(kind: str) -> int:
    """Operators that a device of this kind has at most. Raises ValueError, ReferenceMissing."""
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is unknown; use one of {', '.join(KINDS)}")
    return simulated_devices().RTL_NUM_OPS if kind == "rtl" else MOST_OPS
