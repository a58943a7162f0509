"""Where bad values come from: batches, weights with a flipped bit, elements of a tensor."""
from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from opd.capture.probes import FORMAT_NAMES, clean_name
from opd.localise.finding import Elements
from opd.localise.replay import bad_elements, is_mask

OUTLIER = 2.0**12  # a weight that is this much larger than all others of its tensor is looked at
PLAUSIBLE = 4.0    # of the next largest: what it is with one bit of its exponent the other way round
_BITS = {torch.float16: (torch.int16, 10, 15), torch.bfloat16: (torch.int16, 7, 15), torch.float32: (torch.int32, 23, 31),
         torch.float64: (torch.int64, 52, 63)}


def elements_of(tensor: Tensor, axis: int, masked: bool = False) -> Elements:
    """Counts by channel. A tensor without any bad element has count 0 and the indices 0."""
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor[None]
    axis %= tensor.dim()
    bad = bad_elements(tensor, masked)
    by_channel = bad.movedim(axis, -1).reshape(-1, tensor.shape[axis]).sum(0)
    first = first_index(bad)
    finite = tensor.double().abs()
    largest = float(finite.masked_fill(~finite.isfinite(), 0).max())
    channel = int(by_channel.argmax())
    return Elements(int(bad.sum()), bad.numel(), first, axis, channel, int(by_channel[channel]), int((by_channel > 0).sum()),
                    tensor.shape[axis],
                    largest, torch.finfo(tensor.dtype).max)


def first_index(bad: Tensor) -> tuple[int, ...]:
    flat = int(bad.flatten().to(torch.uint8).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), bad.shape))


def bad_in_batch(batch) -> dict | None:
    """The first non-finite element of a batch. Masks of 0 and -Inf are not."""
    for path, tensor in named_tensors(batch):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        bad = bad_elements(tensor, False)
        if bool(bad.any()) and not is_mask(tensor):
            index = first_index(bad)
            return {"tensor": path, "index": index, "value": float(tensor[index]), "count": int(bad.sum())}
    return None


def largest_in_batch(batch) -> dict | None:
    """The largest magnitude of the floating-point tensors of a batch."""
    found = None
    for path, tensor in named_tensors(batch):
        if tensor.is_floating_point() and tensor.numel():
            index = first_index(tensor.abs() == tensor.abs().max())
            if found is None or abs(float(tensor[index])) > abs(found["value"]):
                found = {"tensor": path, "index": index, "value": float(tensor[index])}
    return found


def named_tensors(batch) -> Iterable[tuple[str, Tensor]]:
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, Tensor):
            yield f"batch{pytree.keystr(path)}", leaf


def bad_weight(model: nn.Module, names: Iterable[str], own: Iterable[str]) -> dict | None:
    """The parameter among `names` that has one element far out of the range of all others, or among `own` that is not finite. `flip`: the
    bit of the exponent that explains it, None where no single one does."""
    wanted, own = set(names), set(own)
    for name, parameter in model.named_parameters():
        name = clean_name(name)
        if name not in wanted or parameter.numel() < 2 or parameter.dtype not in _BITS:
            continue
        values = parameter.detach()
        bad = ~values.isfinite()
        count = int(bad.sum())
        if count and name not in own:
            continue  # it holds some that nothing has read, a row of an embedding
        magnitude = values.abs().double().masked_fill(bad, math.inf).flatten()
        top, at = magnitude.topk(2)
        if count == 0 and not top[0] > OUTLIER * top[1] > 0:
            continue
        index = tuple(int(i) for i in torch.unravel_index(at[0].cpu(), values.shape))
        found = {"tensor": name, "index": index, "value": float(values[index]), "count": max(1, count), "next": float(top[1]),
                 "flip": None}
        if count <= 1:
            found["flip"] = _flip(values[index], float(top[1]))
        if count or found["flip"] is not None:
            return found
    return None


def _flip(value: Tensor, others: float) -> int | None:
    integers, first, sign = _BITS[value.dtype]
    for bit in range(sign - 1, first - 1, -1):
        other = float((value.reshape(1).view(integers) ^ (1 << bit)).view(value.dtype)[0])
        if math.isfinite(other) and 0 < abs(other) <= PLAUSIBLE * others:
            return bit
    return None


def format_of(dtype: torch.dtype) -> str:
    return FORMAT_NAMES.get(dtype, str(dtype).removeprefix("torch."))
