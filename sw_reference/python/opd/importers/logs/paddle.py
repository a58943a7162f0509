"""PaddlePaddle: PaddleNLP's training loops and its Trainer, PaddleFleetX, PaddleSeg, PaddleOCR, PaddleClas.

PaddlePaddle/PaddleNLP, model_zoo/bert/run_pretrain.py, model_zoo/ernie-1.0/run_pretrain.py (loops), paddlenlp/trainer/trainer.py
and trainer_callback.py ("optimizer not run", the dict of metrics); PaddleFleetX, ppfleetx/core/module/language_module.py;
PaddlePaddle/PaddleSeg, paddleseg/core/train.py; PaddleOCR, tools/program.py; PaddleClas, ppcls/engine/train/utils.py.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, choose, find, number, whole
from opd.importers.logs.reading import EVALUATION, OVERFLOW, ROW, Reading, torn

NAME = "Paddle"
SPELLINGS = {
    "loop": "[2024-05-06 07:08:01,500] [    INFO] - global step 100, loss: 8.125000, lm_loss: 8.125000, speed: 2.50 steps/s, ips: 80.00 "
            "seqs/s, learning rate: 5.00000e-06, loss_scaling: 65536.00, incr_count: 0.00, decr_count: 0.00",
    "loop with epochs": "[2024-05-06 07:08:01,500] [    INFO] - global step 100, epoch: 1, batch: 99, loss: 8.125, lr: 0.0000100000, "
                        "speed: 2.50 step/s",
    "Trainer": "[2024-05-06 07:08:01,500] [    INFO] - loss: 8.125, learning_rate: 2e-06, global_step: 100, interval_runtime: 1.1518, "
               "interval_samples_per_second: 0.8682, interval_steps_per_second: 0.8682, epoch: 0.01",
    "Trainer, skipped step": "[2024-05-06 07:08:01,500] [ WARNING] - optimizer not run, scale_before: 32768.0, scale_after: 16384.0",
    "PaddleFleetX": "[2024-05-06 07:08:01,500] [    INFO] - [train] epoch: 0, batch: 100, loss: 8.125000000, avg_batch_cost: 0.5 sec, "
                    "speed: 2.0 step/s, ips_total: 100 tokens/s, learning rate: 5.0e-06, found_inf: 0",
    "PaddleSeg": "2024-05-06 07:08:01 [INFO]\t[TRAIN] epoch: 1, iter: 100/80000, loss: 8.1250, lr: 0.009, batch_cost: 0.5, reader_cost: "
                 "0.1, ips: 4.0 samples/sec | ETA 01:00:00",
    "PaddleOCR": "[2024/05/06 07:08:01] ppocr INFO: epoch: [1/500], global_step: 100, lr: 0.001000, loss: 8.125000, avg_reader_cost: 0.1 "
                 "s, avg_batch_cost: 0.5 s, eta: 1:00:00",
    "PaddleClas": "[2024/05/06 07:08:01] ppcls INFO: [Train][Epoch 2/120][Iter: 10/100]lr(PiecewiseDecay): 0.10000000, top1: 0.00000, "
                  "CELoss: 8.12500, loss: 8.12500, batch_cost: 0.5s, ips: 32 images/s, eta: 1:00:00",
}

_LOOP = re.compile(r"\bglobal step (\d+)(?:/\d+)?, ")
_TRAINER = re.compile(r"\bglobal_step: (\d+), ")
_SKIP = re.compile(rf"optimizer not run, scale_before: ({REAL}), scale_after: ({REAL})")
_FLEETX = re.compile(r"\[train\] (?:global step (\d+), )?epoch: \[?(\d+)(?:/\d+)?\]?, batch: \[?(\d+)(?:/(\d+))?\]?, ")
_SEG = re.compile(r"\[TRAIN\] epoch: \d+(?:/\d+)?, iter: (\d+)/\d+, ")
_CLAS = re.compile(r"\[Train\]\[Epoch (\d+)/\d+\]\[Iter: (\d+)/(\d+)\]")
_EVALUATION = re.compile(r"\[(?:Eval|EVAL|eval)\]")
_BEGUN = re.compile(r"optimizer not run, scale_before|\bglobal step \d+, (?:epoch: \d+, batch: \d+, )?loss|\[Train\]\[Epoch|\[TRAIN\] epoch")


def read(line: Line) -> Reading | None:
    """The reading of a line of Paddle's, None for any other."""
    text = line.text
    if _EVALUATION.search(text) and "loss" in text:
        return Reading(EVALUATION)
    if found := _SKIP.search(text):
        return Reading(OVERFLOW, {"scale_attempted": number(found[1]), "scale_after": number(found[2])})
    place = _place(text)
    if place is None:
        return torn("begins like a line of Paddle and does not go on like one") if _BEGUN.search(text) else None
    if place.step is None:
        return torn("a step of too many digits")
    place.values, place.loss_name = choose(find(text))
    if "found_inf" in text and (found := re.search(rf"\bfound_inf: ({REAL})", text)):
        place.values["overflows"] = number(found[1])
    return place if "loss" in place.values else torn("a line of Paddle whose loss is no number") if _BEGUN.search(text) else None


def _place(text: str) -> Reading | None:
    if found := _FLEETX.search(text):
        if found[1]:
            return Reading(ROW, step=whole(found[1]))
        return Reading(ROW, step=whole(found[3]), epoch=whole(found[2]), length=whole(found[4]))
    if found := _CLAS.search(text):
        return Reading(ROW, step=whole(found[2]), epoch=whole(found[1]), length=whole(found[3]), epoch_base=1)
    if (found := _LOOP.search(text) or _SEG.search(text)) and "loss" in text:
        return Reading(ROW, step=whole(found[1]))
    if (found := _TRAINER.search(text)) and re.search(r"\bloss: ", text) and ("interval_" in text or "avg_batch_cost" in text):
        return Reading(ROW, step=whole(found[1]))
    return None
