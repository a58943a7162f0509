"""The fused statistics kernel for CUDA (Triton): one launch, one read of the tensor, no atomics, deterministic.

Each program walks its share of the tensor in blocks and writes one row of partial statistics; the host merges the rows
(opd.capture.statistics.combine). Importing this module raises ImportError where Triton is not installed.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
MAX_PROGRAMS = 128  # rows of partial statistics a tensor; they travel to the host once a step


@triton.jit
def statistics_kernel(elements, out, count, largest, normal, programs, FULL: tl.constexpr, BF16: tl.constexpr,
                      COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    max_abs = 0.0
    nonfinite = 0
    min_abs = float("inf")
    finite_count = 0.0
    mean = 0.0
    m2 = 0.0
    saturated = 0
    subnormal = 0
    zero = 0
    start = tl.cast(program, tl.int64) * BLOCK
    while start < count:
        index = start + lanes
        inside = index < count
        if BF16:  # the upper half of an FP32: exact for subnormals too
            value = (tl.load(elements + index, mask=inside, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            value = tl.load(elements + index, mask=inside, other=0.0).to(tl.float32)
        magnitude = tl.abs(value)
        finite = inside & (magnitude <= largest)  # false for NaN
        max_abs = tl.maximum(max_abs, tl.max(tl.where(finite, magnitude, 0.0), 0))
        nonfinite += tl.sum(inside.to(tl.int32), 0) - tl.sum(finite.to(tl.int32), 0)
        if FULL:
            is_nonzero = finite & (magnitude > 0.0)
            min_abs = tl.minimum(min_abs, tl.min(tl.where(is_nonzero, magnitude, float("inf")), 0))
            saturated += tl.sum((finite & (magnitude == largest)).to(tl.int32), 0)
            subnormal += tl.sum((is_nonzero & (magnitude < normal)).to(tl.int32), 0)
            zero += tl.sum((inside & (magnitude == 0.0)).to(tl.int32), 0)
            # Mean and sum of squared deviations of the block, merged into those so far (Chan).
            block_count = tl.sum(finite.to(tl.float32), 0)
            divisor = tl.maximum(block_count, 1.0)
            block_mean = tl.sum(tl.where(finite, value, 0.0), 0) / divisor
            deviation = tl.where(finite, value - block_mean, 0.0)
            block_m2 = tl.sum(deviation * deviation, 0)
            total = tl.maximum(finite_count + block_count, 1.0)
            delta = block_mean - mean
            m2 += block_m2 + delta * delta * finite_count * block_count / total
            mean += delta * block_count / total
            finite_count += block_count
        start += tl.cast(programs, tl.int64) * BLOCK
    row = out + program * COLUMNS
    tl.store(row, max_abs.to(tl.float64))
    tl.store(row + 1, nonfinite.to(tl.float64))
    if FULL:
        tl.store(row + 2, min_abs.to(tl.float64))
        tl.store(row + 3, finite_count.to(tl.float64))
        tl.store(row + 4, mean.to(tl.float64))
        tl.store(row + 5, m2.to(tl.float64))
        tl.store(row + 6, saturated.to(tl.float64))
        tl.store(row + 7, subnormal.to(tl.float64))
        tl.store(row + 8, zero.to(tl.float64))


def measure(tensor: Tensor, largest: float, normal: float, full: bool) -> Tensor:
    """Partial statistics [programs, columns] of a contiguous FP16, BF16 or FP32 tensor. Sums are FP32: mean and m2 of values
    whose sum or square is beyond it are Inf or NaN."""
    count = tensor.numel()
    programs = min(MAX_PROGRAMS, triton.cdiv(count, BLOCK))
    columns = 9 if full else 2
    out = torch.empty((programs, columns), dtype=torch.float64, device=tensor.device)
    is_bf16 = tensor.dtype == torch.bfloat16
    statistics_kernel[(programs,)](tensor.view(torch.int16) if is_bf16 else tensor, out, count, largest, normal, programs,
                                   FULL=full, BF16=is_bf16, COLUMNS=columns, BLOCK=BLOCK)
    return out
