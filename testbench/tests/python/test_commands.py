"""The program `opd` and `python -m opd`: the commands that are Python are reached from both, alike; nothing on a command line is
ignored, and every end has the status that it should have."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from opd.__main__ import COMMANDS
from opd.arguments import Parser
from opd.files import NotRegular, write_all_whole, write_whole

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


@pytest.mark.parametrize("arguments, words", [
    (["no-such-command"], "opd: no-such-command: no such command; the commands are calibrate, capture, evaluate, governor, guard, import, localise, triage"),
    (["no-such-command", "--help"], "opd: no-such-command: no such command"),
    (["evalute", "--help"], "opd: evalute: no such command; did you mean evaluate?"),
    (["-x"], "opd: -x: no such command"),
])
def test_an_unknown_command_is_named(arguments, words):
    result = run(sys.executable, "-m", "opd", *arguments)
    assert result.returncode == 2 and result.stderr.startswith(words) and result.stdout == ""


# --- options ---------------------------------------------------------------------------------------------------------------

def parser_of(name, monkeypatch):
    """The parser that a command makes for itself."""
    made = []

    class Stop(BaseException):
        pass

    def stop(self, *_):
        made.append(self)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", stop)
        with pytest.raises(Stop):
            importlib.import_module(COMMANDS[name][0]).main(["x"])
    return made[0]


def value_of(action):
    return str(next(iter(action.choices))) if action.choices else "1"


def options_of(parser):
    return [action for action in parser._actions if action.option_strings and "--help" not in action.option_strings]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_ignored_when_it_comes_twice(name, monkeypatch, capsys):
    """Every option of every command: an error, or merged; a switch says the same twice."""
    parser = parser_of(name, monkeypatch)
    files = [] if name in ("capture", "guard") else ["file"]
    refused = merged = 0
    for action in options_of(parser):
        spelling, value = action.option_strings[0], value_of(action)
        if action.nargs == 0:
            assert getattr(parser.parse_args([*files, spelling, spelling]), action.dest) is True
            continue
        if type(action).__name__ == "_Merged":
            values = [value, list(action.choices)[1] if action.choices else "2"]
            words = [word for v in (*values, value) for word in (spelling, v)]
            assert getattr(parser.parse_args([*files, *words]), action.dest) == values
            merged += 1
            continue
        for second in action.option_strings:  # --out and -o are one option
            with pytest.raises(SystemExit) as end:
                parser.parse_args([*files, spelling, value, second, value])
            told = capsys.readouterr().err
            assert end.value.code == 2 and "is given more than once; give it once" in told and spelling in told
        refused += 1
    assert refused >= {"localise": 0, "triage": 1, "governor": 2}.get(name, 4) and merged == {"evaluate": 2, "calibrate": 1}.get(name, 0)
    assert parser.parse_args(files)  # nothing of the lines before is left


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("help_asked", [[], ["--help"]])
def test_an_unknown_option_is_named_with_the_nearest(name, help_asked, monkeypatch, capsys):
    parser = parser_of(name, monkeypatch)
    for action in options_of(parser):
        wrong = action.option_strings[0] + "x"
        for words in ([wrong], [wrong + "=1"]):
            with pytest.raises(SystemExit) as end:
                parser.parse_args([*([] if name in ("capture", "guard") else ["file"]), *words, *help_asked])
            told = capsys.readouterr()
            assert end.value.code == 2 and told.out == ""
            assert f"opd {name}: error: {wrong}: no such option; " in told.err, told.err
    with pytest.raises(SystemExit):
        near = {"import": "--label-s", "capture": "--probs", "guard": "--probs", "localise": "--trst"}.get(name, "--labls")
        parser.parse_args(["file", near, "1"])
    assert "did you mean --" in capsys.readouterr().err


# --- the end of a command ---------------------------------------------------------------------------------------------------

def start(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python")}
    return subprocess.Popen([sys.executable, "-m", "opd", *arguments], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("name", ["evaluate", "calibrate", "import"])
def test_an_interrupt_is_one_line(name, tmp_path):
    if name == "import":
        steps = np.arange(400_000)
        table = tmp_path / "long.csv"
        table.write_text("step,loss\n" + "\n".join(f"{step},{1 / (step + 1)}" for step in steps) + "\n")
        arguments = [str(table), "--out", f"{tmp_path}/"]
    else:
        arguments = ["traces/captured", "traces/corpus", "--out", str(tmp_path / "out")]
    process = start(name, *arguments)
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "numpy" not in maps.read_text():  # from then on it is at work
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "opd: interrupted\n")
    assert not list(tmp_path.rglob("evaluation.*")) and not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["evaluate", "calibrate", "import"])
def test_a_closed_output_is_named(name, tmp_path):
    shipped = ROOT / "traces" / "captured" / "healthy.safetensors"
    if name == "import":
        (tmp_path / "log.csv").write_text("step,loss\n1,2.5\n2,2.25\n")
    what = {"import": tmp_path / "log.csv", "calibrate": f"{shipped} --false-alarms 1"}.get(name, shipped)
    result = run("bash", "-c", f"{sys.executable} -m opd {name} {what} --out {tmp_path}/out >&-")
    assert result.returncode == 2 and result.stderr.startswith("opd: standard output cannot be written (Bad file descriptor)")
    assert len(result.stderr.splitlines()) == 1 and (tmp_path / "out").exists()


@pytest.mark.parametrize("error", ["/dev/full", "&-"])
@pytest.mark.parametrize("arguments, status", [("evaluate /none", 2), ("import /none", 2), ("nonsense", 2), ("evaluate --nonsense", 2),
                                               ("import --help", 0)])
def test_an_error_stream_that_cannot_be_written_changes_no_status(arguments, status, error):
    assert run("bash", "-c", f"{sys.executable} -m opd {arguments} 2>{error}").returncode == status


def test_status_1_is_no_crash():
    """1 is what `opd replay` says of a mismatch: nobody else may."""
    script = "import sys; from opd.__main__ import run; sys.exit(run(lambda: 1 / 0))"
    result = run(sys.executable, "-c", script)
    assert result.returncode == 2 and "ZeroDivisionError" in result.stderr


def test_a_missing_package_is_named():
    result = run(sys.executable, "-S", "-m", "opd", "evaluate", "x")  # without the packages of the environment
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("opd: the Python package ") and result.stderr.endswith("is not installed; scripts/setup installs it\n")


# --- files that are whole ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", ["/dev/null", "/dev/full", "/dev/stdout", "fifo", "link to /dev/null"])
def test_no_device_or_pipe_is_replaced_by_a_file(target, tmp_path):
    """A file that is renamed onto /dev/null would take its place for everybody."""
    path = Path(target)
    if target == "fifo":
        path = tmp_path / "fifo"
        os.mkfifo(path)
    elif target.startswith("link"):
        path = tmp_path / "link"
        path.symlink_to("/dev/null")
    before = os.stat(path) if path.exists() else None
    (tmp_path / "log.csv").write_text("step,loss\n1,2.5\n2,2.25\n")
    result = run(sys.executable, "-m", "opd", "import", str(tmp_path / "log.csv"), "--out", str(path))
    assert result.returncode == 2 and "is not a regular file; give the path of a file" in result.stderr
    shipped = ROOT / "traces" / "captured" / "healthy.safetensors"
    result = run(sys.executable, "-m", "opd", "calibrate", str(shipped), "--false-alarms", "1", "--out", str(path))
    assert result.returncode == 2 and "is not a regular file" in result.stderr
    assert os.stat(path).st_mode == before.st_mode and os.stat(path).st_ino == before.st_ino
    assert path.is_symlink() == (target.startswith("link") or target == "/dev/stdout")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for content in (b"one", b"two"):
        write_whole(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").read_bytes() == content


def test_of_several_files_all_or_none_are_written(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    os.mkfifo(tmp_path / "b")
    with pytest.raises(NotRegular):
        write_all_whole({tmp_path / "a": b"after", tmp_path / "b": b"after"})
    with pytest.raises(FileNotFoundError):
        write_all_whole({tmp_path / "a": b"after", tmp_path / "none" / "b": b"after"})
    assert (tmp_path / "a").read_bytes() == b"before" and sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
