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

_SCALES = {"loss_scale", "scale_attempted", "scale_after"}
PROBES = {"loss": "activation", "gradients": "gradient", "grad_norm": "collective", "loss_scale": "optimizer"}


@dataclass
class Row:
    """One row of a log. values: fields of names.SCALARS. A row without a step is an event between two others."""
    line: int
    step: int | None = None
    epoch: int | None = None          # where steps start again at each epoch
    values: dict[str, float] = field(default_factory=dict)
    overflow: bool = False
    length: int | None = None         # steps of an epoch, where the log tells it
    epoch_base: int | None = None     # number of the first epoch, where it is known
    writer: str = ""                  # what printed it: rows of several writers complete each other
    scaler: str = ""                  # of several loss scalers: what the names of its probes end with
    iteration: int | None = None      # of an event: the one that it names; it is the step where it lies between those of the rows
    tells_gradients: bool = False     # says of its step's gradients that they were finite, where it tells no overflow
    is_mark: bool = False             # tells where in the run the log is, and makes no step

    @property
    def loss_scale(self) -> float | None:
        return self.values.get("loss_scale")

    @property
    def is_overflow(self) -> bool:
        """Whether it says that a gradient was not finite."""
        return self.overflow or self.values.get("overflows", 0) > 0


def read_rows(rows: list[Row], run: ImportedRun) -> list[Step]:
    """Adds the rows to the run as steps, and the assumptions that this takes. Returns the step of each row that is no mark."""
    unfold_epochs(rows, run)
    _place_events(rows, run)
    rows = [row for row in rows if not row.is_mark]
    for suffix in dict.fromkeys(["", *(row.scaler for row in rows)]):
        for name, kind in PROBES.items():
            if not suffix or name in ("gradients", "loss_scale"):
                run.probe(name + suffix, kind, "FP32", ())
    scalers: dict[str, _Scaler] = {}
    step, told, taken = None, set(), []
    for row in rows:
        tells = {(row.writer, name) for name in row.values if name in ("loss", "grad_norm", "lr")}
        # A row of the step before it completes that step, unless it tells what its writer has told: then the run began again.
        if step is None or row.step != step.step or (not row.overflow and told & tells):
            if step is not None and row.step <= step.step:
                scalers = {suffix: _Scaler(fell=scaler.fell, doubled=scaler.doubled) for suffix, scaler in scalers.items()}
            step, told = Step(row.step, row.line), set()
            run.steps.append(step)
        told |= tells
        scaler = scalers.setdefault(row.scaler, _Scaler())
        overflow, scale = scaler.next(row)
        known = step.stats.get(f"loss_scale{row.scaler}")
        if known is not None and not row.values.keys() & _SCALES:
            scale = known.max_abs   # the one that the step has told
        _add(step, row, scale, overflow)
        taken.append(step)
    if fell := sum(scaler.fell for scaler in scalers.values()):
        run.assumptions.append(f"the loss scale falls {fell} times: a gradient was not finite there")
    if doubled := sum(scaler.doubled for scaler in scalers.values()):
        run.assumptions.append(f"the loss scale of {doubled} overflows is twice the one the log sets after it")
    if any("gradients" in step.stats for step in run.steps):
        run.assumptions.append("gradients: the log tells whether they are finite, not their magnitude: 0")
    return taken


@dataclass
class _Scaler:
    """The state of one loss scaler, row by row."""
    scale: float | None = None
    is_explained: bool = False   # an overflow came that does not tell the scale after it
    fell: int = 0
    doubled: int = 0

    def next(self, row: Row) -> tuple[bool, float | None]:
        """Whether a gradient was not finite, and the loss scale it was computed with; None where it is not known."""
        overflow, after, now = row.is_overflow, row.values.get("scale_after"), row.loss_scale
        if now is None and overflow:
            now = row.values.get("scale_attempted")
            if now is None and after is not None:
                now = 2 * after
                self.doubled += 1
        elif now is None:
            now = after   # without an overflow the scale stays
        elif not overflow and self.scale is not None and now < self.scale and not self.is_explained:
            overflow = True
            self.fell += 1
        if row.is_overflow and after is None:
            self.is_explained = True
        elif now is not None or after is not None:
            self.is_explained = False
        known = now if now is not None else self.scale
        self.scale = after if after is not None else known
        return overflow, known


def _add(step: Step, row: Row, scale: float | None, overflow: bool) -> None:
    for name in ("loss", "grad_norm", "lr"):
        value = row.values.get(name)
        if value is None or (name == "lr" and not math.isfinite(value)):
            continue
        if name in step.series and math.isfinite(value):
            continue   # another writer has told it
        step.series[name] = value
        if name in PROBES:
            step.stats[name] = Stat(row.line, abs(value))
    if row.values.get("nan_losses", 0) > 0:
        known = step.stats.get("loss")
        step.stats["loss"] = Stat(row.line, math.nan) if known is None else Stat(row.line, known.max_abs, 1)
    if scale is not None and math.isfinite(scale) and scale > 0:
        step.stats[f"loss_scale{row.scaler}"] = Stat(row.line, scale)
        if not row.scaler:
            step.series["loss_scale"] = scale
    if overflow or scale is not None or row.tells_gradients:
        name = f"gradients{row.scaler}"
        known = step.stats.get(name)
        step.stats[name] = Stat(row.line, 0.0, max(int(overflow), known.nonfinite if known else 0))


def unfold_epochs(rows: list[Row], run: ImportedRun) -> None:
    """Steps that start again at each epoch are counted on: by the length of the epochs before where the log tells it, else the
    first of an epoch comes one interval after the last before."""
    by_length = by_interval = 0
    for writer in dict.fromkeys(row.writer for row in rows):
        own = [row for row in rows if row.writer == writer and row.step is not None]
        if any(row.length for row in own):
            by_length += _unfold_by_length(own)
        else:
            by_interval += _unfold_by_interval(own)
    for row in rows:
        row.epoch = row.length = None
    for count, how in ((by_interval, "one log interval after the last"), (by_length, "by the length of the epochs before")):
        if count:
            run.assumptions.append(f"steps start again at {count} epochs: they are counted on, {how}")


def _unfold_by_length(rows: list[Row]) -> int:
    """Counts on, in place; how many epochs."""
    base = next((row.epoch_base for row in rows if row.epoch_base is not None), None)
    if base is None:
        base = 0 if any(row.epoch == 0 for row in rows) else 1
    lengths: dict[int, int] = {}
    step, length, epoch = -1, None, None   # of the row before
    offset = passed = unfolded = 0
    for row in rows:
        length_before, length = length, row.length or length
        if row.epoch is not None and length:
            if row.epoch != epoch:
                unfolded += epoch is not None and row.epoch > epoch
                before = [known for number, known in lengths.items() if base <= number < row.epoch]
                offset = sum(before) + max(row.epoch - base - len(before), 0) * length
            lengths[row.epoch] = max(length, lengths.get(row.epoch, 0))
        elif row.epoch is None and row.step < step:
            passed = passed + length_before if length_before and step >= length_before else 0   # else the run began again
            offset, unfolded = passed, unfolded + bool(passed)
        step, epoch = row.step, row.epoch
        row.step += offset
    return unfolded


def _unfold_by_interval(rows: list[Row]) -> int:
    """Counts on, in place; how many epochs."""
    offset, last, interval, unfolded = 0, None, None, 0
    for row in rows:
        if last is not None and row.epoch is not None and last.epoch is not None:
            if row.epoch > last.epoch and row.step + offset <= last.step:
                offset = last.step + (interval or max(last.step - offset, 1)) - row.step
                unfolded += 1
            elif row.epoch == last.epoch and row.step + offset > last.step:
                interval = row.step + offset - last.step
            elif row.epoch < last.epoch:
                offset = 0
        row.step += offset
        last = row
    return unfolded


def _place_events(rows: list[Row], run: ImportedRun) -> None:
    """Gives every row a step. Events take the steps right after the row before them, at most up to the step of the row after;
    before the first row of a run, the steps right before it. Between two runs they belong to the earlier one when they
    continue its loss scale."""
    placed = shared = 0
    pending: list[Row] = []
    last, scale = None, None   # step and loss scale of the row before

    def place(first: int, limit: int | None):
        nonlocal placed, shared
        at = first
        for event in pending:
            named = event.iteration
            if named is not None and at <= named and (limit is None or named <= limit):
                at, event.step = named + 1, named
                continue
            event.step = at if limit is None else min(at, limit)
            shared += limit is not None and at > limit
            placed += 1
            at += 1
        pending.clear()

    told: set[tuple[str, str]] = set()   # at the step of the row before: by whom, which values
    for row in rows:
        if row.step is None:
            pending.append(row)
            continue
        if row.is_mark and row.step == last:
            continue
        if pending:
            if last is not None and row.step > last:
                place(last + 1, row.step)
            elif row.step == last and not told & {(row.writer, name) for name in row.values}:   # completes the step before
                place(last, last)
            elif last is not None and _continues(pending[0], scale):
                place(last + 1, None)
            else:
                place(max(0, row.step - len(pending)), row.step)
        told = (told if row.step == last else set()) | {(row.writer, name) for name in row.values}
        last = row.step
        if not row.is_mark:
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
