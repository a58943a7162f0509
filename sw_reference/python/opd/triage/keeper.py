"""The last steps of a run that is going on, as a trace: what a guard or a capture keeps so that an incident has a history."""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opd.trace import FORMATS, Probe, Trace

STEPS = 512  # that are kept


@dataclass(frozen=True)
class _Row:
    step: int
    places: np.ndarray   # of its probes
    max_abs: np.ndarray
    nonfinite: np.ndarray
    series: Mapping[str, float]
    rates: tuple[float, ...]


class Keeper:
    """Keeps `steps` steps."""

    def __init__(self, steps: int = STEPS):
        self._rows: deque[_Row] = deque(maxlen=steps)
        self._probes: dict[tuple[str, str], int] = {}
        self._formats: list[str] = []
        self._elements: list[int] = []

    def add(self, step: int, probes: Iterable[tuple[str, str, str, int]], max_abs: Sequence[float], nonfinite: Sequence[int],
            series: Mapping[str, float | None], rates: Sequence[float] = ()) -> None:
        """A step; one with the number of the last, or before it, takes the place of what was there. probes: name, kind, format, elements, in
        order of the calls; series: loss, loss_scale where there are any; rates: learning rates of the parameter groups."""
        while self._rows and self._rows[-1].step >= step:
            self._rows.pop()
        places = np.array([self._place(*probe) for probe in probes], np.int64)
        self._rows.append(_Row(step, places, np.asarray(max_abs, np.float64), np.asarray(nonfinite, np.int64),
                               {name: value for name, value in series.items() if value is not None}, tuple(rates)))

    def _place(self, name: str, kind: str, format: str, elements: int) -> int:
        place = self._probes.setdefault((name, kind), len(self._formats))
        if place == len(self._formats):
            self._formats.append(format)
            self._elements.append(max(1, elements))
        self._elements[place] = max(self._elements[place], elements)
        return place

    def trace(self, name: str, first: Sequence[tuple[str, int]] = ()) -> Trace | None:
        """What is kept, operators of the forward pass first; None before the first step. A probe that did not run in a step repeats its last
        magnitude. first: of each parameter group the name of its first parameter, and the number of them."""
        rows = [row for row in self._rows if len(row.places)]
        if not rows:
            return None
        kinds = [kind for _, kind in self._probes]
        order = sorted(range(len(kinds)), key=lambda place: kinds[place] != "activation")
        max_abs, nonfinite = np.zeros((len(rows), len(kinds))), np.zeros((len(rows), len(kinds)), np.int64)
        for s, row in enumerate(rows):
            if s:
                max_abs[s] = max_abs[s - 1]
            max_abs[s, row.places], nonfinite[s, row.places] = row.max_abs, row.nonfinite
        limits = np.array([float(FORMATS[format].max_value) for format in self._formats])
        names = [name for name, _ in self._probes]
        step = np.array([row.step for row in rows], np.int64)
        trace = Trace(name, "healthy", [Probe(names[p], kinds[p], self._formats[p], (self._elements[p],)) for p in order], step,
                      np.minimum(max_abs, limits)[:, order].astype(np.float32), nonfinite[:, order], **_series(rows))
        bad = np.argwhere((trace.nonfinite > 0) & np.array([probe.kind == "activation" for probe in trace.probes]))
        if len(bad):
            trace.first_bad_step, trace.first_bad_op = int(step[bad[0][0]]), trace.probes[bad[0][1]].name
        if len(bad) or (trace.loss is not None and not np.isfinite(trace.loss).all()):
            trace.label = "sudden"
        trace.manifest = _groups(rows, first)
        return trace


def _series(rows: Sequence[_Row]) -> dict[str, np.ndarray]:
    """Of each series that some step has; where one is missing the last value is repeated."""
    found = {}
    for name in ("loss", "loss_scale"):
        values, last = [], None
        for row in rows:
            last = row.series.get(name, last)
            values.append(last)
        known = next((value for value in values if value is not None), None)
        if known is not None:
            found[name] = np.array([known if value is None else value for value in values], np.float32)
    if any(row.rates for row in rows):
        found["lr"] = np.array([row.rates[0] if row.rates else math.nan for row in rows], np.float32)
        known = found["lr"][np.isfinite(found["lr"])]
        found["lr"][~np.isfinite(found["lr"])] = known[0] if len(known) else 0.0
    return found


def _groups(rows: Sequence[_Row], first: Sequence[tuple[str, int]]) -> dict:
    """The learning rates as a capture's manifest has them, where there are several groups or their names are known."""
    most = max((len(row.rates) for row in rows), default=0)
    if most < 2 and not first:
        return {}
    groups = [{"lr": [], "first": first[g][0] if g < len(first) else "", "parameters": first[g][1] if g < len(first) else None}
              for g in range(most)]
    for row in rows:
        for group, lr in zip(groups, row.rates):
            if not group["lr"] or group["lr"][-1][1] != lr:
                group["lr"].append([row.step, lr])
    return {"lr_groups": groups}
