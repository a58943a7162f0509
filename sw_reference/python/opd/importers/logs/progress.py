"""Progress bars that carry metrics: PyTorch Lightning (and NeMo 1), tqdm with a postfix, Keras.

tqdm/tqdm, tqdm/std.py (format_meter, set_postfix); Lightning-AI/pytorch-lightning,
src/lightning/pytorch/callbacks/progress/ tqdm_progress.py and rich_progress.py; keras-team/keras,
keras/src/utils/progbar.py (Progbar.update; Keras 2: keras/utils/ generic_utils.py). A bar is drawn again and again: its
last state at a step counts. Bars without metrics tell the step of what is printed between them (logs/steps.py).
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Bar, Line
from opd.importers.logs.metrics import EVALUATION as EVALUATION_WORD
from opd.importers.logs.metrics import choose, field_of, find, whole
from opd.importers.logs.reading import EVALUATION, KNOWN, MARK, ROW, Reading

NAME = "progress bar"
SPELLINGS = {
    "Lightning": "Epoch 3:  50%|#####     | 50/100 [00:01<00:01, 49.6it/s, v_num=0, train_loss_step=2.5, train_loss_epoch=2.75]",
    "Lightning 1": "Epoch 3:  50%|#####     | 50/100 [00:01<00:01, 49.6it/s, loss=2.5, v_num=0, val_loss=2.75]",
    "Lightning, rich": "Epoch 3/9  ---------- 50/100 0:00:01 • 0:00:01 49.6it/s v_num: 0.000 loss: 2.500",
    "NeMo 1": "Epoch 0: : 47%|####7     | 50/100 [06:19<07:13, v_num=gjbq, reduced_train_loss=2.500, global_step=49.00, "
              "consumed_samples=12288.0, train_step_timing in s=49.50]",
    "Lightning, validation": "Validation DataLoader 0: 100%|##########| 10/10 [00:00<00:00, 198.6it/s]",
    "tqdm, total not known": "Epoch 1: : 50it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=2.5, global_step=50.00]",
    "tqdm, postfix": " 50%|#####     | 50/100 [00:01<00:01, 49.6it/s, loss=2.5, grad_norm=1.25]",
    "tqdm, description": "Epoch: 3. Loss: 2.50000:  50%|#####     | 50/100 [00:01<00:01, 49.6it/s]",
    "Lightning, layers": "1 | loss  | CrossEntropyLoss | 0     | train",
    "Keras": " 50/100 [=============>................] - ETA: 3s - loss: 2.5000 - accuracy: 0.3456",
    "Keras 3": " 50/100 ━━━━━━━━━━━━━━━━━━━━ 3s 9ms/step - accuracy: 0.3456 - loss: 2.5000",
    "Keras, one line per epoch": "100/100 - 5s - loss: 2.5000 - accuracy: 0.3456 - val_loss: 2.7500 - 5s/epoch - 50ms/step",
}

_KERAS = re.compile(r"^(\d+)/(\d+)\s+(?:\[[=>.\s]*\]|[━╸╺\x20]+(?=\d)|-)\s*.*?-\s+\w")
_RICH = re.compile(r"^(.*?)(?<![━╸╺─-])[━╸╺─-]{3,}\s*(\d+)/(\d+)\s+\d+:\d\d:\d\d\s*\S\s*\S+\s+\S*it/s\s*(.*)$")
_LAYERS = re.compile(r"^\d+\s*\|\s*\w+\s*\|\s*[A-Z]\w*\s*\|")
_NOT_TRAINING = re.compile(
    r"(?i)\bvalid|\bsanity|\btest|\bpredict|\beval|\bloading|\bdownload|\bmap\b|\btokeniz|\bgenerat|\bfilter")


def read(line: Line) -> Reading | None:
    """The reading of a bar, None for any other line."""
    if line.bar is not None:
        return _bar(line.bar)
    if _LAYERS.match(line.text):
        return Reading(KNOWN)
    if found := _RICH.match(line.text):
        done, total = whole(found[2]), whole(found[3])
        return None if done is None or not total else _bar(Bar(found[1], done, total, found[4]))
    if found := _KERAS.match(line.text):
        done, total = whole(found[1]), whole(found[2])
        return None if done is None or not total else _bar(Bar("", done, total, line.text))
    return None


def _bar(bar: Bar) -> Reading:
    if _NOT_TRAINING.search(bar.description):
        return Reading(EVALUATION)
    metrics = [metric for metric in find(f"{bar.description} , {bar.postfix}")
               if field_of(metric.name) and not EVALUATION_WORD.search(metric.name.replace("_", " "))]
    values, named = choose(metrics)
    if "loss" not in values and "grad_norm" not in values:
        return Reading(MARK, step=bar.done)
    return Reading(ROW, values, bar.done, bar.epoch, bar.total or None, loss_name=named, rewrites=True)
