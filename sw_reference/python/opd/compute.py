"""The computing vector unit on NumPy arrays, by the C++ reference (docs/vector_unit.md, docs/numerics.md "Vector unit").

    result = compute("rms_norm", "FAST", {"x": x, "gain": gain}, epsilon=1e-5)
    result.output, result.status["accumulator"], result.accumulators["nonfinite"], result.cost["cycles"]

An array's dtype is its format: float16 FP16, float32 FP32, ml_dtypes' bfloat16 BF16, float8_e4m3fn E4M3, float8_e5m2 E5M2; a mask is
bool or uint8. The last axis are the columns (of `a`, `b`, `x`, `weight` of a matrix kernel: the depth), all before it are rows; the
first axis of a matrix operand with three axes is the batch. The mode is a name. Everything wrong raises ComputeError, which says
what is.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from opd.reference import module
from opd.registers import Format, Mode
from opd.texts import quoted, suggestion
from opd.trace import FORMATS

ACCUMULATORS = ("PER_OPERATOR", "NARROW", "WIDE")  # CONTROL.ACCUMULATOR


class ComputeError(ValueError):
    """A kernel, operand, attribute or setting that does not fit; the message names it."""


@dataclass(frozen=True)
class Result:
    """One execution: what came out, what really ran, what the accumulators held, what it cost."""
    output: np.ndarray
    status: dict         # mode, format, accumulator, accumulates, compensated, compressed, saturating
    accumulators: dict | None  # format, max_mag (bits), largest (its value), writes, nonfinite; None: the kernel has none
    cost: dict           # passes, beats, cycles, bytes_read, bytes_written


@cache
def kernels() -> dict[str, dict]:
    """name -> its row of the table: shape, operands, required (so many of them), attribute ("": none), default, accumulates."""
    return {row["name"]: row for row in module().kernels()}


def compute(kernel: str, mode: str, operands: Mapping[str, np.ndarray], format: str | None = None, *, saturate: bool = False,
            accumulator: str = "PER_OPERATOR", datapath_width: int = 512, fp64_lanes: int = 8, matrix_rows: int = 16,
            **attribute: float) -> Result:
    """Runs a kernel. format: the operator's own, by default that of its first operand. The output has the shape of the first operand
    (without its last axis for a reduction; [batch,] rows, columns for a matrix kernel) and the dtype of the mode's output."""
    arguments, shape = _arguments(kernel, operands, format, attribute)
    settings = _settings(saturate, accumulator, datapath_width, fp64_lanes, matrix_rows)
    code = _mode(mode)
    output, status, accumulators, cost_ = _call(module().compute, mode=code, settings=settings, **arguments)
    return Result(output.view(FORMATS[status["format"]].numpy).reshape(shape), status, accumulators, cost_)


def compute_exact(kernel: str, operands: Mapping[str, np.ndarray], **attribute: float) -> np.ndarray:
    """The yardstick: the same in binary64, nothing rounded to a format; float64 in the shape of `compute`'s output."""
    arguments, shape = _arguments(kernel, operands, None, attribute)
    return _call(module().compute_exact, **arguments).reshape(shape)


def cost(kernel: str, mode: str, operands: Mapping[str, np.ndarray], format: str | None = None, *, saturate: bool = False,
         accumulator: str = "PER_OPERATOR", datapath_width: int = 512, fp64_lanes: int = 8, matrix_rows: int = 16,
         **attribute: float) -> tuple[dict, dict]:
    """(status, cost) of a kernel on operands of these shapes and dtypes; their elements are not read, so
    np.broadcast_to(np.float16(0), shape) does."""
    arguments, _ = _arguments(kernel, operands, format, attribute, elements=False)
    settings = _settings(saturate, accumulator, datapath_width, fp64_lanes, matrix_rows)
    return _call(module().cost, mode=_mode(mode), settings=settings, **arguments)


def _call(function, **arguments):
    try:
        return function(**arguments)
    except (ValueError, TypeError) as error:  # TypeError: a setting that is no unsigned number
        raise ComputeError(str(error).splitlines()[0]) from None


def _mode(mode: str) -> int:
    if mode not in Mode.__members__:
        raise ComputeError(f"mode: {quoted(str(mode))} is none of {', '.join(Mode.__members__)}")
    return int(Mode[mode])


def _settings(saturate: bool, accumulator: str, datapath_width: int, fp64_lanes: int, matrix_rows: int) -> dict[str, int]:
    if accumulator not in ACCUMULATORS:
        known = suggestion(str(accumulator), ACCUMULATORS, f"it is one of {', '.join(ACCUMULATORS)}")
        raise ComputeError(f"accumulator: {quoted(str(accumulator))} is unknown; {known}")
    settings = {"datapath_width": datapath_width, "fp64_lanes": fp64_lanes, "matrix_rows": matrix_rows}
    for name, value in settings.items():
        if not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << 32:
            raise ComputeError(f"{name}: {value!r} is no whole number of its range")
    return {**settings, "saturate": int(saturate), "accumulator": ACCUMULATORS.index(accumulator)}


def _format_of(kernel: str, name: str, array: np.ndarray) -> str:
    for format, layout in FORMATS.items():
        if array.dtype == layout.numpy:
            return format
    known = ", ".join(f"{layout.numpy.name} ({format})" for format, layout in FORMATS.items())
    raise ComputeError(f"{kernel}: operand {name} has dtype {array.dtype}; the formats are {known}")


def _attribute(row: dict, attributes: Mapping[str, float]) -> float:
    for name, value in attributes.items():
        if not row["attribute"]:
            raise ComputeError(f"{row['name']}: has no attribute {quoted(name)}; it has none")
        if name != row["attribute"]:
            raise ComputeError(f"{row['name']}: has no attribute {quoted(name)}; its attribute is {row['attribute']}")
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise ComputeError(f"{row['name']}: {name} is {value!r}, no number")
        return float(value)
    return row["default"]


def _arguments(kernel: str, operands: Mapping[str, np.ndarray], format: str | None, attributes: Mapping[str, float],
               elements: bool = True) -> tuple[dict, tuple[int, ...]]:
    """The arguments of opd._reference.compute that both calls share, and the shape of the output."""
    if kernel not in kernels():
        known = suggestion(str(kernel), kernels(), f"the kernels are {', '.join(kernels())}")
        raise ComputeError(f"kernel: there is no {quoted(str(kernel))}; {known}")
    row = kernels()[kernel]
    for name in operands:
        if name not in row["operands"]:
            known = suggestion(str(name), row["operands"], f"its operands are {', '.join(row['operands'])}")
            raise ComputeError(f"{kernel}: has no operand {quoted(str(name))}; {known}")
    for name in row["operands"][:row["required"]]:
        if name not in operands:
            raise ComputeError(f"{kernel}: operand {name} is missing; it needs {', '.join(row['operands'][:row['required']])}")
    if format is not None and format not in FORMATS:
        raise ComputeError(f"format: {quoted(str(format))} is none of {', '.join(FORMATS)}")

    matrix = row["shape"] == "matrix"
    arrays = {name: np.asarray(operands[name]) for name in row["operands"] if operands.get(name) is not None}
    packed, formats = {}, {}
    for name, array in arrays.items():
        if array.ndim == 0 or array.size == 0:
            raise ComputeError(f"{kernel}: operand {name} has shape {list(array.shape)}; give it one row and one column at least")
        if name == "mask":
            if array.dtype not in (np.bool_, np.uint8):
                raise ComputeError(f"{kernel}: operand mask has dtype {array.dtype}; give bool or uint8, 0 = hidden")
            formats[name] = "FP16"  # not read
        else:
            formats[name] = _format_of(kernel, name, array)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if elements else None
        packed[name] = (int(Format[formats[name]]), math.prod(array.shape[:-1]), array.shape[-1], flat)

    first = row["operands"][0]
    a = arrays[first]
    batch, depth = 1, 0
    rows, columns = math.prod(a.shape[:-1]), a.shape[-1]
    shape: tuple[int, ...] = a.shape
    if row["shape"] == "reduction":
        shape = a.shape[:-1]
    elif row["shape"] == "elementwise":  # an operand that is not the first may be the one with all rows
        widest = max(arrays.values(), key=lambda array: math.prod(array.shape[:-1]))
        rows, shape = math.prod(widest.shape[:-1]), widest.shape[:-1] + (columns,)
    elif matrix:
        second = row["operands"][1]
        b = arrays[second]
        for name, array in ((first, a), (second, b)):
            if array.ndim not in (2, 3) or (array.ndim == 3 and kernel != "matmul") or array.ndim != a.ndim:
                axes = "[rows, depth] or [batch, rows, depth], both alike" if kernel == "matmul" else "[rows, depth]"
                raise ComputeError(f"{kernel}: operand {name} has shape {list(array.shape)}; give {axes}")
        batch = a.shape[0] if a.ndim == 3 else 1
        if b.ndim == 3 and b.shape[0] != batch:
            raise ComputeError(f"{kernel}: operand {second} has batch {b.shape[0]}, {first} has {batch}")
        rows, columns, depth = a.shape[-2], b.shape[-2], a.shape[-1]
        shape = a.shape[:-1] + (columns,)
    arguments = {"kernel": kernel, "format": int(Format[format or formats[first]]), "batch": batch, "rows": rows, "columns": columns,
                 "depth": depth, "attribute": _attribute(row, attributes), "operands": packed}
    return arguments, shape
