"""SAFE element-wise activations: those of the vector unit by its own formulas, the others by PyTorch's functions in binary64.
Gradients are those of PyTorch's function in binary64."""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from opd.guard.arithmetic import elementwise, exp_formula, gauss_formula, output, sigmoid_formula, wide


def _rn(x: Tensor) -> Tensor:
    return x.float().double()


def _limit(x: Tensor, value: Tensor) -> Tensor:
    """-Inf gives -0."""
    return torch.where(x == -math.inf, -0.0, value)


def _relu(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, torch.where(x > 0, x, 0.0))


def _gelu(x: Tensor) -> Tensor:
    return _limit(x, _rn(x * gauss_formula(x)))


def _gelu_tanh(x: Tensor) -> Tensor:
    w = _rn(x * x)
    w = _rn(w * 0.044714998453855515 + 1)                # 0x3D372713
    w = _rn(_rn(x * 1.5957691669464111) * w)             # 0x3FCC422A
    return _limit(x, _rn(x * sigmoid_formula(w)))


def _silu(x: Tensor) -> Tensor:
    return _limit(x, _rn(x * sigmoid_formula(x)))


# Function -> formula of the vector unit and the function whose gradient it has.
_KERNELS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (_relu, torch.relu),
    "gelu": (_gelu, functional.gelu),
    "gelu_tanh": (_gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (_silu, functional.silu),
    "exp": (exp_formula, torch.exp),
}


def kernel(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """relu, gelu, gelu_tanh, silu or exp as the vector unit computes it. dtype: of the output."""
    return output(elementwise(wide(x), *_KERNELS[name]), dtype)


def other(function: Callable, x: Tensor, dtype: torch.dtype, *arguments, **options) -> Tensor:
    """Any other function of each element, in binary64."""
    return output(function(wide(x), *arguments, **options), dtype)
