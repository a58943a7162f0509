"""The arm with opd.guard."""

from __future__ import annotations

import opd
from closed_loop.arms import Scaler
from closed_loop.runs import Run
from workloads.text import Text


class Guard(Scaler):
    """GradScaler and opd.guard, with its default options."""
    name = "guard"

    def __init__(self, run: Run, text: Text, device: str = "cpu"):
        super().__init__(run, text)
        subject = self.subject
        self.guard = opd.guard(subject.model, subject.optimizer, scaler=subject.scaler, device=device, clip=subject.settings.clip or None)

    def __enter__(self):
        self.guard.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.guard.close()

    def batches(self):
        return self.guard.batches(self.subject.batches())

    def take(self, loss) -> bool:
        subject = self.subject
        has_stepped = self.guard.step(loss)
        if not self.guard.is_attached and not subject.is_finite():
            self.why = "the parameters are not finite"
        self.look_at_the_scale()
        return has_stepped

    def figures(self) -> dict:
        decisions = self.guard.decisions
        return {"guard": self.guard.summary() | {"stopped_by": [d["operator"] or d["what"] for d in decisions if d["event"] == "stopped"][:1],
                                                 "first_stop": next((d["step"] for d in decisions if d["event"] == "stopped"), None),
                                                 "first_downshift": next(([d["step"], d["operator"]] for d in decisions
                                                                          if d["event"] == "mode" and d["new"] != "FAST"), None)}}
