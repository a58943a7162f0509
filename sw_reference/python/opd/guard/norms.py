"""SAFE layer norm and RMS norm of divided operands: no square overflows, and the result does not depend on the division. Batch,
group and instance norms, which the vector unit has no kernel for, are PyTorch's own in binary64."""
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from opd.guard.arithmetic import LARGEST, compress, output, power_of_two, round32, row_sum, wide


def layer_norm(x: Tensor, normalized_shape, weight: Tensor | None, bias: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    y, exponent = compress(x.flatten(-len(normalized_shape)))
    count = y.shape[-1]
    mean = round32(row_sum(y) / count)
    d = round32(y - mean)
    return _finish(d, round32(_factor(row_sum(d * d) / count, epsilon, exponent)), x, weight, bias, dtype)


def rms_norm(x: Tensor, normalized_shape, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    y, exponent = compress(x.flatten(-len(normalized_shape)))
    return _finish(y, round32(_factor(row_sum(y * y) / y.shape[-1], epsilon, exponent)), x, weight, None, dtype)


def _factor(mean_square: Tensor, epsilon: float, exponent: Tensor) -> Tensor:
    """1 / sqrt(mean square + epsilon * 2^-2s), the largest binary32 number at most."""
    epsilon = torch.tensor(epsilon, dtype=torch.float32).double().to(exponent.device)  # as the attribute is
    return (1 / torch.sqrt(mean_square + epsilon * power_of_two(-2 * exponent))).clamp(max=LARGEST)


def _finish(d: Tensor, factor: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    y = round32(d * factor)
    if weight is not None and bias is not None:
        y = round32(y * wide(weight).flatten() + wide(bias).flatten())
    elif weight is not None:
        y = round32(y * wide(weight).flatten())
    elif bias is not None:
        y = round32(y + wide(bias).flatten())
    return output(y, dtype).view(x.shape)


def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    return output(functional.group_norm(wide(x), groups, _wide(weight), _wide(bias), epsilon), dtype)


def batch_norm(x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None, training: bool,
               momentum: float, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Running statistics are updated as in PyTorch, where the batch's are finite."""
    running = [None if value is None else value.detach().double() for value in (mean, variance)]
    result = functional.batch_norm(wide(x), *running, _wide(weight), _wide(bias), training, momentum, epsilon)
    if training:
        with torch.no_grad():
            for value, updated in zip((mean, variance), running):
                if value is not None:
                    value.copy_(torch.where(updated.abs() < math.inf, updated, value.double()))
    return output(result, dtype)


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else wide(x)
