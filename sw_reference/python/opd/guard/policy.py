"""A policy in a guard: the device as the guard has it, commanded by the policy between two training steps (docs/policies.md)."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from opd.device_config import DeviceConfig
from opd.device import Hints, Outcome
from opd.guard.errors import GuardError
from opd.guard.monitor import Operator as Watched
from opd.policy.base import Operator, Policy
from opd.policy.device import HINTS, LEARNING_RATE, SET, Device
from opd.policy.errors import PolicyError
from opd.policy.host import Host
from opd.policy.load import load

COMMANDS = (SET, LEARNING_RATE, HINTS)  # what every guard's device takes, and the hints of the host


class CommandedDevice:
    """A guard's device, and the policy that is asked when a step's records are out. What the policy raises comes out of step."""

    def __init__(self, device, host: Host, operators: list[Operator], watched: Sequence[Watched]):
        self._device, self._host, self._operators, self._watched = device, host, operators, watched
        self._hints: Hints | None = None  # in place of the device's
        self._know()
        self._give(host.start())

    def step(self, step: int, *completions) -> Outcome:
        outcome = self._device.step(step, *completions)
        self._know()
        modes = np.array(outcome.modes, np.uint8)
        for op, mode in self._give(self._host.step(step, outcome.records, outcome.events, outcome.hints, outcome.last_clean_step)):
            modes[op] = mode
        return replace(outcome, modes=modes, hints=outcome.hints if self._hints is None else self._hints)

    def announce_learning_rate(self, step: int) -> None:
        self._device.announce_learning_rate(step)

    def set_operator(self, op: int, mode: int | None = None, locked: bool | None = None, disabled: bool | None = None) -> None:
        """The guard's own: a recovery comes before any policy."""
        self._device.set_operator(op, mode, locked, disabled)
        self._host.device.follow(op, mode, locked, disabled)

    def close(self) -> None:
        self._device.close()

    def _know(self) -> None:
        """Operators that have been seen since."""
        self._operators += [Operator(seen.op, seen.name, seen.kind, seen.own) for seen in self._watched[len(self._operators):]]

    def _give(self, commands: list[tuple]) -> list[tuple[int, int]]:
        """Carries out the commands; returns the modes that were set."""
        modes = []
        for command, *values in commands:
            if command == SET:
                self._device.set_operator(*values)
                modes.append((values[0], values[1]))
            elif command == LEARNING_RATE:
                self._device.announce_learning_rate(*values)
            else:
                told = values[0]
                self._hints = None if told is None else Hints(told[0], told[1], told[2] / 65536)
        return modes


class Commander:
    """The policy of a guard, before there is a device. Raises GuardError."""

    def __init__(self, policy: Policy | type[Policy] | str | os.PathLike, config: Mapping[str, float] | DeviceConfig | None):
        self._operators: list[Operator] = []
        settings = config.settings() if isinstance(config, DeviceConfig) else dict(config or {})
        try:
            self._host = _host(policy, Device(self._operators, settings, COMMANDS))
        except PolicyError as error:
            raise GuardError(f"policy: {error}") from None

    def over(self, make: Callable[[int], object], watched: Sequence[Watched]) -> Callable[[int], CommandedDevice]:
        """Makes the device that `make` makes, commanded. watched: the operators of the guard, which become more."""
        return _CommandedMaker(make, lambda device: CommandedDevice(device, self._host, self._operators, watched))


class _CommandedMaker:
    """As the maker below it, attributes included."""

    def __init__(self, make: Callable[[int], object], command: Callable[[object], CommandedDevice]):
        self._make, self._command = make, command

    def __call__(self, num_ops: int) -> CommandedDevice:
        return self._command(self._make(num_ops))

    def __getattr__(self, name: str):
        return getattr(self._make, name)


def _host(policy, device: Device) -> Host:
    if isinstance(policy, Policy):
        return Host(policy, type(policy), None, device)
    if isinstance(policy, type) and issubclass(policy, Policy):
        return Host(policy, policy, None, device)
    if isinstance(policy, (str, os.PathLike)):
        cls, file, _ = load(policy)
        return Host(cls, cls, file, device)
    raise GuardError(f"policy: {policy!r} is no policy; give an object or a class of opd.policy.Policy, or FILE[:CLASS]")
