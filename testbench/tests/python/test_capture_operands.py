"""opd.capture, operands: which operator made a probe, what it computed from, in which steps that is kept; what is said when not."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"

from opd.capture import Capture, CaptureError, cli, read_journal, recover  # noqa: E402
from opd.capture import operands as operands_module  # noqa: E402
from opd.capture.journal import CRC, HEAD, MAGIC, OPERANDS, read_records  # noqa: E402
from opd.compute import compute  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.trace import Trace  # noqa: E402
from test_capture import Gpt  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

torch.set_num_threads(1)

TYPES = {"FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32}
TOLERANCE = {"FP16": 2e-3, "BF16": 2e-2, "FP32": 2e-5}  # of the largest output


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "run.safetensors"


def double(elements: np.ndarray) -> np.ndarray:
    return elements.astype(np.float64)


def computed(operator: dict, own: dict[str, np.ndarray]) -> np.ndarray:
    """What the operator makes of its operands in one step, in binary64: docs/numerics.md "Kernels", without casts."""
    kernel, values = operator["kernel"], {name: double(elements) for name, elements in own.items()}
    rows = operator["rows"]
    x = values.get("x")

    def spread(name: str) -> np.ndarray:
        return np.resize(values[name], (rows, operator["columns"]))  # row r reads row r mod the number of rows

    if kernel == "matmul":
        a, b = (values[name].reshape(operator["batch"], -1, operator["depth"]) for name in "ab")
        return (a @ b.transpose(0, 2, 1) * operator["factor"]).ravel()
    if kernel == "linear":
        return (x @ values["weight"].T + values.get("bias", 0)).ravel()
    if kernel == "softmax":
        y = np.where(spread("mask") > 0, x, -np.inf) if "mask" in values else x
        e = np.exp(y - y.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).ravel()
    if kernel in ("layer_norm", "rms_norm"):
        y = x - x.mean(-1, keepdims=True) if kernel == "layer_norm" else x
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + operator["epsilon"])
        return (y * values.get("gain", 1) + values.get("bias", 0)).ravel()
    if kernel in ("sum", "mean", "maximum", "sum_of_squares"):
        return {"sum": x.sum(-1), "mean": x.mean(-1), "maximum": x.max(-1), "sum_of_squares": (x * x).sum(-1)}[kernel]
    if kernel in ("add", "subtract", "multiply"):
        return {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[kernel](spread("a"), spread("b")).ravel()
    erf = np.vectorize(math.erf)
    return {"scale": lambda: x * operator.get("factor", 1), "cast": lambda: x, "relu": lambda: np.maximum(x, 0),
            "gelu": lambda: x * 0.5 * (1 + erf(x / math.sqrt(2))), "silu": lambda: x / (1 + np.exp(-x)), "square": lambda: x * x,
            "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "exp": lambda: np.exp(x), "reciprocal": lambda: 1 / x, "rsqrt": lambda: 1 / np.sqrt(x)}[kernel]().ravel()


def check_outputs(trace: Trace, probes=None) -> None:
    """Every operator with operands computes from them what PyTorch wrote."""
    formats = {probe.name: probe.format for probe in trace.probes}
    operators = {operator["probe"]: operator for operator in trace.operators}
    for name in probes or trace.outputs:
        for row, wrote in enumerate(double(trace.outputs[name])):
            made = computed(operators[name], {key: values[row] for key, values in trace.operands[name].items()})
            assert np.abs(made - wrote).max() <= TOLERANCE[formats[name]] * max(np.abs(wrote).max(), 1e-3), (name, row)


def operator(trace: Trace, name: str) -> dict:
    return next(item for item in trace.operators if item["probe"] == name)


def formats_of(trace: Trace, name: str) -> dict[str, str]:
    return {key: operand.get("format", "-") for key, operand in operator(trace, name)["operands"].items()}


def bits(tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


class Spy:
    """What modules got and gave, by hooks of its own."""

    def __init__(self, model: nn.Module):
        self.seen: dict[str, list[tuple]] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(lambda module, given, output, name=name: self.seen.setdefault(name, []).append(
                (tuple(tensor.detach().clone() for tensor in given), output.detach().clone())))


def train(model: nn.Module, file: Path, draw, steps: int = 3, autocast: torch.dtype | None = None, **options) -> Trace:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Capture(model, file, optimizer=optimizer, **{"probes": "output", "operands": "*", "operand_steps": [1], **options}) as c:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = model(draw()).float().square().mean()
            loss.backward()
            optimizer.step()
            c.step(loss=loss)
    return Trace.read(file)


# --- operators -------------------------------------------------------------------------------------------------------


class Softmax(nn.Module):
    def forward(self, x):
        future = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
        return functional.softmax(x.masked_fill(future, -torch.inf), dim=-1).to(x.dtype)


class LlamaNorm(nn.Module):
    """RMS norm as Hugging Face writes it."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.variance_epsilon = 1e-3

    def forward(self, x):
        kind, x = x.dtype, x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(kind)


class NarrowLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).half()


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def one(module: nn.Module, file: Path, *given, autocast: torch.dtype | None = None, probe: str = "0", **options) -> Trace:
    """A capture of one module on these inputs, as module `0` behind one that makes it a training."""
    model = nn.Sequential(module)
    model.extra = nn.Linear(1, 1)
    with Capture({"": model}, file, **{"probes": probe, "operands": "*", "operand_steps": [0], **options}) as c:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            model[0](*given)
        c.step()
    return Trace.read(file)


X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(2))
MASK = torch.where(torch.rand(3, 8, generator=torch.Generator().manual_seed(3)) < 0.3, -torch.inf, 0.0)
KINDS = [
    (nn.LayerNorm(8), (X,), "layer_norm", ["x", "gain", "bias"]), (nn.LayerNorm(8, elementwise_affine=False), (X,), "layer_norm", ["x"]),
    (nn.LayerNorm((3, 8)), (X,), "layer_norm", ["x", "gain", "bias"]),
    (nn.RMSNorm(8, eps=1e-3), (X,), "rms_norm", ["x", "gain"]), (nn.RMSNorm(8), (X * 1e-3,), "rms_norm", ["x", "gain"]),
    (LlamaNorm(8), (X * 0.1,), "rms_norm", ["x", "gain"]), (nn.Linear(8, 5), (X,), "linear", ["x", "weight", "bias"]),
    (nn.Linear(8, 5, bias=False), (X,), "linear", ["x", "weight"]), (nn.GELU(), (X,), "gelu", ["x"]),
    (nn.GELU("tanh"), (X,), "gelu_tanh", ["x"]), (nn.SiLU(), (X,), "silu", ["x"]), (nn.ReLU(), (X,), "relu", ["x"]),
    (nn.Softmax(-1), (X,), "softmax", ["x"]), (nn.Softmax(2), (X,), "softmax", ["x"]), (Softmax(), (X,), "softmax", ["x", "mask"]),
    (Function(lambda x, mask: (x + mask).softmax(-1)), (X, MASK), "softmax", ["x", "mask"]),
    (Function(lambda x, mask: (x + mask).softmax(-1)), (X, MASK.clamp(min=-1e4)), "softmax", ["x"]),
    (Function(lambda x, y: x @ y.transpose(-1, -2)), (X, Y), "matmul", ["a", "b"]),
    (Function(lambda x, y: torch.bmm(x, y.transpose(1, 2))), (X, Y), "matmul", ["a", "b"]),
    (Function(lambda x, y: x @ y[0].T), (X, Y), "matmul", ["a", "b"]),
    (Function(lambda x, y: torch.baddbmm(x.new_empty(2, 3, 3), x, y.mT, beta=0, alpha=0.25)), (X, Y), "matmul", ["a", "b"]),
    (Function(torch.add), (X, Y), "add", ["a", "b"]), (Function(lambda x, y: x + y), (X, Y[:1, 0]), "add", ["a", "b"]),
    (Function(lambda x, y: x.clone().add_(y)), (X, Y), "add", ["a", "b"]), (Function(lambda x, y: x - y), (X, Y), "subtract", ["a", "b"]),
    (Function(lambda x, y: x * y), (X, Y), "multiply", ["a", "b"]), (Function(lambda x: x * 3), (X,), "scale", ["x"]),
    (Function(lambda x: x.half()), (X,), "cast", ["x"]), (Function(lambda x: (x * x).sum(-1, keepdim=True)), (X,), "sum_of_squares", ["x"]),
    (Function(lambda x: x.pow(2).sum(dim=2)), (X,), "sum_of_squares", ["x"]), (Function(lambda x: x.sum(-1)), (X,), "sum", ["x"]),
    (Function(lambda x: x.mean(-1)), (X,), "mean", ["x"]), (Function(lambda x: x.amax(-1)), (X,), "maximum", ["x"]),
    (Function(lambda x: x**2), (X,), "square", ["x"]), (Function(lambda x: x.exp()), (X,), "exp", ["x"]),
    (Function(lambda x: x.reciprocal()), (X + 5,), "reciprocal", ["x"]), (Function(lambda x: torch.rsqrt(x)), (X + 5,), "rsqrt", ["x"]),
]
STAYS_IN_X = next(at for at, (_, given, kernel, names) in enumerate(KINDS) if kernel == "softmax" and len(given) > len(names))


@pytest.mark.parametrize("at", range(len(KINDS)))
def test_each_operator_from_what_its_module_got(file, at):
    module, given, kernel, wanted = KINDS[at]
    trace = one(module, file, *given)
    found = operator(trace, "0")
    assert found["kernel"] == kernel and list(trace.operands["0"]) == wanted and trace.operand_step.tolist() == [0]
    first = trace.operands["0"][wanted[0]][0]
    wanted = given[0] + given[1] if at == STAYS_IN_X else given[0]
    assert np.array_equal(first.ravel(), wanted.numpy().ravel())
    with torch.no_grad():
        assert trace.outputs["0"][0].tobytes() == bits(module(*given))
    check_outputs(trace)
    assert "missing" not in trace.manifest["operands"]


@pytest.mark.parametrize("function", [lambda x, y: torch.relu_(x), lambda x, y: functional.silu(x, inplace=True),
                                      lambda x, y: functional.relu(x, True), lambda x, y: x.add_(y), lambda x, y: x.mul_(y)])
def test_an_input_that_is_overwritten_is_what_it_was(file, function):
    given = X.clone()
    trace = one(Function(function), file, given, Y)
    first = next(iter(trace.operands["0"].values()))[0]
    assert np.array_equal(first.ravel(), X.numpy().ravel()) and not torch.equal(given, X)
    check_outputs(trace)


@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16"])
def test_formats_are_those_that_were_computed_with(file, precision):
    """Of a product under autocast the casts; of the others what they were given."""
    torch.manual_seed(0)
    model, half = Gpt(), TYPES[precision]
    spy = Spy(model)
    trace = train(model, file, lambda: torch.randint(19, (2, 6)), probes="output,logits,softmax",
                  autocast=None if precision == "FP32" else half)
    assert formats_of(trace, "blocks.0.attn.qkv") == dict.fromkeys(("x", "weight", "bias"), precision)
    assert formats_of(trace, "blocks.1.attn:logits") == dict.fromkeys("ab", precision)
    assert formats_of(trace, "blocks.1.attn:softmax") == {"x": precision, "mask": "-"}
    assert formats_of(trace, "blocks.0.norm1") == dict.fromkeys(("x", "gain", "bias"), "FP32")  # the stream is FP32
    assert formats_of(trace, "blocks.0.mlp.1") == {"x": precision}
    check_outputs(trace)
    given, output = spy.seen["blocks.0.attn.qkv"][1]  # step 1, whose weights the spy does not know: before the optimizer's step
    own = trace.operands["blocks.0.attn.qkv"]
    assert own["x"][0].tobytes() == bits(given[0].to(half)) and trace.outputs["blocks.0.attn.qkv"][0].tobytes() == bits(output)
    given, _ = spy.seen["blocks.1.mlp.1"][1]
    assert trace.operands["blocks.1.mlp.1"]["x"][0].tobytes() == bits(given[0])
    assert np.array_equal(trace.operands["blocks.1.attn:softmax"]["mask"][0], np.tril(np.ones((6, 6))))
    # What is no operator's output has none; everything else is listed.
    assert {probe.name for probe in trace.probes} - {item["probe"] for item in trace.operators} == {"embedding"}
    assert trace.manifest["operands"]["missing"] == {
        "embedding": "its output is made by embedding, which is no kernel of the vector unit"}


def test_a_norm_that_is_narrowed_behind(file):
    trace = one(NarrowLayerNorm(8), file, X.half(), autocast=torch.float16)
    assert trace.probes[0].format == "FP16" and formats_of(trace, "0") == {"x": "FP16", "gain": "FP32", "bias": "FP32"}
    check_outputs(trace)


def test_weights_are_those_before_the_optimizer_changed_them(file):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    weights = []
    model[0].register_forward_pre_hook(lambda module, given: weights.append(module.weight.detach().clone()))
    trace = train(model, file, lambda: torch.randn(3, 4), operand_steps=[0, 2])
    assert trace.operand_step.tolist() == [0, 2] and not torch.equal(weights[0], weights[2])
    for row, step in enumerate((0, 2)):
        assert np.array_equal(trace.operands["0"]["weight"][row], weights[step].numpy())


@pytest.mark.parametrize("heads", [4, 2])
def test_fused_attention_is_the_product_that_is_computed_a_second_time(file, heads):
    class Attention(nn.Module):
        def forward(self, x):
            self.q, self.k = x.view(2, 6, 4, 8).transpose(1, 2), (x * 2).view(2, 6, 4, 8).transpose(1, 2)[:, :heads]
            return functional.scaled_dot_product_attention(self.q, self.k, self.k, scale=0.5, enable_gqa=heads != 4)
    module = Attention()
    trace = one(module, file, torch.randn(2, 6, 32).half(), probe="logits,softmax", sideband="full")
    found = operator(trace, "0:logits")
    assert (found["batch"], found["rows"], found["columns"], found["depth"], found["factor"]) == (8, 6, 6, 8, 0.5)
    assert trace.probes[0].format == "FP32" and formats_of(trace, "0:logits") == {"a": "FP16", "b": "FP16"}
    assert trace.operands["0:logits"]["a"][0].tobytes() == bits(module.q)
    keys = module.k.repeat_interleave(4 // heads, 1)
    assert trace.operands["0:logits"]["b"][0].tobytes() == bits(keys)
    assert not trace.outputs  # it never leaves the kernel
    largest = np.abs(computed(found, {name: rows[0] for name, rows in trace.operands["0:logits"].items()})).max()
    assert trace.max_abs[0, 0] == pytest.approx(largest, rel=1e-5)
    assert trace.manifest["operands"]["missing"] == {"0:softmax": "its input never leaves the fused kernel"}


@pytest.mark.parametrize("mask", ["masked_fill", "masked_fill_", "add", "where", "after a cast", "changed since"])
def test_mask_of_attention_written_out(file, mask):
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)

    class Attention(nn.Module):
        def forward(self, q, k):
            logits = q @ k.transpose(-1, -2)
            if mask == "add":
                logits = logits + torch.zeros(6, 6, dtype=q.dtype).masked_fill(hidden, -torch.inf)
            elif mask == "where":
                logits = torch.where(~hidden, logits, -torch.inf)
            elif mask.startswith("masked_fill_") or mask == "changed since":
                logits.masked_fill_(hidden, -torch.inf)
                if mask == "changed since":
                    logits.mul_(2)
            else:
                logits = logits.masked_fill(hidden, -torch.inf)
            return logits.float().softmax(-1) if mask == "after a cast" else logits.softmax(-1)
    q, k = torch.randn(2, 2, 6, 4).bfloat16(), torch.randn(2, 2, 6, 4).bfloat16()
    trace = one(Attention(), file, q, k, probe="logits,softmax")
    own = trace.operands["0:softmax"]
    logits = trace.outputs["0:logits"][0]
    if mask == "changed since":  # then it stays in x
        assert list(own) == ["x"] and np.isneginf(own["x"].astype(np.float32)).sum() == 4 * 15
    else:
        assert np.array_equal(own["mask"][0], np.tril(np.ones((6, 6)))) and own["x"][0].ravel().tobytes() == logits.tobytes()
    if mask == "after a cast":
        assert formats_of(trace, "0:softmax")["x"] == "BF16" and trace.probes[1].format == "FP32"
    check_outputs(trace)


# --- hand-written norms ----------------------------------------------------------------------------------------------


class HalfRmsNorm(nn.Module):
    """The sum of squares overflows in FP16; a gain in a child, an epsilon of its own."""

    def __init__(self, width: int, formula=lambda x, squares, eps: x * torch.rsqrt(squares / x.shape[-1] + eps)):
        super().__init__()
        self.gain = nn.Linear(width, 1, bias=False)
        self.eps, self.formula = 1e-5, formula

    def forward(self, x):
        return self.formula(x, (x * x).sum(-1, keepdim=True), self.eps) * self.gain.weight[0].to(x.dtype)


def test_a_hand_written_norm_whose_sum_overflows(file):
    module = HalfRmsNorm(8)
    model = nn.Sequential(module)
    small, large = X.half(), (X * 300).half()
    with Capture(model, file, probes="0", operands="0", operand_steps=[0, 1]) as c:
        for x in (small, large):
            model(x)
            c.step()
    trace = Trace.read(file)
    assert operator(trace, "0")["kernel"] == "rms_norm" and operator(trace, "0")["epsilon"] == pytest.approx(1e-5)
    assert trace.operands["0"]["x"][1].tobytes() == bits(large)
    assert np.array_equal(trace.operands["0"]["gain"][0][0], module.gain.weight[0].detach().numpy())
    check_outputs(Trace(**{**vars(trace), "operands": {"0": {k: v[:1] for k, v in trace.operands["0"].items()}},
                           "outputs": {"0": trace.outputs["0"][:1]}}))
    sums = (double(trace.operands["0"]["x"][1]) ** 2).sum(-1)
    zero = (trace.outputs["0"][1].reshape(6, 8) == 0).all(-1)
    assert (sums > 65520).any() and np.array_equal(zero, sums > 65520) and not trace.nonfinite.any()


@pytest.mark.parametrize("change, why", [
    ("formula", "its output is not that of an RMS norm of its input, its parameter and its epsilon"),
    ("no epsilon", "it has no epsilon among its attributes eps, epsilon, variance_epsilon, norm_eps"),
    ("two parameters", "its parameters are not one gain of its width")])
def test_a_norm_that_is_another_is_said_to_be(file, caplog, change, why):
    module = HalfRmsNorm(8, lambda x, squares, eps: x / x.abs().amax(-1, keepdim=True)) if change == "formula" else HalfRmsNorm(8)
    if change == "no epsilon":
        module.formula = lambda x, squares, _: x * torch.rsqrt(squares / 8)
        del module.eps
        module.forward = lambda x: module.formula(x, (x * x).sum(-1, keepdim=True), 0)
    if change == "two parameters":
        module.bias = nn.Parameter(torch.ones(8))
    with caplog.at_level(logging.WARNING, "opd.capture"):
        trace = one(module, file, X)
    assert trace.manifest["operands"]["missing"] == {"0": why} and not trace.operators and trace.operand_step is None
    assert [record.getMessage() for record in caplog.records] == [f"operands: 0: {why}"]


# --- which steps -----------------------------------------------------------------------------------------------------


def overflowing(file: Path, steps: int, bad: int | None, **options) -> Trace:
    """A linear layer whose output is Inf in step `bad`; its input tells the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with Capture(model, file, **{"probes": "output", "operands": "0", **options}) as c:
        for step in range(steps):
            model(torch.full((2, 4), math.inf if step == bad else float(step))).sum().backward()
            c.step()
    return Trace.read(file)


def input_of(trace: Trace) -> list[float]:
    return [rows[0, 0] for rows in trace.operands["0"]["x"]]


def test_the_ring_ends_with_the_step_of_the_incident(file):
    trace = overflowing(file, 20, 12)
    assert trace.operand_step.tolist() == list(range(5, 13)) and input_of(trace) == [*range(5, 12), math.inf]
    assert [item["probe"] for item in trace.operators] == ["0", "1"] and list(trace.operands) == ["0"]  # the other: its shapes
    assert trace.manifest["operands"] == {"asked": ["0"], "ring": 8}
    trace = overflowing(file, 20, 1, operand_ring=3, every=1)
    assert trace.operand_step.tolist() == [0, 1]


def test_without_an_incident_nothing_of_the_ring_is_kept_unless_asked(file):
    trace = overflowing(file, 20, None)
    assert trace.operand_step is None and not trace.operands and len(trace.operators) == 2
    trace = overflowing(file, 20, None, operand_steps="last", operand_ring=3)
    assert input_of(trace) == [17, 18, 19]
    trace = overflowing(file, 20, 12, operand_steps="last")
    assert trace.operand_step.tolist() == list(range(5, 13))


def test_chosen_steps_and_the_ring_beside_them(file):
    assert input_of(overflowing(file, 12, 10, operand_steps=range(2, 4))) == [2, 3]
    assert overflowing(file, 12, 10, operand_steps=[2], operand_ring=2).operand_step.tolist() == [2, 9, 10]
    assert input_of(overflowing(file, 12, None, operand_steps=[0, 5, 6, 99], every=3)) == [0, 6]


def test_a_trace_without_the_option_is_what_it_was(tmp_path):
    """Nothing of it stands in the file."""
    model = Gpt()
    contents = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        with Capture(model, tmp_path / name, probes="all", name="run") as c:
            model(torch.ones(2, 4, dtype=torch.long)).sum().backward()
            c.step()
        contents.append((tmp_path / name).read_bytes())
    trace = Trace.read(tmp_path / "a")
    assert "operands" not in trace.manifest and not trace.operators and b"operator" not in contents[0]


def test_the_run_is_the_same_with_it(file):
    def losses(**options) -> list[float]:
        torch.manual_seed(0)
        model = Gpt()
        trace = train(model, file, lambda: torch.randint(19, (2, 6)), autocast=torch.float16, **options)
        return [*trace.loss.tolist(), *(float(parameter.detach().sum()) for parameter in model.parameters())]
    plain = losses(operands=(), operand_steps=None)
    assert losses() == plain and losses(probes="all", operand_steps=None, sideband="full") == plain


def test_the_ring_has_a_bound(file, monkeypatch, caplog):
    size = 2 * 4 * 4 + 4 * 4 * 4 + 4 * 4 + 2 * 4 * 4  # input, weight, bias, output in FP32
    monkeypatch.setattr(operands_module, "MEMORY", 3 * size + size // 2)
    with caplog.at_level(logging.WARNING, "opd.capture"):
        trace = overflowing(file, 20, 12, operand_ring=10)
    assert trace.operand_step.tolist() == [10, 11, 12]
    assert sum("a ring of 10 steps takes more than" in record.getMessage() for record in caplog.records) == 1
    monkeypatch.setattr(operands_module, "MEMORY", size - 1)
    trace = overflowing(file, 20, 12)
    assert trace.operand_step is None and trace.manifest["operands"]["missing"]["0"].startswith("operands of one step take more than")


def test_nothing_waits_for_a_device(file):
    """Until a step is written no value is read back because of operands; what reads one is seen by the dispatcher."""
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.reads, self.calls = [], 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            if func.overloadpacket.__name__ in ("_local_scalar_dense", "equal", "nonzero", "is_nonzero"):
                self.reads.append(str(func))
            return func(*args, **(kwargs or {}))

    def seen(fused: bool, **options) -> Watch:
        model, watch = Gpt(fused=fused), Watch()
        with Capture(model, file, probes="output,logits,softmax", **options) as c:
            with watch:
                model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
            if options:
                assert sum(bool(observation.execution and observation.execution.tensors) for observation in c._observations) > 12
            c.step()
        return watch
    for fused in (False, True):
        plain, kept = seen(fused), seen(fused, operands="*")
        assert kept.calls > plain.calls and kept.reads == plain.reads  # statistics read on the CPU


# --- executions ------------------------------------------------------------------------------------------------------


def test_calls_of_a_module_have_operands_each(file):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.linear = nn.ReLU(), nn.Linear(4, 4)

        def forward(self, x):
            return self.act(self.linear(self.act(x)))
    trace = train(Twice(), file, lambda: torch.full((2, 4), 3.0), probes="output", operands="act#2,linear")
    assert list(trace.operands) == ["linear", "act#2"] and {item["probe"] for item in trace.operators} == {"act", "act#2", "linear"}
    assert trace.operands["act#2"]["x"][0].ravel().tolist() == trace.outputs["linear"][0].tolist()
    check_outputs(trace)


def test_micro_batches_of_a_step_stand_one_behind_the_other(file):
    torch.manual_seed(0)
    model = Gpt()
    spy = Spy(model)
    with Capture(model, file, probes="output,logits,softmax", operands="*", operand_steps=[1]) as c:
        for _ in range(2):
            for _ in range(3):
                model(torch.randint(19, (2, 6))).sum().backward()
            c.step()
    trace = Trace.read(file)
    executions = trace.manifest["operands"]["executions"]
    assert set(executions) == {item["probe"] for item in trace.operators} and set(executions.values()) == {3}
    given = [given[0] for given, _ in spy.seen["blocks.0.attn.qkv"][3:]]
    assert trace.operands["blocks.0.attn.qkv"]["x"][0].tobytes() == b"".join(map(bits, given))
    assert operator(trace, "blocks.0.attn:logits")["batch"] == 3 * 2 * 2 and operator(trace, "blocks.0.attn.qkv")["rows"] == 3 * 12
    assert trace.operands["blocks.0.attn:softmax"]["mask"].shape == (1, 6, 6)
    check_outputs(trace)


def test_a_cell_that_walks_over_time_has_all_of_its_executions(file):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(20):
                x = self.linear(x)
            return x
    trace = train(Cell(), file, lambda: torch.ones(2, 4), operands="linear")
    assert trace.manifest["operands"]["executions"] == {"linear": 20} and operator(trace, "linear")["rows"] == 40
    check_outputs(trace)


def test_executions_that_differ_are_said_to(file):
    model = nn.Sequential(nn.Linear(4, 4))
    with Capture(model, file, probes="output", operands="*", operand_steps=[0]) as c:
        for rows in (2, 3):
            model(torch.ones(rows, 4)).sum().backward()
        c.step()
    assert Trace.read(file).manifest["operands"]["missing"] == {"0": "its 2 executions in a step differ in shapes or attributes"}
    with Capture(model, file, probes="output", operands="*", operand_steps=[0]) as c:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            with torch.no_grad():
                model[0].weight.mul_(2)
        c.step()
    assert Trace.read(file).manifest["operands"]["missing"] == {"0": "step 0: weight is not the same in its 2 executions"}


def test_steps_of_another_shape_are_left_out_and_named(file):
    model = nn.Sequential(nn.Linear(4, 4))
    with Capture(model, file, probes="output", operands="*", operand_steps=range(4)) as c:
        for rows in (2, 3, 1, 3):
            model(torch.ones(rows, 4)).sum().backward()
            c.step()
    trace = Trace.read(file)
    assert trace.operand_step.tolist() == [1, 3]
    assert trace.manifest["operands"]["missing"]["0"].startswith("not in steps 0, 2: ")


def test_the_step_of_the_incident_goes_before_the_others(file):
    """The run breaks off in the middle of a pass: what ran has its operands, what did not is named."""
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            if not torch.isfinite(x).all():
                raise FloatingPointError
            return self.second(x)
    model = Breaks()
    with pytest.raises(FloatingPointError), Capture(model, file, probes="output", operands="*") as c:
        for step in range(5):
            model(torch.full((2, 4), math.inf if step == 4 else 1.0)).sum().backward()
            c.step()
    trace = Trace.read(file)
    assert trace.manifest["unfinished_step"] == 4 and trace.operand_step.tolist() == [0, 1, 2, 3, 4] and list(trace.operands) == ["first"]
    assert trace.manifest["operands"]["missing"] == {
        "second": "it has operands in other steps than the others, of which the trace holds steps 0, 1, 2, 3, 4"}


# --- what cannot be seen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module, given, why", [
    (nn.Conv1d(3, 3, 1), X, "its output is made by conv1d, which is no kernel of the vector unit"),
    (nn.Softmax(0), X, "its softmax is not over the last dimension"),
    (Function(lambda x: (x.double() @ x.double().mT).float()), X, "its operand a is float64, which no trace holds"),
    (Function(lambda x: torch.from_numpy(np.ones((2, 2), np.float32))), X, "no PyTorch function can be seen that makes its output"),
    (Function(lambda x: x + 1), X, "its call of add has a number for an operand"),
    (Function(lambda x: x.sum(1)), X, "its sum is not over the last dimension"),
    (Function(lambda x: x), X, "no PyTorch function can be seen that makes its output"),
    (Function(lambda x: torch.einsum("btd,bsd->bts", x, x)), X, "its output is made by einsum, which is no kernel"),
    (Function(lambda x: torch.add(x, x.square_()).mul_(1).sub_(1)), X.clone(), "its call of sub has a number for an operand"),
    (Function(lambda x: [functional.gelu(x), x.mul_(2)][0]), X.clone(), "an operand of gelu is changed in place before it can be copied"),
    (nn.Sequential(nn.ReLU()), X, "it is made of other modules; name one of them")])
def test_what_has_no_operands_is_said_in_one_sentence(file, module, given, why, caplog):
    model = nn.Sequential(module, nn.ReLU())
    with caplog.at_level(logging.WARNING, "opd.capture"):
        with Capture(model, file, probes="0,1", operands="0", operand_steps=[0, 1]) as c:
            for _ in range(2):
                model(given)
                c.step()
    trace = Trace.read(file)
    said = [record.getMessage() for record in caplog.records]
    assert trace.manifest["operands"]["missing"]["0"].startswith(why) and "0" not in trace.operands
    assert len(said) == 1 and said[0].startswith(f"operands: 0: {why}")


@pytest.mark.parametrize("pattern, why", [
    ("layers.*", "no probe is called that in the first step; a softmax or product that is called as a function outside of an attention"),
    ("*:softmax", "no probe is called that in the first step"),
    ("blocks.0.mlp", "no probe in the first step is of blocks.0.mlp; choose modules with probes"),
    ("head.weight", "no operator's output: head.weight; name probes of the forward pass")])
def test_a_pattern_that_matches_no_operator(file, caplog, pattern, why):
    with caplog.at_level(logging.WARNING, "opd.capture"):
        trace = train(Gpt(), file, lambda: torch.randint(19, (2, 6)), probes="output,weight", operands=f"head,{pattern}")
    assert trace.manifest["operands"]["missing"][pattern].startswith(why) and list(trace.operands) == ["head"]
    assert sum(record.getMessage().startswith(f"operands: {pattern}: ") for record in caplog.records) == 1


def test_compiled_code_is_said_not_to_be_seen(file):
    model = Gpt()
    model.blocks[0].mlp.compile(backend="eager")
    trace = train(model, file, lambda: torch.randint(19, (2, 6)), operands="*.mlp.1")
    assert trace.manifest["operands"]["missing"]["*.mlp.1"].startswith(
        "inside code of torch.compile, into which no hook sees: blocks.0.mlp.1; leave them uncompiled")
    assert list(trace.operands) == ["blocks.1.mlp.1"]
    model = Gpt()
    model.blocks[0].mlp.compile(backend="eager")
    trace = train(model, file, lambda: torch.randint(19, (2, 6)), operands="*.mlp.1", compiled="split")
    assert trace.manifest["operands"]["missing"] == {
        "blocks.0.mlp.1": "it runs as code of torch.compile, whose functions cannot be seen"}


# --- killed runs, journals, launcher ---------------------------------------------------------------------------------

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.full((2, 4), float("inf") if str(step) in sys.argv[2:] else float(step))).square().mean()
    loss.backward()
    optimizer.step()
    if step == 5 and "wait" in sys.argv:
        print("now", flush=True)
        sys.stdin.readline()
"""


def launch(tmp_path: Path, options: list[str], arguments: list[str]):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "opd", "capture", "--out", str(tmp_path / "run.safetensors"), "--probes", "output", *options, "--",
               sys.executable, str(script), *arguments]
    return command, {**os.environ, "PYTHONPATH": str(PACKAGES)}


def test_the_launcher_keeps_and_says_them(tmp_path):
    command, environment = launch(tmp_path, ["--operands", "0", "--operand-ring", "3"], ["8", "6"])
    result = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)
    assert result.returncode == 0 and "operands of 1 operators in 3 steps 4..6" in result.stderr, result.stderr
    assert Trace.read(tmp_path / "run.safetensors").operand_step.tolist() == [4, 5, 6]


def test_a_killed_run_keeps_chosen_steps_and_says_what_the_ring_lost(tmp_path):
    command, environment = launch(tmp_path, ["--operands", "0", "--operand-steps", "1,3:4", "--operand-ring", "2"], ["99", "wait"])
    script = command[command.index("--") + 1:]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "now\n"
        children = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], text=True, capture_output=True).stdout.split()
        assert len(children) == 1, script
        os.kill(int(children[0]), signal.SIGKILL)
        _, said = process.communicate()
    trace = Trace.read(tmp_path / "run.safetensors")
    assert trace.operand_step.tolist() == [1, 3, 4] and input_of(trace) == [1, 3, 4]
    lost = "the run had no incident and did not end by itself: the operands of its last 2 steps were in its memory only"
    assert trace.manifest["operands"]["lost"] == lost
    assert "operands of 1 operators in 3 steps 1..4" in said and lost in said


def test_every_prefix_of_a_journal_is_readable(tmp_path):
    file = tmp_path / "run.safetensors"
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(2, 2))
    c = Capture(model, file, probes="output", operands="*", operand_steps=[0, 2])
    for step in range(3):
        model[1](model[0](torch.full((1, 2), float(step))).long().clamp(0, 1))
        c.step()
    data = c.journal.read_bytes()
    c.close()
    found = []
    for end in (*range(0, len(data), 7), len(data)):
        (tmp_path / "cut.journal").write_bytes(data[:end])
        try:
            trace = read_journal(tmp_path / "cut.journal")
        except CaptureError:
            continue
        trace.to_bytes()
        found.append([] if trace.operand_step is None else trace.operand_step.tolist())
    assert found[0] == [] and found[-1] == [0, 2] and [0] in found


@pytest.mark.parametrize("change, message", [
    (lambda item: item.update(executions=0), "has no execution"), (lambda item: item.pop("operator"), "operator is missing"),
    (lambda item: item["operator"].update(kernel="conv"), "has no operator as docs/formats.md describes it"),
    (lambda item: item["operator"].update(rows=-1), "has no operator as"), (lambda item: item["operator"].pop("operands"), "has no operator"),
    (lambda item: item["operator"]["operands"]["x"].update(shape=[1, 1 << 20]), "has not the bytes of its operands"),
    (lambda item: item.update(output=1), "output is missing or is no bool")])
def test_journals_that_no_capture_writes(tmp_path, change, message):
    file = tmp_path / "run.safetensors"
    model = nn.Sequential(nn.ReLU())
    model.extra = nn.Linear(1, 1)
    c = Capture(model, file, probes="0", operands="*", operand_steps=[0])
    model[0](torch.ones(1, 2))
    c.step()
    data = b""
    for kind, payload in read_records(c.journal.read_bytes()):
        payload = bytes(payload)
        if kind == b"T":
            step, index, length = OPERANDS.unpack_from(payload)
            item = json.loads(payload[OPERANDS.size:OPERANDS.size + length])
            change(item)
            text = json.dumps(item).encode()
            payload = OPERANDS.pack(step, index, len(text)) + text + payload[OPERANDS.size + length:]
        head = HEAD.pack(MAGIC, kind, len(payload))
        data += head + CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload
    c.close()
    other = tmp_path / "other.safetensors.journal"
    other.write_bytes(data)
    with pytest.raises(CaptureError, match=message):
        recover(other)


@pytest.mark.parametrize("options, message", [
    (dict(operands=""), "operands: no pattern; give names of probes"), (dict(operands=[]), "operands: no pattern"),
    (dict(operands="x", operand_steps=3), "operand_steps: 3 are no steps; give something with steps in it"),
    (dict(operands="x", operand_steps="first"), "operand_steps: 'first' are no steps"),
    (dict(operands="x", operand_ring=-1), "operand_ring: -1 is not a whole number from 0 on"),
    (dict(operands="x", operand_ring=1.5), "operand_ring: 1.5 is not a whole number"),
    (dict(operands="x", operand_ring=0), "operand_ring: 0 steps, and no others are chosen"),
    (dict(operands="x", operand_ring=0, operand_steps="last"), "operand_ring: 0 steps, and no others are chosen"),
    (dict(operand_steps=[1]), "operand_steps: no operator's operands are kept; name some with operands"),
    (dict(operand_ring=4), "operand_ring: no operator's operands are kept; name some with operands")])
def test_bad_arguments(file, options, message):
    with pytest.raises(CaptureError, match=message):
        Capture(nn.Linear(1, 1), file, **options)
    assert not list(file.parent.iterdir())


@pytest.mark.parametrize("options, message", [
    (["--operands", ""], "--operands: no pattern; give names of probes"), (["--operand-ring", "4"], "--operand-ring: no operator's"),
    (["--operand-steps", "1:2"], "--operand-steps: no operator's operands are kept; name some with --operands"),
    (["--operands", "x", "--operand-steps", "5:3"], "--operand-steps: '5:3' is not FIRST:LAST or a list of steps; for instance"),
    (["--operands", "x", "--operand-steps", "1,,2"], "--operand-steps: '' is not FIRST:LAST or a list of steps"),
    (["--operands", "x", "--operand-steps", "first"], "--operand-steps: 'first' is not"),
    (["--operands", "x", "--operand-ring", "-3"], "--operand-ring: -3 is negative"),
    (["--operands", "x", "--operand-ring", "0"], "--operand-ring: 0 steps, and no others are chosen"),
    (["--operands", "x", "--operand-ring", "0", "--operand-steps", "last"], "--operand-ring: 0 steps")])
def test_bad_options_of_the_command(tmp_path, capsys, options, message):
    assert cli.main(["--out", str(tmp_path / "x.safetensors"), *options, "--", "true"]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_ring_that_is_no_number_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["--operands", "x", "--operand-ring", "many", "--", "true"])
    assert "--operand-ring" in capsys.readouterr().err


# --- shipped windows -------------------------------------------------------------------------------------------------

WINDOWS = ROOT / "traces" / "operands"


def test_the_window_of_the_product(file):
    trace = Trace.read(WINDOWS / "qk_window.safetensors")
    name, step = trace.first_bad_op, trace.first_bad_step
    assert name == "block.2.attn.qk" and operator(trace, name)["kernel"] == "matmul" and formats_of(trace, name) == {"a": "FP16", "b": "FP16"}
    assert trace.operand_step.tolist() == list(range(step - 11, step + 1))
    assert {item["probe"] for item in trace.operators} == {probe.name for probe in trace.probes}  # for their cost
    made = computed(operator(trace, name), {key: rows[-1] for key, rows in trace.operands[name].items()})
    wrote = double(trace.outputs[name][-1])
    # FP32 sums differ in the last bit: what rounds beyond 65504 is Inf there, give or take those that are at the border.
    assert (np.abs(made[~np.isfinite(wrote)]) > 65500).all() and (np.abs(made[np.isfinite(wrote)]) < 65540).all()
    assert 0 < np.abs(made).max() < 2**18 and (~np.isfinite(wrote)).sum() == trace.nonfinite[np.searchsorted(trace.step, step),
                                                                                            [p.name for p in trace.probes].index(name)]
    finite = Trace(**{**vars(trace), "operands": {p: {k: v[:-1] for k, v in own.items()} for p, own in trace.operands.items()},
                      "outputs": {p: rows[:-1] for p, rows in trace.outputs.items()}})
    check_outputs(finite)


def test_the_window_of_the_sum_of_squares():
    trace = Trace.read(WINDOWS / "squares_window.safetensors")
    name, step = trace.first_bad_op, trace.first_bad_step
    assert name == "norm.squares" and operator(trace, name)["kernel"] == "sum_of_squares" and operator(trace, "norm")["kernel"] == "rms_norm"
    assert trace.operand_step.tolist() == list(range(step - 15, step + 1))
    bad = np.argwhere(trace.nonfinite > 0)
    assert {trace.probes[p].name for _, p in bad} == {name} and np.isfinite(trace.loss).all() and np.isfinite(trace.grad_norm).all()
    sums = (double(trace.operands["norm"]["x"]) ** 2).sum(-1)
    assert np.array_equal(np.isinf(double(trace.outputs[name])), sums > 65520) and (sums > 65520)[-1].any()
    assert np.array_equal((trace.outputs["norm"].reshape(*sums.shape, -1) == 0).all(-1), sums > 65520)  # finite, and wrong


@pytest.fixture(scope="module")
def unit():
    """The reference of the computing unit: (trace, probe, row, mode, **settings) -> output as float64, and its bits."""
    try:
        module()
    except ReferenceMissing as missing:
        pytest.skip(str(missing))

    def run(trace: Trace, probe: str, row: int, mode: str, **settings) -> tuple[np.ndarray, np.ndarray]:
        item = operator(trace, probe)
        own = {key: rows[row] for key, rows in trace.operands[probe].items()}
        if item["kernel"] == "matmul":
            own = {key: values.reshape(item["batch"], -1, item["depth"]) for key, values in own.items()}
        attribute = {key: item[key] for key in ("factor", "epsilon") if key in item}
        form = next(p.format for p in trace.probes if p.name == probe)
        made = compute(item["kernel"], mode, own, form, **attribute, **settings).output.ravel()
        return double(made), made.view(np.uint16) if made.itemsize == 2 else made
    return run


def test_fast_overflows_where_pytorch_did_and_the_others_do_not(unit):
    for window, probe in (("qk_window", "block.2.attn.qk"), ("squares_window", "norm.squares")):
        trace = Trace.read(WINDOWS / f"{window}.safetensors")
        found = 0
        for row in range(len(trace.operand_step)):
            wrote = ~np.isfinite(double(trace.outputs[probe][row]))
            found += wrote.sum()
            assert np.array_equal(~np.isfinite(unit(trace, probe, row, "FAST")[0]), wrote)
            assert np.isfinite(unit(trace, probe, row, "STABLE")[0]).all() and np.isfinite(unit(trace, probe, row, "SAFE")[0]).all()
        assert found == {"qk_window": 28, "squares_window": 1}[window]


@pytest.mark.parametrize("window, probe, accumulator, least", [
    ("qk_window", "block.2.attn.qk", "PER_OPERATOR", 0.999), ("qk_window", "block.2.attn.softmax", "WIDE", 1.0),
    ("qk_window", "block.2.attn.norm", "WIDE", 0.999), ("qk_window", "block.2.attn.qkv", "PER_OPERATOR", 0.999),
    ("qk_window", "block.2.attn.residual", "PER_OPERATOR", 1.0), ("squares_window", "norm.squares", "WIDE", 0.9),
    ("squares_window", "norm.squares", "PER_OPERATOR", 0.6), ("squares_window", "norm", "PER_OPERATOR", 0.6)])
def test_how_many_bits_of_pytorch_are_met(unit, window, probe, accumulator, least):
    """What traces/README.md says of the windows: the rest differs by 3 units in the last place at most."""
    trace = Trace.read(WINDOWS / f"{window}.safetensors")
    equal = total = 0
    for row, wrote in enumerate(trace.outputs[probe]):
        made, made_bits = unit(trace, probe, row, "FAST", accumulator=accumulator)
        same = (made_bits == wrote.view(np.uint16)) | (np.isnan(made) & np.isnan(double(wrote)))
        equal, total = equal + same.sum(), total + same.size
        finite = np.isfinite(made) & np.isfinite(double(wrote))
        ordered = [np.where(bits & 0x8000, -(bits & 0x7FFF).astype(int), bits) for bits in (made_bits, wrote.view(np.uint16))]
        assert np.abs(ordered[0] - ordered[1])[finite].max() <= 3
    assert least <= equal / total
