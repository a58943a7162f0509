"""Largest errors of the vector unit's kernels, judged by NumPy in binary64, beside PyTorch's kernels on the same operands.

The operands are FP16 or FP32, drawn with a fixed seed in strata of magnitude (`operands_of`). An error is |result - exact| over |exact|
where the kernel is element-wise or sums squares, over the largest |exact| of the row of a row or matrix kernel, over the sum
(mean) of the magnitudes of a sum (mean); below 2^-14, the smallest normal FP16 number, nothing is judged. A result that is not
finite where the exact one is within the output format is counted as overflowed and has no error.
"""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np

import environment  # noqa: F401  finds the package opd
from opd import compute, trace

ROWS, COLUMNS, DEPTH = 64, 384, 96
SETS = 12  # random sets per kernel
SMALLEST = 2.0 ** -14
MODES = {"FAST": ("FAST", "PER_OPERATOR"), "FAST, FP32 accumulators": ("FAST", "WIDE"), "STABLE": ("STABLE", "PER_OPERATOR"),
         "SAFE": ("SAFE", "PER_OPERATOR")}  # column: mode and accumulators
TORCH = {"PyTorch FP16": "float16", "PyTorch FP32": "float32"}
# Format of operator and operands: the columns that say something of it, and exponents of the operands' levels.
FORMATS = {"FP16": ((*MODES, *TORCH), (0, -12, -6, 3, 7, 12)),
           "FP32": (("FAST", "SAFE", "PyTorch FP32"), (0, -12, -6, 10, 40, 70))}
LIMITS = {name: float(layout.max_value) for name, layout in trace.FORMATS.items()}


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def mean_of(x: np.ndarray) -> np.ndarray:
    return x.mean(axis=1, keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# Kernel: its exact result from binary64 operands, attributes at their defaults.
EXACT: dict[str, Callable[..., np.ndarray]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b, "multiply_add": lambda a, b, c: a * b + c,
    "scale": lambda x: x, "cast": lambda x: x, "relu": lambda x: np.maximum(x, 0), "square": lambda x: x * x,
    "gelu": lambda x: np.where(x < 0, 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2)), 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
    "silu": lambda x: x / (1 + np.exp(-x)), "exp": lambda x: np.exp(x), "reciprocal": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sum": lambda x: x.sum(axis=1, keepdims=True), "sum_of_squares": lambda x: (x * x).sum(axis=1, keepdims=True),
    "maximum": lambda x: x.max(axis=1, keepdims=True), "mean": mean_of,
    "variance": lambda x: ((x - mean_of(x)) ** 2).mean(axis=1, keepdims=True), "softmax": softmax,
    "layer_norm": lambda x, gain, bias: (x - mean_of(x)) / np.sqrt(((x - mean_of(x)) ** 2).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gain + bias,
    "rms_norm": lambda x, gain: x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)) * gain,
    "matmul": lambda a, b: a @ b.T, "linear": lambda x, weight, bias: x @ weight.T + bias}


def torch_kernels() -> dict[str, Callable]:
    """What PyTorch has for each kernel, for operands of any type."""
    import torch
    from torch.nn import functional

    return {
        "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "multiply_add": lambda a, b, c: torch.addcmul(c, a, b),
        "scale": lambda x: x * 1.0, "cast": lambda x: x, "relu": torch.relu, "square": torch.square, "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "silu": functional.silu, "exp": torch.exp,
        "reciprocal": torch.reciprocal, "rsqrt": torch.rsqrt, "sum": lambda x: x.sum(1, keepdim=True),
        "sum_of_squares": lambda x: x.square().sum(1, keepdim=True), "maximum": lambda x: x.amax(1, keepdim=True),
        "mean": lambda x: x.mean(1, keepdim=True), "variance": lambda x: x.var(1, correction=0, keepdim=True),
        "softmax": lambda x: torch.softmax(x, 1),
        "layer_norm": lambda x, gain, bias: functional.layer_norm(x, x.shape[1:], gain[0], bias[0], 1e-5),
        "rms_norm": lambda x, gain: functional.rms_norm(x, x.shape[1:], gain[0], 1e-6),
        "matmul": lambda a, b: a @ b.T, "linear": lambda x, weight, bias: functional.linear(x, weight, bias[0])}


def operands_of(kernel: str, format: str, number: int) -> dict[str, np.ndarray]:
    """Random set `number`: operands whose exact result exists (no division by zero, no root of a negative number)."""
    random = np.random.default_rng([number, *kernel.encode()])
    dtype = np.float16 if format == "FP16" else np.float32
    level = 2.0 ** FORMATS[format][1][number % 6]

    def draw(rows: int, columns: int, scale: float) -> np.ndarray:
        x = random.standard_normal((rows, columns)) * scale
        if number % 4 == 1:  # binades spread over the row
            x *= 2.0 ** random.integers(-6, 3, x.shape)
        if number % 4 == 2:  # a mean far from 0: differences cancel
            x += 8 * scale
        if number % 4 == 3:  # pairs that cancel but for their last places
            x[:, 1::2] = -x[:, :columns - columns % 2:2] * (1 + 2.0 ** (-9 if format == "FP16" else -22) * random.integers(-2, 3, x[:, 1::2].shape))
        return np.clip(x, -LIMITS[format], LIMITS[format]).astype(dtype)

    names = tuple(inspect.signature(EXACT[kernel]).parameters)
    if kernel in ("matmul", "linear"):
        found = {name: draw(ROWS if i == 0 else COLUMNS, DEPTH, level if i == 0 else 1.0) for i, name in enumerate(names[:2])}
        return found | ({"bias": draw(1, COLUMNS, 1.0)} if kernel == "linear" else {})
    found = {name: draw(1 if name in ("gain", "bias") else ROWS, COLUMNS, 1.0 if name in ("gain", "bias") else level) for name in names}
    if kernel in ("rsqrt", "reciprocal"):
        found["x"] = np.maximum(np.abs(found["x"]), dtype(2.0 ** -14))
    if kernel == "exp":
        found["x"] = np.clip(found["x"], -80, 80)
    return found


class Worst:
    """The largest error so far, results that overflowed, and how many were judged."""

    def __init__(self):
        self.error, self.overflowed, self.elements = 0.0, 0, 0

    def judge(self, result: np.ndarray, exact: np.ndarray, size: np.ndarray, limit: float) -> None:
        """size: what an error is relative to, of the shape of `exact` or of its rows."""
        result = result.astype(np.float64).reshape(exact.shape)
        possible, finite = np.abs(exact) <= limit, np.isfinite(result)
        self.elements += int(possible.sum())
        self.overflowed += int((possible & ~finite).sum())
        size = np.broadcast_to(size, exact.shape)
        judged = possible & finite & (size >= SMALLEST)
        if judged.any():
            self.error = max(self.error, float((np.abs(result - exact)[judged] / size[judged]).max()))

    def figures(self) -> dict:
        return {"largest_error": self.error, "overflowed": self.overflowed, "elements": self.elements}


def size_of(kernel: str, operands: dict[str, np.ndarray], exact: np.ndarray) -> np.ndarray:
    """What an error of the kernel is relative to."""
    if kernel in ("sum", "mean"):
        return EXACT[kernel](np.abs(operands["x"].astype(np.float64)))
    if kernel in ("softmax", "layer_norm", "rms_norm", "matmul", "linear"):
        return np.abs(exact).max(axis=1, keepdims=True)
    return np.abs(exact)


def measure(format: str) -> dict:
    """{kernel: {column: figures}} of operators in the format, over the columns of FORMATS."""
    import torch

    kernels, found, columns = torch_kernels(), {}, FORMATS[format][0]
    for kernel, exact_of in EXACT.items():
        worst = {column: Worst() for column in columns}
        for number in range(SETS):
            operands = operands_of(kernel, format, number)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                exact = exact_of(*(value.astype(np.float64) for value in operands.values()))
            size = size_of(kernel, operands, exact)
            for column in columns:
                if column in MODES:
                    mode, accumulator = MODES[column]
                    result = compute.compute(kernel, mode, operands, accumulator=accumulator)
                    worst[column].judge(result.output, exact, size, LIMITS[result.status["format"]])
                else:
                    tensors = (torch.from_numpy(value).to(getattr(torch, TORCH[column])) for value in operands.values())
                    worst[column].judge(kernels[kernel](*tensors).double().numpy(), exact, size, LIMITS[column[-4:]])
        found[kernel] = {column: w.figures() for column, w in worst.items()}
    return found
