"""TensorBoard event files: scalars and histograms.

Format: TFRecord of tensorflow Event messages. The record reader and the messages are those of the package tensorboard, which
checks the CRC of every record; it is imported only when an event file is read.

A tag whose last part is a loss, gradient norm, learning rate or loss scale is that number of the run ("train/loss"; tags that
begin with eval, val or test are left out). A tag PROBE_STATISTIC or PROBE/STATISTIC is a statistic of a probe, as the writers
of nvdlfw_inspect and msprobe name them. A histogram is a probe: its message holds the exact minimum, maximum, element count,
sum and sum of squares of the finite elements. Other tags are left out.
"""
from __future__ import annotations

import itertools
import re
import tempfile

import numpy as np

from opd.importers.names import SCALAR_OF, key, kind_of, split_statistic
from opd.importers.run import ImportedRun, Stat, listed, stat_of
from opd.importers.scalars import Row, read_rows
from opd.importers.source import COPY_AGAIN, Source
from opd.texts import quoted

NAME = "tensorboard"
WHAT = "TensorBoard event file"

_EVALUATION = re.compile(r"(?i)(.*/)?(eval|evaluation|val|valid|validation|test)([/_]|$)")


def sniff(source: Source) -> int:
    """2 for an event file: its first record tells the version. 0 for anything else."""
    return 2 if b"brain.Event:" in source.head[:64] else 0


def read(source: Source) -> ImportedRun:
    """The events. Raises ImportFault with the number of the record."""
    scalars: dict[str, list[tuple[int, int, float]]] = {}   # tag -> (step, record, value), in order
    histograms: dict[str, list[tuple[int, int, Stat, int]]] = {}
    others = set()
    for number, event in _events(source):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                scalars.setdefault(value.tag, []).append((event.step, number, value.simple_value))
            elif kind == "histo":
                histograms.setdefault(value.tag, []).append((event.step, number, *_histogram(value.histo, number)))
            elif kind == "tensor" and (numbers := _tensor(source, number, value)) is not None:
                if numbers.ndim == 0:
                    scalars.setdefault(value.tag, []).append((event.step, number, float(numbers)))
                else:
                    histograms.setdefault(value.tag, []).append((event.step, number, *_buckets(numbers, number)))
            else:
                others.add(value.tag)
    run = ImportedRun(framework="TensorBoard")
    _build(source, run, scalars, histograms, others)
    return run


def _events(source: Source):
    """Number (from 1) and Event message of each record."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        source.fail(None, "needs the Python package tensorboard", "install it: scripts/setup")
    with tempfile.NamedTemporaryFile(prefix="opd-import-") as file:   # the reader takes a path, the source may be compressed
        file.write(source.data)
        file.flush()
        reader = PyRecordReader_New(file.name)
        for number in itertools.count(1):
            # The reader of EventFileLoader, but not that class: it takes a damaged record for the end of the file.
            try:
                reader.GetNext()
                yield number, event_pb2.Event.FromString(reader.record())
            except errors.OutOfRangeError:
                return
            except errors.DataLossError as error:
                wrong = "is cut off" if "truncated" in str(error) else "fails its CRC check"
                source.fail(f"record {number}", wrong, COPY_AGAIN)
            except DecodeError:
                source.fail(f"record {number}", "is not an Event message", COPY_AGAIN)


def _histogram(histogram, number: int) -> tuple[Stat, int]:
    """Stat and element count of a HistogramProto."""
    count = histogram.num
    mean = histogram.sum / count if count else None
    var = max(0.0, histogram.sum_squares / count - mean * mean) if count else None
    return Stat(number, max(abs(histogram.min), abs(histogram.max)), 0, mean=mean, var=var), int(count)


def _tensor(source: Source, number: int, value) -> np.ndarray | None:
    """A scalar, or the buckets [left, right, count] of a histogram; None for other tensors."""
    from tensorboard.util import tensor_util
    plugin = value.metadata.plugin_data.plugin_name
    try:
        numbers = tensor_util.make_ndarray(value.tensor)
    except (TypeError, ValueError):
        source.fail(f"record {number}", f"tag {quoted(value.tag)} holds no readable tensor", COPY_AGAIN)
    if numbers.dtype.kind not in "fiu":
        return None
    if numbers.ndim == 0 and plugin in ("", "scalars"):
        return numbers
    return numbers if plugin == "histograms" and numbers.ndim == 2 and numbers.shape[1] == 3 and len(numbers) else None


def _buckets(buckets: np.ndarray, number: int) -> tuple[Stat, int]:
    """Stat and element count of a histogram's buckets: the outer edges are the extremes."""
    return Stat(number, float(max(abs(buckets[0, 0]), abs(buckets[-1, 1]))), 0), int(buckets[:, 2].sum())


def _build(source: Source, run: ImportedRun, scalars: dict, histograms: dict, others: set) -> None:
    numbers, statistics = {}, {}   # tags of the run's numbers: field -> tag; of tensors: probe -> {statistic: tag}
    for tag in scalars:
        field = SCALAR_OF.get(key(tag.rsplit("/", 1)[-1]))
        parts = split_statistic(tag)
        if field is not None and not _EVALUATION.match(tag) and field not in numbers:
            numbers[field] = tag
        elif field is None and parts is not None:
            statistics.setdefault(parts[0], {})[parts[1]] = tag
        else:
            others.add(tag)
    for probe, tags in list(statistics.items()):
        if not {"max_abs", "max", "min"} & tags.keys():
            others.update(tags.values())
            del statistics[probe]

    rows: dict[tuple[int, int], Row] = {}   # by run and step: a restarted run writes its steps again
    stats: dict[tuple[int, int], dict[str, Stat]] = {}

    def stretches(points):
        """Each point with the number of times that the steps of its tag have gone back before it."""
        restarts, last = 0, None
        for point in points:
            restarts += last is not None and point[0] <= last
            last = point[0]
            yield (restarts, point[0]), point

    for field, tag in numbers.items():
        for at, (step, record, value) in stretches(scalars[tag]):
            rows.setdefault(at, Row(record, step)).values[field] = value
    for probe, tags in statistics.items():
        fields: dict[tuple[int, int], dict[str, float]] = {}
        records = {}
        for statistic, tag in tags.items():
            for at, (_, record, value) in stretches(scalars[tag]):
                fields.setdefault(at, {})[statistic] = value
                records[at] = record
        for at, found in fields.items():
            stats.setdefault(at, {})[probe] = stat_of(found, records[at])
        run.probe(probe, kind_of(probe))
    for tag, points in histograms.items():
        for at, (_, record, stat, count) in stretches(points):
            if count:
                stats.setdefault(at, {})[tag] = stat
                run.probe(tag, kind_of(tag), None, (count,))
    ordered = sorted(rows.keys() | stats.keys())
    if not ordered:
        source.fail(None, "holds no scalar or histogram that a trace can hold",
                    "log a loss, a gradient norm or histograms of tensors")
    read = read_rows([rows.get(at) or Row(0, at[1]) for at in ordered], run)
    for at, step in zip(ordered, read):
        step.stats.update(stats.get(at, {}))
    if others:
        run.assumptions.append(f"tags left out: {listed(sorted(others))}")
