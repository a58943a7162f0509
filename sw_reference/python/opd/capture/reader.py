"""The trace that a journal holds. It may be growing meanwhile: nothing is locked or changed."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opd.capture.errors import CaptureError, NoStepError
from opd.capture.journal import NOT_A_JOURNAL, OPERANDS, PHASES, RAW, STEP, VERSION, ProbeEntry, read_records, row_type, trace_order
from opd.strict_json import JsonFault, parse_json
from opd.trace import COUNTS, FORMATS, SERIES, Probe, Trace
from opd.trace_layout import LABELS, MASK, MAX_PROBES
from opd.traced_operators import OperatorFault, complete, read_operators


MOST_CELLS = 1 << 25  # steps x probes, where there are more of them than bytes: probes that ran in hardly any step


class _Fault(Exception):
    """What is wrong with a record, and the remedy."""

    def __init__(self, wrong: str, remedy: str = "the journal is damaged, or another program wrote it: copy it again"):
        super().__init__(f"{wrong}; {remedy}")


@dataclass
class _Operands:
    """Of one probe in one step. text: JSON of the operator and the number of its executions; data: see JournalWriter.operands."""
    text: str
    has_output: bool
    data: memoryview


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
    operators: dict[int, dict] = field(default_factory=dict)       # O records by probe
    missing: dict[str, str] = field(default_factory=dict)          # why asked for operands are not there
    operands: dict[int, dict[int, _Operands]] = field(default_factory=dict)  # by probe and step

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
        elif kind == b"O":
            self._operator(_object(payload))
        elif kind == b"T":
            self._tensors(payload)
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

    def _operator(self, item: Mapping) -> None:
        if "missing" in item:
            self.missing[_need(item, "name", str)] = _need(item, "missing", str)
            return
        index = _need(item, "index", int)
        self._known(index)
        self._check(item)
        self.operators[index] = {"operator": item["operator"], "executions": item["executions"]}

    def _tensors(self, payload: memoryview) -> None:
        if len(payload) < OPERANDS.size:
            raise _Fault("is too short")
        step, index, length = OPERANDS.unpack_from(payload)
        self._known(index)
        item = _object(payload[OPERANDS.size:OPERANDS.size + length])
        self._check(item)
        has_output = _need(item, "output", bool)
        data = payload[OPERANDS.size + length:]
        sizes = [_bytes_of_operand(name, operand) for name, operand in item["operator"]["operands"].items()]
        if len(data) < sum(sizes) or (len(data) == sum(sizes)) == has_output:
            raise _Fault("has not the bytes of its operands")
        text = _key({"operator": item["operator"], "executions": item["executions"]})
        self.operands.setdefault(index, {})[step] = _Operands(text, has_output, data)

    @staticmethod
    def _check(item: Mapping) -> None:
        if _need(item, "executions", int) < 1:
            raise _Fault("has no execution")
        try:
            operator = complete({"probe": "", **_need(item, "operator", dict)})
            whole = [operator["rows"], operator["columns"], operator.get("batch", 1)]
            for name, operand in operator["operands"].items():
                whole += operand["shape"]
                _operand_type(name, operand)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            whole = [None]
        if not all(type(n) is int and n > 0 for n in whole):
            raise _Fault("has no operator as docs/formats.md describes it")

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


def _key(item: Mapping) -> str:
    return json.dumps(item, sort_keys=True)


def _bytes_of_operand(name: str, operand: Mapping) -> int:
    return math.prod(operand["shape"]) * _operand_type(name, operand).itemsize


def _operand_type(name: str, operand: Mapping) -> np.dtype:
    return np.dtype(np.uint8) if name == MASK else FORMATS[operand["format"]].numpy


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
    if "operands" in header["manifest"]:
        _add_operators(trace, entries, content, None if incident is None else incident["step"])
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


def _add_operators(trace: Trace, entries: list[ProbeEntry], content: _Content, incident: int | None) -> None:
    """The operators of all probes, and the operands of those that have them in the same steps: a trace has one list of steps."""
    missing = dict(content.missing)
    names = {entry.index: entry.name for entry in entries}
    known = {}  # by probe: those whose shape is that of the probe in the trace
    for entry, probe in zip(entries, trace.probes):
        item = content.operators.get(entry.index)
        if item is None:
            continue
        try:
            read_operators(json.dumps([{"probe": probe.name, **item["operator"]}]), [probe], tuple(FORMATS))
            known[entry.index] = item
        except OperatorFault as fault:
            if entry.index in content.operands:
                missing.setdefault(entry.name, f"a trace cannot hold its operator: {fault.args[0]} {fault.args[1]}")
    recorded = set(trace.step.tolist())
    steps = {index: {step for step, operands in content.operands.get(index, {}).items()
                     if step in recorded and operands.text == _key(item)} for index, item in known.items()}
    common, chosen = _common_steps({index: own for index, own in steps.items() if own}, incident)
    for index, own in steps.items():
        everywhere = set(content.operands.get(index, {}))
        if index not in chosen and everywhere:
            missing.setdefault(names[index], "it has operands in other steps than the others, "
                               f"of which the trace holds steps {_shown_steps(common)}" if own else
                               "its shapes or attributes were others in each step with operands")
        elif everywhere - set(common):
            missing.setdefault(names[index], f"not in steps {_shown_steps(sorted(everywhere - set(common)))}: other operators were "
                               "not there, or its shapes or attributes were others")
    trace.operators = [complete({"probe": names[index], **item["operator"]}) for index, item in known.items()]
    if common:
        trace.operand_step = np.array(common, np.int64)
        for index in (index for index in known if index in chosen):
            _add_elements(trace, entries, index, known[index]["operator"], [content.operands[index][step] for step in common])
    manifest = trace.manifest["operands"] = dict(trace.manifest["operands"])
    executions = {names[index]: item["executions"] for index, item in known.items() if item["executions"] > 1}
    if executions:
        manifest["executions"] = executions
    if missing:
        manifest["missing"] = missing
    if content.end is None and incident is None and manifest.get("ring"):
        manifest["lost"] = ("the run had no incident and did not end by itself: the operands of its last "
                            f"{manifest['ring']} steps were in its memory only")


def _common_steps(steps: Mapping[int, set[int]], incident: int | None) -> tuple[list[int], set[int]]:
    """Steps in which all of the chosen probes have operands, and these probes: those of the incident's step, where some have it;
    then as many probes as leave a step, those with more steps first."""
    if any(incident in own for own in steps.values()):
        steps = {index: own for index, own in steps.items() if incident in own}
    common: set[int] = set()
    chosen: set[int] = set()
    for index, own in sorted(steps.items(), key=lambda item: -len(item[1])):
        rest = own & common if chosen else own
        if rest:
            common = rest
            chosen.add(index)
    return sorted(common), chosen


def _shown_steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:10])) + (", ..." if len(steps) > 10 else "")


def _add_elements(trace: Trace, entries: list[ProbeEntry], index: int, operator: Mapping, rows: Sequence[_Operands]) -> None:
    entry = next(entry for entry in entries if entry.index == index)
    at, own = 0, {}
    for name, operand in operator["operands"].items():
        kind, count = _operand_type(name, operand), math.prod(operand["shape"])
        own[name] = np.stack([np.frombuffer(row.data, kind, count, at).reshape(operand["shape"]) for row in rows])
        at += _bytes_of_operand(name, operand)
    trace.operands[entry.name] = own
    if all(row.has_output for row in rows):
        trace.outputs[entry.name] = np.stack([np.frombuffer(row.data, FORMATS[entry.format].numpy, offset=at) for row in rows])
