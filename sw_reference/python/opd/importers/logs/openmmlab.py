"""OpenMMLab: text logs of mmcv (until 2022) and of MMEngine.

open-mmlab/mmcv v1, mmcv/runner/hooks/logger/text.py (TextLoggerHook); open-mmlab/mmengine,
mmengine/runner/log_processor.py (LogProcessor.get_log_after_iter).
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import choose, field_of, find, whole
from opd.importers.logs.reading import EVALUATION, KNOWN, ROW, Reading, torn, too_long

NAME = "OpenMMLab"
SPELLINGS = {
    "mmcv, by epoch": "2024-05-06 07:08:50,250 - mmdet - INFO - Epoch [2][50/100]\tlr: 1.000e-02, eta: 1:00:00, time: 0.750, data_time: "
                      "0.050, memory: 8000, loss_cls: 1.2500, loss_bbox: 0.2500, loss: 1.5000, grad_norm: 4.5000",
    "mmcv, by iteration": "2024-05-06 07:08:50,250 - mmseg - INFO - Iter [50/80000]\tlr: 9.996e-03, eta: 1 day, 0:00:00, time: 0.5, "
                          "data_time: 0.01, memory: 9000, decode.loss_ce: 1.5000, decode.acc_seg: 20.0, loss: 1.5000",
    "mmcv, validation": "2024-05-06 07:08:50,250 - mmdet - INFO - Epoch(val) [2][100]\tbbox_mAP: 0.3500, loss: 0.5000",
    "MMEngine, by epoch": "05/06 07:08:50 - mmengine - INFO - Epoch(train)   [2][ 50/100]  lr: 1.0000e-02  eta: 0:30:00  time: 0.0500  "
                          "data_time: 0.0010  memory: 2000  grad_norm: 4.5000  loss: 1.5000  loss_kpt: 0.5000",
    "MMEngine, by iteration": "2024/05/06 07:08:50 - mmengine - INFO - Iter(train) [   50/80000]  base_lr: 1.0e-02 lr: 9.996e-03  eta: "
                              "0:30:00  time: 0.0500  loss: 1.5000",
    "MMEngine, validation": "05/06 07:08:50 - mmengine - INFO - Epoch(val)  [2][100/100]    coco/bbox_mAP: 0.3500  data_time: 0.01",
}

_EPOCH = re.compile(r"\bEpoch(?:\((\w+)\))?\s*\[\s*(\d+)\]\[\s*(\d+)\s*(?:/\s*(\d+)\s*)?\](.*)$")
_ITER = re.compile(r"\bIter(?:\((\w+)\))?\s*\[\s*(\d+)\s*/\s*\d+\s*\](.*)$")
_BEGUN = re.compile(r"\b(?:Epoch|Iter)\(train\)|\bEpoch \[\d+\]\[\d+/\d+\]\tlr")


def read(line: Line) -> Reading | None:
    """The reading of a line of OpenMMLab's, None for any other."""
    text = line.text
    if found := _EPOCH.search(text):
        mode, numbers, rest = found[1], (found[2], found[3], found[4]), found[5]
    elif found := _ITER.search(text):
        mode, numbers, rest = found[1], (None, found[2], None), found[3]
    else:
        return torn("begins like a line of OpenMMLab and does not go on like one") if _BEGUN.search(text) else None
    if mode not in (None, "train"):
        return Reading(EVALUATION)
    if "lr:" not in rest and mode is None:   # another tool's "Epoch [1][50/100]"
        return None
    if not re.search(r"\bloss\b|loss", rest):
        return torn("a line of OpenMMLab that ends before its losses") if mode or "\tlr:" in rest else Reading(KNOWN)
    epoch, step, length = (whole(text) for text in numbers)
    if step is None or (numbers[0] is not None and epoch is None):
        return too_long()
    values, named = choose([metric for metric in find(rest) if field_of(metric.name)])
    if "loss" not in values:
        return torn("a line of OpenMMLab whose loss is no number")
    return Reading(ROW, values, step, epoch, length, epoch_base=1, loss_name=named)
