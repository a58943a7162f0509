"""JSON of training metrics as rows: a flat object and its line each.

    JSON lines      an object a line. The last line may be torn, as while the job runs, or one where a job was started again; a
                    line of other output is skipped. All are noted
    array           a JSON array of objects; objects one after another, each over several lines, are read alike
    one object      with "log_history" (HF trainer_state.json) or other lists of objects in it; lists of equal length, a
                    column each (Keras' History.history); objects of equal keys, a column each, or "columns" and "data" (pandas)

NaN, Infinity and what Python prints without json (nan, inf) are numbers. Nested objects become columns "a/b", short lists of
numbers "a/0", "a/1"; the rest of a list is left out, and noted when a number in it is not finite. A key that stands twice in
one object is an error: two readers would read two values.
"""
from __future__ import annotations

import bisect
import itertools
import json
import math
import re

from opd.importers.names import is_evaluation, is_step, meaning
from opd.importers.run import ImportedRun
from opd.importers.source import COPY_AGAIN, DuplicateKey, Source, unique, whole_or_real
from opd.texts import quoted

Rows = list[tuple[int, dict]]

_BARE = re.compile(r"(?i)(?<=[:\[,\s])([-+]?)(nan|inf|infinity)(?=\s*[,}\]])")
_SUSPECT = re.compile(r"(?i)overflow|\bnan\b|\binf\b|infinity|non-?finite|\bloss\b|skipp(?:ed|ing)")
_BEGINS = re.compile(r'\{\s*"')
_BETWEEN = re.compile(r"[\s,]*")
_MOST_NUMBERS = 64   # of a list that becomes columns
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_int=whole_or_real)


def is_rows(source: Source) -> float:
    """2 for trainer_state.json, 1 for anything else that begins like an object, or an array of objects; 1.5 where lines of the
    head are rows of metrics, other output of the job between them or not; else 0."""
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"[":
        return int(head[1:].lstrip()[:1] == b"{")
    lines = [line.decode("utf-8", "replace") for line in head.split(b"\n") if line[:1] == b"{"]
    first = _value(lines[0]) if lines and head[:1] == b"{" else None
    is_several = first is not None and b"\n{" in source.data
    if head[:1] == b"{" and b'"log_history"' in source.data and b'"Nodes"' not in source.head and not is_several:
        return 2
    if any(isinstance(row := _value(line), dict) and _is_known(row) for line in lines):
        return 1.5
    return int(isinstance(first, dict) or re.match(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:', head) is not None)


def _is_known(row: dict) -> bool:
    """Whether an object is a row of metrics."""
    names = [str(name) for name in row]
    return any(map(is_step, names)) and any(meaning(name).what in ("loss", "grad_norm", "loss_scale") for name in names)


def read_rows(source: Source, run: ImportedRun) -> Rows:
    """The rows of the file. Raises ImportFault with the line."""
    source.bound_json()
    lines = [(number, line) for number, line in source.lines() if line.strip()]
    first = _value(lines[0][1])
    is_alone = len(lines) == 1 or not isinstance(first, dict) and lines[0][1].lstrip()[:1] in ("{", "[")
    rows = _whole_file(source, run, lines) if is_alone else _by_line(source, run, lines)
    try:
        return [(line, _flat(source, run, line, row)) for line, row in rows]
    except RecursionError:
        source.fail(None, "JSON nested too deep", "write flat objects")


def _value(text: str):
    """The one JSON value of a text; None when it is not one."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


def _decode(text: str):
    """The one JSON value of a text. Raises ValueError and RecursionError."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        bare = _BARE.sub(_as_json, text)
        if bare == text:
            raise
        return _DECODER.decode(bare)


def _as_json(bare: re.Match) -> str:
    """nan and inf of Python's print, as its json module writes them."""
    return "NaN" if bare[2].lower() == "nan" else bare[1].replace("+", "") + "Infinity"


def _by_line(source: Source, run: ImportedRun, lines: list[tuple[int, str]]) -> Rows:
    rows, foreign = [], []
    for number, line in lines:
        wrong = "another value"
        try:
            content = _decode(line)
        except DuplicateKey as error:
            source.fail(number, str(error), "keep one of them")
        except (ValueError, RecursionError) as error:
            content, wrong = None, getattr(error, "msg", "nested too deep")
        if isinstance(content, dict):
            rows.append((number, content))
        elif number == lines[-1][0] and line.lstrip().startswith("{"):
            run.assumptions.append(f"line {number}, the last one, is torn: left out")
            run.not_understood(number, line.strip())
        elif (behind := _behind_a_torn_one(line)) is not None:
            rows.append((number, behind))
            run.assumptions.append(f"line {number} is torn, and another begins in it: that one is read")
            run.not_understood(number, line.strip())
        elif line.lstrip().startswith("{") or content is not None:
            source.fail(number, f"is not a JSON object ({wrong}); the lines before it are rows",
                        "mend the line, or delete it: the others are read without it")
        else:
            foreign.append(number)
            if _SUSPECT.search(line):
                run.not_understood(number, line.strip())
    if foreign:
        run.assumptions.append(f"{len(foreign)} lines that are no JSON left out, first line {foreign[0]}")
    return rows


def _behind_a_torn_one(line: str) -> dict | None:
    """The object that a job which was started again wrote behind a torn line."""
    if line.lstrip().startswith("{"):
        for found in list(_BEGINS.finditer(line))[1:]:
            row = _value(line[found.start():])
            if isinstance(row, dict):
                return row
    return None


def _whole_file(source: Source, run: ImportedRun, lines: list[tuple[int, str]]) -> Rows:
    """The rows of a file that is not read line by line."""
    text = "\n".join(line for _, line in lines)
    begins = list(itertools.accumulate((len(line) + 1 for _, line in lines), initial=0))

    def line_at(offset: int) -> int:
        return lines[min(bisect.bisect_right(begins, offset), len(lines)) - 1][0]

    values, at, is_array = [], 0, False
    while True:
        at = _BETWEEN.match(text, at).end()
        if at == len(text) or is_array and text[at] == "]" and not text[at + 1:].strip():
            break
        if not values and not is_array and text[at] == "[":
            is_array, at = True, at + 1
            continue
        try:
            value, end = _DECODER.raw_decode(text, at)
        except DuplicateKey as error:
            source.fail(line_at(at), str(error), "keep one of them")
        except RecursionError:
            source.fail(line_at(at), "JSON nested too deep", COPY_AGAIN)
        except json.JSONDecodeError as error:
            if (as_json := _BARE.sub(_as_json, text)) != text:
                return _whole_file(source, run, [(number, line) for (number, _), line in zip(lines, as_json.split("\n"))])
            is_cut = not text[error.pos + 1:].strip() or error.msg.startswith("Unterminated")
            if values and is_cut:
                run.assumptions.append(f"line {line_at(at)}, where the last row begins, is torn: left out")
                run.not_understood(line_at(at), text[at:at + 64])
                break
            wrong = "ends in the middle of a JSON value" if is_cut else f"not valid JSON: {error.msg}"
            source.fail(line_at(error.pos), wrong, COPY_AGAIN if is_cut else "mend it there")
        values.append((at, value))
        at = end
    if not is_array and len(values) == 1 and isinstance(values[0][1], dict):
        return _of_object(source, run, text, values[0][1], line_at)
    for at, value in values:
        if not isinstance(value, dict):
            source.fail(line_at(at), "is not a JSON object, but a row must be one", "give an array or lines of objects")
    return [(line_at(at), value) for at, value in values]


def _of_object(source: Source, run: ImportedRun, text: str, content: dict, line_at) -> Rows:
    """The rows of a file that is one object."""
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    tables = {name: value for name, value in lists.items() if value and all(isinstance(row, dict) for row in value)}
    if "log_history" in content:
        tables = {"log_history": content["log_history"]}
        if not isinstance(content["log_history"], list) or not all(isinstance(row, dict) for row in content["log_history"]):
            source.fail(source.line_of("log_history"), "\"log_history\" is not a list of objects", "give the file that the tool wrote")
    if tables:
        rest = {name: value for name, value in content.items() if name not in tables}
        if (bad := _nonfinite(rest)) is not None:
            run.not_understood(None, f"{bad} beside {', '.join(tables)}")
        if list(tables) != ["log_history"]:
            run.assumptions.append(f"rows: {', '.join(tables)}")
        training = [name for name in tables if not is_evaluation(name)]
        rows = []
        for name, table in tables.items():
            told = {} if name in training and len(training) == 1 else {"run" if name in training else "phase": name}
            rows += [(line, {**told, **row}) for line, row in _lines_of(text, name, table, line_at)]
        return rows
    if set(content) >= {"columns", "data"} and isinstance(content["columns"], list) and isinstance(content["data"], list):
        names, table = [str(name) for name in content["columns"]], content["data"]
        if all(isinstance(row, list) and len(row) == len(names) for row in table):
            return [(line_at(0), dict(zip(names, row))) for row in table]
    if lists and len({len(value) for value in lists.values()}) == 1 and len(next(iter(lists.values()))):
        run.assumptions.append("each list is a column")
        return [(1, dict(zip(lists, row))) for row in zip(*lists.values())]
    objects = list(content.values())
    if objects and all(isinstance(value, dict) and value.keys() == objects[0].keys() for value in objects) and objects[0]:
        if all(name.isdigit() for name in objects[0]):
            run.assumptions.append("each object is a column")
            return [(1, {name: value[row] for name, value in content.items()}) for row in objects[0]]
    return [(line_at(0), content)]


def _lines_of(text: str, name: str, history: list[dict], line_at) -> Rows:
    """The objects of a list, each with its line."""
    lines = []
    try:
        at = text.index("[", text.index(json.dumps(name)))
        for _ in history:
            at = text.index("{", at)
            lines.append(line_at(at))
            _, at = _DECODER.raw_decode(text, at)
    except ValueError:   # the name stands in another text before
        lines = [line_at(0)] * len(history)
    return list(zip(lines, history))


def _flat(source: Source, run: ImportedRun, line: int, value: dict, prefix: str = "") -> dict:
    """Nested objects as columns "a/b", lists of a few numbers as "a/0", "a/1"."""
    row = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found = _flat(source, run, line, item, f"{prefix}{name}/")
        elif isinstance(item, list) and len(item) == 1 and not isinstance(item[0], (dict, list)):
            found = {prefix + name: item[0]}
        elif isinstance(item, list) and len(item) <= _MOST_NUMBERS and all(type(v) in (int, float) for v in item):
            found = {f"{prefix}{name}/{i}": v for i, v in enumerate(item)}
        elif isinstance(item, list):
            found = {}
            if (bad := _nonfinite(item)) is not None:
                run.not_understood(line, f"{prefix}{name}: {bad} in a list that is left out")
        else:
            found = {prefix + name: item}
        if twice := found.keys() & row.keys():
            source.fail(line, f"key {quoted(min(twice))} stands twice in one object", "keep one of them")
        row.update(found)
    return row


def _nonfinite(value) -> str | None:
    """The first number in lists and objects that is not finite."""
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, dict):
            level += item.values()
        elif isinstance(item, list):
            level += item
        elif isinstance(item, float) and not math.isfinite(item):
            return str(item)
        elif isinstance(item, str) and item.strip().lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
            return item
    return None
