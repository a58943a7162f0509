"""One trace of the traces that the processes of a distributed run wrote."""
from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from opd.capture.errors import CaptureError
from opd.trace import COUNTS, SERIES, Probe, Trace


def merge(paths: Sequence[str | os.PathLike]) -> Trace:
    """The view over all ranks: largest of the magnitudes, sum of the counts, moments of all elements together, mean of the
    loss; a probe's shape gets the number of ranks in front. Steps and probes are those that every rank has; raw rows stay in
    the files of the ranks. Raises CaptureError for traces that have nothing in common, TraceError for files that are none.
    """
    if len(paths) < 2:
        raise CaptureError(f"merge: {len(paths)} file; give the traces of at least two ranks")
    real = [os.path.realpath(path) for path in paths]
    for path in paths:
        if real.count(os.path.realpath(path)) > 1:
            raise CaptureError(f"merge: {path} is named twice; name the trace of every rank once")
    traces = [Trace.read(path) for path in paths]
    first = traces[0]
    steps = sorted(set.intersection(*(set(trace.step.tolist()) for trace in traces)))
    # The order of probes is that of the rank where something happened first: its calls had it (opd.capture.reader).
    model = min(traces, key=lambda trace: math.inf if trace.first_bad_step is None else trace.first_bad_step)
    probes = [probe for probe in model.probes if all(_find(trace, probe) is not None for trace in traces)]
    if not steps or not probes:
        raise CaptureError(f"merge: {', '.join(map(str, paths))} have no {'step' if not steps else 'probe'} in common; "
                           "give the traces of one run")
    rows = [np.searchsorted(trace.step, steps) for trace in traces]
    columns = [[_find(trace, probe) for probe in probes] for trace in traces]

    def gather(member: str) -> np.ndarray | None:
        """[ranks, S, P], or None when a rank lacks it."""
        arrays = [getattr(trace, member) for trace in traces]
        if any(array is None for array in arrays):
            return None
        return np.stack([array[np.ix_(r, c)] for array, r, c in zip(arrays, rows, columns)])

    merged = Trace(name=first.name.removesuffix(".rank0"), label=_label(traces), model=first.model, framework=first.framework,
                   seed=first.seed, step=np.array(steps, np.int64), max_abs=gather("max_abs").max(axis=0),
                   nonfinite=gather("nonfinite").sum(axis=0),
                   probes=[Probe(probe.name, probe.kind, probe.format, _shape(traces, columns, p))
                           for p, probe in enumerate(probes)],
                   manifest={"merged": [trace.manifest for trace in traces], "ranks": len(traces)})
    for member in COUNTS[1:]:
        counts = gather(member)
        setattr(merged, member, None if counts is None else counts.sum(axis=0))
    if (smallest := gather("min_abs")) is not None:
        smallest = np.where(smallest > 0, smallest, np.inf).min(axis=0)
        merged.min_abs = np.where(np.isfinite(smallest), smallest, 0).astype(np.float32)
    _merge_moments(merged, gather, np.array([[trace.probes[c].elements for c in column]
                                             for trace, column in zip(traces, columns)])[:, None, :])
    for name in SERIES:
        values = [getattr(trace, name) for trace in traces]
        if all(value is not None for value in values):
            values = np.stack([value[r] for value, r in zip(values, rows)])
            setattr(merged, name, values.mean(axis=0, dtype=np.float64).astype(np.float32) if name == "loss" else values[0])
    forward = np.array([probe.kind == "activation" for probe in probes])
    bad = np.argwhere((merged.nonfinite > 0) & forward)
    if len(bad):
        merged.first_bad_step, merged.first_bad_op = steps[bad[0][0]], probes[bad[0][1]].name
    return merged


def _label(traces: Sequence[Trace]) -> str:
    """That of the first rank on which something happened, else that of the first."""
    return next((trace.label for trace in traces if trace.label not in ("healthy", "near-limit")), traces[0].label)


def _find(trace: Trace, wanted: Probe) -> int | None:
    return next((i for i, probe in enumerate(trace.probes)
                 if (probe.name, probe.kind, probe.format) == (wanted.name, wanted.kind, wanted.format)), None)


def _shape(traces: Sequence[Trace], columns: Sequence[Sequence[int]], p: int) -> tuple[int, ...]:
    shapes = [trace.probes[column[p]].shape for trace, column in zip(traces, columns)]
    return (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else (sum(map(math.prod, shapes)),)


def _merge_moments(merged: Trace, gather, elements: np.ndarray) -> None:
    """Mean and variance over the finite elements of all ranks (Chan)."""
    mean, var = gather("mean"), gather("var")
    if mean is None or var is None:
        return
    mean, var = mean.astype(np.float64), var.astype(np.float64)
    count = (elements - gather("nonfinite")).astype(np.float64)
    total = np.maximum(count.sum(axis=0), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (count * mean).sum(axis=0) / total
        spread = (count * (var + (mean - middle) ** 2)).sum(axis=0) / total
        merged.mean = np.where(np.isnan(middle), np.inf, middle).astype(np.float32)
        merged.var = np.where(np.isnan(spread), np.inf, spread).astype(np.float32)
