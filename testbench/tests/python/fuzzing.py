"""Readers of files under seeded damage: what scripts/fuzz runs for as long as it is told, and test_fuzz.py for a moment.

A target is a reader with small valid samples. A case is one of them with a few faults, made from the seed, the target and the number
of the case alone. It may give a result, or one of the documented errors in one line of printable text that names the file and a
remedy. Anything else is a finding: another exception, more than SECONDS of processor time, more than MEMORY bytes, a crash, a control
character, a file that nobody asked for.

Cases run in a child process under resource limits, so that a crash or a hang costs one case and not the run.
"""
from __future__ import annotations

import bz2
import contextlib
import copy
import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opd import device_config
from opd.capture import reader
from opd.capture.errors import CaptureError
from opd.capture.journal import CRC, HEAD, MAGIC, RAW, SERIES, STEP, VERSION, read_records, row_type
from opd.capture.reader import read_journal
from opd.evaluate.corpus import CorpusError, read_labels
from opd.importers import IMPORTERS
from opd.importers import run as importers_run
from opd.importers.command import main as import_main
from opd.trace import Trace, TraceError

SECONDS = 5         # processor time of one case
MEMORY = 1 << 30    # bytes above what the process has before it
LONGEST = 1 << 19   # bytes of a case before it is compressed
MOST_CELLS = 1 << 21  # of a trace: the readers' own bound is sixteen times that, as is the memory they may take
DIGITS = b"9" * 5000

# What is put into files: ends and beginnings of every syntax, numbers at and beyond every limit, control sequences, what is no text.
TOKENS = (
    b"nan", b"-inf", b"NaN", b"Infinity", b"-1", b"-0", b"0", b"1e999", b"-1e308", b"1e308", b"1e-320", b"1.5", b"1.2.3", b"1_000", b"0x10",
    b"9" * 15, b"9" * 19, b"4294967296", b"18446744073709551616", b"1" * 400, DIGITS, DIGITS + b".0", b"\xc2\xb2", b"\xd9\xa1", b"\xef\xbc\x91",
    b"{", b"}", b"[", b"]", b"[[]]", b"(", b")", b'"', b"'", b"\\", b",", b":", b";", b"\t", b"\n", b"\r", b"\r\n", b"|", b"=", b"#", b"/",
    b"null", b"true", b"false", b"None", b"{}", b"[]", b'""', b"\\u0000", b"\\ud800", b"\\u001b]0;t\\u0007", b"\\u20ac",
    b"[" * 3000, b'{"a":' * 3000, b"[1," * 500 + b"1" + b"]" * 500, b'{"a":' * 300 + b"1" + b"}" * 300,
    b"\0", b"\x7f", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b]0;title\x07", b"\x1b[31m", b"\x1b[2J", b"\xc2\x9b31m",
    b"\xe2\x80\xae", b"\xe2\x80\xa8", b"\xc2\x85", b"\x08", b"\x0c", b"../../x", b"/etc/x", b"..", b".", b"</script><script>", b"  ",
    b"step", b"loss", b"epoch", b"grad_norm", b"step=", b"loss: ", b"epoch ", b" 100%|##| 7/9 [00:01<00:01]", b"overflow", b"max_abs", b"%|")
# Values of JSON, at which a reader may look in another way than at the one that it expects.
VALUES = (None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**400, float("nan"), float("inf"), -float("inf"), "", "x",
          "\u00b2", "\ud800", "\x1b]0;t\x07", "nan", "1", "9" * 5000, "x" * 70000, [], [None], [[]], [1, 2], ["a"], [-1], [0], [1 << 40, 1 << 40], [10**200, 10**200],
          {}, {"": 0}, {"a": {"b": [1]}}, {"dtype": 1, "shape": [1]}, [[[[[[[1]]]]]]])


# A line; without lines an object, a list or a cell.
_STRETCH = re.compile(rb"[^\n]{1,400}\n|[{\[][^{}\[\]\n]{1,200}[}\]],?|[^,;|\n]{1,60}[,;|]")


# --- faults ----------------------------------------------------------------------------------------------------------------

def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to four faults at random places."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        edit = rng.randrange(11)
        if edit == 0 and data:
            data[at:at + 1] = bytes([rng.randrange(256)])
        elif edit == 1:
            del data[at:at + rng.choice((1, 4, 30, 300))]
        elif edit in (2, 3):
            data[at:at + rng.choice((0, 0, 1, 8))] = rng.choice(TOKENS)
        elif edit == 4:
            other = rng.randrange(len(data) + 1)
            data[at:at] = data[other:other + rng.choice((1, 10, 60, 600))]
        elif edit == 5 and (numbers := list(re.finditer(rb"\d[\d.eE+-]*", data))):
            number = rng.choice(numbers)
            data[number.start():number.end()] = rng.choice(TOKENS[:23])
        elif edit == 6 and (words := list(re.finditer(rb"\w+", data))):
            word = rng.choice(words)
            data[word.start():word.end()] = rng.choice((rng.choice(words)[0], rng.choice(TOKENS)))
        elif edit == 7:
            lines = bytes(data).split(b"\n")
            one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[two] = lines[two], rng.choice((lines[one], lines[two], b""))
            data = bytearray(b"\n".join(lines))
        elif edit == 8 and rng.randrange(3) == 0:
            del data[at:]
        elif edit == 9 and len(data) >= 8:
            data[at:at + 8] = rng.choice((0, 1, 2**64 - 1, 2**63, 2**32, 0x7FC00000, 0xFF800000, 0x7FF0000000000000)).to_bytes(8, "little")
        elif edit == 10 and rng.randrange(8) == 0:
            data = bytearray(swollen(rng, bytes(data)))
        if len(data) > LONGEST:
            del data[LONGEST:]
    return bytes(data)


def swollen(rng: random.Random, data: bytes) -> bytes:
    """One line, or one object or cell of it, many times over; with numbers that count, half of the time. Slow where a reader takes
    the square of what it is given."""
    stretch = rng.choice(list(_STRETCH.finditer(data)) or [re.match(b"(?s).*", data)])
    size = max(len(stretch[0]), 1)
    count = min(rng.choice((100, 3000, 30000)), LONGEST // size // 2)
    if rng.randrange(2):
        pieces = [re.sub(rb"(\d{1,6})", lambda found: b"%d" % (int(found[1]) + i), stretch[0]) for i in range(min(count, 20000))]
        again = b"".join(pieces)
    else:
        again = stretch[0] * count
    return data[:stretch.start()] + again + data[stretch.end():]


def changed(rng: random.Random, value):
    """A value of JSON with one node exchanged, renamed, doubled or gone."""
    nodes = []
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, (dict, list)) and item:
            nodes.append(item)
            level += item.values() if isinstance(item, dict) else item
    if not nodes:
        return copy.deepcopy(rng.choice(VALUES))
    node = rng.choice(nodes)
    key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    edit = rng.randrange(6)
    if edit <= 2:
        node[key] = copy.deepcopy(rng.choice(VALUES))
    elif edit == 3:
        del node[key]
    elif edit == 4 and isinstance(node, dict):
        node[rng.choice(("", "\ud800", "\x1b[31m", "a/b", "step", "loss", "max_abs", "../x", "x" * 300))] = node.pop(key)
    elif isinstance(node, list):
        node *= rng.choice((2, 40))
    else:
        node[key] = [node[key]] * rng.choice((1, 3))
    return value


def json_text(rng: random.Random, value) -> bytes:
    """The value as JSON, cut off where it is too long."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=rng.randrange(2) == 0, indent=rng.choice((None, 1))).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST:
            break
    return "".join(pieces).encode("utf-8", "surrogatepass")


def damaged_json(rng: random.Random, data: bytes) -> bytes:
    """JSON, or JSON line by line, with another value somewhere."""
    if rng.randrange(2):
        return damaged(rng, data)
    with contextlib.suppress(ValueError):
        value = json.loads(data)
        for _ in range(rng.randint(1, 3)):
            value = changed(rng, value)
        return json_text(rng, value)
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    with contextlib.suppress(ValueError):
        lines[at] = json_text(rng, changed(rng, json.loads(lines[at]))).replace(b"\n", b"")
    return b"\n".join(lines)


def damaged_zip(rng: random.Random, data: bytes) -> bytes:
    """A zip whose members are damaged under right checksums, or the archive itself."""
    if rng.randrange(3) == 0:
        return damaged(rng, data)
    stream = io.BytesIO()
    how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", how) as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")   # of a name that stands twice
        members = [(name, old.read(name)) for name in old.namelist()]
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(members))
            name, content = members[at]
            edit = rng.randrange(6)
            if edit <= 2:
                content = _with_npy_header(rng, content)
            elif edit == 3:
                content = damaged(rng, content)
            elif edit == 4:
                name = rng.choice(("step.npy", "loss.npy", "max_abs.npy", "../x.npy", "\x1b]0;t\x07.npy", "a_max.npy", "x", ".npy", "probe.npy", "a/b.npy"))
            else:
                content = rng.choice(members)[1]
            members[at] = name, content
        for name, content in members:
            new.writestr(name, content)
    return stream.getvalue()


def _with_npy_header(rng: random.Random, content: bytes) -> bytes:
    """An .npy file with another header of the right length: types, shapes and orders that a writer may claim."""
    if len(content) < 10:
        return content
    length = int.from_bytes(content[8:10], "little")
    header = content[10:10 + length].decode("latin-1").strip()
    kind = rng.randrange(4)
    if kind == 0:
        types = ("<f2", ">f4", "<f8", "<f16", "<c8", "|O", "<U4", "|S3", "|V2", "|V1", "<M8[s]", "<m8[D]", "|b1", "<i8", ">u2", "<U0", "|V0", "|S0", "<f1", "x")
        header = re.sub(r"'descr': [^,]*,", lambda _: f"'descr': '{rng.choice(types)}',", header)
    elif kind == 1:
        shapes = ("()", "(0,)", "(-1,)", "(1,)", "(2,)", "(2, 2)", "(3, 0)", "(999999999999,)", "(2, " * 40 + "2" + ")" * 40, f"({'9' * 5000},)", "(1, " * 1 + "1)",
                  "(" + "1, " * 40 + ")", "(2, " + "1, " * 60 + ")", "(True,)", "[2]", "(2.0,)", "(2**3,)", "None", "(1 << 62, 4)", "(4611686018427387904, 4)")
        header = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {rng.choice(shapes)}", header)
    elif kind == 2:
        header = header.replace("False", rng.choice(("True", "None", "0", "1", "'x'")), 1)
    else:
        header = damaged(rng, header.encode()).decode("latin-1")[:60000]
    text = header.encode("latin-1", "replace") + b"\n"
    return content[:8] + len(text).to_bytes(2, "little") + text + content[10 + length:]


def damaged_safetensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header is damaged under a right length."""
    if rng.randrange(4) == 0:
        return damaged(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = damaged_json(rng, data[8:8 + length])
    return len(header).to_bytes(8, "little") + header + data[8 + length:]


def damaged_events(rng: random.Random, data: bytes) -> bytes:
    """TensorBoard records that are damaged under right checksums."""
    if rng.randrange(4) == 0:
        return damaged(rng, data)
    records = _records(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(1, len(records))   # the first one tells the version
        records[place] = _event(rng, records[place])
    return _framed(records)


def _records(data: bytes) -> list[bytes]:
    """The messages of an event file."""
    at, records = 0, []
    while at + 12 <= len(data):
        size, = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12:at + 12 + size])
        at += 16 + size
    return records


def _framed(records: list[bytes]) -> bytes:
    """The event file of messages."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    framed = []
    for record in records:
        size = struct.pack("<Q", len(record))
        framed.append(size + struct.pack("<I", masked_crc32c(size)) + record + struct.pack("<I", masked_crc32c(record)))
    return b"".join(framed)


def _without_time(data: bytes) -> bytes:
    """An event file that is the same whenever it is made."""
    from tensorboard.compat.proto import event_pb2
    events = [event_pb2.Event.FromString(record) for record in _records(data)]
    for event in events:
        event.wall_time = 0.0
    return _framed([event.SerializeToString() for event in events])


def _event(rng: random.Random, record: bytes) -> bytes:
    """An event with a damaged message, or a right message of odd values."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2
    try:
        event = event_pb2.Event.FromString(record)
    except DecodeError:
        return record   # it is damaged already
    if rng.randrange(2):
        return damaged(rng, record)[:4096]
    numbers = (0.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf"), 1e300)
    event.step = rng.choice((event.step, 0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1))
    for value in event.summary.value:
        if rng.randrange(2):
            value.tag = rng.choice((value.tag, "", "\x1b]0;t\x07", "train/loss", "a_max", "a_min", "a_numel", "loss_scale", "x" * 5000, "../x", "fc1_activation_max"))
        if value.HasField("histo"):
            for name in ("min", "max", "num", "sum", "sum_squares"):
                if rng.randrange(3) == 0:
                    setattr(value.histo, name, rng.choice(numbers))
        elif rng.randrange(2):
            value.simple_value = rng.choice(numbers)
        else:
            tensor = value.tensor
            tensor.dtype = rng.choice((1, 2, 3, 7, 8, 9, 10, 14, 19, 20, 23, 99))
            for _ in range(rng.randrange(3)):
                tensor.tensor_shape.dim.add().size = rng.choice((0, 1, 2, 3, -1, 1 << 40))
            if rng.randrange(2):
                tensor.float_val.extend(rng.choice(numbers[:1] + numbers[3:6]) for _ in range(rng.randrange(4)))
            if rng.randrange(2):
                tensor.tensor_content = bytes(rng.randrange(256) for _ in range(rng.choice((0, 4, 8, 12))))
            if rng.randrange(3) == 0:
                tensor.string_val.append(b"\xff\x1b")
            if rng.randrange(3) == 0:
                value.metadata.plugin_data.plugin_name = "histograms"
    return event.SerializeToString()


def journal_record(kind: bytes, payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, kind, len(payload))
    return head + CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def damaged_journal(rng: random.Random, data: bytes) -> bytes:
    """Records that are damaged under right checksums; or moved, or doubled."""
    if rng.randrange(5) == 0:
        return damaged(rng, data)
    records = [(kind, bytes(payload)) for kind, payload in read_records(data)]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(records))
        kind, payload = records[at]
        edit = rng.randrange(8)
        if edit == 0:
            records.insert(rng.randrange(len(records) + 1), records.pop(at))
        elif edit == 1:
            records += [records[at]] * rng.choice((1, 300))
        elif edit == 2:
            records[at] = rng.choice((b"H", b"P", b"N", b"S", b"R", b"E", b"X", b"\xff")), payload
        elif edit == 3 and kind == b"S":   # many steps without a row
            records[at + 1:at + 1] = [(b"S", STEP.pack(1000 + i, *[0.0] * len(SERIES), 0)) for i in range(rng.choice((3, 3000)))]
        elif edit == 4 and kind == b"P":   # many probes
            probe = {"kind": "gradient", "format": "FP32", "shape": []}
            records[at:at] = [(b"P", json.dumps({**probe, "index": i, "name": f"p{i}"}).encode()) for i in range(7, rng.choice((9, 3000)))]
        elif kind in b"HPNE":
            records[at] = kind, damaged_json(rng, payload)
        else:
            records[at] = kind, damaged(rng, payload)
    return b"".join(journal_record(*record) for record in records)


def compressed(rng: random.Random, data: bytes) -> bytes:
    """The file as it came from somewhere: compressed, once or twice, or in another encoding, sometimes damaged then."""
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        how = rng.randrange(7)
        if how <= 3:
            data = (_gzipped, bz2.compress, lzma.compress, _zipped)[how](data)
        elif how == 4:
            data = data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32")))
        elif how == 5:
            data = _gzipped(data + bytes(rng.choice((0, 1 << 16, 1 << 24))))
        if rng.randrange(4) == 0:
            data = damaged(rng, data)
    return data


def _gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _zipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("a.log"), data, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


# --- targets ---------------------------------------------------------------------------------------------------------------

class Wrong(Exception):
    """What a reader did that it must not."""


@dataclass(frozen=True)
class Target:
    """read: what reads the file; raises Wrong, or what a reader must not raise. samples: file name and content."""
    what: str
    read: Callable[[Path, random.Random], str]   # "ok" or "error"
    samples: list[tuple[str, bytes]] = field(repr=False)
    damage: Callable[[random.Random, bytes], bytes]


def check_text(text: str, file: str, most: int = 2000) -> None:
    """Whether an error is one line that may stand in a terminal, names the file and a remedy, and is short. Raises Wrong."""
    if file not in text:
        raise Wrong(f"an error that does not name the file: {text[:200]!r}")
    if not text.isprintable():
        raise Wrong(f"an error with control characters: {text[:200]!r}")
    if "; " not in text.replace(file, "", 1):
        raise Wrong(f"an error without a remedy: {text[:200]!r}")
    if len(text) - text.count(file) * len(file) > most:
        raise Wrong(f"an error of {len(text)} characters: {text[:200]!r}")
    if "memory" in text:
        raise Wrong(f"out of memory: {text[:200]!r}")


def _caught(action: Callable[[], object], path: Path, *errors: type) -> str:
    try:
        action()
    except errors as error:
        check_text(str(error), str(path))
        return "error"
    return "ok"


def _import(importer: str | None) -> Callable[[Path, random.Random], str]:
    """Reads by the command itself, exit status and output included."""
    def read(path: Path, rng: random.Random) -> str:
        out = path.parent / "out"
        options = ["--from", importer] if importer else []
        for option in (["--restarts", "last"], ["--raw"], ["--format", "FP16"], ["--match", "."]):
            options += option if rng.randrange(6) == 0 else []
        shown, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
            status = import_main([str(path), "--out", f"{out}/", *options])
        for text in (shown.getvalue(), told.getvalue()):
            if not all(c.isprintable() or c == "\n" for c in text):
                raise Wrong(f"control characters in the output: {text[:200]!r}")
        written = sorted(out.iterdir()) if out.is_dir() else []
        shutil.rmtree(out, ignore_errors=True)
        if status == 2:
            if written or shown.getvalue() or told.getvalue().count("\n") != 1:
                raise Wrong(f"status 2, but {len(written)} files and {shown.getvalue()[:99]!r}, {told.getvalue()[:200]!r}")
            check_text(told.getvalue()[:-1], str(path))
            return "error"
        if status != 0 or told.getvalue() or not written:
            raise Wrong(f"status {status}, {len(written)} files, {told.getvalue()[:200]!r}")
        if not all(re.fullmatch(r"[\w.-]+\.safetensors", file.name, re.A) for file in written):
            raise Wrong(f"files of these names: {[file.name for file in written][:5]}")
        return "ok"
    return read


def _trace(path: Path, rng: random.Random) -> str:
    def read():
        trace = Trace.read(path)
        if Trace.parse(trace.to_bytes(str(path)), str(path)).to_bytes() != trace.to_bytes():
            raise Wrong("a trace that is another one once it is written")
    return _caught(read, path, TraceError)


def _journal(path: Path, rng: random.Random) -> str:
    return _caught(lambda: read_journal(path).to_bytes(str(path)), path, CaptureError, TraceError)


PROGRAM = Path(os.environ.get("OPD_READ_FILES", Path(__file__).resolve().parents[3] / "build" / "testbench" / "tests" / "system" / "read_files"))


class _Cpp:
    """The C++ reader of a kind of file beside the Python one: the same verdict in the same words. One process reads file after file."""

    def __init__(self, kind: str, read: Callable[[Path], object], *errors: type):
        self._kind, self._read, self._errors = kind, read, errors
        self._process: subprocess.Popen | None = None

    def __call__(self, path: Path, rng: random.Random) -> str:
        answer = self._answer(path)
        if answer != "ok":
            check_text(answer, str(path))
        try:
            self._read(path)
            told = "ok"
        except self._errors as error:
            told = str(error)
        if answer != told:
            differ = next((i for i, pair in enumerate(zip(answer, told)) if pair[0] != pair[1]), 0)
            raise Wrong(f"two readers, two texts: C++ {answer[len(str(path)) + 2:][:300]!r}, Python {told[len(str(path)) + 2:][:300]!r}, from {differ}")
        return "ok" if answer == "ok" else "error"

    def _answer(self, path: Path) -> str:
        if self._process is None:
            self._process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._process.stdin.write(f"{self._kind} {path}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], 4 * SECONDS)
            piece = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                self._process.kill()
                status, self._process = self._process.wait(), None
                raise Wrong(f"the C++ reader ended by status {status}" if ready else f"the C++ reader took more than {4 * SECONDS} s")
            answer += piece
        return answer[:-1].decode("utf-8", "backslashreplace")


def journal_sample() -> bytes:
    """Every kind of record: two probes, one with elements, three steps, the notes of an incident."""
    full = row_type(True)
    def rows(*values):
        return np.array([(*value, *[0] * (len(full) - len(value))) for value in values], full).tobytes()
    def step(number, *values):
        return STEP.pack(number, 2.5, 1.0, 0.5, 1024.0, 15) + rows(*values)
    header = {"version": VERSION, "full": True, "seed": "1", "framework": "f", "name": "run", "model": "m", "label": None,
              "manifest": {"probes": "key"}}
    probes = [{"index": 0, "name": "fc", "kind": "activation", "format": "FP16", "shape": [2]},
              {"index": 1, "name": "fc.grad", "kind": "gradient", "format": "FP32", "shape": []}]
    note = {"step": 2, "incident": {"text": "t", "advice": "a"}, "order": [0], "lr": [1.0, 2.0], "groups": [[1, "w"], [2, "v"]]}
    records = [(b"H", header), *((b"P", probe) for probe in probes), (b"S", step(0, (0, 2, 1.5, 0), (1, 1, 0.5, 0))),
               (b"S", step(1, (0, 2, 2.5, 0))), (b"R", RAW.pack(1, 0) + np.float16([1, -2.5]).tobytes()), (b"N", note),
               (b"S", step(2, (0, 2, 2.5, 1), (1, 1, 0.5, 0))), (b"E", {"complete": True})]
    return b"".join(journal_record(kind, json.dumps(item).encode() if isinstance(item, dict) else item) for kind, item in records)


CONFIG = b'{"format": "opd-config", "version": 1, "profile": "forecast", "config": {"risk_safe": 200, "z_threshold": 3.5}, "calibration": {"a": 1}}\n'
LABELS = b"""\
[runs.overflow]
class = "gradual"
split = "held-out"
first_bad_step = 235
first_bad_op = "block.2.attn.qk"
decided = "computed: 91 steps below 4 bits before"
event_step = 230
[runs."b c"]
class = "injected"
split = "tuning"
decided = "planted"
incident = "none"
"""


def targets() -> dict[str, Target]:
    """Every target by name. The samples are those of the tests of each format."""
    import test_import_formats
    import test_import_logs
    import test_trace
    with tempfile.TemporaryDirectory() as folder:
        files = test_import_formats.samples(Path(folder))
    by_importer: dict[str, list[tuple[str, bytes]]] = {name: [] for name in IMPORTERS}
    for file, importer, content in files.values():
        if importer == "tensorboard":
            file, content = "events.out.tfevents.1.host.1.0", _without_time(content)
        by_importer[importer].append((file, re.sub(rb"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d+", b"2026-01-01 10:00:00,000", content)))
    examples = list(test_import_logs.EXAMPLES.values())
    by_importer["training-log"] += [("tools.log", "\n".join(examples[at:at + 8]).encode() + b"\n") for at in range(0, len(examples), 8)]
    damage = {"msprobe-dump": damaged_json, "inc-measurement": damaged_json, "jsonl": damaged_json, "npz": damaged_zip,
              "safetensors": damaged_safetensors, "tensorboard": damaged_events}
    found = {name: Target(f"opd import --from {name}", _import(name), samples, damage.get(name, damaged))
             for name, samples in by_importer.items()}
    every = [sample for samples in by_importer.values() for sample in samples]
    found["detect"] = Target("opd import: what a file is, and what is compressed", _import(None), every,
                             lambda rng, data: compressed(rng, damaged(rng, data)))
    found["trace"] = Target("opd.trace", _trace, [("sample.safetensors", test_trace.sample().to_bytes())], damaged_safetensors)
    found["config"] = Target("opd.device_config", lambda path, rng: _caught(lambda: device_config.read(path), path, device_config.ConfigFileError),
                             [("device.json", CONFIG)], damaged_json)
    found["labels"] = Target("opd.evaluate, labels.toml", lambda path, rng: _caught(lambda: read_labels(path), path, CorpusError),
                             [("labels.toml", LABELS)], damaged)
    found["journal"] = Target("opd.capture, journals", _journal, [("run.safetensors.journal", journal_sample())], damaged_journal)
    if PROGRAM.exists():
        found["trace-c++"] = Target("traces in C++, with the words of opd.trace", _Cpp("trace", Trace.read, TraceError),
                                    [("sample.safetensors", test_trace.sample().to_bytes()), ("operands.safetensors", test_trace.operand_sample().to_bytes())],
                                    damaged_safetensors)
        found["config-c++"] = Target("device configurations in C++, with the words of opd.device_config",
                                     _Cpp("config", device_config.read, device_config.ConfigFileError), [("device.json", CONFIG)], damaged_json)
    return found


# --- runs ------------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Finding:
    """What one case did. key: the same for cases that fail at the same place."""
    target: str
    number: int
    key: str
    text: str


@dataclass
class Result:
    """Of all cases of a target."""
    cases: int = 0
    read: int = 0         # gave a result; the others gave a documented error, or are findings
    seconds: float = 0.0
    slowest: float = 0.0  # processor time of a case
    findings: list[Finding] = field(default_factory=list)


def case(target: str, targets_: dict[str, Target], seed: int, number: int) -> tuple[str, bytes, random.Random]:
    """File name and content of a case, and what is left of its randomness."""
    rng = random.Random(f"{seed} {target} {number}")
    name, content = rng.choice(targets_[target].samples)
    return name, targets_[target].damage(rng, content), rng


def run(name: str, targets_: dict[str, Target], seed: int, cases: int | None = None, seconds: float = float("inf"), first: int = 0) -> Result:
    """Cases first, first + 1, ... of a target, until there are that many or the time is over."""
    result, begin = Result(), time.monotonic()
    number, last = first, float("inf") if cases is None else first + cases
    while number < last and time.monotonic() - begin < seconds:
        number = _run_child(name, targets_, seed, number, last, begin + seconds, result)
    result.seconds = time.monotonic() - begin
    return result


def _run_child(name: str, targets_: dict[str, Target], seed: int, first: int, last: float, end: float, result: Result) -> int:
    """Runs cases in a child until it ends; the number of the next case."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as report:
            status = 1
            try:
                _child(name, targets_, seed, first, last, end, report)
                status = 0
            except BaseException:   # of this module: a reader's are caught where it is called
                traceback.print_exc()
            finally:
                report.flush()
                os._exit(status)
    os.close(writing)
    number = first
    with open(reading, encoding="utf-8") as report:
        for line in report:
            number, outcome, took, key, text = json.loads(line)
            result.cases += 1
            result.slowest = max(result.slowest, took)
            result.read += outcome == "ok"
            if outcome == "finding":
                result.findings.append(Finding(name, number, key, text))
            number += 1
    _, status = os.waitpid(child, 0)
    if status:   # the case that it was at
        result.cases += 1
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        result.findings.append(Finding(name, number, f"{name}: ended by {ended}", f"the process was ended by {ended}"))
        number += 1
    return number


class _TooSlow(BaseException):
    pass


def _child(name: str, targets_: dict[str, Target], seed: int, first: int, last: float, end: float, report) -> None:
    def too_slow(*_):
        raise _TooSlow
    signal.signal(signal.SIGPROF, too_slow)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    importers_run.MAX_CELLS = reader.MOST_CELLS = MOST_CELLS
    folder = Path(tempfile.mkdtemp(prefix="opd-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        number = first
        while number < last and time.monotonic() < end:
            file, content, rng = case(name, targets_, seed, number)
            path = folder / file
            path.write_bytes(content)
            used = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 4 * SECONDS, resource.RLIM_INFINITY))  # where no signal gets through
            outcome, key, text = _outcome(targets_[name], path, rng)
            stray = [other for other in folder.iterdir() if other != path]
            if stray and outcome != "finding":
                outcome, key, text = "finding", f"{name}: stray files", f"left {stray[0].name}"
            for other in (path, *stray):
                shutil.rmtree(other) if other.is_dir() else other.unlink()
            report.write(json.dumps([number, outcome, time.process_time() - used, key, text]) + "\n")
            report.flush()
            number += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(target: Target, path: Path, rng: random.Random) -> tuple[str, str, str]:
    """"ok", "error" or "finding", and of a finding its key and text."""
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            return target.read(path, rng), "", ""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (Exception, _TooSlow) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/opd/" in frame.filename]
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        if isinstance(error, Wrong):
            return "finding", re.sub(r"[\d'\"].*", "", str(error))[:60] + str(error)[-60:-50], str(error)
        what = f"more than {SECONDS} s" if isinstance(error, _TooSlow) else type(error).__name__
        return "finding", f"{what} at {places[-1] if places else '?'}", f"{what}: {str(error)[:200]}, at {' < '.join(reversed(places[-4:]))}"


def distinct(findings: list[Finding]) -> Iterator[tuple[Finding, int]]:
    """The first finding of each kind, and how many there are."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.key] = counts.get(finding.key, 0) + 1
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.key, finding)
    for key, finding in first.items():
        yield finding, counts[key]
