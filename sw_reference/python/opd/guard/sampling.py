"""Which token follows: the most likely one, or one that is drawn."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from opd.guard.errors import GuardError


class Choice:
    """do_sample: draw, else take the largest logit; temperature divides the logits; top_k: only so many of the largest, 0 for all;
    generator: of the draws, else the default one. Raises GuardError."""

    def __init__(self, do_sample: bool, temperature: float, top_k: int, generator: torch.Generator | None):
        if not (isinstance(temperature, (int, float)) and 0 < temperature < math.inf):
            raise GuardError(f"temperature: {temperature!r} is not above 0; give such a number, or do_sample=False for the most likely token")
        if type(top_k) is not int or top_k < 0:
            raise GuardError(f"top_k: {top_k!r} is no whole number from 0 on; correct it")
        self._draws, self._temperature, self._top_k, self._generator = do_sample, temperature, top_k, generator

    def of(self, logits: Tensor) -> Tensor:
        """logits [B, vocabulary] -> tokens int64 [B]."""
        if not self._draws:
            return logits.argmax(dim=-1)
        logits = logits.float() / self._temperature
        if self._top_k:
            smallest = logits.topk(min(self._top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < smallest, -math.inf)
        return torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=self._generator)[:, 0]
