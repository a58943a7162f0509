"""NVIDIA's GNMT (MLPerf v0.5..v0.7, DeepLearningExamples): one line per interval, a line for each skipped batch.

mlcommons/training_results_v0.6, NVIDIA gnmt, seq2seq/train/trainer.py and seq2seq/train/fp_optimizer.py. Every rank
prints.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number, whole
from opd.importers.logs.reading import EVALUATION, KNOWN, OVERFLOW, ROW, Reading, torn, too_long

NAME = "GNMT"
SPELLINGS = {
    "interval": "0: TRAIN [1][10/20]\tTime 0.500 (0.500)\tData 1.00e-04 (1.00e-04)\tTok/s 36000 (36000)\tLoss/tok 9.5000 (10.0000)\t"
                "LR 3.000e-05",
    "skipped batch": "0: Skipped batch, new scale: 256.0",
    "gradient norm": "0: Gradient norm: inf",
    "validation": "0: VALIDATION [0][0/160]\tTime 0.140 (0.140)\tLoss/tok 6.6 (6.6)\tTok/s 22000 (22000)",
}

_TRAIN = re.compile(rf"\bTRAIN \[(\d+)\]\[(\d+)/(\d+)\].*?Loss/tok ({REAL}) .*?LR ({REAL})")
_SKIP = re.compile(rf"Skipped batch, new scale: ({REAL})\s*$")
_NORM = re.compile(r"Gradient norm: [-+]?(?:inf|nan)\s*$")
_BEGUN = re.compile(r"\bTRAIN \[\d+\]\[|Skipped batch, new scale")


def read(line: Line) -> Reading | None:
    """The reading of a line of GNMT's, None for any other."""
    text = line.text
    if found := _SKIP.search(text):
        return Reading(OVERFLOW, {"scale_after": number(found[1])}, part="scale")
    if _NORM.search(text):
        return Reading(OVERFLOW, part="norm")
    if "Upscaling, new scale:" in text:
        return Reading(KNOWN)
    if found := _TRAIN.search(text):
        epoch, step, length = (whole(found[i]) for i in (1, 2, 3))
        if epoch is None or step is None or length is None:
            return too_long()
        return Reading(ROW, {"loss": number(found[4]), "lr": number(found[5])}, step, epoch, length, epoch_base=0)
    if re.search(r"\b(?:VALIDATION|TEST) \[\d+\]\[", text):
        return Reading(EVALUATION)
    return torn("begins like a line of GNMT and does not go on like one") if _BEGUN.search(text) else None
