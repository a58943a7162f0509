"""The pieces of an operator for one row, in its own arithmetic and in FP64, and what the modes of the vector unit make of that row.

The own arithmetic is PyTorch's: kernels of 16-bit types compute in FP32 inside and round at the end (opd.compute has the vector unit's).
Norms that a module computes by functions of its own are found function by function: each is an operator here.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from opd.capture.operators import Operator
from opd.capture.probes import FORMAT_NAMES
from opd.localise.finding import Piece
from opd.trace_layout import KERNELS, MASK

MODES = ("FAST", "STABLE", "SAFE")


def pieces_of(operator: Operator, output: Tensor, index: int) -> list[tuple[str, Tensor, Tensor]]:
    """(name, own, FP64) of the sub-steps that make element `index` of the flat output, in order."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), torch.autocast(output.device.type, enabled=False):
        row = row_of(operator, index)
        work = torch.float32 if output.element_size() < 4 else output.dtype
        kernel = KERNELS[operator.kernel]
        if kernel.is_matrix:
            column = index % operator.columns
            own, exact = (_dot(row, column, dtype, output.dtype) for dtype in (work, torch.float64))
        else:
            steps = _STEPS.get(operator.kernel, _function(operator.kernel))
            own, exact = (steps(_widened(row, dtype), operator, output.dtype if dtype is work else dtype)
                          for dtype in (work, torch.float64))
        return [(name, value, exact[name]) for name, value in own.items()]


def fused_pieces(output: Tensor, index: int, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                 dropout_p: float = 0.0, is_causal: bool = False,
                 scale: float | None = None, enable_gqa: bool = False) -> list[tuple[str, Tensor, Tensor]]:
    """The same of scaled_dot_product_attention, whose products never leave its kernel. Dropout is left out: it only scales. Empty for
    operands that broadcast."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), torch.autocast(output.device.type, enabled=False):
        *outer, row, _ = (int(i) for i in torch.unravel_index(torch.tensor(index), output.shape))
        if query.dim() != key.dim() or query.shape[:-2] != key.shape[:-2] or key.shape[:-1] != value.shape[:-1]:
            return []
        hidden = torch.arange(key.shape[-2], device=key.device) > row if is_causal else None
        added = None
        if attn_mask is not None:
            mask = attn_mask.detach().expand(*output.shape[:-1], key.shape[-2])[(*outer, row)]
            hidden, added = (~mask, None) if mask.dtype == torch.bool else (hidden, mask)
        q, k, v = query[(*outer, row)], key[tuple(outer)], value[tuple(outer)]

        def steps(dtype: torch.dtype, end: torch.dtype) -> dict[str, Tensor]:
            product = (k.to(dtype) @ q.to(dtype)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
            y = product if added is None else product + added.to(dtype)
            y = y if hidden is None else y.masked_fill(hidden, -math.inf)
            e = (y - y.max()).exp()
            return {"product": product, "exp": e, "sum": e.sum(), "mix": ((e / e.sum()) @ v.to(dtype)).to(end)}

        own = steps(torch.float32 if output.element_size() < 4 else output.dtype, output.dtype)
        exact = steps(torch.float64, torch.float64)
        return [(name, tensor, exact[name]) for name, tensor in own.items()]


def first_bad(pieces: list[tuple[str, Tensor, Tensor]]) -> str | None:
    return next((name for name, own, _ in pieces if not bool(own.isfinite().all())), None)


def shown(pieces: list[tuple[str, Tensor, Tensor]]) -> tuple[Piece, ...]:
    return tuple(Piece(name, _largest(own), _largest(exact)) for name, own, exact in pieces)


def _largest(tensor: Tensor) -> float:
    """The largest magnitude; NaN where there is one. Of a row maximum of -Inf and the like the value itself."""
    value = tensor.double().flatten()
    if value.numel() == 1:
        return float(value[0])
    return math.nan if bool(value.isnan().any()) else float(value.abs().max())


def row_of(operator: Operator, index: int) -> dict[str, Tensor]:
    """Operands of the row that holds an element: of a row kernel one row each; of a matrix kernel one row, and the second operand of that
    batch."""
    kernel = KERNELS[operator.kernel]
    row = index if kernel.shape == "row_reduction" else index // operator.columns
    found = {}
    for name, tensor in operator.operands.items():
        if operator.kernel == "matmul" and name == "b":
            batch = row // operator.rows
            found[name] = tensor[batch * operator.columns:(batch + 1) * operator.columns]
        elif operator.kernel == "linear" and name in ("weight", "bias"):
            found[name] = tensor
        else:
            found[name] = tensor[row % len(tensor)][None]
    if operator.kernel == "scale" or kernel.attribute:
        found["attribute"] = torch.tensor(kernel.default if operator.attribute is None else operator.attribute, dtype=torch.float64)
    return found


def _widened(row: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor if name == MASK else tensor.to(dtype) for name, tensor in row.items()}


def _dot(row: dict[str, Tensor], column: int, dtype: torch.dtype, output: torch.dtype) -> dict[str, Tensor]:
    left, right = (row["a"], row["b"]) if "a" in row else (row["x"], row["weight"])
    products = left[0].to(dtype) * right[column].to(dtype)
    total = products.cumsum(0) * row.get("attribute", torch.ones((), dtype=torch.float64)).to(dtype)
    end = total[-1] + row["bias"][0, column].to(dtype) if "bias" in row else total[-1]
    return {"product": products, "accumulate": total, "cast": end if dtype is torch.float64 else end.to(output)}


def _softmax(row: dict[str, Tensor], operator: Operator, output: torch.dtype) -> dict[str, Tensor]:
    y = row["x"] * row["attribute"]
    if MASK in row:
        y = y.masked_fill(row[MASK] == 0, -math.inf)
    m = y.max(-1, keepdim=True).values
    e = (y - m).exp()
    s = e.sum(-1, keepdim=True)
    # The row's maximum itself is -Inf where everything is hidden: then the subtraction is what fails.
    return {"max-subtraction": (m - m).expand_as(y) if bool((m == -math.inf).any()) else m, "exp": e, "sum": s,
            "scale": (e / s).to(output)}


def _layer_norm(row: dict[str, Tensor], operator: Operator, output: torch.dtype) -> dict[str, Tensor]:
    x = row["x"]
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    scale = (variance + row["attribute"]).rsqrt()
    normal = (x - mean) * scale
    return {"mean": mean, "variance": variance, "scale": scale, "normalise": normal, **_gained(normal, row, output)}


def _rms_norm(row: dict[str, Tensor], operator: Operator, output: torch.dtype) -> dict[str, Tensor]:
    x = row["x"]
    squares = x.square()
    mean = squares.mean(-1, keepdim=True)
    scale = (mean + row["attribute"]).rsqrt()
    return {"square": squares, "mean": mean, "scale": scale, "normalise": x * scale, **_gained(x * scale, row, output)}


def _gained(normal: Tensor, row: dict[str, Tensor], output: torch.dtype) -> dict[str, Tensor]:
    gained = normal * row["gain"] if "gain" in row else normal
    gained = gained + row["bias"] if "bias" in row else gained
    return ({"gain": gained} if "gain" in row or "bias" in row else {}) | {"cast": gained.to(output)}


def _reduction(name: str, reduce: Callable[[Tensor], Tensor]):
    def steps(row: dict[str, Tensor], operator: Operator, output: torch.dtype) -> dict[str, Tensor]:
        total = reduce(row["x"])
        squares = {"square": row["x"].square()} if operator.kernel == "sum_of_squares" else {}
        return {**squares, name: total, "cast": total.to(output)}
    return steps


def _function(kernel: str):
    def steps(row: dict[str, Tensor], operator: Operator, output: torch.dtype) -> dict[str, Tensor]:
        value = _FUNCTIONS[kernel](*(row[name] for name in (*KERNELS[kernel].operands, "attribute") if name in row))
        return {kernel: value, "cast": value.to(output)}
    return steps


_STEPS = {"softmax": _softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "sum": _reduction("sum", lambda x: x.sum(-1)),
          "mean": _reduction("mean", lambda x: x.mean(-1)), "maximum": _reduction("maximum", lambda x: x.amax(-1)),
          "sum_of_squares": _reduction("sum", lambda x: x.square().sum(-1))}
_FUNCTIONS = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "scale": torch.mul, "cast": lambda x: x, "relu": torch.relu,
    "square": torch.square,
    "exp": torch.exp, "reciprocal": torch.reciprocal, "rsqrt": torch.rsqrt, "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def modes_of(operator: Operator, output: Tensor, index: int) -> dict[str, bool]:
    """Mode -> whether the vector unit's result for the row of the element is finite. Empty where a dtype has no format or the reference
    is not built."""
    from opd.compute import compute
    from opd.reference import ReferenceMissing

    row = row_of(operator, index)
    attribute = row.pop("attribute", None)
    if output.dtype not in FORMAT_NAMES or any(t.dtype not in FORMAT_NAMES for name, t in row.items() if name != MASK):
        return {}
    attributes = {} if attribute is None else {KERNELS[operator.kernel].attribute: float(attribute)}
    operands = {name: _array(tensor) for name, tensor in row.items()}
    try:
        return {mode: bool(np.isfinite(compute(operator.kernel, mode, operands, FORMAT_NAMES[output.dtype],
                                               **attributes).output.astype(np.float64)).all())
                for mode in MODES}
    except ReferenceMissing:
        return {}


def _array(tensor: Tensor) -> np.ndarray:
    import ml_dtypes

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.element_size() == 1 and tensor.is_floating_point():
        dtype = ml_dtypes.float8_e4m3fn if tensor.dtype == torch.float8_e4m3fn else ml_dtypes.float8_e5m2
        return tensor.view(torch.uint8).numpy().view(dtype)
    return tensor.numpy()
