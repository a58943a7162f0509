"""JSON of files that somebody else wrote: nothing that two readers could read in two ways, and of bounded size."""
from __future__ import annotations

import json
import re
import sys

from opd.texts import quoted

MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 1 << 21


class JsonFault(Exception):
    """What is wrong with a JSON text."""


class _Doubled(list):
    """Members of an object in which a key stands twice: pairs."""


def _reject_constant(text):  # NaN and Infinity are not JSON
    raise ValueError


def parse_json(text: str):
    """Strict JSON: one value, no duplicate key, bounded depth and number of values. Raises JsonFault.

    Of several faults the first of these is told, as traces/src/json.cpp has it: brackets beyond the depth, what is not JSON, a duplicate
    key of the first object that ends with one, the number of values. Bytes that are not UTF-8 may come as surrogates.
    """
    doubled = []

    def members(pairs):
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        seen = set()
        doubled.append(next(key for key, _ in pairs if key in seen or seen.add(key)))
        return _Doubled(pairs)

    count = 0
    try:
        value = json.loads(text, object_pairs_hook=members, parse_constant=_reject_constant)
        is_valid, count = _measure(value)
    except (RecursionError, ValueError):
        is_valid = False
    if not is_valid:
        raise JsonFault(f"JSON nested deeper than {MAX_JSON_DEPTH}" if _is_deep(text) else "not valid JSON")
    if doubled:
        raise JsonFault(f"duplicate key {quoted(doubled[0])}")
    if count > MAX_JSON_VALUES:
        raise JsonFault(f"JSON of more than {MAX_JSON_VALUES} values")
    return value


def _measure(value) -> tuple[bool, int]:
    """Whether a parsed value is what JSON means and no deeper than it may be, and how many values are in it."""
    count, level, depth = 0, [value], 0
    while level:
        below = []
        count += len(level)
        for item in level:
            texts = ()
            if isinstance(item, _Doubled):
                texts = [key for key, _ in item]
                below += [member for _, member in item]
            elif isinstance(item, dict):
                texts = item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                texts = (item,)
            # Neither lone surrogates nor numbers beyond a double have a meaning.
            if any(re.search("[\ud800-\udfff]", t) for t in texts) or (
                    isinstance(item, (int, float)) and abs(item) > sys.float_info.max):
                return False, count
            if isinstance(item, (dict, list)) and depth >= MAX_JSON_DEPTH:
                return False, count
        level, depth = below, depth + 1
        if count > MAX_JSON_VALUES:
            break
    return True, count


def _is_deep(text: str) -> bool:
    """Whether brackets outside of strings stand deeper than they may, valid or not."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MAX_JSON_DEPTH:
            return True
    return False
