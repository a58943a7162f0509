"""Results of all-reduce: the gradients that DistributedDataParallel has averaged, and explicit torch.distributed.all_reduce.

DistributedDataParallel reduces in C++, so nothing can be wrapped; its result stands in `.grad` when the backward pass ends.
A callback of the autograd engine, queued behind DistributedDataParallel's own, reads it there, before anyone unscales or
clips. Passes under no_sync() reduce nothing and are not recorded. Probes: `PARAMETER:allreduce`, and `all_reduce`,
`all_reduce[1]`, ... for explicit calls in their order within the step.
"""
from __future__ import annotations

import functools
import gc

import torch
import torch.distributed as dist
from torch import Tensor, nn

from opd.capture.hooks import tensors_of
from opd.capture.patch import Patch
from opd.capture.probes import Selection


def find_wrapper(model: nn.Module) -> nn.Module | None:
    """The DistributedDataParallel of a model: itself, or the one somebody made around it."""
    wrapper = nn.parallel.DistributedDataParallel
    if isinstance(model, wrapper):
        return model
    if not (dist.is_available() and dist.is_initialized()):
        return None
    # By type: isinstance asks a weak proxy for its class, and that of a proxy whose object is gone raises.
    return next((item for item in gc.get_objects() if issubclass(type(item), wrapper) and item.module is model), None)


class Collectives:
    """session: as of opd.capture.hooks.ModelHooks."""

    def __init__(self, session, selection: Selection):
        self._session, self._selection = session, selection
        self._calls = 0
        self._handles = []
        self._patch = None
        if selection.wants("allreduce", "all_reduce") and dist.is_available():
            self._patch = Patch(dist, "all_reduce", self._wrap)

    def add_model(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        wrapper = find_wrapper(model)
        if wrapper is not None and self._selection.has("allreduce"):
            chosen = {name: parameter for name, parameter in parameters.items()
                      if parameter.requires_grad and self._selection.wants("allreduce", name)}
            hook = functools.partial(self._on_output, wrapper, chosen)
            self._handles.append(wrapper.register_forward_hook(self._session.guard(hook)))

    def next_step(self) -> None:
        self._calls = 0

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._patch is not None:
            self._patch.remove()

    def _on_output(self, wrapper: nn.Module, parameters: dict[str, nn.Parameter], module, arguments, output) -> None:
        if not (self._session.listening and torch.is_grad_enabled()):
            return
        queued = []  # one callback a backward pass, whichever output it comes through first

        def on_gradient(gradient: Tensor) -> None:
            if not queued and wrapper.require_backward_grad_sync:
                queued.append(True)
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: engine.queue_callback(lambda: self._session.guarded(self._read, parameters)))

        for _, tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(self._session.guard(on_gradient))

    def _read(self, parameters: dict[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                self._session.record(name, "collective", parameter.grad, ":allreduce")

    def _wrap(self, original):
        @functools.wraps(original)
        def all_reduce(tensor, *arguments, **options):
            work = original(tensor, *arguments, **options)
            if not self._session.listening:
                return work
            name = f"all_reduce[{self._calls}]" if self._calls else "all_reduce"
            self._calls += 1
            if work is None:
                self._session.guarded(self._session.record, name, "collective", tensor)
                return None
            return _Work(work, functools.partial(self._session.guarded, self._session.record, name, "collective", tensor))
        return all_reduce


class _Work:
    """A handle of an asynchronous all-reduce that records its result once, after wait()."""

    def __init__(self, work, record):
        self._work, self._record = work, record

    def wait(self, *arguments):
        result = self._work.wait(*arguments)
        if self._record is not None:
            self._record()
            self._record = None
        return result

    def __getattr__(self, name):
        return getattr(self._work, name)
