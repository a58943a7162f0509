"""The log of what a guard decided: one JSON object a line, written when it is decided."""
from __future__ import annotations

import json
import os
from pathlib import Path

from opd.guard.errors import GuardError

# event -> what its keys say; every object has `event` and `step` as well. docs/guard.md has the table.
EVENTS = {
    "mode": ("operator", "old", "new", "cause", "risk"),
    "hints": ("loss_scale_shift", "clip_shift", "learning_rate_factor"),
    "stopped": ("what", "operator", "attempt", "escalate", "ranks"),
    "retry": ("batches", "safe"),
    "roll_back": ("to", "batches", "why"),
    "dropped": ("batches", "why"),
    "held": ("operators", "released"),
    "ordinary": ("operators",),
    "carried": ("module", "calls"),
    "bundle": ("path", "missing"),
    "no_bundle": ("why",),
    "localised": ("kind", "operator", "substep", "replays", "watched"),
    "resumed": ("to",),
    "no_ring": ("why",),
    "detached": ("why",),
}
# The same of a generation loop alone: docs/generation.md.
GENERATION_EVENTS = {
    "again": ("cached", "safe"),
    "ended": ("why", "sequences"),
}
_KEYS = EVENTS | GENERATION_EVENTS


class DecisionLog:
    """path: None keeps the decisions in memory only. Raises GuardError when the file cannot be made."""

    def __init__(self, path: str | os.PathLike | None):
        self.decisions: list[dict] = []
        self._file = None
        if path is not None:
            try:
                self._file = open(Path(path), "a", encoding="utf-8")
            except OSError as error:
                raise GuardError(f"log: {path} cannot be written ({error.strerror}); give a file in a folder that can be written "
                                 "to") from None

    def note(self, event: str, step: int, **details) -> None:
        if set(details) != set(_KEYS[event]):
            raise ValueError(f"{event}: has the keys {', '.join(_KEYS[event])}")
        decision = {"event": event, "step": step, **details}
        self.decisions.append(decision)
        if self._file is not None:
            self._file.write(json.dumps(decision) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
