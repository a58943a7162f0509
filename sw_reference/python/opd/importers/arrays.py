"""Arrays: NumPy .npz and safetensors.

npz, without a matrix max_abs: every array is a probe. With an array "step" of S whole numbers, an array [S] is the largest
magnitude of the probe at each step (or the statistic that its name ends with, or a series: loss, grad_norm, lr, loss_scale),
an array [S, ...] holds the elements of the probe at each step. Without it every array holds the elements of one step.

npz, with a matrix max_abs: the tensors of a trace, max_abs [S, P], step [S], probe [P] (names), optionally nonfinite, min_abs,
mean, var [S, P] and format [P].

safetensors: every tensor is a probe, its elements those of one step. The step is that of the metadata ("step"), of the path
("step12"), else 0.

Nothing is unpickled. Elements become statistics here; --raw keeps them in the trace.
"""
from __future__ import annotations

import io
import json
import math
import zipfile
import zlib

import ml_dtypes
import numpy as np
import safetensors

from opd.importers.names import SCALAR_OF, STEPS, format_of, key, kind_of, split_statistic
from opd.importers.run import ImportedRun, Step, elements_stat, listed, stat_of
from opd.importers.source import COPY_AGAIN, ImportFault, Source
from opd.texts import quoted
from opd.trace import FORMATS, SERIES

_FORMAT_OF_TYPE = {layout.numpy: name for name, layout in FORMATS.items()}


class Npz:
    """NumPy .npz"""
    NAME = "npz"
    WHAT = "NumPy archive (.npz)"

    @staticmethod
    def sniff(source: Source) -> int:
        """2 for a zip archive of .npy files, 0 for anything else."""
        return 2 if source.head[:4] == b"PK\x03\x04" and b".npy" in source.head else 0

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The archive. Raises ImportFault with the name of the array."""
        arrays = _load(source)
        run = ImportedRun()
        if not arrays:
            source.fail(None, "holds no arrays", COPY_AGAIN)
        if "max_abs" in arrays and arrays["max_abs"].ndim == 2:
            _read_matrices(source, arrays, run)
        else:
            _read_arrays(source, arrays, run)
        return run


class Safetensors:
    """safetensors"""
    NAME = "safetensors"
    WHAT = "safetensors file"

    @staticmethod
    def sniff(source: Source) -> int:
        """2 for a safetensors file, 0 for anything else."""
        length = int.from_bytes(source.head[:8], "little")
        return 2 if source.head[8:9] == b"{" and 2 <= length < 1 << 27 and b'"data_offsets"' in source.data[8:8 + length] else 0

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The file. Raises ImportFault with the name of the tensor."""
        try:
            tensors = safetensors.deserialize(source.data)
            header = json.loads(source.data[8:8 + int.from_bytes(source.data[:8], "little")])
        except (safetensors.SafetensorError, ValueError) as error:
            source.fail(None, f"not a valid safetensors file ({error})", COPY_AGAIN)
        metadata = header.get("__metadata__", {})
        if metadata.get("format") == "opd-trace":
            source.fail(None, "is a trace already", "replay it: opd replay FILE")
        run = ImportedRun(framework=str(metadata.get("format", "")))
        step = Step(_step_of(source, metadata.get("step"), run))
        run.steps.append(step)
        skipped = 0
        types = {layout.dtype: name for name, layout in FORMATS.items()}
        for name, tensor in sorted(tensors, key=lambda item: header[item[0]]["data_offsets"]):
            format = types.get(tensor["dtype"])
            if tensor["dtype"] == "F64":
                elements, format = np.frombuffer(tensor["data"], "<f8"), "FP32"
            elif format is not None:
                elements = np.frombuffer(tensor["data"], FORMATS[format].numpy)
            if format is None or not elements.size:
                skipped += 1
                continue
            shape = tuple(tensor["shape"])
            kind = kind_of(name)
            _add(run, step, name, "weight" if kind == "activation" else kind, elements, format, shape)
        if not step.stats:
            source.fail(None, "holds no tensor of a format that a trace has", f"give tensors of type {', '.join(types)}")
        if skipped:
            run.assumptions.append(f"{skipped} tensors of other types or without elements left out")
        run.assumptions.append("a tensor whose name does not say gradient or optimizer is taken as a weight")
        return run


def _load(source: Source) -> dict[str, np.ndarray]:
    arrays = {}
    try:
        with np.load(io.BytesIO(source.data), allow_pickle=False) as archive:
            for name in archive.files:
                try:
                    arrays[name] = archive[name]
                except ValueError as error:
                    if "pickle" not in str(error).lower():
                        raise
                    source.fail(quoted(name), "holds pickled objects, which are not read: that would execute what is in them",
                                "save plain arrays; for a measurement of Neural Compressor give the .json beside it")
    except (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ImportFault):
            raise
        source.fail(None, f"not a valid npz archive ({error})", COPY_AGAIN)
    return arrays


def _step_of(source: Source, told, run: ImportedRun) -> int:
    if told is not None and str(told).isdigit():
        return int(told)
    step = source.step_of_path()
    if step is None:
        run.assumptions.append("neither the file nor its path names a step: 0")
    return step or 0


def _add(run: ImportedRun, step: Step, name: str, kind: str, elements: np.ndarray, format: str, shape: tuple[int, ...]) -> None:
    if elements.dtype == np.float64:
        with np.errstate(over="ignore"):
            elements = elements.astype(np.float32)
        text = "float64 elements rounded to FP32"
        if text not in run.assumptions:
            run.assumptions.append(text)
    run.probe(name, kind, format, shape)
    step.stats[name] = elements_stat(np.ascontiguousarray(elements).reshape(-1))


def _elements(source: Source, name: str, array: np.ndarray) -> tuple[np.ndarray, str] | None:
    """Elements of a floating-point array and their format; None for other types."""
    if array.dtype == np.dtype("V2"):   # how NumPy stores the bfloat16 of ml_dtypes
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype == np.dtype("V1"):
        source.fail(quoted(name), "is of an 8-bit type whose name NumPy does not store", "save it as safetensors")
    if array.dtype == np.float64:
        return array, "FP32"
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    format = _FORMAT_OF_TYPE.get(native.dtype)
    return None if format is None else (native, format)


def _read_arrays(source: Source, arrays: dict[str, np.ndarray], run: ImportedRun) -> None:
    step_name = next((name for wanted in STEPS + ("steps",) for name in arrays if key(name) == wanted), None)
    rows = None
    if step_name is not None:
        rows = _steps(source, step_name, arrays[step_name])
        run.steps = [Step(number) for number in rows]
    else:
        run.steps = [Step(_step_of(source, None, run))]
    skipped = []
    fields: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        if name == step_name:
            continue
        if rows is not None and (array.ndim == 0 or len(array) != len(rows)):
            source.fail(quoted(name), f"has shape {list(array.shape)}, but {quoted(step_name)} has {len(rows)} steps",
                        "give one row a step")
        found = _elements(source, name, array)
        if array.size == 0 or found is None and not (rows is not None and array.ndim == 1 and array.dtype.kind in "iu"):
            skipped.append(name)
        elif rows is None:
            _add(run, run.steps[0], name, kind_of(name), found[0], found[1], array.shape)
        elif array.ndim > 1:
            for step, row in zip(run.steps, found[0]):
                _add(run, step, name, kind_of(name), row, found[1], row.shape)
        elif SCALAR_OF.get(key(name)) in SERIES:
            _read_series(source, name, SCALAR_OF[key(name)], found[0] if found else array, run)
        else:
            probe, statistic = split_statistic(name) or (name, "max_abs")
            fields.setdefault(probe, {})[statistic] = (found[0] if found else array).astype(np.float64)
    for probe, statistics in fields.items():
        run.probe(probe, kind_of(probe))
        for i, step in enumerate(run.steps):
            stat = stat_of({field: float(values[i]) for field, values in statistics.items()}, None)
            stat.max_abs = None if stat.max_abs is None else abs(stat.max_abs)
            step.stats[probe] = stat
    if skipped:
        run.assumptions.append(f"arrays of other types left out: {listed(skipped)}")


def _steps(source: Source, name: str, array: np.ndarray) -> list[int]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        source.fail(quoted(name), "is not a list of whole numbers", "give one whole number a step")
    return [int(n) for n in array]


def _read_series(source: Source, name: str, series: str, values: np.ndarray, run: ImportedRun) -> None:
    for step, value in zip(run.steps, values.astype(np.float64)):
        if series in ("lr", "loss_scale") and not (math.isfinite(value) and (value > 0 or series == "lr")):
            continue
        step.series[series] = float(value)


def _read_matrices(source: Source, arrays: dict[str, np.ndarray], run: ImportedRun) -> None:
    S, P = arrays["max_abs"].shape
    names = next((arrays[n] for n in ("probe", "probes", "name", "names") if n in arrays), None)
    if names is not None and (names.shape != (P,) or names.dtype.kind != "U"):
        source.fail("probe", f"is not a list of {P} names", "give one name a column of max_abs")
    names = [f"probe{i}" for i in range(P)] if names is None else [str(name) for name in names]
    if len(set(names)) != P:
        source.fail("probe", "names two probes alike", "give every probe a name of its own")
    formats = arrays.get("format")
    if formats is not None and (formats.shape != (P,) or any(format_of(str(f)) is None for f in formats)):
        source.fail("format", f"is not a list of {P} formats", f"use {', '.join(FORMATS)}")
    if "step" in arrays:
        run.steps = [Step(number) for number in _steps(source, "step", arrays["step"])]
        if len(run.steps) != S:
            source.fail("step", f"has {len(run.steps)} steps, max_abs {S}", "give one row a step")
    else:
        run.steps = [Step(number) for number in range(S)]
        run.assumptions.append("no array is the step: rows are counted from 0")
    members = [m for m in ("max_abs", "nonfinite", "min_abs", "mean", "var") if m in arrays]
    for member in members:
        if arrays[member].shape != (S, P) or arrays[member].dtype.kind not in "fiu":
            source.fail(member, f"is not {S} x {P} numbers, but {list(arrays[member].shape)} of type {arrays[member].dtype}",
                        "give one value a step and probe")
    for p, name in enumerate(names):
        run.probe(name, kind_of(name), None if formats is None else format_of(str(formats[p])))
        for s, step in enumerate(run.steps):
            fields = {member: float(arrays[member][s, p]) for member in members}
            step.stats[name] = stat_of(fields, None)
    for name, array in arrays.items():
        if SCALAR_OF.get(key(name)) in SERIES and array.shape == (S,) and array.dtype.kind in "fiu":
            _read_series(source, name, SCALAR_OF[key(name)], array, run)
