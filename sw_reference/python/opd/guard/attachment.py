"""Everything that tells a StepGuard of one known model and its optimizers, until it is closed; what the callbacks of Trainers share."""
from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from opd.capture.optimizer import unwrap
from opd.guard.interception import Interception
from opd.guard.steps import StepGuard


class Holder:
    """A callback that makes a guard of each run."""
    guard: StepGuard | None = None

    def summary(self) -> dict:
        """Of the last run."""
        return self.guard.summary()

    def _close(self) -> None:
        if self.guard is not None:
            self.guard.close()


def attach(guard: StepGuard, model: nn.Module, optimizers: Iterable, closures: bool = True) -> None:
    """optimizers: of torch, or in wrappers of Accelerate or Lightning; closures: whether the closure of a step may run again."""
    plain = [unwrap(optimizer) for optimizer in optimizers]
    interception = Interception(lambda optimizer: guard if optimizer is None or any(optimizer is own for own in plain) else None, closures)
    for optimizer in plain:
        interception.wrap(optimizer)
    guard.attach(interception, guard.watch(model))
