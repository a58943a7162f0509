"""Training script, capture and the shipped traces: same seed, same bytes; hashes, labels and raw rows hold."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
TRAINING = ROOT / "traces" / "training"
CAPTURED = ROOT / "traces" / "captured"
sys.path[:0] = [str(TRAINING), str(ROOT / "sw_reference" / "python")]

import capture as capture_module  # noqa: E402
import train_gpt  # noqa: E402
from capture import Capture, RawWindow, classify, elements_of, headroom  # noqa: E402
from model import Gpt  # noqa: E402
from opd.trace import Probe, Trace  # noqa: E402

SHIPPED = ("healthy", "near_limit", "qk_overflow")
SHORT = 6  # steps of a run made here
STATISTICS = ("max_abs", "nonfinite", "saturated", "subnormal", "zero", "min_abs", "mean", "var")
SERIES = ("loss", "grad_norm", "lr", "loss_scale")


def run_script(*arguments: str) -> subprocess.CompletedProcess:
    """The script in a process of its own, as a user runs it: its code paths are fixed before torch loads."""
    command = [sys.executable, str(TRAINING / "train_gpt.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    """Text to train on that needs no package."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def shipped() -> dict[str, Trace]:
    return {name: Trace.read(CAPTURED / f"{name}.safetensors") for name in SHIPPED}


# --- determinism -----------------------------------------------------------------------------------------------------


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path, text_file):
    def arguments(folder: str, seed: int) -> list[str]:
        return ["--run", "healthy", "--steps", str(SHORT), "--seed", str(seed), "--set", "raw_trigger=3",
                "--text", str(text_file), "--out", str(tmp_path / folder)]

    for folder in ("first", "second"):
        result = run_script(*arguments(folder, 7))
        assert result.returncode == 0, result.stderr
    assert train_gpt.main(arguments("other", 8)) == 0
    first, second, other = ((tmp_path / folder / "healthy.safetensors").read_bytes() for folder in ("first", "second", "other"))
    assert first == second
    assert first != other
    content = Trace.parse(first, "first")
    assert content.step.tolist() == list(range(SHORT)) and content.raw_step.tolist() == [3, 4, 5]
    assert not np.array_equal(content.max_abs, Trace.parse(other, "other").max_abs)


def test_the_script_reproduces_the_shipped_traces(tmp_path, shipped):
    """A short run equals the beginning of the long one, bit by bit: settings do not depend on the length of a run."""
    try:
        text, source = train_gpt.read_text(None)
    except train_gpt.InputError as error:
        pytest.skip(str(error))
    wanted = shipped["healthy"].manifest
    here = train_gpt.origin("", train_gpt.Settings(), source)
    def decisive(origin):  # Python's own patch level computes nothing
        return {**origin["platform"], **origin["versions"], "python": origin["versions"]["python"].rpartition(".")[0]}

    if decisive(wanted) != decisive(here):
        pytest.skip(f"made with {wanted['versions']} on {wanted['platform']}: bits are promised for the same only")
    assert source == wanted["text"]
    result = run_script("--run", "all", "--steps", str(SHORT), "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    compared = 0
    for name, trace in shipped.items():
        short = Trace.read(tmp_path / f"{name}.safetensors")
        assert short.probes == trace.probes
        for member in (*STATISTICS, *SERIES):
            assert np.array_equal(getattr(short, member), getattr(trace, member)[:SHORT]), (name, member)
            compared += getattr(short, member).size
    assert compared == 3 * SHORT * (8 * len(trace.probes) + 4)


def test_killed_run_leaves_no_file(tmp_path, text_file):
    command = [sys.executable, str(TRAINING / "train_gpt.py"), "--run", "healthy", "--steps", "1000000",
               "--text", str(text_file), "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("healthy: step    0")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert list(tmp_path.iterdir()) == []


# --- shipped traces --------------------------------------------------------------------------------------------------


def test_manifest_lists_the_shipped_files(shipped):
    manifest = json.loads((CAPTURED / "MANIFEST.json").read_text())
    assert sorted(manifest) == sorted(path.name for path in CAPTURED.glob("*.safetensors"))
    assert sorted(manifest) == sorted(f"{name}.safetensors" for name in SHIPPED)
    runs = train_gpt.read_runs()
    for name, trace in shipped.items():
        entry = manifest[f"{name}.safetensors"]
        data = (CAPTURED / f"{name}.safetensors").read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest() and entry["bytes"] == len(data)
        assert {key: entry[key] for key in trace.manifest} == trace.manifest
        assert train_gpt.Settings(**trace.manifest["settings"]) == runs[name], "runs.toml is not what the trace was made with"
        assert trace.seed == str(runs[name].seed)


def test_shipped_labels(shipped):
    for trace in shipped.values():
        assert classify(trace) == (trace.label, trace.manifest["label_reason"])
    assert {name: trace.label for name, trace in shipped.items()} == {
        "healthy": "healthy", "near_limit": "near-limit", "qk_overflow": "gradual"}
    overflow = shipped["qk_overflow"]
    assert overflow.first_bad_op.endswith(".attn.qk") and overflow.first_bad_step > 60
    assert overflow.raw_step[0] <= overflow.first_bad_step - 40 and overflow.raw_step[-1] > overflow.first_bad_step
    forward = [probe.kind == "activation" for probe in shipped["near_limit"].probes]
    close = headroom(shipped["near_limit"])[:, forward].min(axis=1)
    assert ((close >= 1) & (close < 4)).sum() > 300 and (close >= 1).all()


def test_raw_rows_agree_with_their_statistics(shipped):
    """Counted again from the bits, without the functions that made the statistics."""
    compared = beats = 0
    for name, trace in shipped.items():
        at = np.searchsorted(trace.step, trace.raw_step)
        for op, probe in enumerate(trace.probes):
            if probe.name not in trace.raw:
                assert probe.kind == "gradient"
                continue
            assert probe.format == "FP16"
            rows = trace.raw[probe.name]
            magnitude = rows.view(np.uint16) & 0x7FFF
            finite = magnitude < 0x7C00
            largest = np.where(finite, magnitude, 0).max(axis=1).astype(np.uint16).view(np.float16)
            expected = dict(max_abs=largest, nonfinite=(~finite).sum(axis=1), saturated=(magnitude == 0x7BFF).sum(axis=1),
                            zero=(magnitude == 0).sum(axis=1),
                            subnormal=((magnitude > 0) & (magnitude < 0x0400)).sum(axis=1))
            for member, values in expected.items():
                assert np.array_equal(getattr(trace, member)[at, op], values), (name, probe.name, member)
                compared += len(values)
            beats += len(rows) * -(-rows.shape[1] * 2 // 64)
    assert compared == 5 * 39 * sum(len(trace.raw_step) for trace in shipped.values())
    assert beats >= 300_000


# --- capture ---------------------------------------------------------------------------------------------------------


class Scale(torch.nn.Module):
    """Multiplies by `factor`: an operator whose output the test chooses."""

    factor = 1.0

    def forward(self, x):
        return x * self.factor


class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.scale(x))


def run_toy(window: RawWindow, bad_step: int | None = None, steps: int = 10) -> Trace:
    model = Toy()
    capture = Capture(model, window)
    for step in range(steps):
        capture.begin(step)
        model.scale.factor = torch.inf if step == bad_step else 1.0 + step
        model(torch.tensor([-1.0, 2.0, 0.0], dtype=torch.float16))
        capture.end()
    return capture.finish("toy", manifest={})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32])
def test_elements_keep_their_bits(dtype):
    values = torch.tensor([0.0, -0.0, 1.5, -448.0, torch.inf, torch.nan, 2.0**-14]).to(dtype)
    storage = {1: np.uint8, 2: np.uint16, 4: np.uint32}[values.element_size()]
    bits = elements_of(values).view(storage)
    assert np.array_equal(bits, values.view(capture_module.STORAGE[values.element_size()]).numpy().view(storage))
    assert len(np.unique(bits)) >= 6


def test_elements_of_another_type_are_refused():
    with pytest.raises(TypeError, match="float64 has no trace format"):
        elements_of(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("window, bad_step, steps", [
    (RawWindow(2, 3, trigger=5), None, [3, 4, 5, 6, 7]),
    (RawWindow(0, 2, trigger=0), None, [0, 1]),
    (RawWindow(3, 2), 6, [3, 4, 5, 6, 7]),
    (RawWindow(3, 2), 1, [0, 1, 2]),
    (RawWindow(3, 2), None, [7, 8, 9]),
    (RawWindow(3, 2, trigger=99), None, [7, 8, 9]),
])
def test_raw_window(window, bad_step, steps):
    trace = run_toy(window, bad_step)
    assert trace.raw_step.tolist() == steps
    for row, step in enumerate(steps):
        expected = np.inf if step == bad_step else 2.0 * (1 + step)
        assert trace.raw["scale"][row, 1] == expected


def test_statistics_are_those_of_the_moment():
    """The next operator works in place; the probe before it must not see that."""
    trace = run_toy(RawWindow(0, 10, trigger=0))
    assert [probe.name for probe in trace.probes] == ["scale", "relu"]
    assert trace.raw["scale"][:, 0].tolist() == [-1.0 - step for step in range(10)]
    assert trace.raw["relu"][:, 0].tolist() == [0.0] * 10
    assert trace.zero.tolist() == [[1, 2]] * 10


def test_other_operators_in_a_later_step_are_an_error():
    model = Toy()
    capture = Capture(model, RawWindow(1, 1))
    x = torch.ones(2, dtype=torch.float16)
    model(x)
    with pytest.raises(RuntimeError, match="scale ran twice"):
        model(x)
    capture.begin(0)
    model(x)
    capture.end()
    capture.begin(1)
    model.scale(x)
    with pytest.raises(RuntimeError, match="operators changed since the first step: relu"):
        capture.end()


def test_probes_of_the_model():
    """Order of execution, types of a half-precision stack, and weight gradients that FP16 holds without loss."""
    torch.manual_seed(3)
    model = Gpt(vocabulary=11, context=8, layers=1, width=16, heads=2)
    capture = Capture(model, RawWindow(0, 1, trigger=0))
    capture.begin(0)
    with torch.autocast("cpu", torch.float16):
        logits = model(torch.arange(16).reshape(2, 8) % 11)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(16) % 5)
    (loss * 1024).backward()
    statistics = capture.end()
    names = [probe.name for probe in capture.probes]
    forward = ["embedding", *(f"block.0.attn.{op}" for op in ("norm", "qkv", "qk", "softmax", "mix", "out", "residual")),
               *(f"block.0.mlp.{op}" for op in ("norm", "hidden", "gelu", "out", "residual")), "norm", "head"]
    weights = [name for name in names if name.endswith(".weight.grad")]
    assert names[: len(forward)] == forward
    assert sorted(names[len(forward):]) == sorted([f"{name}.grad" for name in forward] + weights)
    assert names[len(forward)] == "head.grad" and names[-1] == "embedding.grad"
    assert {probe.format for probe in capture.probes} == {"FP16"}
    assert capture.probes[names.index("block.0.attn.qk")].shape == (2, 2, 8, 8)
    assert len(weights) == 5
    for name in weights:
        gradient = model.get_parameter(name.removesuffix(".grad")).grad
        assert torch.equal(gradient, gradient.half().float()) and gradient.abs().max() > 0
        assert statistics[name]["max_abs"] == gradient.abs().max().item()


def test_labels():
    def trace(maxima: list[float], bad: int | None = None) -> Trace:
        nonfinite = np.zeros((len(maxima), 1), np.int64)
        if bad is not None:
            nonfinite[bad] = 1
        return Trace("t", "data", [Probe("op", "activation", "FP16", (4,))], np.arange(len(maxima)) + 100,
                     np.array(maxima, np.float32)[:, None], nonfinite, first_bad_step=None if bad is None else 100 + bad,
                     first_bad_op=None if bad is None else "op")

    far, close = 65504 / 2**4, 65504 / 2**3.9  # exactly 4 bits of headroom is not less than 4
    assert classify(trace([far] * 30))[0] == "healthy"
    assert classify(trace([far] * 29 + [close]))[0] == "near-limit"
    assert classify(trace([far] * 5 + [close] * 10 + [0], bad=15))[0] == "gradual"
    assert classify(trace([close] * 10 + [0], bad=10))[0] == "gradual"
    assert classify(trace([far] * 5 + [close] * 9 + [0], bad=14))[0] == "sudden"
    assert classify(trace([close] * 9 + [far] + [0], bad=10))[0] == "sudden"
    assert classify(trace([0], bad=0))[0] == "sudden"


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, message", [
    (["--set", "lr"], "no '='; give SETTING=VALUE"),
    (["--set", "speed=1"], "setting speed is unknown; use one of seed, "),
    (["--set", "lr=fast"], "setting lr: 'fast' is not a value of type float"),
    (["--set", "qk_scale=maybe"], "setting qk_scale: 'maybe' is not a value of type bool"),
    (["--set", "heads=3"], "setting heads: width 64 is not a multiple of 3"),
    (["--set", "lr=nan"], "setting lr: nan is not finite"),
    (["--set", "lr=-1"], "setting lr: -1.0 is negative"),
    (["--steps", "0"], "setting steps: 0 is not positive"),
    (["--name", "a/b"], "'a/b' is not a short name"),
    (["--text", "missing.txt"], "missing.txt: text: "),
])
def test_bad_settings(arguments, message, tmp_path, text_file, capsys):
    text = [] if "--text" in arguments else ["--text", str(text_file)]
    assert train_gpt.main(["--run", "healthy", "--out", str(tmp_path), *text, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_output_that_cannot_be_written(tmp_path, text_file, capsys):
    (tmp_path / "file").write_text("")
    assert train_gpt.main(["--run", "healthy", "--text", str(text_file), "--out", str(tmp_path / "file" / "folder")]) == 2
    assert "--out: Not a directory; give a folder that can be written to" in capsys.readouterr().err


def test_missing_package_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert train_gpt.main(["--run", "healthy", "--out", str(tmp_path)]) == 2
    assert "install the Debian package bible-kjv" in capsys.readouterr().err


def test_text_that_is_too_short(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("short")
    assert train_gpt.main(["--run", "healthy", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "text: 5 characters" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        train_gpt.main(["--help"])
    text = capsys.readouterr().out
    for option in ("--run", "--out", "--steps", "--seed", "--set", "--text"):
        assert option in text
