"""Capture of a script that knows nothing of it: finds the models and the end of each step.

A model is the outermost module with trainable parameters that is called in training, or that an optimizer trains. Modules that
one optimizer trains are one run and have one trace, the further ones under their class name and a number; a model with an
optimizer of its own (the other half of a GAN, the next fold) is a run of its own, with the trace STEM.model2.SUFFIX.

A step of a run ends when an optimizer that holds its parameters, or copies of them, has made its step; when a GradScaler has
skipped it; or when the gradients of a backward pass are gone, unused by any optimizer, before the next one: the script has skipped
it, or updates the parameters by itself. The loss is what backward was called on. PyTorch's own global hooks are used; nothing of
the script or of its classes is replaced but GradScaler.scale, GradScaler.step, Optimizer.__init__, torch.autograd.backward,
clip_grad_norm_, and what a script looks at its loss with (item, float, isnan, isinf, isfinite), which pass everything through.
"""
from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from multiprocessing import util as multiprocessing_util
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.jit import _builtins
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from opd.capture.errors import BusyError, CaptureError, PatternError
from opd.capture.journal import read_records
from opd.capture.optimizer import holds_masters
from opd.capture.patch import Patch
from opd.capture.session import Capture
from opd.unedited import events, optimizers

log = logging.getLogger("opd.capture")

MAX_PASSES = 256  # forward passes of a model without any backward: it is not trained
MAX_RUNS = 1000   # traces of a process
TESTS = ("isnan", "isinf", "isfinite")


class Run:
    """One capture of an AutoCapture, with what trains its modules."""

    def __init__(self, capture: Capture, module: nn.Module):
        self.capture = capture
        self.name = type(module).__name__
        self.optimizer: weakref.ref[Optimizer] | None = None  # the one whose steps are those of the run
        self.masters: weakref.ref[Optimizer] | None = None    # one that holds copies of the parameters
        self._modules = [weakref.ref(module)]
        self._has_passed = False   # the model was called since the last backward
        self._passes = 0           # in all, while there was no backward
        self._due = False          # the optimizer has stepped on copies, which the script has yet to copy back
        self._has_gradients = False  # a backward that no optimizer has used
        self._sample: weakref.ref | None = None  # a parameter with its gradient
        self._last_sample = lambda: None
        self.is_stepping = False  # within the optimizer's step, which may run backward by itself
        capture.watcher = self
        capture.let_go()
        weakref.finalize(module, capture.close).atexit = False  # a fold's trace is written when its model is gone

    def add(self, module: nn.Module) -> None:
        self.capture.add_model(f"{type(module).__name__}{len(self._modules)}", module)
        self.capture.let_go()
        self._modules.append(weakref.ref(module))

    def has(self, module: nn.Module) -> bool:
        return any(reference() is module for reference in self._modules)

    def parameters(self) -> Iterator[Tensor]:
        return (parameter for reference in self._modules if (module := reference()) is not None
                for parameter in module.parameters())

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer's steps are known to be the steps of the run."""
        return any(known is not None and known() is optimizer for known in (self.optimizer, self.masters))

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether they are now: it is the first one that is seen with a parameter of the models."""
        if self.optimizer is None and optimizers.share(optimizer, self.parameters()):
            self.optimizer, self.masters = weakref.ref(optimizer), None
            self.capture.add_optimizer(optimizer)
        return self.is_trained_by(optimizer)

    def takes_masters(self, optimizer: Optimizer) -> bool:
        """The same for an optimizer that holds copies of the parameters."""
        if self.masters is None and self.optimizer is None and self._has_gradients:
            processes = torch.distributed.get_world_size() if _distributed() else 1
            trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
            if holds_masters(optimizer, trained, processes):
                self.masters = weakref.ref(optimizer)
                self.capture.add_masters(optimizer)
        return self.is_trained_by(optimizer)

    def begin_pass(self) -> None:
        """A module of the run is called."""
        self.finish_due()
        self._has_passed = True
        if self.capture.backwards == 0 and not self.capture.inference:
            self._passes += 1
            if self._passes > MAX_PASSES:
                self.capture.stop(f"{self.name} was called {self._passes} times without a backward pass: it is not trained; "
                                  "--inference records every call as a step")

    def finish(self) -> None:
        """The optimizer has made its step."""
        self._used()
        self._has_passed, self._due = False, False
        self.capture.step()

    def skip(self) -> None:
        """The optimizer would have made its step."""
        self._used()
        self._has_passed = False
        self.capture.step_without_optimizer()

    def expect(self) -> None:
        """The optimizer has made its step on copies: the step is over when the script goes on to the next."""
        self._used()
        self._due = True

    def finish_due(self) -> None:
        if self._due:
            self.finish()

    def leave_to(self, other: Run) -> None:
        """Another run has made a step: gradients and losses since were its own."""
        self._used()
        self.capture.leave_to_other()

    # --- what the capture calls

    def before_backward(self) -> None:
        self.finish_due()
        sample = None if self._sample is None else self._sample()
        if sample is None or not self._has_passed or self.is_stepping or not _is_cleared(sample) or self._perturbs():
            return
        self._used()
        self.capture.step_before_pass(len(optimizers.made) > 0)  # without any the script updates its parameters by itself

    def before_close(self) -> None:
        self.finish_due()

    def closed(self, outcome: dict) -> None:
        events.tell("end", **outcome)

    def after_backward(self) -> None:
        self._has_passed, self._has_gradients = False, True
        last = self._last_sample()
        if last is None or last.grad is None:
            last = next((p for p in self.parameters() if p.requires_grad and p.grad is not None), None)
        if last is not None:
            self._sample = self._last_sample = weakref.ref(last)

    def _used(self) -> None:
        self._sample, self._has_gradients = None, False

    def _perturbs(self) -> bool:
        """Sharpness-aware minimization: two backward passes make one step."""
        optimizer = None if self.optimizer is None else self.optimizer()
        return hasattr(optimizer, "first_step") or any(hasattr(other, "first_step") for other in optimizers.of(self.parameters()))


def _is_cleared(parameter: Tensor) -> bool:
    """Whether its gradient is gone. One that was set to zero is found on the CPU only: elsewhere looking would wait."""
    gradient = parameter.grad
    if gradient is None:
        return True
    return gradient.device.type == "cpu" and gradient.layout == torch.strided and not gradient.any()


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class AutoCapture:
    """Waits for models, then captures them until the process ends. options: of Capture. model_class: name of the class to take
    as the model instead of the first one called. inference: every call of the model is a step, whatever it is called for."""

    def __init__(self, path: str | os.PathLike, options: dict, model_class: str | None = None, inference: bool = False):
        self._path, self._options, self._class, self._inference = Path(path), options, model_class, inference
        self._begin()
        self._handles = [register_module_forward_pre_hook(self._on_call),
                         register_module_forward_hook(self._on_return, always_call=True),
                         register_optimizer_step_pre_hook(self._before_optimizer_step),
                         register_optimizer_step_post_hook(self._on_optimizer_step)]
        self._patches = [Patch(torch.amp.GradScaler, "step", self._wrap_scaler_step), optimizers.registration(),
                         *(Patch(Tensor, name, self._wrap_look) for name in ("item", "__float__", *TESTS))]
        if hasattr(_builtins, "_register_builtin"):
            for name in TESTS:
                self._patches.append(Patch(torch, name, self._wrap_look))
                _builtins._register_builtin(getattr(torch, name), f"aten::{name}")  # TorchScript knows functions by identity
        os.register_at_fork(after_in_child=self._begin)  # a child that trains is captured by itself
        atexit.register(self.remove)
        self._at_end_of_worker()
        multiprocessing_util.register_after_fork(self, AutoCapture._at_end_of_worker)

    def _at_end_of_worker(self) -> None:
        """Processes of multiprocessing end without atexit."""
        multiprocessing_util.Finalize(None, self.remove, exitpriority=0)

    def _begin(self) -> None:
        self._depth = 0
        self._runs: list[Run] = []
        self._known = WeakIdKeyDictionary(ref_type=WeakIdRef)        # modules inside captured models -> their run
        self._turned_down = WeakIdKeyDictionary(ref_type=WeakIdRef)  # other modules -> what they were turned down for
        self._removed = False
        self._made = 0               # traces begun
        self._failed = False
        self._refused: str | None = None
        self._stepped = self._is_stepping = False
        self._called: Counter[str] = Counter()  # classes of outermost modules that were called and not captured

    def remove(self) -> None:
        """Stops watching and closes the captures. A second call does nothing."""
        if self._removed:
            return
        self._removed = True
        atexit.unregister(self.remove)
        for handle in self._handles:
            handle.remove()
        for patch in self._patches:
            patch.remove()
        for run in self._runs:
            run.capture.close()
        if not self._made and not self._failed and not self._refused:
            events.tell("idle", text=self._why_idle())

    @property
    def captures(self) -> list[Capture]:
        return [run.capture for run in self._runs]

    # --- what hooks call

    def _on_call(self, module: nn.Module, arguments) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth > 1 and self._class is None:
            return
        if self._refused is not None:
            self._end_process()  # the script has caught the first one
        run = self._known.get(module)
        if run is not None:
            if self._is_whole(run, module) and (self._inference or torch.is_grad_enabled()):
                run.begin_pass()
            return
        if type(module).__name__ == self._class if self._class else self._depth == 1:
            self._consider(module)
        elif self._depth == 1:
            self._called[type(module).__name__] += 1

    def _on_return(self, module: nn.Module, arguments, output) -> None:
        if torch.compiler.is_compiling():
            return
        if self._inference:
            run = self._known.get(module)
            if run is not None and self._is_whole(run, module):
                run.capture.step()
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and isinstance(output, Tensor) and output.requires_grad and output.numel() == 1:
            self._see_loss(output.detach())

    def _is_whole(self, run: Run, module: nn.Module) -> bool:
        """Whether a call of this module is one of the model."""
        return (self._depth == 1 or self._class is not None) and run.has(module)

    def _before_optimizer_step(self, optimizer: Optimizer, arguments, options) -> None:
        self._set_stepping(True)

    def _on_optimizer_step(self, optimizer: Optimizer, arguments, options) -> None:
        self._stepped = True
        self._set_stepping(False)
        self._end_step(optimizer, Run.finish)

    def _set_stepping(self, is_stepping: bool) -> None:
        self._is_stepping = is_stepping
        for run in self._runs:
            run.is_stepping = is_stepping

    def _end_step(self, optimizer: Optimizer, how) -> None:
        """how: what it means for a run whose parameters the optimizer holds."""
        run = next((run for run in self._runs if run.is_trained_by(optimizer)), None) \
            or next((run for run in self._runs if run.owns(optimizer)), None) \
            or next((run for run in self._runs if run.takes_masters(optimizer)), None)
        if run is None:
            return
        if how is Run.finish and run.masters is not None:
            run.expect()
        else:
            how(run)
        for other in self._runs:
            if other is not run:
                other.leave_to(run)

    def _see_loss(self, loss: Tensor | float) -> None:
        for run in self._runs:
            run.capture.see_loss(loss)

    # --- models

    def _consider(self, module: nn.Module) -> None:
        """Captures a module that nobody knows, if it is trained."""
        if self._failed:
            return
        state = (len(optimizers.made), module.training, torch.is_grad_enabled())
        if self._turned_down.get(module) == state:
            self._called[type(module).__name__] += 1
            return
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        owners = optimizers.of(trained)
        wanted = self._inference or (trained and torch.is_grad_enabled() and (module.training or owners))
        if not wanted or not any(True for _ in module.parameters()):
            self._called[type(module).__name__] += 1
            self._turned_down[module] = state
            return
        run = self._run_of(module, owners)
        try:
            if run is not None:
                run.add(module)
            else:
                run = self._start(module)
                if run is None:
                    return
        except PatternError as error:
            self._refused = str(error)
            self._end_process()
        except CaptureError as error:
            self._failed = True
            log.error("no capture, the run goes on: %s", error)
            events.tell("failed", text=str(error))
            return
        for part in module.modules():
            self._known[part] = run
        run.begin_pass()
        run.capture.begin_pass(module.training, torch.is_grad_enabled())  # its own hook on this call comes too late

    def _run_of(self, module: nn.Module, owners: list[Optimizer]) -> Run | None:
        """The run that a module belongs to; None for one of its own."""
        living = [run for run in self._runs if run.capture.is_open]
        for run in living:
            if any(optimizers.share(owner, run.parameters()) for owner in owners):
                return run
        if owners or self._inference:
            return None
        # No optimizer holds it: a part of what runs already, unless it is the next one of its kind.
        alike = [run for run in living if run.name == type(module).__name__ and run.optimizer is None]
        return living[-1] if living and not alike else None

    def _start(self, module: nn.Module) -> Run | None:
        if self._made == MAX_RUNS:
            self._failed = True
            events.tell("failed", text=f"more than {MAX_RUNS} models: the first {MAX_RUNS} have a trace each")
            return None
        options = self._options
        if self._made:  # patterns need not fit every model
            options = {**options, "_strict": False}
        while True:
            path = self._path if not self._made else self._path.with_name(
                f"{self._path.stem}.model{self._made + 1}{self._path.suffix}")
            try:
                capture = Capture(module, path, auto_loss=True, inference=self._inference, **options)
                break
            except BusyError as error:
                if not _is_of_this_launch(error.journal):
                    raise
                self._made += 1  # another process of the same command has that name
        self._made += 1
        self._runs = [run for run in self._runs if run.capture.is_open]
        for run in self._runs:
            run.capture.is_alone = capture.is_alone = False
        run = Run(capture, module)
        run.is_stepping = self._is_stepping
        self._runs.append(run)
        if capture.saved is not None:
            events.tell("saved", path=str(capture.saved))
        events.tell("begin", path=str(capture.path), journal=str(capture.journal))
        log.info("%s: captures %s", capture.path, type(module).__name__)
        return run

    def _end_process(self) -> None:
        """The command is not run without its capture when the capture was asked for in words that fit nothing."""
        print(f"opd capture: {self._refused}", file=sys.stderr, flush=True)
        events.tell("refused", text=self._refused)
        raise SystemExit(2)

    def _why_idle(self) -> str:
        called = ", ".join(f"{name} ({count} calls)" for name, count in self._called.most_common(5))
        if not called:
            return "torch was imported, but no module of it was called"
        if self._class:
            return f"no module of class {self._class} was called in training; called were {called}: choose one with --model"
        return (f"nothing was trained: {called} ran without gradients, or in evaluation mode without an optimizer, as in inference; "
                "--inference records every call as a step; in the code: with opd.capture(model, \"run.safetensors\", "
                "inference=True) as c, and c.step() after each call")

    # --- patches

    def _wrap_scaler_step(self, original):
        @functools.wraps(original)
        def step(scaler, optimizer, *arguments, **options):
            self._stepped = False
            result = original(scaler, optimizer, *arguments, **options)
            if not self._stepped and isinstance(optimizer, Optimizer):
                self._end_step(optimizer, Run.skip)
            return result
        return step

    def _wrap_look(self, original):
        """A script that looks at its loss, and stops, never comes to the backward pass."""
        @functools.wraps(original)
        def look(*arguments, **options):
            if self._runs and not torch.compiler.is_compiling():
                tensor = arguments[0] if arguments else None
                if isinstance(tensor, Tensor) and tensor.requires_grad and tensor.numel() == 1:
                    self._see_loss(tensor.detach())
            return original(*arguments, **options)
        return look


def _is_of_this_launch(journal: Path) -> bool:
    """Whether another process of the same command writes the journal."""
    try:
        kind, payload = next(read_records(journal.read_bytes()))
        return kind == b"H" and json.loads(bytes(payload)).get("launch") == events.settings()["launch"]
    except (OSError, StopIteration, ValueError, KeyError):
        return False


def start(asked: dict) -> None:
    """What the launcher's environment asks for. Raises CaptureError."""
    AutoCapture(asked["path"], {**asked["options"], "_launch": asked["launch"]}, asked["model_class"], asked["inference"])
