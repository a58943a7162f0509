"""Capture in a Lightning Trainer:

    trainer = Trainer(..., callbacks=[CaptureCallback("run.safetensors")])

Steps are optimizer steps (trainer.global_step), whatever accumulate_grad_batches is; the loss is what backward is called on.
"""
from __future__ import annotations

import os

from lightning.pytorch import Callback

from opd.capture.session import Capture


class CaptureCallback(Callback):
    """path and options: of opd.capture.Capture; model, optimizers and first_step come from the Trainer."""

    def __init__(self, path: str | os.PathLike, **options):
        self._path, self._options = path, options
        self.capture: Capture | None = None

    def on_train_start(self, trainer, pl_module):
        self._steps = trainer.global_step
        self.capture = Capture(pl_module, self._path, optimizer=list(trainer.optimizers), first_step=self._steps, auto_loss=True,
                               **self._options)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.capture.step()

    def on_train_end(self, trainer, pl_module):
        self.capture.close()

    def on_exception(self, trainer, pl_module, exception):
        if self.capture is not None:
            self.capture.close()
