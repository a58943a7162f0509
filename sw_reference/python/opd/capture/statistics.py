"""Statistics of one tensor, on the tensor's device, without waiting for the device.

`measure` returns partial statistics: a float64 tensor [partials, columns] on the tensor's device, a numpy array for a CPU
tensor; `combine` merges the partials of a step, probe by probe, on the host. Columns are those of CORE (largest finite
magnitude, number of Inf and NaN) or of FULL (all of docs/formats.md). FP8 is widened to FP16, which holds all its values.

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


def measure(tensor: Tensor, columns: tuple[str, ...] = CORE) -> Tensor | np.ndarray:
    """Partial statistics [partials, len(columns)] of a tensor with at least one element, float64, on its device.

    The tensor is only read. On a device nothing waits for a result: no value decides what is done next.
    """
    tensor = tensor.detach()
    largest, normal = limits(tensor.dtype)
    if tensor.dtype in _WIDEN:
        tensor = tensor.to(_WIDEN[tensor.dtype])
    tensor = _dense(tensor)
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


def _core_cpu(tensor: Tensor, largest: float) -> np.ndarray:
    low, high = torch.aminmax(tensor)
    low, high = low.item(), high.item()
    if math.isfinite(low) and math.isfinite(high):
        return np.array(((_magnitude(low, high), 0.0),))
    return measure_generic(tensor, largest, 0.0, CORE).numpy()


def _magnitude(low: float, high: float) -> float:
    """Largest magnitude of a range; +0 for a range of zeros, whatever their sign."""
    return abs(max(-low, high))


def _full_cpu(tensor: Tensor, largest: float, normal: float) -> np.ndarray:
    """Counts are taken only where the extremes say that there is something to count; sums are FP64."""
    low, high = torch.aminmax(tensor)
    low, high = low.item(), high.item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return measure_generic(tensor, largest, normal, FULL).numpy()
    count = tensor.numel()
    largest_seen = _magnitude(low, high)
    magnitude = tensor.abs()
    smallest = magnitude.min().item()
    zero = saturated = subnormal = 0
    if smallest == 0:
        zero = count - int(torch.count_nonzero(magnitude))
        smallest = _smallest_nonzero(magnitude) if zero < count else math.inf
    if smallest < normal:
        subnormal = int(torch.count_nonzero(magnitude < normal)) - zero
    if largest_seen == largest:
        saturated = int(torch.count_nonzero(magnitude == largest))
    wide = tensor.view(-1).double()
    mean = wide.mean().item()
    wide.sub_(mean)
    return np.array(((largest_seen, 0, smallest, count, mean, torch.dot(wide, wide).item(), saturated, subnormal, zero),),
                    np.float64)


def _smallest_nonzero(magnitude: Tensor) -> float:
    """Of magnitudes, which are ordered as their bits are: one less, zero becomes the largest."""
    bits, mask = {2: (torch.int16, 0x7FFF), 4: (torch.int32, 0x7FFFFFFF)}[magnitude.element_size()]
    smallest = (magnitude.view(bits) - 1).bitwise_and_(mask).min() + 1
    return smallest.to(bits).view(magnitude.dtype).item()


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


def combine(partials: np.ndarray, columns: tuple[str, ...], starts: np.ndarray) -> dict[str, np.ndarray]:
    """Merges partial statistics [partials, columns], probe by probe, into the members of a trace, one value a probe. starts: the
    first row of each probe. Counts are sums, magnitudes extremes, mean and variance follow Chan's rule; min_abs, mean and var
    are 0 where there is no element to take them from, Inf where the sums were beyond their type."""
    column = {name: partials[:, i] for i, name in enumerate(columns)}

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts)

    result = {"max_abs": np.maximum.reduceat(column["max_abs"], starts), "nonfinite": total(column["nonfinite"])}
    if columns == FULL:
        smallest = np.minimum.reduceat(column["min_abs"], starts)
        count = np.maximum(total(column["finite"]), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = total(column["finite"] * column["mean"]) / count
            apart = column["mean"] - np.repeat(mean, np.diff(starts, append=len(partials)))
            var = total(column["m2"] + column["finite"] * apart**2) / count
        result |= {"min_abs": np.where(np.isfinite(smallest), smallest, 0), "mean": np.where(np.isnan(mean), np.inf, mean),
                   "var": np.where(np.isnan(var), np.inf, var),
                   **{name: total(column[name]) for name in ("saturated", "subnormal", "zero")}}
    return result
