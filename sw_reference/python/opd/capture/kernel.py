"""The fused statistics kernel for CUDA (Triton): one launch, one read of the tensor, no atomics, deterministic.

Each program walks its share of the tensor in blocks, keeps a partial statistic of each lane, and reduces the lanes once, after
the last block, to one row; the host merges the rows (opd.capture.statistics.combine). Whole blocks are read from an address that
is a multiple of 16 without a mask, whatever the tensor's length and address, so that every load is 16 bytes wide; what lies
before and after them is read by one program each. Importing this module raises ImportError where Triton is not installed.
"""
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 8
BLOCKS = {False: 4096, True: 2048}  # elements, of CORE and FULL: all columns of a lane must stay in registers
PROGRAMS_PER_MULTIPROCESSOR = 4
# Without a device, in Triton's interpreter.
INTERPRETED_MULTIPROCESSORS = 2
ALIGNMENT = 16  # bytes of the widest load


@triton.jit
def load(pointers, mask, BF16: tl.constexpr, MASKED: tl.constexpr):
    """FP32 values; NaN where the mask is off."""
    if BF16:  # the upper half of an FP32: exact for subnormals too
        bits = tl.load(pointers, mask=mask, other=0x7FC0) if MASKED else tl.load(pointers)
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        values = tl.load(pointers, mask=mask, other=float("nan")) if MASKED else tl.load(pointers)
        return values.to(tl.float32)


@triton.jit
def add(value, lanes, shift, largest, normal, FULL: tl.constexpr):
    """`lanes` with one more value each: largest and smallest magnitude, finite ones, their sum and sum of squares from `shift`,
    those at the limit, subnormal ones, zeros."""
    max_abs, finite_count, min_abs, total, squares, saturated, subnormal, zero = lanes
    magnitude = tl.abs(value)
    finite = magnitude <= largest  # false for NaN
    max_abs = tl.maximum(max_abs, tl.where(finite, magnitude, 0.0))
    finite_count += finite.to(tl.int32)
    if FULL:
        min_abs = tl.minimum(min_abs, tl.where(magnitude > 0.0, magnitude, float("inf")))  # false for NaN too
        saturated += (magnitude == largest).to(tl.int32)
        subnormal += (magnitude < normal).to(tl.int32)  # and zeros
        zero += (magnitude == 0.0).to(tl.int32)
        deviation = tl.where(finite, value - shift, 0.0)
        total += deviation
        squares += deviation * deviation
    return max_abs, finite_count, min_abs, total, squares, saturated, subnormal, zero


@triton.jit
def statistics_kernel(elements, head, out, count, head_count, largest, normal, FULL: tl.constexpr, BF16: tl.constexpr,
                      COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """elements: `count` of them, from a multiple of 16 bytes on; head: the `head_count` (fewer than 16) before them."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    whole = (count // BLOCK).to(tl.int64) * BLOCK
    start = program.to(tl.int64) * BLOCK
    nothing = tl.zeros([BLOCK], tl.float32)
    none = tl.zeros([BLOCK], tl.int32)
    shift = nothing
    if FULL:  # near the values: their mean may be far from zero, beside their spread
        first = load(elements + start + lane, start + lane < count, BF16, True)
        shift = tl.where(tl.abs(first) <= largest, first, 0.0)
    lanes = (nothing, none, nothing + float("inf"), nothing, nothing, none, none, none)
    while start < whole:
        lanes = add(load(elements + start + lane, None, BF16, False), lanes, shift, largest, normal, FULL)
        start += programs.to(tl.int64) * BLOCK
    seen = tl.maximum(start - program.to(tl.int64) * BLOCK, 0) // programs
    # The program whose block would have been next has the rest, which is none where `start` lies beyond it.
    lanes = add(load(elements + start + lane, start + lane < count, BF16, True), lanes, shift, largest, normal, FULL)
    before = tl.where(program == 0, head_count, 0)
    lanes = add(load(head + lane, lane < before, BF16, True), lanes, shift, largest, normal, FULL)
    max_abs, finite_count, min_abs, total, squares, saturated, subnormal, zero = lanes
    seen += tl.minimum(tl.maximum(count - start, 0), BLOCK) + before
    row = out + program * COLUMNS
    finite = tl.sum(finite_count, 0)
    tl.store(row, tl.max(max_abs, 0).to(tl.float64))
    tl.store(row + 1, (seen - finite).to(tl.float64))
    if FULL:
        number = finite_count.to(tl.float32)
        divisor = tl.maximum(number, 1.0)
        of_lane = total / divisor  # from the shift
        m2_of_lane = tl.maximum(squares - total * of_lane, 0.0)
        mean_of_lane = shift + of_lane
        mean = tl.sum(number * mean_of_lane, 0) / tl.maximum(finite.to(tl.float32), 1.0)
        apart = mean_of_lane - mean
        m2 = tl.sum(m2_of_lane + number * apart * apart, 0)
        zeros = tl.sum(zero, 0)
        tl.store(row + 2, tl.min(min_abs, 0).to(tl.float64))
        tl.store(row + 3, finite.to(tl.float64))
        tl.store(row + 4, mean.to(tl.float64))
        tl.store(row + 5, m2.to(tl.float64))
        tl.store(row + 6, tl.sum(saturated, 0).to(tl.float64))
        tl.store(row + 7, (tl.sum(subnormal, 0) - zeros).to(tl.float64))
        tl.store(row + 8, zeros.to(tl.float64))


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def measure(tensor: Tensor, largest: float, normal: float, full: bool) -> Tensor:
    """Partial statistics [programs, columns] of a contiguous FP16, BF16 or FP32 tensor. Sums are FP32: mean and m2 of values
    whose sum or square is beyond it are Inf or NaN."""
    is_bf16 = tensor.dtype == torch.bfloat16
    values = (tensor.view(torch.int16) if is_bf16 else tensor).view(-1)
    head = min(-values.data_ptr() % ALIGNMENT // values.element_size(), values.numel())
    elements, block = values[head:], BLOCKS[full]
    programs = min(PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(tensor.device), max(triton.cdiv(elements.numel(), block), 1))
    columns = 9 if full else 2
    out = torch.empty((programs, columns), dtype=torch.float64, device=tensor.device)
    statistics_kernel[(programs,)](elements, values, out, elements.numel(), head, largest, normal, FULL=full, BF16=is_bf16,
                                   COLUMNS=columns, BLOCK=block, num_warps=WARPS)
    return out
