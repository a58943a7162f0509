"""Runs one policy: shows it each step, takes its commands, and turns whatever it raises into one line."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from opd.policy.base import Event, Hints, Operator, Policy, Record, Step
from opd.policy.device import Device
from opd.policy.errors import PolicyError, class_line, code_of, file_of, line_of, told

HOOKS = ("start", "on_record", "on_event", "on_step")


class Host:
    """policy: an object, or a function that makes it. file: where errors are looked for; None: that of the class. told_in: put behind
    what failed, such as the trace. Everything raises PolicyError."""

    def __init__(self, policy: Policy | Callable[[], Policy], cls: type[Policy], file: str | None, device: Device, told_in: str = ""):
        self.device = device
        self._class, self._told_in = cls, told_in
        self._file = file or file_of(cls, HOOKS)
        self._policy = policy if isinstance(policy, Policy) else self._run("__init__", "", policy)
        self._sees_records = cls.on_record is not Policy.on_record
        self._sees_events = cls.on_event is not Policy.on_event

    def start(self) -> list[tuple]:
        """Commands before the first step."""
        self._run("start", "", self._policy.start, self.device.operators, self.device)
        return self.device.take()

    def step(self, number: int, records: np.ndarray, events: Sequence[Event], hints: Hints, last_clean_step: int | None) -> list[tuple]:
        """Commands after a step."""
        self.device.see(records)
        told = f"step {number}"
        if self._sees_records:
            self._run("on_record", told, _each, self._policy.on_record, map(Record._make, records.tolist()), self.device)
        if self._sees_events:
            self._run("on_event", told, _each, self._policy.on_event, events, self.device)
        step = Step(number, records, events, hints, last_clean_step, self.device.operators, self.device.limits)
        self._run("on_step", told, self._policy.on_step, step, self.device)
        return self.device.take()

    def _run(self, hook: str, told_step: str, function: Callable, *arguments):
        try:
            result = function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self.failed(error, hook, told_step) from None
        try:
            sys.stdout.flush()
        except OSError as error:
            raise PolicyError("standard output", f"cannot be written ({error.strerror}); check the disk or the pipe behind it") from None
        return result

    def failed(self, error: BaseException, hook: str, told_step: str = "") -> PolicyError:
        """The error in one line: where in the policy's file it happened, else the method, else the class."""
        code = code_of(self._class, hook)
        own = code is not None and code.co_filename == self._file
        written = code.co_firstlineno if own else class_line(self._file, self._class.__name__)
        places = ", ".join(place for place in (hook, told_step, self._told_in) if place)
        return PolicyError(f"{self._file}:{line_of(error, self._file, written)}", f"{told(error)} (in {places})")


def _each(hook: Callable, items: Iterable, device: Device) -> None:
    for item in items:
        hook(item, device)


def operators_of(entries: Iterable[tuple[str, str, str]]) -> list[Operator]:
    """Operators of (name, kind, format), numbered."""
    return [Operator(op, *entry) for op, entry in enumerate(entries)]
