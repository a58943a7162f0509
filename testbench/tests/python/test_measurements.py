"""scripts/measure, measurement.py, coverage --check: what is committed says where it is from, and is refused when it is of other
sources.

Testplan: DOC-02.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, script

PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))


def run(module, monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    return module.main()


# --- the files ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("file", sorted((ROOT / "docs/measurements").glob("*.json")), ids=lambda file: file.stem)
def test_every_committed_measurement_says_where_it_is_from_and_is_used(file):
    content = script("measured_tables").measurement.load(file.stem)
    assert content["date"] >= "2026-11-30" and all(len(content[key]) > 5 for key in ("machine", "software"))
    assert file.stem in {source for _, _, _, source in script("measured_tables").TABLES}
    assert file.stem in script("measure").KINDS


def test_what_the_modes_make_of_the_shipped_operands_is_as_committed(tmp_path):
    """Counts, no times: they do not depend on the machine."""
    measurement = script("measured_tables").measurement
    windows = sorted((ROOT / "traces/operands").glob("*.safetensors"))
    subprocess.run([PROGRAM, "replay", "--compute", *windows, "--out", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   timeout=300, check=True)
    traces = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["traces"]
    assert [measurement.computed(trace) for trace in traces] == measurement.load("compute")["traces"], "run scripts/measure compute"


def test_a_measurement_is_saved_with_its_origin(tmp_path):
    measurement = script("measured_tables").measurement
    file = measurement.save("x", ["run it"], {"figure": 3}, tmp_path)
    content = measurement.load("x", tmp_path)
    assert file == tmp_path / "x.json" and content["figure"] == 3 and content["commands"] == ["run it"]
    assert "cores" in content["machine"] and content["software"].count(",") >= 1
    for key in ("date", "machine", "software", "commands"):
        file.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        with pytest.raises(SystemExit, match=rf"x\.json: {key}: missing; run scripts/measure x"):
            measurement.load("x", tmp_path)
    file.write_text("{")
    with pytest.raises(SystemExit, match="cannot be read"):
        measurement.load("x", tmp_path)


def test_a_digest_is_of_names_and_bytes(tmp_path, monkeypatch):
    measurement = script("measured_tables").measurement
    monkeypatch.setattr(measurement, "ROOT", tmp_path)
    one, two = tmp_path / "a.sv", tmp_path / "b.sv"
    one.write_text("module a;")
    two.write_text("module b;")
    before = measurement.digest([one, two])
    assert before == measurement.digest([two, one])
    two.write_text("module c;")
    assert measurement.digest([one, two]) != before
    two.write_text("module b;")
    assert measurement.digest([one, two]) == before
    renamed = two.rename(tmp_path / "c.sv")
    assert measurement.digest([one, renamed]) != before and measurement.digest([one]) != before


# --- coverage ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("part, told", [("rtl", "measured with another rtl/"),
                                        ("tests", "measured with another testbench/tests/rtl")])
def test_coverage_of_other_sources_is_refused(monkeypatch, capsys, part, told):
    coverage = script("coverage")
    now = coverage.sources()
    figures = {"sources_sha256": dict(now)}
    monkeypatch.setattr(coverage.measurement, "load", lambda name: figures)
    assert run(coverage, monkeypatch, "--check") == 0 and "figures of these sources" in capsys.readouterr().out
    figures["sources_sha256"][part] = "0" * 64
    assert run(coverage, monkeypatch, "--check") == 1
    out = capsys.readouterr().out
    assert told in out and "run scripts/measure coverage" in out and out.count("measured with another") == 1


def test_the_digests_are_of_the_rtl_and_of_what_drives_it(monkeypatch):
    """A byte more in any of these files is another measurement; a page is none of them."""
    coverage = script("coverage")
    digested = []

    def digest(files) -> str:
        digested.append({str(file.relative_to(ROOT)) for file in files})
        return ""

    monkeypatch.setattr(coverage.measurement, "digest", digest)
    coverage.sources()
    rtl, tests = digested
    assert {"rtl/opd_top.sv", "rtl/regs/opd_regblock.sv", "rtl/opd_assert.svh"} <= rtl
    assert all(file.startswith("rtl/") for file in rtl)
    assert {"testbench/tests/rtl/tap_test.cpp", "testbench/tests/system/soak_test.cpp", "testbench/stimulus.hpp"} <= tests


def test_counts_that_were_not_taken_now_are_not_saved(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(script("coverage"), monkeypatch, "--save", "--no-run")
    assert stopped.value.code == 2 and "leave out --no-run" in capsys.readouterr().err


def test_the_soak_prints_what_is_read():
    source = (ROOT / "testbench/tests/system/soak_test.cpp").read_text()
    printed = re.search(r'printf\(\s*"(soak: .*?)\\n"', source)[1].replace("%llu", "7")
    assert script("measure").SOAK.findall(f"12: {printed}\n") == [("7", "7", "7")]


# --- the table of opd bench ------------------------------------------------------------------------------------------------------

def test_the_middle_of_the_runs_and_what_differs():
    tables = script("measured_tables")
    assert tables.middle([16.43, 19.8, 16.0], "GB/s") == "16.4 GB/s (16, 19.8)"
    assert tables.middle([1.00, 1.02, 1.04]) == "1.02"
    assert tables.middle([0.5], pattern="{:.2f}") == "0.50"


@pytest.mark.parametrize("rows, told", [
    ([{"ratio": 0.8, "goal_ratio": 0.85}], ("≥ 0.85", "missed")),
    ([{"ratio": 0.9, "goal_ratio": 0.85}, {"ratio": 0.85}], ("≥ 0.85", "reached")),
    ([{"ratio": 0.9, "goal_ratio": 0.85}, {"ratio": 0.8}, {"ratio": 0.7}], ("≥ 0.85", "missed in 2 of 3")),
    ([{"value": 4.99, "unit": "M/s", "goal": 5}, {"value": 5.08}], ("≥ 5 M/s", "missed in 1 of 2")),
    ([{"value": 1.0, "ratio": 0.5, "goal_ratio": 0}], ("", "")),
])
def test_a_goal_is_reached_when_every_run_reaches_it(rows, told):
    assert script("measured_tables").verdict(rows) == told


@pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
def test_the_table_is_made_of_what_opd_bench_writes(tmp_path):
    file = tmp_path / "bench.json"
    command = [PROGRAM, "bench", "--megabytes", "1", "--seconds", "0.1", "--json", file]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=300)
    rows = json.loads(file.read_text())
    content = {"date": "d", "machine": "m", "software": "s", "commands": ["c"], "runs": [rows, rows, rows]}
    text = script("measured_tables").bench(content)
    assert text.startswith("Measured d on: m; s.\nOf three runs")
    for row in rows:
        line = next(line for line in text.splitlines() if line.startswith(f"| {row['what']} |"))
        assert row["skipped"] in line if "skipped" in row else f"{row['value']:.3g} {row['unit']}" in line
    committed = {row["what"] for row in script("measured_tables").measurement.load("bench")["runs"][0]}
    assert {row["what"] for row in rows if "MiB" not in row["what"]} <= committed
