"""fairseq: progress lines as text and as JSON, overflows of its FP16 optimizer.

facebookresearch/fairseq v0.6..v0.12, fairseq/logging/progress_bar.py (SimpleProgressBar, JsonProgressBar; fairseq/progress_bar.py
until v0.8), fairseq/trainer.py (train_step), fairseq/optim/dynamic_loss_scaler.py.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number, whole
from opd.importers.logs.reading import AVERAGE, EVALUATION, OVERFLOW, ROW, Reading, torn
from opd.importers.names import SCALAR_OF, key

NAME = "fairseq"
SPELLINGS = {
    "simple, until v0.8": "| epoch 001:   1000 / 1637 loss=7.624, nll_loss=0.000, ppl=1.00, wps=319403, ups=4.1, num_updates=996, "
                          "lr=0.0019681, gnorm=62144.234, clip=100%, oom=0, loss_scale=4.000, wall=241",
    "simple": "2024-05-06 07:01:00 | INFO | train_inner | epoch 002:     85 / 282 loss=3.147, ppl=8.86, wps=72384.3, num_updates=400, "
              "lr=0.0002, gnorm=0.489, clip=0, loss_scale=128, train_wall=48, wall=0",
    "epoch": "2024-05-06 07:01:00 | INFO | train | epoch 002 | loss 3.14 | ppl 8.82 | num_updates 564 | lr 0.00025 | gnorm 0.485 | "
             "clip 0 | loss_scale 64 | train_wall 260 | wall 0",
    "JSON": "2024-05-06 07:01:00 | INFO | train_inner | {\"epoch\": 1, \"update\": 0.002, \"loss\": \"14.5\", \"num_updates\": \"1\", "
            "\"lr\": \"4e-05\", \"gnorm\": \"19.25\", \"loss_scale\": \"8\", \"wall\": \"60\"}",
    "JSON, epoch": "2024-05-06 07:01:00 | INFO | train | {\"epoch\": 1, \"train_loss\": \"6.5\", \"train_num_updates\": \"282\", "
                   "\"train_lr\": \"0.0001\", \"train_gnorm\": \"2.5\", \"train_loss_scale\": \"128\", \"train_wall\": \"60\"}",
    "JSON, validation": "2024-05-06 07:01:00 | INFO | valid | {\"epoch\": 1, \"valid_loss\": \"5.5\", \"valid_num_updates\": \"282\"}",
    "validation": "2024-05-06 07:01:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 12.677 | num_updates 430",
    "overflow, until v0.8": "| WARNING: overflow detected, setting loss scale to: 64.0",
    "overflow, v0.9": "2024-05-06 07:01:00 | INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: 64.0",
    "overflow": "2024-05-06 07:01:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss "
                "scale to: 64.0",
    "smallest scale": "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the "
                      "learning rate, using gradient clipping or increasing the batch size.",
}

_PLACE = re.compile(r"\| epoch (\d+)(:\s+\d+ / \d+ | \| )")
_PAIR = re.compile(rf"(?:^|[\s,|])([a-z_]+)[= ]({REAL})(?=[\s,|]|$)")
_END = re.compile(rf"wall[= ]{REAL}\s*$")
_OVERFLOW = re.compile(rf"overflow detected,(?: ignoring gradient,)? setting loss scale to: ({REAL})\s*$")
_MINIMUM = re.compile(r"(?:Error: |^)Minimum loss scale reached")
_BEGUN = re.compile(r"overflow detected, (?:ignoring|setting)|\| epoch \d+(?::| \|)")
_JSON = re.compile(r"(?:\b(train_inner|train|valid\w*|test\w*) \| |^)(\{\".*)$")
_JSON_PAIR = re.compile(rf"\"((?:train_|valid_)?[a-z_]+)\": \"?({REAL})\"?(?=[,}}])")


def read(line: Line) -> Reading | None:
    """The reading of a line of fairseq's, None for any other."""
    text = f"| {line.text}" if line.text.startswith("epoch ") else line.text
    if found := _OVERFLOW.search(text):
        return Reading(OVERFLOW, {"scale_after": number(found[1])})
    if _MINIMUM.search(text):
        return Reading(OVERFLOW, part="minimum")
    if "num_updates\"" in text and (found := _JSON.search(text)):
        return _json(found)
    if found := _PLACE.search(text):
        return _text(text, found)
    if _BEGUN.search(text):
        return torn("begins like a line of fairseq and does not go on like one")
    return None


def _text(text: str, found: re.Match) -> Reading | None:
    if "num_updates" not in text and "loss_scale" not in text and "wps" not in text:
        return torn("a fairseq line without num_updates") if found[2] != " | " and "loss=" in text else None
    if re.search(r"\bvalid on\b|\bvalid_loss\b|\| (?:valid|test)\w* \|", text):
        return Reading(EVALUATION)
    values, step = _values(_PAIR.findall(text))
    if step is None:
        return torn("a fairseq line without num_updates")
    return Reading(AVERAGE if found[2] == " | " else ROW, values, step, doubt="" if _END.search(text) else "cut off before wall")


def _json(found: re.Match) -> Reading:
    if not found[2].rstrip().endswith("}"):
        return torn("a JSON line of fairseq that does not end with \"}\"")
    pairs = _JSON_PAIR.findall(found[2])
    if (found[1] or "").startswith(("valid", "test")) or any(name.startswith("valid_") for name, _ in pairs):
        return Reading(EVALUATION)
    is_epoch = found[1] == "train" or any(name == "train_num_updates" for name, _ in pairs)
    values, step = _values([(name.removeprefix("train_"), value) for name, value in pairs])
    if step is None:
        return torn("a JSON line of fairseq without num_updates")
    return Reading(AVERAGE if is_epoch else ROW, values, step)


def _values(pairs: list[tuple[str, str]]) -> tuple[dict[str, float], int | None]:
    values, step = {}, None
    for name, text in pairs:
        if name == "num_updates":
            step = whole(text)
        elif key(name) in SCALAR_OF:
            values[SCALAR_OF[key(name)]] = number(text)
    return values, step
