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


def _unique(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonFault(f"duplicate key {quoted(key)}")
            seen.add(key)
    return result


def _reject_constant(text):  # NaN and Infinity are not JSON
    raise JsonFault("not valid JSON")


def parse_json(text: str):
    """Strict JSON: one value, no duplicate key, bounded depth and number of values. Raises JsonFault."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_reject_constant)
    except RecursionError:
        raise JsonFault(f"JSON nested deeper than {MAX_JSON_DEPTH}") from None
    except ValueError:
        raise JsonFault("not valid JSON") from None
    count = 0
    level, depth = [value], 0
    while level:
        below = []
        count += len(level)
        for item in level:
            if isinstance(item, dict):
                below += item.values()
                texts = item.keys()
            else:
                below += item if isinstance(item, list) else ()
                texts = (item,) if isinstance(item, str) else ()
            # Neither lone surrogates nor numbers beyond a double have a meaning.
            if any(re.search("[\ud800-\udfff]", t) for t in texts) or (
                    isinstance(item, (int, float)) and abs(item) > sys.float_info.max):
                raise JsonFault("not valid JSON")
            if isinstance(item, (dict, list)) and depth >= MAX_JSON_DEPTH:
                raise JsonFault(f"JSON nested deeper than {MAX_JSON_DEPTH}")
        if count > MAX_JSON_VALUES:
            raise JsonFault(f"JSON of more than {MAX_JSON_VALUES} values")
        level, depth = below, depth + 1
    return value
