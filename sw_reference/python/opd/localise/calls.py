"""The calls of a model in the step that is open, so that a step whose loss function nobody named can be replayed: its forward passes, and its
loss where the model returns one itself."""
from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opd.localise.buffers import Buffers
from opd.localise.random_state import RandomStates, random_states

MOST_CALLS = 64  # of a step: micro-batches
NO_LOSS_TEXT = "The loss function is not in this bundle, and the model does not return the loss: only its forward pass is replayed."
LOSS, ATTRIBUTE, NO_LOSS = "the model returns the loss", "the model returns an object with the loss", "the loss is not known"


@dataclass(frozen=True)
class MeanLoss:
    """Step of a bundle: the mean of a loss over the micro-batches of a step."""
    loss_of: object

    def __call__(self, model: nn.Module, batches: list) -> Tensor:
        return torch.stack([_scalar(self.loss_of(model, batch)) for batch in batches]).mean()


@dataclass(frozen=True)
class ReplayedCalls:
    """Step of a bundle: the recorded calls of the model. how: one of the constants above; with NO_LOSS the loss is a 0 that depends on nothing,
    so that backward has no operators."""
    how: str

    def __call__(self, model: nn.Module, calls: list) -> Tensor:
        outputs = [model(*arguments, **keywords) for arguments, keywords in calls]
        if self.how == NO_LOSS:
            return torch.zeros((), requires_grad=True)
        return torch.stack([_scalar(output) for output in outputs]).mean()


def _scalar(output) -> Tensor:
    if isinstance(output, dict):
        output = output.get("loss", output)
    return getattr(output, "loss", output).reshape(()).float()


def _how(output) -> str:
    """How the loss is found in what the model returns."""
    if isinstance(output, Tensor):
        return LOSS if output.dim() == 0 and output.is_floating_point() else NO_LOSS  # [1, 1] is an output of one element
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    return ATTRIBUTE if isinstance(loss, Tensor) and loss.numel() == 1 else NO_LOSS


class Calls:
    """Of one model, which is not kept alive. Keeps references to the arguments of its calls with gradients in the open step, the buffers, if
    keep_random the random states, from before the first one, and autocast as it was. What the script changes in place afterwards is changed here
    too."""

    def __init__(self, model: nn.Module, keep_random: bool = True):
        self._keeps_random = keep_random
        self._model = weakref.ref(model)
        self.calls: list = []
        self.how = NO_LOSS
        self.autocast: dict | None = None
        self.random: RandomStates | None = None  # from before the first call
        self.too_many = False
        self._buffers = Buffers(model)
        self._handles = [model.register_forward_pre_hook(self._on_call, with_kwargs=True),
                         model.register_forward_hook(self._on_return, with_kwargs=True)]

    @property
    def model(self) -> nn.Module | None:
        return self._model()

    def _on_call(self, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if len(self.calls) == MOST_CALLS:
            self.too_many = True
            return
        if not self.calls:
            self.random = random_states() if self._keeps_random else None
            self._buffers.keep()
            self.autocast = _autocast(module)
        self.calls.append((arguments, dict(keywords)))

    def _on_return(self, module: nn.Module, arguments: tuple, keywords: dict, output) -> None:
        if self.calls:
            self.how = _how(output)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """As they were before the first call of the step."""
        return self._buffers.copies

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """The buffers as they were before the first call; afterwards as they are now."""
        now = Buffers(self._model())
        kept = now.keep()
        if self.calls:
            self._buffers.put(self.buffers)
        try:
            yield
        finally:
            now.put(kept)

    def next_step(self) -> None:
        self.calls, self.random, self.too_many = [], None, False

    def remove(self) -> None:
        self.next_step()
        for handle in self._handles:
            handle.remove()


def _autocast(model: nn.Module) -> dict | None:
    """As it is now on the device of the model."""
    parameter = next(model.parameters(), None)
    device = parameter.device.type if parameter is not None else "cpu"
    if not torch.is_autocast_enabled(device):
        return None
    return {"device": device, "dtype": torch.get_autocast_dtype(device)}
