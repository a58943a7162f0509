"""Metadata key `operators` of a trace (docs/formats.md "Operators and operands"): how operators are computed, validated against
the probes. Twin of traces/src/traced_operators.cpp: the same rules in the same order, in the same words."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from opd.strict_json import JsonFault, parse_json
from opd.texts import quoted
from opd.trace_layout import KERNELS, MASK, Kernel

_MAX_EXTENT = (1 << 32) - 1
_MAX_ELEMENTS = (1 << 63) - 1
_TOO_LARGE = float.fromhex("0x1.FFFFFFp127")  # half a unit above the largest binary32 number
_CAPTURE = "capture the trace again with opd.trace"


class OperatorFault(Exception):
    """Field, what is wrong, and remedy, for a TraceError."""


def _fail(field: str, wrong: str, remedy: str):
    raise OperatorFault(field, wrong, remedy)


def _edit_distance(left: bytes, right: bytes) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            replaced = diagonal + (a != b)
            diagonal = row[j]
            row[j] = min(row[j] + 1, row[j - 1] + 1, replaced)
    return row[-1]


def _suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """As opd::trace::suggestion: both readers must propose the same."""
    text = name.encode("utf-8", "surrogatepass")
    if len(text) > 64:
        return otherwise
    distance, nearest = min(((_edit_distance(text, k.encode()), k) for k in known), key=lambda pair: pair[0])
    return otherwise if distance > max(2, len(nearest) // 3) else f"did you mean {nearest}?"


def _choice(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _text(item: dict, field: str, key: str) -> str:
    if not isinstance(item.get(key), str):
        _fail(f"{field}.{key}", "is missing or not a string", _CAPTURE)
    return item[key]


def _extent(value, field: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_EXTENT:
        _fail(field, "is not a whole number in 1..2^32-1", "write a whole number, without a point")
    if value == 0:
        _fail(field, "is 0, which makes nothing to compute", "leave the operator out")
    return value


def _extent_of(item: dict, entry: str, key: str) -> int:
    if key not in item:
        _fail(f"{entry}.{key}", "is missing", _CAPTURE)
    return _extent(item[key], f"{entry}.{key}")


def _check_keys(item: dict, field: str, known: Sequence[str], owner: str) -> None:
    """Nothing but these keys: a misspelt one would silently be its default."""
    for key in sorted(item):
        if key not in known:
            _fail(field, f"{quoted(key)} is not a field of {owner}", _suggestion(key, known, "remove it"))


def _check_attribute(item: dict, entry: str, name: str) -> None:
    if name not in item:
        return
    field, value = f"{entry}.{name}", item[name]
    if type(value) not in (int, float):
        _fail(field, "is not a number", "write a number")
    value = float(value)
    if not abs(value) < _TOO_LARGE:
        _fail(field, "is beyond binary32", "write a number that binary32 can hold")
    if name != "factor" and value < 0:
        _fail(field, "is negative", "write 0 or a positive number")
    if name == "correction" and value != math.floor(value):
        _fail(field, "is not a whole number", "write 0, 1, ...")


def _check_operand(item, field: str, name: str, kernel: Kernel, batch: int, rows: int, columns: int, depth: int,
                   formats: Sequence[str]) -> None:
    if not isinstance(item, dict):
        _fail(field, "is not an object", _CAPTURE)
    if name == MASK:
        _check_keys(item, field, ("shape",), "a mask")
    else:
        _check_keys(item, field, ("format", "shape"), "an operand")
        if _text(item, field, "format") not in formats:
            _fail(f"{field}.format", f"{quoted(item['format'])} is not a format", f"use {_choice(formats)}")
    field += ".shape"
    shape = item.get("shape")
    if not isinstance(shape, list) or len(shape) != 2:
        _fail(field, "is missing or not a list of rows and columns", _CAPTURE)
    has = [_extent(extent, field) for extent in shape]
    if has[0] * has[1] > _MAX_ELEMENTS:
        _fail(field, f"{has} makes more than 2^63-1 elements", "correct the shape")
    if not kernel.is_matrix:
        if has[1] != columns:
            _fail(field, f"{has} has not the {columns} columns of the operator", "correct the shape")
        if rows % has[0]:
            _fail(field, f"{has}: {rows} rows of the operator are not a multiple of {has[0]}",
                  "correct the shape; the rows of an operand repeat")
        return
    want = {0: [batch * rows, depth], 1: [batch * columns, depth], 2: [1, columns]}[kernel.operands.index(name)]
    if has != want:
        _fail(field, f"is {has} instead of {want}", "correct the shape of the operand or of the operator")


def _check(item, entry: str, op_ids: dict[str, int], probes: Sequence, taken: set[str], formats: Sequence[str]) -> None:
    if not isinstance(item, dict):
        _fail(entry, "is not an object", _CAPTURE)
    probe = _text(item, entry, "probe")
    if probe not in op_ids:
        _fail(f"{entry}.probe", f"{quoted(probe)} is not in probes", "add the probe or remove the operator")
    if probe in taken:
        _fail(f"{entry}.probe", f"{quoted(probe)} has two operators", "give a probe one operator at most")
    taken.add(probe)
    name = _text(item, entry, "kernel")
    if name not in KERNELS:
        _fail(f"{entry}.kernel", f"{quoted(name)} is not a kernel",
              _suggestion(name, KERNELS, "docs/vector_unit.md lists the kernels"))
    kernel = KERNELS[name]
    known = ["probe", "kernel", "rows", "columns", "operands", *(("batch", "depth") if kernel.is_matrix else ())]
    _check_keys(item, entry, known + ([kernel.attribute] if kernel.attribute else []), name)

    rows, columns = _extent_of(item, entry, "rows"), _extent_of(item, entry, "columns")
    batch, depth = 1, 1
    if kernel.is_matrix:
        batch = _extent_of(item, entry, "batch") if "batch" in item else 1
        depth = _extent_of(item, entry, "depth")
        if name == "linear" and batch != 1:
            _fail(f"{entry}.batch", f"{batch}, but a linear has one batch", "count the rows of all batches in rows")
    if kernel.attribute:
        _check_attribute(item, entry, kernel.attribute)

    if batch * rows * columns * depth > _MAX_ELEMENTS:
        _fail(entry, "makes more than 2^63-1 elements or products", "correct its shape")
    if kernel.is_matrix and max(batch * rows, batch * columns) > _MAX_EXTENT:
        _fail(entry, "has operands of more than 2^32-1 rows", "correct its shape")
    elements = batch * rows * (1 if kernel.shape == "row_reduction" else columns)
    if elements != probes[op_ids[probe]].elements:
        _fail(entry, f"makes {elements} elements, but probe {quoted(probe)} has {probes[op_ids[probe]].elements}",
              "correct the shape of one of the two")

    field, operands = f"{entry}.operands", item.get("operands")
    if not isinstance(operands, dict):
        _fail(field, "is missing or not an object", _CAPTURE)
    for key in sorted(operands):
        if key not in kernel.operands:
            _fail(field, f"{quoted(key)} is not an operand of {name}", f"use {_choice(kernel.operands)}")
    for i, key in enumerate(kernel.operands):
        if key in operands:
            _check_operand(operands[key], f"{field}.{key}", key, kernel, batch, rows, columns, depth, formats)
        elif i < kernel.required:
            _fail(f"{field}.{key}", f"is missing, and {name} needs it", "record it, or remove the operator")


def _binary32(value: float) -> int | float:
    """The number as a trace file has it: whole if it is, else the shortest decimal that is this binary32 number."""
    single = np.float32(value)
    if abs(single) < 2.0**63 and single == np.floor(single) and not (single == 0 and np.signbit(single)):
        return int(single)
    return float(str(single))


def complete(item: dict) -> dict:
    """A valid entry with every default written out, its operands in the order of the kernel's."""
    kernel = KERNELS[item["kernel"]]
    result = {key: item[key] for key in ("probe", "kernel", "rows", "columns")}
    if kernel.is_matrix:
        result |= {"batch": item.get("batch", 1), "depth": item["depth"]}
    if kernel.attribute:
        result[kernel.attribute] = _binary32(float(item.get(kernel.attribute, kernel.default)))
    result["operands"] = {name: item["operands"][name] for name in kernel.operands if name in item["operands"]}
    return result


def read_operators(text: str, probes: Sequence, formats: Sequence[str]) -> dict[str, dict]:
    """The entries of that JSON text by the names of their probes, in the order of the list, complete. Raises OperatorFault."""
    try:
        items = parse_json(text)
    except JsonFault as fault:
        _fail("operators", str(fault), _CAPTURE)
    if not isinstance(items, list) or not items:
        _fail("operators", "is not a list of operators", "leave it out where there is none")
    op_ids = {probe.name: op for op, probe in enumerate(probes)}
    taken: set[str] = set()
    for i, item in enumerate(items):
        _check(item, f"operators[{i}]", op_ids, probes, taken, formats)
    return {item["probe"]: complete(item) for item in items}
