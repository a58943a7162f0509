"""Guard of a Hugging Face Trainer:

    trainer = guarded(Trainer(...), log="decisions.jsonl")
    trainer.train()
    print(trainer.guard.summary())

A stopped step comes again: its micro-batches go through the Trainer's training_step once more. `GuardCallback` alone, in
Trainer(callbacks=[GuardCallback()]), knows no Trainer: there a stopped step is dropped, and the modes act on the next one. A step that is
dropped counts as one that the scaler has skipped: the learning rate schedule waits.
"""
from __future__ import annotations

from transformers import Trainer, TrainerCallback

from opd.guard.accelerate import Skips
from opd.guard.attachment import Holder, attach
from opd.guard.ring import kept
from opd.guard.steps import StepGuard


class GuardCallback(Holder, TrainerCallback):
    """options: of opd.guard; model, optimizer, scaler and first_step come from the Trainer."""

    def __init__(self, trainer: Trainer | None = None, **options):
        self._trainer, self._options = trainer, options

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self._close()
        options = {"first_step": state.global_step, "scaler": getattr(optimizer, "scaler", None), **self._options}
        self.guard = StepGuard(model, optimizer, **options)
        attach(self.guard, model, [optimizer])
        self.guard.attach(Skips(self.guard, optimizer))
        if self._trainer is not None:
            self.guard.attach(_Parts(self._trainer, self.guard))

    def on_train_end(self, args, state, control, **_):
        self._close()


class _Parts:
    """The Trainer's training_step, whose micro-batches may run again."""

    def __init__(self, trainer: Trainer, guard: StepGuard):
        self._trainer, self._guard = trainer, guard
        self._original = trainer.training_step
        trainer.training_step = self._training_step

    def _training_step(self, model, inputs, *arguments, **options):
        return self._guard.run_part(lambda: self._original(model, kept(inputs), *arguments, **options),
                                    self._trainer.accelerator.sync_gradients)

    def remove(self) -> None:
        vars(self._trainer).pop("training_step", None)


def guarded(trainer: Trainer, **options) -> Trainer:
    """The Trainer, under a guard from its next `train` on. options: of opd.guard. The guard of the last run is its attribute `guard`."""
    callback = GuardCallback(trainer, **options)
    trainer.add_callback(callback)
    trainer.guard = callback
    return trainer
