"""Ascend msprobe: dump.json of its statistics dump, and the CSV files of its monitor, both versions.

Formats: Ascend/msprobe (PyPI: mindstudio-probe), python/msprobe/core/dump/data_dump/json_writer.py and
data_processor/pytorch_processor.py; python/msprobe/pytorch/monitor/data_writers.py (CSVWriterWithAD, version 1) and
python/msprobe/core/monitor_v2/writer.py (CSVWriterV2).

dump.json holds one step; which one the folder tells ("step3/rank0/dump.json"). Every tensor of an operator is a probe, named
as msprobe names its files: OPERATOR.input.0, OPERATOR.output.0. Tensors of whole numbers or bools are left out.

A monitor file holds the rows of one kind of tensor for some steps. A row that is NaN throughout is no tensor.
"""
from __future__ import annotations

import json
import math
import re

from opd.importers.cells import is_shape
from opd.importers.metrics import tensor_stat
from opd.importers.names import format_of, kind_of
from opd.importers.run import ImportedRun, Step
from opd.importers.source import COPY_AGAIN, Source, csv_cells
from opd.texts import quoted

_IO = {"input_args": "input", "input_kwargs": "input", "input": "input", "output": "output", "parameters": "parameters"}
_WHOLE = re.compile(r"(?:torch\.)?(?:u?int\d*|bool|complex\d*|long|short|hifloat8\w*|float4\w*)$", re.I)
_NORM_IS_NO_STATISTIC = ("norm", "id")


class Dump:
    """dump.json"""
    NAME = "msprobe-dump"
    WHAT = "msprobe statistics dump (dump.json)"

    @staticmethod
    def sniff(source: Source) -> int:
        """2 for a dump, 0 for anything else."""
        head = source.head
        return 2 if head.lstrip()[:1] == b"{" and b'"task"' in head and b'"dump_data_dir"' in head else 0

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The dump. Raises ImportFault with the line."""
        content = source.json()
        data = content.get("data") if isinstance(content, dict) else None
        if not isinstance(data, dict):
            source.fail(source.line_of("data") or 1, "\"data\" is not an object of operators", COPY_AGAIN)
        if content.get("task") not in ("statistics", "tensor"):
            source.fail(source.line_of("task"), f"task {quoted(str(content.get('task')))} has no statistics",
                        "dump with task \"statistics\" or \"tensor\"")
        step_number = source.step_of_path()
        run = ImportedRun(framework=str(content.get("framework", "")),
                          details={"level": str(content.get("level", "")), "task": str(content["task"])})
        if step_number is None:
            run.assumptions.append("the path names no step: 0")
        run.steps.append(Step(step_number or 0, 1))
        reader = _DumpReader(source, run)
        for name, operator in data.items():
            if not isinstance(operator, dict):
                source.fail(source.line_of(name), f"operator {quoted(name)} is not an object", COPY_AGAIN)
            for part, tensors in operator.items():
                reader.tensors(name, f"{name}.{_IO.get(part, part)}", part, tensors)
        if not run.steps[0].stats:
            source.fail(None, "holds no tensor of a floating-point type", "dump operators that have one")
        if reader.whole:
            run.assumptions.append(f"{reader.whole} tensors of whole numbers or bools left out")
        if reader.empty:
            run.assumptions.append(f"{reader.empty} tensors without a statistic left out")
        return run


class _DumpReader:
    def __init__(self, source: Source, run: ImportedRun):
        self.source, self.run = source, run
        self.whole = self.empty = 0

    def tensors(self, operator: str, name: str, part: str, value) -> None:
        """A tensor, or lists and objects of them; everything else is an argument."""
        if isinstance(value, list):
            for i, item in enumerate(value):
                self.tensors(operator, f"{name}.{i}", part, item)
        elif isinstance(value, dict) and "dtype" in value and "shape" in value:
            self.tensor(operator, name, part, value)
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, (dict, list)):
                    self.tensors(operator, f"{name}.{key}", part, item)

    def tensor(self, operator: str, name: str, part: str, value: dict) -> None:
        dtype, shape = value["dtype"], value["shape"]
        def fail(wrong):
            self.source.fail(self.source.line_of(operator), f"tensor {quoted(name)}: {wrong}", COPY_AGAIN)
        if not isinstance(dtype, str):
            fail("dtype is not text")
        if not is_shape(shape):
            fail("shape is not a list of sizes")
        fields = {}
        for key, field in (("Max", "max"), ("Min", "min"), ("Mean", "mean")):
            number = value.get(key)
            if number is None or isinstance(number, bool):
                continue
            if not isinstance(number, (int, float)):
                fail(f"{key} is not a number")
            try:
                fields[field] = float(number)
            except OverflowError:
                fail(f"{key} is beyond a double")
        if _WHOLE.match(dtype):
            self.whole += 1
        elif "max" not in fields or "min" not in fields or math.prod(shape) == 0:
            self.empty += 1
        else:
            self.run.probe(name, _dump_kind(operator, part), format_of(dtype), tuple(shape))
            line = self.source.line_of(operator)
            self.run.steps[0].stats[name] = tensor_stat(self.run, name, fields, line)
            norm = value.get("Norm")
            if isinstance(norm, float) and not math.isfinite(norm) and math.isfinite(sum(fields.values())):
                self.run.not_understood(line, f"Norm of {name} is {norm}, its magnitude is finite")


def _dump_kind(operator: str, part: str) -> str:
    if operator.startswith("Distributed."):
        return "collective"
    if ".backward" in operator or "parameters_grad" in operator:
        return "gradient"
    return "weight" if part == "parameters" else "activation"


class Monitor:
    """CSV of the monitor"""
    NAME = "msprobe-monitor"
    WHAT = "msprobe monitor CSV"

    @staticmethod
    def sniff(source: Source) -> int:
        """2 for a monitor file, 0 for anything else."""
        head = source.head.split(b"\n", 1)[0].strip()
        return 2 if head.startswith((b"vpp_stage,name,step", b"vpp_stage,step,module_name")) else 0

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The file. Raises ImportFault with the line."""
        run = ImportedRun(framework="msprobe monitor",
                          assumptions=["msprobe counts NaN elements, not Inf: an Inf is one of them"])
        lines = source.lines()
        header = csv_cells(source, *next(lines))
        name_column = "name" if "name" in header else "module_name"
        if not {"vpp_stage", "step", name_column} <= set(header) or len(set(header)) < len(header):
            source.fail(1, "is not the header of a monitor file", COPY_AGAIN)
        statistics = [c for c in header if c not in ("vpp_stage", "step", "micro_step", name_column, "scope", "shape", "dtype")]
        if not {"min", "max"} <= set(statistics):
            source.fail(1, "has no columns min and max", "monitor with the operations \"min\" and \"max\" among them")
        no_tensor = merged = 0
        for number, line in lines:
            if not line.strip():
                continue
            cells = _cells(source, number, line, header)
            step_number = _whole(source, number, cells, "step")
            fields = {c: _number(source, number, cells, c) for c in statistics if c not in _NORM_IS_NO_STATISTIC}
            fields = {c: v for c, v in fields.items() if v is not None}
            is_empty = all(map(math.isnan, fields.values()))
            if not fields or cells.get("dtype") == "nan" or (is_empty and "nans" in fields):
                no_tensor += 1
                continue
            name = _monitor_name(source, cells, name_column)
            stat = tensor_stat(run, name, fields, number)
            norm = _number(source, number, cells, "norm") if cells.get("norm") else None
            if norm is not None and not math.isfinite(norm) and math.isfinite(sum(fields.values())):
                run.not_understood(number, f"norm of {name} is {norm:g}, its magnitude is finite")
            if not run.steps or run.steps[-1].step != step_number:
                run.steps.append(Step(step_number, number))
            known = run.steps[-1].stats.get(name)
            if known is None:
                run.steps[-1].stats[name] = stat
            elif cells.get("micro_step") is not None:
                known.merge(stat)
                merged += 1
            else:
                run.steps.append(Step(step_number, number, {name: stat}))   # the same step again: a restart
            run.probe(name, _monitor_kind(source, cells, name), _monitor_format(cells), _monitor_shape(source, number, cells))
        if no_tensor:
            run.assumptions.append(f"{no_tensor} rows of NaN throughout left out: no tensor")
        if merged:
            run.assumptions.append(f"{merged} rows of further micro-batches: the largest of a step, the sum of its counts")
        return run


def _cells(source: Source, number: int, line: str, header: list[str]) -> dict[str, str]:
    cells = csv_cells(source, number, line)
    if len(cells) != len(header):
        source.fail(number, f"{len(cells)} cells instead of {len(header)}", COPY_AGAIN)
    return dict(zip(header, cells))


def _whole(source: Source, number: int, cells: dict[str, str], column: str) -> int:
    if not re.fullmatch(r"\d{1,10}", cells[column]):
        source.fail(number, f"{column}: {quoted(cells[column])} is not a whole number", COPY_AGAIN)
    return int(cells[column])


def _number(source: Source, number: int, cells: dict[str, str], column: str) -> float | None:
    if cells[column] == "":
        return None
    try:
        return float(cells[column])
    except ValueError:
        source.fail(number, f"{column}: {quoted(cells[column])} is not a number", COPY_AGAIN)


def _monitor_name(source: Source, cells: dict[str, str], name_column: str) -> str:
    name = cells[name_column].removeprefix(".") or "model"
    stage = cells.get("vpp_stage", "-1")
    scope = cells.get("scope")
    if scope in ("reduced", "unreduced"):
        name += f".grad_{scope}"
    elif scope is None:
        prefix = re.sub(r"_\d+-\d+$", "", source.stem)   # the kind of tensor: actv, actv_grad, grad_reduced, exp_avg, ...
        name += "" if prefix in ("actv", source.stem) else f".{prefix}"
    return name if stage in ("", "-1", "0") else f"{stage}:{name}"


def _monitor_kind(source: Source, cells: dict[str, str], name: str) -> str:
    scope = cells.get("scope", "")
    if scope == "comm":
        return "collective"
    if scope in ("backward", "reduced", "unreduced"):
        return "gradient"
    if scope.startswith("exp_avg"):
        return "optimizer"
    if scope == "forward":
        return "activation"
    if scope.startswith("param") or ".param_" in name:
        return "weight"
    return kind_of(name) if re.search(r"\.(actv_grad|grad_|exp_avg)", name) else "activation"


def _monitor_format(cells: dict[str, str]) -> str | None:
    return format_of(cells["dtype"]) if "dtype" in cells else None


def _monitor_shape(source: Source, number: int, cells: dict[str, str]) -> tuple[int, ...] | None:
    if not cells.get("shape"):
        return None
    try:
        shape = json.loads(cells["shape"])
        if not is_shape(shape, 1):
            raise ValueError
    except ValueError:
        source.fail(number, f"shape: {quoted(cells['shape'])} is not a list of sizes", COPY_AGAIN)
    return tuple(shape)
