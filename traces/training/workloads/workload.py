"""What a kind of run is made of: a model, its data and its loss. Each module of this folder makes one kind."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn

Batch = tuple[Tensor, ...]


class Workload(ABC):
    """One model with the data that it trains on. Built after torch.manual_seed: weights depend on the seed alone."""

    model: nn.Module
    probes: tuple[str, ...]   # expressions of opd.capture
    text: str                 # of the model, for the trace
    source: dict[str, str]    # of the data (and of pretrained weights): name, version, hash

    @abstractmethod
    def batch(self, generator: Generator) -> Batch:
        """The next batch."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Scalar loss of a forward pass; called under autocast."""


def every_output_and_its_gradient(model: nn.Module) -> tuple[str, ...]:
    """Probes: outputs of all leaf modules, and the gradients of the same outputs. Gradients of parameters are left out:
    autocast widens them to FP32, which hides the type they were computed in."""
    return ("output", *(f"gradient:{name}" for name, module in model.named_modules() if name and not any(module.children())))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_positive(settings, *names: str) -> None:
    """Raises ValueError that names the first of these settings that is not above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name}: {getattr(settings, name)} is not positive; give a larger value")


def check_heads(settings) -> None:
    """Raises ValueError when `width` cannot be cut into `heads` equal parts."""
    if settings.width % settings.heads:
        raise ValueError(f"heads: width {settings.width} is not a multiple of {settings.heads}; change one of them")


def half_of(precision: str) -> torch.dtype:
    """Type of what is stored in half precision, FP32 for a run that has none. Raises ValueError."""
    types = {"FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32}
    if precision not in types:
        raise ValueError(f"precision: {precision!r} is unknown; use FP16 or BF16")
    return types[precision]
