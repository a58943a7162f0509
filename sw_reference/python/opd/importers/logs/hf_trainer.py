"""Hugging Face Trainer, and those that log through it (TRL, LLaMA-Factory, ms-swift, axolotl): the dicts that it prints.

huggingface/transformers, src/transformers/trainer_callback.py (ProgressCallback.on_log, PrinterCallback.on_log). The numbers are
rounded, since 2025 they are strings. No dict tells the step: the progress bar beside it does, if there is one. The Trainer leaves losses
that are not finite out of its mean (logging_nan_inf_filter): a loss of exactly 0 says that all of an interval's were.
"""
from __future__ import annotations

import math
import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, Metric, choose, field_of, number, whole
from opd.importers.logs.reading import EVALUATION, ROW, Reading, torn

NAME = "HF Trainer"
SPELLINGS = {
    "dict": "{'loss': 2.31, 'grad_norm': 0.875, 'learning_rate': 2e-05, 'epoch': 0.05}",
    "dict, until 2023": "{'loss': 2.31, 'learning_rate': 2e-05, 'epoch': 0.05}",
    "dict of strings": "{'loss': '1.812', 'grad_norm': '0.5', 'learning_rate': '3e-05', 'epoch': '0.1'}",
    "dict with the step": "{'loss': 2.31, 'learning_rate': 2e-05, 'epoch': 0.05, 'step': 20}",
    "ms-swift": "{'loss': 2.31, 'grad_norm': 0.875, 'learning_rate': 2e-05, 'epoch': 0.05, 'global_step/max_steps': '20/60', "
                "'percentage': '33.33%'}",
    "evaluation": "{'eval_loss': 2.5, 'eval_runtime': 3.5, 'epoch': 0.2}",
    "metrics at the end": "  train_loss               =     1.745",
    "whole run": "{'train_runtime': 30.25, 'train_samples_per_second': 9.5, 'train_loss': 1.745, 'epoch': 0.2}",
}

_DICT = re.compile(r"(\{'(?:[\w/@.-]|\([\w/]+\))+': .*)$")
_PAIR = re.compile(rf"'([^']{{1,80}})': (?:[\w.]+\()?'?({REAL})'?\)?(?=\s*[,}}])")
_STEP = re.compile(r"'(?:global_step/max_steps|global_step|step|current_steps|iteration)': '?(\d+)(?:/\d+)?'?[,}]")
_SUMMARY = re.compile(r"(?:train|eval|predict|test)_\w+\s{2,}=\s")
_METRIC = re.compile(r"'(?:loss|grad_norm|learning_rate|train_loss|eval_loss|eval_runtime|train_runtime)'")


def read(line: Line) -> Reading | None:
    """The reading of a dict that the Trainer printed, None for any other line."""
    text = line.text
    if _SUMMARY.match(text):
        return Reading(EVALUATION)
    if "{'" not in text or not (found := _DICT.search(text)) or not _METRIC.search(found[1]):
        return None
    body = found[1].rstrip()
    if not body.endswith("}"):
        return torn("a dict of HF Trainer that does not end with \"}\"")
    pairs = dict(_PAIR.findall(body))
    if "train_runtime" in pairs or not {"loss", "grad_norm"} & pairs.keys():
        return Reading(EVALUATION)
    if re.search(r"'(?:loss|grad_norm)': ", body) and any(re.search(rf"'{name}': ", body) and name not in pairs
                                                          for name in ("loss", "grad_norm")):
        return torn("a dict of HF Trainer whose loss or gradient norm is no number")
    values, _ = choose([Metric(name, number(value), 0) for name, value in pairs.items() if field_of(name)
                        and (name in ("loss", "grad_norm", "learning_rate") or field_of(name) == "loss_scale")])
    told = _STEP.search(body)
    reading = Reading(ROW, values, whole(told[1]) if told else None)
    norm = values.get("grad_norm", math.nan)
    if values.get("loss") == 0 and "grad_norm" not in values or values.get("loss") == norm == 0:
        reading.note = "loss 0: none of the interval was finite"
    return reading
