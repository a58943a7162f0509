"""TensorBoard event files: scalars and histograms.

Format: TFRecord of tensorflow Event messages: length (8 bytes), CRC of the length, message, CRC of the message. CRC and messages are
those of the package tensorboard, which is imported only when an event file is read. Its record reader and its tensors are not: the one
takes the memory that a length claims, the other that a shape claims, before it looks at what is there.

Scalars, as values or (Keras, tf.summary) as tensors of one number, are read by name (metrics.py): "train/loss" is the loss,
"loss_cls" a further one, "eval/loss" an evaluation. Keras' "epoch_loss" counts by epochs, "batch_loss" by steps; all scalars of a
file in the folder "validation" are evaluations. A tag PROBE_STATISTIC or PROBE/STATISTIC is a statistic of a probe, as the
writers of nvdlfw_inspect and msprobe name them. A histogram is a probe: its message holds the exact minimum, maximum, element
count, sum and sum of squares. Other tags are left out.
"""
from __future__ import annotations

import itertools
import math
import struct
from pathlib import Path

import numpy as np

from opd.importers.metrics import read_series
from opd.importers.names import is_evaluation, kind_of, words
from opd.importers.run import ImportedRun, Stat, listed
from opd.importers.source import COPY_AGAIN, Source
from opd.texts import quoted

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MOST_ELEMENTS = 2.0**62

NAME = "tensorboard"
WHAT = "TensorBoard event file"


def sniff(source: Source) -> int:
    """2 for an event file: its first record tells the version. 0 for anything else."""
    return 2 if b"brain.Event:" in source.head[:64] else 0


def read(source: Source) -> ImportedRun:
    """The events. Raises ImportFault with the number of the record."""
    scalars: dict[str, list[tuple[int, int, float]]] = {}   # tag -> (step, record, value), in order
    histograms: dict[str, list[tuple[int, int, Stat]]] = {}
    counts: dict[str, int] = {}
    others: dict[str, None] = {}
    run = ImportedRun(framework="TensorBoard")
    told = 0
    for number, event in _events(source):
        told += len(event.summary.value)
        source.bound(told, "values")
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                scalars.setdefault(value.tag, []).append((event.step, number, value.simple_value))
                continue
            numbers = _tensor(source, number, value) if kind == "tensor" else None
            if kind == "histo":
                stat, count = _histogram(value.histo, number)
            elif numbers is not None and numbers.size == 1:
                scalars.setdefault(value.tag, []).append((event.step, number, float(numbers.reshape(()))))
                continue
            elif numbers is not None and _are_buckets(value, numbers):
                stat, count = _buckets(numbers, number)
            else:
                if numbers is not None and not np.isfinite(numbers.astype(np.float64)).all() and value.tag not in others:
                    where = f"{value.tag} at step {event.step}, record {number}"
                    run.not_understood(None, f"{where}: not finite, in a tensor that is left out")
                others[value.tag] = None
                continue
            if count:
                histograms.setdefault(value.tag, []).append((event.step, number, stat))
                counts[value.tag] = max(count, counts.get(value.tag, 0))
    for tag, count in counts.items():
        run.probe(tag, kind_of(tag), None, (count,))
    is_aside = _is_evaluation_folder(source)
    if is_aside:
        run.assumptions.append(f"the folder {Path(source.path).parent.name} holds evaluations")
        scalars = {f"eval/{tag}": points for tag, points in scalars.items()}
    read_series(run, scalars, histograms, "tags", is_line=False)
    if others:
        run.assumptions.append(f"tags that are no numbers left out: {listed(sorted(others))}")
    if not any(step.stats or step.series for step in run.steps):
        if not is_aside:
            source.fail(None, "holds no scalar or histogram that a trace can hold" + _found(scalars),
                        "log a loss, a gradient norm or histograms of tensors")
        run.empty = (f"holds evaluations only{_found(scalars)}", "give the event file of the training, or both with --join")
        run.steps.clear()
    return run


def _found(scalars: dict) -> str:
    return f"; its tags: {listed(sorted(scalars))}" if scalars else ""


def _is_evaluation_folder(source: Source) -> bool:
    """Whether the folder says so: "validation" beside "train" as Keras has them, "loss_val" of add_scalars. Runs may be called
    test: that counts beside a folder for the training only."""
    folder = Path(source.path).resolve().parent
    if not is_evaluation(folder.name):
        return False
    last = words(folder.name)[-1]
    return last in ("validation", "val", "valid", "eval") or any(
        (folder.parent / (folder.name[:len(folder.name) - len(last)] + name)).is_dir() for name in ("train", "training"))


def _events(source: Source):
    """Number (from 1) and Event message of each record."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    except ImportError:
        source.fail(None, "needs the Python package tensorboard", "install it: scripts/setup")
    data, at = memoryview(source.data), 0

    def checked(size: int) -> bytes:
        """The next bytes, which their CRC follows."""
        nonlocal at
        if len(data) - at < size + _CRC.size:
            source.fail(f"record {number}", "is cut off", COPY_AGAIN)
        content = bytes(data[at:at + size])
        if masked_crc32c(content) != _CRC.unpack_from(data, at + size)[0]:
            source.fail(f"record {number}", "fails its CRC check", COPY_AGAIN)
        at += size + _CRC.size
        return content

    for number in itertools.count(1):
        if at == len(data):
            return
        size, = _LENGTH.unpack(checked(_LENGTH.size))
        try:
            yield number, event_pb2.Event.FromString(checked(size))
        except DecodeError:
            source.fail(f"record {number}", "is not an Event message", COPY_AGAIN)


def _histogram(histogram, number: int) -> tuple[Stat, int]:
    """Stat and element count of a HistogramProto."""
    count = min(histogram.num, _MOST_ELEMENTS) if histogram.num >= 1 else 0
    mean = histogram.sum / count if count else None
    var = max(0.0, histogram.sum_squares / count - mean * mean) if count and math.isfinite(histogram.sum) else None
    is_bad = math.isnan(histogram.sum) or math.isinf(histogram.sum) or math.isnan(histogram.sum_squares)
    return Stat(number, _largest(histogram.min, histogram.max), int(is_bad), mean=mean, var=var), int(count)


def _largest(*extremes: float) -> float:
    """The larger magnitude; NaN where one of them is."""
    return math.nan if any(map(math.isnan, extremes)) else max(map(abs, extremes))


def _tensor(source: Source, number: int, value) -> np.ndarray | None:
    """The numbers of a tensor; None for texts and graphs."""
    from tensorboard.util import tensor_util
    try:
        sizes = [dim.size for dim in value.tensor.tensor_shape.dim]
        if min(sizes, default=1) < 0:
            raise ValueError
        if math.prod(sizes) > value.ByteSize():
            return None   # one value, said to stand for many
        numbers = tensor_util.make_ndarray(value.tensor)
    except (TypeError, ValueError, KeyError, AttributeError):
        source.fail(f"record {number}", f"tag {quoted(value.tag)} holds no readable tensor", COPY_AGAIN)
    return numbers if numbers.dtype.kind in "fiu" and numbers.size or numbers.dtype.name == "bfloat16" else None


def _are_buckets(value, numbers: np.ndarray) -> bool:
    """Whether a tensor holds the buckets [left, right, count] of a histogram."""
    return (value.metadata.plugin_data.plugin_name == "histograms" and numbers.ndim == 2 and numbers.shape[1] == 3
            and len(numbers) > 0)


def _buckets(buckets: np.ndarray, number: int) -> tuple[Stat, int]:
    """Stat and element count of a histogram's buckets: the outer edges are the extremes."""
    edges = buckets[:, :2].astype(np.float64)
    largest = _largest(float(edges[0, 0]), float(edges[-1, 1])) if np.isfinite(edges).all() else math.nan
    counts = buckets[:, 2]
    return Stat(number, largest, 0), int(min(max(counts.sum(), 0), _MOST_ELEMENTS)) if np.isfinite(counts).all() else 1
