"""Operators as modules: a forward hook on a leaf module sees what that operator wrote.

Under autocast the matrix products run in half precision; what autocast computes in FP32 (norms, softmax) is narrowed to `half`
here, as a half-precision stack stores it. Parameters stay FP32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

FLOAT8 = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
SATURATING = "-saturating"  # behind the name of an 8-bit format: a cast that clips
STORES = ("half", *FLOAT8, *(name + SATURATING for name in FLOAT8))  # types of operator outputs
E4M3_OVERFLOW = 464.0  # halfway from the largest finite number, 448, to the next: what is above it overflows


class Sum(nn.Module):
    """Sum of the residual stream and a branch, in the type of the stream."""

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return stream + branch


class Product(nn.Module):
    """Matrix product: [..., n, k] and [..., k, m] -> [..., n, m]. Q K^T and the mix of values are two of these."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right


class Softmax(nn.Module):
    """Softmax over the last dimension of what `mask` leaves visible (True: hidden); FP32 inside, `half` outside.

    A row of which everything is hidden is NaN: 0 / 0.
    """

    def __init__(self, half: torch.dtype):
        super().__init__()
        self.half = half

    def forward(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            logits = logits.masked_fill(mask, -math.inf)
        return functional.softmax(logits, dim=-1).to(self.half)


class Narrow(nn.Module):
    """Stores a tensor that was computed in FP32 in half precision."""

    def __init__(self, half: torch.dtype):
        super().__init__()
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.half)


class LayerNorm(nn.LayerNorm):
    """Layer norm, FP32 inside, `half` outside."""

    def __init__(self, width: int, half: torch.dtype, eps: float = 1e-5):
        super().__init__(width, eps=eps)
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(self.half)


class SumOfSquares(nn.Module):
    """Accumulator of a home-made RMS norm: [..., width] -> [..., 1], squared and added in the type of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(-1, keepdim=True)


class Scale(nn.Module):
    """x / sqrt(mean square) * weight. An accumulator that has overflowed makes this 0: finite, and wrong."""

    def __init__(self, width: int, half: torch.dtype, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.half, self.eps = half, eps

    def forward(self, x: Tensor, squares: Tensor) -> Tensor:
        return (x * torch.rsqrt(squares / x.shape[-1] + self.eps) * self.weight).to(self.half)


class RmsNorm(nn.Module):
    """RMS norm as it is often written by hand: the sum of squares stays in half precision and is an operator of its own."""

    def __init__(self, width: int, half: torch.dtype):
        super().__init__()
        self.squares = SumOfSquares()
        self.scale = Scale(width, half)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x, self.squares(x))


class Identity(nn.Module):
    """No norm."""

    def __init__(self, width: int, half: torch.dtype):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class SquaredRelu(nn.Module):
    """relu(x)^2"""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x).square()


class Float8Cast(nn.Module):
    """Rounds elements to an 8-bit format with scale 1. What is too large becomes NaN (E4M3) or Inf (E5M2), or, where the cast
    saturates, the largest finite number: Inf too, as satfinite conversions do; NaN stays NaN.

    clipped: whether the last forward pass stored a largest finite number, which is what `saturated` of a trace counts.
    A guard may have the cast made to BF16 (opd.guard.modes): nothing clips then, and nothing overflows.
    """

    def __init__(self, store: str):
        super().__init__()
        self.dtype = FLOAT8[store.removesuffix(SATURATING)]
        self.saturates = store.endswith(SATURATING)
        self.clipped = False

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach()
        stored = x.to(self.dtype)
        self.clipped = False
        if stored.dtype is not self.dtype:
            return stored
        if self.saturates:
            largest = torch.finfo(self.dtype).max
            stored = x.clamp(-largest, largest).to(self.dtype)
            self.clipped = bool((stored.to(x.dtype).abs() == largest).any())
        elif self.dtype is torch.float8_e4m3fn:  # PyTorch's conversion saturates
            stored = torch.where(x.abs() > E4M3_OVERFLOW, math.nan, x).to(self.dtype)
        return stored


class Float8(nn.Module):
    """Stores an operator's output in an 8-bit format; the gradient passes as it is (straight-through)."""

    def __init__(self, store: str):
        super().__init__()
        self.cast = Float8Cast(store)

    def forward(self, x: Tensor) -> Tensor:
        stored = self.cast(x).to(x.dtype)
        return x + (stored - x.detach()) if x.requires_grad else stored


def as_it_is(x: Tensor) -> Tensor:
    """What stands in the place of an operator that a model leaves out."""
    return x


def stored(store: str) -> Callable[[Tensor], Tensor]:
    """What follows an operator whose output is stored, one of STORES: nothing, or a rounding to 8 bits."""
    return as_it_is if store == "half" else Float8(store)


NORMS = {"layer": LayerNorm, "rms": RmsNorm, "none": Identity}
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "relu2": SquaredRelu}


def choice(table: dict, name: str, setting: str):
    """table[name]. Raises ValueError that names the setting."""
    if name not in table:
        raise ValueError(f"{setting}: {name!r} is unknown; use one of {', '.join(table)}")
    return table[name]
