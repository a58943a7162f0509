"""NVIDIA NeMo 2: one line of "name: value" fields per step.

NVIDIA/NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py (ProgressPrinter); NeMo 1 prints Lightning's progress
bar.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, choose, find, whole
from opd.importers.logs.reading import EVALUATION, ROW, Reading, torn, too_long

NAME = "NeMo"
SPELLINGS = {
    "step": "Training epoch 0, iteration 20/999 | lr: 0.0001 | global_batch_size: 8 | global_step: 20 | reduced_train_loss: 2.5 | "
            "train_step_timing in s: 4.022 | consumed_samples: 168 | val_loss: 2.861",
    "without global_step": "Training epoch 0, iteration 20/999 | lr: 0.0001 | global_batch_size: 8 | reduced_train_loss: 2.5 | "
                           "train_step_timing in s: 4.022",
    "with the gradient norm": "Training epoch 1, iteration 20/999 | lr: 0.0001 | global_batch_size: 8 | global_step: 1020 | max_memory_reserved:"
                              " 100 | reduced_train_loss: 2.5 | grad_norm: 1.25 | train_step_timing in s: 4.022",
    "validation": "Validation: iteration 1/32",
}

_TRAINING = re.compile(r"\bTraining epoch (\d+), iteration (\d+)/(\d+) \|(.*)$")
_GLOBAL = re.compile(r"\bglobal_step: (\d+)\b")
_BEGUN = re.compile(r"\bTraining epoch \d+, iter")
_TRAIN_LOSS = re.compile(rf"\breduced_train_loss: (?!{REAL}\s*(?:\||$))")


def read(line: Line) -> Reading | None:
    """The reading of a line of NeMo's, None for any other."""
    text = line.text
    if found := _TRAINING.search(text):
        values, named = choose([metric for metric in find(found[4]) if not re.match(r"(?i)val|test", metric.name)])
        counted = _GLOBAL.search(found[4])
        step = whole(counted[1]) if counted else whole(found[2])
        if _TRAIN_LOSS.search(found[4]) or not values:
            return torn("a line of NeMo that is cut off, or whose loss is no number")
        if step is None:
            return too_long()
        epoch, length = (None, None) if counted else (whole(found[1]), None)
        return Reading(ROW, values, step, epoch, length, loss_name=named)
    if re.match(r"(?:Validation|Test): iteration \d+/\d+", text):
        return Reading(EVALUATION)
    return torn("begins like a line of NeMo and does not go on like one") if _BEGUN.search(text) else None
