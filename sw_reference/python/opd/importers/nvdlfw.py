"""NVIDIA nvdlfw_inspect statistics log, as TransformerEngine's debug features write it.

Format: the package nvdlfw_inspect, logging.py (FileLogger.log_scalar) and NVIDIA/TransformerEngine,
transformer_engine/debug/features/utils/stats_buffer.py (_Buffer.log) and stats_computation.py (STATS).

    2026-01-01 10:00:00,000 - INFO - decoder.fc1_activation_max \t\t\t\t iteration=000002 \t\t\t\t value=4.3188

The name is LAYER_TENSOR_STATISTIC. Values have four decimals: a magnitude below 0.00005 reads as 0. max_abs is cur_amax, else
the larger of |min| and |max|.
"""
from __future__ import annotations

import math
import re
from collections import Counter

from opd.importers.cells import whole
from opd.importers.names import MAGNITUDES, split_statistic
from opd.importers.run import ImportedRun, Step, stat_of
from opd.importers.source import COPY_AGAIN, Source

NAME = "nvdlfw-inspect"
WHAT = "NVIDIA nvdlfw_inspect statistics log"

# TransformerEngine's names of tensors, and what they are.
KINDS = {"activation": "activation", "output": "activation", "gradient": "gradient", "wgrad": "gradient", "dgrad": "gradient",
         "weight": "weight"}

_MARK = re.compile(rb"iteration=\d{6,} +\t*\s*value=")
_LINE = re.compile(r"(?:.*? - )?INFO - (\S.*?)\s+iteration=(\d+)\s+value=(\S+)$")
_FOREIGN = re.compile(r"(?:.*? - )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - (?!.*iteration=)")
# FP8 statistics: recipe in front, e.g. fp8_delayed_scaling_overflows%. They are about the quantised copy of the tensor.
_QUANTISED = re.compile(r"_(?:fp8|mxfp8|nvfp4|fp4)\w*_(?:underflows|overflows|scale_inv|mse|total)\S*$")
_OTHER = re.compile(r"_(?:sum|l[12]_norm(?:_square)?|(?:max_blockwise_)?dynamic_range\S*|underflows\S*|overflows\S*)$")
_SATURATED = re.compile(r"_overflows\S*$")   # of the quantised copy: its largest values were cut


def sniff(source: Source) -> int:
    """2 for such a log, 0 for anything else."""
    return 2 if _MARK.search(source.head) else 0


def read(source: Source) -> ImportedRun:
    """The log. Raises ImportFault with the line."""
    run = ImportedRun(framework="NVIDIA TransformerEngine", assumptions=["the log has values of four decimals"])
    fields: dict[str, dict[str, float]] = {}   # by probe, of the step that is being read
    ignored = Counter()
    strange: dict[str, tuple[int, float]] = {}   # of other statistics, that is not finite or says overflow: line and value
    step = None
    for number, line in source.lines():
        if not line.strip() or _FOREIGN.match(line):
            continue
        found = _LINE.match(line)
        value = _number(found[3]) if found else None
        if value is None:
            source.fail(number, "is not \"NAME iteration=N value=X\"", COPY_AGAIN)
        name, iteration = found[1], whole(source, number, found[2])
        parts = None if _QUANTISED.search(name) or _OTHER.search(name) else split_statistic(name)
        if parts is None:
            ignored[name.rsplit("_", 1)[-1]] += 1
            if not math.isfinite(value) and "dynamic_range" not in name or value > 0 and _SATURATED.search(name):
                strange.setdefault(name, (number, value))   # the range of a tensor of zeros is no number
            continue
        probe, statistic = parts
        if not math.isfinite(value) and statistic not in MAGNITUDES:
            strange.setdefault(name, (number, value))
        if step is None or iteration != step.step or statistic in fields.get(probe, {}):
            step, fields = Step(iteration, number), {}
            run.steps.append(step)
        fields.setdefault(probe, {})[statistic] = value
        step.stats[probe] = stat_of(fields[probe], number)
        count = int(value) if statistic == "elements" and math.isfinite(value) and value >= 1 else None
        run.probe(probe, KINDS.get(probe.rsplit("_", 1)[-1], "activation"), None, (count,) if count else None)
    run.steps = [step for step in run.steps if step.stats]
    for name, (line, value) in strange.items():
        run.not_understood(line, f"{name} is {value:g}")
    if ignored:
        run.assumptions.append(f"{ignored.total()} values of other statistics left out")
    return run


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?(\d+\.\d{4}|inf|nan)", text) else None
