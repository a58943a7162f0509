"""MaxText: one line per step.

AI-Hypercomputer/maxtext, MaxText/metric_logger.py (write_metrics_to_console; MaxText/train.py until 2025).
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import choose, find, whole
from opd.importers.logs.reading import EVALUATION, ROW, Reading, torn, too_long

NAME = "MaxText"
SPELLINGS = {
    "step": "completed step: 40, seconds: 2.125, TFLOP/s/device: 36.500, Tokens/s/device: 1900.250, total_weights: 65536, loss: 2.500",
    "step, 2023": "completed step: 40, seconds: 2.125, TFLOP/s/device: 36.500, loss: 2.500",
    "step, with the gradient norm": "completed step: 40, seconds: 20.585, TFLOP/s/device: 97.566, Tokens/s/device: 1989.820, "
                                    "total_weights: 31457280, loss: 2.500, lr: 3.000e-04, grad_norm: 1.25e+00",
    "evaluation": "eval metrics after step: 40, loss=2.500, total_weights=65536",
}

_STEP = re.compile(r"\bcompleted (?:train(?:ing)? )?step: (\d+), (.*)$")
_EVALUATION = re.compile(r"\beval(?:uation)? metrics after step|\baverage loss after step=|\bCompleted eval step")


def read(line: Line) -> Reading | None:
    """The reading of a line of MaxText's, None for any other."""
    if _EVALUATION.search(line.text):
        return Reading(EVALUATION)
    found = _STEP.search(line.text)
    if found is None:
        return None
    values, named = choose(find(found[2]))
    if "loss" not in values:
        return torn("a line of MaxText that ends before its loss, or whose loss is no number")
    step = whole(found[1])
    return too_long() if step is None else Reading(ROW, values, step, loss_name=named)
