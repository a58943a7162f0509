"""Largest errors of the vector unit's kernels, judged by NumPy in binary64, beside PyTorch's kernels on the same operands.

The operands are FP16, drawn with a fixed seed in strata of magnitude (`operands_of`). An error is |result - exact| over the
largest |exact| of the row (of the element, where a kernel is element-wise); a result that is not finite where the exact one is
below the output format's limit is counted as overflowed and has no error.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opd import compute

ROWS, COLUMNS, DEPTH = 64, 384, 96
SETS = 12  # random sets per kernel
MODES = ("FAST", "STABLE", "SAFE")
LIMITS = {"FP16": 65504.0, "BF16": 3.3895e38, "FP32": 3.4028e38}


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
    "silu": lambda x: x / (1 + np.exp(-x)), "exp": np.exp, "reciprocal": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
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


def operands_of(kernel: str, number: int) -> dict[str, np.ndarray]:
    """Random set `number`: FP16 operands whose exact result exists (no division by zero, no root of a negative number)."""
    random = np.random.default_rng([number, *kernel.encode()])
    level = 2.0 ** np.array([0, -12, -6, 3, 7, 12])[number % 6]

    def draw(rows: int, columns: int, scale: float) -> np.ndarray:
        x = random.standard_normal((rows, columns)) * scale
        if number % 4 == 1:  # binades spread over the row
            x *= 2.0 ** random.integers(-6, 3, x.shape)
        if number % 4 == 2:  # a mean far from 0: differences cancel
            x += 8 * scale
        if number % 4 == 3:  # pairs that cancel but for their last places
            x[:, 1::2] = -x[:, :columns - columns % 2:2] * (1 + 2.0 ** -9 * random.integers(-2, 3, x[:, 1::2].shape))
        return np.clip(x, -65504, 65504).astype(np.float16)

    names = EXACT[kernel].__code__.co_varnames[:EXACT[kernel].__code__.co_argcount] if kernel != "exp" else ("x",)
    if kernel in ("matmul", "linear"):
        found = {name: draw(ROWS if i == 0 else COLUMNS, DEPTH, level if i == 0 else 1.0) for i, name in enumerate(names[:2])}
        return found | ({"bias": draw(1, COLUMNS, 1.0)} if kernel == "linear" else {})
    found = {name: draw(1 if name in ("gain", "bias") else ROWS, COLUMNS, 1.0 if name in ("gain", "bias") else level) for name in names}
    if kernel in ("rsqrt", "reciprocal"):
        found["x"] = np.maximum(np.abs(found["x"]), np.float16(6e-5))
    if kernel == "exp":
        found["x"] = np.clip(found["x"], -80, 80)
    return found


class Worst:
    """The largest error so far, results that overflowed, and how many were judged."""

    def __init__(self):
        self.error, self.overflowed, self.elements = 0.0, 0, 0

    def judge(self, kernel: str, result: np.ndarray, exact: np.ndarray, limit: float) -> None:
        result = result.astype(np.float64).reshape(exact.shape)
        possible = np.abs(exact) <= limit
        finite = np.isfinite(result)
        self.elements += int(possible.sum())
        self.overflowed += int((possible & ~finite).sum())
        rows = kernel in ("softmax", "layer_norm", "rms_norm", "matmul", "linear")
        size = np.abs(exact).max(axis=1, keepdims=True) if rows else np.abs(exact)
        judged = possible & finite & (size > 0)
        if judged.any():
            self.error = max(self.error, float((np.abs(result - exact) / np.where(size > 0, size, 1))[judged].max()))

    def figures(self) -> dict:
        return {"largest_error": self.error, "overflowed": self.overflowed, "elements": self.elements}


def measure() -> dict:
    """{kernel: {column: figures}} with the columns FAST, STABLE, SAFE, torch FP16, torch FP32."""
    import torch

    kernels, found = torch_kernels(), {}
    for kernel, exact_of in EXACT.items():
        worst = {column: Worst() for column in (*MODES, "torch FP16", "torch FP32")}
        for number in range(SETS):
            operands = operands_of(kernel, number)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                exact = exact_of(*(value.astype(np.float64) for value in operands.values()))
            for mode in MODES:
                result = compute.compute(kernel, mode, operands, format="FP16")
                worst[mode].judge(kernel, compute.to_float64(result), exact, LIMITS["FP16" if mode == "FAST" else "BF16"])
            for column, dtype in (("torch FP16", torch.float16), ("torch FP32", torch.float32)):
                result = kernels[kernel](*(torch.from_numpy(value).to(dtype) for value in operands.values()))
                worst[column].judge(kernel, result.double().numpy(), exact, LIMITS[column[-4:]])
        found[kernel] = {column: w.figures() for column, w in worst.items()}
    return found
