"""What the guards of a training run (session) and of a generation loop (generating) have in common: they are open or not, and a guard that
fails takes itself off, says so once and lets the loop go on."""
from __future__ import annotations

import logging
from collections.abc import Callable

from opd.guard.deciding import Decider
from opd.guard.decisions import DecisionLog
from opd.guard.modes import Modes
from opd.guard.monitor import Monitor

log = logging.getLogger("opd.guard")


class Attached:
    """A guard on a model; a context manager. The class that inherits sets the parts and has `close`."""
    _UNIT = "step"       # what _step counts
    _GUARDED = "the run"

    _log: DecisionLog
    _monitor: Monitor
    _modes: Modes
    _decider: Decider
    _step: int
    _is_open = False
    _is_off = False      # the hooks are gone
    _why: str | None = None  # it is detached

    def __enter__(self):
        self._is_open = True
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    @property
    def is_attached(self) -> bool:
        """Whether it still guards."""
        return self._is_open and self._why is None

    @property
    def decisions(self) -> list[dict]:
        """What is in the log, so far."""
        return self._log.decisions

    def modes(self) -> dict[str, str]:
        """Operators that are not in FAST, and their modes."""
        return self._decider.outside_fast()

    def _detach(self, why: str, error: Exception | None = None) -> None:
        self._why = f"{self._UNIT} {self._step}: {why}"
        self._modes.is_passive = True
        self._monitor.listening = False
        log.error("the guard ends, %s goes on without it: %s", self._GUARDED, self._why, exc_info=error)
        try:
            self._log.note("detached", self._step, why=why)
        except Exception:  # a full disk: it is on the terminal
            pass

    def _remove(self, *removals: Callable[[], None]) -> None:
        """The hooks, once; never while a module runs, whose function modes they have to end. One that fails does not keep the others."""
        if self._is_off:
            return
        self._is_off = True
        for remove in removals:
            try:
                remove()
            except Exception:
                log.debug("a part of the guard could not be taken off", exc_info=True)
