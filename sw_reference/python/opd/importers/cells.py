"""Cells of tables and values of JSON as numbers: every spelling that a writer of training metrics is known to print.

    2.5  1e-3  +2.5  nan  NaN  inf  -Infinity  -nan(ind)  1.#QNAN  1.#INF    what printf, Python, C# and Java write
    tensor(2.5, device='cuda:0')  np.float32(2.5)  [2.5]                     a tensor or array of one number, printed
    #NUM!  #DIV/0!                                                           a spreadsheet's errors: NaN
    1,234.5                                                                  thousands; in a table parted by ";" 1.234,5
    1e400                                                                    beyond a double: Inf, as in every format
    (empty)  None  null  N/A  #N/A  -  No log                                no value

Anything else is no number: a text, "12%", 1_000, true.
"""
from __future__ import annotations

import math
import re

from opd.importers.source import Source

_MOST_DIGITS = 19
_MOST_SIZES = 64   # of a shape
MISSING = frozenset({"", "none", "null", "n/a", "na", "#n/a", "<na>", "nil", "undefined", "no log", "-", "--"})
_PRINTED = re.compile(r"(?i)^(?:[a-z_]+\.)*(?:tensor|array|[a-z]*float\d*|deviceArray|parameter)\(\s*(.*)\)$", re.S)
_TENSORFLOW = re.compile(r"^<tf\.\w+.*\bnumpy=([^\s,>]+).*>$", re.S)
_PRINTF = re.compile(r"(?i)^([-+]?)(?:1\.)?(#?q?s?nan|#?ind|#?inf(?:inity)?|∞)(?:0*|\([^)]*\))$")
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$")
_DECIMAL_COMMA = re.compile(r"^[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][-+]?\d+)?$")
_SPREADSHEET = frozenset({"#num!", "#div/0!"})
FRACTION = re.compile(r"^\s*(\d{1,15})\s*/\s*(\d{1,15})\s*$")   # "20/60": step 20 of 60


def is_missing(cell) -> bool:
    """Whether a cell has no value."""
    return cell is None or isinstance(cell, str) and cell.strip().lower() in MISSING


def number(cell, decimal_comma: bool = False) -> float | None:
    """The number that a cell says, None for no value. Raises ValueError when it says something else."""
    if is_missing(cell):
        return None
    if isinstance(cell, bool):
        raise ValueError(cell)
    if isinstance(cell, (int, float)):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    if not isinstance(cell, str):
        raise ValueError(cell)
    text = cell.strip()
    try:
        if "_" not in text:   # Python takes 1_000, no table means it
            return float(text)
    except ValueError:
        pass
    return _spelled(text, decimal_comma)


def _spelled(text: str, decimal_comma: bool) -> float:
    if text.lower() in _SPREADSHEET:
        return math.nan
    if found := _PRINTF.match(text):
        value = math.inf if found[2].lower().strip("#") in ("inf", "infinity", "∞") else math.nan
        return -value if found[1] == "-" else value
    if decimal_comma and _DECIMAL_COMMA.match(text):
        return float(text.replace(".", "").replace(",", "."))
    if not decimal_comma and _THOUSANDS.match(text):
        return float(text.replace(",", ""))
    found = _PRINTED.match(text)
    inner = re.split(r",\s*[a-z_]+=", found[1])[0] if found else None
    if found := _TENSORFLOW.match(text):
        inner = found[1]
    if inner is None and text.startswith("[") and text.endswith("]"):
        inner = text
    if inner is None:
        raise ValueError(text)
    return number(inner.strip().strip("[]").strip() or "x")


def whole(source: Source, place: int | str, digits: str, what: str = "step") -> int:
    """The whole number of some digits. A number of thousands of digits is an error with its place."""
    if len(digits) > _MOST_DIGITS:
        source.fail(place, f"a {what} of {len(digits)} digits", "correct the value")
    return int(digits)


def is_shape(sizes, least: int = 0) -> bool:
    """Whether a value of JSON is a list of sizes, none of which is below `least`."""
    return isinstance(sizes, list) and len(sizes) <= _MOST_SIZES and all(type(n) is int and least <= n < 1 << 63 for n in sizes)


def flag(cell) -> float | None:
    """The number of a flag or count: true and false are 1 and 0. Raises ValueError."""
    if isinstance(cell, bool):
        return float(cell)
    if isinstance(cell, str) and cell.strip().lower() in ("true", "yes", "false", "no"):
        return float(cell.strip().lower() in ("true", "yes"))
    return number(cell)
