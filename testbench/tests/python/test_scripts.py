"""scripts/: each works from any directory, without the virtual environment on PATH, and prints no colours into pipes."""
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and os.access(path, os.X_OK))
CLEAN = {"PATH": "/usr/bin:/bin"}


def run(*command, cwd, environment=CLEAN):
    return subprocess.run([str(word) for word in command], cwd=cwd, env=environment, text=True, capture_output=True, timeout=120)


def test_the_scripts_are_found():
    assert {"corpus_tables", "generate_registers", "prove", "run", "setup", "synth", "test"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_every_script_has_help_in_a_bare_environment(script, how, tmp_path):
    called = script if how == "absolute" else os.path.relpath(script, tmp_path)
    result = run(called, "--help", cwd=tmp_path)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert "usage" in result.stdout.lower() and "\033" not in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command, told", [
    (["generate_registers", "--check"], " generated files are current"),
    (["coverage", "--check"], "0 of them for lines that are not there"),
    (["test_totals", "none.xml"], "none.xml: no results"),
])
def test_scripts_work_in_a_bare_environment(command, told, tmp_path):
    """More than the help: what they import is found as well."""
    result = run(ROOT / "scripts" / command[0], *command[1:], cwd=tmp_path)
    assert told in result.stdout, result.stderr


@pytest.mark.parametrize("script, package", [("generate_registers", "systemrdl"), ("corpus_tables", "ml_dtypes"), ("incident_logs", "ml_dtypes"),
                                             ("prove", "pyosys"), ("synth", "pyosys"), ("coverage", "ml_dtypes"), ("fuzz", "ml_dtypes"), ("calibration_tables", "ml_dtypes"),
                                             ("rival_vectors", "torch")])
def test_without_an_environment_the_remedy_is_said(script, package, tmp_path):
    if subprocess.run(["/usr/bin/python3", "-c", f"import {package}"], capture_output=True).returncode == 0:
        pytest.skip(f"the system's own Python has {package}")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    packages = tmp_path / "sw_reference" / "python" / "opd"
    packages.mkdir(parents=True)
    for name in ("__init__.py", "arguments.py", "texts.py"):
        shutil.copy(ROOT / "sw_reference" / "python" / "opd" / name, packages)
    result = run(tmp_path / "scripts" / script, "--help", cwd="/")
    assert result.returncode == 2 and result.stderr.startswith(f"{script}: needs ") and package in result.stderr
    assert "scripts/setup --for test installs" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command, told", [
    (["test", "-R", "a", "-R", "b"], "test: -R is given twice"), (["test", "-R"], "test: -R needs a pattern"),
    (["test", "--nonsense"], "test: unknown argument '--nonsense'"),
    (["setup", "--for", "run", "--for", "test"], "setup: --for is given twice"), (["setup", "--for"], "setup: --for needs run or test"),
    (["setup", "--for", "fun"], "setup: --for takes run or test"),
    (["synth", "--num-ops", "4", "--num-ops", "8"], "--num-ops: is given more than once"),
    (["prove", "--depth", "4", "--depth", "8"], "--depth: is given more than once"),
    (["coverage", "--data", "a", "--data", "b"], "--data: is given more than once"),
    (["incident_logs", "--logs", "a", "--logs", "b"], "--logs: is given more than once"),
    (["fuzz", "--seed", "1", "--seed", "2"], "--seed: is given more than once"), (["fuzz", "--seconds", "0"], "--seconds: give a time above 0"),
    (["fuzz", "--case", "3"], "--case: name one target"), (["soak", "--seed", "1", "--seed", "2"], "--seed: is given more than once"),
    (["generate_registers", "--chek"], "--chek: no such option; did you mean --check?"),
    (["corpus_tables", "--chek", "--help"], "--chek: no such option; did you mean --check?"),
])
def test_no_argument_of_a_script_is_ignored(command, told, tmp_path):
    result = run(ROOT / "scripts" / command[0], *command[1:], cwd=tmp_path)
    assert result.returncode == 2 and told in result.stderr and result.stdout == ""


@pytest.fixture
def repository(tmp_path):
    """scripts/run in a repository whose set-up does nothing and whose program says what it was given."""
    root = tmp_path / "repository"
    for folder in ("scripts", "build", "traces/captured", "traces/operands", "traces/corpus"):
        (root / folder).mkdir(parents=True)
    for name in ("run", "say.sh"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    for name, text in (("scripts/setup", "exit 0"), ("build/opd", 'for word in "$@"; do\n  [ -e "$word" ] && word=$(realpath "$word")\n'
                                                     '  printf "<%s>" "$word"\ndone\necho\nexit "${STATUS:-0}"')):
        (root / name).write_text(f"#!/bin/sh\n{text}\n")
        (root / name).chmod(0o755)
    (root / "traces/captured/a.safetensors").write_text("")
    (root / "traces/corpus/b.safetensors").write_text("")
    (root / "traces/operands/c.safetensors").write_text("")
    return root


def test_run_takes_paths_from_where_the_user_is(repository, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.safetensors").write_text("")
    result = run(repository / "scripts" / "run", "mine.safetensors", "--streams", "2", cwd=there)
    assert result.returncode == 0, result.stderr
    first = result.stdout.splitlines()[1]
    assert first.startswith(f"<replay><{repository}/traces/captured/a.safetensors><--out><")
    assert first.endswith(f"repository/out><{there}/mine.safetensors><--streams><2>")
    assert (repository / "out" / "corpus.txt").read_text() == f"<replay><{repository}/traces/corpus/b.safetensors>\n"
    computed = (repository / "out" / "compute.txt").read_text()
    assert computed.startswith(f"<replay><{repository}/traces/operands/c.safetensors><--compute><--out><")
    assert computed.endswith("repository/out/compute>\n")
    assert list(there.iterdir()) == [there / "mine.safetensors"]


@pytest.mark.parametrize("out", [["--out", "here"], ["--out=here"]])
def test_run_gives_no_second_out(repository, tmp_path, out):
    result = run(repository / "scripts" / "run", *out, cwd=tmp_path)
    first = result.stdout.splitlines()[1]
    assert first == f"<replay><{repository}/traces/captured/a.safetensors>" + "".join(f"<{word}>" for word in out)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_run_hands_the_status_on(repository, tmp_path, status):
    assert run(repository / "scripts" / "run", cwd=tmp_path, environment={**CLEAN, "STATUS": str(status)}).returncode == status


@pytest.mark.parametrize("terminal, environment, bold", [(False, {}, False), (True, {}, True), (True, {"NO_COLOR": "1"}, False),
                                                         (False, {"NO_COLOR": "1"}, False)])
def test_bold_is_for_terminals(repository, terminal, environment, bold):
    command = [str(repository / "scripts" / "run")]
    if terminal:
        leader, follower = pty.openpty()
        subprocess.run(command, env={**CLEAN, **environment}, stdout=follower, check=True, timeout=60)
        os.close(follower)
        printed = os.read(leader, 1 << 16)
        os.close(leader)
    else:
        printed = subprocess.run(command, env={**CLEAN, **environment}, stdout=subprocess.PIPE, check=True, timeout=60).stdout
    assert b"==> replaying" in printed and (b"\033[" in printed) == bold
