"""What a StepGuard is told of a loop that is not ours: PyTorch's own entry points, which pass everything through while nothing is wrong.

  backward                    the loss; an exception in other modes
  GradScaler.scale            the loss without its scale
  GradScaler.step, .update    a step that is stopped reaches neither the optimizer nor the scale
  Optimizer.step              of the guarded optimizers, each by itself; with a closure the closure runs first
  clip_grad_norm_             the norm under the hint in force
"""
from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import LBFGS, Optimizer

from opd.capture.amp import BackwardCalls
from opd.capture.errors import CaptureError
from opd.capture.optimizer import unwrap
from opd.capture.patch import Patch
from opd.guard.steps import StepGuard


class Interception:
    """guard_of: the guard of an optimizer, or of whatever runs now when it is given None; None where nothing is guarded. closures: whether
    the closure of an optimizer's step may run again; before_backward: told that backward is called."""

    def __init__(self, guard_of: Callable[[Optimizer | None], StepGuard | None], closures: bool = True,
                 before_backward: Callable[[], None] = lambda: None):
        self._guard_of, self._closures, self._told = guard_of, closures, before_backward
        self._is_scaled = False        # the loss of the backward that comes next was seen
        self._is_scaling = False       # within GradScaler.step, which has asked
        self._stopped = weakref.WeakSet()  # scalers whose step was stopped
        self._wrapped: list[tuple[weakref.ref[Optimizer], Callable, list]] = []
        scaler = torch.amp.GradScaler
        self._patches = [Patch(scaler, "scale", self._wrap_scale), Patch(scaler, "step", self._wrap_scaler_step),
                         Patch(scaler, "update", self._wrap_update),
                         *(Patch(owner, "clip_grad_norm_", self._wrap_clip) for owner in (torch.nn.utils, clip_grad))]
        self._backward = BackwardCalls(self._before_backward, lambda: None, self._backward_failed)

    def wrap(self, optimizer: Optimizer) -> None:
        """From now on the steps of this optimizer are asked for."""
        original = optimizer.step

        @functools.wraps(original)
        def step(own: Optimizer, *arguments, **options):
            return self._on_step(own, original, arguments, options)

        def note(own: Optimizer, *_) -> None:
            guard = self._guard_of(own)
            if guard is not None:
                guard.note_step()

        optimizer.step = ours = types.MethodType(step, optimizer)
        self._wrapped.append((weakref.ref(optimizer), ours, [optimizer.register_step_post_hook(note)]))

    def remove(self) -> None:
        for patch in (*self._patches, self._backward):
            patch.remove()
        for reference, ours, handles in self._wrapped:
            for handle in handles:
                handle.remove()
            optimizer = reference()
            if optimizer is not None and vars(optimizer).get("step") is ours:  # else somebody has wrapped it since: it passes through
                del optimizer.step
        self._wrapped.clear()
        self._guard_of = lambda optimizer: None

    # --- backward

    def _before_backward(self, scalars: list[Tensor]) -> None:
        self._told()
        guard = self._guard_of(None)
        if guard is not None and not self._is_scaled:
            for loss in scalars:
                guard.see_loss(loss)
        self._is_scaled = False

    def _backward_failed(self, error: Exception) -> bool:
        guard = self._guard_of(None)
        return guard is not None and guard.see_backward_error(error)

    # --- the scaler

    def _wrap_scale(self, original):
        @functools.wraps(original)
        def scale(scaler, outputs):
            guard = self._guard_of(None)
            if guard is not None and scaler.is_enabled() and isinstance(outputs, Tensor) and outputs.numel() == 1:
                guard.adopt(scaler)
                guard.see_loss(outputs)
                self._is_scaled = True
            return original(scaler, outputs)
        return scale

    def _wrap_scaler_step(self, original):
        @functools.wraps(original)
        def step(scaler, optimizer, *arguments, **options):
            plain = _plain(optimizer)
            guard = None if plain is None else self._guard_of(plain)
            if guard is None or not scaler.is_enabled():
                return original(scaler, optimizer, *arguments, **options)
            guard.adopt(scaler)
            if not guard.permits(plain):
                self._stopped.add(scaler)
                return None
            self._is_scaling = True
            try:
                with guard.under_hints():
                    return original(scaler, optimizer, *arguments, **options)
            finally:
                self._is_scaling = False
        return step

    def _wrap_update(self, original):
        @functools.wraps(original)
        def update(scaler, new_scale=None):
            if new_scale is None and scaler in self._stopped:
                new_scale = scaler.get_scale()  # forgets what was unscaled, and keeps the scale
                self._stopped.discard(scaler)
            return original(scaler, new_scale)
        return update

    # --- the optimizer

    def _on_step(self, optimizer: Optimizer, original: Callable, arguments: tuple, options: dict):
        guard = self._guard_of(optimizer)
        closure = arguments[0] if arguments else options.get("closure")
        is_first = guard is None and closure is not None and self._guard_of(None) is None  # its model is not known yet
        if guard is None and not is_first or self._is_scaling or torch.compiler.is_compiling():
            return original(*arguments, **options)
        if closure is None:
            if not guard.permits(optimizer):
                return None
            with guard.under_hints():
                return original(*arguments, **options)
        if isinstance(optimizer, LBFGS):
            if guard is not None:
                guard.give_up("LBFGS calls its closure as often as it likes, so that its steps cannot be stopped")
            return original(*arguments, **options)
        with torch.enable_grad():
            again = guard is not None and self._closures and not guard.has_losses  # else it is but the last part of the step
            result = guard.run_part(closure, True) if again else closure()
        guard = self._guard_of(optimizer)
        if guard is not None and not guard.permits(optimizer):
            return result
        results = [result]

        def known():
            return results.pop() if results else closure()

        with contextlib.nullcontext() if guard is None else guard.under_hints():
            return original(known, *arguments[1:], **{key: value for key, value in options.items() if key != "closure"})

    # --- clipping

    def _wrap_clip(self, original):
        @functools.wraps(original)
        def clip_grad_norm_(parameters, max_norm, *arguments, **options):
            guard = self._guard_of(None)
            factor = 1.0 if guard is None else guard.clip_factor
            return original(parameters, max_norm if factor == 1.0 else max_norm * factor, *arguments, **options)
        return clip_grad_norm_


def _plain(optimizer) -> Optimizer | None:
    try:
        return unwrap(optimizer)
    except CaptureError:
        return None
