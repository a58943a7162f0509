"""A guard of a loop that is not ours: it is told what the loop does, and says whether an optimizer may step.

What it is told: the model is called (`begin_pass`), backward is called on a loss (`see_loss`), an optimizer is about to step (`permits`)
and has stepped (`note_step`). A step is over when the loop goes on to the next one: asks for its batch, calls the model, or steps the same
optimizer again. Until then the loop does behind a step what it wants, such as the scaler's update or averaged weights.

A stopped step comes again where that is possible: its batches through `batches`, or its parts (`run_part`), each of which is a forward
and a backward pass as a function. Elsewhere it is dropped, and the modes act on the next one.
"""
from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture.amp import in_backward
from opd.guard.errors import GuardError
from opd.guard.monitor import Seen
from opd.guard.ranks import is_of_many
from opd.guard.ring import Random
from opd.guard.session import Guard

GONE = "the loop does not give its batches again"


class StepGuard(Guard):
    """The arguments of Guard, which is open at once. One process only: ranks have to end a step at the same place, and where that is the
    loop decides."""

    def __init__(self, model: nn.Module, optimizer, **options):
        if is_of_many():
            raise GuardError("model: a run of several processes whose loop is not its own; write the loop with opd.guard (docs/guard.md, "
                             "Many ranks), or guard a run of one process")
        super().__init__(model, optimizer, **options)
        self._may_step: bool | None = None         # None: the open step was not judged yet
        self._seen: Seen | None = None             # of the step that was
        self._asked: list[Optimizer] = []          # optimizers that it was asked for
        self._has_stepped = False                  # one of them
        self._has_parts = False
        self._attached: list = []
        self.__enter__()

    def attach(self, *parts) -> None:
        """Things with `remove`, which is called when the guard is closed."""
        self._attached += parts

    # --- what the loop does

    def begin_pass(self, training: bool = True) -> None:
        """The model is called, with gradients. training: what it is set to."""
        if self.is_attached:  # hooks are taken off between two calls, not here
            self._guarded(self.finish)
            self._guarded(self._begin)
            if self._monitor.listening:
                self._monitor.begin_pass(training, True)

    def take_batch(self, batch, random: Random) -> None:
        """What the micro-batch whose backward comes is computed from, and the random numbers before it."""
        if self._is_on and not self._has_parts:
            self._uses_batches = True
            self._guarded(self._begin)
            if not self._open_batches and self._light is not None:
                self._light.random = random
            self._open_batches.append(batch)

    def ask(self) -> deque:
        """The loop asks for its next batch. Those that come again, first."""
        if self._is_on:
            self._guarded(self._settle)
        return self._again

    def see_loss(self, loss: Tensor) -> None:
        """Without the loss scale. Waits for it."""
        if self._is_on:
            self._guarded(lambda: self._losses.append(float(loss.detach())))

    def forget_losses(self) -> None:
        """They were of another model."""
        self._losses.clear()

    def see_backward_error(self, error: Exception) -> bool:
        """Whether an exception in backward is taken: in other modes it may be ours, and costs the step."""
        if not self._is_on or not self._modes.plans:
            return False
        self._backward_error = f"{type(error).__name__}: {error}"
        return True

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._subject.model.parameters()

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """One that was made after the guard."""
        self._optimizers.append(optimizer)
        if self._subject.optimizers is not self._optimizers:
            self._subject.optimizers.append(optimizer)
        self._guarded(self._monitor.add_optimizer, optimizer)

    def adopt(self, scaler) -> None:
        """The scaler of the run, where that is known only when it is used."""
        if self._scaler is None:
            self._scaler = self._subject.scaler = scaler

    def permits(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer may step. Several of one step get one answer."""
        if any(other is optimizer for other in self._asked):
            self._guarded(self.finish)
        self._asked.append(optimizer)
        return self._judged()

    def note_step(self) -> None:
        """An optimizer has stepped."""
        self._has_stepped = True

    def give_up(self, why: str) -> None:
        """It cannot guard this loop."""
        if self._is_on:
            self._detach(why)

    def under_hints(self) -> contextlib.AbstractContextManager:
        """The learning rates as hinted, for the time of an optimizer's step."""
        return self._hinted_rates() if self._is_on else contextlib.nullcontext()

    @property
    def clip_factor(self) -> float:
        """What a norm to clip to is multiplied by."""
        return 2.0**self._hints.clip_shift if self._is_on and self._follows_hints else 1.0

    @property
    def is_judged(self) -> bool:
        """Whether the open step was stopped or let through already."""
        return self._may_step is not None

    @property
    def was_stopped(self) -> bool:
        """Whether the last step that was asked for was stopped, and has not come again."""
        return self._may_step is False

    @property
    def has_losses(self) -> bool:
        """Whether backward was called in the open step."""
        return bool(self._losses) and not self.is_judged

    def finish(self) -> None:
        """The loop goes on to the next step. A second call does nothing."""
        if self._may_step is None:
            return
        may_step, seen, has_stepped = self._may_step, self._seen, self._has_stepped
        self._reopen()
        if may_step and seen is not None and self.is_attached:
            if self._has_parts:
                self._open_batches = []  # a part lives as long as its step
            self._monitor.drop()
            self._end_step(seen, has_stepped)

    def run_part(self, part: Callable, is_last: bool):
        """One micro-batch of the open step, and if it is the last one the judgement: the step's parts run again as long as that may help.
        Returns what the last part returned."""
        if not self._is_on:
            return part()
        self._has_parts = True
        result = self._run(part)
        while is_last and not self._judged():
            parts = [part for part in self._again if callable(part)]
            self._again = deque(batch for batch in self._again if not callable(batch))
            if not parts:
                break
            self._reopen()
            for again in parts:
                result = self._run(again)
        return result

    def watch(self, model: nn.Module) -> torch.utils.hooks.RemovableHandle:
        """Calls of the model are passes."""
        def begin(module, arguments) -> None:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled() and not in_backward():
                self.begin_pass()
        return model.register_forward_pre_hook(begin)

    def close(self) -> None:
        if self._is_open:
            self._guarded(self.finish)
        super().close()
        for part in self._attached:
            part.remove()
        self._attached.clear()

    # --- within

    def _run(self, part: Callable):
        self.begin_pass()
        self._guarded(self._begin_batch, part)
        return part()

    def _judged(self) -> bool:
        if self._may_step is None:
            if self._is_on:
                self._may_step, self._seen = self._permission()
            else:
                return True
        return self._may_step

    def _reopen(self) -> None:
        self._may_step, self._seen, self._has_stepped = None, None, False
        self._asked.clear()

    def _settle(self) -> None:
        self.finish()
        super()._settle()

    def _retry(self) -> None:
        if self._open_batches:
            super()._retry()
            return
        self._counts["dropped"] += 1
        self._log.note("dropped", self._step, batches=0, why=GONE)
        self._put_back()
        self._next_try()

    def _zero_grad(self) -> None:
        """In place: the loop may look at them."""
        for optimizer in self._subject.optimizers:
            optimizer.zero_grad(set_to_none=False)
        self._losses.clear()
        self._backward_error = None
