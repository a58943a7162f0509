"""Trace files (docs/formats.md "Trace"): reader, writer and validation, twin of opd/trace/*.hpp in C++.

A trace holds S steps x P probes of statistics and optional raw elements in one safetensors file. Reading validates all of it
and executes nothing. Both languages check the same rules in the same order and say the same words.

Deterministic: the same content gives the same bytes, in both languages: JSON keys sorted, no white space, header padded with
spaces to 8 bytes, tensors in the order of the safetensors library.
"""
from __future__ import annotations

import json
import math
import mmap
import operator
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import safetensors

from opd.file_kind import file_kind, is_foreign
from opd.files import NotRegular, write_whole
from opd.strict_json import JsonFault, parse_json
from opd.texts import quoted
from opd.trace_layout import COUNTS, KINDS, LABELS, MASK, MAX_PROBES, SERIES, VALUES
from opd.traced_operators import OperatorFault, complete, read_operators

MAX_HEADER_BYTES = 64 << 20
STATISTICS_BLOCK = 1 << 22  # elements of which statistics are taken at once


@dataclass(frozen=True)
class FormatLayout:
    """One row of the table in docs/numerics.md "Formats"."""
    dtype: str             # safetensors name
    numpy: np.dtype        # element type of raw rows
    max_value: np.float32  # largest finite magnitude


FORMATS = {
    "FP16": FormatLayout("F16", np.dtype(np.float16), np.float32(65504)),
    "BF16": FormatLayout("BF16", np.dtype(ml_dtypes.bfloat16), np.float32(float.fromhex("0x1.FEp127"))),
    "E4M3": FormatLayout("F8_E4M3", np.dtype(ml_dtypes.float8_e4m3fn), np.float32(448)),
    "E5M2": FormatLayout("F8_E5M2", np.dtype(ml_dtypes.float8_e5m2), np.float32(57344)),
    "FP32": FormatLayout("F32", np.dtype(np.float32), np.float32(float.fromhex("0x1.FFFFFEp127"))),
}

# Bytes per element of every safetensors dtype that is known here.
DTYPE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
               "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}

_TENSORS = ("step", *COUNTS, *VALUES, *SERIES, "raw_step", "operand_step")
_NUMPY = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}
_MASK_LAYOUT = FormatLayout("U8", np.dtype(np.uint8), np.float32(1))

_REWRITE = "write the file with opd.trace or a safetensors library"
_COPY_AGAIN = "the file is damaged or cut off: copy or capture it again"
_CAPTURE = "capture the trace again with opd.trace"
_TARGET = "check the folder, its permissions and the free space"


class TraceError(ValueError):
    """A trace that cannot be used. The text is "FILE: FIELD: what is wrong; remedy", one line of printable text."""

    def __init__(self, file: str, field: str, wrong: str, remedy: str):
        super().__init__(f"{file}: {field}: {wrong}; {remedy}")
        self.file = file
        self.field = field


@dataclass(frozen=True)
class Probe:
    """One probed operator; its position in the list is its op id."""
    name: str
    kind: str               # one of KINDS
    format: str             # one of FORMATS
    shape: tuple[int, ...]  # positive integers; () is one element

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass
class Trace:
    """Content of a trace file. Absent optional members are None (dictionaries and lists: empty)."""
    name: str
    label: str
    probes: Sequence[Probe]
    step: np.ndarray                        # int64 [S]
    max_abs: np.ndarray                     # float32 [S, P]
    nonfinite: np.ndarray                   # int64 [S, P]
    first_bad_step: int | None = None       # training step of the first non-finite forward value ...
    first_bad_op: str | None = None         # ... and the name of its probe
    model: str = ""
    framework: str = ""
    seed: str = ""
    manifest: dict = field(default_factory=dict)
    saturated: np.ndarray | None = None     # int64 [S, P]
    subnormal: np.ndarray | None = None
    zero: np.ndarray | None = None
    min_abs: np.ndarray | None = None       # float32 [S, P]
    mean: np.ndarray | None = None
    var: np.ndarray | None = None
    loss: np.ndarray | None = None          # float32 [S]
    grad_norm: np.ndarray | None = None
    lr: np.ndarray | None = None
    loss_scale: np.ndarray | None = None
    raw_step: np.ndarray | None = None      # int64 [R]
    raw: dict[str, np.ndarray] = field(default_factory=dict)  # probe name -> [R, elements] in the probe's format
    # How operators are computed: entries of docs/formats.md "Operators and operands"; read back with every default written out
    operators: list[dict] = field(default_factory=list)
    operand_step: np.ndarray | None = None  # int64 [R]
    # probe name -> operand name -> [R, rows, columns] in the operand's format, a mask uint8
    operands: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)  # probe name -> [R, elements] in the probe's format

    @staticmethod
    def read(path: str | os.PathLike) -> Trace:
        """Reads and validates a trace file; raw rows stay in the mapped file. Raises TraceError."""
        file = os.fspath(path)
        return _parse(_map_file(file), file)

    @staticmethod
    def parse(data: bytes, file: str) -> Trace:
        """The same for bytes in memory; `file` is the name that errors carry."""
        return _parse(data, file)

    def to_bytes(self, file: str = "trace") -> bytes:
        """The bytes of the trace file. Raises TraceError, under the name `file`, when the content is not a valid trace."""
        data = _serialize(self, file)
        _parse(data, file)
        return data

    def write(self, path: str | os.PathLike) -> None:
        """Writes the trace file, replacing what is there: a temporary file beside it, synchronised, renamed.
        Raises TraceError; then the target is as it was."""
        file = os.fspath(path)
        data = self.to_bytes(file)
        try:
            write_whole(file, data)
        except NotRegular as error:
            raise TraceError(file, "file", error.strerror, "give the path of a file") from None
        except OSError as error:
            raise TraceError(file, "file", f"cannot be written ({error.strerror})", _TARGET) from None


class TraceWriter:
    """Collects a trace step by step, as a capture does.

    Every step must bring the same members. first_bad_step and first_bad_op are found here: the first non-finite activation,
    in order of steps and probes.
    """

    def __init__(self, name: str, label: str, probes: Sequence[Probe], *, model: str = "", framework: str = "",
                 seed: str = "", manifest: dict | None = None, operators: Sequence[dict] = ()):
        self._operators = list(operators)
        self._texts = dict(name=name, label=label, model=model, framework=framework, seed=seed, manifest=manifest or {})
        self._probes = list(probes)
        self._steps: list[int] = []
        self._members: dict[str, list] = {}
        self._raw_steps: list[int] = []
        self._raw: dict[str, list[np.ndarray]] = {}
        self._operand_steps: list[int] = []
        self._operands: dict[str, dict[str, list[np.ndarray]]] = {}
        self._outputs: dict[str, list[np.ndarray]] = {}

    def add_step(self, step: int, *, raw: Mapping[str, np.ndarray] | None = None,
                 operands: Mapping[str, Mapping[str, np.ndarray]] | None = None,
                 outputs: Mapping[str, np.ndarray] | None = None, **members) -> None:
        """One training step.

        members: max_abs and nonfinite, optionally saturated, subnormal, zero, min_abs, mean, var: P numbers each, in order of
        the probes; optionally loss, grad_norm, lr, loss_scale: one number each. raw: elements by probe name, any shape, in the
        probe's format; the same probes at every step that has them. operands: arrays [rows, columns] by probe and operand
        name; outputs: elements by probe name; the same ones at every step that has operands. Raises TraceError.
        """
        where = f"step {step}"
        for member in members:
            if member not in (*COUNTS, *VALUES, *SERIES):
                self._fail(where, f"{quoted(member)} is not a member of a step", "correct its name")
        if self._steps and members.keys() != self._members.keys():
            changed = ", ".join(sorted(members.keys() ^ self._members.keys()))
            self._fail(where, f"{changed}: not in every step", "give every step the same members")
        if raw and self._raw and raw.keys() != self._raw.keys():
            changed = ", ".join(sorted(raw.keys() ^ self._raw.keys()))
            self._fail(where, f"raw rows of {changed}: not in every step that has raw rows", "give the same probes each time")
        operands = {probe: {name: np.array(values) for name, values in own.items()} for probe, own in (operands or {}).items()}
        outputs = {probe: np.array(values).ravel() for probe, values in (outputs or {}).items()}
        self._check_operands(where, operands, outputs)
        rows = {}
        formats = {probe.name: probe.format for probe in self._probes}
        for name, elements in (raw or {}).items():
            elements = np.asarray(elements)
            if name in formats and elements.dtype != FORMATS[formats[name]].numpy:
                self._fail(where, f"raw rows of {quoted(name)} have type {elements.dtype}", f"give {formats[name]} elements")
            rows[name] = elements.ravel().copy()
        for member, value in members.items():
            shape = () if member in SERIES else (len(self._probes),)
            value = np.asarray(value)
            if value.shape != shape:
                self._fail(where, f"{member} has shape {list(value.shape)} instead of {list(shape)}", "give one value a probe")
            if member in COUNTS and value.dtype.kind not in "iu":
                self._fail(where, f"{member} has type {value.dtype} instead of int64", "give whole numbers")
            self._members.setdefault(member, []).append(value.copy())
        self._steps.append(operator.index(step))
        for name, row in rows.items():
            if self._raw.get(name) and self._raw[name][0].size != row.size:
                self._fail(where, f"raw rows of {quoted(name)} change size", "give every element of the probe")
            self._raw.setdefault(name, []).append(row)
        if rows:
            self._raw_steps.append(operator.index(step))
        for probe, own in operands.items():
            for name, values in own.items():
                self._operands.setdefault(probe, {}).setdefault(name, []).append(values)
        for probe, values in outputs.items():
            self._outputs.setdefault(probe, []).append(values)
        if operands:
            self._operand_steps.append(operator.index(step))

    def _check_operands(self, where: str, operands: dict[str, dict[str, np.ndarray]], outputs: dict[str, np.ndarray]) -> None:
        """What the steps before had: operands and outputs are stacked, and a step has all of them or none."""
        given = {f"operand/{probe}/{name}": values for probe, own in operands.items() for name, values in own.items()}
        given |= {f"output/{probe}": values for probe, values in outputs.items()}
        before = {f"operand/{probe}/{name}": rows[0] for probe, own in self._operands.items() for name, rows in own.items()}
        before |= {f"output/{probe}": rows[0] for probe, rows in self._outputs.items()}
        if outputs and not operands:
            self._fail(where, "outputs without operands", "give the operands of the operators as well")
        if not given or not before:
            return
        if given.keys() != before.keys():
            changed = ", ".join(sorted(given.keys() ^ before.keys()))
            self._fail(where, f"{changed}: not in every step that has operands", "give the same operands each time")
        for name, values in given.items():
            if (values.shape, values.dtype) != (before[name].shape, before[name].dtype):
                self._fail(where, f"{quoted(name)} changes from {before[name].dtype} {list(before[name].shape)} to {values.dtype} "
                           f"{list(values.shape)}", "give the same shape and type each time")

    def finish(self) -> Trace:
        """The trace collected so far; it is validated when it is written."""
        shape = (len(self._steps), len(self._probes))
        arrays = {}
        for member in ("max_abs", "nonfinite", *(set(self._members) - {"max_abs", "nonfinite"})):
            dtype = np.int64 if member in COUNTS else np.float32
            values = self._members.get(member, [])
            with np.errstate(over="ignore"):  # what is beyond FP32 is Inf there
                arrays[member] = np.array(values, dtype).reshape((len(values),) if member in SERIES else (len(values), shape[1]))
        trace = Trace(probes=self._probes, step=np.array(self._steps, np.int64), **arrays, **self._texts)
        if self._raw:
            trace.raw_step = np.array(self._raw_steps, np.int64)
            trace.raw = {name: np.stack(rows) for name, rows in self._raw.items()}
        trace.operators = self._operators
        if self._operand_steps:
            trace.operand_step = np.array(self._operand_steps, np.int64)
            trace.operands = {probe: {name: np.stack(rows) for name, rows in own.items()}
                              for probe, own in self._operands.items()}
            trace.outputs = {probe: np.stack(rows) for probe, rows in self._outputs.items()}
        forward = np.array([probe.kind == "activation" for probe in self._probes], bool)
        bad = np.argwhere((trace.nonfinite > 0) & forward)
        if len(bad):
            trace.first_bad_step = int(trace.step[bad[0][0]])
            trace.first_bad_op = self._probes[bad[0][1]].name
        return trace

    def write(self, path: str | os.PathLike) -> None:
        """finish() and Trace.write()."""
        self.finish().write(path)

    def _fail(self, field: str, wrong: str, remedy: str):
        raise TraceError(self._texts["name"], field, wrong, remedy)


def element_statistics(elements: np.ndarray) -> dict[str, float | int]:
    """Statistics of one operator output as a trace holds them. `elements`: any shape, at least one element, numpy type of one
    of FORMATS. Returns max_abs, min_abs, mean, var (of the finite elements, population variance, 0 when there is none; beyond
    FP32 they are Inf) and the counts."""
    flat = np.asarray(elements).ravel()
    if flat.size > STATISTICS_BLOCK:
        return _statistics_of_blocks([flat[at:at + STATISTICS_BLOCK] for at in range(0, flat.size, STATISTICS_BLOCK)])
    layout = next(row for row in FORMATS.values() if row.numpy == flat.dtype)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = flat.astype(np.float64)
    finite = values[np.isfinite(values)]
    magnitude = np.abs(finite)
    nonzero = magnitude[magnitude > 0]
    smallest_normal = float(ml_dtypes.finfo(flat.dtype).smallest_normal)
    with np.errstate(over="ignore"):
        return dict(
            max_abs=float(magnitude.max(initial=0.0)), min_abs=float(nonzero.min()) if nonzero.size else 0.0,
            mean=float(np.float32(finite.mean())) if finite.size else 0.0,
            var=float(np.float32(finite.var())) if finite.size else 0.0,
            nonfinite=int(values.size - finite.size), saturated=int((magnitude == float(layout.max_value)).sum()),
            subnormal=int((nonzero < smallest_normal).sum()), zero=int(finite.size - nonzero.size))


def _statistics_of_blocks(blocks: Sequence[np.ndarray]) -> dict[str, float | int]:
    """The same block by block: a tensor of gigabytes takes a few of its own size in binary64 otherwise. The mean comes first, then the
    squares of what differs from it, as in one piece."""
    of_blocks = [element_statistics(block) for block in blocks]
    result = {name: sum(statistics[name] for statistics in of_blocks) for name in COUNTS}
    result["max_abs"] = max(statistics["max_abs"] for statistics in of_blocks)
    result["min_abs"] = min((low for statistics in of_blocks if (low := statistics["min_abs"]) > 0), default=0.0)
    count = sum(map(len, blocks)) - result["nonfinite"]

    def mean_of(value):
        total = 0.0
        for block in blocks:
            with np.errstate(invalid="ignore"):
                values = block.astype(np.float64)
            total += float(value(values[np.isfinite(values)]).sum())
        return total / count if count else 0.0

    mean = mean_of(lambda finite: finite)
    with np.errstate(over="ignore"):
        var = mean_of(lambda finite: np.square(finite - mean))
        result["mean"], result["var"] = float(np.float32(mean)), float(np.float32(var))
    return result


# --- container -------------------------------------------------------------------------------------------------------------

def _choice(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


def _shape_text(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape[:8])) + (", ...]" if len(shape) > 8 else "]")


def _is_size(value) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _map_file(file: str):
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for a writer
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) else str(error)
        raise TraceError(file, "file", f"cannot be opened ({reason})", "check the path and its permissions") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            wrong = "is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
            raise TraceError(file, "file", wrong, "give the path of a trace file")
        if status.st_size == 0:
            raise TraceError(file, "file", "is empty", _COPY_AGAIN)
        try:
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise TraceError(file, "file", f"cannot be mapped ({os.strerror(error.errno)})",
                             "free memory or copy the file to a local disk") from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    shape: list[int]
    data: memoryview


def _read_container(data, file: str) -> tuple[dict[str, str], dict[str, _Tensor]]:
    """Metadata and tensors of a safetensors file; every rule of the container is checked."""
    def fail(field, wrong, remedy=_REWRITE):
        raise TraceError(file, field, wrong, remedy)

    def refuse_foreign():
        if is_foreign(view):
            what, remedy = file_kind(view)
            fail("file", "is not a safetensors file" + (f", but {what}" if what else ""), remedy)

    view = memoryview(data)
    if len(view) < 8:
        refuse_foreign()
        fail("header length", "the file is shorter than the 8 bytes of the length", _COPY_AGAIN)
    header_bytes = int.from_bytes(view[:8], "little")
    if header_bytes > MAX_HEADER_BYTES:
        refuse_foreign()
        fail("header length", f"{header_bytes} bytes, more than the 64 MiB allowed")
    if header_bytes > len(view) - 8:
        refuse_foreign()
        fail("header length", f"{header_bytes} bytes, but only {len(view) - 8} follow", _COPY_AGAIN)
    body = view[8 + header_bytes:]
    try:
        header = parse_json(str(view[8:8 + header_bytes], "utf-8", "surrogateescape"))
    except JsonFault as fault:
        if file_kind(view).what:
            refuse_foreign()
        fail("header", str(fault))
    if not isinstance(header, dict) or view[8] != ord("{"):
        fail("header", "is not a JSON object that starts at its first byte")

    metadata, tensors, extents = {}, {}, []
    for name in sorted(header):
        value = header[name]
        if name == "__metadata__":
            if not isinstance(value, dict):
                fail("__metadata__", "is not an object")
            for key in sorted(value):
                if not isinstance(value[key], str):
                    fail("__metadata__", f"{quoted(key)} is not a string")
            metadata = value
            continue
        field = f"tensor {quoted(name)}"
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            fail(field, "is not an object of dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str):
            fail(field, "dtype is not a string")
        if dtype not in DTYPE_BYTES:
            fail(field, f"unknown dtype {quoted(dtype)}")
        if not isinstance(shape, list):
            fail(field, "shape is not a list")
        if not all(map(_is_size, shape)):
            fail(field, "shape holds a value that is not a size")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))
                and offsets[0] <= offsets[1]):
            fail(field, "data_offsets is not a pair [begin, end] with begin <= end")
        begin, end = offsets
        bound = DTYPE_BYTES[dtype]
        for extent in shape:  # stops early: a product of many huge sizes would take for ever
            bound *= max(extent, 1)
            if bound >= 1 << 64:
                fail(field, "shape overflows 64 bits")
        size = 0 if 0 in shape else bound
        if size != end - begin:
            fail(field, f"data_offsets span {end - begin} bytes, but shape and dtype make {size}")
        if end > len(body):
            fail(field, f"ends at byte {end} of the data, past its {len(body)} bytes", _COPY_AGAIN)
        tensors[name] = _Tensor(dtype, shape, body[begin:end])
        extents.append((begin, end, name))

    # Back to back from byte 0 to the end: then no two tensors share a byte and no byte is hidden.
    covered = 0
    for begin, end, name in sorted(extents):
        if begin != covered:
            fail(f"tensor {quoted(name)}", "overlaps another tensor" if begin < covered else "leaves a gap before its data")
        covered = end
    if covered != len(body):
        fail("file", f"{len(body) - covered} bytes after the last tensor")
    return metadata, tensors


# --- trace -----------------------------------------------------------------------------------------------------------------

class _Reader:
    """Validation in the order of the C++ reader; each step raises TraceError."""

    def __init__(self, data, file: str):
        self.file = file
        self.metadata, self.tensors = _read_container(data, file)

    def fail(self, field: str, wrong: str, remedy: str):
        raise TraceError(self.file, field, wrong, remedy)

    def read(self) -> Trace:
        manifest = self.read_metadata()
        self.probes = self.read_probes()
        self.op_ids = {probe.name: op for op, probe in enumerate(self.probes)}
        self.operators = self.read_operators()
        self.step = self.read_steps()
        statistics = self.read_statistics()
        series = self.read_series()
        raw_step, raw = self.read_raw()
        operands = self.read_operands()
        texts = {key: self.metadata[key] for key in ("name", "label", "model", "framework", "seed")}
        first_bad_step, first_bad_op = self.read_first_bad(statistics["nonfinite"])
        return Trace(**texts, manifest=manifest, probes=self.probes, step=self.step, **statistics, **series,
                     raw_step=raw_step, raw=raw, operators=list(self.operators.values()), **operands,
                     first_bad_step=first_bad_step, first_bad_op=first_bad_op)

    def read_metadata(self) -> dict:
        if self.metadata.get("format") != "opd-trace":
            self.fail("format", 'is not "opd-trace"', "give a trace file; other tensors are not read")
        for key in ("version", "name", "label", "model", "framework", "seed", "manifest", "probes"):
            if key not in self.metadata:
                self.fail(key, "is missing from __metadata__", _CAPTURE)
        version, name, label = (self.metadata[key] for key in ("version", "name", "label"))
        if version != "1":
            self.fail("version", f"{quoted(version)} is not known", "use a reader of that version, or version 1")
        if not re.fullmatch("[A-Za-z0-9_.-]+", name):
            self.fail("name", f"{quoted(name)} is not a short name", "use letters, digits, '_', '.' and '-' only")
        if label not in LABELS:
            self.fail("label", f"{quoted(label)} is not a label", f"use {_choice(LABELS)}")
        try:
            manifest = parse_json(self.metadata["manifest"])
        except JsonFault as fault:
            self.fail("manifest", str(fault), _CAPTURE)
        if not isinstance(manifest, dict):
            self.fail("manifest", "not a JSON object", _CAPTURE)
        return manifest

    def read_probes(self) -> list[Probe]:
        try:
            items = parse_json(self.metadata["probes"])
        except JsonFault as fault:
            self.fail("probes", str(fault), _CAPTURE)
        if not isinstance(items, list) or not items:
            self.fail("probes", "is not a list of probes", "probe at least one operator")
        if len(items) > MAX_PROBES:
            self.fail("probes", f"{len(items)} probes, more than the 65536 op ids", "probe fewer operators")
        probes, names = [], set()
        for op, item in enumerate(items):
            field = f"probes[{op}]"
            if not isinstance(item, dict):
                self.fail(field, "is not an object", _CAPTURE)

            def text(key):
                if not isinstance(item.get(key), str):
                    self.fail(f"{field}.{key}", "is missing or not a string", _CAPTURE)
                return item[key]

            name = text("name")
            if not name:
                self.fail(f"{field}.name", "is empty", "name the probe")
            if name in names:
                self.fail(f"{field}.name", f"{quoted(name)} names two probes", "give every probe a name of its own")
            names.add(name)
            if text("kind") not in KINDS:
                self.fail(f"{field}.kind", f"{quoted(text('kind'))} is not a kind", f"use {_choice(KINDS)}")
            if text("format") not in FORMATS:
                self.fail(f"{field}.format", f"{quoted(text('format'))} is not a format", f"use {_choice(tuple(FORMATS))}")
            shape = item.get("shape")
            if not isinstance(shape, list):
                self.fail(f"{field}.shape", "is missing or not a list", _CAPTURE)
            elements = 1
            for extent in shape:
                if not _is_size(extent):
                    self.fail(f"{field}.shape", "holds a value that is not a size", _CAPTURE)
                if extent == 0:
                    self.fail(f"{field}.shape", "makes a probe without elements", "leave the probe out")
                elements *= extent
                if elements >= 1 << 63:
                    self.fail(f"{field}.shape", "makes more than 2^63-1 elements", "correct the shape")
            probes.append(Probe(name, item["kind"], item["format"], tuple(shape)))
        return probes

    def require(self, name: str, dtype: str, shape: Sequence[int]) -> np.ndarray:
        field = f"tensor {quoted(name)}" if "/" in name else name
        tensor = self.tensors.get(name)
        if tensor is None:
            self.fail(field, "is missing", _CAPTURE)
        if tensor.dtype != dtype:
            self.fail(field, f"has dtype {tensor.dtype} instead of {dtype}", _CAPTURE)
        if tensor.shape != list(shape):
            self.fail(field, f"has shape {_shape_text(tensor.shape)} instead of {_shape_text(shape)}", _CAPTURE)
        if "/" not in name:
            return np.frombuffer(tensor.data, _NUMPY[dtype]).reshape(shape).copy()  # a copy is aligned
        element = next(row.numpy for row in (*FORMATS.values(), _MASK_LAYOUT) if row.dtype == dtype)
        return np.require(np.frombuffer(tensor.data, element).reshape(shape), requirements="A")

    def read_step_list(self, name: str) -> np.ndarray:
        shape = self.tensors[name].shape if name in self.tensors else []
        count = shape[0] if len(shape) == 1 else 0
        steps = self.require(name, "I64", [count])
        if count == 0:
            self.fail(name, "holds no steps", "record at least one step")
        outside = (steps < 0) | (steps >= 1 << 32)
        back = np.concatenate(([False], steps[1:] <= steps[:-1]))
        for i in np.flatnonzero(outside | back)[:1]:
            if outside[i]:
                self.fail(f"{name}[{i}]", f"{steps[i]} is not in 0..2^32-1", "count steps from 0")
            self.fail(f"{name}[{i}]", f"{steps[i]} does not come after {steps[i - 1]}", "record every step once, in order")
        return steps

    def read_steps(self) -> np.ndarray:
        for name in sorted(self.tensors):
            self.check_tensor_name(name)
        return self.read_step_list("step")

    def check_tensor_name(self, name: str) -> None:
        field = f"tensor {quoted(name)}"
        kind, slash, rest = name.partition("/")
        if slash and kind == "raw":
            if rest not in self.op_ids:
                self.fail(field, "is of no probe in the list", "add the probe or remove the tensor")
        elif slash and kind in ("operand", "output"):
            probe, operand = (rest, None) if kind == "output" else rest.rpartition("/")[::2]
            item = self.operators.get(probe)
            if item is None:
                self.fail(field, "is of no operator in operators", "add the operator or remove the tensor")
            if kind == "operand" and operand not in item["operands"]:
                self.fail(field, "is of no operand of that operator", "add the operand to operators or remove the tensor")
        elif name not in _TENSORS:
            self.fail(field, "is not part of a trace", "correct its name or remove it")

    def place(self, step_index: int, op: int) -> str:
        return f"step {self.step[step_index]}, probe {quoted(self.probes[op].name)}: "

    def read_counts(self, name: str) -> np.ndarray:
        counts = self.require(name, "I64", [len(self.step), len(self.probes)])
        elements = np.array([probe.elements for probe in self.probes], np.int64)
        for s, p in np.argwhere((counts < 0) | (counts > elements))[:1]:
            self.fail(name, f"{self.place(s, p)}{counts[s, p]} is not in 0..{elements[p]}, the number of elements", _CAPTURE)
        return counts

    def read_values(self, name: str) -> np.ndarray:
        values = self.require(name, "F32", [len(self.step), len(self.probes)])
        is_magnitude = name in ("max_abs", "min_abs")
        largest = np.array([FORMATS[probe.format].max_value for probe in self.probes])
        nan = np.isnan(values)
        # Mean and variance may overflow F32 to Inf: that is a number, NaN is not.
        negative = (values < 0) & (name != "mean")
        above = (values > largest) & is_magnitude
        for s, p in np.argwhere(nan | negative | above)[:1]:
            place = self.place(s, p)
            if nan[s, p]:
                self.fail(name, f"{place}is NaN", "take statistics over the finite elements only")
            if negative[s, p]:
                self.fail(name, f"{place}is negative", _CAPTURE)
            self.fail(name, f"{place}is above the largest finite {self.probes[p].format}",
                      "take the largest finite magnitude, or correct the probe's format")
        return values

    def read_statistics(self) -> dict[str, np.ndarray]:
        statistics = {"max_abs": self.read_values("max_abs"), "nonfinite": self.read_counts("nonfinite")}
        for name in ("saturated", "subnormal", "zero"):
            if name in self.tensors:
                statistics[name] = self.read_counts(name)
        for name in ("min_abs", "mean", "var"):
            if name in self.tensors:
                statistics[name] = self.read_values(name)
        return statistics

    def read_series(self) -> dict[str, np.ndarray]:
        series = {}
        for name in SERIES:
            if name not in self.tensors:
                continue
            values = series[name] = self.require(name, "F32", [len(self.step)])
            bad = np.flatnonzero(~np.isfinite(values) | (values <= 0 if name == "loss_scale" else False))[:1]
            for s in bad:
                if name == "lr":
                    self.fail(name, f"step {self.step[s]}: is Inf or NaN", "leave lr out, or record a finite one")
                if name == "loss_scale":
                    self.fail(name, f"step {self.step[s]}: is not positive and finite",
                              "leave loss_scale out, or record 1 where there is none")
        return series

    def read_rows(self, name: str, what: str) -> np.ndarray:
        rows = self.read_step_list(name)
        for row in np.flatnonzero(~np.isin(rows, self.step))[:1]:
            self.fail(f"{name}[{row}]", f"{rows[row]} is not in step", f"record the statistics of every step with {what}")
        return rows

    def read_raw(self) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        if not any(name.startswith("raw/") for name in self.tensors):
            if "raw_step" in self.tensors:
                self.fail("raw_step", "is there, but no raw/ tensor is", "remove it")
            return None, {}
        rows = self.read_rows("raw_step", "raw rows")
        return rows, {probe.name: self.require(f"raw/{probe.name}", FORMATS[probe.format].dtype, [len(rows), probe.elements])
                      for probe in self.probes if f"raw/{probe.name}" in self.tensors}

    def read_operands(self) -> dict:
        """operand_step, operands and outputs, as members of Trace; empty where there is none."""
        with_elements = []
        for probe, item in self.operators.items():
            names = [f"operand/{probe}/{name}" for name in item["operands"]]
            present = [name in self.tensors for name in names]
            if any(present) and not all(present):
                self.fail(f"tensor {quoted(names[present.index(False)])}", "is missing while other operands of that operator are "
                          "there", "record all operands of an operator or none")
            if any(present):
                with_elements.append(probe)
            elif f"output/{probe}" in self.tensors:
                self.fail(f"tensor {quoted(f'output/{probe}')}", "is there, but no operand of that operator is",
                          "record its operands or remove it")
        if not with_elements:
            if "operand_step" in self.tensors:
                self.fail("operand_step", "is there, but no operand/ tensor is", "remove it")
            return {}
        rows = self.read_rows("operand_step", "operands")
        operands, outputs = {}, {}
        for probe in with_elements:
            operands[probe] = {}
            for name, operand in self.operators[probe]["operands"].items():
                layout = _MASK_LAYOUT if name == MASK else FORMATS[operand["format"]]
                values = self.require(f"operand/{probe}/{name}", layout.dtype, [len(rows), *operand["shape"]])
                if name == MASK:
                    for at in np.argwhere(values > 1)[:1]:
                        self.fail(f"tensor {quoted(f'operand/{probe}/{name}')}", f"step {rows[at[0]]}: {values[tuple(at)]} is "
                                  "neither 0 nor 1", "write 0 for a hidden element, 1 for one that counts")
                operands[probe][name] = values
            if f"output/{probe}" in self.tensors:
                item = self.probes[self.op_ids[probe]]
                outputs[probe] = self.require(f"output/{probe}", FORMATS[item.format].dtype, [len(rows), item.elements])
        return {"operand_step": rows, "operands": operands, "outputs": outputs}

    def read_operators(self) -> dict[str, dict]:
        """The entries of operators by the names of their probes, in the order of the file, with every default written out."""
        if "operators" not in self.metadata:
            return {}
        try:
            return read_operators(self.metadata["operators"], self.probes, tuple(FORMATS))
        except OperatorFault as fault:
            self.fail(*fault.args)

    def read_first_bad(self, nonfinite: np.ndarray) -> tuple[int | None, str | None]:
        step_text, op = self.metadata.get("first_bad_step"), self.metadata.get("first_bad_op")
        if (step_text is None) != (op is None):
            self.fail("first_bad_step" if step_text is None else "first_bad_op",
                      "is missing while the other of the two is there", "record both or none")
        # The first cell that may be bad: everything before it must be good. One past the end when none is named.
        first, step = nonfinite.size, None
        if step_text is not None:
            # Eleven digits are enough to be outside; int() would fail past 4300 of them.
            step = int("0" + step_text.lstrip("0")[:11]) if re.fullmatch("[0-9]+", step_text) else -1
            found = np.flatnonzero(self.step == step)
            if not len(found):
                self.fail("first_bad_step", f"{quoted(step_text)} is not in step", _CAPTURE)
            if op not in self.op_ids:
                self.fail("first_bad_op", f"{quoted(op)} is not in probes", _CAPTURE)
            s, p = int(found[0]), self.op_ids[op]
            first = s * len(self.probes) + p
            if nonfinite[s, p] == 0:
                self.fail("first_bad_op", f"{self.place(s, p)}nonfinite is 0", _CAPTURE)
        forward = np.array([probe.kind == "activation" for probe in self.probes])
        for i in np.flatnonzero((nonfinite > 0) & forward)[:1]:
            if i < first:
                self.fail("first_bad_step", f"{self.place(*divmod(i, len(self.probes)))}nonfinite is not 0, and that is not the "
                          "step and op recorded as first", "record the first non-finite activation")
        return step, op


def _parse(data, file: str) -> Trace:
    return _Reader(data, file).read()


def _canonical(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _completed(item):
    """The entry as the reader gives it; what no reader takes stays as it is, and the reader names it."""
    try:
        return complete(item)
    except (TypeError, ValueError, LookupError, OverflowError):
        return item


def _serialize(trace: Trace, file: str) -> bytes:
    """The bytes of a trace file. Types are converted here only where nothing is lost; the reader checks everything else."""
    def fail(field, wrong, remedy):
        raise TraceError(file, field, wrong, remedy)

    metadata = {"format": "opd-trace", "version": "1"}
    for key in ("name", "label", "model", "framework", "seed"):
        metadata[key] = getattr(trace, key)
        if not isinstance(metadata[key], str):
            fail(key, "is not text", "give a string")
    if trace.first_bad_step is not None:
        metadata["first_bad_step"] = str(trace.first_bad_step)
    if trace.first_bad_op is not None:
        metadata["first_bad_op"] = trace.first_bad_op
    try:
        metadata["manifest"] = _canonical(trace.manifest)
    except (TypeError, ValueError, RecursionError):
        fail("manifest", "not a JSON object", "use dictionaries, lists, texts and finite numbers")
    try:
        metadata["probes"] = _canonical([{"name": p.name, "kind": p.kind, "format": p.format,
                                          "shape": [operator.index(n) for n in p.shape]} for p in trace.probes])
    except TypeError:
        fail("probes", "is not a list of probes", "give Probe(name, kind, format, shape) with texts and whole numbers")
    for probe in trace.probes:
        if probe.format not in FORMATS:
            fail("probes", f"{quoted(str(probe.format))} is not a format", f"use {_choice(tuple(FORMATS))}")
    if trace.operators:
        try:
            metadata["operators"] = _canonical([_completed(item) for item in trace.operators])
        except (TypeError, ValueError, RecursionError):
            fail("operators", "is not a list of operators", "give dictionaries of texts, whole and finite numbers")
    for text in metadata.values():
        if re.search("[\ud800-\udfff]", text):
            fail("__metadata__", "holds text that is not UTF-8", "use UTF-8 names and texts")

    arrays = {}
    for name in _TENSORS:
        value = getattr(trace, name)
        if value is None:
            continue
        value = np.asarray(value)
        wanted = np.dtype(np.float32 if name in VALUES + SERIES else np.int64)
        if value.dtype != wanted and not np.can_cast(value.dtype, wanted, "safe"):
            fail(name, f"has type {value.dtype} instead of {wanted}", f"convert it to {wanted}")
        arrays[name] = np.ascontiguousarray(value, wanted)
    formats = {probe.name: probe.format for probe in trace.probes}
    for name, rows in trace.raw.items():
        rows = np.asarray(rows)
        field = f"tensor {quoted('raw/' + name)}"
        if name not in formats:
            fail(field, "is of no probe in the list", "add the probe or remove the tensor")
        if rows.dtype != FORMATS[formats[name]].numpy:
            fail(field, f"has type {rows.dtype} instead of {FORMATS[formats[name]].numpy}", "give elements in the probe's format")
        arrays[f"raw/{name}"] = np.ascontiguousarray(rows)
    elements = {f"operand/{probe}/{name}": values for probe, operands in trace.operands.items()
                for name, values in operands.items()} | {f"output/{probe}": values for probe, values in trace.outputs.items()}
    stored = [np.dtype(np.uint8), *(layout.numpy for layout in FORMATS.values())]
    for name, values in elements.items():  # which of these types it must be, the reader says
        values = np.asarray(values)
        if values.dtype not in stored:
            fail(f"tensor {quoted(name)}", f"has type {values.dtype}", "give elements in its format, of a mask uint8")
        arrays[name] = np.ascontiguousarray(values)

    specs = {name: safetensors.TensorSpec(dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data,
                                          data_len=array.nbytes) for name, array in arrays.items()}
    # The library lays the data out the same way each time, but orders the metadata at random: write the header again.
    container = bytes(safetensors.serialize(specs, metadata=metadata))
    data_begin = 8 + int.from_bytes(container[:8], "little")
    header = _canonical(json.loads(container[8:data_begin])).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + container[data_begin:]
