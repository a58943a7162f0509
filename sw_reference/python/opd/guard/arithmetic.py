"""The arithmetic of SAFE on tensors: docs/numerics.md "Vector unit", in binary64 with every rounding of that page.

A tensor is binary64 from `compress` or `wide` to `output`. A rounding is a function that autograd passes straight through, so that
gradients are those of the unrounded formula in binary64, and become the input's type at the very end. What is computed is what the
page says, with two liberties, both below one unit in the last place of binary32: fma(a, b, c) is rounded to binary64 first, and a row
sum of N elements is exact to about 2^-105 N^2 of its largest one (`row_sum`), which Kahan's sum in a given order is not.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_EXP = tuple(map(lambda bits: torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32).item(),
                 (0x39500D01, 0x3AB60B61, 0x3C088889, 0x3D2AAAAB, 0x3E2AAAAB, 0x3F000000, 0x3F800000, 0x3F800000)))
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269502162933349609375, 0.693145751953125, 1.428606765330187045037746429443359375e-06
_EXP_LARGEST, _EXP_SMALLEST = 88.7228317260742187500, -103.972084045410156250
_GAUSS_T = 0.327591091394424438  # 0x3EA7BA05, and below the coefficients of formula 7.1.26
_GAUSS_Q = tuple(map(lambda bits: torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32).item(),
                     (0x3F87DC22, 0xBFBA00E3, 0x3FB5F0E3, 0xBE91A98E, 0x3E827906)))
_HALF_ROOT = 0.707106769084930419921875  # 0x3F3504F3
LARGEST = torch.finfo(torch.float32).max


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in binary64, exactly (torch.ldexp makes the power in binary32). exponent: whole, -1022..1023."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def output_type(own: torch.dtype) -> torch.dtype:
    """Output format of STABLE and SAFE for an operator of a format: BF16, FP32 stays FP32."""
    return own if own in (torch.float32, torch.float64) else torch.bfloat16


class _Straight(torch.autograd.Function):
    """round(x); the gradient passes, in binary64."""

    @staticmethod
    def forward(ctx, x: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        return rounded(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.double(), None


class _Scaled(torch.autograd.Function):
    """RN32(x * 2^exponent) of a binary64 x, in binary64."""

    @staticmethod
    def forward(ctx, x: Tensor, exponent: Tensor) -> Tensor:
        ctx.save_for_backward(exponent)
        return (x * power_of_two(exponent)).float().double()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient * power_of_two(ctx.saved_tensors[0]), None


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return _row_sum(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.expand(ctx.shape)


class _Defined(torch.autograd.Function):
    """formula(x) with the gradient of exact(x), both on binary64 tensors of one shape."""

    @staticmethod
    def forward(ctx, x: Tensor, formula: Callable[[Tensor], Tensor], exact: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.exact = exact
        return formula(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(ctx.exact(x), x, gradient.double())[0], None, None


def wide(x: Tensor) -> Tensor:
    return x.double()


def round32(x: Tensor) -> Tensor:
    """RN32 of a binary64 tensor, in binary64."""
    return _Straight.apply(x, lambda value: value.float().double())


def output(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The cast of a binary64 tensor to the output: RN32, then the format's own rounding."""
    if dtype == torch.float64:
        return x
    return _Straight.apply(x, lambda value: value.float().to(dtype))


def exponent_of(x: Tensor) -> Tensor:
    """floor(log2 M) of the largest finite magnitude M of a tensor, 0 where there is none; on its device."""
    with torch.no_grad():
        magnitude = x.detach().abs().double()
        largest = torch.where(magnitude < math.inf, magnitude, 0).amax() if x.numel() else magnitude.new_zeros(())
        return torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)


def compress(x: Tensor) -> tuple[Tensor, Tensor]:
    """x' = RN32(x * 2^-s) in binary64, and s."""
    exponent = exponent_of(x)
    return _Scaled.apply(wide(x), -exponent), exponent


def expand(x: Tensor, exponent: Tensor) -> Tensor:
    """RN32(x * 2^exponent)."""
    return _Scaled.apply(x, exponent)


def row_sum(x: Tensor) -> Tensor:
    """Sum over the last axis, which stays with one element."""
    return _RowSum.apply(x)


def _row_sum(x: Tensor) -> Tensor:
    """The upper parts of all elements are multiples of one power of two and few enough bits to sum without rounding; the lower
    parts, below 2^-(52 - log2 N) of the largest element, are summed by themselves. An Inf or NaN comes through."""
    count = max(x.shape[-1], 1)
    finite = x.isfinite()
    largest = torch.where(finite, x, 0).abs().amax(-1, keepdim=True)
    anchor = power_of_two(torch.frexp(largest).exponent + math.ceil(math.log2(count)) + 1)
    high = (x + anchor) - anchor
    low = torch.where(finite, x - high, 0)
    return high.sum(-1, keepdim=True) + low.sum(-1, keepdim=True)


def elementwise(x: Tensor, formula: Callable[[Tensor], Tensor], exact: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of each element: its value by one formula, its gradient by another."""
    return _Defined.apply(x, formula, exact)


def _rn(x: Tensor) -> Tensor:
    return x.float().double()


def exp_formula(x: Tensor) -> Tensor:
    """exp of docs/numerics.md, of binary32 numbers in binary64."""
    n = torch.round(_rn(x * _LOG2_E))
    r = _rn(_rn(x - n * _LN2_HIGH) - n * _LN2_LOW)
    p = torch.full_like(x, _EXP[0])
    for coefficient in _EXP[1:]:
        p = _rn(p * r + coefficient)
    bounded = torch.nan_to_num(n, nan=0.0, posinf=200.0, neginf=-200.0).clamp(-200, 200)
    value = _rn(p * power_of_two(bounded))
    value = torch.where(x > _EXP_LARGEST, math.inf, torch.where(x < _EXP_SMALLEST, 0.0, value))
    return torch.where(x.isnan(), x, value)


def exp(x: Tensor) -> Tensor:
    return elementwise(x, exp_formula, torch.exp)


def sigmoid_formula(x: Tensor) -> Tensor:
    return _rn(1 / _rn(1 + exp_formula(-x)))


def gauss_formula(x: Tensor) -> Tensor:
    """Distribution function of the normal distribution, as docs/numerics.md has it."""
    z = _rn(x.abs() * _HALF_ROOT)
    t = _rn(1 / _rn(_GAUSS_T * z + 1))
    q = torch.full_like(x, _GAUSS_Q[0])
    for coefficient in _GAUSS_Q[1:]:
        q = _rn(q * t + coefficient)
    u = _rn(_rn(q * t) * exp_formula(-_rn(z * z)))
    v = _rn(0.5 * u)
    return torch.where(x.isnan(), x, torch.where(x < 0, v, _rn(1 - v)))
