"""The file an importer reads, and the error it raises.

A file is read once, whole; gzip is undone. Its SHA-256 is that of the bytes on disk, so that a trace can name its source.
"""
from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opd.texts import quoted

MAX_BYTES = 4 << 30  # after decompression; telemetry is megabytes, and a compressed file may claim anything
HEAD_BYTES = 1 << 16
STEP_IN_PATH = re.compile(r"step[_-]?(\d{1,9})(?!\d)")  # the folder "step12" of a dump, "checkpoint-step-12.npz"

COPY_AGAIN = "the file is damaged or cut off: copy it again"


class ImportFault(ValueError):
    """A file that cannot be imported. The text is "FILE:PLACE: what is wrong; remedy"; PLACE is the line, or "record N" of a
    binary file, and absent where the whole file is meant."""

    def __init__(self, file: str, place: int | str | None, wrong: str, remedy: str):
        where = file if place is None else f"{file}:{place}"
        super().__init__(f"{where}: {wrong}; {remedy}")
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
            data = Path(file).read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, ImportFault):
                raise
            reason = os.strerror(error.errno) if isinstance(error, OSError) else str(error)
            raise ImportFault(file, None, f"cannot be opened ({reason})", "check the path and its permissions") from None
        digest = hashlib.sha256(data).hexdigest()
        if data[:2] == b"\x1f\x8b":
            data = _decompress(data, file)
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
        name = Path(self.path).name.removesuffix(".gz")
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
        for number, line in enumerate(self.data.split(b"\n"), 1):
            if b"\0" in line:
                self.fail(number, "holds a NUL byte: not a text", COPY_AGAIN)
            try:
                yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                self.fail(number, "is not UTF-8 text", "convert the file to UTF-8, or copy it again if it is damaged")

    def json(self):
        """The JSON value of the file; NaN and Infinity are numbers, as Python's json module writes them."""
        try:
            text = self.data.decode("utf-8-sig")
            return json.loads(text, object_pairs_hook=_unique)
        except UnicodeDecodeError as error:
            self.fail(self.line_at(error.start), "is not UTF-8 text", COPY_AGAIN)
        except _DuplicateKey as error:
            self.fail(self.line_of(error.key), f"key {quoted(error.key)} stands twice in one object", COPY_AGAIN)
        except RecursionError:
            self.fail(None, "JSON nested too deep", COPY_AGAIN)
        except json.JSONDecodeError as error:
            self.fail(error.lineno, f"not valid JSON: {error.msg}", COPY_AGAIN)

    def line_at(self, offset: int) -> int:
        """The line of a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    def line_of(self, key: str) -> int | None:
        """The line where the JSON key first stands, for an error about its value."""
        at = self.data.find(json.dumps(key, ensure_ascii=False).encode())
        if at < 0:
            at = self.data.find(json.dumps(key).encode())
        return None if at < 0 else self.line_at(at)


def csv_cells(source: Source, number: int, line: str, delimiter: str = ",") -> list[str]:
    """The cells of one line of a CSV file."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        source.fail(number, f"not valid CSV: {error}", COPY_AGAIN)


class _DuplicateKey(Exception):
    def __init__(self, key: str):
        super().__init__(key)
        self.key = key


def _unique(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        raise _DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return result


def _decompress(data: bytes, file: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ImportFault(file, None, f"cannot be decompressed ({error})", COPY_AGAIN) from None
    if len(content) > MAX_BYTES:
        raise ImportFault(file, None, "decompresses to more than 4 GiB", "split it")
    return content
