"""The device that a guard asks: which one, and how many operators it is made for."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from opd.device import KINDS, MOST_OPS, Device, largest
from opd.device_config import DeviceConfig
from opd.guard.errors import GuardError


# Fields that the guard of a training run sets otherwise than reset: what goes back to FAST too early costs one step that is tried again, not the run.
DEFAULTS = {"quiet_steps": 16}


def with_defaults(config: Mapping[str, float] | DeviceConfig | None) -> Mapping[str, float] | DeviceConfig:
    """A DeviceConfig is whole and stays as it is."""
    return config if isinstance(config, DeviceConfig) else {**DEFAULTS, **(config or {})}


class Maker:
    """Makes a device of the kind when the number of operators is known. largest: operators that it can have."""

    def __init__(self, kind: str, config: Mapping[str, float] | DeviceConfig | None):
        self.kind, self.config = kind, config
        self.largest = largest(kind)

    def __call__(self, num_ops: int) -> Device:
        return Device(self.kind, num_ops, self.config)


def factory(device: str | Callable, config: Mapping[str, float] | DeviceConfig | None) -> Callable[[int], object]:
    """What makes the device once the number of operators is known; one is made here and closed again. Raises GuardError."""
    if callable(device):
        return device
    if device not in KINDS:
        raise GuardError(f"device: {device!r} is unknown; use one of {', '.join(KINDS)}, or a function (number of operators) -> device")
    try:
        make = Maker(device, config)
        make(1).close()
    except ValueError as error:
        raise GuardError(f"config: {error}") from None
    except RuntimeError as error:
        raise GuardError(f"device: {error}") from None
    return make


def places_for(make: Callable[[int], object], operators: int) -> int:
    """Operators that a device is made for in a run that has shown so many: twice as many, for those that come later. Raises GuardError
    for more than the device can have."""
    most = getattr(make, "largest", MOST_OPS)
    if operators > most:
        raise GuardError(f"device: the run has {operators} operators and the device places for {most}; watch fewer (probes), or build "
                         "the RTL for more (cmake -DOPD_NUM_OPS=NUMBER)")
    places = 16
    while places < 2 * operators:
        places *= 2
    return min(places, most)
