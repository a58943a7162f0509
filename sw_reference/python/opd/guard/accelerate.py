"""Guard of a loop with Accelerate, whose lines stay as they are:

    with guard(accelerator, model, optimizer) as g:     # what accelerator.prepare returned
        for batch in g.batches(loader):
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

A step that is stopped counts as one that the scaler has skipped: `accelerator.optimizer_step_was_skipped` is true, and the scheduler that
was prepared waits. Its batches come again.
"""
from __future__ import annotations

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from opd.guard.attachment import attach
from opd.guard.steps import StepGuard


class Skips:
    """An optimizer of Accelerate that says of a stopped step that it was skipped."""

    def __init__(self, guard: StepGuard, optimizer: AcceleratedOptimizer):
        self._optimizer = optimizer
        original = optimizer.step

        def step(*arguments, **options):
            result = original(*arguments, **options)
            if guard.was_stopped:
                optimizer._is_overflow = True
            elif optimizer.scaler is None:
                optimizer._is_overflow = False
            return result

        optimizer.step = step

    def remove(self) -> None:
        vars(self._optimizer).pop("step", None)


def guard(accelerator: Accelerator, model: nn.Module, optimizer, **options) -> StepGuard:
    """A guard of what accelerator.prepare returned. optimizer: one or a list; options: of opd.guard. Raises GuardError."""
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    plain = accelerator.unwrap_model(model, keep_fp32_wrapper=True)
    made = StepGuard(plain, optimizers, scaler=accelerator.scaler, **options)
    attach(made, plain, optimizers)
    made.attach(*(Skips(made, own) for own in optimizers if isinstance(own, AcceleratedOptimizer)))
    return made
