"""SAFE softmax: the row's maximum is subtracted, the exponentials are summed in binary64; a row with everything hidden is zero."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from opd.guard.arithmetic import exp, output, round32, row_sum, wide


def softmax(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Hidden elements are -Inf. dtype: of the output."""
    return output(probabilities(x.movedim(dim, -1)), dtype).movedim(-1, dim)


def log_softmax(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """No kernel of the vector unit: PyTorch's in binary64."""
    return output(torch.log_softmax(wide(x), dim), dtype)


def probabilities(x: Tensor) -> Tensor:
    """Over the last axis, in binary64, not yet cast."""
    y = wide(x)
    largest = y.detach().amax(-1, keepdim=True)
    hidden = largest == -math.inf
    e = exp(round32(y - torch.where(hidden, 0, largest)))  # a hidden row: exp(-Inf), which is +0
    r = torch.where(hidden, 0, round32(1 / row_sum(e + hidden)))
    return round32(e * r)
