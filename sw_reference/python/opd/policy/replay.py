"""The policy of a replay: what testbench/python_policy.cpp calls, with plain data in and out."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opd.policy.base import Event, Hints
from opd.policy.device import Device
from opd.policy.errors import PolicyError, line_of, told
from opd.policy.host import Host, operators_of
from opd.policy.load import load
from opd.records import RECORD


class ReplayPolicy:
    """where: FILE or FILE:CLASS of --policy. Raises PolicyError, also where the policy raises KeyboardInterrupt: an interrupt ends the
    program itself."""

    def __init__(self, where: str):
        try:
            self._class, self.file, self.sha256 = load(where)
        except KeyboardInterrupt as error:
            raise PolicyError(where, told(error)) from None  # in the file's own body
        self.name = self._class.__name__
        self._host: Host | None = None

    def start(self, trace: str, operators: Sequence[tuple[str, str, str]], config: dict[str, float]) -> list[tuple]:
        """A new object for a trace; its commands before the first step. operators: name, kind, format of each."""
        def begin():
            self._host = Host(self._class, self._class, self.file, Device(operators_of(operators), config), f"trace {trace}")
            return self._host.start()

        return self._uninterrupted(begin)

    def step(self, number: int, records: bytes, events: Sequence[tuple], hints: tuple[int, int, int], last_clean_step: int | None) -> list:
        """Its commands after a step. records: of OpRecord; events: fields of Event; hints: as in the registers."""
        loss_scale, clip, rate = hints
        seen = Hints(loss_scale, clip, rate / 65536)
        return self._uninterrupted(lambda: self._host.step(number, np.frombuffer(records, RECORD), [Event(*event) for event in events],
                                                           seen, last_clean_step))

    def _uninterrupted(self, function):
        try:
            return function()
        except KeyboardInterrupt as error:
            raise PolicyError(f"{self.file}:{line_of(error, self.file, 1)}", told(error)) from None
