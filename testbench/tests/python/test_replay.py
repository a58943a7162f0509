"""The opd program as its user meets it: replay, cross-check, planted faults, bad input (exit 2), mismatch (exit 1).

Testplan: SYS-01 shipped traces, SYS-02 planted fault per path, SYS-03 bad input, SYS-04 unusual streams, SYS-06
nothing compared, SRC-01 sources.
"""
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from opd.registers import Flag, Mode
from opd.report import read_records
from opd.trace import Probe, Trace, TraceWriter, element_statistics
from test_trace import operand_sample

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
SHIPPED = sorted((ROOT / "traces" / "captured").glob("*.safetensors"))
LOCKSTEP_PATHS = ["rtl", "systemc", "systemc-lt", "cpu"]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")


def opd(*arguments, expect: int = 0) -> subprocess.CompletedProcess:
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def small_trace(steps: int = 24, name: str = "small", raw: int = 3, formats=("FP16", "FP16", "BF16", "E4M3", "E5M2", "FP32"),
                scale: float = 1.0) -> TraceWriter:
    """A trace of every format: normally distributed elements, raw at every `raw`-th step, 0 never."""
    from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

    numpy_of = {"FP16": np.float16, "BF16": bfloat16, "E4M3": float8_e4m3fn, "E5M2": float8_e5m2, "FP32": np.float32}
    probes = [Probe(f"op{i}", "gradient" if i == 1 else "activation", f, (3, 5 + 40 * i)) for i, f in enumerate(formats)]
    writer = TraceWriter(name, "data", probes)
    rng = np.random.default_rng(7)
    for step in range(steps):
        with np.errstate(over="ignore"):  # infinities are wanted when the scale is large
            rows = {p.name: (rng.normal(size=p.shape) * scale).astype(numpy_of[p.format]) for p in probes}
        statistics = [element_statistics(rows[p.name]) for p in probes]
        members = {key: np.array([s[key] for s in statistics], np.float32 if key == "max_abs" else np.int64)
                   for key in ("max_abs", "nonfinite", "saturated", "subnormal", "zero")}
        writer.add_step(step, raw=rows if raw and step % raw == 0 else None, loss=np.float32(1.0), loss_scale=np.float32(1024.0),
                        **members)
    return writer


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "small.safetensors"
    small_trace().write(path)
    return path


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> tuple[Path, dict, str]:
    out = tmp_path_factory.mktemp("shipped")
    result = opd("replay", *SHIPPED, "--out", out)
    return out, json.loads((out / "summary.json").read_text()), result.stdout


# --- SYS-01: the shipped traces -------------------------------------------------------------------------------------------

def test_shipped_traces_are_equal_in_every_path(shipped):
    _, summary, stdout = shipped
    assert summary["mismatches"] == 0 and "0 mismatches" in stdout
    assert len(summary["traces"]) >= 3
    assert summary["beats_compared"] >= 250_000
    assert summary["records_compared"] >= 10_000
    assert summary["cycles_compared"] > summary["beats_compared"]
    for trace in summary["traces"]:
        assert set(LOCKSTEP_PATHS) <= set(trace["paths"])
        assert trace["kind"] == "raw" and trace["records_compared"] == trace["steps"] * trace["probes"]
        assert "cuda" in trace["paths"] or trace["paths_skipped"]["cuda"]


def test_shipped_traces_decide_within_twelve_cycles(shipped):
    _, summary, _ = shipped
    for trace in summary["traces"]:
        assert trace["reaction_cycles"] == 12
        for path in trace["reaction_and_overhead"]:
            if path["path"] in ("rtl", "systemc"):
                assert path["unseen"] == 0
                assert path["reaction"]["cycles"]["maximum"] <= 12
                assert path["queue_high_water"] < summary["device"]["queue_depth"]


def test_shipped_traces_hosts_read_what_the_reference_derives(shipped):
    _, summary, stdout = shipped
    assert summary["events_compared"] > 1000
    for trace in summary["traces"]:
        host = trace["host"]
        assert host["path"] == "rtl" and host["events_lost"] == 0
        assert trace["events_compared"] == len(host["events"])
        pairs = [c for c in trace["comparisons"] if "cpu" in (c["left"], c["right"])]
        assert {c["left"] for c in pairs} | {c["right"] for c in pairs} >= set(LOCKSTEP_PATHS)
        assert all(c["events"] == len(host["events"]) for c in pairs)
        # Learning rates of these runs: a linear warm-up, then a slow decay.
        assert host["learning_rate_changes"] == [1, 2, 3]
        for event in host["events"]:
            assert event["cause"] != "NONE" and (event["old_mode"] != event["new_mode"]) == (event["cause"] != "ESCALATE")
    healthy = next(t for t in summary["traces"] if t["label"] == "healthy")
    assert healthy["host"]["events"] == [] and healthy["host"]["hints"] == []
    overflow = next(t for t in summary["traces"] if t["label"] == "gradual")
    first = overflow["host"]["hints"][0]
    assert first["factors"] == {"loss_scale": 2.0 ** -8, "clip_threshold": 0.5, "learning_rate": 1.0}
    assert first["step"] == overflow["host"]["events"][0]["step"]
    assert overflow["host"]["last_clean_step"] == overflow["first_incident"]["step"] - 1
    assert "loss scale x 1/256" in stdout


def test_shipped_traces_show_both_engines(shipped):
    _, summary, stdout = shipped
    for trace in summary["traces"]:
        assert [(e["name"], e["order"]) for e in trace["engines"]] == [("forecast", None), ("published", "BEFORE"), ("published", "AFTER")]
        forecast, before, after = trace["engines"]
        assert forecast["alarms"] == trace["detection"]["alarms"] and forecast["lead_steps"] == trace["lead_steps"]
        assert forecast["largest_z"] is None
        assert after["largest_z"]["z"] < 127 ** 0.5 / 2 ** 0.5 <= 7.97 < before["largest_z"]["z"]  # sqrt((W - 1) / 2), W = 128
    overflow = next(t for t in summary["traces"] if t["label"] == "gradual")
    assert all(e["lead_steps"] >= 1 for e in overflow["engines"])
    assert "Engines, each with its own risk profile" in stdout


def test_the_published_profile_decides_by_its_engine(tmp_path):
    trace = next(p for p in SHIPPED if "overflow" in p.name)
    opd("replay", trace, "--paths", "systemc,cpu", "--profile", "published", "--set", "published_order=1", "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    entry = summary["traces"][0]
    assert summary["mismatches"] == 0 and summary["profile"] == "published"
    assert summary["config"]["weight_z"] == 128 and summary["config"]["weight_forecast"] == 0
    after = entry["engines"][2]
    assert (after["alarms"], after["lead_steps"]) == (entry["detection"]["alarms"], entry["lead_steps"])


def test_healthy_run_raises_nothing(shipped):
    _, summary, _ = shipped
    healthy = next(t for t in summary["traces"] if t["label"] == "healthy")
    flags = healthy["detection"]["flags"]  # of all engines, in force or not
    assert {flags[name] for name in ("FORECAST", "CRITICAL", "JUMP", "NONFINITE", "SATURATED", "UPSET")} == {0}
    assert healthy["engines"][0]["records_flagged"] == 0
    assert healthy["detection"]["alarms"] == 0 and healthy["detection"]["downshifts"] == 0
    assert healthy["lead_steps"] is None


def test_overflow_run_is_warned_about_and_in_stable(shipped):
    _, summary, _ = shipped
    overflow = next(t for t in summary["traces"] if t["label"] == "gradual")
    trace = Trace.read(ROOT / "traces" / "captured" / overflow["file"])
    assert overflow["first_incident"]["step"] == trace.first_bad_step
    assert overflow["first_incident"]["probe"] == trace.first_bad_op
    assert overflow["lead_steps"] >= 10
    assert overflow["first_incident"]["mode_before"] == "STABLE"


def test_near_limit_run_never_overflows(shipped):
    _, summary, _ = shipped
    near = next(t for t in summary["traces"] if t["label"] == "near-limit")
    assert near["incidents"] == [] and near["detection"]["flags"]["NONFINITE"] == 0


def test_records_on_disk_are_those_of_the_trace(shipped):
    out, summary, _ = shipped
    for entry in summary["traces"]:
        trace = Trace.read(ROOT / "traces" / "captured" / entry["file"])
        streams = [read_records(out / f"{entry['name']}.{path}.records") for path in entry["paths"]]
        for stream in streams[1:]:
            assert stream.tobytes() == streams[0].tobytes()
        records = streams[0]
        assert len(records) == trace.max_abs.size
        shape = trace.max_abs.shape
        assert (records["nonfinite_count"].reshape(shape) == trace.nonfinite).all()
        magnitude = trace.max_abs.astype(np.float16).view(np.uint16)
        assert (records["max_mag"].reshape(shape) == magnitude).all()
        nonfinite = (records["flags"] >> Flag.NONFINITE & 1).astype(bool)
        assert (nonfinite == (records["nonfinite_count"] > 0)).all()
        assert not (records["mode"][nonfinite] == Mode.FAST).any()


def test_readme_shows_what_run_prints(shipped):
    _, _, stdout = shipped
    readme = (ROOT / "README.md").read_text()
    shown = readme.split("```\nCross-check\n")[1].split("```")[0].splitlines()
    assert len(shown) > 8
    for line in shown:
        assert line in stdout, line


# --- SYS-02: the check bites ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", [*LOCKSTEP_PATHS, "cuda"])
def test_a_fault_in_each_path_is_found_and_named(path, small, tmp_path):
    chosen = []
    if path == "cuda" and cuda_skipped(small, tmp_path):  # no GPU: the same kernels, emulated
        path, chosen = "cuda-emulated", ["--paths", "rtl,systemc,cpu,cuda-emulated"]
        if reason := emulation_missing(small):
            pytest.skip(reason)
    result = opd("replay", small, "--out", tmp_path, "--plant-fault", path, *chosen, expect=1)
    line = next(line for line in result.stdout.splitlines() if line.startswith("MISMATCH"))
    assert re.search(r"op 0 \(op0\), step 0, seq 0: flags: ", line), line
    assert f"{path} = " in line and "WARMUP" in line
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["mismatches"] > 0
    divergence = summary["traces"][0]["first_divergence"]
    assert (divergence["op"], divergence["step"], divergence["seq"], divergence["field"]) == (0, 0, 0, "flags")
    assert path in divergence["paths"]
    assert "report.html" in result.stdout and (tmp_path / "report.html").stat().st_size > 10_000
    waveform = tmp_path / "small.fst"
    assert divergence["cycle"] > 0 and waveform.stat().st_size > 1000
    assert waveform.read_bytes()[0] == 0  # FST header block


def emulation_missing(trace: Path) -> str | None:
    """Why the path cuda-emulated was not built; None where it was."""
    done = subprocess.run([PROGRAM, "replay", trace, "--paths", "cpu,cuda-emulated"], capture_output=True, text=True, timeout=300, check=False)
    reason = re.search(r"opd: --paths cuda-emulated: cannot run here \((.*)\); leave it out", done.stderr)
    assert done.returncode == (2 if reason else 0), done.stderr
    return reason[1] if reason else None


def cuda_skipped(small: Path, tmp_path: Path) -> str | None:
    opd("replay", small, "--out", tmp_path)
    return json.loads((tmp_path / "summary.json").read_text())["traces"][0]["paths_skipped"].get("cuda")


def one_probe(tmp_path: Path, name: str, values, nonfinite=None, kind: str = "activation") -> Path:
    """A statistics-only trace of one FP16 operator."""
    writer = TraceWriter(name, "data", [Probe("op", kind, "FP16", (8,))])
    for step, value in enumerate(values):
        bad = 0 if nonfinite is None else nonfinite[step]
        writer.add_step(step, max_abs=np.array([value], np.float32), nonfinite=np.array([bad], np.int64))
    path = tmp_path / f"{name}.safetensors"
    writer.write(path)
    return path


@pytest.mark.parametrize("arguments", [[], ["--set", "baseline_warmup_samples=0"], ["--set", "baseline_warmup_samples=200"]])
@pytest.mark.parametrize("values", [[1.0], [0.0] * 5, [1.0] * 20])
def test_a_planted_fault_shows_on_any_trace(tmp_path, values, arguments):
    trace = one_probe(tmp_path, "any", values)
    for path in LOCKSTEP_PATHS:
        opd("replay", trace, "--plant-fault", path, *arguments, expect=1)


def test_one_fault_in_lockstep_is_one_mismatch(small, tmp_path):
    opd("replay", small, "--out", tmp_path, "--plant-fault", "rtl", expect=1)
    assert json.loads((tmp_path / "summary.json").read_text())["mismatches"] == 1


def test_a_planted_fault_needs_a_path_that_runs_and_another_one(small, tmp_path):
    assert "no second path" in opd("replay", small, "--paths", "cpu", "--plant-fault", "cpu", expect=2).stderr
    if reason := cuda_skipped(small, tmp_path):
        assert reason in opd("replay", small, "--plant-fault", "cuda", expect=2).stderr


# --- SYS-06: what compares nothing is no pass -----------------------------------------------------------------------------

@pytest.mark.parametrize("paths", ["cpu", "systemc", "systemc-lt", "cpu,cpu"])
def test_nothing_compared_is_no_pass(small, tmp_path, paths):
    """Neither in the exit status nor in any file; the results are there all the same."""
    result = opd("replay", small, "--paths", paths, "--out", tmp_path, expect=2)
    only = paths.split(",")[0]
    assert f"opd: nothing was compared in small: only {only} ran; give --paths two" in result.stderr
    assert result.stdout.splitlines()[-1] == "nothing was compared" and "0 mismatches" not in result.stdout
    assert re.search(rf"^  small .* - +{only}$", result.stdout, re.MULTILINE)  # no number of mismatches
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdict"] == summary["traces"][0]["verdict"] == "nothing compared"
    page = (tmp_path / "report.html").read_text("utf-8")
    assert 'class="verdict idle"' in page and "<strong>Equal.</strong>" not in page


@pytest.mark.parametrize("paths", ["rtl,cuda", "cuda", "systemc,cpu,cuda", "rtl,systemc,systemc-lt,cpu,cuda"])
def test_a_path_that_was_asked_for_must_run(small, tmp_path, paths):
    reason = cuda_skipped(small, tmp_path / "default")  # in the default set it is said, and the rest passes
    if not reason:
        pytest.skip("there is a GPU")
    result = opd("replay", small, "--paths", paths, "--out", tmp_path / "out", expect=2)
    assert f"opd: --paths cuda: cannot run here ({reason}); leave it out" in result.stderr and "mismatches" not in result.stdout
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_path_that_a_trace_stops_was_asked_for(tmp_path):
    """Single beats back to back overflow the op queue: the loosely timed model cannot follow, and must not be passed over."""
    path = tmp_path / "tiny.safetensors"
    probes = [Probe(f"op{i}", "activation", "FP16", (2,)) for i in range(40)]
    writer = TraceWriter("tiny", "data", probes)
    for step in range(4):
        writer.add_step(step, raw={p.name: np.ones(2, np.float16) for p in probes}, max_abs=np.ones(40, np.float32),
                        nonfinite=np.zeros(40, np.int64))
    writer.write(path)
    result = opd("replay", path, "--paths", "rtl,systemc-lt", "--out", tmp_path, expect=2)
    assert "opd: --paths systemc-lt: did not run for tiny (the op queue overflowed" in result.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"] == "path missing"
    opd("replay", path, "--out", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"] == "equal"


def test_a_mismatch_is_one_whatever_else(small, tmp_path):
    opd("replay", small, "--paths", "systemc,cpu", "--plant-fault", "cpu", "--out", tmp_path, expect=1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdict"] == summary["traces"][0]["verdict"] == "mismatch"


def test_paths_of_a_mismatch_are_not_called_equal(small, tmp_path):
    """A mismatch of pins belongs to rtl and systemc, in the summary and on the page."""
    opd("replay", small, "--plant-fault", "rtl", "--out", tmp_path, expect=1)
    comparisons = json.loads((tmp_path / "summary.json").read_text())["traces"][0]["comparisons"]
    assert [(c["left"], c["right"], c["mismatches"]) for c in comparisons if c["mismatches"]] == [("rtl", "systemc", 1)]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "rtl&thinsp;&ne;&thinsp;systemc" in page and "rtl&thinsp;=&thinsp;systemc<" not in page


@pytest.mark.parametrize("blocked", ["summary.json", "report.html"])
def test_a_mismatch_outlives_results_that_cannot_be_written(small, tmp_path, blocked):
    (tmp_path / blocked).mkdir()
    result = opd("replay", small, "--out", tmp_path, "--plant-fault", "cpu", expect=1)
    assert blocked in result.stderr and "Traceback" not in result.stderr and "report.py" not in result.stderr
    assert blocked in opd("replay", small, "--out", tmp_path, expect=2).stderr


# --- SYS-03: bad input ----------------------------------------------------------------------------------------------------

def corrupted(small: Path, tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_missing_file(tmp_path):
    result = opd("replay", tmp_path / "none.safetensors", expect=2)
    assert "none.safetensors" in result.stderr


def test_wrong_format(small, tmp_path):
    result = opd("replay", corrupted(small, tmp_path, "text.safetensors", b"step,loss\n1,2.0\n" * 50), expect=2)
    assert "text.safetensors" in result.stderr


def test_truncated_header(small, tmp_path):
    result = opd("replay", corrupted(small, tmp_path, "cut.safetensors", small.read_bytes()[:100]), expect=2)
    assert "cut.safetensors" in result.stderr and "header" in result.stderr


def edited(small: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    assert len(old) == len(new)
    data = small.read_bytes()
    assert old in data
    return corrupted(small, tmp_path, "edited.safetensors", data.replace(old, new, 1))


@pytest.mark.parametrize("old, new, words", [
    (b'"dtype":"F32","shape":[24,6]', b'"dtype":"I32","shape":[24,6]', ["edited.safetensors", "dtype"]),
    (b'\\"E5M2\\"', b'\\"E6M1\\"', ["edited.safetensors", "E6M1", "FP16"]),
    (b'"opd-trace"', b'"opd-trick"', ["edited.safetensors", "format"]),
    (b'[3,45]', b'[0,45]', ["edited.safetensors", "probes[1].shape", "without elements"]),
    (b'"raw/op2"', b'"raw/xx2"', ["edited.safetensors", "xx2"]),
])
def test_edited_headers(small, tmp_path, old, new, words):
    stderr = opd("replay", edited(small, tmp_path, old, new), expect=2).stderr
    for word in words:
        assert word in stderr, stderr


def with_tensor(small: Path, tmp_path: Path, name: str, change) -> Path:
    """A copy of the trace with the bytes of one tensor changed."""
    data = bytearray(small.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    begin, end = header[name]["data_offsets"]
    data[8 + length + begin:8 + length + end] = change(bytes(data[8 + length + begin:8 + length + end]))
    return corrupted(small, tmp_path, "edited.safetensors", bytes(data))


def test_nan_in_statistics(small, tmp_path):
    bad = with_tensor(small, tmp_path, "max_abs", lambda b: np.full(1, np.nan, np.float32).tobytes() + b[4:])
    stderr = opd("replay", bad, expect=2).stderr
    assert "max_abs" in stderr and "op0" in stderr


def test_step_going_backwards(small, tmp_path):
    bad = with_tensor(small, tmp_path, "step", lambda b: b[8:16] + b[:8] + b[16:])
    assert "step" in opd("replay", bad, expect=2).stderr


def test_elements_that_contradict_their_statistics(small, tmp_path):
    bad = with_tensor(small, tmp_path, "raw/op0", lambda b: b"\xff\x7b" + b[2:])
    stderr = opd("replay", bad, expect=2).stderr
    assert "raw/op0" in stderr and "step 0" in stderr


def test_more_ops_than_the_device_has(tmp_path):
    probes = [Probe(f"op{i}", "activation", "FP16", (4,)) for i in range(257)]
    writer = TraceWriter("wide", "data", probes)
    writer.add_step(0, max_abs=np.ones(257, np.float32), nonfinite=np.zeros(257, np.int64))
    writer.write(tmp_path / "wide.safetensors")
    stderr = opd("replay", tmp_path / "wide.safetensors", expect=2).stderr
    assert "257 probes" in stderr and "256 operators" in stderr and "OPD_NUM_OPS" in stderr


def test_two_traces_of_one_name(small, tmp_path):
    twin = corrupted(small, tmp_path, "twin.safetensors", small.read_bytes())
    stderr = opd("replay", small, twin, expect=2).stderr
    assert "twin.safetensors" in stderr and "name" in stderr


def test_unwritable_output_folder(small, tmp_path):
    (tmp_path / "file").write_text("")
    stderr = opd("replay", small, "--out", tmp_path / "file" / "out", expect=2).stderr
    assert "--out" in stderr and "writable" in stderr


@pytest.mark.parametrize("arguments, words", [
    (["--paths", "rtl,fpga"], ["fpga", "systemc"]),
    (["--set", "baseline_shift=9"], ["baseline_shift", "1..8"]),
    (["--set", "baseline_shift=four"], ["four", "1..8"]),
    (["--set", "z_threshold=five"], ["five", "a number", "0..32768"]),
    (["--set", "z_threshold=-1"], ["'-1'", "0..32768"]),
    (["--set", "published_alpha=1.5"], ["1.5", "..1"]),
    (["--set", "variance_floor=nan"], ["nan", "a number"]),
    (["--profile", "paper"], ["--profile paper", "forecast, published"]),
    (["--set", "window=4"], ["window", "baseline_shift"]),
    (["--streams", "5"], ["--streams", "1..4"]),
    (["--bubbles", "-1"], ["--bubbles"]),
    (["--plant-fault", "gpu"], ["--plant-fault", "cpu"]),
    (["--waveform", "5:1", "--out", "OUT"], ["--waveform", "FIRST:LAST"]),
    (["--nonsense"], ["opd: --nonsense: no such option", "opd replay --help"]),
    (["--profil", "published"], ["opd: --profil: no such option; did you mean --profile?"]),
    (["--profil=published", "--help"], ["opd: --profil: no such option; did you mean --profile?"]),
    (["--out", "OUT", "--out", "OUT"], ["opd: --out: is given 2 times; give it once"]),
    (["--profile", "published", "--profile", "forecast"], ["opd: --profile: is given 2 times"]),
    (["--config", "a.json", "--config", "b.json"], ["opd: --config: is given 2 times"]),
    (["--streams", "2", "--streams", "2"], ["opd: --streams: is given 2 times"]),
    (["--bubbles", "2", "--bubbles=3"], ["opd: --bubbles: is given 2 times"]),
    (["--plant-fault", "cpu", "--plant-fault", "rtl"], ["opd: --plant-fault: is given 2 times"]),
    (["--waveform", "1:2", "--waveform", "3:4", "--out", "OUT"], ["opd: --waveform: is given 2 times"]),
    (["--set", "z_threshold=4", "--set", "z_threshold=5"], ["opd: --set z_threshold: is given twice"]),
    (["--waveform", "1:2", "--out", "OUT", "--paths", "cpu"], ["opd: --paths: a waveform is made of rtl and systemc"]),
    (["--out"], ["opd: --out", "opd replay --help"]),
    (["SMALL"], ["small.safetensors: file: is named twice; name every trace once"]),
])
def test_bad_arguments(small, tmp_path, arguments, words):
    stderr = opd("replay", small, *[{"OUT": tmp_path, "SMALL": small}.get(a, a) for a in arguments], expect=2).stderr
    for word in words:
        assert word in stderr, stderr


def test_no_command_is_bad_usage_and_lists_them():
    stderr = opd(expect=2).stderr
    assert "Usage: " in stderr and "\n  replay " in stderr and "Exit status: " in stderr


@pytest.mark.parametrize("arguments, words", [
    (["NONSENSE", "--help"], "opd: NONSENSE: no such command; the commands are replay, info"),
    (["NONSENSE", "-h"], "opd: NONSENSE: no such command"),
    (["replya", "x"], "opd: replya: no such command; did you mean replay?"),
    (["evalute", "--help"], "opd: evalute: no such command; did you mean evaluate?"),
    (["--nonsense", "--help"], "opd: --nonsense: no such option"),
    (["registers", "x"], "opd: 'x' is not expected; opd registers --help lists what there is"),
    (["info"], "opd: traces is required; see opd info --help"),
    (["bench", "--seconds", "1", "--seconds", "2"], "opd: --seconds: is given 2 times; give it once"),
    (["bench", "--json", "/nowhere/x.json"], "opd: --json /nowhere/x.json: cannot be written"),
])
def test_wrong_command_lines_are_named(arguments, words):
    result = opd(*arguments, expect=2)
    assert result.stderr.startswith(words) and len(result.stderr.splitlines()) == 1 and result.stdout == ""


def test_paths_that_are_given_twice_are_merged(small, tmp_path):
    opd("replay", "--paths", "systemc", "--paths", "cpu", small, "--out", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["traces"][0]["paths"] == ["systemc", "cpu"]


@pytest.mark.parametrize("command", ["replay", "info"])
def test_a_folder_is_the_traces_in_it(tmp_path, command):
    for name in ("b", "a"):
        one_probe(tmp_path, name, [1.0, 2.0])
    (tmp_path / "notes.txt").write_text("no trace")
    found = {"replay": r"^  (a|b) +statistics ", "info": r"/([ab])\.safetensors: "}[command]
    assert re.findall(found, opd(command, tmp_path).stdout, re.MULTILINE) == ["a", "b"]
    (tmp_path / "empty").mkdir()
    assert "empty: folder: holds no *.safetensors; name a folder" in opd(command, tmp_path / "empty", expect=2).stderr
    assert "a.safetensors: file: is named twice" in opd(command, tmp_path, tmp_path / "a.safetensors", expect=2).stderr


# --- SYS-04: unusual streams ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [["--bubbles", "3"], ["--streams", "4"], ["--streams", "3", "--bubbles", "2"],
                                       ["--lane-latency", "1"],
                                       ["--profile", "published", "--set", "published_min_samples=4", "--set", "z_threshold=0.5"],
                                       ["--set", "published_alpha=0.5", "--set", "variance_floor=1e-30", "--set", "published_order=1"],
                                       ["--set", "quiet_steps=2", "--set", "safe_steps=1", "--set", "risk_stable=1"]])
def test_every_format_interleaved_and_with_bubbles(small, tmp_path, arguments):
    opd("replay", small, "--out", tmp_path, *arguments)
    summary = json.loads((tmp_path / "summary.json").read_text())
    trace = summary["traces"][0]
    assert summary["mismatches"] == 0
    assert trace["records_compared"] == 24 * 6
    assert set(LOCKSTEP_PATHS) <= set(trace["paths"])


def test_single_beat_operators_lose_completions_and_say_so_unless_they_have_pauses(tmp_path):
    path = tmp_path / "tiny.safetensors"
    probes = [Probe(f"op{i}", "activation", "FP16", (2,)) for i in range(40)]
    writer = TraceWriter("tiny", "data", probes)
    for step in range(20):
        writer.add_step(step, raw={p.name: np.ones(2, np.float16) for p in probes}, max_abs=np.ones(40, np.float32),
                        nonfinite=np.zeros(40, np.int64))
    writer.write(path)
    stdout = opd("replay", path, "--out", tmp_path).stdout
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    unseen = 800 - trace["records_compared"]
    assert unseen > 300 and trace["mismatches"] == 0  # one completion in two clocks into a unit that takes one in ten
    assert "op queue full" in stdout and f" {unseen} " in stdout and "systemc-lt" in trace["paths_skipped"]
    device = next(p for p in trace["reaction_and_overhead"] if p["path"] == "rtl")
    assert device["unseen"] == unseen and device["queue_high_water"] == 8
    opd("replay", path, "--bubbles", "9", "--out", tmp_path)
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert trace["records_compared"] == 800 and trace["reaction_cycles"] == 12 and trace["mismatches"] == 0


def test_statistics_that_the_device_holds_back_are_counted_at_the_pins_of_each(tmp_path):
    """The device decides in ten clocks, statistics come one after another: they wait. Elements never do, nor one statistic alone."""
    waits = {}
    for name, probes in (("elements", None), ("alone", 1), ("crowd", 40)):
        if probes is None:
            small_trace(name=name, raw=1).write(tmp_path / f"{name}.safetensors")
        else:
            writer = TraceWriter(name, "data", [Probe(f"op{i}", "activation", "FP16", (8,)) for i in range(probes)])
            for step in range(4):
                writer.add_step(step, max_abs=np.full(probes, 1 + step, np.float32), nonfinite=np.zeros(probes, np.int64))
            writer.write(tmp_path / f"{name}.safetensors")
        opd("replay", tmp_path / f"{name}.safetensors", "--out", tmp_path)
        paths = json.loads((tmp_path / "summary.json").read_text())["traces"][0]["reaction_and_overhead"]
        waits[name] = [path["sideband_wait_cycles"] for path in paths if path["path"] in ("rtl", "systemc")]
        assert len(waits[name]) == 2 and waits[name][0] == waits[name][1]
    assert waits["elements"] == [0, 0] and waits["alone"] == [0, 0] and waits["crowd"][0] > 100


def test_statistics_only_trace_says_so(tmp_path):
    path = tmp_path / "statistics.safetensors"
    small_trace(name="statistics", raw=0).write(path)
    opd("replay", path, "--out", tmp_path)
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert trace["kind"] == "statistics" and trace["beats_compared"] == 0 and trace["records_compared"] == 24 * 6
    assert trace["mismatches"] == 0 and trace["cycles_compared"] > 0


def test_nonfinite_elements_downshift_their_operator_only(tmp_path):
    path = tmp_path / "hot.safetensors"
    small_trace(name="hot", scale=40_000.0).write(path)
    opd("replay", path, "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["mismatches"] == 0
    records = read_records(tmp_path / "hot.cpu.records")
    assert (records["mode"][records["op"] == 0] != Mode.FAST).any()  # FP16: 65504
    assert (records["mode"][records["op"] == 5] == Mode.FAST).all()  # FP32
    issued = next(p for p in summary["traces"][0]["reaction_and_overhead"] if p["path"] == "systemc")["operators_issued_in_mode"]
    assert sum(issued.values()) == len(records) and issued["SAFE"] > 0


def test_one_path_alone_compares_nothing_and_says_so(small):
    stdout = opd("replay", small, "--paths", "cpu", expect=2).stdout
    assert "nothing was compared" in stdout and "mismatches\n" not in stdout.split("\n\n")[-1]


def test_info_lists_the_probes(small):
    stdout = opd("info", small).stdout
    assert all(f"op{i}" in stdout for i in range(6)) and "E4M3" in stdout


def test_info_lists_the_operators_that_have_operands(tmp_path):
    path = tmp_path / "operands.safetensors"
    operand_sample().write(path)
    lines = [re.sub(" +", " ", line.strip()) for line in opd("info", path).stdout.splitlines()]
    assert "operators: 4, operands at 2 of 3 steps, 4..9" in lines
    assert "0 attn.qk matmul [2, 2, 3] over 4 factor 1 2 a FP16 [4, 4], b FP16 [6, 4]" in lines
    assert "1 norm layer_norm [4, 3] epsilon 1e-06 2 x FP16 [4, 3], gain FP32 [1, 3], bias BF16 [1, 3]" in lines
    assert "2 attn/softmax softmax [4, 3] factor 0.125 2 x FP16 [4, 3], mask [2, 3]" in lines
    assert "3 row variance [4, 7] correction 1 0 x E4M3 [4, 7]" in lines


@pytest.mark.parametrize("command", ["info", "replay"])
def test_wrong_operands_are_named(tmp_path, command):
    """Exit status and the whole message of the program; test_trace.py has every rule."""
    path = tmp_path / "operands.safetensors"
    operand_sample().write(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'\\"shape\\":[2,3]', b'\\"shape\\":[3,3]'))
    result = opd(command, path, expect=2)
    assert result.stderr.strip() == (
        f"opd: {path}: operators[0].operands.mask.shape: [3, 3]: 4 rows of the operator are not a multiple of 3; correct the "
        "shape; the rows of an operand repeat")
    assert result.stdout == ""


def test_info_registers_lists_every_field_with_its_reset_value():
    stdout = opd("registers").stdout
    assert re.search(r"^0x128 +CRITICAL.HEADROOM +9:0 +rw +32 +0..1023 +critical_headroom$", stdout, re.MULTILINE)
    assert re.search(r"^0x168 +Z_THRESHOLD.VALUE +31:0 +rw +5 +0..32768 +z_threshold$", stdout, re.MULTILINE)
    assert re.search(r"^0x040 +IRQ_STATUS.EVENT +0 +r, w1c ", stdout, re.MULTILINE)
    assert len(stdout.splitlines()) > 100


def test_rtl_alone_is_compared_cycle_by_cycle(small, tmp_path):
    stdout = opd("replay", small, "--paths", "rtl", "--out", tmp_path).stdout
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert trace["cycles_compared"] > 0 and trace["reaction_cycles"] >= 12  # these are short: some wait in the queue
    assert "0 mismatches" in stdout and "nothing was compared" not in stdout


def test_figures_that_do_not_exist_are_absent(tmp_path):
    """A statistics-only trace has no tap reaction, and no software one."""
    trace = one_probe(tmp_path, "absent", [1.0, 2.0])
    stdout = opd("replay", trace, "--out", tmp_path).stdout
    entry = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert entry["reaction_cycles"] is None
    device = next(p for p in entry["reaction_and_overhead"] if p["path"] == "rtl")
    sideband = device["reaction"]["sideband_cycles"]
    assert device["reaction"]["cycles"] is None and sideband["minimum"] == 11
    assert f"sideband 11..{sideband['maximum']} cycles" in stdout and "0..0 cycles" not in stdout and " 0 ns" not in stdout


def test_figures_say_whether_a_path_ran_and_at_which_clock_a_cycle_is_time(small, tmp_path):
    stdout = opd("replay", small, "--out", tmp_path).stdout
    trace = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    table = stdout.split("\nReaction:")[1].split("\n\n")[0]
    rows = [re.split(r"  +", line.strip()) for line in table.splitlines() if line.startswith("  small")]
    ran = {row[1].removesuffix(", not run"): not row[1].endswith(", not run") for row in rows}
    assert ran == {**{path: True for path in trace["paths"] if path != "systemc-lt"}, "cuda": "cuda" in trace["paths"]}
    assert {entry["path"]: entry["ran"] for entry in trace["reaction_and_overhead"] if entry["path"] != "systemc-lt"} == ran
    clock = json.loads((ROOT / "rtl/synthesis.json").read_text())["parts"]["opd_top"]["critical_path_ns"]
    assert f"in time: {trace['reaction_cycles']} cycles are {trace['reaction_cycles'] * clock:.0f} ns at the clock of that path" in stdout


def test_an_incident_of_a_gradient_is_called_an_incident(tmp_path):
    trace = one_probe(tmp_path, "gradient", [1.0] * 4, nonfinite=[0, 0, 3, 0], kind="gradient")
    stdout = opd("replay", trace).stdout
    assert "step 2 at op" in stdout and "forward" not in stdout


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path):
    writer = TraceWriter("escape", "data", [Probe("\x1b[31mred", "activation", "FP16", (2,))])
    writer.add_step(0, max_abs=np.ones(1, np.float32), nonfinite=np.array([2], np.int64))
    writer.write(tmp_path / "escape.safetensors")
    for command in ("info", "replay"):
        assert "\x1b" not in opd(command, tmp_path / "escape.safetensors").stdout


def test_all_traces_are_checked_before_the_first_one_runs(small, tmp_path):
    wide = tmp_path / "wide.safetensors"
    writer = TraceWriter("wide", "data", [Probe(f"op{i}", "activation", "FP16", (4,)) for i in range(257)])
    writer.add_step(0, max_abs=np.ones(257, np.float32), nonfinite=np.zeros(257, np.int64))
    writer.write(wide)
    opd("replay", small, wide, "--out", tmp_path / "out", expect=2)
    assert list((tmp_path / "out").iterdir()) == []


def test_waveform_alone_touches_nothing_else(small, tmp_path):
    opd("replay", small, "--out", tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    stdout = opd("replay", small, "--out", tmp_path, "--waveform", "20:60", "--set", "quiet_steps=1").stdout
    assert "small.fst, cycles 20:60" in stdout and (tmp_path / "small.fst").stat().st_size > 1000
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name in before}


@pytest.mark.parametrize("window, words", [("900000:900001", "not written"), ("1:-1", "FIRST:LAST"), ("7", "FIRST:LAST")])
def test_a_waveform_that_cannot_be_is_refused(small, tmp_path, window, words):
    assert words in opd("replay", small, "--out", tmp_path, "--waveform", window, expect=2).stderr
    assert not (tmp_path / "small.fst").exists()


@pytest.mark.parametrize("blocked", ["summary.json", "report.html", "small.cpu.records"])
def test_results_take_no_place_of_a_device_or_pipe(small, tmp_path, blocked):
    os.mkfifo(tmp_path / blocked)
    stderr = opd("replay", small, "--out", tmp_path, expect=2).stderr
    assert f"{tmp_path / blocked}" in stderr and "is not a regular file" in stderr
    assert (tmp_path / blocked).is_fifo()


@pytest.mark.parametrize("name", ["summary.json", "report.html"])
def test_a_full_disk_leaves_no_cut_file(small, tmp_path, name):
    """A limit on the size of files stands in for the disk: what was there stays."""
    import resource

    opd("replay", small, "--out", tmp_path, "--paths", "systemc,cpu")
    before = (tmp_path / name).read_bytes()
    limit = 8000 if name == "summary.json" else 1_000_000  # below the file, above what is written before it
    assert len(before) > limit
    result = subprocess.run([PROGRAM, "replay", small, "--out", tmp_path, "--paths", "systemc,cpu"], text=True, capture_output=True,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert result.returncode == 2 and f"{name}" in result.stderr and "File too large" in result.stderr
    assert (tmp_path / name).read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(name + ".")]


@pytest.mark.parametrize("arguments, status", [(["info", "SMALL"], 0), (["info", "none"], 2), (["replay", "SMALL", "--paths", "cpu"], 2),
                                               (["replay", "SMALL", "--plant-fault", "cpu"], 1), (["NONSENSE"], 2), ([], 2)])
@pytest.mark.parametrize("error", ["/dev/full", "closed"])
def test_an_error_stream_that_cannot_be_written_changes_no_status(small, arguments, status, error):
    words = " ".join(f"'{small}'" if a == "SMALL" else a for a in arguments)
    result = subprocess.run(f"'{PROGRAM}' {words} 2>{'&-' if error == 'closed' else error}", shell=True, text=True, capture_output=True)
    assert result.returncode == status


@pytest.mark.parametrize("output", ["/dev/full", "&-"])
def test_a_mismatch_is_told_by_the_status_where_output_is_not(small, tmp_path, output):
    def run(*arguments):
        words = " ".join(f"'{a}'" for a in arguments)
        return subprocess.run(f"'{PROGRAM}' {words} >{output}", shell=True, text=True, stderr=subprocess.PIPE)

    equal = run("replay", small, "--out", tmp_path)
    assert equal.returncode == 2 and "standard output cannot be written" in equal.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"] == "equal"
    assert run("replay", small, "--plant-fault", "cpu", "--out", tmp_path).returncode == 1
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"] == "mismatch"


def test_full_output_is_reported(small):
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "info", small], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2 and "standard output" in result.stderr


# --- SRC-01: sources -------------------------------------------------------------------------------------------------------

def test_generated_files_are_current():
    result = subprocess.run([ROOT / ".venv" / "bin" / "python", ROOT / "scripts" / "generate_registers", "--check"],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\b([1-9]\d*) of \1 generated files", result.stdout), result.stdout


def test_models_do_not_share_arithmetic():
    """systemc/ and the reference share opd/types/ only, so that their agreement is evidence."""
    def includes(folder: str) -> set[str]:
        files = [p for p in (ROOT / folder).rglob("*") if p.suffix in (".hpp", ".cpp", ".cu", ".cuh")]
        assert files
        return {name for p in files for name in re.findall(r'#include [<"](opd/[^>"]+)', p.read_text())}

    systemc, reference = includes("systemc"), includes("sw_reference")
    assert systemc and reference
    assert {name for name in systemc if not name.startswith(("opd/sc/", "opd/types/"))} == set()
    driver = includes("sw_reference/driver") | includes("sw_reference/include/opd/driver")
    assert driver and {name for name in driver if not name.startswith(("opd/driver/", "opd/types/"))} == set()
    assert {name for name in reference - driver if not name.startswith(("opd/reference/", "opd/types/"))} == set()
    assert not {name for name in systemc | includes("sw_reference/cpu") | includes("sw_reference/include/opd/reference")
                if name.startswith("opd/driver/")}


def tokens(path: Path) -> list[str]:
    """Of C++, without comments and preprocessor lines."""
    return re.findall(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]", re.sub(r"//[^\n]*|/\*.*?\*/|#[^\n]*", "", path.read_text(), flags=re.DOTALL))


def runs(paths, length: int) -> dict[tuple, Path]:
    """Every `length` tokens in a row, with the file that they stand in."""
    return {tuple(found[i:i + length]): path for path in paths for found in [tokens(path)] for i in range(len(found) - length + 1)}


def test_models_are_not_one_text(tmp_path):
    """A formula that one hand misread and the other copied would be wrong in both: no 50 tokens in a row are the same in
    systemc/ and in the reference. (Below that are the members of a record, in the order of the register map.)"""
    def sources(*folders: str) -> list[Path]:
        return [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".hpp", ".cpp")]

    reference = sources("sw_reference/include/opd/reference", "sw_reference/cpu", "sw_reference/compute")
    systemc = sources("systemc")
    assert len(reference) > 20 and len(systemc) > 20
    known = runs(reference, 50)
    shared = {(str(path), str(known[run])) for run, path in runs(systemc, 50).items() if run in known}
    assert not shared
    copied = tmp_path / "copied.hpp"
    copied.write_text(re.sub(r"(?s).*(OPD_HOST_DEVICE inline std::uint16_t published_step)", r"\1",
                             (ROOT / "sw_reference/include/opd/reference/published.hpp").read_text()))
    assert any(run in known for run in runs([copied], 50))


def test_programming_page_shows_the_example_that_is_tested():
    source = (ROOT / "testbench" / "tests" / "system" / "host_example_test.cpp").read_text()
    example = source.split("// [example]\n")
    assert len(example) == 3
    page = (ROOT / "docs" / "programming.md").read_text()
    assert page.split("```cpp\n")[1].split("```")[0] == example[1]
