"""Capture in a Hugging Face Trainer:

    trainer = Trainer(..., callbacks=[CaptureCallback("run.safetensors")])

Steps are the Trainer's (global_step), the loss is what it calls backward on, the learning rate that of the step. An exception
in training does not reach callbacks: the trace is then written when the process ends.
"""
from __future__ import annotations

import os

from transformers import TrainerCallback

from opd.capture.session import Capture


class CaptureCallback(TrainerCallback):
    """path and options: of opd.capture.Capture; model, optimizer and first_step come from the Trainer."""

    def __init__(self, path: str | os.PathLike, **options):
        self._path, self._options = path, options
        self.capture: Capture | None = None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        if self.capture is not None:
            self.capture.close()
        self.capture = Capture(model, self._path, optimizer=optimizer, first_step=state.global_step, auto_loss=True,
                               **self._options)

    def on_optimizer_step(self, args, state, control, **_):
        self.capture.step()  # before the scheduler moves the learning rate on and gradients are cleared

    def on_train_end(self, args, state, control, **_):
        self.capture.close()
