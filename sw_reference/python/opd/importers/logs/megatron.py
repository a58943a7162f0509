"""Megatron-LM, Megatron-DeepSpeed, GPT-NeoX, MindSpeed: one line of "name: value" fields per iteration.

NVIDIA/Megatron-LM, megatron/training/training.py (training_log, evaluate_and_print_results; megatron/training.py until 2023);
megatron/core/distributed/param_and_grad_buffer.py (check_grads).
"""
from __future__ import annotations

import math
import re
from functools import lru_cache

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, field_of, number, whole
from opd.importers.logs.reading import EVALUATION, OVERFLOW, ROW, Reading, torn
from opd.importers.names import key as _key

key = lru_cache(1 << 12)(_key)   # a log has few names, and each of them in every line

NAME = "Megatron"
SPELLINGS = {
    "iteration": "[2024-05-06 07:08:09] iteration       20/    1000 | consumed samples:          320 | elapsed time per iteration "
                 "(ms): 431.0 | learning rate: 2.000E-04 | global batch size:    16 | lm loss: 6.500000E+00 | loss scale: 512.0 "
                 "| grad norm: 2.500 | number of skipped iterations:   1 | number of nan iterations:   0 |",
    "iteration without time": " iteration       20/    1000 | elapsed time per iteration (ms): 431.0 | learning rate 2.000E-04 | "
                              "lm loss 6.500000E+00 | loss scale 512.0 |",
    "iteration, NAN in capitals": " iteration       20/    1000 | learning rate: 2.000E-04 | lm loss: NAN | loss scale: 512.0 | "
                                  "grad norm: INF | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "iteration, all skipped": " iteration        1/       5 | learning rate: 6.000000E-05 | global batch size:    32 | loss scale: "
                              "4096.0 | number of skipped iterations:   1 | number of nan iterations:   0 |",
    "iteration, fork": " iteration      824/20000 | consumed samples:       421888 | learning rate: 1.470E-04 | lm loss:  7.25 | loss "
                       "scale: 32768.0 | grad norm: 48.5 | skipped iterations:   1 | nan iterations:   0",
    "validation": " validation loss at iteration 1000 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 |",
    "check of gradients": "AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel "
                          "communication collective. Device: 5, node: node-15-11",
    "overflow": " WARNING: Overflow detected, setting loss scale to 32768.0",
}

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)$")
_BEGUN = re.compile(r"\biteration\s+\d+\s*/\s*\d+\s*\|")
_CUT = re.compile(r"\]\s*iteration\s+\d+\s*/?\s*\d*\s*$")
_PART = re.compile(r"\|\s*(?:lm loss|loss scale|grad norm|number of (?:skipped|nan) iterations):\s")
_FIELD = re.compile(rf"^([A-Za-z][\w ./()-]*?)\s*:?\s+({REAL})$|^([A-Za-z][\w ./()-]*?):({REAL})$")
_VALIDATION = re.compile(r"(?i)\b(?:validation|test) loss at (?:iteration|the end of training|end of training)|"
                         r"\b(?:lm )?loss (?:value|PPL):")
_CHECK = re.compile(r"found (NaN|Inf|unexpectedly large) in local (?:grad|forward) norm|"
                    r"(?:Exception|Error): .*\b(?:found NaN|Unexpected result nan|Unexpected result inf)")
_OVERFLOW = re.compile(rf"\bWARNING: Overflow detected, setting loss scale to:? ({REAL})\s*$")
_SKIPPED = ("skipped_iterations", "number_of_skipped_iterations")
_NANS = ("nan_iterations", "number_of_nan_iterations")


def read(line: Line) -> Reading | None:
    """The reading of a line of Megatron's, None for any other."""
    text = line.text
    if "iteration" in text and (found := _ITERATION.search(text)):
        return _iteration(found)
    if _VALIDATION.search(text):
        return Reading(EVALUATION)
    if found := _OVERFLOW.search(text):
        return Reading(OVERFLOW, {"scale_after": number(found[1])})
    if _CHECK.search(text) and "large" not in text:
        return Reading(OVERFLOW, part="check")
    if _CUT.search(text):
        return torn("an iteration line that ends after the iteration")
    return torn("a part of an iteration line") if _PART.search(text) else None


def _iteration(found: re.Match) -> Reading:
    step = whole(found[1])
    if step is None:
        return torn(f"an iteration of {len(found[1])} digits")
    values: dict[str, float] = {}
    losses: dict[str, float] = {}
    *fields, last = found[3].split("|")
    for text in (*fields, last):
        text = text.strip()
        if _BEGUN.search(f"{text} |"):
            return torn("two iteration lines in one")
        pair = _FIELD.match(text)
        name = key((pair[1] or pair[3]) if pair else re.split(r":|\s{2,}|\s(?=[-+\d])", text)[0])
        field = field_of(name) if name not in (*_SKIPPED, *_NANS) else None
        if pair is None:
            if field in ("loss", "grad_norm", "loss_scale") or name in (*_SKIPPED, *_NANS):
                return torn(f"an iteration line whose {name.replace('_', ' ')} is no number")
            continue
        value = number(pair[2] or pair[4])
        if name in _SKIPPED:
            values["overflows"] = value
        elif name in _NANS:
            values["nan_losses"] = value
        elif field == "loss":
            losses[name] = value
        elif field is not None:
            values.setdefault(field, value)
    if losses:
        values["loss"] = losses.get("lm_loss", losses.get("loss", next(iter(losses.values()))))
        bad = [value for value in losses.values() if not math.isfinite(value)]
        values["loss"] = bad[0] if bad and math.isfinite(values["loss"]) else values["loss"]
    if last.strip() and _FIELD.match(last.strip()) is None:
        return torn("an iteration line that does not end with \"|\"")
    return Reading(ROW, values, step, doubt="does not end with \"|\"" if last.strip() else "")
