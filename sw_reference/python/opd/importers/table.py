"""Tables: CSV or TSV with a header, JSON lines, and the log history of HF's trainer_state.json.

Columns are read by name (names.py). Four layouts:

    long     a column with the name of a probe, one row per probe and step, statistics in the other columns
    layers   a column "layer" and no step: the layers of one pass; each other column of each layer is a probe
    log      loss, gradient norm or loss scale per step; columns named PROBE_STATISTIC are probes too, others are left out
    wide     none of these: one row per step, each other column is the largest magnitude of a probe of that name

An empty cell, "None", "null" or "N/A" has no value. inf and nan are values.
"""
from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter

from opd.importers.names import (PROBE_NAMES, PROBE_PARTS, SCALAR_OF, STATISTIC_OF, STEPS, format_of, key, kind_of,
                                 split_statistic)
from opd.importers.run import ImportedRun, Stat, Step, listed, stat_of
from opd.importers.scalars import Row, read_rows
from opd.importers.source import COPY_AGAIN, Source, csv_cells
from opd.texts import quoted
from opd.trace import KINDS

_MISSING = ("", "none", "null", "n/a", "na", "-")
# Columns that are neither a probe nor worth a word when they are not read.
_COUNTERS = ("seq", "order", "line", "src_line", "index", "unnamed_0", "epoch", "kind", "event", "type", "ranks", "time",
             "date",
             "timestamp", "_timestamp", "_runtime", "wall_time")
_OVERFLOW = ("overflow", "skip", "skipped")


class Csv:
    """CSV or TSV"""
    NAME = "csv"
    WHAT = "CSV table, wide or long"

    @staticmethod
    def sniff(source: Source) -> int:
        """1 for a header with a known column, 0 for anything else."""
        header = _header(source)
        return int(header is not None and (_is_known(header) or source.path.lower().endswith((".csv", ".tsv", ".csv.gz"))))

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The table. Raises ImportFault with the line."""
        first = next((n for n, line in source.lines() if line.strip()), 1)
        header, rows = None, []
        for number, line in source.lines():
            if number < first or not line.strip():
                continue
            if header is None:
                delimiter = _delimiter(line)
                header = [cell.strip() for cell in csv_cells(source, number, line, delimiter)]
                if doubled := [name for name, count in Counter(header).items() if count > 1]:
                    source.fail(number, f"column {quoted(doubled[0])} stands twice", "name every column once")
                continue
            cells = csv_cells(source, number, line, delimiter)
            if len(cells) != len(header):
                source.fail(number, f"{len(cells)} cells instead of {len(header)}", COPY_AGAIN)
            rows.append((number, dict(zip(header, (cell.strip() for cell in cells)))))
        return _read(source, header, rows, first)


class Jsonl:
    """JSON lines, or trainer_state.json"""
    NAME = "jsonl"
    WHAT = "JSON lines, or HF trainer_state.json"

    @staticmethod
    def sniff(source: Source) -> int:
        """2 for trainer_state.json, 1 for objects line by line, 0 for anything else."""
        if source.head.lstrip()[:1] != b"{":
            return 0
        if b'"log_history"' in source.data and b'"Nodes"' not in source.head:
            return 2
        return int(_object(source.data.lstrip().split(b"\n", 1)[0]) is not None)

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The rows. Raises ImportFault with the line."""
        rows = []
        if Jsonl.sniff(source) == 2:
            rows = [(line, _flat(row)) for line, row in _history(source)]
        else:
            for number, line in source.lines():
                if not line.strip():
                    continue
                content = _object(line.encode())
                if content is None:
                    source.fail(number, "is not a JSON object", COPY_AGAIN)
                rows.append((number, _flat(content)))
        columns = list(dict.fromkeys(column for _, row in rows for column in row))
        return _read(source, columns, rows, rows[0][0] if rows else 1)


def _history(source: Source) -> list[tuple[int, dict]]:
    """The objects of "log_history", each with its line."""
    history = source.json().get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        source.fail(source.line_of("log_history"), "\"log_history\" is not a list of objects", COPY_AGAIN)
    text = source.data.decode("utf-8-sig")
    lines, decoder = [], json.JSONDecoder()
    try:
        at = text.index("[", text.index('"log_history"'))
        for _ in history:
            at = text.index("{", at)
            lines.append(text.count("\n", 0, at) + 1)
            _, at = decoder.raw_decode(text, at)
    except ValueError:   # the name stands in another text before
        lines = [source.line_of("log_history")] * len(history)
    return list(zip(lines, history))


def _object(line: bytes) -> dict | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _flat(value: dict, prefix: str = "") -> dict:
    """Nested objects as columns "a/b"; lists are left out."""
    row = {}
    for name, item in value.items():
        if isinstance(item, dict):
            row.update(_flat(item, f"{prefix}{name}/"))
        elif not isinstance(item, list):
            row[prefix + name] = item
    return row


def _header(source: Source) -> list[str] | None:
    """The cells of the first line, when it can be the header of a table."""
    line = next((line for line in source.head.split(b"\n") if line.strip()), b"")
    try:
        text = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        return None
    if text.lstrip()[:1] in "{[" or any(ord(c) < 32 and c != "\t" for c in text):
        return None
    try:
        cells = [cell.strip() for cell in next(csv.reader([text], delimiter=_delimiter(text), strict=True), [])]
    except csv.Error:
        return None
    if len(cells) < 2 or "" in cells or any(re.fullmatch(r"[-+]?\d[\d.eE+-]*", cell) for cell in cells):
        return None
    return cells


def _delimiter(header: str) -> str:
    return max(",\t;", key=header.count)


def _is_known(header: list[str]) -> bool:
    keys = [key(name) for name in header]
    return any(k in STEPS or k in SCALAR_OF or k == "layer" for k in keys) or (
        any(k in PROBE_NAMES for k in keys) and any(k in STATISTIC_OF for k in keys))


# --- layouts ---------------------------------------------------------------------------------------------------------------

def _read(source: Source, columns: list[str], rows: list, first_line: int) -> ImportedRun:
    if not rows:
        source.fail(None, "holds no rows", COPY_AGAIN)
    keys = {}
    for column in columns:
        keys.setdefault(key(column), column)
        keys.setdefault(key(column.rsplit("/", 1)[-1]), column)   # "train/loss" is a loss where no column is called so
    table = _Table(source, columns, keys, rows)
    run = ImportedRun()
    name = next((keys[k] for k in PROBE_NAMES if k in keys), None)
    statistics = {column: STATISTIC_OF[key(column)] for column in columns if key(column) in STATISTIC_OF}
    if name is not None and {"max_abs", "max", "min"} & set(statistics.values()):
        table.read_long(run, name, statistics)
    elif "layer" in keys and table.step_column() is None:
        table.read_layers(run, keys["layer"])
    elif any(k in SCALAR_OF and SCALAR_OF[k] not in ("lr", "overflows", "nan_losses") for k in keys):
        table.read_log(run)
    elif table.step_column() is not None:
        table.read_wide(run)
    else:
        source.fail(first_line, "no column is a step, probe name, layer, loss, gradient norm or loss scale",
                    "name the columns as docs/importing.md says")
    return run


class _Table:
    def __init__(self, source: Source, columns: list[str], keys: dict[str, str], rows: list):
        self.source, self.columns, self.keys, self.rows = source, columns, keys, rows

    def step_column(self) -> str | None:
        return next((self.keys[k] for k in STEPS if k in self.keys), None)

    def number(self, line: int, column: str, cell) -> float | None:
        """The cell as a number, None when it has no value."""
        if isinstance(cell, bool) or cell is None:
            return None if cell is None else float(cell)
        if isinstance(cell, (int, float)):
            try:
                return float(cell)
            except OverflowError:
                self.source.fail(line, f"{column}: a number beyond a double", "correct the value")
        if cell.lower() in _MISSING:
            return None
        try:
            return float(cell.replace("_", "x"))   # Python takes 1_000, no table means it
        except ValueError:
            self.source.fail(line, f"{column}: {quoted(cell)} is not a number", "correct the value, or leave the cell empty")

    def whole(self, line: int, column: str, cell) -> int | None:
        value = self.number(line, column, cell)
        if value is not None and (not math.isfinite(value) or not value.is_integer() or value < 0):
            self.source.fail(line, f"{column}: {quoted(str(cell))} is not a whole number from 0", "correct the value")
        return None if value is None else int(value)

    def step_of(self, line: int, row: dict) -> int | None:
        column = self.step_column()
        return None if column is None else self.whole(line, column, row.get(column))

    def read_long(self, run: ImportedRun, name_column: str, statistics: dict[str, str]) -> None:
        """One row per probe and step."""
        parts = [self.keys[k] for k in PROBE_PARTS if k in self.keys and self.keys[k] != name_column]
        step_column = self.step_column()
        merged = passes = 0
        for line, row in self.rows:
            fields = {field: value for column, field in statistics.items()
                      if (value := self.number(line, column, row.get(column))) is not None}
            if not fields:
                continue
            if not row.get(name_column):
                self.source.fail(line, f"{name_column}: is empty", "name the probe")
            first = f"layer{row[name_column]}" if key(name_column) == "layer" else str(row[name_column])
            name = ".".join([first, *(str(row[part]) for part in parts if row.get(part))])
            number = self.step_of(line, row)
            if number is None and step_column is not None:
                self.source.fail(line, f"{step_column}: is empty", "give every row its step")
            if number is None:   # a name that comes again begins the next pass
                number = run.steps[-1].step if run.steps else 0
                if run.steps and name in run.steps[-1].stats:
                    number += 1
                    passes += 1
            if not run.steps or run.steps[-1].step != number:
                run.steps.append(Step(number, line))
            stat, known = stat_of(fields, line), run.steps[-1].stats.get(name)
            if known is None:
                run.steps[-1].stats[name] = stat
            else:
                known.merge(stat)
                merged += 1
            run.probe(name, self._kind(line, row, name), self._format(row), self._shape(line, row, fields))
        if step_column is None:
            run.assumptions.append("no column is the step: 0")
        if passes:
            run.assumptions.append(f"a probe comes again {passes} times: the next step begins there")
        if merged:
            run.assumptions.append(f"{merged} rows repeat a probe in its step: the largest magnitude, the sum of the counts")

    def read_layers(self, run: ImportedRun, layer_column: str) -> None:
        """The layers of one pass, in order."""
        run.assumptions.append("no column is the step: the layers are one pass, step 0")
        step = Step(0, self.rows[0][0])
        run.steps.append(step)
        for line, row in self.rows:
            for column in self.columns:
                if column == layer_column or key(column) in _COUNTERS:
                    continue
                value = self.number(line, column, row.get(column))
                if value is None:
                    continue
                name = f"layer{row[layer_column]}.{column}"
                if name in step.stats:
                    self.source.fail(line, f"{layer_column}: {quoted(str(row[layer_column]))} stands twice",
                                     "give a column with the step")
                run.probe(name, kind_of(column))
                step.stats[name] = Stat(line, abs(value))

    def read_log(self, run: ImportedRun) -> None:
        """Loss, gradient norm, loss scale; and probes in columns PROBE_STATISTIC."""
        scalars = {}
        for k, column in self.keys.items():
            if k in SCALAR_OF and not re.match(r"(eval|val|valid|validation|test)[_/]", column.lower()):
                scalars.setdefault(SCALAR_OF[k], column)
        epoch, kind = self.keys.get("epoch"), next((self.keys[k] for k in ("kind", "event", "type") if k in self.keys), None)
        tensors = self._tensor_columns(set(scalars.values()))
        rows, stats = [], []
        for line, row in self.rows:
            values = {field: value for field, column in scalars.items()
                      if (value := self.number(line, column, row.get(column))) is not None}
            overflow = kind is not None and str(row.get(kind, "")).lower() in _OVERFLOW
            found = self._tensor_stats(line, row, tensors)
            if not values and not overflow and not found:
                continue
            begun = self.number(line, epoch, row.get(epoch)) if epoch else None
            begun = int(begun) if begun is not None and math.isfinite(begun) else None
            rows.append(Row(line, self.step_of(line, row), begun, values, overflow))
            stats.append(found)
        if self.step_column() is None:
            run.assumptions.append("no column is the step: rows are counted from 0")
            for number, row in enumerate(rows):
                row.step = number
        if not rows:
            self.source.fail(None, "has no row with a value", COPY_AGAIN)
        for probe in tensors:
            run.probe(probe, kind_of(probe))
        for step, found in zip(read_rows(rows, run), stats):
            step.stats.update(found)
        used = {*scalars.values(), *(c for columns in tensors.values() for c in columns), self.step_column(), epoch, kind}
        self._tell_unused(run, used)

    def read_wide(self, run: ImportedRun) -> None:
        """One row per step, one column per probe or per statistic of a probe."""
        step_column = self.step_column()
        tensors = self._tensor_columns({step_column})
        taken = {column for columns in tensors.values() for column in columns}
        plain = [c for c in self.columns if c != step_column and c not in taken and key(c) not in _COUNTERS
                 and key(c) not in SCALAR_OF
                 and key(c) not in STEPS]
        for name in [*plain, *tensors]:
            run.probe(name, kind_of(name))
        for line, row in self.rows:
            number = self.step_of(line, row)
            if number is None:
                self.source.fail(line, f"{step_column}: is empty", "give every row its step")
            step = Step(number, line, self._tensor_stats(line, row, tensors))
            for column in plain:
                if (value := self.number(line, column, row.get(column))) is not None:
                    step.stats[column] = Stat(line, abs(value))
            if step.stats:
                run.steps.append(step)
        self._tell_unused(run, {*plain, *taken, step_column})

    def _tensor_columns(self, taken: set) -> dict[str, dict[str, str]]:
        """Probe name -> {column: statistic} of the columns PROBE_STATISTIC. A probe needs a magnitude among them."""
        tensors: dict[str, dict[str, str]] = {}
        for column in self.columns:
            if column in taken or key(column) in SCALAR_OF or key(column) in STEPS or key(column) in _COUNTERS:
                continue
            if parts := split_statistic(column):
                tensors.setdefault(parts[0], {})[column] = parts[1]
        return {name: columns for name, columns in tensors.items() if {"max_abs", "max", "min"} & set(columns.values())}

    def _tensor_stats(self, line: int, row: dict, tensors: dict[str, dict[str, str]]) -> dict[str, Stat]:
        stats = {}
        for name, columns in tensors.items():
            fields = {field: value for column, field in columns.items()
                      if (value := self.number(line, column, row.get(column))) is not None}
            if fields:
                stats[name] = stat_of(fields, line)
        return stats

    def _tell_unused(self, run: ImportedRun, used: set) -> None:
        unused = [column for column in self.columns if column not in used and key(column) not in _COUNTERS]
        if unused:
            run.assumptions.append(f"columns left out: {listed(unused)}")

    def _kind(self, line: int, row: dict, name: str) -> str:
        column = self.keys.get("kind")
        if column is None or not row.get(column):
            return kind_of(name)
        if row[column] not in KINDS:
            self.source.fail(line, f"{column}: {quoted(str(row[column]))} is not a kind", f"use {', '.join(KINDS)}")
        return row[column]

    def _format(self, row: dict) -> str | None:
        column = next((self.keys[k] for k in ("format", "dtype") if k in self.keys), None)
        return format_of(str(row[column])) if column is not None and row.get(column) else None

    def _shape(self, line: int, row: dict, fields: dict) -> tuple[int, ...] | None:
        column = self.keys.get("shape")
        if column is not None and row.get(column):
            sizes = re.findall(r"\d+", str(row[column]))
            if not re.fullmatch(r"[\[(]?[\d, x]*[\])]?", str(row[column])) or any(int(n) == 0 for n in sizes):
                self.source.fail(line, f"{column}: {quoted(str(row[column]))} is not a shape", "write it as \"[2, 4]\"")
            return tuple(map(int, sizes))
        count = fields.get("elements")
        if count is None:
            return None
        if not math.isfinite(count) or count < 1 or not count.is_integer():
            self.source.fail(line, f"{count} elements", "correct the element count")
        return (int(count),)
