"""Logs of loss, gradient norm and loss scale: rows of numbers about a whole run, made into probes of one element.

    loss        activation   |loss|: the last value of the forward pass
    gradients   gradient     non-finite where the log says so: an overflow, a skipped step, a loss scale that falls. No log
                             tells their magnitude: 0
    grad_norm   collective   the norm over all ranks, after unscaling
    loss_scale  optimizer    the state of the loss scaler

The series of the trace (loss, grad_norm, lr, loss_scale) hold the same numbers as the run saw them.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field

from opd.importers.run import ImportedRun, Stat, Step

PROBES = {"loss": "activation", "gradients": "gradient", "grad_norm": "collective", "loss_scale": "optimizer"}


@dataclass
class Row:
    """One row of a log. values: fields of names.SCALARS. A row without a step is an event between two others."""
    line: int
    step: int | None = None
    epoch: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    overflow: bool = False

    @property
    def loss_scale(self) -> float | None:
        return self.values.get("loss_scale")


def read_rows(rows: list[Row], run: ImportedRun) -> list[Step]:
    """Adds the rows to the run as steps, and the assumptions that this takes. Returns the step of each row."""
    _unfold_epochs(rows, run)
    _place_events(rows, run)
    told = any(row.overflow or row.values.get("overflows", 0) > 0 for row in rows)
    for name, kind in PROBES.items():
        run.probe(name, kind, "FP32", ())
    scale = None
    fell = doubled = 0
    step, taken = None, []
    for row in rows:
        # A row of the step before it completes that step, unless both tell the same number: then the run began again.
        tells_twice = step is not None and not row.overflow and step.series.keys() & row.values.keys() - {"loss_scale"}
        if step is None or row.step != step.step or tells_twice:
            scale = None if step is not None and row.step <= step.step else scale
            step = Step(row.step, row.line)
            run.steps.append(step)
        overflow = row.overflow or row.values.get("overflows", 0) > 0
        after = row.values.get("scale_after")
        now = row.loss_scale
        if now is None and overflow:
            now = row.values.get("scale_attempted")
            if now is None and after is not None:
                now = 2 * after
                doubled += 1
        elif now is None:
            now = after   # without an overflow the scale stays
        if not told and now is not None and scale is not None and now < scale:
            overflow, fell = True, fell + 1
        _add(step, row, now if now is not None else step.series.get("loss_scale", scale), overflow)
        taken.append(step)
        scale = after if after is not None else now if now is not None else scale
    if fell:
        run.assumptions.append(f"the loss scale falls {fell} times: a gradient was not finite there")
    if doubled:
        run.assumptions.append(f"the loss scale of {doubled} overflows is twice the one the log sets after it")
    if any("gradients" in step.stats for step in run.steps):
        run.assumptions.append("gradients: the log tells whether they are finite, not their magnitude: 0")
    return taken


def _add(step: Step, row: Row, scale: float | None, overflow: bool) -> None:
    for name in ("loss", "grad_norm", "lr"):
        value = row.values.get(name)
        if value is None or (name == "lr" and not math.isfinite(value)):
            continue
        step.series[name] = value
        if name in PROBES:
            step.stats[name] = Stat(row.line, abs(value))
    if row.values.get("nan_losses", 0) > 0 and "loss" not in row.values:
        step.stats["loss"] = Stat(row.line, math.nan)
    if scale is not None and math.isfinite(scale) and scale > 0:
        step.series["loss_scale"] = scale
        step.stats["loss_scale"] = Stat(row.line, scale)
    if overflow or scale is not None:
        known = step.stats.get("gradients")
        step.stats["gradients"] = Stat(row.line, 0.0, max(int(overflow), known.nonfinite if known else 0))


def _unfold_epochs(rows: list[Row], run: ImportedRun) -> None:
    """Steps that start again at each epoch are counted on: the first of an epoch comes one interval after the last before."""
    offset, last = 0, None
    interval = 1
    unfolded = 0
    for row in rows:
        if row.step is None:
            continue
        if last is not None and row.epoch is not None and last.epoch is not None:
            if row.epoch > last.epoch and row.step + offset <= last.step:
                offset = last.step + interval - row.step
                unfolded += 1
            elif row.epoch == last.epoch and row.step + offset > last.step:
                interval = row.step + offset - last.step
            elif row.epoch < last.epoch:
                offset = 0
        row.step += offset
        last = row
    if unfolded:
        run.assumptions.append(f"steps start again at {unfolded} epochs: they are counted on, one log interval after the last")


def _place_events(rows: list[Row], run: ImportedRun) -> None:
    """Gives every row a step. Events take the steps right after the row before them, at most up to the step of the row after;
    before the first row of a run, the steps right before it. Between two runs they belong to the earlier one when they
    continue its loss scale."""
    placed = shared = 0
    pending: list[Row] = []
    last, scale = None, None   # step and loss scale of the row before

    def place(first: int, limit: int | None):
        nonlocal placed, shared
        for i, event in enumerate(pending):
            event.step = first + i if limit is None else min(first + i, limit)
            shared += limit is not None and first + i > limit
        placed += len(pending)
        pending.clear()

    for row in rows:
        if row.step is None:
            pending.append(row)
            continue
        if pending:
            if last is not None and row.step > last:
                place(last + 1, row.step)
            elif last is not None and _continues(pending[0], scale):
                place(last + 1, None)
            else:
                place(max(0, row.step - len(pending)), row.step)
        last = row.step
        scale = row.values.get("scale_after", row.loss_scale if row.loss_scale is not None else scale)
    if pending:
        place(0 if last is None else last + 1, None)
    if placed:
        run.assumptions.append(f"{placed} rows have no step: each takes the step after the row before it"
                               + (f", {shared} share one" if shared else ""))


def _continues(event: Row, scale: float | None) -> bool:
    """Whether an event goes on with the loss scale of the run before it: the same one, or half of it."""
    told = event.values.get("scale_attempted", event.values.get("scale_after", event.loss_scale))
    return scale is not None and told is not None and told in (scale, scale / 2)
