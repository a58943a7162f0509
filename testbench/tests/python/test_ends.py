"""Ends that nobody wants: TERM, KILL, a full disk, two runs with one --out, a reader that leaves. Afterwards every file is the old one,
the new one as a whole, or absent; after TERM and a full disk nothing else is left; the status is the documented one.

A library in LD_PRELOAD makes fsync() and rename() slow, so that the moments between them last. Testplan: END-01.
"""
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from opd import files
from opd.capture.cli import main as capture_main
from opd.report import read_records
from opd.trace import Probe, Trace, TraceError, TraceWriter
from test_replay import small_trace

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static void wait_a_while(void) { struct timespec t = {0, 150000000}; nanosleep(&t, 0); }
int fsync(int d) { wait_a_while(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(d); }
int rename(const char *a, const char *b) { wait_a_while(); return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(a, b); }
"""
SCRIPT = """
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean() * (float("nan") if step == 2 else 1)
    loss.backward()
    optimizer.step()
    print(step, flush=True)
    if step >= 5 and sys.argv[2:] == ["wait"]:
        time.sleep(60)
"""


@dataclass(frozen=True)
class Command:
    """arguments: of `opd`, behind the name; the two runs of a test differ in them. files: what a run writes into --out."""
    first: tuple[str, ...]
    second: tuple[str, ...]
    files: tuple[str, ...]
    out: str = ""  # --out is this file of the folder; else the folder


# One that writes while it ends: a folder of files that belong together, a pair of files, one file, several of one command.
COMMANDS = {
    "replay": Command(("TRACE", "--paths", "systemc,cpu"), ("TRACE", "--paths", "systemc,cpu", "--set", "quiet_steps=1"),
                      ("report.html", "small.baseline", "small.cpu.records", "small.systemc.records", "small.z", "summary.json")),
    "evaluate": Command(("TRACE", "--seed", "1"), ("TRACE", "--seed", "2"), ("evaluation.html", "evaluation.json")),
    "calibrate": Command(("TRACE", "--assume-healthy", "--seed", "1"), ("TRACE", "--assume-healthy", "--seed", "2"), ("device.json",), "device.json"),
    "import": Command(("TABLE",), ("TABLE", "--format", "FP16"), ("table.safetensors",)),
}
ENDED = {"calibrate": (0, 3)}  # 3: the rate is not promised (docs/calibration.md)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """TRACE, TABLE, SCRIPT, and the slow library."""
    folder = tmp_path_factory.mktemp("inputs")
    small_trace().write(folder / "small.safetensors")
    (folder / "table.csv").write_text("step,probe,max\n1,a,2.5\n2,a,3.5\n")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c", "-ldl"], check=True)
    return folder


def start(inputs, name, arguments, out, slow=False, limit=None, **options):
    """A command whose --out is a folder of its own or a file in it."""
    words = [{"TRACE": str(inputs / "small.safetensors"), "TABLE": str(inputs / "table.csv")}.get(word, word) for word in arguments]
    into = str(out / COMMANDS[name].out) if COMMANDS[name].out else f"{out}/"
    program = [str(PROGRAM)] if name == "replay" else [sys.executable, "-m", "opd"]
    environment = ENVIRONMENT | ({"LD_PRELOAD": str(inputs / "slow.so")} if slow else {})
    return subprocess.Popen([*program, name, *words, "--out", into], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))), **options)


@pytest.fixture(scope="module", params=COMMANDS)
def run(request, inputs, tmp_path_factory):
    """Name of a command, and the folders that its two runs leave when nothing disturbs them."""
    name = request.param
    if name == "replay" and not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (scripts/setup)")
    folders = []
    for arguments in (COMMANDS[name].first, COMMANDS[name].second):
        folders.append(tmp_path_factory.mktemp(name))
        process = start(inputs, name, arguments, folders[-1])
        out, err = process.communicate(timeout=300)
        assert process.returncode in ENDED.get(name, (0,)), err
        assert sorted(path.name for path in folders[-1].iterdir()) == sorted(COMMANDS[name].files)
    assert content(folders[0]) != content(folders[1])
    return name, *folders


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def whole(path: Path) -> None:
    """A file is not cut off, whatever run it is of."""
    data = path.read_bytes()
    if path.suffix == ".json":
        assert isinstance(json.loads(data), dict)
    elif path.suffix == ".html":
        assert data.startswith(b"<!doctype html>") and data.rstrip().endswith(b"</html>")
    elif path.suffix == ".safetensors":
        Trace.read(path)
    elif path.suffix == ".records":
        assert len(read_records(path)) == 24 * 6
    else:
        assert path.suffix in (".z", ".baseline") and len(data) == 8 * 24 * 6


def at_work(process, out: Path, name: str, moment: int) -> None:
    """Waits until a run has begun to write, and then some: each moment is one more slow call."""
    before, deadline = set(out.rglob("*")), time.monotonic() + 120
    while process.poll() is None and set(out.rglob("*")) == before:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.05 + 0.15 * moment)


@pytest.mark.parametrize("number, moment", [(signal.SIGTERM, 0), (signal.SIGTERM, 1), (signal.SIGTERM, 7), (signal.SIGKILL, 0), (signal.SIGKILL, 7)])
def test_a_signal_tears_nothing(run, inputs, tmp_path, number, moment):
    name, old, _ = run
    if moment > 0 and len(COMMANDS[name].files) <= moment // 4 + 1:
        pytest.skip("everything is written by then")
    out = tmp_path / "out"
    shutil.copytree(old, out)
    process = start(inputs, name, COMMANDS[name].second, out, slow=True)
    at_work(process, out, name, moment)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    ended = ENDED.get(name, (0,))
    assert process.returncode in (-number, 128 + number, *ended) and "Traceback" not in err, err
    assert moment > 0 or process.returncode not in ended
    files = {path.name for path in out.iterdir() if path.is_file()}
    for path in out.iterdir():
        if path.name in COMMANDS[name].files:
            whole(path)
    if number == signal.SIGTERM:
        assert {path.name for path in out.iterdir()} <= set(COMMANDS[name].files)
        if process.returncode not in ended and len(COMMANDS[name].files) > 1 and "summary.json" in files:
            assert content(out) == content(old)
    if name == "replay" and number == signal.SIGKILL:  # the next run removes what this one has left
        process = start(inputs, name, COMMANDS[name].second, out)
        process.communicate(timeout=300)
        assert process.returncode in ended
        assert {path.name for path in out.iterdir()} == set(COMMANDS[name].files)


def test_a_full_disk_tears_nothing(run, inputs, tmp_path):
    """A limit on the size of files stands in for the disk."""
    name, old, _ = run
    out = tmp_path / "out"
    shutil.copytree(old, out)
    limit = min(path.stat().st_size for path in old.iterdir()) // 2
    process = start(inputs, name, COMMANDS[name].second, out, limit=limit)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2 and "File too large" in err and "Traceback" not in err, err
    assert content(out) == content(old) and len(list(out.iterdir())) == len(content(old))


def test_two_runs_with_one_out(run, inputs, tmp_path):
    """What is there is all of one of them."""
    name, *alone = run
    out = tmp_path / "out"
    out.mkdir()
    both = [start(inputs, name, arguments, out, slow=True) for arguments in (COMMANDS[name].first, COMMANDS[name].second)]
    told = [process.communicate(timeout=300)[1] for process in both]
    statuses = [process.returncode for process in both]
    ended = ENDED.get(name, (0,))
    assert all(status in (*ended, 2) for status in statuses) and any(status in ended for status in statuses), told
    for status, err in zip(statuses, told):
        assert "Traceback" not in err and (status != 2 or "another replay writes there; wait until it has ended, or give another --out" in err), err
    assert {path.name for path in out.iterdir()} == set(COMMANDS[name].files)
    if name == "replay":
        settings = [json.loads((folder / "summary.json").read_text())["config"] for folder in (out, *alone)]
        winner = settings[1:].index(settings[0])
        timed = ("summary.json", "report.html")  # they hold run times
        assert all(content(out)[file] == content(alone[winner])[file] for file in COMMANDS[name].files if file not in timed)
    else:
        assert content(out) in [content(folder) for folder in alone]


def test_a_report_that_cannot_be_written_leaves_no_summary(inputs, tmp_path):
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (scripts/setup)")
    (tmp_path / "report.html").mkdir()
    process = start(inputs, "replay", COMMANDS["replay"].first, tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2 and f"{tmp_path / 'report.html'}: is a folder; move it away" in err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_leaves_ends_a_replay(inputs, tmp_path, lines):
    """Status of a program that SIGPIPE ended; or that of the run, when it had written everything."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (scripts/setup)")
    command = f"'{PROGRAM}' replay '{inputs / 'small.safetensors'}' --paths systemc,cpu --out '{tmp_path}/' | head -{lines}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, text=True, capture_output=True, timeout=300)
    assert done.stdout.splitlines()[-1] in ("141", "0") and "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.iterdir()}
    assert left in (set(), set(COMMANDS["replay"].files))


# --- commands that run another one ------------------------------------------------------------------------------------------

def training(inputs, folder: Path, name: str, *steps: str, limit=None):
    options = {"capture": ["--out", str(folder / "run.safetensors")], "guard": ["--log", str(folder / "log.jsonl"), "--path", str(folder / "states"),
                                                                               "--ring-every", "2"]}[name]
    return subprocess.Popen([sys.executable, "-m", "opd", name, *options, "--", sys.executable, str(inputs / "train.py"), *steps], env=ENVIRONMENT,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))


@pytest.mark.parametrize("name", ["capture", "guard"])
def test_a_training_run_that_is_ended(inputs, tmp_path, name):
    """TERM of the command, while a second one asks for the same files; what was recorded until then is whole."""
    process = training(inputs, tmp_path, name, "100", "wait")
    for _ in range(6):
        process.stdout.readline()
    if name == "capture":
        second = training(inputs, tmp_path, name, "3")
        _, err = second.communicate(timeout=120)
        assert second.returncode == 2 and "run.safetensors.journal" in err and "Traceback" not in err
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in err, err
    if name == "capture":
        assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"] and len(Trace.read(tmp_path / "run.safetensors").step) >= 5
    else:
        assert {path.name for path in tmp_path.iterdir()} <= {"log.jsonl", "states"}
        assert any(json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines())
        states = list((tmp_path / "states").iterdir())
        assert states and all(zipfile.ZipFile(path).testzip() is None for path in states)  # as torch.save writes them


def test_a_capture_on_a_full_disk(inputs, tmp_path):
    """The command itself goes on; the trace holds the steps before."""
    process = training(inputs, tmp_path, "capture", "40", limit=3000)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out.split() == [str(step) for step in range(40)] and "Traceback" not in err, err
    assert "File too large" in err
    for path in tmp_path.iterdir():
        assert path.name in ("run.safetensors", "run.safetensors.journal")
        assert path.suffix == ".journal" or len(Trace.read(path).step) > 0


@pytest.mark.parametrize("arguments, said", [
    (["--recover", "a.journal", "--", "true"], "--recover: runs no command, but there is one after --"),
    (["--info", "a.journal", "--", "true"], "--info: runs no command"), (["--merge", "a", "b", "--out", "c", "--", "true"], "--merge: runs no command"),
    (["--recover", "a.journal", "--probes", "all"], "--probes: says how a command is captured, and --recover captures none"),
    (["--info", "a.journal", "--out", "x"], "--out: says how a command is captured, and --info captures none"),
    (["--bench", "--raw", "x"], "--raw: says how"), (["--recover", "a.journal", "--info", "b.journal"], "not allowed with argument --recover")])
def test_actions_that_contradict_each_other(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        capture_main(arguments)
    assert end.value.code == 2 and said in capsys.readouterr().err


# --- names that are not what they seem ---------------------------------------------------------------------------------------

HOSTILE = ("../../outside", "/tmp/opd-outside", "a\nb", "\x1b]0;title\x07", "\x9b2J", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
           "nul\0byte", "]]>-->", "\u202egnp", "x" * 3000)


@pytest.mark.parametrize("name", ["replay", "evaluate", "triage"])
def test_names_of_operators_stay_text(tmp_path, name):
    """They neither name a file nor become part of a page or of a terminal's controls."""
    if name == "replay" and not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (scripts/setup)")
    probes = [Probe(text, "activation", "FP16", (4,)) for text in HOSTILE]
    writer = TraceWriter("hostile", "data", probes)
    for step in range(30):
        bad = np.int64(step == 29)
        writer.add_step(step, max_abs=np.full(len(probes), 2.0**min(step, 15), np.float32), nonfinite=np.full(len(probes), bad))
    (tmp_path / "in" / "deep").mkdir(parents=True)
    writer.write(tmp_path / "in" / "deep" / "hostile.safetensors")
    out = tmp_path / "in" / "deep" / "out"
    program = [str(PROGRAM)] if name == "replay" else [sys.executable, "-m", "opd"]
    options = [] if name == "triage" else ["--out", str(out)]
    options += ["--paths", "systemc,cpu"] if name == "replay" else []
    done = subprocess.run([*program, name, tmp_path / "in" / "deep" / "hostile.safetensors", *options], env=ENVIRONMENT, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = (done.stdout + done.stderr).decode("utf-8")
    assert all(c.isprintable() or c == "\n" for c in shown), [c for c in shown if not c.isprintable() and c != "\n"]
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"hostile.safetensors", "report.html", "summary.json", "evaluation.html",
        "evaluation.json", "hostile.cpu.records", "hostile.systemc.records", "hostile.baseline", "hostile.z"}
    assert not Path("/tmp/opd-outside").exists()
    for page in out.glob("*.html"):
        text = page.read_text()
        assert "<script>alert" not in text and "<img src=x" not in text and "\0" not in text and "\x1b" not in text
        whole(page)


@pytest.mark.parametrize("text", ["../../outside", "/tmp/opd-outside", "a/b", "a\0b", "</script>", ""])
def test_a_trace_of_such_a_name_is_refused(text, tmp_path):
    with pytest.raises(TraceError, match="is not a short name; use letters, digits"):
        small_trace(name=text).write(tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_waits_until_all_files_have_their_names(tmp_path, monkeypatch):
    """Also one that another thread was given: Python runs its handler on the main thread all the same."""
    targets = [tmp_path / name for name in "abc"]
    replaced = []

    def replace(source, target):
        replaced.append(target)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        os.rename(source, target)

    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    monkeypatch.setattr(files.os, "replace", replace)
    try:
        with pytest.raises(KeyboardInterrupt):
            files.write_all_whole({target: b"new" for target in targets})
    finally:
        stop.set()
        other.join()
    assert replaced == targets and sorted(tmp_path.iterdir()) == targets
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_folder_that_another_command_has_is_said(inputs, tmp_path, monkeypatch):
    """As a replay has it for the whole of its run."""
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(OSError, match="another command is writing there"):
        files.write_all_whole({tmp_path / name: b"new" for name in "ab"})
    assert list(tmp_path.iterdir()) == []
    process = start(inputs, "evaluate", COMMANDS["evaluate"].first, tmp_path)
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (2, 128 + signal.SIGTERM), err
    assert list(tmp_path.iterdir()) == []
    os.close(held)
    files.write_all_whole({tmp_path / name: b"new" for name in "ab"})
    assert len(list(tmp_path.iterdir())) == 2
