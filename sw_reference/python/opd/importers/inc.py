"""Intel Neural Compressor's FP8 measurement on Gaudi: <prefix>_hooks_maxabs_<rank>_<world>.json of the MEASURE phase.

Format: intel/neural-compressor, neural_compressor/torch/algorithms/fp8_quant/_core/save_measure/save_files.py
(measure_control_to_state_dict) and _core/common.py (save_file).

    {"GlobalRank": null, "LocalRank": 0, "Mode": "DynamicRange",
     "Nodes": {"MODULE": {"inputs": [[[1.5]]], "outputs": [[[2.5]]], "params": {"weight": [[0.5]]}}}}

Each value is the largest magnitude of all calibration samples: one step. A tensor with one value per channel gives their
largest. The .npz beside it holds the same, pickled: reading it would execute what is in it, so it is not read.
"""
from __future__ import annotations

import math

from opd.importers.cells import number
from opd.importers.run import ImportedRun, Stat, Step
from opd.importers.source import COPY_AGAIN, Source
from opd.texts import quoted

NAME = "inc-measurement"
WHAT = "Intel Neural Compressor FP8 measurement (JSON)"


def sniff(source: Source) -> int:
    """2 for a measurement or scale file, 0 for anything else."""
    head = source.head
    return 2 if head.lstrip()[:1] == b"{" and b'"Mode"' in head and b'"Nodes"' in head else 0


def read(source: Source) -> ImportedRun:
    """The measurement. Raises ImportFault with the line."""
    content = source.json()
    mode = content.get("Mode") if isinstance(content, dict) else None
    if mode != "DynamicRange":
        source.fail(source.line_of("Mode"), f"Mode {quoted(str(mode))} holds no measured magnitudes",
                    "give the ..._hooks_maxabs_....json of the MEASURE phase, whose Mode is DynamicRange")
    nodes = content.get("Nodes")
    if not isinstance(nodes, dict) or not nodes:
        source.fail(source.line_of("Nodes"), "\"Nodes\" is not an object of modules", COPY_AGAIN)
    details = {key: content[key] for key in ("GlobalRank", "LocalRank", "NumSamples") if isinstance(content.get(key), int)}
    run = ImportedRun(framework="Intel Neural Compressor", details=details,
                      assumptions=["each magnitude is the largest of all calibration samples: one step, 0"])
    step = Step(0, source.line_of("Nodes"))
    run.steps.append(step)
    channels = 0

    def add(module: str, name: str, kind: str, value):
        nonlocal channels
        line = source.line_of(module)
        values = list(_flat(value))
        if not values or any(type(v) not in (int, float) for v in values):
            source.fail(line, f"{quoted(name)} is not a magnitude or a list of them", COPY_AGAIN)
        channels += len(values) > 1
        run.probe(name, kind)
        largest = math.nan if any(isinstance(v, float) and math.isnan(v) for v in values) else max(map(number, values))
        step.stats[name] = Stat(line, largest)

    for module, node in nodes.items():
        if not isinstance(node, dict):
            source.fail(source.line_of(module), f"module {quoted(module)} is not an object", COPY_AGAIN)
        for part, kind in (("inputs", "activation"), ("params", "weight"), ("outputs", "activation")):
            values = node.get(part, node.get(part[:-1]))   # early versions write "input" and "output"
            if values is None:
                continue
            if part == "params":
                if not isinstance(values, dict):
                    source.fail(source.line_of(module), f"params of {quoted(module)} is not an object", COPY_AGAIN)
                for name, value in values.items():
                    add(module, f"{module}.{name}", kind, value)
            elif not isinstance(values, list):
                source.fail(source.line_of(module), f"{part} of {quoted(module)} is not a list", COPY_AGAIN)
            else:
                for i, value in enumerate(values):
                    add(module, f"{module}.{part[:-1]}.{i}", kind, value)
    if channels:
        run.assumptions.append(f"{channels} tensors are measured per channel: the largest of their channels")
    return run


def _flat(value):
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
