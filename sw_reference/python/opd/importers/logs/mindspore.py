"""MindSpore: its own callbacks, MindFormers, MindCV and the model zoo.

mindspore-ai/mindspore, mindspore/python/mindspore/train/callback/_loss_monitor.py; mindspore-lab/mindformers,
mindformers/core/callback/callback.py (MFLossMonitor); mindspore-ai/models, official/nlp/Bert/src/utils.py (LossCallBack),
official/cv/YOLO; mindspore-lab/mindcv and mindyolo, utils/callback.py.
"""
from __future__ import annotations

import math
import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, VALUE, number, whole
from opd.importers.logs.reading import ROW, Reading, torn, too_long

NAME = "MindSpore"
SPELLINGS = {
    "LossMonitor": "epoch: 1 step: 39, loss is 2.5",
    "LossMonitor, NaN": "ValueError: epoch: 2 step: 10. Invalid loss, terminating training.",
    "MindFormers": "2024-05-06 07:08:01,308 - mindformers[mindformers/core/callback/callback.py:529] - INFO - { Epoch:[  2/  2], step:[   "
                   "10/  100], loss: 2.500, per_step_time: 1752ms, lr: 1e-05, overflow cond: True, loss_scale: 4096.0, global_norm: "
                   "[1.25], train_throughput_per_npu: 170.738T",
    "MindFormers, with the mean": "Epoch:[  2/  2], step:[   10/  100], loss:[2.500/2.750], time:680.279 ms, lr:8e-08, overflow cond: "
                                  "False, loss_scale: 4096.0",
    "step of all": "step 10/25, loss: 2.5, per_step_time: 153ms, overflow cond: False, loss_scale: 4096.0, global_norm: [1.25]",
    "MindCV": "epoch: [2/10] step: [10/100], loss: 2.500000, overflow: True, lr: 0.001000, per step time: 10.0 ms, fps: 3.00 img/s",
    "YOLO": "2024-05-06 07:08:01,004:INFO:epoch[2], iter[377], loss:2.5, per step time: 7642.25 ms, fps: 8.37, lr:0.003",
    "BERT": "epoch: 1, current epoch percent: 0.001, step: 100, outputs are (Tensor(shape=[], dtype=Float32, value= 2.5), "
            "Tensor(shape=[], dtype=Bool, value= True), Tensor(shape=[], dtype=Float32, value= 4096))",
}

_BRACKETS = re.compile(r"\bEpoch:\s*\[\s*(\d+)\s*/\s*\d+\s*\],? step:\s*\[\s*(\d+)\s*/\s*(\d+)\s*\],", re.IGNORECASE)
_STEP = re.compile(r"\bstep (\d+)/\d+, loss: .*(?:per_step_time|overflow cond)")
_MONITOR = re.compile(rf"\bepoch: (\d+),? step: (\d+),? loss is ({REAL})\s*$")
_INVALID = re.compile(r"\bepoch: (\d+) step: (\d+)\. Invalid loss, terminating training")
_YOLO = re.compile(r"\bepoch\[(\d+)\], iter\[(\d+)\], loss:")
_BERT = re.compile(rf"\bepoch: (\d+), (?:current epoch percent: {REAL}, )?step: (\d+), outputs are (.*)$")
_TENSOR = re.compile(r"value=\s*\[?([\w.+-]+)")
_LOSS = re.compile(rf"\bloss:\s*\[?\s*({REAL})")
_OVERFLOW = re.compile(r"\boverflow(?: cond)?:\s*\[?\s*(True|False|1|0)")
_FIELDS = {"loss_scale": re.compile(rf"\bloss_scale:\s*{VALUE}"), "lr": re.compile(rf"\blr:\s*{VALUE}"),
           "grad_norm": re.compile(rf"\bglobal_norm:\s*{VALUE}")}
_BEGUN = re.compile(r"\{ Epoch:\[|\bepoch: \d+ step: \d+, loss is|overflow cond:|\boutputs are \(?Tensor")


def read(line: Line) -> Reading | None:
    """The reading of a line of MindSpore's, None for any other."""
    text = line.text
    reading = _read(text)
    if reading is None:
        return torn("begins like a line of MindSpore and does not go on like one") if _BEGUN.search(text) else None
    return too_long() if reading.step is None else reading


def _read(text: str) -> Reading | None:
    if found := _BRACKETS.search(text):
        values = _values(text)
        place = {"step": whole(found[2]), "epoch": whole(found[1]), "length": whole(found[3]), "epoch_base": 1}
        return Reading(ROW, values, **place) if "loss" in values else None
    if (found := _STEP.search(text)) or (found := _YOLO.search(text)):
        values = _values(text)
        return Reading(ROW, values, whole(found[found.lastindex])) if "loss" in values else None
    if found := _MONITOR.search(text):
        return Reading(ROW, {"loss": number(found[3])}, whole(found[2]), whole(found[1]))
    if found := _INVALID.search(text):
        return Reading(ROW, {"loss": math.nan}, whole(found[2]), whole(found[1]))
    if found := _BERT.search(text):
        tensors = _TENSOR.findall(found[3]) or re.findall(REAL, found[3])[:1]
        if not tensors or not re.fullmatch(REAL, tensors[0]):
            return None
        values = {"loss": number(tensors[0])}
        if len(tensors) > 2 and tensors[1] in ("True", "False", "0", "1") and re.fullmatch(REAL, tensors[2]):
            values |= {"overflows": float(tensors[1] in ("True", "1")), "loss_scale": number(tensors[2])}
        return Reading(ROW, values, whole(found[2]))
    return None


def _values(text: str) -> dict[str, float]:
    loss, overflow = _LOSS.search(text), _OVERFLOW.search(text)
    values = {"loss": number(loss[1])} if loss else {}
    values |= {field: number(found[1]) for field, pattern in _FIELDS.items() if (found := pattern.search(text))}
    return values | ({"overflows": float(overflow[1] in ("True", "1"))} if overflow else {})
