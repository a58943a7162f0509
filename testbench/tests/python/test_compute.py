"""opd.compute: the C++ reference of the vector unit against NumPy in float64, its casts against NumPy's and ml_dtypes', its errors."""
from __future__ import annotations

import math

import numpy as np
import pytest

from opd.compute import ComputeError, compute, compute_exact, cost, kernels
from opd.trace import FORMATS

MODES = ("FAST", "STABLE", "SAFE")
HALF_STEP = {"FP16": 2.0**-11, "BF16": 2.0**-8, "E4M3": 2.0**-4, "E5M2": 2.0**-3, "FP32": 2.0**-24}  # of a normal number, relative
SMALLEST = {"FP16": 2.0**-25, "BF16": 2.0**-134, "E4M3": 2.0**-10, "E5M2": 2.0**-17, "FP32": 2.0**-150}  # half of the first subnormal


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def softmax(x, factor, mask=None):
    y = x * factor if mask is None else np.where(np.broadcast_to(mask, x.shape) != 0, x * factor, -np.inf)
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, epsilon, gain=1.0, bias=0.0):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gain + bias


# kernel -> what it is in float64
JUDGE = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "multiply_add": lambda a, b, c: a * b + c,
    "scale": lambda x, factor: x * factor,
    "cast": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "exp": lambda x: np.exp(x),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": lambda x: x * x,
    "sum": lambda x: x.sum(-1),
    "sum_of_squares": lambda x: np.square(x).sum(-1),
    "maximum": lambda x: x.max(-1),
    "mean": lambda x: x.mean(-1),
    "variance": lambda x, correction: np.square(x - x.mean(-1, keepdims=True)).sum(-1) / (x.shape[-1] - correction),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": lambda x, epsilon, gain=1.0: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * gain,
    "matmul": lambda a, b, factor: a @ b.swapaxes(-1, -2) * factor,
    "linear": lambda x, weight, bias=0.0: x @ weight.T + bias,
}
ATTRIBUTES = {"scale": 0.3125, "variance": 1.0, "softmax": 0.125, "layer_norm": 1e-5, "rms_norm": 1e-6, "matmul": 0.125}
ROWS, COLUMNS = 24, 400


def operands_of(kernel: str, format: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    dtype = FORMATS[format].numpy

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    operands: dict[str, np.ndarray] = {}
    for name in kernels()[kernel]["operands"]:
        if name == "mask":
            operands[name] = np.tri(ROWS, COLUMNS, COLUMNS - ROWS, dtype=bool)
        elif kernels()[kernel]["shape"] == "matrix":
            operands[name] = {"a": draw(2, ROWS, 64), "b": draw(2, 40, 64), "x": draw(ROWS, 64), "weight": draw(40, 64), "bias": draw(40)}[name]
        else:
            operands[name] = draw(COLUMNS) if name in ("gain", "bias") else draw(ROWS, COLUMNS)
    if kernel in ("reciprocal", "rsqrt"):
        operands["x"] = (np.abs(operands["x"].astype(np.float32)) + np.float32(0.25)).astype(dtype)
    return operands


def judged(kernel: str, operands: dict[str, np.ndarray]) -> np.ndarray:
    wide = {name: array if name == "mask" else array.astype(np.float64) for name, array in operands.items()}
    attribute = kernels()[kernel]["attribute"]
    return JUDGE[kernel](**wide, **({attribute: float(np.float32(ATTRIBUTES[kernel]))} if attribute else {}))


def attributes_of(kernel: str) -> dict[str, float]:
    return {kernels()[kernel]["attribute"]: ATTRIBUTES[kernel]} if kernel in ATTRIBUTES else {}


def test_every_kernel_has_a_judge():
    assert list(JUDGE) == list(kernels())
    assert {name for name, row in kernels().items() if row["attribute"]} == set(ATTRIBUTES)


@pytest.mark.parametrize("kernel", JUDGE)
def test_yardstick_is_numpy_in_float64(kernel):
    operands = operands_of(kernel, "FP16", np.random.default_rng(1))
    exact, wanted = compute_exact(kernel, operands, **attributes_of(kernel)), judged(kernel, operands)
    assert exact.shape == wanted.shape
    scale = np.abs(wanted).max()
    assert np.abs(exact - wanted).max() <= 1e-14 * COLUMNS * scale


@pytest.mark.parametrize("format", ("FP16", "BF16", "FP32"))
@pytest.mark.parametrize("kernel", JUDGE)
def test_errors_of_the_modes_are_within_their_arithmetic(kernel, format):
    """Against float64. What is added: half a step of the output; where the accumulators are narrow, half a step of theirs for every
    addition that a lane and the tree do, on numbers as large as the row's sum of magnitudes. An element is held against its own
    magnitude, in a row kernel and a reduction against the row's."""
    operands = operands_of(kernel, format, np.random.default_rng(2))
    row = kernels()[kernel]
    exact = judged(kernel, operands)
    errors = {}
    for mode in MODES:
        result = compute(kernel, mode, operands, **attributes_of(kernel))
        output, accumulator = result.status["format"], result.status["accumulator"]
        assert result.output.dtype == FORMATS[output].numpy and result.output.shape == exact.shape
        got = result.output.astype(np.float64)
        assert np.isfinite(got).all()
        lanes = 512 // (16 if format != "FP32" else 32)
        additions = 64 if row["shape"] == "matrix" else COLUMNS / lanes + math.log2(lanes)
        bound = HALF_STEP[output] + 2.0**-21  # the lanes' binary32
        scale = np.abs(exact)
        if row["accumulates"]:
            half = HALF_STEP["FP32"] if accumulator == "FP64" else HALF_STEP[accumulator]
            bound += 3 * additions * half + 4 * (HALF_STEP[format] if accumulator == format else HALF_STEP["FP32"])
        if row["shape"] == "matrix":
            first, second = (np.abs(operands[name].astype(np.float64)) for name in row["operands"][:2])
            scale = first @ second.swapaxes(-1, -2) * ATTRIBUTES.get(kernel, 1.0) + np.abs(exact)
        elif kernel in ("sum", "mean"):
            scale = np.abs(operands["x"].astype(np.float64)).sum(-1) / (COLUMNS if kernel == "mean" else 1)
        elif kernel == "layer_norm":  # cancellation against the mean, and the bias
            scale = np.abs(exact) + np.abs(operands["gain"].astype(np.float64)) + np.abs(operands["bias"].astype(np.float64)) + 1
        slack = SMALLEST[output]
        if kernel in ("gelu", "gelu_tanh", "silu"):  # gauss and sigmoid have steps of binary32 around 1
            slack = slack + 2.5e-7 * np.abs(operands["x"].astype(np.float64))
        error = (np.abs(got - exact) - slack) / np.maximum(scale, 1e-300)
        errors[mode] = error.max()
        assert errors[mode] <= bound, (mode, errors[mode], bound)
    if row["accumulates"] and format == "FP32":
        assert errors["SAFE"] <= errors["FAST"]


@pytest.mark.parametrize("format", FORMATS)
def test_casts_are_those_of_numpy_and_ml_dtypes(format):
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, np.uint32)
    if format != "FP32":  # patterns whose dropped bits are a tie, or one away from it
        kept = {"FP16": 10, "BF16": 7, "E4M3": 3, "E5M2": 2}[format]
        tie = np.uint32(1 << (22 - kept))
        bits[::4] = bits[::4] >> np.uint32(23 - kept) << np.uint32(23 - kept) | tie
        bits[1::4] = bits[::4] + np.uint32(1)
        bits[2::4] = bits[::4] - np.uint32(1)
        bits[: 1 << 19] = bits[: 1 << 19] & np.uint32(0x8FFFFFFF) | np.uint32(0x30000000)  # exponents that the format has
    x = bits.view(np.float32).reshape(1, -1)
    got = compute("cast", "FAST", {"x": x}, format).output
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(FORMATS[format].numpy)
    word = f"u{wanted.dtype.itemsize}"
    nan = np.isnan(wanted.astype(np.float32))
    assert (np.isnan(got.astype(np.float32)) == nan).all()
    assert (got.view(word)[~nan] == wanted.view(word)[~nan]).all()
    assert len(np.unique(got.view(word)[nan])) <= 1  # one canonical NaN


def test_modes_differ_where_the_article_says():
    """A sum of squares that FP16 cannot hold: the output of RMSNorm is finite in every mode, and wrong in one."""
    x = np.full((1, 64), 300, np.float16)
    results = {mode: compute("rms_norm", mode, {"x": x}) for mode in MODES}
    assert (results["FAST"].output == 0).all()
    assert results["FAST"].accumulators["nonfinite"] > 0
    for mode in ("STABLE", "SAFE"):
        assert (results[mode].output == 1).all()
        assert results[mode].accumulators["nonfinite"] == 0
    assert results["STABLE"].accumulators["largest"] == 64 * 300.0**2
    assert results["SAFE"].accumulators["largest"] == 64 * (300 / 256) ** 2


def test_shapes_and_settings():
    x = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    assert compute("sum", "FAST", {"x": x}).output.tolist() == x.astype(int).sum(-1).tolist()
    assert compute("relu", "STABLE", {"x": x[0, 0]}).output.shape == (4,)
    assert compute("add", "FAST", {"a": x[0, :1], "b": x[1]}).output.tolist() == (x[0, :1] + x[1]).tolist()
    large = np.full((1, 2), 60000, np.float16)
    assert np.isinf(compute("add", "FAST", {"a": large, "b": large}).output).all()
    assert (compute("add", "FAST", {"a": large, "b": large}, saturate=True).output == 65504).all()
    product = {"a": np.full((1, 64), 40, np.float16), "b": np.full((1, 64), 40, np.float16)}
    assert compute("matmul", "FAST", product, factor=0.125).output.item() == 64 * 1600 / 8
    assert np.isinf(compute("matmul", "FAST", product, factor=0.125, accumulator="NARROW").output).all()
    # Fortran order and a transposed view are read by their elements.
    assert (compute("cast", "FAST", {"x": np.asfortranarray(x[0])}).output == x[0]).all()


def test_cost_reads_shapes_alone():
    shape = np.broadcast_to(np.float16(0), (4, 64))
    status, of_shape = cost("softmax", "SAFE", {"x": shape})
    assert of_shape == {"passes": 3, "beats": 24, "cycles": 229, "bytes_read": 1024, "bytes_written": 512}  # docs/vector_unit.md
    result = compute("softmax", "SAFE", {"x": np.ascontiguousarray(shape)})
    assert (result.status, result.cost) == (status, of_shape)


X = np.ones((2, 4), np.float16)


@pytest.mark.parametrize("call, message", [
    (lambda: compute("sofmax", "FAST", {"x": X}), 'kernel: there is no "sofmax"; did you mean softmax?'),
    (lambda: compute("softmax", "FASTER", {"x": X}), 'mode: "FASTER" is none of FAST, STABLE, SAFE'),
    (lambda: compute("softmax", "FAST", {"x": X}, facto=2), 'softmax: has no attribute "facto"; its attribute is factor'),
    (lambda: compute("sum", "FAST", {"x": X}, factor=2), 'sum: has no attribute "factor"; it has none'),
    (lambda: compute("add", "FAST", {"a": X}), "add: operand b is missing; it needs a, b"),
    (lambda: compute("rms_norm", "FAST", {"x": X, "gian": X}), 'rms_norm: has no operand "gian"; did you mean gain?'),
    (lambda: compute("add", "FAST", {"a": X, "b": X[:, :3]}), "add: operand b is [2, 3], not [1..2, 4]"),
    (lambda: compute("softmax", "FAST", {"x": X, "mask": np.ones((3, 4), bool)}), "softmax: operand mask is [3, 4], not [1..2, 4]"),
    (lambda: compute("softmax", "FAST", {"x": X, "mask": X}), "softmax: operand mask has dtype float16; give bool or uint8, 0 = hidden"),
    (lambda: compute("relu", "FAST", {"x": X.astype(np.float64)}), "relu: operand x has dtype float64; the formats are float16 (FP16)"),
    (lambda: compute("relu", "FAST", {"x": X[:0]}), "relu: operand x has shape [0, 4]; give it one row and one column at least"),
    (lambda: compute("matmul", "FAST", {"a": X, "b": X[:, :2]}), "matmul: operand b is [2, 2], not [2, 4]"),
    (lambda: compute("linear", "FAST", {"x": X[None], "weight": X}), "linear: operand x has shape [1, 2, 4]; give [rows, depth]"),
    (lambda: compute("relu", "FAST", {"x": X}, datapath_width=100), "datapath_width: 100 is no multiple of 32"),
    (lambda: compute("relu", "FAST", {"x": X}, fp64_lanes=-1), "fp64_lanes: -1 is no whole number of its range"),
    (lambda: compute("relu", "FAST", {"x": X}, accumulator="WIDER"), 'accumulator: "WIDER" is unknown; did you mean WIDE?'),
    (lambda: compute("relu", "FAST", {"x": X}, format="FP8"), 'format: "FP8" is none of FP16, BF16, E4M3, E5M2, FP32'),
    (lambda: cost("variance", "FAST", {"x": X}, correction="one"), "variance: correction is 'one', no number"),
])
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(ComputeError) as error:
        call()
    assert str(error.value).startswith(message)

