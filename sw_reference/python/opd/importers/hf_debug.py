"""HF DebugUnderflowOverflow: the report of absolute minima and maxima per module, as the class prints it.

Format: huggingface/transformers, src/transformers/debug_utils.py (create_frame, dump_saved_frames, batch_start_frame).

    Detected inf/nan during batch_number=0
    Last 21 forward frames:
    abs min  abs max  metadata
                      encoder.block.2.layer.1.dropout Dropout
    3.18e-04 6.27e+04 input[0]
    0.00e+00      inf output

The first version of the class says "last 21 frames:" instead. Each report is a stretch of steps, the batch number is the
step. Numbers have three digits. Text before, between and after the reports is skipped: they stand in the middle of a job's
output. A line "[...]" stands for frames that someone left out.
"""
from __future__ import annotations

import math
import re

from opd.importers.cells import whole
from opd.importers.run import ImportedRun, Stat, Step
from opd.importers.source import COPY_AGAIN, Source

NAME = "hf-debug"
WHAT = "HF DebugUnderflowOverflow report"

_DETECTED = re.compile(r"Detected inf/nan during batch_number=(\d+)$")
_ANNOUNCED = re.compile(r"[Ll]ast (\d+) (?:forward )?frames:$")
_START = re.compile(r"\s+\*\*\* Starting batch number=(\d+) \*\*\*$")
_FINISH = re.compile(r"\s+\*\*\* Finished batch number=\d+ \*\*\*$")
_TITLE = re.compile(r"abs min  abs max  metadata$")
_FRAME = re.compile(r" {17,18}(\S*) (\S+)$")
_NUMBER = r"(?:\d\.\d\de[+-]\d\d|inf|nan)"
_VALUE = re.compile(rf"\s*({_NUMBER}) +({_NUMBER}) (\S.*)$")
_NO_TENSOR = re.compile(r"\s+(None|not a tensor) \S+$")
_NO_BATCH = "a report names no batch: step 0"
_REMARK = re.compile(r"\S+ has (nans|infs)$")   # detect_overflow prints it as it finds one


def sniff(source: Source) -> int:
    """2 for a report, 0 for anything else."""
    return 2 if b"abs min  abs max  metadata" in source.data else 0


def read(source: Source) -> ImportedRun:
    """The report. Raises ImportFault with the line."""
    run = ImportedRun(framework="PyTorch, HF transformers", rounding=0.005,
                      assumptions=["the report has numbers of three digits"])
    state = _Report(source, run)
    for number, line in source.lines():
        state.line(number, line)
    state.finish()
    return run


class _Report:
    """Reads line by line. A report is open from its first marker until a line that does not belong to one."""

    def __init__(self, source: Source, run: ImportedRun):
        self.source, self.run = source, run
        self.is_open = False
        self.detected = None      # batch number of the heading; None in the tracing mode
        self.announced = None     # number of frames of the heading
        self.elided = False
        self.detected_line = None
        self.batch = None         # batch number of the frames that come, when a "Starting batch" told it
        self.frames = []          # [batch or None, line, module, {tensor: Stat}]
        self.last = 0

    def line(self, number: int, line: str) -> None:
        self.last = number
        if found := _DETECTED.match(line):
            self.finish()
            self.is_open, self.detected, self.detected_line = True, whole(self.source, number, found[1]), number
        elif found := _START.match(line):
            self.is_open = True
            self._starts(whole(self.source, number, found[1]))
        elif found := _ANNOUNCED.match(line):
            self.announced = whole(self.source, number, found[1])
        elif _TITLE.match(line):
            self.is_open = True
        elif not self.is_open or not line.strip() or _REMARK.match(line) or _NO_TENSOR.match(line) or _FINISH.match(line):
            pass
        elif line.strip() == "[...]":
            self.elided = True
        elif found := _FRAME.match(line):
            self.frames.append([self.batch, number, found[1] or "model", {}])
        elif found := _VALUE.match(line):
            if not self.frames:
                self.source.fail(number, "a value before the first frame", COPY_AGAIN)
            smallest, largest = (float(text) for text in found.group(1, 2))
            largest = math.nan if math.isnan(smallest) else largest
            # A minimum of 0 does not tell the smallest non-zero magnitude.
            self.frames[-1][3][found[3]] = Stat(number, largest, min_abs=smallest or None)
        elif line[0].isspace() or line[0].isdigit():
            self.source.fail(number, "is neither a frame nor \"abs-min abs-max tensor\"", COPY_AGAIN)
        elif self.frames or self.detected is None:
            self.finish()   # other output of the job

    def _starts(self, batch: int) -> None:
        """The frames before the first mark are of the batch before it."""
        if self.batch is None:
            for frame in self.frames:
                frame[0] = batch - 1
        self.batch = batch

    def finish(self) -> None:
        """Ends the report that is open: one step for each of its batches."""
        if self.detected is not None and self.announced is not None and not self.elided and len(self.frames) < self.announced:
            self.source.fail(self.last, f"the report announces {self.announced} frames and ends after {len(self.frames)}",
                             COPY_AGAIN)
        shows = any(stat.max_abs is not None and not math.isfinite(stat.max_abs)
                    for *_, tensors in self.frames for stat in tensors.values())
        if self.detected is not None and not shows:
            self.run.not_understood(self.detected_line,
                                    f"Detected inf/nan during batch_number={self.detected}, but no frame shows it")
        step, begin = None, len(self.run.steps)
        calls: dict[str, int] = {}
        for batch, number, module, tensors in self.frames:
            if batch is None and self.detected is None and _NO_BATCH not in self.run.assumptions:
                self.run.assumptions.append(_NO_BATCH)
            batch = batch if batch is not None else self.detected if self.detected is not None else 0
            if step is None or step.step != batch:
                step, calls = Step(batch, number), {}
                self.run.steps.append(step)
            for tensor, stat in tensors.items():
                name = call = f"{module}.{tensor}"
                while call in step.stats:   # a module that runs several times in one pass
                    calls[name] = calls.get(name, 1) + 1
                    call = f"{name}#{calls[name]}"
                kind = "activation" if tensor.startswith(("input", "output")) else "weight"
                self.run.probe(call, kind)
                step.stats[call] = stat
        self.run.steps[begin:] = [step for step in self.run.steps[begin:] if step.stats]
        self.is_open, self.detected, self.announced, self.elided, self.batch, self.frames = False, None, None, False, None, []
        self.detected_line = None
