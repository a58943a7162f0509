"""opd.trace: round trips, rules, determinism, and agreement with the C++ reader and writer.

The tests of agreement need the helper trace_tool: scripts/test names it in OPD_TRACE_TOOL, without it they are skipped.
"""
import os
import random
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from opd.trace import (COUNTS, FORMATS, KINDS, LABELS, SERIES, VALUES, Probe, Trace, TraceError, TraceWriter,
                       element_statistics)
from opd.trace_layout import KERNELS

TOOL = os.environ.get("OPD_TRACE_TOOL")
needs_tool = pytest.mark.skipif(TOOL is None, reason="OPD_TRACE_TOOL is not set (scripts/test sets it)")
OPTIONAL_MATRICES = ("saturated", "subnormal", "zero", "min_abs", "mean", "var")


def tool(*args, data: bytes | None = None) -> bytes:
    return subprocess.run([TOOL, *map(str, args)], input=data, capture_output=True, check=True).stdout


def error_of(action) -> str:
    try:
        action()
    except TraceError as error:
        return str(error)
    return "ok"


def sample() -> Trace:
    """Two steps, two probes, every member."""
    return Trace(
        name="sample", label="sudden", probes=[Probe("out", "activation", "FP16", (2, 2)), Probe("grad", "gradient", "E5M2", ())],
        first_bad_step=9, first_bad_op="out", model="m", framework="f", seed="1", manifest={"b": [1, 2.5, None], "a": "\u20ac"},
        step=np.array([3, 9]), max_abs=np.array([[1, 2], [65504, 57344]], np.float32), nonfinite=np.array([[0, 0], [2, 1]]),
        saturated=np.array([[0, 0], [1, 1]]), subnormal=np.array([[1, 0], [0, 0]]), zero=np.array([[4, 1], [0, 0]]),
        min_abs=np.array([[0.5, 2], [1, 1]], np.float32), mean=np.array([[-1, 2], [np.inf, 0]], np.float32),
        var=np.array([[1, 0], [np.inf, 0]], np.float32), loss=np.array([1, np.nan], np.float32),
        grad_norm=np.array([1, np.inf], np.float32), lr=np.array([0.1, 0], np.float32),
        loss_scale=np.array([1024, 0.5], np.float32), raw_step=np.array([9]),
        raw={"out": np.array([[1, np.inf, np.nan, 65504]], np.float16), "grad": np.array([[np.inf]], ml_dtypes.float8_e5m2)})


def operand(format: str | None, *shape: int) -> dict:
    return {"format": format, "shape": list(shape)} if format else {"shape": list(shape)}


def operand_sample() -> Trace:
    """Operators with operands at two of three steps, made by hand: a matmul (FP16), a layer_norm with gain and bias, a softmax
    with a mask; a variance that has only shapes."""
    probes = [Probe("attn.qk", "activation", "FP16", (2, 2, 3)), Probe("norm", "activation", "FP16", (4, 3)),
              Probe("attn/softmax", "activation", "BF16", (2, 2, 3)), Probe("row", "activation", "FP32", (4,)),
              Probe("residual", "activation", "E5M2", (4, 3))]
    half = lambda *shape: np.arange(np.prod(shape)).reshape(shape).astype(np.float16)
    return Trace(
        name="operands", label="data", probes=probes, step=np.array([3, 4, 9]), max_abs=np.ones((3, 5), np.float32),
        nonfinite=np.zeros((3, 5), np.int64), operators=[
            dict(probe="attn/softmax", kernel="softmax", rows=4, columns=3, factor=0.125,
                 operands=dict(x=operand("FP16", 4, 3), mask=operand(None, 2, 3))),
            dict(probe="attn.qk", kernel="matmul", batch=2, rows=2, columns=3, depth=4, factor=1,
                 operands=dict(a=operand("FP16", 4, 4), b=operand("FP16", 6, 4))),
            dict(probe="norm", kernel="layer_norm", rows=4, columns=3, epsilon=1e-6,
                 operands=dict(x=operand("FP16", 4, 3), gain=operand("FP32", 1, 3), bias=operand("BF16", 1, 3))),
            dict(probe="row", kernel="variance", rows=4, columns=7, correction=1, operands=dict(x=operand("E4M3", 4, 7)))],
        operand_step=np.array([4, 9]), operands={
            "attn/softmax": dict(x=half(2, 4, 3), mask=np.array([[[1, 1, 0]] * 2, [[0, 1, 1]] * 2], np.uint8)),
            "attn.qk": dict(a=half(2, 4, 4), b=np.full((2, 6, 4), np.inf, np.float16)),
            "norm": dict(x=half(2, 4, 3), gain=np.ones((2, 1, 3), np.float32),
                         bias=np.array([[[1, -0.0, np.nan]]] * 2, ml_dtypes.bfloat16))},
        outputs={"attn.qk": half(2, 12)})


@st.composite
def operators(draw, probe: Probe) -> tuple[Probe, dict]:
    """Any operator of that probe, and the probe with the shape that follows."""
    name = draw(st.sampled_from(list(KERNELS)))
    kernel = KERNELS[name]
    rows, columns = 2 * draw(st.integers(1, 2)), draw(st.integers(1, 3))
    item = dict(probe=probe.name, kernel=name, rows=rows, columns=columns)
    batch = 1
    if kernel.is_matrix:
        batch = draw(st.integers(1, 2)) if name == "matmul" else 1
        item |= dict(batch=batch, depth=draw(st.integers(1, 3)))
    if kernel.attribute == "correction":
        item["correction"] = draw(st.integers(0, 5))
    elif kernel.attribute:
        least = None if kernel.attribute == "factor" else 0.0
        item[kernel.attribute] = draw(st.floats(least, width=32, allow_nan=False, allow_infinity=False))
    item["operands"] = {}
    for i, own in enumerate(kernel.operands):
        if i >= kernel.required and draw(st.booleans()):
            continue
        if kernel.is_matrix:
            shape = [(batch * rows, item["depth"]), (batch * columns, item["depth"]), (1, columns)][i]
        else:
            shape = (draw(st.sampled_from([1, rows // 2, rows])), columns)
        item["operands"][own] = operand(None if own == "mask" else draw(st.sampled_from(list(FORMATS))), *shape)
    shape = (batch, rows) if kernel.shape == "row_reduction" else (batch, rows, columns)
    return Probe(probe.name, probe.kind, probe.format, shape), item


def assert_equal(got: Trace, want: Trace) -> int:
    """Compares every member bit for bit; returns how many arrays were compared."""
    for member in ("name", "label", "first_bad_step", "first_bad_op", "model", "framework", "seed", "manifest"):
        assert getattr(got, member) == getattr(want, member), member
    assert list(got.probes) == list(want.probes)
    compared = 0
    pairs = [(name, getattr(got, name), getattr(want, name)) for name in ("step", "raw_step", *COUNTS, *VALUES, *SERIES)]
    assert got.operators == want.operators
    assert {p: set(own) for p, own in got.operands.items()} == {p: set(own) for p, own in want.operands.items()}
    pairs += [("operand_step", got.operand_step, want.operand_step)]
    pairs += [(f"{p}/{name}", got.operands[p][name], rows) for p, own in want.operands.items() for name, rows in own.items()]
    for members in ("raw", "outputs"):
        assert getattr(got, members).keys() == getattr(want, members).keys()
        pairs += [(name, getattr(got, members)[name], rows) for name, rows in getattr(want, members).items()]
    for name, a, b in pairs:
        assert (a is None) == (b is None), name
        if a is not None:
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
            compared += 1
    return compared


@st.composite
def traces(draw) -> Trace:
    """Any valid trace of up to 4 steps and 4 probes."""
    probes = [Probe(f"{op}{draw(st.text(max_size=4))}", draw(st.sampled_from(KINDS)), draw(st.sampled_from(list(FORMATS))),
                    tuple(draw(st.lists(st.integers(1, 4), max_size=3)))) for op in range(draw(st.integers(1, 4)))]
    steps = sorted(draw(st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=4)))
    items = []
    for op in range(len(probes)):
        if draw(st.integers(0, 3)) == 0:
            probes[op], item = draw(operators(probes[op]))
            items.append(item)
    shape = (len(steps), len(probes))
    maybe = lambda strategy: draw(st.none() | strategy)
    column = lambda make: np.stack([draw(make(probe)) for probe in probes], axis=1)
    counts = lambda: column(lambda p: npst.arrays(np.int64, shape[0], elements=st.integers(0, p.elements)))
    magnitudes = lambda: column(lambda p: npst.arrays(
        np.float32, shape[0], elements=st.floats(0, float(FORMATS[p.format].max_value), width=32)))
    series = lambda **limits: npst.arrays(np.float32, shape[0], elements=st.floats(width=32, **limits))
    trace = Trace(
        name=draw(st.from_regex("[A-Za-z0-9_.-]+", fullmatch=True)), label=draw(st.sampled_from(LABELS)), probes=probes,
        model=draw(st.text()), framework=draw(st.text()), seed=draw(st.text()),
        manifest=draw(st.dictionaries(st.text(), st.text() | st.integers(-2**63, 2**64 - 1) | st.booleans() | st.none()
                                      | st.lists(st.floats(allow_nan=False, allow_infinity=False)))),
        step=np.array(steps, np.int64), max_abs=magnitudes(), nonfinite=counts(),
        loss=maybe(series()), grad_norm=maybe(series()), lr=maybe(series(allow_nan=False, allow_infinity=False)),
        loss_scale=maybe(series(min_value=2.0**-126, allow_nan=False, allow_infinity=False)))
    for name in OPTIONAL_MATRICES:
        if draw(st.booleans()):
            setattr(trace, name, counts() if name in COUNTS else magnitudes())
    rows = sorted(draw(st.sets(st.sampled_from(steps))))
    if rows:
        for probe in probes:
            if draw(st.booleans()):
                element = FORMATS[probe.format].numpy
                size = len(rows) * probe.elements * element.itemsize
                trace.raw[probe.name] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), element).reshape(
                    len(rows), probe.elements)
        trace.raw_step = np.array(rows, np.int64) if trace.raw else None
    # What is read back has its numbers as the writer wrote them, which are those of binary32.
    trace.operators = Trace.parse(Trace("t", "data", probes, trace.step, trace.max_abs, np.zeros(shape, np.int64),
                                        operators=items).to_bytes(), "t").operators
    rows = sorted(draw(st.sets(st.sampled_from(steps))))
    def elements(dtype, *shape):
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    formats = {probe.name: probe for probe in probes}
    for item in items if rows else []:
        if draw(st.booleans()):
            trace.operands[item["probe"]] = {
                name: elements(np.dtype(np.uint8), len(rows), *own["shape"]) & 1 if name == "mask" else
                elements(FORMATS[own["format"]].numpy, len(rows), *own["shape"]) for name, own in item["operands"].items()}
            if draw(st.booleans()):
                probe = formats[item["probe"]]
                trace.outputs[probe.name] = elements(FORMATS[probe.format].numpy, len(rows), probe.elements)
    trace.operand_step = np.array(rows, np.int64) if trace.operands else None
    for s, p in np.argwhere(trace.nonfinite > 0):
        if probes[p].kind == "activation":
            trace.first_bad_step, trace.first_bad_op = steps[s], probes[p].name
            break
    return trace


anything = settings(max_examples=200, deadline=None, derandomize=True, database=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture])


# --- Python alone ----------------------------------------------------------------------------------------------------------

def test_sample_round_trip(tmp_path):
    sample().write(tmp_path / "a.trace")
    assert assert_equal(Trace.read(tmp_path / "a.trace"), sample()) == 16
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]


def test_operands_round_trip(tmp_path):
    operand_sample().write(tmp_path / "a.trace")
    trace = Trace.read(tmp_path / "a.trace")
    assert assert_equal(trace, operand_sample()) == 12
    assert trace.operands["attn/softmax"]["mask"].dtype == np.uint8 and not trace.operands["norm"]["x"].flags.owndata


def test_operators_are_read_with_every_default_written_out():
    trace = operand_sample()
    for item, member in zip(trace.operators, ("factor", "factor", "epsilon", "correction")):
        del item[member]
    trace.operators[1].update(batch=1, rows=4)
    trace.operators[1]["operands"] = dict(b=operand("FP16", 3, 4), a=operand("FP16", 4, 4))
    trace.operators[0]["factor"] = 0.1  # rounded to binary32, of which 0.1 is the shortest decimal
    del trace.operators[1]["batch"]
    trace.operands = {}
    trace.outputs, trace.operand_step = {}, None
    got = Trace.parse(trace.to_bytes(), "f").operators
    assert [item.get("factor") for item in got] == [0.1, 1, None, None]
    assert got[1]["batch"] == 1 and list(got[1]["operands"]) == ["a", "b"]
    assert got[2]["epsilon"] == 1e-5 and got[3]["correction"] == 0 and got[3]["operands"] == {"x": operand("E4M3", 4, 7)}


@anything
@given(traces())
def test_any_trace_round_trip_is_deterministic(trace):
    data = trace.to_bytes()
    again = Trace.parse(data, "again")
    assert assert_equal(again, trace) >= 3
    assert again.to_bytes() == data


def test_bytes_do_not_depend_on_the_process():
    """Hash seeds and the library's random order of metadata must not show."""
    script = ("import sys; sys.path[:0] = sys.argv[1:3]; from test_trace import sample; "
              "sys.stdout.buffer.write(sample().to_bytes())")
    here = Path(__file__).resolve()
    folders = [str(here.parent), str(here.parents[3] / "sw_reference" / "python")]
    outputs = {subprocess.run([sys.executable, "-c", script, *folders], env={**os.environ, "PYTHONHASHSEED": str(seed)},
                              capture_output=True, check=True).stdout for seed in range(4)}
    assert outputs == {sample().to_bytes()}


def test_the_library_reads_the_same_tensors():
    data = sample().to_bytes()
    tensors = dict(safetensors.deserialize(data))
    assert len(tensors) == 16
    assert bytes(tensors["max_abs"]["data"]) == sample().max_abs.tobytes()
    assert bytes(tensors["raw/grad"]["data"]) == sample().raw["grad"].tobytes()
    assert tensors["raw/out"]["dtype"] == "F16" and tensors["raw/out"]["shape"] == [1, 4]


def test_unaligned_file_is_read():
    data = sample().to_bytes()
    length = int.from_bytes(data[:8], "little")
    compared = 0
    for spaces in range(1, 8):
        shifted = (length + spaces).to_bytes(8, "little") + data[8:8 + length] + b" " * spaces + data[8 + length:]
        compared += assert_equal(Trace.parse(shifted, "shifted"), sample())
    assert compared == 7 * 16


def test_raw_rows_stay_in_the_file(tmp_path):
    sample().write(tmp_path / "a.trace")
    rows = Trace.read(tmp_path / "a.trace").raw["out"]
    assert not rows.flags.owndata and not rows.flags.writeable
    with pytest.raises(ValueError):
        rows[0, 0] = 1


def test_what_is_not_a_file_is_rejected(tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    expected = {
        "none": "file: cannot be opened (No such file or directory); check the path and its permissions",
        "": "file: is a directory; give the path of a trace file",
        "fifo": "file: is not a regular file; give the path of a trace file",
        "empty": "file: is empty; the file is damaged or cut off: copy or capture it again"}
    for name, text in expected.items():
        assert error_of(lambda: Trace.read(tmp_path / name)) == f"{tmp_path / name}: {text}"


def test_failed_write_leaves_the_target_alone(tmp_path):
    path = tmp_path / "a.trace"
    sample().write(path)
    bad = sample()
    bad.max_abs[0, 0] = np.nan
    assert error_of(lambda: bad.write(path)) == (f'{path}: max_abs: step 3, probe "out": is NaN; take statistics over the '
                                                 "finite elements only")
    (tmp_path / "folder").mkdir()
    assert "file: cannot be written (Is a directory)" in error_of(lambda: sample().write(tmp_path / "folder"))
    assert "file: cannot be written (No such file" in error_of(lambda: sample().write(tmp_path / "none" / "a.trace"))
    assert_equal(Trace.read(path), sample())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.trace", "folder"]


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/null")
    for target in (tmp_path / "fifo", tmp_path / "link", Path("/dev/full")):
        assert error_of(lambda: sample().write(target)) == f"{target}: file: is not a regular file; give the path of a file"
    assert (tmp_path / "fifo").is_fifo() and (tmp_path / "link").is_symlink() and Path("/dev/full").is_char_device()


def edited(**members) -> Trace:
    trace = sample()
    for member, value in members.items():
        setattr(trace, member, value)
    return trace


@pytest.mark.parametrize("trace, error", [
    (edited(max_abs=sample().max_abs.astype(np.float64)), "max_abs: has type float64 instead of float32; convert it to float32"),
    (edited(nonfinite=np.zeros((2, 2))), "nonfinite: has type float64 instead of int64; convert it to int64"),
    (edited(raw={"out": np.zeros((1, 4), np.float32)}),
     'tensor "raw/out": has type float32 instead of float16; give elements in the probe\'s format'),
    (edited(raw={"x": np.zeros((1, 4), np.float16)}),
     'tensor "raw/x": is of no probe in the list; add the probe or remove the tensor'),
    (edited(model=3), "model: is not text; give a string"),
    (edited(model="\ud800"), "__metadata__: holds text that is not UTF-8; use UTF-8 names and texts"),
    (edited(manifest={"a": float("nan")}), "manifest: not a JSON object; use dictionaries, lists, texts and finite numbers"),
    (edited(manifest={"a": object()}), "manifest: not a JSON object; use dictionaries, lists, texts and finite numbers"),
    (edited(manifest=[]), "manifest: not a JSON object; capture the trace again with opd.trace"),
    (edited(probes=[Probe("out", "activation", "FP16", (2.0,))]),
     "probes: is not a list of probes; give Probe(name, kind, format, shape) with texts and whole numbers"),
    (edited(probes=[Probe("out", "activation", "INT8", (2,))]),
     'probes: "INT8" is not a format; use FP16, BF16, E4M3, E5M2 or FP32'),
    (edited(first_bad_op=None), "first_bad_op: is missing while the other of the two is there; record both or none"),
    (edited(step=np.array([3, 3])), "step[1]: 3 does not come after 3; record every step once, in order"),
    (edited(operators=3), "operators: is not a list of operators; give dictionaries of texts, whole and finite numbers"),
    (edited(operators=[dict(probe="out", kernel="cast", rows=4, columns=1, operands={"x": {1, 2}})]),
     "operators: is not a list of operators; give dictionaries of texts, whole and finite numbers"),
    (edited(operators=[dict(probe="out", kernel="scale", factor=float("nan"), rows=4, columns=1, operands={})]),
     "operators: is not a list of operators; give dictionaries of texts, whole and finite numbers"),
    (edited(operators=[dict(probe="out", kernel="cast")]), "operators[0].rows: is missing; capture the trace again with opd.trace"),
    (edited(operators=[dict(probe="out", kernel="cast", rows=2.0, columns=2, operands={})]),
     "operators[0].rows: is not a whole number in 1..2^32-1; write a whole number, without a point"),
    (edited(outputs={"out": np.zeros((1, 4), np.float64)}),
     'tensor "output/out": has type float64; give elements in its format, of a mask uint8'),
    (edited(operands={"out": {"x": np.zeros((1, 4), np.float16)}}),
     'tensor "operand/out/x": is of no operator in operators; add the operator or remove the tensor'),
    (edited(zero=np.array([[0, 0]])), "zero: has shape [1, 2] instead of [2, 2]; capture the trace again with opd.trace"),
])
def test_writer_rejects(trace, error):
    assert error_of(lambda: trace.to_bytes("f")) == f"f: {error}"


# --- TraceWriter -----------------------------------------------------------------------------------------------------------

PROBES = [Probe("a", "activation", "FP16", (2,)), Probe("g", "gradient", "BF16", (2, 1))]


def test_trace_writer_collects_steps(tmp_path):
    writer = TraceWriter("run", "gradual", PROBES, model="m", manifest={"k": 1})
    a = np.array([1, -2], np.float16)
    g = np.array([[np.inf], [3]], ml_dtypes.bfloat16)
    writer.add_step(0, max_abs=[1, 2], nonfinite=[0, 1], loss=2.5)
    writer.add_step(4, max_abs=[2, 3], nonfinite=[0, 1], loss=np.nan, raw={"a": a, "g": g})
    a[:] = 0  # the writer keeps what it was given
    writer.add_step(5, max_abs=[0, 3], nonfinite=[2, 0], loss=1.5)
    writer.write(tmp_path / "a.trace")
    trace = Trace.read(tmp_path / "a.trace")
    assert trace.step.tolist() == [0, 4, 5] and trace.max_abs.tolist() == [[1, 2], [2, 3], [0, 3]]
    assert (trace.first_bad_step, trace.first_bad_op) == (5, "a")  # gradients are not forward
    assert trace.raw_step.tolist() == [4] and trace.raw["a"].tolist() == [[1, -2]]
    assert trace.raw["g"].astype(float).tolist() == [[np.inf, 3]]
    assert trace.manifest == {"k": 1} and trace.loss.tolist()[::2] == [2.5, 1.5] and trace.saturated is None


def test_trace_writer_without_steps_is_an_error():
    assert "step: holds no steps" in error_of(TraceWriter("run", "healthy", PROBES).finish().to_bytes)


NORM = [dict(probe="a", kernel="softmax", rows=1, columns=2, operands=dict(x=operand("FP16", 1, 2), mask=operand(None, 1, 2)))]


def test_trace_writer_collects_operands():
    writer = TraceWriter("run", "gradual", PROBES, operators=NORM)
    x = np.array([[1, -2]], np.float16)
    statistics = dict(max_abs=[1, 2], nonfinite=[0, 0])
    writer.add_step(0, **statistics)
    for step in (4, 5):
        writer.add_step(step, **statistics, operands={"a": {"x": x, "mask": np.array([[1, 0]], np.uint8)}}, outputs={"a": x})
        x *= 2  # the writer keeps what it was given
    trace = Trace.parse(writer.finish().to_bytes(), "f")
    assert trace.operand_step.tolist() == [4, 5]
    assert trace.operands["a"]["x"].tolist() == [[[1, -2]], [[2, -4]]] and trace.operands["a"]["mask"].tolist() == [[[1, 0]]] * 2
    assert trace.outputs["a"].tolist() == [[1, -2], [2, -4]] and trace.operators[0]["factor"] == 1


@pytest.mark.parametrize("operands, outputs, error", [
    ({}, {"a": np.zeros(2, np.float16)}, "run: step 1: outputs without operands; give the operands of the operators as well"),
    ({"a": {"x": np.zeros((1, 2), np.float16)}}, {},
     "run: step 1: operand/a/mask: not in every step that has operands; give the same operands each time"),
    ({"a": {"x": np.zeros((1, 2), np.float32), "mask": np.ones((1, 2), np.uint8)}}, {},
     'run: step 1: "operand/a/x" changes from float16 [1, 2] to float32 [1, 2]; give the same shape and type each time'),
    ({"a": {"x": np.zeros((1, 2), np.float16), "mask": np.ones((2, 1), np.uint8)}}, {},
     'run: step 1: "operand/a/mask" changes from uint8 [1, 2] to uint8 [2, 1]; give the same shape and type each time'),
])
def test_trace_writer_rejects_operands(operands, outputs, error):
    writer = TraceWriter("run", "healthy", PROBES, operators=NORM)
    statistics = dict(max_abs=[1, 2], nonfinite=[0, 0])
    writer.add_step(0, **statistics, operands={"a": {"x": np.zeros((1, 2), np.float16), "mask": np.ones((1, 2), np.uint8)}})
    assert error_of(lambda: writer.add_step(1, **statistics, operands=operands, outputs=outputs)) == error


@pytest.mark.parametrize("first, second, error", [
    (dict(max_abs=[1, 1], nonfinite=[0, 0], l2=[1, 1]), {}, 'run: step 0: "l2" is not a member of a step; correct its name'),
    (dict(max_abs=[1, 1], nonfinite=[0, 0]), dict(max_abs=[1, 1]),
     "run: step 1: nonfinite: not in every step; give every step the same members"),
    (dict(max_abs=[1], nonfinite=[0, 0]), {}, "run: step 0: max_abs has shape [1] instead of [2]; give one value a probe"),
    (dict(max_abs=[1, 1], nonfinite=[0, 0.5]), {}, "run: step 0: nonfinite has type float64 instead of int64; give whole numbers"),
    (dict(max_abs=[1, 1], nonfinite=[0, 0], raw={"a": np.zeros(2, np.float32)}), {},
     'run: step 0: raw rows of "a" have type float32; give FP16 elements'),
    (dict(max_abs=[1, 1], nonfinite=[0, 0], raw={"a": np.zeros(2, np.float16)}),
     dict(max_abs=[1, 1], nonfinite=[0, 0], raw={"a": np.zeros(3, np.float16)}),
     'run: step 1: raw rows of "a" change size; give every element of the probe'),
    (dict(max_abs=[1, 1], nonfinite=[0, 0], raw={"a": np.zeros(2, np.float16)}),
     dict(max_abs=[1, 1], nonfinite=[0, 0], raw={"g": np.zeros(2, ml_dtypes.bfloat16)}),
     "run: step 1: raw rows of a, g: not in every step that has raw rows; give the same probes each time"),
])
def test_trace_writer_rejects(first, second, error):
    writer = TraceWriter("run", "healthy", PROBES)

    def add():
        writer.add_step(0, **first)
        writer.add_step(1, **second)
    assert error_of(add) == error


@pytest.mark.parametrize("name", FORMATS)
def test_element_statistics(name):
    """Against the definition of the tap, element by element, over every bit pattern (FP32: a sample)."""
    dtype, largest = FORMATS[name].numpy, float(FORMATS[name].max_value)
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}") if dtype.itemsize < 4 else (
        np.random.default_rng(1).integers(0, 2**32, 100000, dtype=np.uint32))
    elements = bits.view(dtype)
    got = element_statistics(elements)
    values = [float(x) for x in elements]
    finite = [abs(x) for x in values if np.isfinite(x)]
    tiny = float(ml_dtypes.finfo(dtype).smallest_normal)
    assert got["nonfinite"] == len(values) - len(finite) > 0
    assert got["max_abs"] == max(finite) <= largest
    assert got["min_abs"] == min(x for x in finite if x > 0)
    assert got["saturated"] == sum(x == largest for x in finite)
    assert got["subnormal"] == sum(0 < x < tiny for x in finite)
    assert got["zero"] == sum(x == 0 for x in finite)
    all_bad = element_statistics(np.array([np.nan] * 3, dtype))
    assert all_bad == dict(max_abs=0, min_abs=0, mean=0, var=0, nonfinite=3, saturated=0, subnormal=0, zero=0)
    simple = element_statistics(np.array([1, -2, 4, np.nan], dtype))
    assert simple["mean"] == 1 and simple["var"] == 6 and simple["max_abs"] == 4 and simple["min_abs"] == 1


# --- Python and C++ --------------------------------------------------------------------------------------------------------

@needs_tool
def test_both_readers_say_the_same_of_every_broken_rule(tmp_path):
    tool("bad", tmp_path)
    paths = sorted(tmp_path.glob("*.trace"))
    assert len(paths) >= 320
    differences = {}
    for path in paths:
        expected = f"{path}: {path.with_suffix('.error').read_text()}"
        got = error_of(lambda: Trace.read(path))
        if got != expected:
            differences[path.stem] = (got, expected)
    assert differences == {}


@needs_tool
@settings(anything, max_examples=100)
@given(traces())
def test_cpp_reads_what_python_writes_and_writes_the_same_bytes(tmp_path, trace):
    trace.write(tmp_path / "python.trace")
    tool("copy", tmp_path / "python.trace", tmp_path / "cpp.trace")
    assert (tmp_path / "cpp.trace").read_bytes() == (tmp_path / "python.trace").read_bytes()


@needs_tool
def test_python_reads_what_cpp_writes_and_writes_the_same_bytes(tmp_path):
    tool("random", 0x7ACE, 300, tmp_path)
    compared = 0
    for path in tmp_path.glob("*.trace"):
        assert Trace.read(path).to_bytes() == path.read_bytes(), path
        compared += 1
    assert compared == 300


@needs_tool
def test_both_sides_know_the_same_kernels():
    lines = [line.split("\t") for line in tool("kernels").decode().splitlines()]
    cpp = {name: (shape, tuple(operands.split()), int(required), attribute or None, float(default))
           for name, shape, operands, required, attribute, default in lines}
    assert list(cpp.items()) == [(name, tuple(kernel)) for name, kernel in KERNELS.items()] and len(cpp) == 24


@needs_tool
def test_both_writers_write_an_attribute_alike(tmp_path):
    """Every exponent of binary32, and the numbers beside those where its notation changes."""
    rng = np.random.default_rng(0x7ACE)
    values = np.concatenate([
        np.ldexp(rng.uniform(-2, 2, 600), np.arange(600) % 277 - 149),
        [0.0, -0.0, 0.1, 1e-4, 1e-5, 9.99e-5, 1e15, 1e16, 1e17, 2.0**63, 2.0**24],
        np.nextafter(np.float32([1e-4, 1e16, 2.0**63]), np.float32(0)), rng.integers(0, 10**6, 100) / 1000]).astype(np.float32)
    probes = [Probe(f"p{i}", "activation", "FP16", (1,)) for i in range(len(values))]
    shape = (1, len(values))
    trace = Trace("t", "data", probes, np.array([0]), np.zeros(shape, np.float32), np.zeros(shape, np.int64))
    trace.operators = [dict(probe=f"p{i}", kernel="scale", rows=1, columns=1, factor=float(value), operands=dict(
        x=operand("FP16", 1, 1))) for i, value in enumerate(values)]
    trace.write(tmp_path / "python.trace")
    tool("copy", tmp_path / "python.trace", tmp_path / "cpp.trace")
    assert (tmp_path / "cpp.trace").read_bytes() == (tmp_path / "python.trace").read_bytes()
    read = np.array([item["factor"] for item in Trace.read(tmp_path / "cpp.trace").operators], np.float32)
    assert len(read) > 700 and read.tobytes() == values.tobytes()


TOKENS = ["{", "}", "[", "]", ",", ":", '"', "\\", "null", "true", "-1", "-0", "0", "1e9", "1e400", "18446744073709551616",
          "9223372036854775808", "4294967296", '"F32"', '"I64"', '"F16"', '"shape"', '"dtype"', '"__metadata__"', '"raw/grad"',
          '"step"', '\\"mask\\"', '\\"rows\\"', '\\"x\\"', '\\"U8\\"', '"operand/norm/x"', "0.5", "\\u0000", "\\ud800", "\\u20ac", "\x7f", "\u20ac"]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """The file with one to three small faults, half of them in the header (its length adapted)."""
    for _ in range(rng.randint(1, 3)):
        length = int.from_bytes(data[:8], "little")
        kind = rng.randrange(6)
        if kind == 0 or length > len(data) - 8 or length == 0:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]
        elif kind == 1:
            at = rng.randrange(len(data) - 7)
            data = data[:at] + rng.choice([0, 1, 2**64 - 1, 2**63, 0x7FC00000, 0xFF800000]).to_bytes(8, "little") + data[at + 8:]
        elif kind == 2 and rng.randrange(4) == 0:
            data = data[:rng.randrange(1, len(data))] + bytes(8)
        else:
            header = data[8:8 + length].decode("utf-8", "surrogateescape")
            at = rng.randrange(len(header))
            edit = rng.randrange(4)
            token = rng.choice(TOKENS)
            if edit == 0:
                header = header[:at] + token + header[at:]
            elif edit == 1:
                header = header[:at] + header[at + rng.randint(1, 20):]
            elif edit == 2:
                start = rng.randrange(len(header))
                header = header[:at] + header[start:start + rng.randint(1, 60)] + header[at:]
            else:
                header = header[:at] + "".join(str(rng.randrange(10)) if c.isdigit() else c for c in header[at:at + 8]) + header[at + 8:]
            text = header.encode("utf-8", "surrogateescape")
            data = len(text).to_bytes(8, "little") + text + data[8 + length:]
    return data


@needs_tool
@pytest.mark.parametrize("sample", [sample, operand_sample])
def test_both_readers_say_the_same_of_mutated_files(tmp_path, sample):
    seed = int(os.environ.get("OPD_SEED", "0x7ACE"), 0)
    print(f"reproduce: OPD_SEED={seed}")
    rng = random.Random(seed)
    good = sample().to_bytes()
    paths = []
    for i in range(4000):
        paths.append(tmp_path / f"{i}.trace")
        paths[-1].write_bytes(mutate(rng, good))
    cpp = tool("check", *paths).decode().splitlines()
    python = [error_of(lambda: Trace.read(path)) for path in paths]
    assert len(cpp) == len(python) == 4000
    assert [(a, b) for a, b in zip(cpp, python) if a != b] == []
    assert 100 < python.count("ok") < 2000


@needs_tool
@pytest.mark.parametrize("name", FORMATS)
def test_magnitude_bits_agree_with_the_casts_of_numpy(name):
    """Casts of numpy and ml_dtypes round to nearest even as well; what they send to Inf or NaN stays at the largest value."""
    dtype = FORMATS[name].numpy
    largest = FORMATS[name].max_value
    rng = np.random.default_rng(0x7ACE)
    bits = rng.integers(0, 0x7F800000, 200000, dtype=np.uint32)
    low, high = float(ml_dtypes.finfo(dtype).smallest_subnormal) / 8, float(largest) * 1.2
    near = np.exp2(rng.uniform(np.log2(low), np.log2(min(high, 3.4e38)), 200000)).astype(np.float32)
    values = np.concatenate([bits.view(np.float32), near])
    got = np.frombuffer(tool("magnitude", name, data=values.tobytes()), np.uint32)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    stays = ~np.isfinite(cast.astype(np.float32))
    want = cast.view(f"u{dtype.itemsize}").astype(np.uint32)
    want[stays] = np.array(largest).astype(dtype).view(f"u{dtype.itemsize}")
    assert len(got) == 400000
    assert np.array_equal(got, want)
