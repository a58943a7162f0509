"""The file an importer reads, and the error it raises.

A file is read once, whole; what compressed it (gzip, bzip2, xz, a zip of one file) is undone, within bounds, and UTF-16 and
UTF-32 text becomes UTF-8. Its SHA-256 is that of the bytes on disk, so that a trace can name its source.

What a file may cost is bounded: MAX_BYTES of it, MAX_VALUES that it tells, MAX_DIGITS of a number, MAX_WRONG characters of it in an
error.
"""
from __future__ import annotations

import bz2
import codecs
import csv
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from opd.texts import printable, quoted

MAX_BYTES = 4 << 30    # of a file, also after decompression; telemetry is megabytes, and a compressed file may claim anything
MAX_VALUES = 1 << 23   # cells of a table, values of JSON, lines of a report: each takes up to a kilobyte in memory
MAX_DIGITS = 300       # of a whole number in JSON; a double ends at 309
MAX_WRONG = 500        # characters of an error that say what is wrong: texts of a file and of libraries have no end of their own
MAX_RATIO = 200        # decompressed to compressed bytes, above FREE_BYTES: logs have 5 to 50
FREE_BYTES = 256 << 20
MAX_LAYERS = 4         # a gzip in a zip in ...
HEAD_BYTES = 1 << 16
READ_BYTES = 1 << 20
ENDINGS = (".gz", ".bz2", ".xz", ".zip")
STEP_IN_PATH = re.compile(r"step[_-]?(\d{1,9})(?!\d)")  # the folder "step12" of a dump, "checkpoint-step-12.npz"

COPY_AGAIN = "the file is damaged or cut off: copy it again"


class ImportFault(ValueError):
    """A file that cannot be imported. The text is "FILE:PLACE: what is wrong; remedy"; PLACE is the line, or "record N" of a
    binary file, and absent where the whole file is meant."""

    def __init__(self, file: str, place: int | str | None, wrong: str, remedy: str):
        where = file if place is None else f"{file}:{place}"
        if len(wrong) > MAX_WRONG:
            wrong = wrong[:MAX_WRONG] + "..."
        super().__init__(printable(f"{where}: {wrong}; {remedy}").replace("\n", "?"))
        self.file = file
        self.place = place


@dataclass(frozen=True)
class Source:
    """A file to import: its path as given, its content (decompressed) and the SHA-256 of what lies on disk."""
    path: str
    data: bytes
    sha256: str

    @staticmethod
    def open(path: str | os.PathLike) -> Source:
        """Reads the file. Raises ImportFault."""
        file = os.fspath(path)
        try:
            if not Path(file).is_file() and Path(file).exists():
                wrong = "is a directory" if Path(file).is_dir() else "is not a regular file"
                raise ImportFault(file, None, wrong, "give the path of a file")
            if Path(file).stat().st_size > MAX_BYTES:
                raise ImportFault(file, None, "has more than 4 GiB", "split it, and import the parts with --join")
            data = Path(file).read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, ImportFault):
                raise
            reason = os.strerror(error.errno) if isinstance(error, OSError) else str(error)
            raise ImportFault(file, None, f"cannot be opened ({reason})", "check the path and its permissions") from None
        digest = hashlib.sha256(data).hexdigest()
        data = _utf8(_unpacked(data, file))
        if not data.strip():
            raise ImportFault(file, None, "is empty", COPY_AGAIN)
        return Source(file, data, digest)

    @property
    def head(self) -> bytes:
        """The first bytes, enough to recognise a format."""
        return self.data[:HEAD_BYTES]

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = Path(self.path).name
        for ending in ENDINGS:
            name = name.removesuffix(ending)
        return name.rsplit(".", 1)[0] if "." in name[1:] else name

    def step_of_path(self) -> int | None:
        """The step that the path tells, innermost name first: "step12/rank0/dump.json" is 12."""
        for part in reversed(Path(self.path).parts):
            found = STEP_IN_PATH.search(part)
            if found:
                return int(found[1])
        return None

    def fail(self, place: int | str | None, wrong: str, remedy: str):
        raise ImportFault(self.path, place, wrong, remedy)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number (from 1) and text of each line, without its end. UTF-8; a byte that is not is an error with its line."""
        for number, line in enumerate(self._split(), 1):
            if number > MAX_VALUES:
                self.fail(number, f"more than {MAX_VALUES} lines", _SPLIT)
            if b"\0" in line:
                self.fail(number, "holds a NUL byte: not a text", COPY_AGAIN)
            try:
                yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                self.fail(number, "is not UTF-8 text", "convert the file to UTF-8, or copy it again if it is damaged")

    def _split(self) -> Iterator[bytes]:
        """The lines, as of bytes.split, but one after the other."""
        at = 0
        while (end := self.data.find(b"\n", at)) >= 0:
            yield self.data[at:end]
            at = end + 1
        yield self.data[at:]

    def bound(self, count: int, what: str) -> None:
        """Refuses a file that tells more values than are read. Raises ImportFault."""
        if count > MAX_VALUES:
            self.fail(None, f"holds {count} {what}, more than {MAX_VALUES}", _SPLIT)

    def bound_json(self) -> None:
        """The same of JSON, before it is parsed: each value but the first stands behind a bracket or a comma."""
        self.bound(sum(map(self.data.count, (b",", b"[", b"{"))), "values")

    def output_lines(self) -> Iterator[tuple[int, str]]:
        """As lines(), for what a job printed: bytes that are no text (a hole of NUL bytes that a crashed node left, another
        process's output) become U+FFFD, and no error; UTF-16 that was appended to UTF-8 is read."""
        for number, line in enumerate(io.BytesIO(self.data), 1):
            if b"\0" in line:
                appended = b"\0\0" not in line and line.count(0) > 0.4 * len(line)
                line = line.replace(b"\0", b"") if appended else re.sub(rb"\0+", b"\xff", line)
            yield number, line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8", "replace")

    def json(self):
        """The JSON value of the file; NaN and Infinity are numbers, as Python's json module writes them."""
        self.bound_json()
        try:
            text = self.data.decode("utf-8-sig")
            return json.loads(text, object_pairs_hook=unique, parse_int=_whole)
        except UnicodeDecodeError as error:
            self.fail(self.line_at(error.start), "is not UTF-8 text", COPY_AGAIN)
        except DuplicateKey as error:
            self.fail(self.line_of(error.key), str(error), COPY_AGAIN)
        except RecursionError:
            self.fail(None, "JSON nested too deep", COPY_AGAIN)
        except json.JSONDecodeError as error:
            self.fail(error.lineno, f"not valid JSON: {error.msg}", COPY_AGAIN)
        except LongNumber as error:
            self.fail(self.line_at(self.data.find(error.digits.encode())), str(error), "correct the number")

    def line_at(self, offset: int) -> int:
        """The line of a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    def line_of(self, key: str) -> int | None:
        """The line where the JSON key first stands, for an error about its value."""
        spellings = (json.dumps(key, ensure_ascii=False).encode("utf-8", "surrogatepass"), json.dumps(key).encode())
        return next((self._texts[text] for text in spellings if text in self._texts), None)

    @functools.cached_property
    def _texts(self) -> dict[bytes, int]:
        """Every text of JSON in the file, as it stands there, and the line where it first does."""
        lines: dict[bytes, int] = {}
        line, at = 1, 0
        for found in _JSON_TEXT.finditer(self.data):
            line, at = line + self.data.count(b"\n", at, found.start()), found.start()
            lines.setdefault(found[0], line)
        return lines


def csv_cells(source: Source, number: int, line: str, delimiter: str = ",") -> list[str]:
    """The cells of one line of a CSV file."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        source.fail(number, f"not valid CSV: {error}", COPY_AGAIN)


_SPLIT = "split it, and import the parts with --join"
_JSON_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)


class LongNumber(ValueError):
    """A whole number in JSON that has more than MAX_DIGITS digits."""

    def __init__(self, digits: str):
        super().__init__(f"a whole number of {len(digits.lstrip('-'))} digits")
        self.digits = digits


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise LongNumber(digits)
    return int(digits)


def whole_or_real(digits: str) -> int | float:
    """A whole number in JSON; one of more than MAX_DIGITS digits is beyond a double, which is Inf. For json's parse_int."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


class DuplicateKey(ValueError):
    """A key that stands twice in one JSON object."""

    def __init__(self, key: str):
        super().__init__(f"key {quoted(key)} stands twice in one object")
        self.key = key


def unique(pairs: list[tuple[str, object]]) -> dict:
    """The object of its keys and values, for the json module's object_pairs_hook. Raises DuplicateKey."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        raise DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return result


_COMPRESSIONS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_UNREAD = {b"\x28\xb5\x2f\xfd": "Zstandard", b"\x04\x22\x4d\x18": "LZ4", b"7z\xbc\xaf\x27\x1c": "7-Zip", b"Rar!": "RAR"}
DAMAGED = (OSError, EOFError, ValueError, KeyError, IndexError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile)  # of what unpacks


def _unpacked(data: bytes, file: str) -> bytes:
    """What compressed data holds; other data as it is. Raises ImportFault."""
    for _ in range(MAX_LAYERS):
        opened = next((reader for magic, reader in _COMPRESSIONS.items() if data.startswith(magic)), None)
        if name := next((name for magic, name in _UNREAD.items() if data.startswith(magic)), None):
            raise ImportFault(file, None, f"is compressed by {name}", "decompress it and import what it holds")
        try:
            if opened is not None:
                with opened(io.BytesIO(data)) as stream:
                    data = read_bounded(stream, len(data), file)
            elif data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    member = _only_member(archive, file)
                    if member is None:
                        return data
                    with archive.open(member) as stream:
                        data = read_bounded(stream, len(data), file)
            else:
                return data
        except ImportFault:
            raise
        except DAMAGED as error:
            if data.startswith(b"PK") and b".npy" in data[:512]:
                return data   # the importer of arrays says what is wrong with it
            raise ImportFault(file, None, f"cannot be decompressed ({error})", COPY_AGAIN) from None
        except (NotImplementedError, RuntimeError) as error:
            raise ImportFault(file, None, f"cannot be unpacked ({error})", "unpack it and import what it holds") from None
    raise ImportFault(file, None, f"is compressed more than {MAX_LAYERS} times over", "decompress it and import what it holds")


def _only_member(archive: zipfile.ZipFile, file: str) -> zipfile.ZipInfo | None:
    """The one file of a zip; None for an archive of arrays, which an importer reads itself. Raises ImportFault."""
    members = [member for member in archive.infolist()
               if not member.is_dir() and not member.filename.startswith("__MACOSX/")
               and member.filename.rsplit("/", 1)[-1] != ".DS_Store"]
    if any(member.filename.endswith(".npy") for member in members):
        return None
    if len(members) != 1:
        names = ", ".join(quoted(member.filename) for member in members[:4]) + (", ..." if len(members) > 4 else "")
        holds = f"a zip of {len(members)} files: {names}" if members else "a zip that holds no file"
        raise ImportFault(file, None, f"is {holds}",
                          "unpack it and import the one you mean (several files of one run: with --join)")
    return members[0]


def read_bounded(stream: BinaryIO, compressed: int, file: str) -> bytes:
    """What a decompressing stream yields, at most MAX_BYTES and, above FREE_BYTES, MAX_RATIO times its compressed bytes.
    Raises ImportFault."""
    most = min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * compressed))
    content = bytearray()
    while part := stream.read(READ_BYTES):
        content += part
        if len(content) > most:
            limit = "4 GiB" if most == MAX_BYTES else f"{most >> 20} MiB, from {compressed} bytes"
            raise ImportFault(file, None, f"decompresses to more than {limit}",
                              "decompress it yourself, split it, and import the parts with --join")
    return bytes(content)


_MARKS = ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def _utf8(data: bytes) -> bytes:
    """UTF-16 or UTF-32 text, with or without a byte order mark, as UTF-8; anything else as it is."""
    mark, encoding = next(((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark)), (b"", None))
    if encoding is None:
        # Text of letters and digits has a zero byte in each 16-bit unit, on one side only, and no NUL character.
        head = data[:4096 & ~1]
        odd, even = head[1::2].count(0), head[::2].count(0)
        if len(head) < 4 or max(odd, even) < 0.9 * (len(head) // 2) or min(odd, even):
            return data
        encoding = "utf-16-le" if odd else "utf-16-be"
    unit = 4 if "32" in encoding else 2
    body = data[len(mark):]
    try:
        text = body[:len(body) - len(body) % unit].decode(encoding)   # a file may be cut within a character
    except UnicodeDecodeError:
        return data
    return data if "\0" in text else text.encode()
