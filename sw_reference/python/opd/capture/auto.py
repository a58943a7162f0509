"""Capture of a script that knows nothing of it: finds the model and the end of each step.

The model is the outermost module with trainable parameters that is called in training; one that appears later is hooked as
well, its probes under its class name and a number. A step ends when an optimizer that holds parameters of the first model has
made its step, or a GradScaler has skipped it. The loss is what backward was called on. PyTorch's own global hooks are used;
nothing of the script or of its classes is replaced but GradScaler.scale, GradScaler.step and Tensor.backward.
"""
from __future__ import annotations

import functools
import logging
import os

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from opd.capture.errors import CaptureError
from opd.capture.patch import Patch
from opd.capture.session import Capture

log = logging.getLogger("opd.capture")


class AutoCapture:
    """Waits for a model, then captures it until the process ends. options: of Capture. model_class: name of the class to take
    as the model instead of the first one called."""

    def __init__(self, path: str | os.PathLike, options: dict, model_class: str | None = None):
        self._path, self._options, self._class = path, options, model_class
        self._depth = 0
        self._known: set[int] = set()  # ids of modules inside captured models, and of models that were turned down
        self._parameters: set[int] = set()
        self.capture: Capture | None = None
        self._optimizer: Optimizer | None = None
        self._failed, self._stepped, self._others = False, False, 0
        self._handles = [register_module_forward_pre_hook(self._on_call),
                         register_module_forward_hook(self._on_return, always_call=True),
                         register_optimizer_step_post_hook(self._on_optimizer_step)]
        self._patch = Patch(torch.amp.GradScaler, "step", self._wrap_scaler_step)

    def remove(self) -> None:
        """Stops watching and closes the capture."""
        for handle in self._handles:
            handle.remove()
        self._patch.remove()
        if self.capture is not None:
            self.capture.close()

    def _on_call(self, module: nn.Module, arguments) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._failed or id(module) in self._known or not (module.training and torch.is_grad_enabled()):
            return
        wanted = type(module).__name__ == self._class if self._class else self._depth == 1
        if not wanted or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        self._known.update(map(id, module.modules()))
        try:
            if self.capture is None:
                self.capture = Capture(module, self._path, auto_loss=True, **self._options)
                self._parameters = set(map(id, module.parameters()))
                log.info("%s: captures %s", self.capture.path, type(module).__name__)
            else:
                self._others += 1
                self.capture.add_model(f"{type(module).__name__}{self._others}", module)
        except CaptureError as error:
            self._failed = True
            log.error("no capture: %s", error)

    def _on_return(self, module: nn.Module, arguments, output) -> None:
        if not torch.compiler.is_compiling():
            self._depth = max(0, self._depth - 1)

    def _on_optimizer_step(self, optimizer: Optimizer, arguments, options) -> None:
        if self.capture is not None and self._owns(optimizer):
            self._stepped = True
            self.capture.step()

    def _owns(self, optimizer: Optimizer) -> bool:
        """Whether its steps are the steps of the run: the first optimizer seen with a parameter of the model."""
        if self._optimizer is None and any(id(parameter) in self._parameters for group in optimizer.param_groups
                                           for parameter in group["params"]):
            self._optimizer = optimizer
            self.capture.add_optimizer(optimizer)
        return optimizer is self._optimizer

    def _wrap_scaler_step(self, original):
        @functools.wraps(original)
        def step(scaler, optimizer, *arguments, **options):
            self._stepped = False
            result = original(scaler, optimizer, *arguments, **options)
            if not self._stepped and self.capture is not None and isinstance(optimizer, Optimizer) and self._owns(optimizer):
                self.capture.step()
            return result
        return step
