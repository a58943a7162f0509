"""Functions that refuse operands of different types, called again with one type.

A downshifted module hands out BF16 where its neighbours hand out FP16, and their product is FP32 then. Arithmetic promotes; torch.cat,
index_add, lerp and the like raise instead, and so does autocast for BF16 operands of the functions that it promotes itself.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def call(func: Callable, args: tuple, kwargs: dict, tensors: Callable[[], Iterable[Tensor]], fits: Callable[[Tensor], bool] | None):
    """The function as it was called; when it raises, and its operands have several types, with one type: FP64 or FP32 where one of them has
    it, else FP16 if every operand fits, else BF16. What is written in place keeps its type.

    tensors: its floating-point operands; fits: whether FP16 holds an operand, None where BF16 is wanted anyway. What the function has
    raised is raised where that does not help either."""
    try:
        return func(*args, **kwargs)
    except (RuntimeError, TypeError):
        found = [tensor for tensor in tensors() if tensor.dtype in _TYPES]
        wanted = _one_type(func, args, found, fits)
        if wanted is None:
            raise
        with torch.autocast(found[0].device.type, enabled=False):
            try:
                return func(*pytree.tree_map_only(Tensor, lambda x: x.to(wanted) if x.dtype in _TYPES else x, args),
                            **pytree.tree_map_only(Tensor, lambda x: x.to(wanted) if x.dtype in _TYPES else x, kwargs))
            except (RuntimeError, TypeError):
                pass
        raise


def _one_type(func: Callable, args: tuple, found: list[Tensor], fits: Callable[[Tensor], bool] | None) -> torch.dtype | None:
    """None where the types are no reason for an error."""
    kinds = {tensor.dtype for tensor in found}
    if not kinds or (len(kinds) == 1 and not (torch.bfloat16 in kinds and _casts_to_fp16(found[0]))):
        return None
    name = getattr(func, "__name__", "")
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        return args[0].dtype if isinstance(args[0], Tensor) else None
    wide = next((kind for kind in (torch.float64, torch.float32) if kind in kinds), None)
    if wide is not None:
        return wide
    return torch.float16 if torch.float16 in kinds and fits is not None and all(map(fits, found)) else torch.bfloat16


def _casts_to_fp16(tensor: Tensor) -> bool:
    device = tensor.device.type
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
