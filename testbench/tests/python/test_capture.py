"""opd.capture on plain loops: what is recorded, what it changes of the run (nothing), what it leaves when the run dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"

import opd  # noqa: E402
from opd.capture import Capture, CaptureError, read_journal, statistics  # noqa: E402
from opd.capture.attention import recompute_logits  # noqa: E402
from opd.capture.journal import read_records  # noqa: E402
from opd.trace import FORMATS, Trace, element_statistics  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

torch.set_num_threads(1)

FORMAT_TYPES = {"FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "E4M3": torch.float8_e4m3fn,
                "E5M2": torch.float8_e5m2}


class Attention(nn.Module):
    """Causal attention over [B, T, width]; fused or by product and softmax."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        query, key, value = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            future = torch.ones(time, time, dtype=torch.bool).triu(1)
            mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads, fused)
        self.norm2 = nn.RMSNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """[B, T] indices -> [B, T, 19] logits."""

    def __init__(self, fused: bool = False, checkpoint: bool | None = None, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(19, 16)
        self.blocks = nn.ModuleList(Block(16, 2, fused) for _ in range(layers))
        self.head = nn.Linear(16, 19)
        self.checkpoint = checkpoint  # None: no; else use_reentrant

    def forward(self, index):
        x = self.embedding(index)
        for block in self.blocks:
            if self.checkpoint is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpoint)
        return self.head(x)


def train(path=None, *, steps: int = 3, micro: int = 1, autocast=None, scaler: bool = False, model=None, wrap=lambda model: model,
          **options):
    """Losses and final weights of a short run; captured when a path is given."""
    torch.manual_seed(1)
    model = wrap(Gpt() if model is None else model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2, enabled=scaler)
    losses = []
    with contextlib.ExitStack() as stack:
        c = stack.enter_context(opd.capture(model, path, optimizer=optimizer, **options)) if path else None
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(micro):
                index = torch.randint(19, (2, 8))
                with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                    loss = functional.cross_entropy(model(index).flatten(0, 1), index.flatten()) / micro
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if c:
                c.step(loss=loss)
            losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def names(trace: Trace, kind: str | None = None) -> list[str]:
    return [probe.name for probe in trace.probes if kind in (None, probe.kind)]


def probe(trace: Trace, name: str):
    return next(p for p in trace.probes if p.name == name)


def column(trace: Trace, name: str, member: str = "max_abs") -> np.ndarray:
    return getattr(trace, member)[:, names(trace).index(name)]


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "run.safetensors"


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_key_probes_by_default(file):
    losses, weights = train(file)
    trace = Trace.read(file)
    assert names(trace, "activation") == [f"blocks.{i}.{part}" for i in (0, 1)
                                          for part in ("norm1", "attn:logits", "attn:softmax", "norm2")]
    parameters = [name for name, _ in Gpt().named_parameters()]
    assert names(trace, "weight") == parameters and len(trace.probes) == 8 + len(parameters)
    assert probe(trace, "blocks.0.attn:logits").shape == (2, 2, 8, 8)
    assert trace.step.tolist() == [0, 1, 2] and trace.loss.tolist() == [np.float32(loss) for loss in losses]
    assert trace.lr.tolist() == [np.float32(1e-2 / (1 + step)) for step in range(3)]  # before the scheduler moved on
    assert trace.loss_scale is None and trace.first_bad_op is None and trace.manifest["complete"]
    for name, weight in zip(parameters, weights):  # after the optimizer's last step
        assert column(trace, name)[-1] == weight.abs().max().item()
    assert (column(trace, "blocks.1.attn:softmax") <= 1).all() and (trace.max_abs > 0).sum() > trace.max_abs.size * 0.7


def test_every_probe_and_every_statistic_against_the_elements(file):
    train(file, probes="all", statistics="full", raw="*", raw_steps=range(10), autocast=torch.float16, scaler=True)
    trace = Trace.read(file)
    assert trace.raw_step.tolist() == [0, 1, 2] and trace.raw.keys() == set(names(trace))
    assert {p.format for p in trace.probes} == {"FP16", "FP32"}
    compared = 0
    for op, p in enumerate(trace.probes):
        for row in range(3):
            wanted = element_statistics(trace.raw[p.name][row])
            for member in ("max_abs", "min_abs", "nonfinite", "saturated", "subnormal", "zero"):
                assert getattr(trace, member)[row, op] == np.float32(wanted[member]), (p.name, member)
                compared += 1
            assert trace.mean[row, op] == pytest.approx(wanted["mean"], rel=1e-6, abs=1e-30)
            assert trace.var[row, op] == pytest.approx(wanted["var"], rel=1e-6, abs=1e-30)
    assert compared == 3 * 6 * len(trace.probes) > 1500


def test_raw_elements_are_the_tensors(file):
    """Against tensors that the test takes from the model by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = {}
    with Capture(model, file, optimizer=optimizer, probes="all", raw="*", raw_steps=[1]) as c:
        for step in range(3):
            x = torch.randn(5, 4)
            hidden = functional.linear(x, model[0].weight, model[0].bias)
            out = functional.linear(hidden.relu(), model[2].weight, model[2].bias)
            wanted = {"0": hidden, "1": hidden.relu(), "2": out, "2:grad": torch.full((5, 3), 1 / 15)}
            wanted["2.weight:grad"] = wanted["2:grad"].T @ hidden.relu()
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            wanted["0.weight"] = model[0].weight
            wanted["0.weight:momentum_buffer"] = optimizer.state[model[0].weight]["momentum_buffer"]
            if step == 1:
                seen = {name: tensor.detach().clone() for name, tensor in wanted.items()}
            c.step()
    trace = Trace.read(file)
    assert trace.raw_step.tolist() == [1] and len(seen) == 7
    for name, tensor in seen.items():
        assert probe(trace, name).shape == tuple(tensor.shape)
        np.testing.assert_allclose(trace.raw[name].reshape(tensor.shape), tensor.numpy(), rtol=1e-6, atol=1e-7)
    assert names(trace, "optimizer") == [f"{i}.{part}:momentum_buffer" for i in (0, 2) for part in ("weight", "bias")]


def check_statistics(measure, format_name: str, columns) -> int:
    """All values a byte or half can hold, specials, permuted and odd-sized tensors, against numpy. Returns the comparisons."""
    dtype = FORMAT_TYPES[format_name]
    generator = torch.Generator().manual_seed(7)
    if dtype.itemsize == 4:
        every = torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 14,), generator=generator, dtype=torch.int32).view(dtype)
    else:
        size, bits = {1: (1 << 8, torch.uint8), 2: (1 << 16, torch.uint16)}[dtype.itemsize]
        every = torch.arange(size, dtype=torch.int32).to(bits).view(dtype)
    normal = torch.randn(3, 5, 7, generator=generator).to(dtype)
    cases = [every, normal, normal.permute(2, 0, 1), normal[:, ::2], torch.zeros(9).to(dtype), torch.full((9,), -0.0).to(dtype),
             normal[0, 0, 0], torch.full((4,), torch.nan).to(dtype)]
    compared = 0
    for case in cases:
        partials = measure(case, columns)
        assert partials.dtype in (torch.float64, np.float64) and partials.shape[1] == len(columns)
        merged = statistics.combine(np.asarray(partials), columns, np.array([0]))
        result = {member: values[0] for member, values in merged.items()}
        bits = case.contiguous().view(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
        wanted = element_statistics(bits.numpy().view(FORMATS[format_name].numpy))
        for member, value in result.items():
            if member in ("mean", "var"):  # sums over values of widely different size; the kernel adds in FP32
                scale = wanted["max_abs"] ** (2 if member == "var" else 1)
                assert scale > 1e37 or abs(value - wanted[member]) <= 2e-6 * scale, (member, case.shape)
            else:
                assert np.float32(value) == np.float32(wanted[member]), (member, case.shape)
                assert not np.signbit(value), (member, case.shape)
            compared += 1
    assert compared == len(cases) * (2 if columns == statistics.CORE else 8)
    return compared


def measure_generic(tensor, columns):
    widened = statistics._dense(tensor.to(statistics._WIDEN.get(tensor.dtype, tensor.dtype)))
    return statistics.measure_generic(widened, *statistics.limits(tensor.dtype), columns)


@pytest.mark.parametrize("format_name", FORMAT_TYPES)
def test_statistics_of_one_tensor(format_name):
    for measure in (statistics.measure, measure_generic):
        for columns in (statistics.CORE, statistics.FULL):
            assert check_statistics(measure, format_name, columns)


def check_kernel() -> int:
    """The CUDA kernel, run by Triton's interpreter; with blocks so small that every program walks several."""
    from opd.capture import kernel

    kernel.BLOCKS = {False: 2048, True: 1024}
    before: int

    def measure(tensor, columns):
        widened = statistics._dense(tensor.to(statistics._WIDEN.get(tensor.dtype, tensor.dtype)))
        memory = torch.empty(widened.numel() + 16, dtype=widened.dtype)
        at = -memory.data_ptr() % 16 // widened.element_size() + before  # elements behind a multiple of 16 bytes
        memory[at:at + widened.numel()] = widened.view(-1)
        placed = memory[at:at + widened.numel()].view(widened.shape)
        partials = kernel.measure(placed, *statistics.limits(tensor.dtype), columns == statistics.FULL)
        aligned = tensor.numel() - min(-placed.data_ptr() % 16 // placed.element_size(), tensor.numel())
        assert len(partials) == min(8, max(-(-aligned // kernel.BLOCKS[columns == statistics.FULL]), 1))
        return partials

    compared = 0
    for before in (0, 3):
        compared += sum(check_statistics(measure, name, columns) for name in FORMAT_TYPES for columns in (statistics.CORE, statistics.FULL))
    return compared


def check_kernel_spread() -> float:
    """A mean far from zero beside the spread, which a sum of squares alone would lose. Returns the largest relative error."""
    from opd.capture import kernel

    kernel.BLOCKS = {False: 512, True: 512}
    generator = torch.Generator().manual_seed(8)
    worst = 0.0
    for mean, spread in ((0, 1), (1, 0.01), (-1000, 0.5)):
        values = torch.randn(12345, generator=generator) * spread + mean
        row = statistics.combine(kernel.measure(values, *statistics.limits(values.dtype), True).numpy(), statistics.FULL, np.array([0]))
        wanted = values.double().var(unbiased=False).item()
        worst = max(worst, abs(row["var"][0] / wanted - 1), abs(row["mean"][0] - values.double().mean().item()) / max(abs(mean), spread))
    return worst


def interpreted(expression: str) -> str:
    """What the expression of this module is, with the kernel run by Triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{PACKAGES}:{Path(__file__).parent}"}
    result = subprocess.run([sys.executable, "-c", f"import test_capture; print(test_capture.{expression})"], env=environment,
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_statistics_kernel():
    pytest.importorskip("triton", reason="Triton comes with PyTorch on Linux")
    assert int(interpreted("check_kernel()")) == 2 * 5 * 8 * (2 + 8)


def test_statistics_kernel_keeps_a_small_spread():
    pytest.importorskip("triton", reason="Triton comes with PyTorch on Linux")
    assert float(interpreted("check_kernel_spread()")) < 2e-5


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_type_of_each_probe_as_it_is(file, autocast):
    train(file, probes="output,weight", autocast=autocast)
    trace = Trace.read(file)
    half = {None: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}[autocast]
    assert probe(trace, "blocks.0.mlp.0").format == half and probe(trace, "head").format == half
    assert probe(trace, "embedding").format == probe(trace, "head.weight").format == "FP32"


def test_loss_scale_is_found(file):
    train(file, steps=4, autocast=torch.float16, scaler=True, probes="key,gradient")
    trace = Trace.read(file)
    assert trace.loss_scale.tolist() == [256, 256, 512, 512]  # as the step used it, before update() doubled it
    gradient = column(trace, "head.weight:grad")
    assert (gradient > 0.01 * trace.loss_scale).all()  # as it leaves backward, with the scale in it


def test_gradient_accumulation_is_one_step(file):
    train(file, micro=3, probes="norm,gradient,weight")
    trace = Trace.read(file)
    assert trace.step.tolist() == [0, 1, 2]
    assert probe(trace, "blocks.0.norm1").shape == (3, 2, 8, 16)
    assert probe(trace, "head.weight:grad").shape == (3, 19, 16) and probe(trace, "head.weight").shape == (19, 16)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_segments_count_once(tmp_path, reentrant):
    plain, checkpointed = tmp_path / "plain.safetensors", tmp_path / "checkpointed.safetensors"
    assert train(plain, probes="all")[0] == train(checkpointed, probes="all", model=lambda: Gpt(checkpoint=reentrant))[0]
    a, b = Trace.read(plain), Trace.read(checkpointed)
    assert set(a.probes) == set(b.probes) and names(a, "activation") == names(b, "activation")
    order = [names(b).index(name) for name in names(a)]
    assert np.array_equal(a.max_abs, b.max_abs[:, order]) and a.max_abs.size > 200


def test_fused_attention_has_logits_too(tmp_path):
    plain, fused = tmp_path / "plain.safetensors", tmp_path / "fused.safetensors"
    train(plain, probes="logits,softmax")
    train(fused, probes="logits,softmax", model=lambda: Gpt(fused=True), sideband="full")
    a, b = Trace.read(plain), Trace.read(fused)
    assert names(a) == names(b) == [f"blocks.{i}.attn:{part}" for i in (0, 1) for part in ("logits", "softmax")]
    scaled = a.max_abs / np.array([8 ** 0.5, 1] * 2, np.float32)  # the plain product is measured before it is scaled
    np.testing.assert_allclose(scaled, b.max_abs, rtol=2e-3)
    assert all(p.format == "FP32" and p.shape == (2, 2, 8, 8) for p in b.probes) and "recomputed" in b.manifest["capture"]["sideband"]
    train(fused, probes="logits,norm", model=lambda: Gpt(fused=True), sideband="off")
    assert not any("logits" in name for name in names(Trace.read(fused)))


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_recomputed_logits_in_slices(monkeypatch, mask):
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 10, 8)  # two query heads a key head
    attn_mask = {"bool": torch.rand(2, 1, 6, 10) > 0.2, "float": torch.randn(6, 10)}.get(mask)
    wanted = query @ key.repeat_interleave(2, dim=1).transpose(-1, -2) * 0.5
    for limit in (1 << 20, 130, 25):
        monkeypatch.setattr("opd.capture.attention.SLICE_ELEMENTS", limit)
        slices = list(recompute_logits(query, key, attn_mask, mask == "causal", 0.5))
        assert len(slices) == {1 << 20: 1, 130: 4, 25: 24}[limit]
        found = torch.cat([logits.flatten() for logits, _ in slices])
        assert torch.allclose(found, wanted.flatten(), atol=1e-6) and found.numel() == 480
        full = torch.cat([torch.softmax(logits if m is None else logits + m, -1).flatten() for logits, m in slices])
        additive = {"none": torch.zeros(6, 10), "causal": torch.full((6, 10), -torch.inf).triu(1), "float": attn_mask}.get(mask)
        if additive is None:
            additive = torch.zeros(2, 1, 6, 10).masked_fill(~attn_mask, -torch.inf)
        assert torch.allclose(full, torch.softmax(wanted + additive, -1).flatten(), atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_of_torch(file, need_weights):
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    wanted = attention(x, x, x, need_weights=need_weights)[0]
    with Capture(attention, file) as c:
        assert torch.equal(attention(x, x, x, need_weights=need_weights)[0], wanted)
        c.step()
    trace = Trace.read(file)
    logits = probe(trace, "model:logits")
    assert math_prod(logits.shape) == 3 * 2 * 5 * 5
    query, key, _ = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    assert column(trace, "model:logits")[0] == pytest.approx((query @ key.transpose(-1, -2) / 2).abs().max().item(), rel=1e-5)


def math_prod(shape) -> int:
    return int(np.prod(shape))


def test_several_outputs_sizes_and_types(file):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, size, kind):
            return self.part(size, kind)

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, size, kind):
            return {"a": torch.full((size,), 2.0).to(kind), "b": (torch.ones(2), torch.arange(3), torch.empty(0)), "c": None}

    model = Odd()
    with Capture(model, file, probes=["part"]) as c:
        for size, kind in ((2, torch.float32), (5, torch.float32), (3, torch.bfloat16), (3, torch.float64), (4, torch.float32)):
            model(size, kind)
            c.step()
    trace = Trace.read(file)
    assert [(p.name, p.format, p.shape) for p in trace.probes] == [
        ("part", "FP32", (5,)), ("part[1]", "FP32", (2,)), ("part:BF16", "BF16", (3,))]
    assert column(trace, "part").tolist() == [2] * 5 and column(trace, "part:BF16").tolist() == [0, 0, 2, 2, 2]
    assert trace.manifest["absent"] == {"part": [[2, 3]], "part:BF16": [[0, 1], [3, 4]]}
    assert trace.manifest["skipped"] == {"part": "float64 is not one of FP16, BF16, E4M3, E5M2, FP32"}


def test_sampling_and_step_numbers(file):
    train(file, steps=7, every=3, first_step=10)
    assert Trace.read(file).step.tolist() == [12, 15]
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output") as c:
        for number in (3, 4, 9):
            model(torch.ones(1, 2))
            c.step(step=number)
    assert Trace.read(file).step.tolist() == [3, 4, 9]


def test_validation_is_not_training(file):
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output") as c:
        for _ in range(2):
            model.train()(torch.ones(1, 2))
            with torch.no_grad():
                model.eval()(torch.full((1, 2), 1e6))
            c.step()
    trace = Trace.read(file)
    assert probe(trace, "model").shape == (1, 2) and (trace.max_abs < 10).all()


# --- non-finite values -----------------------------------------------------------------------------------------------


def test_first_nonfinite_value_writes_the_ring(file, caplog):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with Capture(model, file, probes="output", raw="0", ring=4) as c, caplog.at_level(logging.WARNING, "opd.capture"):
        for step in range(12):
            model(torch.full((1, 2), float("inf") if step in (7, 9) else 1.0))
            c.step()
            assert (c.incident is None) == (step < 7)
    trace = Trace.read(file)
    assert trace.first_bad_step == 7 and trace.first_bad_op == "0"
    assert trace.raw_step.tolist() == [4, 5, 6, 7] and list(trace.raw) == ["0"]
    assert not np.isfinite(trace.raw["0"][3]).all() and np.isfinite(trace.raw["0"][:3]).all()
    assert "step 7: 0 holds 2 non-finite elements" in caplog.text


def test_raw_pattern_without_a_probe_is_said_once(file, caplog):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with Capture(model, file, probes="output", raw=["0", "atn.*"]) as c, caplog.at_level(logging.WARNING, "opd.capture"):
        for _ in range(3):
            model(torch.ones(1, 2))
            c.step()
    assert [record.getMessage() for record in caplog.records] == [
        "raw: no probe is called 'atn.*' after the first step, so that none of its elements are kept; the probes are 0, 1"]


@pytest.mark.parametrize(("largest", "given", "label"), [
    (1.0, None, "healthy"), (float("inf"), None, "sudden"), (1.0, "near-limit", "near-limit"), (float("inf"), "data", "data")])
def test_label(file, largest, given, label):
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output", label=given) as c:
        for value in (1.0, largest):
            model(torch.full((1, 2), value))
            c.step()
    assert Trace.read(file).label == label


def test_gradient_overflow_under_a_loss_scale_is_no_incident(file):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    with Capture(model, file, optimizer=optimizer, probes="all") as c:
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(2, 4)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            c.step(loss)
        assert c.incident is None
    trace = Trace.read(file)
    assert column(trace, "model:grad", "nonfinite").tolist() == [8, 8] and trace.first_bad_op is None
    assert trace.loss_scale.tolist() == [2.0**30, 2.0**29]


# --- nothing of the run changes --------------------------------------------------------------------------------------


VARIANTS = {
    "fp32": {}, "fp16": dict(autocast=torch.float16, scaler=True), "bf16": dict(autocast=torch.bfloat16), "accumulate": dict(micro=2),
    "fused": dict(model=lambda: Gpt(fused=True)), "checkpoint": dict(model=lambda: Gpt(checkpoint=False)),
    "reentrant": dict(model=lambda: Gpt(checkpoint=True)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_weights_are_bit_identical(file, variant):
    losses, weights = train(**VARIANTS[variant])
    for options in (dict(), dict(probes="all", statistics="full", sideband="full", raw="*", every=2)):
        captured, after = train(file, **VARIANTS[variant], **options)
        assert captured == losses
        assert all(torch.equal(a, b) for a, b in zip(weights, after)) and len(weights) == len(after) > 20


def hooks_of(model: nn.Module) -> int:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
    return sum(len(getattr(module, table)) for module in model.modules() for table in tables) + sum(
        len(parameter._backward_hooks or ()) for parameter in model.parameters())


def test_hooks_and_patches_are_removed(file):
    model = Gpt(fused=True)
    optimizer = torch.optim.Adam(model.parameters())
    before = (torch.amp.GradScaler.scale, torch.Tensor.backward, torch.distributed.all_reduce)
    with Capture(model, file, optimizer=optimizer, probes="all", auto_loss=True) as c:
        assert hooks_of(model) > 20 and torch.amp.GradScaler.scale is not before[0]
        loss = model(torch.zeros(1, 4, dtype=torch.long)).sum()
        loss.backward()
        optimizer.step()
        c.step()
    assert hooks_of(model) == 0 and not optimizer._optimizer_step_pre_hooks
    assert (torch.amp.GradScaler.scale, torch.Tensor.backward, torch.distributed.all_reduce) == before
    assert Trace.read(file).loss.tolist() == [np.float32(loss.item())]
    assert not torch.overrides._get_current_function_mode_stack()


def test_an_exception_passes_and_leaves_the_trace(file):
    model = Gpt()
    with pytest.raises(ZeroDivisionError):
        with Capture(model, file) as c:
            for step in range(5):
                model(torch.zeros(1, 4, dtype=torch.long))
                c.step(loss=1.0 / (3 - step))
    trace = Trace.read(file)
    assert trace.step.tolist() == [0, 1, 2, 3] and trace.manifest["unfinished_step"] == 3 and hooks_of(model) == 0

    class Failing(nn.Module):  # inside attention, where a mode is active
        def __init__(self):
            super().__init__()
            self.attention = Attention(8, 2, False)
            self.attention.out.register_forward_pre_hook(self.fail)

        def fail(self, *_):
            raise KeyError("user")

        def forward(self, x):
            return self.attention(x)

    with pytest.raises(KeyError, match="user"):
        with Capture(Failing(), file) as c:
            c._models[0]._model()(torch.zeros(1, 2, 8))
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_failure_of_the_capture_does_not_end_the_run(file, monkeypatch, caplog):
    wanted = train()[0]
    calls = []

    def failing(tensor, columns):
        calls.append(1)
        if len(calls) > 60:
            raise MemoryError("none left")
        return real(tensor, columns)

    real = statistics.measure
    monkeypatch.setattr(statistics, "measure", failing)
    with caplog.at_level(logging.ERROR, "opd.capture"):
        assert train(file)[0] == wanted
    trace = Trace.read(file)
    assert trace.step.tolist() == [0] and "none left" in trace.manifest["stopped"] and not trace.manifest["complete"]
    assert caplog.text.count("capture ends, the run goes on") == 1 and len(calls) == 61


def test_nothing_waits_for_a_device(file, monkeypatch):
    """The device's path, made to run on the CPU: until the step is closed no value is read back."""
    reads = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy", "to"):
                reads.append(func.__name__)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(statistics, "measure", lambda tensor, columns: statistics.measure_generic(
        tensor.detach(), *statistics.limits(tensor.dtype), columns))
    model = Gpt(fused=True)
    optimizer = torch.optim.Adam(model.parameters())
    with Capture(model, file, optimizer=optimizer, probes="all", statistics="full") as c:
        with Watch():
            loss = model(torch.zeros(1, 4, dtype=torch.long)).sum()
            loss.backward()
            c._optimizer.read(c.record)
        assert len(c._observations) > 60 and [name for name in reads if name != "to"] == []
        c.step(loss)


# --- files -----------------------------------------------------------------------------------------------------------


SCRIPT = """
import sys
import torch, opd
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
c = opd.capture(model, sys.argv[1], probes="output", raw="0", raw_steps=range(100))
for step in range(100000):
    model(torch.full((2, 4), float(step)))
    c.step(loss=float(step))
    if step == 5:
        print("ready", flush=True)
        sys.stdin.readline()
"""


def kill_a_run(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(CaptureError, match="another running capture"):
            Capture(nn.Linear(1, 1), path)
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_killed_run_leaves_its_steps(file):
    kill_a_run(file)
    journal = file.with_name(file.name + ".journal")
    assert not file.exists() and read_journal(journal).step.tolist() == [0, 1, 2, 3, 4, 5]
    with Capture(nn.LayerNorm(2), file, probes="output") as c:  # the run starts again with the same path
        c._models[0]._model()(torch.ones(1, 2))
        c.step()
    killed = Trace.read(file.with_name("run.killed-1.safetensors"))
    assert killed.step.tolist() == killed.loss.tolist() == killed.raw_step.tolist() == [0, 1, 2, 3, 4, 5]
    assert killed.manifest["complete"] is False
    assert Trace.read(file).step.tolist() == [0] and not journal.exists()


def test_every_prefix_of_a_journal_is_readable(tmp_path):
    """Cut off or damaged anywhere: all whole records before that place, never an error of another kind."""
    file = tmp_path / "run.safetensors"
    model = nn.Linear(2, 2)
    c = Capture(model, file, probes="output", raw="model", raw_steps=range(9))
    for _ in range(3):
        model(torch.ones(1, 2))
        c.step()
    data = (tmp_path / "run.safetensors.journal").read_bytes()
    c.close()
    cut = tmp_path / "cut.journal"
    lengths = []
    for size in range(0, len(data) + 1):
        cut.write_bytes(data[:size])
        try:
            trace = read_journal(cut)
            trace.to_bytes()
            lengths.append(len(trace.step))
        except CaptureError:
            lengths.append(0)
    assert lengths == sorted(lengths) and set(lengths) == {0, 1, 2, 3} and lengths[-1] == 3
    whole = sum(1 for _ in read_records(data))
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert sum(1 for _ in read_records(bytes(damaged))) < whole


def test_an_unclosed_capture_is_written_at_exit(file):
    script = SCRIPT.replace("range(100000)", "range(8)")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    subprocess.run([sys.executable, "-c", script, str(file)], input="\n", text=True, env=environment, check=True, timeout=120,
                   stdout=subprocess.DEVNULL)
    assert Trace.read(file).step.tolist() == list(range(8))


def test_a_full_disk_ends_the_capture_only(file, monkeypatch, caplog):
    wanted = train()[0]
    real, written = os.write, []

    def write(descriptor, data):
        written.append(1)
        if len(written) > 36:  # header, 33 probes, two steps
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("opd.capture.journal.os.write", write)
    with caplog.at_level(logging.ERROR, "opd.capture"):
        assert train(file)[0] == wanted
    assert "No space left on device" in caplog.text and "--recover" in caplog.text
    assert not file.exists() and read_journal(file.with_name(file.name + ".journal")).step.tolist() == [0, 1]


# --- bad use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    (dict(probes="nrom"), r"no module is called 'nrom'; did you mean .*norm"),
    (dict(probes="norm:blocks.7.*"), r"no module or parameter is called 'blocks.7.\*'"),
    (dict(probes="weights:*"), r"'weights' in 'weights:\*' is not a group; use one of key, all, logits"),
    (dict(probes=""), r"probes: no expression"),
    (dict(every=0), r"every: 0 is not a whole number from 1 on"),
    (dict(every=2.5), r"every: 2.5 is not a whole number"),
    (dict(statistics="some"), r"statistics: 'some' is unknown; use one of core, full"),
    (dict(sideband="kernel"), r"sideband: 'kernel' is unknown"),
    (dict(raw="x", raw_steps=3), r"raw_steps: give something with steps in it"),
    (dict(label="fine"), r"label: 'fine' is unknown"),
    (dict(model={}), r"model: an empty dictionary"),
    (dict(model="gpt"), r"model: str is not a torch.nn.Module"),
    (dict(optimizer="adam"), r"optimizer: str is not a torch.optim.Optimizer"),
    (dict(optimizer=torch.optim.SGD([torch.zeros(1)], lr=1)), r"optimizer: it holds no parameter of the model"),
    (dict(path="no/such/folder/run.safetensors"), r"its folder does not exist; create"),
])
def test_bad_arguments(tmp_path, options, message):
    options = {"model": Gpt(), "path": "run.safetensors", **options}
    model = options["model"]
    with pytest.raises(CaptureError, match=message):
        Capture(**{**options, "path": tmp_path / options["path"]})
    assert list(tmp_path.iterdir()) == []
    if isinstance(model, nn.Module):
        assert hooks_of(model) == 0


def test_bad_steps(file):
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output") as c:
        model(torch.ones(1, 2))
        for values, message in ((dict(loss="low"), "loss: str is not a number"), (dict(loss=torch.ones(2)), r"shape \[2\]; give a scalar"),
                                (dict(step=-1), "step: -1 does not come after -1"), (dict(step=1 << 32), "is not in 0")):
            with pytest.raises(CaptureError, match=message):
                c.step(**values)
        with pytest.raises(CaptureError, match="another capture of this process"):
            Capture(model, file)
        c.step(loss=torch.nan, grad_norm=torch.inf)
    trace = Trace.read(file)
    assert np.isnan(trace.loss[0]) and np.isinf(trace.grad_norm[0])


def test_no_step_is_an_error(file):
    with pytest.raises(CaptureError, match=r"no step was recorded; call c.step\(loss=loss\) after optimizer.step\(\)"):
        with Capture(nn.Linear(2, 2), file):
            pass
    assert list(file.parent.iterdir()) == []
    with pytest.raises(ValueError, match="user"):  # the user's own exception comes first
        with Capture(nn.Linear(2, 2), file):
            raise ValueError("user")
