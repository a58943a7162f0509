"""Text that comes from files, as messages and terminals may have it."""
from __future__ import annotations

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
    """"did you mean NAME?" when a known name is near, else `otherwise`. Twin of traces/src/suggestion.cpp."""
    given = name.encode("utf-8", "surrogateescape")
    if len(given) > 64:
        return otherwise
    distances = {near: _edit_distance(given, near.encode()) for near in known}
    nearest = min(distances, key=distances.__getitem__)
    return f"did you mean {nearest}?" if distances[nearest] <= max(2, len(nearest) // 3) else otherwise


def _edit_distance(one: bytes, other: bytes) -> int:
    """Insertions, deletions and replacements that turn one name into the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def plain(value):
    """A value as plain JSON has it: tuples are lists, keys are texts, numbers that are not finite are texts."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
