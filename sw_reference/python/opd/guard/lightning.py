"""Guard of a Lightning Trainer:

    trainer = Trainer(..., callbacks=[GuardCallback(log="decisions.jsonl")])

A stopped step comes again: training_step and backward of its micro-batches run once more, whatever accumulate_grad_batches is. In manual
optimization, where the module steps its optimizers itself, it is dropped, and the modes act on the next one.
"""
from __future__ import annotations

from lightning.pytorch import Callback

from opd.guard.attachment import Holder, attach
from opd.guard.steps import StepGuard


class GuardCallback(Holder, Callback):
    """options: of opd.guard; model, optimizers, scaler and first_step come from the Trainer."""

    def __init__(self, **options):
        self._options = options

    def on_train_start(self, trainer, pl_module):
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.guard = StepGuard(pl_module, list(trainer.optimizers), scaler=scaler, **{"first_step": trainer.global_step, **self._options})
        attach(self.guard, pl_module, trainer.optimizers, closures=False)
        if pl_module.automatic_optimization:
            self.guard.attach(_Parts(trainer.fit_loop, self.guard))

    def on_train_end(self, trainer, pl_module):
        self._close()

    def on_exception(self, trainer, pl_module, exception):
        self._close()


class _Parts:
    """The closures of automatic optimization, which may run again."""

    def __init__(self, fit_loop, guard: StepGuard):
        self._loop, self._fit_loop, self._guard = fit_loop.epoch_loop.automatic_optimization, fit_loop, guard
        self._original = self._loop._make_closure
        self._loop._make_closure = self._make

    def _make(self, *arguments, **options):
        made = self._original(*arguments, **options)
        inner = made.closure
        made.closure = lambda *_, **__: self._guard.run_part(inner, not self._fit_loop._should_accumulate())
        return made

    def remove(self) -> None:
        vars(self._loop).pop("_make_closure", None)
