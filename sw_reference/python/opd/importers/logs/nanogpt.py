"""nanoGPT: a line per logged iteration, and one of an evaluation whose losses are estimates over other batches.

karpathy/nanoGPT, train.py.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number, whole
from opd.importers.logs.reading import FALLBACK, ROW, Reading, torn, too_long

NAME = "nanoGPT"
SPELLINGS = {
    "iteration": "iter 20: loss 2.5000, time 200.50ms, mfu 30.25%",
    "evaluation": "step 20: train loss 2.5000, val loss 2.6000",
}

_ITERATION = re.compile(rf"\biter (\d+): loss ({REAL})(?:,|$)")
_EVALUATION = re.compile(rf"^step (\d+): train loss ({REAL}), val loss {REAL}\s*$")


def read(line: Line) -> Reading | None:
    """The reading of a line of nanoGPT's, None for any other."""
    if found := _ITERATION.search(line.text):
        what = ROW
    elif found := _EVALUATION.search(line.text):
        what = FALLBACK
    else:
        return torn("an iteration whose loss is no number") if re.match(r"iter \d+: loss\b", line.text) else None
    step = whole(found[1])
    return too_long() if step is None else Reading(what, {"loss": number(found[2])}, step)
