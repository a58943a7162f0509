"""The trace that a journal holds. It may be growing meanwhile: nothing is locked or changed."""
from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opd.capture.errors import CaptureError, NoStepError
from opd.capture.journal import NOT_A_JOURNAL, PHASES, RAW, STEP, VERSION, ProbeEntry, read_records, row_type, trace_order
from opd.strict_json import JsonFault, parse_json
from opd.trace import COUNTS, FORMATS, SERIES, Probe, Trace
from opd.trace_layout import LABELS, MAX_PROBES


MOST_CELLS = 1 << 25  # steps x probes, where there are more of them than bytes: probes that ran in hardly any step


class _Fault(Exception):
    """What is wrong with a record, and the remedy."""

    def __init__(self, wrong: str, remedy: str = "the journal is damaged, or another program wrote it: copy it again"):
        super().__init__(f"{wrong}; {remedy}")


@dataclass
class _Content:
    """The records of a journal, checked one by one."""
    header: Mapping | None = None
    end: Mapping | None = None
    entries: dict[int, ProbeEntry] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    series: list[tuple[float, ...]] = field(default_factory=list)
    present: list[int] = field(default_factory=list)               # masks of the series that each step has
    rows: list[np.ndarray] = field(default_factory=list)
    raw: dict[int, dict[int, memoryview]] = field(default_factory=dict)
    notes: list[dict] = field(default_factory=list)

    def add(self, kind: bytes, payload: memoryview) -> None:
        """Raises _Fault."""
        if self.header is None and kind != b"H":
            raise _Fault("comes before the header")
        if kind == b"H":
            self._header(_object(payload))
        elif kind == b"P":
            self._probe(_object(payload))
        elif kind == b"N":
            self._note(_object(payload))
        elif kind == b"S":
            self._step(payload)
        elif kind == b"R":
            if len(payload) < RAW.size:
                raise _Fault("is too short")
            step, index = RAW.unpack_from(payload)
            self._known(index)
            self.raw.setdefault(step, {})[index] = payload[RAW.size:]
        elif kind == b"E":
            self.end = _object(payload)
        else:
            raise _Fault("is of an unknown kind")

    def _header(self, item: Mapping) -> None:
        version = item.get("version", 1)
        if version != VERSION:
            raise _Fault(f"is that of a journal of version {_shown(version)}, and this opd reads version {VERSION}",
                         "recover it with the opd that wrote it")
        _need(item, "full", bool)
        for name in ("seed", "framework", "name", "model"):
            _need(item, name, str)
        _need(item, "manifest", dict)
        if item.get("label") is not None and item["label"] not in LABELS:
            raise _Fault(f"label {_shown(item['label'])} is none")
        self.header, self._type = item, row_type(item["full"])

    def _probe(self, item: Mapping) -> None:
        index, name = _need(item, "index", int), _need(item, "name", str)
        kind, form, shape = _need(item, "kind", str), _need(item, "format", str), _need(item, "shape", list)
        if not 0 <= index < MAX_PROBES:
            raise _Fault(f"index {index} is not in 0..{MAX_PROBES - 1}")
        if kind not in PHASES or form not in FORMATS:
            raise _Fault(f"kind {_shown(kind)} or format {_shown(form)} is none")
        if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) >= 1 << 63:
            raise _Fault("shape is not a list of positive numbers")
        self.entries[index] = ProbeEntry(index, name, kind, form, tuple(shape))

    def _known(self, index: int) -> None:
        if index not in self.entries:
            raise _Fault(f"is of probe {index}, which no record before it describes")

    def _step(self, payload: memoryview) -> None:
        if len(payload) < STEP.size or (len(payload) - STEP.size) % self._type.itemsize:
            raise _Fault("has no whole number of rows")
        number, *series, present = STEP.unpack_from(payload)
        if not (self.numbers[-1] if self.numbers else -1) < number < 1 << 32:
            raise _Fault(f"step {number} does not follow the one before")
        rows = np.frombuffer(payload, self._type, offset=STEP.size)
        for index in rows["probe"].tolist():
            self._known(index)
        self.numbers.append(number)
        self.series.append(tuple(series))
        self.present.append(present)
        self.rows.append(rows)

    def _note(self, item: Mapping) -> None:
        _need(item, "step", int)
        if "incident" in item:
            incident = _need(item, "incident", dict)
            _need(incident, "text", str)
            if incident.get("advice") is not None:
                _need(incident, "advice", str)
        for index in _need(item, "order", list) if "order" in item else ():
            if type(index) is not int:
                raise _Fault("order is not a list of probes")
        for name in ("lr", "groups"):
            if name in item:
                _need(item, name, list)
        if not all(type(value) in (int, float, str) for value in item.get("lr", ())):
            raise _Fault("lr is not a list of numbers")
        for group in item.get("groups", ()):
            if not (isinstance(group, list) and len(group) == 2 and type(group[0]) is int and isinstance(group[1], str)):
                raise _Fault("groups is not a list of parameter groups")
        self.notes.append(item)


def _object(payload: memoryview) -> dict:
    try:
        value = parse_json(bytes(payload).decode())
    except (JsonFault, UnicodeDecodeError):
        raise _Fault("is not JSON") from None
    if not isinstance(value, dict):
        raise _Fault("is not a JSON object")
    return value


def _need(item: Mapping, name: str, kind: type):
    if type(item.get(name)) is not kind:
        raise _Fault(f"{name} is missing or is no {kind.__name__}")
    return item[name]


def _shown(value) -> str:
    return repr(value)[:40]


def read_journal(path: str | os.PathLike) -> Trace:
    """The trace a journal holds: all of its whole records. It may be growing meanwhile. Raises CaptureError for a file that is
    no journal, is one of another version or holds records that no capture writes; NoStepError for one without a step.

    A probe that did not run in a step repeats its last statistics (zeros before its first run) with no non-finite element, and
    the manifest lists those steps under `absent`: the format wants a value for every probe in every step.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise CaptureError(f"{path}: is no regular file; give the path of a capture's journal")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror}); give the path of a capture's journal") from None
    content = _Content()
    for number, (kind, payload) in enumerate(read_records(data)):
        try:
            content.add(kind, payload)
        except _Fault as fault:
            raise CaptureError(f"{path}: record {number} ({kind.decode(errors='replace')}) {fault}") from None
    if content.header is None:
        raise CaptureError(f"{path}: {NOT_A_JOURNAL}")
    if not any(map(len, content.rows)):
        raise NoStepError(f"{path}: holds no step; the run ended before its first c.step()")
    cells = len(content.numbers) * len(content.entries)
    if cells > max(MOST_CELLS, len(data)):
        raise CaptureError(f"{path}: holds {len(content.numbers)} steps of {len(content.entries)} probes, {cells} values in {len(data)} bytes; "
                           "the journal is damaged, or another program wrote it: copy it again")
    return _assemble(content)


def _assemble(content: _Content) -> Trace:
    header, number = content.header, np.array(content.numbers, np.int64)
    steps = set(content.numbers)
    notes = [note for note in content.notes if note["step"] in steps]  # the step itself may have been cut off
    incident = next((note for note in notes if "incident" in note), None)
    entries = trace_order(content.entries.values())
    if incident is not None:
        entries = _in_order_of_calls(entries, incident.get("order", ()))
    members = [name for name in row_type(header["full"]).names if name not in ("probe", "elements")]
    position = np.full(max(content.entries) + 1, -1)
    position[[entry.index for entry in entries]] = np.arange(len(entries))
    shape = (len(number), len(entries))
    ran = np.zeros(shape, bool)
    values = {name: np.zeros(shape, np.int64 if name in COUNTS else np.float32) for name in members}
    for s, rows in enumerate(content.rows):
        at = position[rows["probe"]]
        ran[s, at] = True
        for name in members:
            if s:
                values[name][s] = values[name][s - 1] * (name != "nonfinite")
            values[name][s, at] = rows[name]

    manifest = {**header["manifest"], **(content.end or {"complete": False}), **_manifest_of(notes, incident)}
    absent = {entries[p].name: _ranges(number, ~ran[:, p]) for p in np.flatnonzero(~ran.all(axis=0))}
    if absent:
        manifest["absent"] = absent
    trace = Trace(name=header["name"], label=header.get("label") or ("healthy" if incident is None else "sudden"),
                  model=header["model"], framework=header["framework"], seed=header["seed"], manifest=manifest, step=number,
                  **values, probes=[Probe(entry.name, entry.kind, entry.format, entry.shape) for entry in entries])
    _add_series(trace, content)
    _add_raw(trace, entries, content.raw)
    forward = np.array([probe.kind == "activation" for probe in trace.probes])
    bad = np.argwhere((trace.nonfinite > 0) & forward)
    if len(bad):
        trace.first_bad_step = int(number[bad[0][0]])
        trace.first_bad_op = trace.probes[bad[0][1]].name
    return trace


def _in_order_of_calls(entries: list[ProbeEntry], order: Sequence[int]) -> list[ProbeEntry]:
    """Probes of modules that ran many times in a step stand where their first call was. When the one that was the first to be
    non-finite would stand behind another that was non-finite after it, those of them exchange their places."""
    at = {entry.index: i for i, entry in enumerate(entries)}
    order = [index for index in order if index in at and entries[at[index]].kind == "activation"]
    places = sorted(at[index] for index in order)
    if order and at[order[0]] != places[0]:
        moved = [entries[at[index]] for index in order]
        entries = list(entries)
        for place, entry in zip(places, moved):
            entries[place] = entry
    return entries


def _manifest_of(notes: Sequence[Mapping], incident: Mapping | None) -> dict:
    """What the notes add to the manifest: nothing for a run in which nothing was unusual."""
    manifest = {}
    if incident is not None and not incident.get("order"):  # else first_bad_step and first_bad_op say it
        manifest["incident"] = {"step": incident["step"], **{key: text for key, text in incident["incident"].items() if text}}
    skipped = [note["step"] for note in notes if note.get("no_optimizer_step")]
    if skipped:
        manifest["no_optimizer_step"] = skipped
    for note in notes:
        if note.get("unfinished"):
            manifest["unfinished_step"] = note["step"]
    groups = []
    for note in notes:
        for g, description in enumerate(note.get("groups", ())):
            if g == len(groups):
                groups.append({"lr": []})
            groups[g] |= {"parameters": description[0], "first": description[1]}
        for group, lr in zip(groups, note.get("lr", ())):
            if not group["lr"] or group["lr"][-1][1] != lr:
                group["lr"].append([note["step"], lr])
    if groups:
        manifest["lr_groups"] = groups
    return manifest


def _add_series(trace: Trace, content: _Content) -> None:
    """The series that some step has. Where one is missing the value before is repeated, and the manifest lists those steps under
    `missing`: what nobody saw must not look like what the run saw."""
    values, masks = np.array(content.series), np.array(content.present)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32).astype(np.float64)  # what is beyond FP32 is Inf there
    for i, name in enumerate(SERIES):
        given = (masks >> i & 1).astype(bool)
        if not given.any():
            continue
        setattr(trace, name, _fill(name, values[:, i], given).astype(np.float32))
        if name in ("loss", "grad_norm") and not given.all():
            trace.manifest.setdefault("missing", {})[name] = _ranges(trace.step, ~given)


def _fill(name: str, values: np.ndarray, given: np.ndarray) -> np.ndarray:
    """A series without gaps: a given loss or grad_norm stays what it is, NaN too; else the last finite value is kept, before
    the first one that one. loss_scale is 1 where there is none."""
    finite = np.isfinite(values) & given
    if name == "loss_scale":
        return np.where(finite & (values > 0), values, 1.0)
    if not finite.any():
        return np.where(given, values, 0.0) if name in ("loss", "grad_norm") else np.zeros(len(values))
    last = np.maximum.accumulate(np.where(finite, np.arange(len(values)), -1))
    filled = values[np.where(last >= 0, last, np.argmax(finite))]
    return np.where(given, values, filled) if name in ("loss", "grad_norm") else filled


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
