"""The journal of a capture: who may touch it, which are refused, and what `opd info` says of one that grows."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
REPORTS = next((folder for folder in (ROOT.parent / "shared" / "reports", ROOT / "shared" / "reports") if folder.is_dir()), None)

from opd.capture import Capture, CaptureError, cli, read_journal, recover  # noqa: E402
from opd.capture.errors import BusyError  # noqa: E402
from opd.capture.info import journal_text  # noqa: E402
from opd.capture.journal import CRC, HEAD, MAGIC, VERSION, read_records  # noqa: E402
from opd.trace import Trace, TraceError  # noqa: E402
from torch import nn  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGES)}


def step(c: Capture, model: nn.Module, loss: float = 1.0) -> None:
    model(torch.ones(1, 2))
    c.step(loss=loss)


@pytest.fixture
def live(tmp_path):
    """A capture that is open, its model and its journal."""
    model = nn.Linear(2, 2)
    c = Capture(model, tmp_path / "run.safetensors", probes="output", raw="model", raw_steps=range(2))
    for _ in range(3):
        step(c, model)
    yield c, model, tmp_path / "run.safetensors.journal"
    c.close()


def python(code: str, *arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=300, **options)


RECOVER = "import sys; from opd.capture import cli; sys.exit(cli.main(['--recover', sys.argv[1]]))"


# --- who may touch it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "a reader", "a fork", "a recover"])
def test_recover_leaves_a_journal_that_is_being_written(live, before):
    """From this process and from another one; whatever this process has done with the journal before."""
    c, model, journal = live
    if before == "a reader":
        read_journal(journal)
        journal.open("rb").close()
    if before == "a fork":  # the child has a copy of everything that is open, and goes
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if before == "a recover":
        with pytest.raises(BusyError):
            recover(journal)
    with pytest.raises(CaptureError, match="run.safetensors.journal: another running capture writes it"):
        recover(journal)
    other = python(RECOVER, journal)
    assert other.returncode == 2 and "another running capture writes it" in other.stderr and "opd info" in other.stderr
    step(c, model)
    c.close()
    assert Trace.read(journal.with_suffix("")).step.tolist() == [0, 1, 2, 3] and not journal.exists()


def test_a_forked_child_neither_writes_nor_holds_it(live):
    c, model, journal = live
    pipe = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(pipe[1])
            step(c, model)  # of no account
            c.close()
            os.read(pipe[0], 1)
        finally:
            os._exit(0)
    os.close(pipe[0])
    try:
        step(c, model)
        c.close()  # the child still runs, and holds no lock
        assert Trace.read(journal.with_suffix("")).step.tolist() == [0, 1, 2, 3]
        again = Capture(nn.Linear(2, 2), journal.with_suffix(""))
        again.close()
    finally:
        os.close(pipe[1])
        os.waitpid(child, 0)


def test_recover_of_a_live_run_by_the_command_line(tmp_path):
    """Two launchers and a --recover beside a running capture: each says what is, and no step is lost."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import sys, torch
        m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)); o = torch.optim.SGD(m.parameters(), 1e-3)
        for i in range(60):
            o.zero_grad(); m(torch.ones(1, 4)).sum().backward(); o.step()
            if i == 20:
                print("started", flush=True); sys.stdin.readline()
    """))
    command = [sys.executable, "-m", "opd", "capture", "--out", "run.safetensors"]
    first = subprocess.Popen([*command, "--", sys.executable, str(script)], env=ENVIRONMENT, cwd=tmp_path, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert first.stdout.readline() == "started\n"
    found = subprocess.run([*command[:-2], "--recover", "run.safetensors.journal"], env=ENVIRONMENT, cwd=tmp_path, text=True,
                           capture_output=True, timeout=300)
    assert found.returncode == 2 and "another running capture writes it" in found.stderr
    second = subprocess.run([*command, "--", sys.executable, "-c", "print('ran')"], env=ENVIRONMENT, cwd=tmp_path, text=True,
                            capture_output=True, timeout=300)
    assert second.returncode == 2 and "another running capture writes it; give another path" in second.stderr
    assert "ran" not in second.stdout
    _, said = first.communicate("\n", timeout=300)
    assert first.returncode == 0 and f"opd capture: {tmp_path / 'run.safetensors'}: 60 steps 0..59" in said
    assert Trace.read(tmp_path / "run.safetensors").step.tolist() == list(range(60))
    assert [path.name for path in tmp_path.iterdir() if "run" in path.name] == ["run.safetensors"]


def test_a_journal_that_cannot_be_read_is_kept_when_its_path_is_used_again(tmp_path):
    journal = tmp_path / "run.safetensors.journal"
    journal.write_bytes(record(b"H", json.dumps({"version": VERSION + 1}).encode()))
    content = journal.read_bytes()
    model = nn.Linear(2, 2)
    for number in (1, 2):
        with Capture(model, tmp_path / "run.safetensors", probes="output") as c:
            step(c, model)
        assert (tmp_path / "run.killed-1.safetensors.journal").read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.killed-1.safetensors.journal", "run.safetensors"]


# --- which are refused -----------------------------------------------------------------------------------------------


def record(kind: bytes, payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, kind, len(payload))
    return head + CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def test_another_version_is_refused_by_name(live, tmp_path, capsys):
    journal = live[2]
    records = list(read_records(journal.read_bytes()))
    header = json.loads(bytes(records[0][1]))
    for version in (None, 1, VERSION + 1, "x"):
        changed = {key: value for key, value in header.items() if key != "version"} | ({} if version is None else {"version": version})
        other = tmp_path / "other.safetensors.journal"
        other.write_bytes(record(b"H", json.dumps(changed).encode()) + b"".join(record(*item) for item in records[1:]))
        assert cli.main(["--recover", str(other)]) == 2
        error = capsys.readouterr().err
        assert f"{other}: record 0 (H) is that of a journal of version {1 if version is None else repr(version)}" in error
        assert f"reads version {VERSION}; recover it with the opd that wrote it" in error and other.exists()


@pytest.mark.skipif(REPORTS is None, reason="the folder shared/ is not here")
def test_the_reported_journal_of_another_version(tmp_path, capsys):
    copy = tmp_path / "run.safetensors.journal"
    copy.write_bytes((REPORTS / "attack" / "journal_of_another_version.journal").read_bytes())
    assert cli.main(["--recover", str(copy)]) == 2 and "is that of a journal of version 1" in capsys.readouterr().err
    assert copy.exists()


CHANGES = [None, -1, 0, 1 << 70, 1.5, True, "x", "", [], [0], ["x"], [-1], {}, {"x": 1}, [[1]], [1 << 40, 1 << 40]]


def test_records_changed_under_a_right_checksum(live, tmp_path):
    """Every key of every record with every kind of value; short and odd payloads: a trace, or an error that names the file."""
    records = [(kind, bytes(payload)) for kind, payload in read_records(live[2].read_bytes())]
    note = {"step": 1, "incident": {"text": "t", "advice": "a"}, "order": [0], "lr": [1.0, 2.0], "groups": [[1, "w"], [2, "v"]]}
    at = next(i for i, (kind, _) in enumerate(records) if kind == b"S")
    records.insert(at + 1, (b"N", json.dumps(note).encode()))
    records.append((b"E", json.dumps({"complete": True}).encode()))
    changed = []
    for place, (kind, payload) in enumerate(records):
        if kind in b"HPNE":
            item = json.loads(payload)
            changed += [(place, json.dumps({**item, key: value}).encode()) for key in item for value in CHANGES]
            changed += [(place, json.dumps({k: v for k, v in item.items() if k != key}).encode()) for key in item]
            changed += [(place, data) for data in (b"", b"[]", b"{", b"\xff", b'{"step": NaN}')]
        else:
            generator = random.Random(place)
            changed += [(place, payload[:size]) for size in (0, 1, 5, len(payload) - 1)] + [(place, payload + b"\0")]
            changed += [(place, payload[:i] + struct.pack("<I", generator.getrandbits(32)) + payload[i + 4:])
                        for i in range(0, len(payload) - 3, 3)]
    other = tmp_path / "other.safetensors.journal"
    traces = refused = 0
    for place, payload in changed:
        other.write_bytes(b"".join(record(kind, payload if i == place else old) for i, (kind, old) in enumerate(records)))
        try:
            read_journal(other).to_bytes("other")
            traces += 1
        except (CaptureError, TraceError) as error:
            assert "other" in str(error)
            refused += 1
    assert traces > 50 and refused > 150, (traces, refused)


# --- what one says that grows ----------------------------------------------------------------------------------------


def test_info_of_a_journal_that_grows(live):
    c, model, journal = live
    text = journal_text(journal)
    assert text.startswith(f"{journal}: journal, is being written: run (healthy), 3 steps 0..2, 1 probes, with raw elements")
    assert "\n     0  model                            activation  FP32             2 " in text
    step(c, model)
    model(torch.full((1, 2), torch.inf))
    c.step(loss=torch.nan)
    text = journal_text(journal)
    assert "(sudden), 5 steps 0..4; step 4: model is the first that is non-finite" in text
    copy = journal.with_name("copy.safetensors.journal")
    copy.write_bytes(journal.read_bytes())
    assert ": journal, of a run that has ended: " in journal_text(copy) and copy.exists()
    with pytest.raises(CaptureError, match="cannot be read"):
        journal_text(journal.with_name("missing.journal"))


def test_the_program_reads_journals(live):
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    journal = live[2]
    result = subprocess.run([PROGRAM, "info", journal], text=True, capture_output=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, journal_text(journal)), result.stderr
    missing = subprocess.run([PROGRAM, "info", journal.with_name("missing.journal")], text=True, capture_output=True, timeout=300)
    assert missing.returncode == 2 and "opd: " in missing.stderr and "missing.journal: cannot be read" in missing.stderr


def test_info_on_the_command_line(live, capsys):
    assert cli.main(["--info", str(live[2])]) == 0 and "is being written" in capsys.readouterr().out
    assert cli.main(["--info", __file__]) == 2 and "is not the journal of a capture" in capsys.readouterr().err
