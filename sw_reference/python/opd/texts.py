"""Text that comes from files, as messages and terminals may have it."""
from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


def quoted(text: str) -> str:
    """Text from a file for an error message: in quotes, one line, printable ASCII, at most 64 bytes of it."""
    data = text.encode("utf-8", "surrogatepass")
    body = "".join(chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\x{b:02x}" for b in data[:64])
    return f'"{body}..."' if len(data) > 64 else f'"{body}"'


def printable(text: str) -> str:
    """Text whose names come from files: nothing of them reaches a terminal as a control sequence."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """"did you mean NAME?" when a known name is near, else `otherwise`."""
    near = difflib.get_close_matches(name[:64], list(known), 1, 0.75)
    return f"did you mean {near[0]}?" if near else otherwise


def plain(value):
    """A value as plain JSON has it: tuples are lists, keys are texts, numbers that are not finite are texts."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
