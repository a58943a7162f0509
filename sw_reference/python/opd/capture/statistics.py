"""Statistics of one tensor, on the tensor's device, without waiting for the device.

`measure` returns partial statistics: a float64 tensor [partials, columns] on the tensor's device; `combine` merges the
partials of one probe and step on the host. Columns are those of CORE (largest finite magnitude, number of Inf and NaN) or of
FULL (all of docs/formats.md). FP8 is widened to FP16, which holds all its values.

Cost, one read of the tensor in each case:
  CPU    CORE one vectorised min/max; more passes only when a value is not finite, or for FULL
  CUDA   one launch of a fused kernel (opd.capture.kernel) where Triton is installed
  other  about five launches of PyTorch operators
Empty tensors have statistics of zero elements and are not recorded.
"""
from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

CORE = ("max_abs", "nonfinite")
# finite: number of finite elements; m2: sum of squared differences from the mean; min_abs is Inf where every finite is zero.
FULL = (*CORE, "min_abs", "finite", "mean", "m2", "saturated", "subnormal", "zero")

_WIDEN = {torch.float8_e4m3fn: torch.float16, torch.float8_e5m2: torch.float16}


@cache
def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Largest finite magnitude and smallest normal one."""
    info = torch.finfo(dtype)
    return info.max, info.smallest_normal


def measure(tensor: Tensor, columns: tuple[str, ...] = CORE) -> Tensor:
    """Partial statistics [partials, len(columns)] of a tensor with at least one element, float64, on its device.

    The tensor is only read. On a device nothing waits for a result: no value decides what is done next.
    """
    tensor = tensor.detach()
    largest, normal = limits(tensor.dtype)
    tensor = _dense(tensor.to(_WIDEN.get(tensor.dtype, tensor.dtype)))
    if tensor.device.type == "cpu":
        if columns == CORE:
            return _core_cpu(tensor, largest)
        return _full_cpu(tensor, largest, normal)
    if tensor.device.type == "cuda" and _kernel() is not None:
        return _kernel().measure(tensor, largest, normal, columns == FULL)
    return measure_generic(tensor, largest, normal, columns)


@cache
def _kernel():
    try:
        from opd.capture import kernel
        return kernel
    except ImportError:
        return None


def _dense(tensor: Tensor) -> Tensor:
    """The same elements as a contiguous tensor, in any order: a permuted tensor needs no copy."""
    if tensor.is_contiguous():
        return tensor
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).contiguous()


def _core_cpu(tensor: Tensor, largest: float) -> Tensor:
    low, high = (value.item() for value in torch.aminmax(tensor))
    if math.isfinite(low) and math.isfinite(high):
        return torch.tensor(((max(-low, high), 0.0),), dtype=torch.float64)
    return measure_generic(tensor, largest, 0.0, CORE)


def _full_cpu(tensor: Tensor, largest: float, normal: float) -> Tensor:
    magnitude = tensor.flatten().double().abs_()
    signed = tensor.flatten().double()
    finite = magnitude <= largest
    count = int(torch.count_nonzero(finite))
    if count != tensor.numel():
        signed, magnitude = signed[finite], magnitude[finite]
    zero = count - int(torch.count_nonzero(magnitude))
    if count == 0:
        row = (0.0, tensor.numel(), math.inf, 0, 0.0, 0.0, 0, 0, 0)
    else:
        mean = signed.mean()
        deviation = signed.sub_(mean)
        below = int(torch.count_nonzero(magnitude < normal)) - zero
        nonzero = magnitude if zero == 0 else magnitude[magnitude > 0]
        smallest = nonzero.min().item() if zero < count else math.inf
        row = (magnitude.max().item(), tensor.numel() - count, smallest, count, mean.item(),
               torch.dot(deviation, deviation).item(), int(torch.count_nonzero(magnitude == largest)), below, zero)
    return torch.tensor((row,), dtype=torch.float64)


def measure_generic(tensor: Tensor, largest: float, normal: float, columns: tuple[str, ...]) -> Tensor:
    """The same by PyTorch operators that every device has, in a fixed sequence."""
    magnitude = tensor.abs()
    finite = magnitude <= largest  # false for NaN
    count = finite.sum()
    values = [torch.where(finite, magnitude, 0).amax(), tensor.numel() - count]
    if columns == FULL:
        nonzero = finite & (magnitude > 0)
        smallest = torch.where(nonzero, magnitude, math.inf).amin()
        signed = torch.where(finite, tensor, 0).double()
        mean = signed.sum() / count.clamp(min=1)
        deviation = torch.where(finite, signed - mean, 0)
        values += [smallest, count, mean, deviation.square().sum(), (magnitude == largest).sum(),
                   (nonzero & (magnitude < normal)).sum(), (magnitude == 0).sum()]
    return torch.stack([value.double() for value in values]).unsqueeze(0)


def combine(partials: np.ndarray, columns: tuple[str, ...]) -> dict[str, float]:
    """Merges partial statistics [partials, columns] into the members of a trace: counts are sums, magnitudes are extremes,
    mean and variance by Chan's rule; min_abs, mean and var are 0 where there is no element to take them from, Inf where the
    sums were beyond their type."""
    column = {name: partials[:, i] for i, name in enumerate(columns)}
    result = {"max_abs": float(column["max_abs"].max()), "nonfinite": int(column["nonfinite"].sum())}
    if columns == FULL:
        smallest = float(column["min_abs"].min())
        count = float(column["finite"].sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float((column["finite"] * column["mean"]).sum() / count) if count else 0.0
            m2 = float((column["m2"] + column["finite"] * (column["mean"] - mean) ** 2).sum())
        var = m2 / count if count else 0.0
        result |= {"min_abs": smallest if math.isfinite(smallest) else 0.0, "mean": math.inf if math.isnan(mean) else mean,
                   "var": math.inf if math.isnan(var) else var,
                   **{name: int(column[name].sum()) for name in ("saturated", "subnormal", "zero")}}
    return result
