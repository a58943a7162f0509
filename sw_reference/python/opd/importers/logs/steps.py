"""The step of each entry: told by its line, by a progress bar or heading before it, by another tool's lines, or counted."""
from __future__ import annotations

from collections import Counter
from dataclasses import replace

from opd.importers.logs.reading import MARK, OVERFLOW, ROW
from opd.importers.logs.rows import Entry
from opd.importers.run import ImportedRun
from opd.importers.scalars import Row, unfold_epochs

BAR = "progress bar"


def rows_of(entries: list[Entry], run: ImportedRun) -> list[Row]:
    """The rows of the entries, in order. Adds what this takes to the run's assumptions."""
    entries = _training_bar(entries)
    by_epoch = _epochs_only(entries, run)
    rows = []
    for entry in entries:
        reading = entry.reading
        step, epoch = (reading.epoch, None) if id(entry) in by_epoch else (reading.step, reading.epoch)
        is_mark = reading.what == MARK
        length = reading.length if step is not None else None
        rows.append(Row(entry.line.number, step, epoch if step is not None else None, dict(reading.values),
                        reading.what == OVERFLOW, length, reading.epoch_base, BAR if is_mark else entry.tool, reading.scaler,
                        reading.iteration, reading.skipped is not None, is_mark))
    unfold_epochs(rows, run)
    rows = _one_counter(rows, run)
    return _with_steps(rows, run)


def _training_bar(entries: list[Entry]) -> list[Entry]:
    """Of several progress bars that tell nothing else, only the one that rows and overflows stand behind most often."""
    counts: Counter = Counter()
    last = None
    for entry in entries:
        if entry.reading.what == MARK:
            last = entry.line.bar.key if entry.line.bar else ("", 0)
        elif last is not None and entry.reading.step is None:
            counts[last] += 1
    if not counts:
        return [entry for entry in entries if entry.reading.what != MARK]
    chosen = max(counts, key=lambda bar: (counts[bar], bar[1]))
    kept = []
    for entry in entries:
        if entry.reading.what == MARK and entry.line.bar is not None:
            if entry.line.bar.key != chosen:
                continue
            bar = entry.line.bar
            entry = replace(entry, reading=replace(entry.reading, step=bar.done, epoch=bar.epoch, length=bar.total or None))
        kept.append(entry)
    return kept


def _epochs_only(entries: list[Entry], run: ImportedRun) -> set[int]:
    """Entries whose epoch is their step: of a tool that tells an epoch and no step, one row for each epoch."""
    found: set[int] = set()
    for tool in dict.fromkeys(entry.tool for entry in entries):
        own = [entry for entry in entries if entry.tool == tool and entry.reading.what == ROW]
        placed = [entry for entry in own if entry.reading.epoch is not None and entry.reading.step is None]
        if not placed or any(entry.reading.step is not None for entry in own):
            continue
        if all(second.reading.epoch != first.reading.epoch for first, second in zip(placed, placed[1:], strict=False)):
            found |= {id(entry) for entry in placed}
    if found:
        run.assumptions.append(f"{len(found)} rows tell an epoch and no step: the epoch is the step")
    return found


def _descents(rows: list[Row]) -> int:
    steps = [row.step for row in rows if row.step is not None]
    return sum(second < first for first, second in zip(steps, steps[1:], strict=False))


def _one_counter(rows: list[Row], run: ImportedRun) -> list[Row]:
    """Writers whose steps do not fit those of the one that prints the loss count something else: their rows lose their step."""
    counted: Counter = Counter()
    for row in rows:
        if row.step is not None:
            counted[row.writer] += 1 if not row.is_mark and "loss" in row.values else 0
    if len(counted) < 2:
        return rows
    main = max(counted, key=lambda writer: counted[writer])
    own = [row for row in rows if row.writer == main]
    for writer in counted:
        if writer == main:
            continue
        both = [row for row in rows if row.writer in (main, writer)]
        if _descents(both) <= max(_descents(own), _descents([row for row in rows if row.writer == writer])):
            continue
        if writer == BAR:
            rows = [row for row in rows if row.writer != BAR]
            continue
        run.assumptions.append(f"{writer} counts other steps than {main}: its lines take the step of the line of {main} before them")
        step = next((row.step for row in own if row.step is not None), None)
        for row in rows:
            if row.writer == main:
                step = row.step if row.step is not None else step
            elif row.writer == writer and row.step is not None:
                row.step = step
    return rows


def _with_steps(rows: list[Row], run: ImportedRun) -> list[Row]:
    """Rows without a step take that of the bar or of another tool's row before them; where nothing tells a step they are
    counted. Others are events, which read_rows() places."""
    loose = [row for row in rows if row.step is None and not row.overflow]
    if not loose:
        return rows
    if all(row.step is None for row in rows):
        for number, row in enumerate(loose):
            row.step = number
        run.assumptions.append("no line tells the step: rows are counted from 0")
        return rows
    last, told, by_bar = None, {}, 0
    for row in rows:
        if row.step is not None:
            if last is None or row.step != last.step or row.writer == last.writer and row.is_mark and last.is_mark is False:
                told = {}
            told.setdefault(row.writer, set()).update(row.values)
            last = row
        elif not row.overflow and last is not None and not told.get(row.writer, set()) & row.values.keys():
            row.step = last.step
            by_bar += last.is_mark
            told.setdefault(row.writer, set()).update(row.values)
    if by_bar:
        run.assumptions.append(f"the step of {by_bar} rows is that of the progress bar or heading before them")
    return rows
