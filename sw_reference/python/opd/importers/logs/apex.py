"""NVIDIA apex, and torch_npu's scaler that follows it: a line for each skipped step.

NVIDIA/apex, apex/amp/handle.py (scale_loss), apex/fp16_utils/fp16_optimizer.py (step), fp16_utils/loss_scaler.py;
Ascend/pytorch, torch_npu/npu/amp/grad_scaler.py. Several scalers (loss_id) are told apart; the first has the plain names
of probes.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number
from opd.importers.logs.reading import KNOWN, OVERFLOW, Reading, torn

NAME = "apex"
SPELLINGS = {
    "scaler": "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 512.0",
    "another scaler": "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 64.0",
    "2018": "Gradient overflow.  Skipping step, reducing loss scale to 512.0",
    "FP16_Optimizer": "OVERFLOW! Skipping step. Attempted loss scale: 1024.0, reducing to 512.0",
    "torch_npu, step": "Gradient overflow. Skipping step",
    "torch_npu, scale": "Loss scaler reducing loss scale to 512.0",
}

_SKIPPING = re.compile(
    rf"Gradient overflow\.\s+Skipping step,(?: loss scaler (\d+))? reducing loss scale to ({REAL})\.?\s*$")
_FP16 = re.compile(rf"^OVERFLOW! Skipping step\. Attempted loss scale: ({REAL}), reducing to ({REAL})\s*$")
_STEP = re.compile(r"Gradient overflow\.\s+Skipping step\.?\s*$")
_SCALE = re.compile(rf"Loss scaler reducing loss scale to ({REAL})\s*$")
_BEGUN = re.compile(r"Gradient overflow\.\s+Skipping|Loss scaler reducing loss scale")
_OPTION = re.compile(r"^(?:loss_scale|opt_level|cast_model_type|master_weights|keep_batchnorm_fp32)\s*:")


def read(line: Line) -> Reading | None:
    """The reading of a line of apex's, None for any other."""
    text = line.text
    if found := _SKIPPING.search(text):
        number_of_scaler = (found[1] or "").lstrip("0")
        scaler = f".scaler{number_of_scaler}" if number_of_scaler else ""
        return Reading(OVERFLOW, {"scale_after": number(found[2])}, scaler=scaler)
    if found := _FP16.search(text):
        return Reading(OVERFLOW, {"scale_attempted": number(found[1]), "scale_after": number(found[2])}, part="step")
    if _STEP.search(text):
        return Reading(OVERFLOW, part="step")
    if found := _SCALE.search(text):
        return Reading(OVERFLOW, {"scale_after": number(found[1])}, part="scale")
    if _BEGUN.search(text):
        return torn("begins like a line of apex and does not go on like one")
    return Reading(KNOWN) if _OPTION.search(text) else None
