"""Arrays: NumPy .npz and safetensors.

npz, without a matrix max_abs: every array is a probe. With an array "step" of S whole numbers, an array [S] is what its name
says (metrics.py): a loss, gradient norm, learning rate, loss scale or overflow flag, a statistic of a probe ("l0_min"), else
the largest magnitude of a probe at each step; an array [S, ...] holds the elements of the probe at each step. Without it every
array holds the elements of one step.

npz, with a matrix max_abs: the tensors of a trace, max_abs [S, P], step [S], probe [P] (names), optionally nonfinite, min_abs,
mean, var [S, P] and format [P]; arrays [S] are read by their names.

A header of an array is checked against the bytes that there are before anything is allocated, and an array is a view of them; what
decompresses to more than 4 GiB, or to more than 256 MiB and 100 times its size, is refused.

safetensors: every tensor is a probe, its elements those of one step. The step is that of the metadata ("step"), of the path
("step12"), else 0.

Nothing is unpickled. Elements become statistics here; --raw keeps them in the trace.
"""
from __future__ import annotations

import io
import json
import math
import tokenize
import zipfile

import ml_dtypes
import numpy as np
import safetensors

from opd.importers.cells import whole
from opd.importers.metrics import UNKNOWN, Points, check_scalars, choose, probe_kind, row_values, tell, tensor_stat
from opd.importers.names import STEPS, format_of, is_step, key, kind_of, meaning, statistic_of
from opd.importers.run import ImportedRun, Stat, Step, elements_stat, listed
from opd.importers.scalars import Row, read_rows
from opd.importers.source import COPY_AGAIN, DAMAGED, FREE_BYTES, MAX_BYTES, ImportFault, Source, whole_or_real
from opd.texts import quoted
from opd.trace import FORMATS

_TIGHT = 100         # times that larger ones may be packed
_NPY = b"\x93NUMPY"
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
        run = ImportedRun()
        arrays = _load(source, run)
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
            header = json.loads(source.data[8:8 + int.from_bytes(source.data[:8], "little")], parse_int=whole_or_real)
        except (safetensors.SafetensorError, ValueError) as error:
            source.fail(None, f"not a valid safetensors file ({error})", COPY_AGAIN)
        metadata = header.get("__metadata__") or {}
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


def _load(source: Source, run: ImportedRun) -> dict[str, np.ndarray]:
    """The arrays by name. Nothing is allocated that the file does not hold."""
    arrays, others = {}, []
    try:
        with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > MAX_BYTES:
                source.fail(None, f"decompresses to {total} bytes, more than 4 GiB", "split it")
            if total > FREE_BYTES and total > _TIGHT * len(source.data):
                source.fail(None, f"{len(source.data)} bytes that decompress to {total}, more than {_TIGHT} times as many",
                            "save it with numpy.savez, or statistics instead of elements, if it is no attack")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    source.fail(quoted(name), "stands twice in the archive", "name every array once")
                if name == member.filename:
                    others.append(name)
                else:
                    arrays[name] = _array(source, name, archive.read(member))
    except ImportFault:
        raise
    except (*DAMAGED, RuntimeError) as error:
        source.fail(None, f"not a valid npz archive ({error})", COPY_AGAIN)
    if others:
        run.assumptions.append(f"members that are no arrays left out: {listed(others)}")
    return arrays


def _array(source: Source, name: str, data: bytes) -> np.ndarray:
    """The array of a member. Raises ImportFault with its name."""
    stream = io.BytesIO(data)
    try:
        if not data.startswith(_NPY):
            source.fail(quoted(name), "is no array: it does not begin as a .npy file does",
                        "save plain arrays with numpy.savez")
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            source.fail(quoted(name), f"is of version {version[0]}.{version[1]} of .npy, which plain arrays do not need",
                        "save plain arrays with numpy.savez")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = header(stream)
    except ImportFault:
        raise
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        source.fail(quoted(name), f"not a valid npz archive ({error})", COPY_AGAIN)
    if dtype.hasobject:
        source.fail(quoted(name), "holds pickled objects, which are not read: that would execute what is in them",
                    "save plain arrays; for a measurement of Neural Compressor give the .json beside it")
    size, there = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    if size != there:
        source.fail(quoted(name), f"claims {size} bytes of shape {list(shape)} and holds {there}", COPY_AGAIN)
    if dtype.itemsize == 0:
        source.fail(quoted(name), f"is of type {dtype.str}, whose elements hold nothing", "save numbers")
    try:
        if size == 0:
            return np.zeros(shape, dtype)
        return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, OverflowError):
        source.fail(quoted(name), f"has no possible shape: {list(shape)}", COPY_AGAIN)


def _texts(source: Source, name: str, array: np.ndarray) -> list[str]:
    """The texts of an array of them. Raises ImportFault where one is no text."""
    codes = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).view(np.uint32)
    if ((codes > 0x10FFFF) | (codes >= 0xD800) & (codes < 0xE000)).any():
        source.fail(quoted(name), "holds a name that is no text", COPY_AGAIN)
    return [str(text) for text in array]


def _step_of(source: Source, told, run: ImportedRun) -> int:
    if told is not None and str(told).isdecimal():
        return whole(source, "step", str(told))
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
    step_name = next((name for wanted in STEPS for name in arrays if key(name) == wanted and arrays[name].ndim == 1), None)
    rows = None
    if step_name is not None:
        rows = _steps(source, step_name, arrays[step_name])
        run.steps = [Step(number) for number in rows]
        source.bound(len(rows) * sum(array.ndim == 1 for array in arrays.values()), "numbers in arrays of one a step")
    else:
        run.steps = [Step(_step_of(source, None, run))]
    skipped = []
    series: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name == step_name:
            continue
        if rows is not None and (array.ndim == 0 or len(array) != len(rows)):
            source.fail(quoted(name), f"has shape {list(array.shape)}, but {quoted(step_name)} has {len(rows)} steps",
                        "give one row a step")
        found = _elements(source, name, array)
        is_series = rows is not None and array.ndim == 1 and (found is not None or array.dtype.kind in "iub")
        if array.size == 0 or found is None and not is_series:
            _skip(run, name, array, skipped)
        elif is_series:
            series[name] = (found[0] if found else array).astype(np.float64)
        elif rows is None:
            _add(run, run.steps[0], name, kind_of(name), found[0], found[1], array.shape)
        else:
            for step, row in zip(run.steps, found[0]):
                _add(run, step, name, kind_of(name), row, found[1], row.shape)
    _read_series(run, series, {name for name in series if arrays[name].dtype.kind == "b"})
    if skipped:
        run.assumptions.append(f"arrays of other types left out: {listed(skipped)}")


def _skip(run: ImportedRun, name: str, array: np.ndarray, skipped: list[str]) -> None:
    """Notes an array that is left out."""
    skipped.append(name)
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        run.not_understood(None, f"array {name} of type {array.dtype} is not finite throughout")


def _read_series(run: ImportedRun, series: dict[str, np.ndarray], no_magnitudes: set[str]) -> None:
    """Arrays [S] of one number a step: numbers of the run, and magnitudes and other statistics of probes."""
    points: Points = {name: list(enumerate(values.tolist())) for name, values in series.items()}
    choice = choose(points)
    fields: dict[str, dict[str, np.ndarray]] = {}
    for name in [name for name, why in choice.left.items()
                 if why == UNKNOWN and not is_step(name) and name not in no_magnitudes]:
        probe, statistic = statistic_of(name) or (name, "max_abs")
        fields.setdefault(probe, {})[statistic] = series[name]
        del choice.left[name]
    for probe, statistics in fields.items():
        run.probe(probe, kind_of(probe))
        for i, step in enumerate(run.steps):
            stat = tensor_stat(run, probe, {field: float(values[i]) for field, values in statistics.items()}, None)
            stat.max_abs = None if stat.max_abs is None else abs(stat.max_abs)
            step.stats[probe] = stat
    if choice.scalars or choice.flags:
        told, scalars = row_values(choice, points), ImportedRun()
        rows = [Row(None, step.step, None, *told.get(i, ({}, False))) for i, step in enumerate(run.steps)]
        for step, found in zip(run.steps, read_rows(rows, scalars)):
            step.series.update(found.series)
            step.stats.update({name: stat for name, stat in found.stats.items() if name not in run.probes})
        for name, probe in scalars.probes.items():
            if name not in run.probes:
                run.probe(name, probe.kind, probe.format, probe.shape)
        run.assumptions += scalars.assumptions
    for name in choice.probes:
        run.probe(name, probe_kind(name))
        for i, value in points[name]:
            run.steps[i].stats[name] = Stat(None, abs(value))

    def where(place: int) -> tuple[None, str]:
        return None, f" at step {run.steps[place].step}"

    check_scalars(run, choice, points, where)
    tell(run, choice, points, "arrays", where)


def _steps(source: Source, name: str, array: np.ndarray) -> list[int]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        source.fail(quoted(name), "is not a list of whole numbers", "give one whole number a step")
    source.bound(array.size, "steps")
    return [int(n) for n in array]


def _read_matrices(source: Source, arrays: dict[str, np.ndarray], run: ImportedRun) -> None:
    S, P = arrays["max_abs"].shape
    names = next((arrays[n] for n in ("probe", "probes", "name", "names") if n in arrays), None)
    if names is not None and (names.shape != (P,) or names.dtype.kind != "U"):
        source.fail("probe", f"is not a list of {P} names", "give one name a column of max_abs")
    names = [f"probe{i}" for i in range(P)] if names is None else _texts(source, "probe", names)
    if len(set(names)) != P:
        source.fail("probe", "names two probes alike", "give every probe a name of its own")
    formats = arrays.get("format")
    if formats is not None and (formats.shape != (P,) or formats.dtype.kind != "U" or any(
            format_of(f) is None for f in _texts(source, "format", formats))):
        source.fail("format", f"is not a list of {P} formats", f"use {', '.join(FORMATS)}")
    if "step" in arrays:
        run.steps = [Step(number) for number in _steps(source, "step", arrays["step"])]
        if len(run.steps) != S:
            source.fail("step", f"has {len(run.steps)} steps, max_abs {S}", "give one row a step")
    else:
        run.steps = [Step(number) for number in range(S)]
        run.assumptions.append("no array is the step: rows are counted from 0")
    source.bound(S * P, "cells")
    members = [m for m in ("max_abs", "nonfinite", "min_abs", "mean", "var") if m in arrays]
    for member in members:
        if arrays[member].shape != (S, P) or arrays[member].dtype.kind not in "fiu":
            source.fail(member, f"is not {S} x {P} numbers, but {list(arrays[member].shape)} of type {arrays[member].dtype}",
                        "give one value a step and probe")
    for p, name in enumerate(names):
        run.probe(name, kind_of(name), None if formats is None else format_of(str(formats[p])))
        for s, step in enumerate(run.steps):
            fields = {member: float(arrays[member][s, p]) for member in members}
            step.stats[name] = tensor_stat(run, name, fields, None)
    series, skipped = {}, []
    for name, array in arrays.items():
        if name in (*members, "step", "format", "probe", "probes", "name", "names"):
            continue
        if array.shape == (S,) and array.dtype.kind in "fiub" and meaning(name).what is not None:
            series[name] = array.astype(np.float64)
        else:
            _skip(run, name, array, skipped)
    _read_series(run, series, set(series))
    if skipped:
        run.assumptions.append(f"arrays left out: {listed(skipped)}")
