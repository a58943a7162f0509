"""`opd replay --compute` as its user meets it: operators computed on every path, modes that change arithmetic, faults, answers.

Testplan: CMP-10 closed loop and equality of the paths, CMP-11 planted faults, CMP-12 answers, CMP-13 bad input.
"""
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from opd.report import read_records
from opd.trace import Probe, Trace, TraceWriter
from operand_trace import BATCH, DEPTH, LENGTH, OPERATORS, WINDOW, attention

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
PATHS = ["rtl", "systemc", "systemc-lt", "cpu"]
COMPUTING = PATHS[1:]
SHIPPED = sorted((ROOT / "traces" / "operands").glob("*.safetensors"))
MODES = ["FAST", "STABLE", "SAFE"]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")

def opd(*arguments, expect: int = 0) -> subprocess.CompletedProcess:
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return attention(tmp_path_factory.mktemp("operands") / "attention.safetensors")


def replayed(trace: Path, out: Path, *options, expect: int = 0) -> tuple[dict, str]:
    result = opd("replay", trace, "--compute", "--out", out, *options, expect=expect)
    return json.loads((out / "summary.json").read_text()), result.stdout


@pytest.fixture(scope="module")
def computed(trace, tmp_path_factory) -> tuple[Path, dict, str]:
    """Replayed with the engines' own settings: the forecast engine sees the overflow coming."""
    out = tmp_path_factory.mktemp("computed")
    summary, stdout = replayed(trace, out)
    return out, summary, stdout


@pytest.fixture(scope="module")
def late(trace, tmp_path_factory) -> tuple[Path, dict, str]:
    """With detection of non-finite values alone: the first overflow happens, the next execution is in STABLE."""
    out = tmp_path_factory.mktemp("late")
    summary, stdout = replayed(trace, out, *(word for weight in ("forecast", "critical", "jump") for word in ("--set", f"weight_{weight}=0")))
    return out, summary, stdout


def operators_of(summary: dict) -> dict[str, dict]:
    return {operator["probe"]: operator for operator in summary["traces"][0]["compute"]["operators"]}


# --- CMP-10: the loop is closed, and every path does the same ---------------------------------------------------------------

def test_every_execution_is_equal_on_every_path_that_computes(computed):
    _, summary, stdout = computed
    entry = summary["traces"][0]
    compute = entry["compute"]
    assert summary["mismatches"] == 0 and summary["verdict"] == "equal"
    assert entry["paths"] == PATHS and entry["paths_skipped"] == {"cuda": "operators are not computed there"}
    assert compute["executions"] == compute["executions_compared"] == 3 * len(WINDOW)
    assert compute["elements_compared"] == len(WINDOW) * BATCH * LENGTH * (2 * LENGTH + 40)
    assert f"{compute['executions']} executions of {compute['elements_compared']} elements" in stdout
    pairs = {(c["left"], c["right"]): c["executions"] for c in entry["comparisons"]}
    assert pairs["systemc", "systemc-lt"] == pairs["systemc", "cpu"] == compute["executions"]
    # With the accumulators of qk and softmax as operators of their own.
    assert entry["records_compared"] == entry["steps"] * entry["probes"] + 2 * len(WINDOW)
    assert entry["operators_raw"] == 0 and entry["operators_statistic"] == entry["steps"] * entry["probes"] - compute["executions"]


def test_an_overflow_in_fast_puts_the_next_execution_into_stable_where_it_does_not_overflow(late):
    _, summary, stdout = late
    qk = operators_of(summary)["qk"]
    steps = {step["step"]: step for step in qk["steps"]}
    first = qk["modes"]["FAST"]["first_overflow_step"]
    assert first in WINDOW and first > WINDOW[0]
    assert steps[first]["mode"] == "FAST" and steps[first]["overflow"] and steps[first]["format"] == "FP16"
    assert steps[first + 1]["mode"] == "STABLE" and not steps[first + 1]["overflow"] and steps[first + 1]["format"] == "BF16"
    assert steps[first + 1]["modes"]["FAST"]["overflow"]  # it would have
    assert qk["modes"]["STABLE"]["first_issue_step"] == first + 1 and qk["lead_steps"] == 0
    assert qk["overflows"] == 1 < qk["modes"]["FAST"]["overflows"]
    assert qk["modes"]["STABLE"]["overflows"] == qk["modes"]["SAFE"]["overflows"] == 0
    incident = summary["traces"][0]["first_incident"]
    assert (incident["probe"], incident["step"], incident["mode_before"]) == ("qk", first, "FAST")
    assert re.search(rf"qk +matmul +{len(WINDOW)} +{qk['modes']['FAST']['overflows']} +0 +0 +1 +{first} +{first + 1} ", stdout)


def test_an_overflow_that_is_forecast_does_not_happen(computed):
    _, summary, _ = computed
    entry = summary["traces"][0]
    qk = operators_of(summary)["qk"]
    first = qk["modes"]["FAST"]["first_overflow_step"]
    assert first in WINDOW and qk["lead_steps"] > 0 and qk["overflows"] == 0
    assert qk["modes"]["STABLE"]["first_issue_step"] == first - qk["lead_steps"]
    # The window hides what the trace recorded; steps after it are replayed as they were.
    assert all(incident["step"] >= WINDOW.stop for incident in entry["incidents"] if incident["probe"] == "qk")


def test_accumulators_are_operators_of_their_own(late):
    out, summary, _ = late
    operators = operators_of(summary)
    assert [operators[name]["accumulator_op"] for name in ("qk", "softmax", "gelu", "fc")] == [5, 6, None, None]
    for path in PATHS:
        records = read_records(out / f"attention.{path}.records")
        for op in (5, 6):
            own = records[records["op"] == op]
            assert own["step"].tolist() == list(WINDOW)
        # FP32 accumulators of a matrix kernel, then the softmax's: of FP16 in FAST
        assert set(records[records["op"] == 5]["format"]) == {4} and set(records[records["op"] == 6]["format"]) == {0}


def test_records_carry_the_format_that_really_ran(late):
    out, summary, _ = late
    formats = {step["step"]: {"FP16": 0, "BF16": 1}[step["format"]] for step in operators_of(summary)["qk"]["steps"]}
    records = read_records(out / "attention.cpu.records")
    own = records[records["op"] == 0]
    assert {int(r["step"]): int(r["format"]) for r in own if int(r["step"]) in formats} == formats


@pytest.mark.parametrize("options", [["--streams", "3", "--bubbles", "0"], ["--lane-latency", "60"],
                                     ["--accumulator", "narrow"], ["--accumulator", "wide", "--saturate"]])
def test_paths_are_equal_with_every_setting(trace, tmp_path, options):
    summary, _ = replayed(trace, tmp_path, *options)
    assert summary["mismatches"] == 0
    assert summary["traces"][0]["compute"]["executions_compared"] == 3 * len(WINDOW)


@pytest.mark.parametrize("mode", MODES)
def test_a_forced_mode_is_what_runs(trace, tmp_path, mode):
    summary, _ = replayed(trace, tmp_path, "--force-mode", mode)
    compute = summary["traces"][0]["compute"]
    assert summary["mismatches"] == 0 and compute["force_mode"] == mode
    qk = operators_of(summary)["qk"]
    assert {step["mode"] for operator in compute["operators"] for step in operator["steps"]} == {mode}
    assert qk["overflows"] == qk["modes"][mode]["overflows"] and (qk["overflows"] > 0) == (mode == "FAST")
    assert {step["accumulator"] for step in qk["steps"]} == {"FP64" if mode == "SAFE" else "FP32"}
    assert all(step["compensated"] == step["compressed"] == (mode == "SAFE") for step in qk["steps"])
    policies = {p["policy"]: p["cycles"] for p in compute["cost"]["policies"]}
    if mode != "STABLE":
        assert policies["as issued"] == policies[f"all {mode}"]


def test_saturating_casts_do_not_overflow(trace, tmp_path):
    summary, _ = replayed(trace, tmp_path, "--saturate", "--force-mode", "FAST")
    qk = operators_of(summary)["qk"]
    assert summary["traces"][0]["compute"]["saturate"] and all(step["saturating"] for step in qk["steps"])
    assert qk["overflows"] == 0 and max(step["modes"]["FAST"]["largest"] for step in qk["steps"]) == 65504


def test_narrow_accumulators_are_less_exact_and_seen_to_overflow(trace, tmp_path):
    summary, _ = replayed(trace, tmp_path / "narrow", "--accumulator", "narrow", "--force-mode", "FAST")
    qk = operators_of(summary)["qk"]
    assert {step["accumulator"] for step in qk["steps"]} == {"FP16"}
    assert any(step["modes"]["FAST"]["accumulator_nonfinite"] for step in qk["steps"])
    wide, _ = replayed(trace, tmp_path / "wide", "--accumulator", "wide", "--force-mode", "FAST")
    assert qk["modes"]["FAST"]["largest_ulps"] > operators_of(wide)["qk"]["modes"]["FAST"]["largest_ulps"]


def test_the_shipped_windows_overflow_where_pytorch_did_and_in_fast_alone(tmp_path):
    opd("replay", *SHIPPED, "--compute", "--out", tmp_path / "loop")
    opd("replay", *SHIPPED, "--compute", "--force-mode", "FAST", "--out", tmp_path / "fast")
    loop, fast = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("loop", "fast"))
    assert len(SHIPPED) == 2 and loop["mismatches"] == fast["mismatches"] == 0
    for entry, forced in zip(loop["traces"], fast["traces"]):
        compute = entry["compute"]
        assert compute["executions_compared"] == compute["executions"] == sum(len(o["steps"]) for o in compute["operators"]) > 40
        trace = Trace.read(ROOT / "traces" / "operands" / entry["file"])
        by_name = {operator["probe"]: operator for operator in compute["operators"]}
        overflowing = by_name[trace.first_bad_op]
        assert overflowing["modes"]["FAST"]["first_overflow_step"] == trace.first_bad_step
        assert overflowing["modes"]["STABLE"]["overflows"] == overflowing["modes"]["SAFE"]["overflows"] == 0
        # The detector had it in STABLE long before: the overflow does not happen. Forced into FAST it does.
        assert overflowing["overflows"] == 0 and overflowing["lead_steps"] > 10
        if entry["name"] == "squares_window":  # the last norm: its output is finite in FAST: only its accumulators tell
            norm = by_name["norm"]
            assert norm["modes"]["FAST"]["overflows"] == 1 and norm["overflows"] == 0 and norm["lead_steps"] > 5
            step = next(s for s in norm["steps"] if s["step"] == norm["modes"]["FAST"]["first_overflow_step"])
            assert step["modes"]["FAST"]["nonfinite"] == 0 < step["modes"]["FAST"]["accumulator_nonfinite"] and step["mode"] == "STABLE"
        assert forced["first_incident"]["step"] == trace.first_bad_step and forced["first_incident"]["probe"] == trace.first_bad_op
        # In FAST the unit overflows at the very elements at which PyTorch did.
        assert overflowing["framework"]["ulps"]["nonfinite"] == 0
        for operator in compute["operators"]:
            assert operator["modes"]["STABLE"]["overflows"] == operator["modes"]["SAFE"]["overflows"] == 0


# --- CMP-11: the check bites -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", COMPUTING)
def test_a_fault_in_what_a_path_computes_is_found_and_named(trace, tmp_path, path):
    summary, stdout = replayed(trace, tmp_path, "--plant-fault", f"compute-{path}", expect=1)
    line = next(line for line in stdout.splitlines() if line.startswith("MISMATCH"))
    assert re.search(rf"op 0 \(qk\), step {WINDOW[0]}, seq \d+: output element \d+ in STABLE: ", line), line
    assert f"{path} = 0x" in line
    divergence = summary["traces"][0]["first_divergence"]
    assert (divergence["op"], divergence["probe"], divergence["step"]) == (0, "qk", WINDOW[0])
    assert path in divergence["paths"] and summary["verdict"] == "mismatch"
    assert divergence["values"][0] != divergence["values"][1]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "attention.fst").stat().st_size > 1000


def test_faults_of_the_detector_are_found_beside_computing(trace, tmp_path):
    for path in PATHS:
        _, stdout = replayed(trace, tmp_path, "--plant-fault", path, expect=1)
        assert "op 0 (qk), step 0, seq 0: flags: " in stdout


def test_a_fault_needs_two_paths_that_compute(trace):
    assert "no second path that computes" in opd("replay", trace, "--compute", "--paths", "rtl,systemc", "--plant-fault",
                                                 "compute-systemc", expect=2).stderr


# --- CMP-12: answers ---------------------------------------------------------------------------------------------------------

def test_outcome_and_error_of_each_mode_are_those_of_numpy(late):
    _, summary, _ = late
    qk = operators_of(summary)["qk"]
    for step in qk["steps"]:
        assert step["operands_finite"]
        fast = step["modes"]["FAST"]
        elements = BATCH * LENGTH * LENGTH
        assert fast["elements"] + fast["nonfinite"] == elements and fast["overflow"] == (fast["nonfinite"] > 0)
        # One rounding to the output, after sums in FP32: half a unit, and a little of the sum.
        for mode, half in (("FAST", 2.0 ** -11), ("STABLE", 2.0 ** -8), ("SAFE", 2.0 ** -8)):
            outcome = step["modes"][mode]
            if outcome["elements"]:
                assert 0 < outcome["mean_ulps"] < outcome["largest_ulps"] < 0.52
                assert 0 < outcome["mean_relative"] < outcome["largest_relative"] < 1.05 * half
    gelu = operators_of(summary)["gelu"]
    assert gelu["modes"]["FAST"]["largest_relative"] > 0 and gelu["modes"]["FAST"]["overflows"] == 0
    assert gelu["steps"][0]["modes"]["SAFE"]["accumulator_largest"] is None


def test_fast_is_compared_with_what_the_framework_wrote(late):
    _, summary, stdout = late
    operators = operators_of(summary)
    for name in ("qk", "softmax", "gelu"):
        whole = operators[name]["framework"]
        assert whole["elements"] == sum(whole["ulps"].values()) == sum(s["framework"]["elements"] for s in operators[name]["steps"])
        assert whole["different"] == sum(s["framework"]["different"] for s in operators[name]["steps"])
    # A sum that is rounded once is at most one number away from one that is rounded in FP32 first.
    qk = operators["qk"]["framework"]
    assert qk["ulps"]["0"] + qk["ulps"]["1"] == qk["elements"]
    # FP16 accumulators of the softmax; numpy's were binary64.
    softmax = operators["softmax"]["framework"]
    assert softmax["different"] > softmax["different_wide"] and softmax["cause"] == "accumulator width"
    assert operators["gelu"]["framework"]["cause"] in (None, "function") and operators["fc"]["framework"] is None
    assert (f"{softmax['different']} of {softmax['elements']} differ, {softmax['different_wide']} with FP32 accumulators: "
            "accumulator width") in stdout


def test_cost_adds_up_over_all_steps_and_operators(late):
    _, summary, stdout = late
    entry = summary["traces"][0]
    cost = entry["compute"]["cost"]
    operators = operators_of(summary)
    cycles = {name: {mode: operator["modes"][mode]["cost"]["cycles"] for mode in MODES} for name, operator in operators.items()}
    assert cost["operators"] == 4 and cost["executions"] == 4 * entry["steps"] and cost["culprit"] == "qk"
    policies = {p["policy"]: p for p in cost["policies"]}
    fast = entry["steps"] * sum(c["FAST"] for c in cycles.values())
    assert policies["all FAST"]["cycles"] == fast
    assert policies["all SAFE"]["cycles"] == entry["steps"] * sum(c["SAFE"] for c in cycles.values())
    assert policies["SAFE for the culprit"]["cycles"] == fast + entry["steps"] * (cycles["qk"]["SAFE"] - cycles["qk"]["FAST"])
    issued = sum(operators[name]["modes"][mode]["issued"] * cycles[name][mode] for name in operators for mode in MODES)
    assert policies["as issued"]["cycles"] == issued
    assert all(sum(o["modes"][mode]["issued"] for mode in MODES) == entry["steps"] for o in operators.values())
    for policy in policies.values():
        assert policy["added_percent"] == pytest.approx(100 * (policy["cycles"] / fast - 1))
        assert policy["throughput_lost_percent"] == pytest.approx(100 * (1 - fast / policy["cycles"]))
    # docs/vector_unit.md: 2 tiles of 16 rows, depth 24, then a write-back of 16 beats; SAFE has 17 clocks for each.
    assert cycles["qk"]["FAST"] == 2 * DEPTH + BATCH * LENGTH
    assert operators["fc"]["steps"] == [] and cycles["fc"]["SAFE"] > cycles["fc"]["FAST"]
    assert "SAFE for qk" in stdout and "5 to 8 %" in stdout and "over 40 %" in stdout


def test_a_replay_without_compute_has_no_answers(trace, tmp_path):
    opd("replay", trace, "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    entry = summary["traces"][0]
    assert entry["compute"] is None and entry["records_compared"] == entry["steps"] * entry["probes"]
    assert all(c["executions"] == 0 for c in entry["comparisons"])


# --- CMP-13: bad input -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, words", [
    (["--force-mode", "SAFE"], "--force-mode: says how operators are computed; add --compute"),
    (["--accumulator", "wide"], "--accumulator: says how operators are computed; add --compute"),
    (["--saturate"], "--saturate: says how operators are computed; add --compute"),
    (["--plant-fault", "compute-cpu"], "--plant-fault compute-cpu: says how operators are computed; add --compute"),
    (["--compute", "--force-mode", "safe"], "--force-mode safe: no such value; give one of FAST, STABLE, SAFE"),
    (["--compute", "--accumulator", "fp32"], "--accumulator fp32: no such value; give one of per-operator, narrow, wide"),
    (["--compute", "--plant-fault", "compute-rtl"], "--plant-fault compute-rtl: not one of the chosen paths; give one of"),
    (["--compute", "--paths", "cpu,cuda"], "--paths cuda: operators are not computed there; leave it out, or drop --compute"),
])
def test_options_that_cannot_be(trace, options, words):
    assert words in opd("replay", trace, *options, expect=2).stderr


def test_a_trace_without_operands_is_told_how_to_get_them(tmp_path):
    for name, operators, wrong in (("plain", [], "there are none"), ("shapes", OPERATORS[3:], "none has its operands")):
        path = attention(tmp_path / f"{name}.safetensors", operators, name)
        error = opd("replay", path, "--compute", expect=2).stderr
        assert str(path) in error and f"operators: {wrong}" in error and "opd capture --operands" in error
        opd("replay", path)


def test_accumulators_count_among_the_operators_of_the_device(tmp_path):
    probes = [Probe(f"op{i}", "activation", "FP16", (4,)) for i in range(256)]
    item = {"probe": "op0", "kernel": "softmax", "rows": 1, "columns": 4, "operands": {"x": {"format": "FP16", "shape": [1, 4]}}}
    writer = TraceWriter("many", "data", probes, operators=[item])
    writer.add_step(0, max_abs=np.ones(256, np.float32), nonfinite=np.zeros(256, np.int64),
                    operands={"op0": {"x": np.ones((1, 4), np.float16)}})
    path = tmp_path / "many.safetensors"
    writer.write(path)
    assert "probes: 256 probes and 1 accumulators of them, but the device has 256 operators" in opd("replay", path, "--compute", expect=2).stderr
    opd("replay", path)
