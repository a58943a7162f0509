"""Statistics of one step from several ranks as one: the row of an operator on the wire, the union of what the ranks know by name, and the
merge. No process and no collective is needed for it."""
from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence

import numpy as np

from opd.guard.monitor import WIDEST_FIRST, Operator, Seen
from opd.registers import Format

NEVER = 0xFFFFFFFF  # a place or an order that there is none of
# place: of the operator among those of the step; order: of its first non-finite observation, counted from the step's first one.
ROW = np.dtype([("max_abs", "<f4"), ("elements", "<u4"), ("nonfinite", "<u4"), ("place", "<u4"), ("order", "<u4"), ("format", "u1")])
_MEMBERS = ("name", "kind", "own", "module", "part")
_WIDTH = np.zeros(256, np.uint8)  # of a format's code: the widest has the largest
for _place, _name in enumerate(reversed(WIDEST_FIRST)):
    _WIDTH[int(Format[_name])] = _place


def rows_of(seen: Seen, operators: int) -> np.ndarray:
    """ROW [operators], by the number of the operator; those with larger numbers are left out."""
    rows = np.zeros(operators, ROW)
    rows["place"] = rows["order"] = NEVER
    for place, operator in enumerate(seen.operators):
        if operator.op < operators:
            rows[operator.op] = _row(seen, place)
    return rows


def _row(seen: Seen, place: int) -> tuple:
    order = seen.order[place]
    return (seen.max_abs[place], seen.elements[place], seen.nonfinite[place], place,
            NEVER if order == math.inf else int(order) - seen.start, seen.format[place])


def new_ones(seen: Seen, operators: Sequence[Operator], agreed: int) -> bytes:
    """Operators from number `agreed` on with their rows, for the other ranks: b"" where there are none."""
    found = operators[agreed:]
    if not found:
        return b""
    places = {operator.op: place for place, operator in enumerate(seen.operators)}
    rows = np.zeros(len(found), ROW)
    rows["place"] = rows["order"] = NEVER
    for i, operator in enumerate(found):
        if operator.op in places:
            rows[i] = _row(seen, places[operator.op])
    names = json.dumps([[getattr(operator, member) for member in _MEMBERS] for operator in found]).encode()
    return b"%d " % len(names) + names + rows.tobytes()


def read_new_ones(blob: bytes) -> tuple[list[Operator], np.ndarray]:
    """What new_ones made; the operators have no number yet."""
    if not blob:
        return [], np.zeros(0, ROW)
    length, _, rest = blob.partition(b" ")
    names = json.loads(rest[:int(length)])
    return [Operator(-1, **dict(zip(_MEMBERS, members))) for members in names], np.frombuffer(rest[int(length):], ROW)


def united(agreed: Sequence[Operator], blobs: Sequence[bytes]) -> tuple[list[Operator], np.ndarray]:
    """The agreed operators and behind them the new ones of all ranks, those of rank 0 first, and the rows of the new ones [ranks, new].
    The same name and kind are the same operator."""
    operators = list(agreed)
    known = {(operator.name, operator.kind): i for i, operator in enumerate(operators)}
    found = [read_new_ones(blob) for blob in blobs]
    for others, _ in found:
        for operator in others:
            if known.setdefault((operator.name, operator.kind), len(operators)) == len(operators):
                operator.op = len(operators)
                operators.append(operator)
    rows = np.zeros((len(blobs), len(operators) - len(agreed)), ROW)
    rows["place"] = rows["order"] = NEVER
    for rank, (others, own) in enumerate(found):
        for operator, row in zip(others, own):
            rows[rank, known[operator.name, operator.kind] - len(agreed)] = row
    return operators, rows


def names_hash(operators: Sequence[Operator]) -> int:
    """32 bits of the names and kinds in their order."""
    return zlib.crc32("\n".join(f"{operator.name} {operator.kind}" for operator in operators).encode())


def merged(rows: np.ndarray, operators: Sequence[Operator]) -> Seen:
    """One step of all ranks. rows: ROW [ranks, operators]. Largest of the magnitudes, sums of the counts, the widest format; the first
    non-finite observation is the earliest of any rank, on equal terms that of the lower rank. The order of the operators is that of rank
    0, where what it has not seen follows what came before it on the first rank that has."""
    ranks = len(rows)
    chosen = _program_order(rows["place"])
    own = rows[:, chosen]
    was_seen = own["place"] != NEVER
    widest = np.where(was_seen, _WIDTH[own["format"]] + 1, 0).argmax(axis=0)
    order = np.where(own["order"] == NEVER, math.inf, own["order"].astype(np.float64) * ranks + np.arange(ranks)[:, None])
    return Seen([operators[i] for i in chosen], own["format"][widest, np.arange(len(chosen))],
                own["max_abs"].max(axis=0, initial=0).astype(np.float64), _sum(own["elements"]), _sum(own["nonfinite"]),
                order.min(axis=0, initial=math.inf))


def _sum(counts: np.ndarray) -> np.ndarray:
    """Over the ranks; saturates."""
    return np.minimum(counts.sum(axis=0, dtype=np.uint64), 0xFFFFFFFF).astype(np.uint32)


def _program_order(places: np.ndarray) -> list[int]:
    """places: uint32 [ranks, operators]."""
    order: list[int] = []
    for row in places:
        own = [int(i) for i in np.argsort(row, kind="stable")[:np.count_nonzero(row != NEVER)]]
        if not order:
            order = own
            continue
        present = set(order)
        if present.issuperset(own):
            continue
        behind = 0
        for i in own:
            if i in present:
                behind = order.index(i) + 1
            else:
                order.insert(behind, i)
                behind += 1
    return order
