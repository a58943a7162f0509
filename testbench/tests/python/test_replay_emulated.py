"""The path cuda-emulated of `opd replay`: the CUDA kernels, emulated, cross-checked as every other path.

Testplan: GPU-07.
"""
import json
import re
from pathlib import Path

import numpy as np
import pytest
from opd.trace import COUNTS, SERIES, VALUES, Trace, TraceWriter
from test_replay import PROGRAM, ROOT, emulation_missing, opd, small_trace

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
STEPS = 3


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Path:
    """The last steps with elements of the shipped overflow trace, and the step before them."""
    trace = Trace.read(ROOT / "traces/captured/qk_overflow.safetensors")
    chosen = np.isin(trace.step, trace.raw_step[-STEPS:])
    chosen[np.argmax(chosen) - 1] = True
    writer = TraceWriter("window", trace.label, trace.probes)
    for row in np.flatnonzero(chosen):
        step = int(trace.step[row])
        members = {name: values[row] for name in (*COUNTS, *VALUES, *SERIES) if (values := getattr(trace, name)) is not None}
        at = np.flatnonzero(trace.raw_step == step)
        raw = {name: elements[at[0]] for name, elements in trace.raw.items()} if len(at) else None
        writer.add_step(step, raw=raw, **members)
    path = tmp_path_factory.mktemp("window") / "window.safetensors"
    writer.write(path)
    return path


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> None:
    """Skips, with the reason that replay gives, where the path was not built."""
    folder = tmp_path_factory.mktemp("probe")
    small_trace(steps=1, raw=False).write(folder / "one.safetensors")
    if reason := emulation_missing(folder / "one.safetensors"):
        pytest.skip(reason)


def test_a_window_of_a_shipped_trace_is_equal(emulated, window, tmp_path):
    result = opd("replay", window, "--paths", "rtl,cpu,cuda-emulated", "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    trace = summary["traces"][0]
    assert summary["verdict"] == "equal" and trace["paths"] == ["rtl", "cpu", "cuda-emulated"] and not trace["paths_skipped"]
    compared = {(c["left"], c["right"]): c for c in trace["comparisons"]}[("rtl", "cuda-emulated")]
    assert compared["records"] == trace["steps"] * trace["probes"] and compared["mismatches"] == 0
    assert trace["operators_raw"] > 50 and trace["steps"] == STEPS + 1
    figures = next(f for f in trace["reaction_and_overhead"] if f["path"] == "cuda-emulated")
    assert figures["ran"] and figures["reaction"] == {"basis": "emulated"} and "microseconds_per_step" not in figures
    modelled = trace["reaction_and_overhead"][-1]  # the path of a GPU still did not run
    assert (modelled["path"], modelled["ran"]) == ("cuda", False)
    assert re.search(r"^  window +cuda-emulated +emulated +none: [0-9.]+ s on the CPU", result.stdout, re.MULTILINE)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert 'class="basis emulated"' in page and "no figure of a GPU" in page


def test_a_planted_fault_is_found_in_it(emulated, tmp_path):
    path = tmp_path / "small.safetensors"
    small_trace(steps=4).write(path)
    result = opd("replay", path, "--paths", "cpu,cuda-emulated", "--plant-fault", "cuda-emulated", expect=1)
    line = next(line for line in result.stdout.splitlines() if line.startswith("MISMATCH"))
    assert re.search(r"op 0 \(op0\), step 0, seq 0: flags: .*cuda-emulated = ", line), line


def test_it_runs_only_when_asked_for(emulated, tmp_path):
    path = tmp_path / "small.safetensors"
    small_trace(steps=4).write(path)
    opd("replay", path, "--out", tmp_path)
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert "cuda-emulated" not in trace["paths"] and "cuda-emulated" not in trace["paths_skipped"]
    stderr = opd("replay", path, "--paths", "cpu,cuda-emulated", "--compute", expect=2).stderr
    assert "--paths cuda-emulated: operators are not computed there; leave it out, or drop --compute" in stderr
