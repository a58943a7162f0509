"""CSV and TSV as rows: a cell for each column, and the line where the row begins.

A header comes again, or another one, where a job was started again: the rows after it follow it. A last row with too few
cells is cut off (a running job): left out and noted. In the middle such a row is an error. A first column without a name, or
called "Unnamed: 0" or "index", is the row index of a data frame when it counts the rows. A file of MLflow's store (time, value,
step; no header) is read as a table of the metric that its name tells.
"""
from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator

from opd.importers import cells as cell_values
from opd.importers.names import METRIC_NAMES, METRIC_VALUES, PROBE_NAMES, STATISTIC_OF, EPOCHS, is_step, key, meaning
from opd.importers.run import ImportedRun
from opd.importers.source import Source
from opd.texts import quoted

Rows = list[tuple[int, dict]]

INDEX = ("", "unnamed_0", "index")
_NUMBER = re.compile(r"[-+]?\d[\d.eE+-]*")
_SEPARATOR = re.compile(rb'(?i)(?:\xef\xbb\xbf)?"?sep=."?\s*$')   # for spreadsheets
_SAID = re.compile(r"[=|]|:\s|: *[-+.\d]|\d%|^\W*\w+ [-+.\d]")   # a name and its value
_PANEL = re.compile(r" - [\w/]*(?:loss|grad|norm)[\w/]*$")
_TELLING = ("loss", "grad_norm", "loss_scale", "overflows", "finite")
_MLFLOW = re.compile(r"\d{12,14} \S+ \d+$")


def header_of(source: Source) -> list[str] | None:
    """The cells of the first line, when it can be the header of a table."""
    line = next((line for line in source.head.split(b"\n") if line.strip() and not _SEPARATOR.match(line)), b"")
    try:
        text = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        return None
    if _MLFLOW.match(text):
        return ["timestamp", "value", "step"]
    if text.lstrip()[:1] in "{[" or any(ord(c) < 32 and c != "\t" for c in text):
        return None
    try:
        cells = _stripped(next(csv.reader([text], delimiter=delimiter_of(text), strict=True, skipinitialspace=True), []))
    except csv.Error:
        return None
    if len(cells) < 2 or "" in cells[1:] or any(_NUMBER.fullmatch(cell) for cell in cells):
        return None
    return cells


def is_known(source: Source, header: list[str]) -> bool:
    """Whether the header has a column that means something here, and the line after it a number. In a line of a log the
    numbers stand behind their names."""
    names = [name for name in header if not _SAID.search(name)]
    keys = [key(name) for name in names]
    is_known = (any(is_step(name) or k in EPOCHS or k == "layer" or meaning(name).what in _TELLING for name, k in zip(names, keys))
                or any(_PANEL.search(name) for name in header)
                or any(k in PROBE_NAMES for k in keys) and any(k in STATISTIC_OF for k in keys)
                or any(k in METRIC_NAMES for k in keys) and any(k in METRIC_VALUES for k in keys))
    lines = [line for line in source.head.split(b"\n") if line.strip() and not _SEPARATOR.match(line)][:2]
    texts = [line.decode("utf-8", "replace") for line in lines]
    return is_known and len(texts) == 2 and _has_number(*texts) or bool(_MLFLOW.match(texts[0]))


def _has_number(header: str, line: str) -> bool:
    for cell in line.rstrip("\r").split(delimiter_of(header)):
        try:
            if cell_values.number(cell.strip().strip('"')) is not None:
                return True
        except ValueError:
            pass
    return False


def delimiter_of(header: str) -> str:
    return max(",\t;", key=header.count)


def read_rows(source: Source, run: ImportedRun) -> tuple[list[str], Rows, str]:
    """Columns, rows and the delimiter. Raises ImportFault with the line."""
    lines = [(number, line) for number, line in source.lines() if line.strip()]
    if _MLFLOW.match(lines[0][1]):
        return _of_mlflow(source, lines)
    if _SEPARATOR.match(lines[0][1].encode()) and len(lines) > 1:
        lines.pop(0)
    delimiter = delimiter_of(lines[0][1])
    source.bound(source.data.count(delimiter.encode()) + len(lines), "cells")
    records = list(_records(source, lines, delimiter))
    header, rows, columns, again = None, [], {}, 0
    for at, (number, cells) in enumerate(records):
        if header is None or _is_header(cells, header):
            again += header is not None
            header = _columns(source, number, cells)
            columns |= dict.fromkeys(header)
            continue
        while len(cells) > len(header) and not cells[-1]:
            cells.pop()
        if len(cells) < len(header) and at == len(records) - 1 and at > 1:
            run.assumptions.append(f"line {number}, the last one, has {len(cells)} of {len(header)} cells: cut off, left out")
            run.not_understood(number, delimiter.join(cells))
        elif len(cells) != len(header):
            what = "complete the row" if len(cells) < len(header) else f"put a cell with {quoted(delimiter)} in it in quotes"
            source.fail(number, f"{len(cells)} cells instead of {len(header)}, as many as its header has",
                        f"{what}, or delete the row: the others are read without it")
        else:
            rows.append((number, dict(zip(header, cells))))
    if again:
        run.assumptions.append(f"the header comes again {again} times: the job was started again")
    return _without_index(list(columns), rows), rows, delimiter


def _records(source: Source, lines: list[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of each record; a cell in quotes may go over several lines."""
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        begin = reader.line_num
        try:
            cells = _stripped(next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            source.fail(lines[min(begin, len(lines) - 1)][0], f"not valid CSV: {error}",
                        "close the quotes, or delete the row: the others are read without it")
        yield lines[begin][0], cells


def _stripped(cells: list[str]) -> list[str]:
    return [cell.strip() for cell in cells]


def _columns(source: Source, number: int, cells: list[str]) -> list[str]:
    header = list(cells)
    header[0] = header[0].removeprefix("#").strip()
    for at in range(1, len(header)):
        header[at] = header[at] or f"column {at + 1}"
    if doubled := [name for name, count in Counter(header).items() if count > 1]:
        source.fail(number, f"column {quoted(doubled[0])} stands twice", "name every column once")
    return header


def _is_header(cells: list[str], header: list[str]) -> bool:
    """Whether a row is the header again, or that of the same table with other columns."""
    named = [cell for cell in cells if cell]
    return cells == header or len(named) > 1 and len(set(named)) == len(named) and not any(map(_NUMBER.match, named)) and (
        len(set(named) & set(header)) * 2 >= len(header)) and any(is_step(cell) or key(cell) in EPOCHS for cell in named)


def _without_index(columns: list[str], rows: Rows) -> list[str]:
    """The columns without the row index of a data frame: a first one that counts the rows by one."""
    first = columns[0] if columns else "x"
    if key(first) not in INDEX or len(columns) < 2:
        return columns
    cells = [row.get(first) or "" for _, row in rows]
    if all(re.fullmatch(r"\d{1,15}", cell) for cell in cells) and all(
            int(b) == int(a) + 1 or int(b) == int(cells[0]) for a, b in zip(cells, cells[1:])):
        return columns[1:]
    return columns


def _of_mlflow(source: Source, lines: list[tuple[int, str]]) -> tuple[list[str], Rows, str]:
    columns, rows = ["timestamp", source.stem, "step"], []
    for number, line in lines:
        cells = line.split()
        if len(cells) != 3:
            source.fail(number, f"{len(cells)} of 3 numbers: time, value, step", "complete the line, or delete it")
        rows.append((number, dict(zip(columns, cells))))
    return columns, rows, " "
