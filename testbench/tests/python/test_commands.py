"""The program `opd` and `python -m opd`: the commands that are Python are reached from both, alike."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opd.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
OPD = ROOT / "build" / "opd"


def run(*command):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python")}
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def program():
    if not OPD.exists():
        pytest.skip(f"{OPD} is not built")
    return str(OPD)


def test_the_program_lists_every_command(program):
    text = run(program, "--help").stdout
    listed = [name for name in COMMANDS if f"\n  {name} " in text]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_both_ways_lead_to_the_same_command(program, name):
    ours, python = run(program, name, "--help"), run(sys.executable, "-m", "opd", name, "--help")
    assert ours.returncode == python.returncode == 0
    assert ours.stdout == python.stdout and "usage" in ours.stdout


@pytest.mark.parametrize("name", ["evaluate", "import"])
def test_bad_input_keeps_its_exit_status(program, name, tmp_path):
    missing = tmp_path / "missing.safetensors"
    result = run(program, name, str(missing))
    assert result.returncode == 2 and str(missing) in result.stderr


def test_a_reader_that_leaves_early(tmp_path):
    """Exit status of a program that SIGPIPE ended, and no traceback."""
    shipped = ROOT / "traces" / "captured" / "healthy.safetensors"
    command = f"{sys.executable} -m opd import --help; {sys.executable} -m opd evaluate {shipped} --out {tmp_path}"
    result = run("bash", "-c", f"({command}; echo status $? >&2) | true")
    assert result.stderr.strip() in ("status 141", "status 0") and "Traceback" not in result.stderr


@pytest.mark.parametrize("name, options", [("evaluate", ()), ("calibrate", ("--false-alarms", "1"))])
def test_an_output_that_cannot_be_written(tmp_path, name, options):
    """The result is in its file all the same."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    shipped = ROOT / "traces" / "captured" / "healthy.safetensors"
    written = tmp_path / "result"
    command = [sys.executable, "-m", "opd", name, str(shipped), *options, "--out", str(written)]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python")},
                                stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "standard output cannot be written (No space left on device)" in result.stderr
    assert (written / "evaluation.json" if name == "evaluate" else written).exists()


def test_an_unknown_command_is_named():
    result = run(sys.executable, "-m", "opd", "no-such-command")
    assert result.returncode == 2 and "no-such-command" in result.stderr
