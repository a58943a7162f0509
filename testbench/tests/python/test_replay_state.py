"""opd replay --compare-state, mismatches by kind, and the waveform around a divergence, as GTKWave's own reader sees it.

Testplan: SYS-07 stored state, SYS-08 mismatches by kind, SYS-09 waveforms.
"""
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from opd.trace import Probe, TraceWriter
from test_replay import LOCKSTEP_PATHS, PROGRAM, opd

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")

STILL, RISES = 0, 1  # operators of the trace


def rising_trace(path: Path, name: str, steps: int = 120) -> Path:
    """FP16: one operator that stands still, one that rises by 1/16 bit a step up to 2 bits below its limit."""
    writer = TraceWriter(name, "data", [Probe("still", "activation", "FP16", (8,)), Probe("rises", "activation", "FP16", (8,))])
    for step in range(steps):
        rising = np.float16(2.0 ** min(step / 16 + 7, 14))
        writer.add_step(step, max_abs=np.array([1, rising], np.float32), nonfinite=np.zeros(2, np.int64))
    writer.write(path / f"{name}.safetensors")
    return path / f"{name}.safetensors"


@pytest.fixture(scope="module")
def rising(tmp_path_factory) -> Path:
    return rising_trace(tmp_path_factory.mktemp("state"), "rising")


def replayed(out: Path, *arguments, expect: int = 1) -> tuple[dict, str]:
    stdout = opd("replay", *arguments, "--out", out, expect=expect).stdout
    return json.loads((out / "summary.json").read_text()), stdout


# --- SYS-07: stored state -------------------------------------------------------------------------------------------------

def test_equal_states_are_counted_and_nothing_else_changes(rising, tmp_path):
    without, _ = replayed(tmp_path / "without", rising, expect=0)
    compared, _ = replayed(tmp_path / "with", rising, "--compare-state", expect=0)
    assert without["states_compared"] is None and without["traces"][0]["states_compared"] is None
    assert compared["states_compared"] == compared["traces"][0]["states_compared"] == 240
    assert [c["states"] for c in compared["traces"][0]["comparisons"]] == [240, 240, 240, 0, 0]  # two pairs of hosts alone
    assert compared["mismatches"] == 0 and compared["mismatch_kinds"] == []
    for path in LOCKSTEP_PATHS:
        name = f"rising.{path}.records"
        assert (tmp_path / "without" / name).read_bytes() == (tmp_path / "with" / name).read_bytes()


@pytest.mark.parametrize("path", LOCKSTEP_PATHS)
def test_a_state_fault_is_named_where_it_starts(path, rising, tmp_path):
    """The baseline follows at twice its rate on one path: wrong from the second sample on, in a record when a forecast fails."""
    summary, stdout = replayed(tmp_path, rising, "--compare-state", "--plant-fault", f"state-{path}")
    first = summary["traces"][0]["first_divergence"]
    assert (first["op"], first["probe"], first["step"], first["seq"], first["field"]) == (RISES, "rises", 1, 3, "state.baseline")
    assert path in first["paths"] and first["cycle"] > 0
    # By docs/numerics.md: the samples 2^7 and 2^7.0625 have the codes 225 and 226, the seed is 4 * 225, the deviation 4;
    # rounded half up that moves the baseline by (4 + 8) >> 4 = 0, and with half the divisor by (4 + 4) >> 3 = 1.
    left, right = (int(value.split()[0]) for value in first["values"])
    assert {device: number for device, number in zip(first["paths"], (left, right), strict=True)} == \
        {device: 901 if device == path else 900 for device in first["paths"]}
    for value, number in zip(first["values"], (left, right), strict=True):
        assert value == f"{number} (0x{number & 0x1FFFF:05X})"
    shown = first["shown"]
    assert shown["op"] == RISES and shown["step"] > 20 and shown["completions"] == shown["seq"] - 3 == 2 * (shown["step"] - 1)
    pair = next(kind for kind in summary["mismatch_kinds"] if kind["paths"] == first["paths"] and kind["quantity"] == shown["field"])
    assert (pair["first"]["seq"], pair["first"]["step"]) == (shown["seq"], shown["step"]), "the record that first shows it"
    line = next(line for line in stdout.splitlines() if line.startswith("MISMATCH"))
    assert re.search(r"op 1 \(rises\), step 1, seq 3: state\.baseline: .* = \d+ \(0x[0-9A-F]{5}\), .*; cycle \d+", line), line
    assert f"shown {shown['completions']} completions later by {shown['field']} of op 1 (rises), step {shown['step']}" in line


def test_without_the_option_the_same_fault_is_named_where_a_record_shows_it(rising, tmp_path):
    """What --compare-state adds: the same falsified field, as two configurations of one build."""
    named, _ = replayed(tmp_path / "state", rising, "--compare-state", "--plant-fault", "state-cpu", "--paths", "systemc,cpu")
    shown = named["traces"][0]["first_divergence"]["shown"]
    rows = []
    for folder, shift in (("four", 4), ("three", 3)):
        replayed(tmp_path / folder, rising, "--set", f"baseline_shift={shift}", expect=0)
        rows.append(np.fromfile(tmp_path / folder / "rising.cpu.records", np.uint8).reshape(-1, 32))
    assert int(np.flatnonzero((rows[0] != rows[1]).any(axis=1))[0]) == shown["seq"]


def test_a_state_fault_that_cannot_act_is_said(tmp_path):
    writer = TraceWriter("still", "data", [Probe("op", "activation", "FP16", (8,))])
    for step in range(5):
        writer.add_step(step, max_abs=np.ones(1, np.float32), nonfinite=np.zeros(1, np.int64))
    writer.write(tmp_path / "still.safetensors")
    stderr = opd("replay", tmp_path / "still.safetensors", "--compare-state", "--plant-fault", "state-cpu", expect=2).stderr
    assert "does not act on still" in stderr and "choose another trace" in stderr


@pytest.mark.parametrize("arguments, words", [
    (["--plant-fault", "state-rtl"], "--plant-fault state-rtl: not one of the chosen paths"),
    (["--compare-state", "--plant-fault", "state-cuda"], "--plant-fault state-cuda: not one"),
    (["--compare-state", "--waveform", "1:9", "--out", "OUT"], "--compare-state: a waveform compares nothing"),
    (["--waveform-op", "1"], "--waveform-op: says whose state is in the waveform; add --waveform"),
    (["--waveform", "1:9", "--out", "OUT", "--waveform-op", "256"], "--waveform-op 256: the device has 256 operators; give 0..255"),
])
def test_bad_arguments_of_state_and_waveform(rising, tmp_path, arguments, words):
    assert words in opd("replay", rising, *[tmp_path if a == "OUT" else a for a in arguments], expect=2).stderr


# --- SYS-08: mismatches by kind -------------------------------------------------------------------------------------------

def test_mismatches_of_one_kind_are_one_paragraph(rising, tmp_path):
    other = rising_trace(tmp_path, "other", steps=100)
    arguments = [rising, other, "--paths", "systemc,cpu", "--compare-state", "--plant-fault", "state-cpu"]
    summary, stdout = replayed(tmp_path / "out", *arguments)
    kinds = summary["mismatch_kinds"]
    assert sum(kind["count"] for kind in kinds) == summary["mismatches"] == sum(t["mismatches"] for t in summary["traces"])
    keys = [(*kind["paths"], kind["quantity"]) for kind in kinds]
    assert len(set(keys)) == len(keys) == sum(line.startswith("MISMATCH") for line in stdout.splitlines())
    baseline = kinds[0]
    assert baseline["quantity"] == "state.baseline" and baseline["traces"] == 2 and baseline["count"] > 100
    assert (baseline["first"]["trace"], baseline["first"]["seq"]) == ("rising", 3)
    assert baseline["last"]["trace"] == "other" and baseline["last"]["step"] > 50
    assert re.search(rf"^  {baseline['count']} of this kind \(systemc and cpu: state.baseline\) in 2 traces; the last in other: op 1",
                     stdout, re.MULTILINE), stdout
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("of this kind (systemc and cpu: state.baseline) in 2 traces") == 1


# --- SYS-09: waveforms ----------------------------------------------------------------------------------------------------

class Dump:
    """A waveform as fst2vcd reads it: names with scopes, enumerations by name, values over time in ps."""

    def __init__(self, path: Path):
        done = subprocess.run(["fst2vcd", "-e", path], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        head, _, body = done.stdout.decode("latin-1").partition("$enddefinitions $end")
        self.code, self.enumeration, tables, pending, scope = {}, {}, {}, None, []
        for line in head.splitlines():
            words = line.split()
            if line.startswith("$scope"):
                scope.append(words[2])
            elif line.startswith("$upscope"):
                scope.pop()
            elif line.startswith("$attrbegin misc 07") and len(words) > 6:
                count = int(words[4])
                tables[words[-2]] = dict(zip(words[5 + count:5 + 2 * count], words[5:5 + count], strict=True))
            elif line.startswith('$attrbegin misc 07 ""'):
                pending = words[4]
            elif line.startswith("$var"):
                name = ".".join([*scope, words[4]])
                self.code[name] = words[3]
                if pending:
                    self.enumeration[name], pending = tables[pending], None
        self.changes, self.times, time = {}, [], 0
        for line in body.split("\n"):
            if line.startswith("#"):
                time = int(line[1:])
                self.times.append(time)
            elif line[:1] in ("b", "r"):
                value, code = line[1:].split()
                self.changes.setdefault(code, []).append((time, value))
            elif line[:1] in ("0", "1"):
                self.changes.setdefault(line[1:], []).append((time, line[0]))

    def at(self, name: str, cycle: int) -> str:
        """What edge `cycle` samples: the value just before it."""
        return [value for time, value in self.changes[self.code[name]] if time < 1000 * cycle][-1]

    def named(self, name: str, cycle: int) -> str:
        value = self.at(name, cycle)
        return self.enumeration[name][value.zfill(len(next(iter(self.enumeration[name]))))]


needs_reader = pytest.mark.skipif(shutil.which("fst2vcd") is None, reason="no fst2vcd (Debian package gtkwave)")


@needs_reader
@pytest.mark.parametrize("path", ["rtl", "systemc"])
def test_a_fault_is_in_its_waveform_from_before_it_starts(path, rising, tmp_path):
    summary, _ = replayed(tmp_path, rising, "--compare-state", "--plant-fault", f"state-{path}")
    entry = summary["traces"][0]
    first = entry["first_divergence"]
    cycle, values = first["cycle"], dict(zip(first["paths"], first["values"], strict=True))
    dump = Dump(tmp_path / entry["waveform"])
    assert dump.times[0] <= 1000 * (cycle - 20) and dump.times[-1] >= 1000 * (cycle + 4)
    hexadecimal = {device: int(text.split("0x")[1][:-1], 16) for device, text in values.items()}
    for device in ("rtl", "systemc"):
        name = f"compare.{device}.state.baseline"
        assert int(dump.at(name, cycle), 2) == hexadecimal[device]
        assert int(dump.at(name, cycle - 1), 2) == 900 and hexadecimal[device] == (901 if device == path else 900)
        assert int(dump.at(f"compare.{device}.record_seq", cycle), 2) == first["seq"]
        assert dump.at(f"compare.{device}.record_valid", cycle) == "1" and dump.at(f"compare.{device}.record_valid", cycle - 1) == "0"
        assert dump.named(f"compare.{device}.state.mode", cycle) == dump.named(f"compare.{device}.mode", cycle) == "FAST"
        assert dump.named(f"compare.{device}.record_format", cycle) == "FP16"
        assert dump.named(f"compare.{device}.record_cause", cycle) == "NONE"
    assert [dump.at("compare.state_differs", c) for c in (cycle - 1, cycle)] == ["0", "1"]
    assert int(dump.at("compare.inputs.state_op", cycle), 2) == RISES
    clock = [time for time, value in dump.changes[dump.code["TOP.clk_i"]] if value == "1"]
    assert 1000 * (cycle - 1) in clock and all(time % 1000 == 0 for time in clock)
    # Both devices move together: the same values at the same time until the fault.
    for signal in ("record_valid", "record_seq", "queue_level", "state.age", "state.mean", "apb_ready"):
        rtl, systemc = (dump.changes[dump.code[f"compare.{device}.{signal}"]] for device in ("rtl", "systemc"))
        assert [c for c in rtl if c[0] < 1000 * cycle] == [c for c in systemc if c[0] < 1000 * cycle], signal
    assert dump.named("TOP.opd_top.u_detection_unit.state_q", cycle - 1).lower() == \
        "st" + dump.named("compare.systemc.detection_unit", cycle - 1).lower()


@needs_reader
def test_every_signal_of_the_save_file_is_in_the_dump(rising, tmp_path):
    summary, _ = replayed(tmp_path, rising, "--compare-state", "--plant-fault", "state-rtl")
    entry = summary["traces"][0]
    lines = (tmp_path / entry["waveform_view"]).read_text().splitlines()
    assert f'[dumpfile] "{entry["waveform"]}"' in lines
    cycle = entry["first_divergence"]["cycle"]
    assert any(re.fullmatch(rf"\*-\d+\.\d+ {1000 * cycle}", line) for line in lines), "the marker is at the divergence"
    dump = Dump(tmp_path / entry["waveform"])
    shown = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("+{")]
    assert len(shown) > 80
    for name in shown:
        assert name.split("[")[0] in dump.code, name
    state = shown.index("compare.rtl.state.baseline[16:0]")
    assert shown[state + 1] == "compare.systemc.state.baseline[16:0]" and state < 8, "what differs first comes first, side by side"


@needs_reader
def test_a_fault_of_a_record_is_in_its_waveform(rising, tmp_path):
    """The run that dumps does not stop at the mismatch of pins, and says nothing twice."""
    summary, stdout = replayed(tmp_path, rising, "--plant-fault", "systemc")
    first = summary["traces"][0]["first_divergence"]
    assert first["field"] == "flags" and stdout.count("MISMATCH") == 1 and "rising.fst, cycles" in stdout
    dump = Dump(tmp_path / "rising.fst")
    cycle = first["cycle"]
    seen = {device: dump.at(f"compare.{device}.flags.WARMUP", cycle) for device in first["paths"]}
    assert seen == {device: str(int("WARMUP" in value)) for device, value in zip(first["paths"], first["values"], strict=True)}
    assert [dump.at("compare.pins_differ", c) for c in (cycle - 1, cycle)] == ["0", "1"] and dump.times[-1] > 1000 * (cycle + 10)
    shown = [line.rsplit(" ", 1)[1] for line in (tmp_path / "rising.gtkw").read_text().splitlines() if line.startswith("+{")]
    assert shown[5:7] == ["compare.rtl.record_flags[15:0]", "compare.systemc.record_flags[15:0]"]


@needs_reader
def test_a_waveform_of_chosen_cycles_is_whole(rising, tmp_path):
    stdout = opd("replay", rising, "--out", tmp_path, "--waveform", "300:420", "--waveform-op", "1").stdout
    assert "cycles 300:420" in stdout
    dump = Dump(tmp_path / "rising.fst")
    assert dump.times[0] == 299_000 and dump.times[-1] == 419_500
    assert int(dump.at("compare.inputs.state_op", 400), 2) == 1
    assert {value for _, value in dump.changes[dump.code["compare.pins_differ"]]} == {"0"}
    mean, number = dump.at("compare.rtl.state.mean", 400), dump.at("compare.rtl.state.mean_number", 400)
    assert np.uint32(int(mean, 2)).view(np.float32) == np.float32(float(number)) > 0
