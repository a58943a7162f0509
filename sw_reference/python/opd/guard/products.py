"""SAFE matrix products, linear layers and convolutions: divided operands, products and sums in binary64.

The sums are not compensated: of operands in FP16, BF16 or FP8 a product has 22 bits at most, so that binary64 sums it without a
rounding unless the terms of one sum spread over more than 2^30; of FP32 the error is at most depth * 2^-53 of the sum of the
magnitudes, before the result is rounded to binary32 or BF16.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opd.guard.arithmetic import compress, expand, output, round32, wide


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Tensor:
    """a @ b * factor, with the shapes of torch.matmul."""
    return output(round32(product(a, b, torch.matmul) * factor), dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return _with_bias(product(x, weight, torch.nn.functional.linear), bias, dtype)


def addmm(bias: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta * bias + alpha * (a @ b), also of batches."""
    return output(round32(round32(product(a, b, torch.matmul) * alpha) + wide(bias) * beta), dtype)


def convolution(function: Callable, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, **options) -> Tensor:
    """function: one of torch.nn.functional's convolutions, transposed ones too. options: its further arguments."""
    made = product(x, weight, lambda x, weight: function(x, weight, None, **options))
    return _with_bias(made, None if bias is None else bias.view(-1, *(1,) * (weight.dim() - 2)), dtype)


def product(a: Tensor, b: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """function(a, b), which is linear in both, of divided operands; RN32 of it, expanded, in binary64."""
    (a, exponent_a), (b, exponent_b) = compress(a), compress(b)
    return expand(round32(function(a, b)), exponent_a + exponent_b)


def _with_bias(made: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return output(made if bias is None else round32(made + wide(bias)), dtype)
