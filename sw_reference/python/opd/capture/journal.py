"""The append-only file a capture writes while the run lasts. opd.capture.recovery makes a trace of it.

A journal is a sequence of records, each one 16 bytes of head (magic, kind, length, CRC-32 of all the rest) and a payload:

  H  JSON: version of the journal, texts of the trace, columns of the rows; the first record
  P  JSON: number, name, kind, format, shape of a probe; again when a step brings a larger shape, the last one counts
  N  JSON: what else is known of the step that follows, see STEP_NOTES
  S  one step: step number, series, and a fixed row of statistics per probe that ran
  R  elements of one probe in one step
  O  JSON: number of a probe and its `operator` (docs/formats.md), of how many executions; the last one counts; or the `name` of
     what was asked for and the sentence why it is `missing`
  T  operands of the operator of one probe in one step: JSON as in O, then the tensors in that order, then its output
  E  JSON: additions to the manifest; the last record of a run that ended

Every record is handed to the operating system whole: a killed process loses the step it was in, no more; a power cut what
the system had not written yet. A reader stops at the first record that is cut off or damaged, so every prefix is a trace.
A writer holds a lock on its journal (flock) until it has become a trace; whoever wants to remove a journal needs that lock.
"""
from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opd.capture.errors import BusyError, CaptureError
from opd.trace_layout import SERIES

SUFFIX = ".journal"
NOT_A_JOURNAL = f"is not the journal of a capture; give a file that ends in {SUFFIX}"
VERSION = 3  # 2 had no operands; the first one had no number, and neither notes nor an order of calls
HEAD = struct.Struct("<4sc3xI")
CRC = struct.Struct("<I")
MAGIC = b"opdj"
STEP = struct.Struct(f"<q{len(SERIES)}dI")
RAW = struct.Struct("<qI")
OPERANDS = struct.Struct("<qII")
_CORE_ROW = [("probe", "<u4"), ("elements", "<u8"), ("max_abs", "<f4"), ("nonfinite", "<u8")]
_FULL_ROW = _CORE_ROW + [(name, "<f4") for name in ("min_abs", "mean", "var")] + [
    (name, "<u8") for name in ("saturated", "subnormal", "zero")]

# Key of an N record -> what it says of its step.
STEP_NOTES = {
    "step": "number of the step",
    "incident": "texts `text` and `advice` of the first incident of the run; advice: which probes would show more, or null",
    "order": "numbers of the forward probes that are non-finite in the step of the incident, in the order of those calls",
    "lr": "learning rates of all parameter groups, where there are several and one has moved by more than 1 %",
    "groups": "number of parameters of each group, and name of the first, when that has changed",
    "no_optimizer_step": "the run went on without the optimizer's step",
    "unfinished": "the run ended within the step",
}

# Probes stand in the trace in this order of groups, within a group in the order of their first execution.
PHASES = {"activation": 0, "gradient": 1, "collective": 2, "weight": 3, "optimizer": 4}


@dataclass
class ProbeEntry:
    """One probe: its number in the order of discovery, and the largest shape it had in a step."""
    index: int
    name: str
    kind: str
    format: str
    shape: tuple[int, ...] = ()
    elements: int = 0


def trace_order(entries: Iterable[ProbeEntry]) -> list[ProbeEntry]:
    """Order in which probes stand in a trace: by phase of the step, within a phase as discovered."""
    return sorted(entries, key=lambda entry: (PHASES[entry.kind], entry.index))


def row_type(full: bool) -> np.dtype:
    """Type of one row of statistics."""
    return np.dtype(_FULL_ROW if full else _CORE_ROW)


def lock(descriptor: int, path: Path) -> None:
    """Takes the journal for this open file, until that is closed (in every process that inherited it). Raises BusyError when
    another one has it. A file system without locks has none to give: then nothing is checked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(path) from None
    except OSError:
        pass


def is_busy(path: Path) -> bool:
    """Whether a running capture writes the journal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for a writer
    except OSError:
        return False
    try:
        lock(descriptor, path)
        return False
    except BusyError:
        return True
    finally:
        os.close(descriptor)


class JournalWriter:
    """Creates FILE.journal beside the trace it will become. Raises CaptureError when that is not possible."""

    def __init__(self, path: Path, header: Mapping):
        self.path = path
        while True:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise CaptureError(f"{path}: cannot be created ({error.strerror}); give a path in a folder that can be written "
                                   "to") from None
            try:
                lock(self._file, path)
            except BusyError:
                os.close(self._file)
                raise
            if _is_at(self._file, path):
                break
            os.close(self._file)  # whoever had it before has just made a trace of it
        os.ftruncate(self._file, 0)
        self._size = 0
        self._json(b"H", {"version": VERSION, **header})

    def probe(self, entry: ProbeEntry) -> None:
        self._json(b"P", {"index": entry.index, "name": entry.name, "kind": entry.kind, "format": entry.format,
                          "shape": list(entry.shape)})

    def note(self, step: int, notes: Mapping) -> None:
        """notes: keys of STEP_NOTES; before the step itself."""
        self._json(b"N", {"step": step, **notes})

    def step(self, step: int, series: Mapping[str, float], rows: np.ndarray) -> None:
        """series: absent ones are NaN here and left to the reader; rows: of row_type."""
        values = [series.get(name, np.nan) for name in SERIES]
        present = sum(1 << i for i, name in enumerate(SERIES) if name in series)
        self._append(b"S", STEP.pack(step, *values, present) + rows.tobytes())

    def raw(self, step: int, entry: ProbeEntry, elements: bytes) -> None:
        self._append(b"R", RAW.pack(step, entry.index) + elements)

    def operator(self, entry: ProbeEntry, description: Mapping, executions: int) -> None:
        self._json(b"O", {"index": entry.index, "operator": description, "executions": executions})

    def missing_operands(self, name: str, why: str) -> None:
        self._json(b"O", {"name": name, "missing": why})

    def operands(self, step: int, entry: ProbeEntry, description: Mapping, executions: int, has_output: bool, data: bytes) -> None:
        """data: the operands in the order of the description, then the output where there is one."""
        text = json.dumps({"operator": description, "executions": executions, "output": has_output}).encode()
        self._append(b"T", OPERANDS.pack(step, entry.index, len(text)) + text + data)

    def sync(self) -> None:
        """Waits until the file is on the disk."""
        os.fsync(self._file)

    def end(self, manifest: Mapping) -> None:
        """Writes the last record. The journal stays locked until close()."""
        self._json(b"E", manifest)

    def close(self) -> None:
        """Gives the journal up. In a forked child: its copy of it, the parent keeps the lock."""
        os.close(self._file)

    def _json(self, kind: bytes, value: Mapping) -> None:
        self._append(kind, json.dumps(value).encode())

    def _append(self, kind: bytes, payload: bytes) -> None:
        head = HEAD.pack(MAGIC, kind, len(payload))
        data = memoryview(head + CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload)
        size = len(data)
        try:
            while data:  # a write may be short
                data = data[os.write(self._file, data):]
        except OSError:
            os.ftruncate(self._file, self._size)  # half a record would hide those that follow
            raise
        self._size += size


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def read_records(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and payload of every whole record, up to the first one that is not."""
    view, at = memoryview(data), 0
    while at + HEAD.size + CRC.size <= len(view):
        magic, kind, length = HEAD.unpack_from(view, at)
        begin = at + HEAD.size + CRC.size
        payload = view[begin:begin + length]
        crc, = CRC.unpack_from(view, at + HEAD.size)
        if magic != MAGIC or len(payload) != length or zlib.crc32(payload, zlib.crc32(view[at:at + HEAD.size])) != crc:
            return
        yield kind, payload
        at = begin + length
