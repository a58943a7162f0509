"""Files that attack the program: every kind gives exit status 2, one line of printable text with file, place and remedy, and no more
memory and time than docs/importing.md says. Each kind is made here, small; the files of OPD_REPORTS, else of ../shared/reports beside
the repository, are read where they are there.

Testplan: ATK-01.
"""
import bz2
import gzip
import io
import json
import lzma
import os
import resource
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, types_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from fuzzing import LABELS, journal_record, journal_sample
from opd import device_config
from opd.capture.cli import main as capture_main
from opd.capture.errors import CaptureError
from opd.capture.journal import SERIES, STEP, read_records
from opd.capture.reader import read_journal
from opd.device_config import ConfigFileError
from opd.evaluate.corpus import CorpusError, read_labels
from opd.importers import ImportFault, import_file
from opd.importers import run as importers_run
from opd.importers import source as importers_source
from opd.importers.command import main
from opd.importers.source import Source
from opd.trace import STATISTICS_BLOCK, Trace, element_statistics

ROOT = Path(__file__).resolve().parents[3]
REPORTS = Path(os.environ.get("OPD_REPORTS", ROOT.parent / "shared" / "reports"))
ATTACK = REPORTS / "attack"
LONG = "9" * 5000          # digits; Python converts 4300
ESCAPE = "\x1b]0;title set by a file\x07\x1b[31m\x9b2J\u202e"


def npy(shape, data: bytes, dtype: str = "<f4", header: str | None = None) -> bytes:
    text = header if header is not None else f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n" + data


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in members.items():
            new.writestr(f"{name}.npy", content)
    return stream.getvalue()


def names(text: str) -> bytes:
    """An array of one name whose letters are these code points."""
    stream = io.BytesIO()
    np.save(stream, np.array(["a"]))
    return stream.getvalue().replace(b"a\0\0\0", text.encode("latin-1"))


def framed(*records: bytes) -> bytes:
    """TensorBoard records with right checksums."""
    parts = []
    for record in records:
        size = struct.pack("<Q", len(record))
        parts.append(size + struct.pack("<I", masked_crc32c(size)) + record + struct.pack("<I", masked_crc32c(record)))
    return b"".join(parts)


BEGIN = event_pb2.Event(file_version="brain.Event:2").SerializeToString()


def event(**members) -> bytes:
    made = event_pb2.Event(step=1)
    value = made.summary.value.add(tag="fc")
    for name, content in members.items():
        if name == "histo":
            for key, number in content.items():
                setattr(value.histo, key, number)
        else:
            value.tensor.CopyFrom(content)
    return made.SerializeToString()


def tensor(sizes, **content):
    made = event_pb2.Event().summary.value.add().tensor
    made.dtype = content.pop("dtype", types_pb2.DT_FLOAT)
    for size in sizes:
        made.tensor_shape.dim.add().size = size
    for name, values in content.items():
        getattr(made, name).extend(values)
    return made


def huge_record() -> bytes:
    size = struct.pack("<Q", 1 << 45)
    return framed(BEGIN) + size + struct.pack("<I", masked_crc32c(size)) + b"x"


def dump(tensor_text: str) -> str:
    return f'{{"task": "statistics", "dump_data_dir": null, "data": {{\n"op": {{"output": [{tensor_text}]}}}}}}'


def safetensors_file(header: str) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode()


NO_ELEMENTS = '"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
MATRIX = dict(max_abs=npy("(1, 1)", bytes(4)))
# kind: (file name, content, what is said behind the file's name)
KINDS = {
    # numbers of thousands of digits
    "digits, JSON": ("dump.json", dump(f'{{"dtype": "float32", "shape": [1], "Max": {LONG}, "Min": 0}}'), ":2: a whole number of 5000 digits; correct"),
    "digits, JSON of INC": ("inc.json", f'{{"Mode": "DynamicRange",\n\n"Nodes": {{"m": {{"outputs": [[[{LONG}]]]}}}}}}', ":3: a whole number of 5000 digits"),
    "digits, step of a log": ("a.log", f"step:{LONG}, loss:2.5\n[x] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, reducing to 2048.0\n", ":1: training loop: a step of more than 15 digits"),
    "digits, step of a report": ("a.txt", f"Detected inf/nan during batch_number={LONG}\nabs min  abs max  metadata\n", ":1: a step of 5000 digits"),
    "digits, step of nvdlfw": ("a.log", f"INFO - fc_activation_max \t\t\t\t iteration={LONG} \t\t\t\t value=1.0000\n", ":1: a step of 5000 digits"),
    "digits, shape of a table": ("a.csv", f'step,probe,shape,max\n1,a,"[{LONG}]",1\n', ':2: shape: "[9999'),
    "digits, metadata": ("a.safetensors", safetensors_file(f'{{"__metadata__":{{"step":"{LONG}"}},{NO_ELEMENTS}}}'), ":step: a step of 5000 digits"),
    "digits, no ASCII": ("a.safetensors", safetensors_file(f'{{"__metadata__":{{"step":"\u00b2"}},{NO_ELEMENTS}}}'), ": holds no tensor of a format"),
    "digits, header of an array": ("a.npz", archive(a=npy(f"({LONG},)", b"")), ':"a": not a valid npz archive ('),
    # sizes that are claimed
    "claim, array": ("a.npz", archive(a=npy("(999999999999,)", bytes(8))), ':"a": claims 3999999999996 bytes of shape [999999999999] and holds 8'),
    "claim, elements of nothing": ("a.npz", archive(a=npy("(999999999999,)", b"", "|V0")), ':"a": is of type |V0, whose elements hold nothing'),
    "claim, negative sizes": ("a.npz", archive(a=npy("(-1, -1)", bytes(4))), ':"a": has no possible shape: [-1, -1]'),
    "claim, record": ("events.out.tfevents.1", huge_record(), ":record 2: is cut off"),
    "claim, tensor": ("events.out.tfevents.1", framed(BEGIN, event(tensor=tensor([1 << 40], float_val=[1.0]))), ": holds no scalar or histogram"),
    "claim, tensor of negative sizes": ("events.out.tfevents.1", framed(BEGIN, event(tensor=tensor([-1, -1, 1 << 40], float_val=[1.0]))),
                                        ':record 2: tag "fc" holds no readable tensor'),
    "claim, shape of JSON": ("dump.json", dump(f'{{"dtype": "float32", "shape": [{"9" * 19}, {"9" * 19}], "Max": 1, "Min": 0}}'), "shape is not a list of sizes"),
    "claim, shape of many sizes": ("dump.json", dump(f'{{"dtype": "float32", "shape": {[2] * 64}, "Max": 1, "Min": 0}}'),
                                   ':2: probe "op.output.0" has a shape of more than 2^63-1 elements'),
    "claim, count": ("module_step0-9.csv", "vpp_stage,step,module_name,scope,min,max,nans\n-1,0,a,forward,0,1,-inf\n", ':2: probe "a" has a negative count'),
    # what is no array, no text, or cut
    "member is no array": ("a.npz", archive(a=b"hello"), ':"a": is no array: it does not begin as a .npy file does'),
    "header is cut": ("a.npz", archive(a=npy("", b"", header="{'descr': '<f4', (")), ':"a": not a valid npz archive ('),
    "header is code": ("a.npz", archive(a=npy("", b"", header="__import__('os').abort()")), ':"a": not a valid npz archive ('),
    "name is no text": ("a.npz", archive(**MATRIX, probe=names("\xf0\xf0\xf0\xf0")), ":\"probe\": holds a name that is no text"),
    "name is half a character": ("a.npz", archive(**MATRIX, probe=names("\x00\xd8\0\0")), ":\"probe\": holds a name that is no text"),
    "key is half a character": ("dump.json", '{"task": "statistics", "dump_data_dir": null,\n"data": {"\\ud800": 1}}', ':2: operator "'),
    "type that TensorBoard does not know": ("events.out.tfevents.1", framed(BEGIN, event(tensor=tensor([1], dtype=types_pb2.DT_RESOURCE))),
                                            ':record 2: tag "fc" holds no readable tensor'),
    # nesting
    "nesting, JSON": ("dump.json", dump("[" * 5000), ": JSON nested too deep"),
    "nesting, values": ("dump.json", dump("[" * 400 + "]" * 400), ": holds"),
    "nesting, cell": ("actv_0-9.csv", f'vpp_stage,name,step,min,max,shape\n0,a,1,0,1,"{"[" * 100000}"\n', ": holds values that are nested too deep"),
    # control characters
    "escape, header": ("module_step0-9.csv", f'vpp_stage,step,module_name,scope,min,max,"{ESCAPE}"\n-1,0,a,forward,0,1,x\n', ':2: ?]0;title set by a file??[31m?2J?: "x" is not a number'),
    "escape, probe": ("a.csv", f'step,probe,shape,max\n1,"{ESCAPE}",[1],-1\n2,"{ESCAPE}",[0],1\n', ':3: shape: "[0]" is not a shape'),
    "escape, member": ("a.npz", archive(**{ESCAPE: b"x"}), ':"\\x1b]0;title'),
    "text without an end": ("a.safetensors", safetensors_file('{"data_offsets":"' + "x" * 100000 + '"}'), ": not a valid safetensors file ("),
}


def told(path: Path, capsys) -> str:
    """What `opd import` says of a file that it refuses."""
    assert main([str(path), "--out", f"{path.parent / 'out'}/"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err[:-1].isprintable() and len(shown.err) < 1000, shown.err
    assert shown.err.startswith(f"opd import: {path}:") and "; " in shown.err
    assert [file.name for file in path.parent.iterdir() if file.suffix == ".safetensors" and file != path] == []
    return shown.err.removeprefix(f"opd import: {path}")


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, tmp_path, capsys):
    file, content, wanted = KINDS[kind]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    error = told(tmp_path / file, capsys)
    assert wanted in error if wanted[0] != ":" else error.startswith(wanted), error


@pytest.mark.skipif(not ATTACK.is_dir(), reason=f"{ATTACK} is absent (OPD_REPORTS names another folder)")
def test_reported_files(tmp_path, capsys):
    files = sorted(file for file in ATTACK.iterdir() if file.suffix in (".npz", ".json", ".log", ".csv"))
    assert len(files) >= 9
    for file in files:
        assert main([str(file), "--out", f"{tmp_path}/"]) == 2, file
        error = capsys.readouterr().err
        assert error.startswith(f"opd import: {file}:") and "; " in error and error[:-1].isprintable() and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- memory and time -------------------------------------------------------------------------------------------------------

def refused_within(path: Path, megabytes: int, seconds: float = 60) -> str:
    """What a process of its own says of a file, which may take that much above what it starts with."""
    script = ("import resource, sys, time; from opd.importers.command import main; pages = int(open('/proc/self/statm').read().split()[0])\n"
              "limit = pages * resource.getpagesize() + int(sys.argv[2]) * 2**20; resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
              "status = main([sys.argv[1], '--out', sys.argv[1] + '.out/']); print(time.process_time(), file=sys.stdout); sys.exit(status)")
    done = subprocess.run([sys.executable, "-c", script, path, str(megabytes)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python"), "OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 2 and done.stderr.startswith(f"opd import: {path}:") and "memory" not in done.stderr, done.stderr
    assert float(done.stdout) < seconds
    return done.stderr


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize("name, pack", [("a.csv.gz", gzip.compress), ("a.csv.bz2", bz2.compress), ("a.csv.xz", lzma.compress)])
def test_compressed_bombs(name, pack, tmp_path):
    """300 MiB out of a few hundred kilobytes."""
    (tmp_path / name).write_bytes(pack(ZEROS) * 300)
    assert "decompresses to more than 256 MiB, from " in refused_within(tmp_path / name, 900)


def test_archive_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as new, new.open("a.npy", "w") as member:
        member.write(npy(f"({300 << 20},)", b"", "|u1"))
        for _ in range(300):
            member.write(ZEROS)
    assert "more than 100 times as many" in refused_within(tmp_path / "a.npz", 200)


def test_a_hole_of_terabytes(tmp_path):
    with open(tmp_path / "a.csv", "wb") as file:
        file.truncate(1 << 40)
    assert ": has more than 4 GiB; split it" in refused_within(tmp_path / "a.csv", 200)


@pytest.mark.parametrize("name, text, error", [
    ("a.csv", "step,a\n" + "1,\n" * (1 << 22), ": holds 8388610 cells, more than 8388608; split it"),
    ("a.json", "[" + "{}," * (1 << 22) + "{}]", ": holds 8388610 values, more than 8388608; split it"),
    ("dump.json", '{"task": "statistics", "dump_data_dir": null, "data": {"a": {"output": [' + "[]," * (1 << 22) + "[]]}}}", "more than 8388608; split it")])
def test_values_are_counted_before_they_are_held(name, text, error, tmp_path):
    (tmp_path / name).write_text(text)
    assert error in refused_within(tmp_path / name, 1200)


def test_a_trace_is_no_square_of_its_file(tmp_path):
    """Each row tells another probe at another step: a trace of their product. 90 KB, 3 GB."""
    rows = "".join(f"{i},p{i},1\n" for i in range(6000))
    (tmp_path / "a.csv").write_text("step,probe,max\n" + rows)
    assert ": 6000 steps x 6000 probes are more than 33554432 values; choose probes with --match" in refused_within(tmp_path / "a.csv", 300)


def test_json_of_other_keys_in_each_row(tmp_path):
    """Rows that share no key: a table of the square of them."""
    def put(count):
        (tmp_path / "a.jsonl").write_text("".join(f'{{"step": {i}, "loss": 1, "l{i}.out/max_abs": 4.0}}\n' for i in range(count)))
        return tmp_path / "a.jsonl"
    assert ": 6000 rows x 6002 keys are more than 33554432 cells; write the same keys" in refused_within(put(6000), 300)
    assert seconds(put(1000)) < 3


def test_several_traces_of_a_file_are_bounded_together(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("step,a,b\n1,1,1\n2,2,2\n1,1,1\n2,2,2\n1,1,1\n")
    monkeypatch.setattr(importers_run, "MAX_CELLS", 10)
    assert len(import_file(tmp_path / "a.csv")[1]) == 3
    monkeypatch.setattr(importers_run, "MAX_CELLS", 9)
    with pytest.raises(ImportFault, match="1 steps x 2 probes are more than 9 values beside 8 of other traces; choose probes"):
        import_file(tmp_path / "a.csv")


def test_lines_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(importers_source, "MAX_VALUES", 3)
    (tmp_path / "a").write_bytes(b"1\n2\n3\n4\n")
    with pytest.raises(ImportFault, match=r"a:4: more than 3 lines; split it"):
        list(Source.open(tmp_path / "a").lines())


def test_lines_are_those_of_split(tmp_path):
    for data in (b"a", b"a\n", b"\na\n\nb", b"\n\na\n\n"):
        (tmp_path / "a").write_bytes(data)
        assert [line.encode() for _, line in Source.open(tmp_path / "a").lines()] == data.split(b"\n")


def test_memory_that_is_not_there_is_said(tmp_path, monkeypatch, capsys):
    def greedy(*_):
        raise MemoryError
    (tmp_path / "a.csv").write_text("step,a\n1,2\n")
    monkeypatch.setattr("opd.importers.build", greedy)
    assert told(tmp_path / "a.csv", capsys).startswith(": takes more memory than there is; split it")


def test_the_limit_of_memory_is_taken_back(tmp_path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_AS)
    seen = []
    monkeypatch.setattr("opd.importers.command.import_file", lambda *_: seen.append(resource.getrlimit(resource.RLIMIT_AS)) or ("csv", []))
    (tmp_path / "a.csv").write_text("step,a\n1,2\n")
    with pytest.raises(IndexError):   # no trace
        main([str(tmp_path / "a.csv"), "--out", f"{tmp_path}/out/"])
    assert seen[0][0] != resource.RLIM_INFINITY and resource.getrlimit(resource.RLIMIT_AS) == before


def seconds(path: Path) -> float:
    begin = time.process_time()
    import_file(path)
    return time.process_time() - begin


@pytest.mark.parametrize("name, head, line, tail", [
    ("dump.json", '{"task": "statistics", "dump_data_dir": null, "data": {"x": {}', ',\n"M.%d": {"output": [{"dtype": "float16", "shape": [1], "Max": 1, "Min": 0}]}', "}}"),
    ("inc.json", '{"Mode": "DynamicRange", "Nodes": {"x": {}', ',\n"m.%d": {"outputs": [[[1.5]]]}', "}}"),
    ("report.txt", "Detected inf/nan during batch_number=0\nLast 1 forward frames:\nabs min  abs max  metadata\n",
     " " * 18 + "m N\n1.00e+00 1.00e+00 o\n", "")])
def test_time_grows_as_the_file_does(name, head, line, tail, tmp_path):
    """Eight times the file, not sixty times the time."""
    def put(count):
        (tmp_path / name).write_text(head + "".join(line % i if "%" in line else line for i in range(count)) + tail)
        return tmp_path / name
    seconds(put(10))
    small = min(seconds(put(1000)) for _ in range(2))
    assert seconds(put(8000)) < 24 * small + 0.1


def test_a_long_line_of_bars_that_do_not_end(tmp_path):
    (tmp_path / "a.log").write_text("step 1 loss 2.5\n" + "x 50%|### " * 6000 + " 1 [" * 2000 + "\n")
    assert seconds(tmp_path / "a.log") < 5


@pytest.mark.parametrize("stretch", ["loss_ce", "total_loss", "grad_norm", "loss ", "a1-", "1", "a ", "[", "lr_", "{'loss': ", "-", "NaN"])
def test_long_words_and_lines(stretch, tmp_path):
    (tmp_path / "a.log").write_text("step 1 loss 2.5\nstep 2 loss: " + stretch * (16000 // len(stretch)) + "\n")
    assert seconds(tmp_path / "a.log") < 3


def test_statistics_block_by_block():
    """The same numbers as in one piece, but for what the order of a sum changes."""
    rng = np.random.default_rng(1)
    elements = rng.standard_normal(STATISTICS_BLOCK + 1000).astype(np.float16)
    elements[[0, 7, STATISTICS_BLOCK + 3]] = np.inf, np.nan, 0
    got, finite = element_statistics(elements), elements[np.isfinite(elements)].astype(np.float64)
    low = np.abs(finite)[np.abs(finite) > 0]
    assert (got["max_abs"], got["min_abs"], got["nonfinite"], got["zero"]) == (np.abs(finite).max(), low.min(), 2, (finite == 0).sum())
    assert got["subnormal"] == (low < 2.0**-14).sum() and got["saturated"] == 0
    assert np.isclose(got["mean"], finite.mean(), rtol=1e-6, atol=0) and np.isclose(got["var"], finite.var(), rtol=1e-6)
    assert element_statistics(np.full(STATISTICS_BLOCK + 1, np.nan, np.float32))["mean"] == 0


# --- names -----------------------------------------------------------------------------------------------------------------

HOSTILE = ("../../outside", "/etc/outside", "..", ".", "", "a/b", "a\nb", "\x1b[31mred", "</script><script>alert(1)</script>", "nul\0byte", "~", "-rf", "x" * 300)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_inside_the_folder(name, tmp_path, capsys):
    """Names of runs become names of files."""
    rows = "".join(json.dumps({"run": run, "step": step, "loss": 2.5}) + "\n" for run in (name, "other") for step in (1, 2))
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.jsonl").write_text(rows)
    status = main([str(inner / "a.jsonl"), "--out", f"{inner / 'out'}/"])
    shown = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in shown.out + shown.err)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["inner"]
    written = list((inner / "out").iterdir())
    if status == 2:
        assert written == [] and len(name) > 200
        return
    assert status == 0 and len(written) in (1, 2)
    for file in written:
        assert file.is_file() and file.name.startswith("a") and Trace.read(file).name + ".safetensors" == file.name


# --- labels, configurations, journals --------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, said", [
    (f"runs = {LONG}", "is not TOML ("), ("runs = " + "[" * 5000, "is nested too deep"), (f'["{ESCAPE}"]\n'.replace("\x1b", "\\u001b").replace("\x07", "\\u0007").replace("\x9b", "\\u009b"), "is not known"),
    (LABELS.decode().replace("overflow]", '"\\u001b]0;t\\u0007"]').replace("235", '"x"'), "has the wrong type"), ("[" + '"' + "x" * 9000 + '"]', "is not known"),
    ("#" * (5 << 20), "is larger than 4 MiB")])
def test_labels(text, said, tmp_path):
    (tmp_path / "labels.toml").write_text(text)
    with pytest.raises(CorpusError) as caught:
        read_labels(tmp_path / "labels.toml")
    assert said in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 800 and "; " in str(caught.value)


@pytest.mark.parametrize("reader, error", [(read_labels, CorpusError), (device_config.read, ConfigFileError), (read_journal, CaptureError)])
def test_pipes_and_devices_are_no_files(reader, error, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(error, match="is no regular file; "):
            reader(path)


def test_recover_of_a_pipe(tmp_path, capsys):
    os.mkfifo(tmp_path / "a.safetensors.journal")
    assert capture_main(["--recover", str(tmp_path / "a.safetensors.journal")]) == 2
    assert "is no regular file; give the path of a capture's journal" in capsys.readouterr().err
    assert capture_main(["--info", str(tmp_path / "a.safetensors.journal")]) == 2


def test_a_journal_is_no_square_of_its_bytes(tmp_path):
    """Many probes, and many steps in which none ran: 4 MB, 10 GB."""
    records = [(kind, bytes(payload)) for kind, payload in read_records(journal_sample())]
    probes = [(b"P", json.dumps({"index": i, "name": f"p{i}", "kind": "gradient", "format": "FP32", "shape": []}).encode()) for i in range(2, 20000)]
    steps = [(b"S", STEP.pack(1000 + i, *[0.0] * len(SERIES), 0)) for i in range(40000)]
    path = tmp_path / "a.safetensors.journal"
    path.write_bytes(b"".join(journal_record(*record) for record in (*records[:1], *records[1:3], *probes, *records[3:], *steps)))
    with pytest.raises(CaptureError, match="holds 40003 steps of 20000 probes, 800060000 values in .* bytes; the journal is damaged"):
        read_journal(path)


def test_errors_of_a_capture_are_printable():
    assert str(CaptureError(f"run{ESCAPE}: is wrong; mend it")).isprintable()
