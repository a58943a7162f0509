"""Guard of a script that knows nothing of it: finds the model and its optimizers, and guards them until the process ends.

The model is the outermost module with trainable parameters that is called with gradients, and that an optimizer trains. Where the
optimizer holds parameters of several such modules, all of them are guarded as one from its first step on. A module with an optimizer of its
own beside the guarded one (the other half of a GAN, the next fold) is left alone, which is said at the end.
"""
from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer

from opd.capture.amp import in_backward
from opd.capture.errors import CaptureError, PatternError
from opd.capture.optimizer import parameters_of
from opd.guard.errors import GuardError
from opd.guard.interception import Interception
from opd.guard.loaders import Loaders
from opd.guard.steps import StepGuard
from opd.unedited import events, optimizers

log = logging.getLogger("opd.guard")


class Together(nn.Module):
    """Several modules that one optimizer trains, and parameters of it that belong to none of them. It is never called."""

    def __init__(self, modules: Iterable[nn.Module], loose: Iterable[nn.Parameter]):
        super().__init__()
        for module in modules:
            name = type(module).__name__
            number = sum(other == name or other.startswith(f"{name}#") for other in self._modules)
            self.add_module(f"{name}#{number + 1}" if number else name, module)
        for number, parameter in enumerate(loose):
            self.register_parameter(f"parameter{number}", parameter)


class AutoGuard:
    """options: of StepGuard; model_class: name of the class to take as the model."""

    def __init__(self, options: dict, model_class: str | None = None):
        self._options, self._class = options, model_class
        self._guard: StepGuard | None = None
        self._guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules whose call is a pass
        self._optimizers: list[Optimizer] = []
        self._together: Together | None = None
        self._called = weakref.WeakKeyDictionary()  # outermost ones with trainable parameters, in training, in their order
        self._alone: set[str] = set()      # classes of those that have an optimizer of their own
        self._names: set[str] = set()      # classes of all outermost modules that were called
        self._depth = 0
        self._is_over = self._failed = False
        self._loaders = Loaders(lambda: self._guard)
        self._interception = Interception(self._guard_of, before_backward=self._loaders.take)
        self._patch = optimizers.registration(self._interception.wrap)
        self._handles = [register_module_forward_pre_hook(self._on_call),
                         register_module_forward_hook(self._on_return, always_call=True)]
        os.register_at_fork(after_in_child=self._leave)  # workers of a loader
        atexit.register(self.close)

    def close(self) -> None:
        """Takes the guard off, and tells what it did. A second call does nothing."""
        if self._is_over:
            return
        if self._guard is not None:
            self._guard.close()
            events.tell("end", summary=self._guard.summary(), alone=sorted(self._alone))
        elif not self._failed:
            events.tell("idle", text=self._why_idle())
        self._leave()

    def _leave(self) -> None:
        """Stops watching."""
        if self._is_over:
            return
        self._is_over, self._guard = True, None
        atexit.unregister(self.close)
        for part in (*self._handles, self._patch, self._interception, self._loaders):
            part.remove()

    def _why_idle(self) -> str:
        if not self._names:
            return "torch was imported, but no module of it was called"
        if self._class is not None:
            return f"no module of class {self._class} was trained by an optimizer; called were {', '.join(sorted(self._names)[:5])}"
        return f"no optimizer of torch.optim has trained what was called: {', '.join(sorted(self._names)[:5])}"

    # --- what hooks call

    def _on_call(self, module: nn.Module, arguments) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        self._depth += 1
        try:
            self._see_call(module)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """An error of ours: the run goes on without."""
        self._failed = True
        log.error("the guard ends, the run goes on without it", exc_info=error)
        events.tell("failed", text=f"{type(error).__name__}: {error}")
        if self._guard is not None:
            self._guard.close()
        self._guard = None

    def _see_call(self, module: nn.Module) -> None:
        if self._is_over or not (self._depth == 1 if self._class is None else type(module).__name__ == self._class):
            if self._depth == 1:
                self._names.add(type(module).__name__)
            return
        if module in self._guarded:
            self._begin_pass(module)
            return
        self._names.add(type(module).__name__)
        if self._failed or not torch.is_grad_enabled() or module in self._called:
            return
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            return
        owners = optimizers.of(trained)
        if self._guard is None and owners and self._covers(trained, owners):
            self._start(module, owners, [module])
            self._begin_pass(module)
        elif owners or self._guard is None:
            self._called[module] = None
            if self._guard is not None:
                self._alone.add(type(module).__name__)

    def _on_return(self, module: nn.Module, arguments, output) -> None:
        if not torch.compiler.is_compiling() and not in_backward():
            self._depth = max(0, self._depth - 1)

    def _begin_pass(self, module: nn.Module) -> None:
        if self._guard is None:
            return
        if not torch.is_grad_enabled():
            self._loaders.forget()
            return
        if self._together is not None:
            self._together.training = module.training
        self._guard.begin_pass(module.training)

    @staticmethod
    def _covers(parameters: list[Tensor], owners: list[Optimizer]) -> bool:
        known = set(map(id, parameters))
        return all(id(parameter) in known for owner in owners for parameter in parameters_of(owner))

    def _guard_of(self, optimizer: Optimizer | None) -> StepGuard | None:
        try:
            return self._find_guard(optimizer)
        except Exception as error:
            self._fail(error)
            return None

    def _find_guard(self, optimizer: Optimizer | None) -> StepGuard | None:
        if optimizer is None or self._guard is not None and any(optimizer is own for own in self._optimizers):
            return self._guard
        if self._failed or self._is_over:
            return None
        if self._guard is None:
            self._start_late(optimizer)
            return self._guard
        if optimizers.share(optimizer, self._guard.parameters()):  # a further one, or one in another's place
            self._optimizers.append(optimizer)
            self._guard.add_optimizer(optimizer)
            return self._guard
        self._guard.forget_losses()
        return None

    # --- the guard

    def _start_late(self, optimizer: Optimizer) -> None:
        """At the first step of an optimizer of several modules."""
        modules = [module for module in self._called if optimizers.share(optimizer, module.parameters())
                   and self._class in (None, type(module).__name__)]
        if not modules:
            return
        trained = [parameter for module in modules for parameter in module.parameters()]
        owners = optimizers.of(trained)
        if len(modules) == 1 and self._covers(trained, owners):
            self._start(modules[0], owners, modules)
            return
        known = set(map(id, trained))
        loose = [p for owner in owners for p in parameters_of(owner) if id(p) not in known and isinstance(p, nn.Parameter)]
        self._together = Together(modules, loose)
        self._start(self._together, owners, modules)

    def _start(self, model: nn.Module, owners: list[Optimizer], modules: list[nn.Module]) -> None:
        try:
            self._guard = StepGuard(model, owners, **self._options)
        except PatternError as error:
            self._failed = True
            print(f"opd guard: {error}", file=sys.stderr, flush=True)
            events.tell("refused", text=str(error))
            raise SystemExit(2) from None
        except (GuardError, CaptureError) as error:
            self._failed = True
            log.error("no guard, the run goes on: %s", error)
            events.tell("failed", text=str(error))
            return
        self._optimizers = list(owners)
        self._guarded.update(modules)
        events.tell("begin", model=" and ".join(type(module).__name__ for module in modules))


def start(asked: dict) -> None:
    """What the launcher's environment asks for. Raises GuardError."""
    from opd.device_config import read
    options = dict(asked["options"])
    if options.get("config") is not None:
        options["config"] = read(options["config"])
    AutoGuard(options, asked["model_class"])
