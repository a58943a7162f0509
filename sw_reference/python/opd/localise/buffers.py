"""Copies of a model's buffers from before a step."""
from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

SMALL = 1 << 16  # elements up to which a buffer is copied in every step: batch norms write theirs without a new version of the tensor


class Buffers:
    """Of one model, which is not kept alive. Larger buffers are copied again only when their version says that they have changed."""

    def __init__(self, model: nn.Module):
        self._model = weakref.ref(model)
        self._held: dict[str, tuple[Tensor, int, Tensor]] = {}  # of each: tensor, its version when it was copied, copy

    def keep(self) -> dict[str, Tensor]:
        """The copies, as the buffers are now."""
        for name, buffer in self._named():
            if not self._is_unchanged(name, buffer):
                self._held[name] = (buffer, buffer._version, buffer.detach().clone())
        return self.copies

    def _named(self) -> Iterable[tuple[str, Tensor]]:
        model = self._model()
        return () if model is None else model.named_buffers()

    @property
    def copies(self) -> dict[str, Tensor]:
        """As the buffers were when keep() was called last."""
        return {name: copy for name, (_, _, copy) in self._held.items()}

    def put(self, copies: dict[str, Tensor]) -> None:
        """The buffers as keep() has given them."""
        with torch.no_grad():
            for name, buffer in self._named():
                held = self._held.get(name)
                if name in copies and not (self._is_unchanged(name, buffer) and held[2] is copies[name]):
                    buffer.copy_(copies[name])

    def _is_unchanged(self, name: str, buffer: Tensor) -> bool:
        held = self._held.get(name)
        return held is not None and held[0] is buffer and held[1] == buffer._version and buffer.numel() > SMALL
