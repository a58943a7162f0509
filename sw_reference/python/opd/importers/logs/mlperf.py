"""MLPerf's own lines in a log: events with a key, a value and metadata.

mlcommons/logging, mlperf_logging/mllog/mllog.py (":::MLLOG {json}"); mlcommons/training v0.5, v0.6,
compliance/mlperf_log.py (":::MLL time key: {json}", ":::MLPv0.5.0 benchmark time (file:line) key: value"). Values whose
key, or key inside, is a loss, gradient norm, learning rate or loss scale are read, at metadata "step", "iteration",
"samples_count" or "epoch_num".
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import REAL, loose_json, number
from opd.importers.logs.reading import EVALUATION, KNOWN, ROW, Reading, torn
from opd.importers.names import SCALAR_OF, key

NAME = "MLPerf"
SPELLINGS = {
    "MLLOG": ":::MLLOG {\"namespace\": \"\", \"time_ms\": 3, \"event_type\": \"POINT_IN_TIME\", \"key\": \"train_loss\", \"value\": 2.5, "
             "\"metadata\": {\"file\": \"a.py\", \"lineno\": 9, \"step\": 20}}",
    "MLLOG, tracked stats": ":::MLLOG {\"namespace\": \"\", \"time_ms\": 2, \"event_type\": \"POINT_IN_TIME\", \"key\": \"tracked_stats\", "
                            "\"value\": {\"train_loss\": 3.5, \"throughput\": 9}, \"metadata\": {\"file\": \"a.py\", \"lineno\": 8, "
                            "\"step\": 10}}",
    "MLL": ":::MLL 1561426937.657 grad_norm: {\"value\": 0.75, \"metadata\": {\"step\": 10, \"file\": \"a.py\", \"lineno\": 1}}",
    "v0.5": ":::MLPv0.5.0 gnmt 1541640137.7 (train.py:300) train_epoch: 3",
}
COUNTERS = ("step", "step_num", "iteration", "iteration_num", "samples_count", "epoch_num")

_MLLOG = re.compile(r":::MLLOG (.*)$")
_MLL = re.compile(r":::MLL (\S+) (\S+?): (.*)$")


def read(line: Line) -> Reading | None:
    """The reading of a line of MLPerf's, None for any other."""
    text = line.text
    if ":::ML" not in text:
        return None
    if re.search(r":::MLPv0\.\d", text):
        return Reading(KNOWN)
    found = _MLLOG.search(text) or _MLL.search(text)
    if not found:
        return torn("an MLPerf line without time, key and value")
    try:
        content = loose_json(found[found.lastindex])
    except ValueError:
        return torn("an MLPerf line whose value is not valid JSON")
    if not isinstance(content, dict) or "value" not in content or not isinstance(content.get("metadata"), dict):
        return torn("an MLPerf line without value and metadata")
    return _event(str(found[2] if found.lastindex == 3 else content.get("key")), content["value"], content["metadata"])


def _event(name: str, value, metadata: dict) -> Reading:
    if name == "submission_benchmark":
        return Reading(KNOWN, model=str(value))
    items = value.items() if isinstance(value, dict) else [(name, value)]
    numbers = {k: n for k, v in items if (n := _number(v)) is not None}
    values = {SCALAR_OF[key(k)]: n for k, n in numbers.items() if key(k) in SCALAR_OF}
    if any(key(k).startswith(("eval", "val", "valid", "test")) for k in numbers):
        return Reading(EVALUATION)
    counter = next((k for k in COUNTERS if type(metadata.get(k)) is int), None)
    if not values or counter is None:
        return Reading(KNOWN)
    if metadata[counter] < 0:
        return torn(f"an MLPerf line whose {counter} is negative")
    return Reading(ROW, values, metadata[counter], counter=counter if counter in ("samples_count", "epoch_num") else "")


def _number(value) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e308 or isinstance(value, float) else None
    if isinstance(value, str) and re.fullmatch(REAL, value.strip()):
        return number(value)
    return None
