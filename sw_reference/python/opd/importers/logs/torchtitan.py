"""torchtitan (torchtrain until 2024): one coloured line per step, from every rank.

pytorch/torchtitan, torchtitan/components/metrics.py (MetricsProcessor.log, log_validation; torchtitan/train.py until
2025). A rank of a pipeline that has no loss prints -1.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number, whole
from opd.importers.logs.reading import EVALUATION, ROW, Reading, torn, too_long

NAME = "torchtitan"
SPELLINGS = {
    "step": "[titan] 2024-05-06 07:08:01,500 - root - INFO - step:  3  loss:  7.50000  grad_norm:   4.5000  memory:  9.50GiB(60.00%)  tps: "
            "7,250  tflops: 0.50  mfu: 0.20%",
    "step, 2024": "2024-05-06 07:08:01,500 - root - INFO - step:  3  loss:  7.5000  memory:  9.50GiB(60.00%)  wps: 7,250  mfu: 0.20%",
    "rank without a loss": "[rank0]:step:  3  loss: -1.00000  grad_norm:   4.5000  memory:  9.50GiB(60.00%)  tps: 7,250",
    "validation": "[rank0]:[titan] 2024-05-06 07:08:01,500 - root - INFO - validate step:  3  loss:  7.50000  memory:  9.50GiB(60.00%)  "
                  "tps: 7,250",
}

_STEP = re.compile(rf"\bstep:\s+(\d+)\s+(?:lr:\s+{REAL}\s+)?loss:\s+({REAL})(.*)$")
_NORM = re.compile(rf"\bgrad_norm:\s*({REAL})")
_BEGUN = re.compile(r"\bstep:\s+\d+\s{2,}loss:\s")
_NOT = re.compile(r"\bgrad_norm:(?!\s*(?:" + REAL + r"))")


def read(line: Line) -> Reading | None:
    """The reading of a line of torchtitan's, None for any other."""
    text = line.text
    found = _STEP.search(text)
    if found is None or not re.match(r"\s{2,}\w+:|\s*$", found[3]) or ("  loss:" not in text and "memory:" not in text):
        return torn("begins like a line of torchtitan and does not go on like one") if _BEGUN.search(text) else None
    if re.search(r"\bvalidate step:", text):
        return Reading(EVALUATION)
    step = whole(found[1])
    if step is None:
        return too_long()
    if _NOT.search(found[3]):
        return torn("a line of torchtitan whose gradient norm is no number")
    values = {} if number(found[2]) == -1 else {"loss": number(found[2])}
    if norm := _NORM.search(found[3]):
        values["grad_norm"] = number(norm[1])
    if rate := re.search(rf"\blr:\s+({REAL})", text):
        values["lr"] = number(rate[1])
    return Reading(ROW, values, step)
