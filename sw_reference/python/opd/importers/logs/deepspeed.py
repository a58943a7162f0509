"""DeepSpeed: overflow lines of its loss scalers and optimizers, and the engine's line of steps.

microsoft/DeepSpeed (deepspeedai/DeepSpeed), deepspeed/runtime/fp16/loss_scaler.py (update_scale), fused_optimizer.py and
unfused_optimizer.py (_update_scale, step), runtime/zero/stage_1_and_2.py and stage3.py (step), runtime/engine.py
(_report_progress), runtime/pipe/engine.py (train_batch). OpenLMLab/LOMO prints the same lines with its own name.
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, number, whole
from opd.importers.logs.reading import KNOWN, OVERFLOW, ROW, Reading, torn, too_long

NAME = "DeepSpeed"
SPELLINGS = {
    "ZeRO": "[2024-05-06 07:08:02,123] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
            "Attempted loss scale: 65536, reducing to 32768",
    "ZeRO, hysteresis": "[2024-05-06 07:08:01,123] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
                        "step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
    "ZeRO, BF16": "[2024-05-06 07:08:01,123] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step.",
    "ZeRO, 2020": "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 262144, reducing to 131072.0",
    "FP16_Optimizer": "[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
    "unfused optimizer": "[2024-05-06 07:08:01,123] [INFO] [unfused_optimizer.py:207:step] [deepspeed] fp16 dynamic loss scale "
                         "overflow! Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
    "fused optimizer": "[2024-05-06 07:08:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] Overflow detected. Skipping step. "
                       "Attempted loss scale: 65536, reducing to 32768.0",
    "iteration": "Grad overflow on iteration 12",
    "iteration, unfused": "[2024-05-06 07:08:01,123] [INFO] [unfused_optimizer.py:281:_update_scale] Grad overflow on iteration: 12",
    "scale": "[2024-05-06 07:08:01,123] [INFO] [fused_optimizer.py:345:_update_scale] Reducing dynamic loss scale from 65536 to "
             "32768.0",
    "scale, 2020": "Using dynamic loss scale of 65536",
    "scale at its minimum": "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    "engine": "[2024-05-06 07:08:09,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=3, lr=[7e-06, 7e-06], "
              "mom=[(0.9, 0.95), (0.9, 0.95)]",
    "pipeline engine": "steps: 20 loss: 10.6554 iter time (s): 4.218 samples/sec: 7.586",
}

_TAKEN = (rf"(?:,? Attempted loss scale: ({REAL})(?:, reducing to ({REAL})|, but hysteresis is \d+\. Reducing hysteresis to \d+)"
          r"\s*$|\s*$)")
_OVERFLOW = re.compile(rf"OVERFLOW! (?:Rank (-?\d+) )?Skipping step\.{_TAKEN}")
_DYNAMIC = re.compile(rf"fp16 dynamic loss scale overflow! Skipping step\.{_TAKEN}")
_DETECTED = re.compile(rf"Overflow detected\. Skipping step\.{_TAKEN}")
_ITERATION = re.compile(r"Grad overflow on iteration:?\s+(\d+)\s*$")
_REDUCING = re.compile(rf"Reducing dynamic loss scale from ({REAL}) to ({REAL})\s*$")
_USING = re.compile(rf"Using dynamic loss scale of\s+({REAL})\s*$")
_MINIMUM = re.compile(r"^(?:[\w.]*(?:Exception|Error): )?Current loss scale already at minimum")
_ENGINE = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=\[([^\]]*)\]")
_PIPE = re.compile(rf"\bsteps: (\d+) loss: ({REAL}) iter time \(s\):")
_KNOWN = re.compile(r"No Grad overflow for \d+ iterations|Increasing dynamic loss scale from|Consecutive hysteresis is enabled|"
                    r"RunningAvgSamplesPerSec|Creating fp16 .*optimizer|Enabling DeepSpeed FP16|In step before checking overflow|"
                    r"overflow (?:before|after) clearing gradients")
_BEGUN = re.compile(r"OVERFLOW! (?:Rank |Skipping)|Overflow detected\. Skipping|Grad overflow on iteration|"
                    r"(?:Reducing|Using) dynamic loss scale (?:from|of)|\bstep=\d+, skipped=|\bdynamic loss scale overflow!")
_RANK = re.compile(r"\[Rank (\d{1,9})\]")


def read(line: Line) -> Reading | None:
    """The reading of a line of DeepSpeed's, None for any other."""
    text = line.text
    reading = _read(text)
    if reading is None and _BEGUN.search(text):
        return torn("begins like a line of DeepSpeed and does not go on like one")
    if reading is not None and reading.rank is None and (found := _RANK.search(text)):
        reading.rank = f"rank{int(found[1])}"
    return reading


def _read(text: str) -> Reading | None:
    if _KNOWN.search(text):
        return Reading(KNOWN)
    if found := _OVERFLOW.search(text):
        rank = f"rank{found[1]}" if found[1] else None
        return Reading(OVERFLOW, _scales(found[2], found[3]), rank=rank,
                       part="scaler" if "loss_scaler.py" in text else "step")
    if found := _DYNAMIC.search(text) or _DETECTED.search(text):
        return Reading(OVERFLOW, _scales(found[1], found[2]), part="step")
    if found := _ITERATION.search(text):
        return Reading(OVERFLOW, part="iteration", iteration=whole(found[1]))
    if found := _REDUCING.search(text):
        return Reading(OVERFLOW, _scales(found[1], found[2]), part="scale")
    if found := _USING.search(text):
        return Reading(OVERFLOW, {"scale_attempted": number(found[1])}, part="scale")
    if _MINIMUM.search(text):
        return Reading(OVERFLOW, part="minimum")
    if found := _ENGINE.search(text):
        step, skipped = whole(found[1]), whole(found[2])
        if step is None or skipped is None:
            return too_long()
        rates = re.findall(REAL, found[3])
        return Reading(ROW, {"lr": number(rates[0])} if rates else {}, step, skipped=skipped)
    if found := _PIPE.search(text):
        step = whole(found[1])
        return too_long() if step is None else Reading(ROW, {"loss": number(found[2])}, step)
    return None


def _scales(attempted: str | None, after: str | None) -> dict[str, float]:
    """An overflow that hysteresis lets pass leaves the scale as it is."""
    if attempted is None:
        return {}
    return {"scale_attempted": number(attempted), "scale_after": number(after if after is not None else attempted)}
