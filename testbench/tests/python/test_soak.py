"""scripts/soak: rounds, their log, going on where it ended. CTest is a stand-in here. Testplan: SOAK-02."""
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[3] / "scripts" / "soak"
CTEST = """#!/usr/bin/env python3
import os, sys
seed = int(os.environ["OPD_SEED"])
assert os.environ.get("OPD_SOAK") == "full" or "short" in os.environ["CASES"]
output = f"soak: {2 * seed} cycles, 1000 beats, {seed} records compared, 0 completions unseen"
case = '<testcase name="{}" status="{}"><system-out>{}</system-out></testcase>'
cases = [case.format("Soak.A", "run", output), case.format("Soak.B", "fail" if seed == 3 else "run", output)]
if "empty" in os.environ["CASES"]:
    cases = []
if "broken" not in os.environ["CASES"]:
    open(sys.argv[sys.argv.index("--output-junit") + 1], "w").write("<testsuite>" + "".join(cases) + "</testsuite>")
"""


@pytest.fixture
def soak(tmp_path):
    program = tmp_path / "bin" / "ctest"
    program.parent.mkdir()
    program.write_text(CTEST)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run(*arguments, cases=""):
        return subprocess.run([SOAK, "--log", tmp_path / "log" / "soak.jsonl", *arguments], text=True, capture_output=True, timeout=60,
                              env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "CASES": cases})
    return run


def logged(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log" / "soak.jsonl").read_text().splitlines()]


def test_one_round_is_logged_with_what_it_compared(soak, tmp_path):
    result = soak("--seed", "7")
    assert (result.returncode, result.stderr) == (0, "")
    assert "seed 7: 2 cases, 2,000 beats, 14 records equal" in result.stdout and "1 rounds, 2,000 beats, 0 failed cases" in result.stdout
    [found] = logged(tmp_path)
    assert {key: found[key] for key in ("seed", "cases", "failed", "cycles", "beats", "records")} \
        == {"seed": 7, "cases": 2, "failed": [], "cycles": 28, "beats": 2000, "records": 14}


def test_rounds_go_on_to_the_beats_behind_the_seeds_of_the_log(soak, tmp_path):
    assert soak("--short", cases="short").returncode == 0
    result = soak("--beats", "5e3")  # seeds 2, 3, 4; the second fails
    assert result.returncode == 1
    assert "seed 3: FAILED Soak.B; again: scripts/soak --seed 3" in result.stdout and "3 rounds, 6,000 beats, 1 failed cases" in result.stdout
    assert [found["seed"] for found in logged(tmp_path)] == [1, 2, 3, 4]


def test_time_ends_it(soak, tmp_path):
    assert soak("--hours", "1e-9").returncode == 0
    assert len(logged(tmp_path)) == 1


@pytest.mark.parametrize("arguments, cases, told", [
    (["--hours", "0"], "", "--hours: give a number above 0"), (["--beats", "nan"], "", "--beats: give a number above 0"),
    ([], "empty", "has no soak; build the tests"), ([], "broken", "ctest gave no results (exit status 0); build the tests"),
])
def test_what_cannot_run_is_said(soak, arguments, cases, told):
    result = soak(*arguments, cases=cases)
    assert result.returncode == 2 and told in result.stderr and result.stdout == ""


def test_another_file_is_no_log(soak, tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "soak.jsonl").write_text('{"seed": 1}\nhello\n')
    result = soak()
    assert result.returncode == 2 and "line 2 is no round of a soak; give another --log" in result.stderr
    assert (tmp_path / "log" / "soak.jsonl").read_text() == '{"seed": 1}\nhello\n'
