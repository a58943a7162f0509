"""The append-only file a capture writes while the run lasts, and its conversion into a trace.

A journal is a sequence of records, each one 16 bytes of head (magic, kind, length, CRC-32 of all the rest) and a payload:

  H  JSON: texts of the trace, columns of the rows; the first record
  P  JSON: number, name, kind, format, shape of a probe; again when a step brings a larger shape, the last one counts
  S  one step: step number, series, and a fixed row of statistics per probe that ran
  R  elements of one probe in one step
  E  JSON: additions to the manifest; the last record of a run that ended

Every record is handed to the operating system whole: a killed process loses the step it was in, no more; a power cut what
the system had not written yet. A reader stops at the first record that is cut off or damaged, so every prefix is a trace.
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

from opd.capture.errors import CaptureError
from opd.trace import COUNTS, FORMATS, SERIES, Probe, Trace

SUFFIX = ".journal"
_HEAD = struct.Struct("<4sc3xI")
_CRC = struct.Struct("<I")
_MAGIC = b"opdj"
_STEP = struct.Struct(f"<q{len(SERIES)}dI")
_RAW = struct.Struct("<qI")
_CORE_ROW = [("probe", "<u4"), ("elements", "<u8"), ("max_abs", "<f4"), ("nonfinite", "<u8")]
_FULL_ROW = _CORE_ROW + [(name, "<f4") for name in ("min_abs", "mean", "var")] + [
    (name, "<u8") for name in ("saturated", "subnormal", "zero")]


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


class JournalWriter:
    """Creates FILE.journal beside the trace it will become. Raises CaptureError when that is not possible."""

    def __init__(self, path: Path, header: Mapping):
        self.path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CaptureError(f"{path}: cannot be created ({error.strerror}); give a path in a folder that can be written to") \
                from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however it ends
        except OSError:
            os.close(self._file)
            raise CaptureError(f"{path}: another running capture writes it; give every process a path of its own") from None
        os.ftruncate(self._file, 0)
        self._json(b"H", header)

    def probe(self, entry: ProbeEntry) -> None:
        self._json(b"P", {"index": entry.index, "name": entry.name, "kind": entry.kind, "format": entry.format,
                          "shape": list(entry.shape)})

    def step(self, step: int, series: Mapping[str, float], rows: np.ndarray) -> None:
        """series: absent ones are NaN here and left to the reader; rows: of row_type."""
        values = [series.get(name, np.nan) for name in SERIES]
        present = sum(1 << i for i, name in enumerate(SERIES) if name in series)
        self._append(b"S", _STEP.pack(step, *values, present) + rows.tobytes())

    def raw(self, step: int, entry: ProbeEntry, elements: bytes) -> None:
        self._append(b"R", _RAW.pack(step, entry.index) + elements)

    def sync(self) -> None:
        """Waits until the file is on the disk."""
        os.fsync(self._file)

    def end(self, manifest: Mapping) -> None:
        """Writes the last record and closes the file, in any case."""
        try:
            self._json(b"E", manifest)
        finally:
            os.close(self._file)

    def _json(self, kind: bytes, value: Mapping) -> None:
        self._append(kind, json.dumps(value).encode())

    def _append(self, kind: bytes, payload: bytes) -> None:
        head = _HEAD.pack(_MAGIC, kind, len(payload))
        data = memoryview(head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload)
        while data:  # a write may be short
            data = data[os.write(self._file, data):]


def read_records(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and payload of every whole record, up to the first one that is not."""
    view, at = memoryview(data), 0
    while at + _HEAD.size + _CRC.size <= len(view):
        magic, kind, length = _HEAD.unpack_from(view, at)
        begin = at + _HEAD.size + _CRC.size
        payload = view[begin:begin + length]
        crc, = _CRC.unpack_from(view, at + _HEAD.size)
        if magic != _MAGIC or len(payload) != length or zlib.crc32(payload, zlib.crc32(view[at:at + _HEAD.size])) != crc:
            return
        yield kind, payload
        at = begin + length


def read_journal(path: str | os.PathLike) -> Trace:
    """The trace a journal holds: all of its whole records. Raises CaptureError for a file that holds no step.

    A probe that did not run in a step repeats its last statistics (zeros before its first run) with no non-finite element, and
    the manifest lists those steps under `absent`: the format wants a value for every probe in every step.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror}); give the path of a capture's journal") from None
    header, manifest_end, entries, steps, raw = None, None, {}, [], {}
    for kind, payload in read_records(data):
        if kind == b"H":
            header = json.loads(bytes(payload))
        elif kind == b"P":
            item = json.loads(bytes(payload))
            entries[item["index"]] = ProbeEntry(item["index"], item["name"], item["kind"], item["format"], tuple(item["shape"]))
        elif kind == b"S":
            steps.append(payload)
        elif kind == b"R":
            step, index = _RAW.unpack_from(payload)
            raw.setdefault(step, {})[index] = payload[_RAW.size:]
        elif kind == b"E":
            manifest_end = json.loads(bytes(payload))
    if header is None:
        raise CaptureError(f"{path}: is not the journal of a capture; give a file that ends in {SUFFIX}")
    if not steps or not entries:
        raise CaptureError(f"{path}: holds no step; the run ended before its first c.step()")
    return _assemble(header, manifest_end, trace_order(entries.values()), steps, raw)


def _assemble(header: Mapping, manifest_end: Mapping | None, entries: list[ProbeEntry], steps: list, raw: Mapping) -> Trace:
    row = row_type(header["full"])
    members = [name for name in row.names if name not in ("probe", "elements")]
    position = np.full(max(entry.index for entry in entries) + 1, -1)
    position[[entry.index for entry in entries]] = np.arange(len(entries))
    shape = (len(steps), len(entries))
    number = np.empty(len(steps), np.int64)
    ran = np.zeros(shape, bool)
    values = {name: np.zeros(shape, np.int64 if name in COUNTS else np.float32) for name in members}
    series = np.full((len(steps), len(SERIES)), np.nan)
    present = 0
    for s, payload in enumerate(steps):
        number[s], *series[s], mask = _STEP.unpack_from(payload)
        present |= mask
        rows = np.frombuffer(payload, row, offset=_STEP.size)
        at = position[rows["probe"]]
        ran[s, at] = True
        for name in members:
            if s:
                values[name][s] = values[name][s - 1] * (name != "nonfinite")
            values[name][s, at] = rows[name]

    manifest = {**header["manifest"], **(manifest_end or {"complete": False})}
    absent = {entries[p].name: _ranges(number, ~ran[:, p]) for p in np.flatnonzero(~ran.all(axis=0))}
    if absent:
        manifest["absent"] = absent
    trace = Trace(name=header["name"], label=header["label"] or "healthy", model=header["model"], framework=header["framework"],
                  seed=header["seed"], manifest=manifest, step=number, **values,
                  probes=[Probe(entry.name, entry.kind, entry.format, entry.shape) for entry in entries])
    for i, name in enumerate(SERIES):
        if present >> i & 1:
            setattr(trace, name, _fill(name, series[:, i]).astype(np.float32))
    _add_raw(trace, entries, raw)
    forward = np.array([probe.kind == "activation" for probe in trace.probes])
    bad = np.argwhere((trace.nonfinite > 0) & forward)
    if len(bad):
        trace.first_bad_step = int(number[bad[0][0]])
        trace.first_bad_op = trace.probes[bad[0][1]].name
        trace.label = header["label"] or "sudden"
    return trace


def _fill(name: str, values: np.ndarray) -> np.ndarray:
    """A series without gaps: loss and grad_norm may be NaN; lr keeps its last value, loss_scale is 1 where there is none."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    if name == "loss_scale":
        return np.where(finite & (values > 0), values, 1.0)
    if name == "lr":
        last = np.maximum.accumulate(np.where(finite, np.arange(len(values)), -1))
        return np.where(last >= 0, values[last], 0.0)
    return values


def _ranges(number: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """[first, last] step of each run of true entries."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [[int(number[begin]), int(number[end - 1])] for begin, end in edges.reshape(-1, 2)]


def _add_raw(trace: Trace, entries: list[ProbeEntry], raw: Mapping) -> None:
    """Raw rows of the steps in which every raw probe ran with all of its elements."""
    elements = {entry.index: (entry, trace.probes[p].elements) for p, entry in enumerate(entries)}
    complete = {}
    for step, rows in raw.items():
        for index, data in rows.items():
            entry, count = elements[index]
            if len(data) == count * FORMATS[entry.format].numpy.itemsize:
                complete.setdefault(index, set()).add(step)
    recorded = set(trace.step.tolist())
    common = sorted(recorded.intersection(*complete.values())) if complete else []
    if common:
        trace.raw_step = np.array(common, np.int64)
        trace.raw = {elements[index][0].name: np.stack([np.frombuffer(raw[step][index], FORMATS[elements[index][0].format].numpy)
                                                        for step in common]) for index in sorted(complete)}


def recover(path: str | os.PathLike, out: str | os.PathLike | None = None) -> Path:
    """Turns the journal of a killed run into a trace and removes it. out: path of the trace; by default the journal's own
    name without `.journal`. Returns the path of the trace. Raises CaptureError, or TraceError when it cannot be written."""
    path = Path(path)
    if out is None:
        if path.suffix != SUFFIX:
            raise CaptureError(f"{path}: is not the journal of a capture; give a file that ends in {SUFFIX}")
        out = path.with_suffix("")
    trace = read_journal(path)
    trace.write(out)
    path.unlink()
    return Path(out)


def set_aside(path: Path) -> Path | None:
    """Recovers the journal a killed run left at `path`, if there is one, to a free name `STEM.killed-N.safetensors`, so that a
    restarted run loses nothing and may use its own path again. Returns that name; None when there is nothing to save.
    Raises CaptureError when a running capture writes the journal."""
    try:
        with path.open("rb") as stream:
            try:
                fcntl.lockf(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                raise CaptureError(f"{path}: another running capture writes it; give every process a path of its own") from None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror}); remove it, or give another path") from None
    trace = path.with_suffix("")
    number = 1
    while (target := trace.with_name(f"{trace.stem}.killed-{number}{trace.suffix}")).exists():
        number += 1
    try:
        return recover(path, target)
    except CaptureError:  # not one whole step
        path.unlink()
        return None
