"""NVIDIA DLLogger: JSON lines and the text of its standard output, as the DeepLearningExamples print them.

NVIDIA/dllogger, dllogger/logger.py (JSONStreamBackend, StdOutBackend); DeepLearningExamples,
PyTorch/SpeechSynthesis/FastPitch, common/tb_dllogger.py (stdout_step_format).
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, Metric, choose, field_of, find, loose_json, number, whole
from opd.importers.logs.reading import EVALUATION, FALLBACK, KNOWN, ROW, Reading, torn

NAME = "DLLogger"
SPELLINGS = {
    "JSON": "DLLL {\"timestamp\": \"1616171.5\", \"datetime\": \"2024-05-06 07:08:09.5\", \"elapsedtime\": \"3.5\", \"type\": \"LOG\", "
            "\"step\": [2, 79], \"data\": {\"train_loss\": 2.5, \"lr\": 0.001}}",
    "JSON, one number": "DLLL {\"type\": \"LOG\", \"step\": 79, \"data\": {\"step_loss\": \"2.5\", \"learning_rate\": \"0.001\"}}",
    "JSON, epoch": "DLLL {\"type\": \"LOG\", \"step\": [2], \"data\": {\"train_loss\": 2.5}}",
    "JSON, validation": "DLLL {\"type\": \"LOG\", \"step\": [2, 79, 3], \"data\": {\"val_loss\": 2.5}}",
    "text": "DLL 2024-05-06 07:08:09.123456 - Epoch: 2 Iteration: 79  train_loss : 2.5  learning_rate : 0.001",
    "text, BERT": "DLL 2024-05-06 07:08:09.123456 - Training Epoch: 2 Training Iteration: 79  average_loss : 2.75  step_loss : 2.5  "
                  "learning_rate : 0.001",
    "text, FastPitch": "DLL 2024-05-06 07:08:09.123456 - epoch    2 | iter  79/100 | loss 2.5 | mel loss 35.04 | 5730.98 frames/s | "
                       "took 24.54 s | lrate 1.00e-03",
    "parameters": "DLL 2024-05-06 07:08:09.123456 - PARAMETER loss_scale : 128.0",
}

_JSON = re.compile(r"\bDLLL? (\{.*)$")
_TEXT = re.compile(r"\bDLL \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ - (.*)$")
_EPOCH = re.compile(r"(?i)\bepoch:?\s+(\d+)")
_ITERATION = re.compile(r"(?i)\b(?:iter|iteration|step):?\s+(\d+)(?:/(\d+))?")


def read(line: Line) -> Reading | None:
    """The reading of a line of DLLogger's, None for any other."""
    if "DLL" not in line.text:
        return None
    if found := _JSON.search(line.text):
        return _json(found[1])
    if found := _TEXT.search(line.text):
        return _text(found[1])
    return torn("begins like a line of DLLogger and does not go on like one") if re.match(r"DLLL?\b", line.text) else None


def _json(text: str) -> Reading:
    try:
        content = loose_json(text)
    except ValueError:
        return torn("a JSON line of DLLogger that is not valid JSON")
    if not isinstance(content, dict) or not isinstance(content.get("data"), dict) or content.get("type", "LOG") != "LOG":
        return Reading(KNOWN)
    step, data = content.get("step"), content["data"]
    numbers = [step] if isinstance(step, int) else step if isinstance(step, list) else []
    if any(re.match(r"(?i)(?:val|eval|test)", name) for name in data) or len(numbers) > 2:
        return Reading(EVALUATION)
    values, named = choose([Metric(name, n, 0) for name, value in data.items() if field_of(name)
                            and (n := _number(value)) is not None])
    return _reading(values, named, [whole(str(n)) for n in numbers], len(numbers) == 1 and isinstance(step, int))


def _text(text: str) -> Reading:
    if text.startswith("PARAMETER"):
        return Reading(KNOWN)
    if re.search(r"(?i)\b(?:validation|val|eval)\b", text):
        return Reading(EVALUATION)
    epoch, iteration = _EPOCH.search(text), _ITERATION.search(text)
    values, named = choose(find(text))
    numbers = [whole(found[1]) for found in (epoch, iteration) if found]
    reading = _reading(values, named, numbers, iteration is not None and epoch is None)
    reading.length = whole(iteration[2]) if iteration and epoch else None
    return reading


def _reading(values: dict[str, float], named: str | None, numbers: list[int | None], is_step: bool) -> Reading:
    if not values:
        return Reading(KNOWN)
    if any(n is None for n in numbers):
        return torn("a line of DLLogger whose step is no whole number")
    if not numbers:
        return Reading(EVALUATION)
    if len(numbers) == 2:
        return Reading(ROW, values, numbers[1], numbers[0], loss_name=named)
    if is_step:
        return Reading(ROW, values, numbers[0], loss_name=named)
    return Reading(FALLBACK, values, epoch=numbers[0], loss_name=named)


def _number(value) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return number(value) if isinstance(value, str) and re.fullmatch(REAL, value.strip()) else None
