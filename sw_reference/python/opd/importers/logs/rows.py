"""Which of the readings count: what is torn, told twice by several ranks, an average over rows that are there as well.

Nothing that is left out may hide an incident: what of it is not finite, and what counts an overflow that the others do not, is noted
as not understood, and the run is not called healthy.
"""
from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import nonfinite_names
from opd.importers.logs.reading import (AVERAGE, EPOCH, EVALUATION, FALLBACK, KNOWN, MARK, OVERFLOW, ROW, SCALE, TORN, Reading)
from opd.importers.run import ImportedRun

SHOWN = 200        # characters of a line in a note
LAG_ROWS = 4       # rows by which the output of one rank may come behind that of another
FAMILIES = {"apex": "DeepSpeed"}   # whose lines about one overflow join
APART = ("minimum", "check")   # parts of overflows that join no other


@dataclass
class Entry:
    """A line and what it tells."""
    line: Line
    tool: str
    reading: Reading
    engine: int = 0

    @property
    def rank(self) -> str:
        """Which process tells it; empty where nothing tells that."""
        return self.reading.rank or self.line.rank or ""

    @property
    def place(self) -> tuple:
        """Where in the run its step is."""
        return self.reading.epoch, self.reading.step


def selected(entries: list[Entry], run: ImportedRun) -> list[Entry]:
    """The entries that count (ROW, OVERFLOW, MARK), in order; the others' number is among the run's assumptions."""
    entries = _without_torn(entries, run)
    _note_hidden(entries, run)
    entries = _scales_alone(entries)
    entries = _with_epochs(entries)
    entries = _resolved_averages(entries, run)
    entries = _joined_overflows(entries)
    _number_engines(entries)
    entries = _without_copies(entries, run)
    entries = _counted_skips(entries, run)
    return [entry for entry in entries if entry.reading.what in (ROW, OVERFLOW, MARK)]


def note(run: ImportedRun, line: Line, why: str = "") -> None:
    """Notes a line that was not understood, and why."""
    text = line.text[:SHOWN]
    run.not_understood(line.number, f"{why}: {text}" if why else text)


def _without_torn(entries: list[Entry], run: ImportedRun) -> list[Entry]:
    whole = {entry.tool for entry in entries if entry.reading.what in (ROW, AVERAGE) and not entry.reading.doubt}
    kept = []
    for entry in entries:
        reading = entry.reading
        if reading.what == TORN or reading.doubt and entry.tool in whole:
            note(run, entry.line, reading.text or reading.doubt)
        else:
            kept.append(entry)
    return kept


def _note_hidden(entries: list[Entry], run: ImportedRun) -> None:
    """What a line tells beside the values that are read."""
    evaluations, last = 0, None
    for entry in entries:
        reading = entry.reading
        evaluations += reading.what == EVALUATION and entry.line.bar is None
        if reading.note:
            note(run, entry.line, reading.note)
        elif reading.what != OVERFLOW and all(map(math.isfinite, reading.values.values())):
            names = nonfinite_names(entry.line.text)
            if names and (entry.tool, names) != last:
                note(run, entry.line, f"{names[0]} is not finite")
            last = (entry.tool, names) if names and reading.rewrites else None
    if evaluations:
        run.assumptions.append(f"{evaluations} lines of evaluations and of whole runs left out")


def _scales_alone(entries: list[Entry]) -> list[Entry]:
    """"loss_scale: 65536" on a line of its own is a setting, or, where it changes, what a loop prints."""
    values = {entry.reading.values["loss_scale"] for entry in entries if entry.reading.what == SCALE}
    what = ROW if len(values) > 1 else KNOWN
    return [replace(entry, reading=replace(entry.reading, what=what)) if entry.reading.what == SCALE else entry for entry in entries]


def _with_epochs(entries: list[Entry]) -> list[Entry]:
    """Rows that count from the start of an epoch and do not name it are of the one whose heading came last."""
    epoch, kept = None, []
    for entry in entries:
        if entry.reading.what == EPOCH:
            epoch = entry.reading.epoch
            continue
        if epoch is not None and entry.reading.what == ROW and entry.reading.length and entry.reading.epoch is None:
            entry = replace(entry, reading=replace(entry.reading, epoch=epoch))
        kept.append(entry)
    return kept


def _resolved_averages(entries: list[Entry], run: ImportedRun) -> list[Entry]:
    """An average over an epoch is a row where the log has none of that step; a fallback where its tool has no rows."""
    having_rows = {entry.tool for entry in entries if entry.reading.what == ROW}
    last: dict[tuple[str, str], int | None] = {}
    kept, left = [], 0
    for entry in entries:
        reading, writer = entry.reading, (entry.tool, entry.rank)
        if reading.what == AVERAGE and last.get(writer, -1) == reading.step or reading.what == FALLBACK and entry.tool in having_rows:
            left += 1
            if not all(map(math.isfinite, reading.values.values())):
                note(run, entry.line, "an average that is not finite")
            continue
        if reading.what in (AVERAGE, FALLBACK):
            entry = replace(entry, reading=replace(reading, what=ROW))
        if entry.reading.what == ROW:
            last[writer] = reading.step
        kept.append(entry)
    if left:
        run.assumptions.append(f"{left} lines with averages over rows of the log left out")
    return kept


def _joined_overflows(entries: list[Entry]) -> list[Entry]:
    """One entry for each overflow that a tool tells in several lines."""
    begun: dict[tuple, tuple[Entry, set[str]]] = {}
    kept: list[Entry] = []
    for entry in entries:
        reading = entry.reading
        if reading.what in (ROW, MARK):
            begun.clear()
        if reading.what != OVERFLOW or not reading.part or reading.part in APART:
            kept.append(entry)
            continue
        key = (FAMILIES.get(entry.tool, entry.tool), entry.line.rank, reading.scaler)
        known, parts = begun.get(key, (None, set()))
        if known is not None and reading.part not in parts and _agree(known.reading.values, reading.values):
            parts.add(reading.part)
            known.reading.values |= reading.values
            known.reading.rank = known.reading.rank or reading.rank
            if known.reading.iteration is None:
                known.reading.iteration = reading.iteration
            continue
        entry = replace(entry, reading=replace(reading, values=dict(reading.values)))
        begun[key] = (entry, {reading.part})
        kept.append(entry)
    return kept


def _agree(first: dict[str, float], second: dict[str, float]) -> bool:
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def _number_engines(entries: list[Entry]) -> None:
    """Several engines in one process print a line each for the same step, always in the same order."""
    for group in _groups(entry for entry in entries if entry.reading.what == ROW and entry.reading.skipped is not None):
        for number, entry in enumerate(group):
            entry.engine = number


def _groups(entries) -> list[list[Entry]]:
    """Runs of entries of one place that follow each other; single ones where their number varies."""
    by_writer: dict[tuple, list[list[Entry]]] = defaultdict(list)
    for entry in entries:
        groups = by_writer[entry.tool, entry.rank]
        if groups and groups[-1][0].place == entry.place:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    found = []
    for groups in by_writer.values():
        sizes = Counter(len(group) for group in groups[:-1])
        size = sizes.most_common(1)[0][0] if sizes else 1
        if size > 1 and sizes[size] >= 2 and len(sizes) == 1 and len(groups[-1]) <= size:
            found += groups
        else:
            found += [[entry] for group in groups for entry in group]
    return found


def _without_copies(entries: list[Entry], run: ImportedRun) -> list[Entry]:
    """One entry of what several ranks print: that of the first."""
    same_step = {id(entry): group[0] for group in _groups(e for e in entries if e.reading.what == ROW and e.reading.step is not None
                                                         and e.reading.skipped is None and not e.reading.rewrites)
                 for entry in group[1:]}
    rows, overflows = _Rows(), _Overflows(max((entry.engine for entry in entries), default=0) + 1)
    kept, left = [], Counter()
    for entry in entries:
        reading = entry.reading
        known = None
        if reading.what == ROW:
            known = same_step.get(id(entry)) or rows.known(entry)
            overflows.gap += known is None
            if known is not None:
                _complete(known, entry, run)
                left["rank" if entry.rank != known.rank else "redrawn" if reading.rewrites else "copy"] += 1
        elif reading.what == MARK:
            overflows.gap += 1
        elif reading.what == OVERFLOW:
            known = overflows.known(entry)
            left["rank" if known is not None and entry.rank != known.rank else "repeated"] += known is not None
        if known is None:
            kept.append(entry)
    for what, text in (("rank", "lines of other ranks left out"), ("copy", "lines that tell a step again left out: copies of other ranks"),
                       ("repeated", "overflow lines that repeat the one before left out: copies of other ranks")):
        if left[what]:
            run.assumptions.append(f"{left[what]} {text}")
    return kept


def _complete(known: Entry, copy: Entry, run: ImportedRun) -> None:
    """What only the copy tells is of that step too; a bar that is drawn again tells the newest."""
    values = known.reading.values
    if copy.reading.rewrites and copy.rank == known.rank:
        finite = {name: value for name, value in copy.reading.values.items() if math.isfinite(values.get(name, 0))}
        known.reading.values |= finite
        return
    for name, value in copy.reading.values.items():
        if name not in values:
            values[name] = value
        elif not math.isfinite(value) and math.isfinite(values[name]) or name in ("overflows", "nan_losses") and value > values[name]:
            note(run, copy.line, f"{name} of {copy.rank or 'a copy'} is worse than that of {known.rank or 'the first line'}")


class _Rows:
    """The rows that are kept, to know the copies of other ranks."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[Entry, set[str]]]] = defaultdict(list)   # by tool, the latest last

    def known(self, entry: Entry) -> Entry | None:
        """The entry that this one copies; None for a new one, which is kept."""
        kept = self.kept[entry.tool]
        for other, ranks in reversed(kept[-LAG_ROWS:]):
            is_same = other.place == entry.place and other.engine == entry.engine
            if is_same and entry.reading.rewrites and other is kept[-1][0]:
                return other
            if is_same and entry.rank and other.rank and entry.rank not in ranks and (entry.reading.step is not None or other.reading.values == entry.reading.values):
                ranks.add(entry.rank)
                return other
            if is_same and other is kept[-1][0] and entry.reading.step is not None and other.reading.values == entry.reading.values \
                    and other.reading.skipped == entry.reading.skipped:
                return other   # the same line once more
        kept.append((entry, {entry.rank}))
        del kept[:-4 * LAG_ROWS]
        return None


class _Overflows:
    """The overflows that are kept, to know the copies of other ranks and what belongs to which engine."""

    def __init__(self, engines: int):
        self.engines = engines
        self.scales: list[float | None] = [None] * engines
        self.kept: list[tuple[int, Entry, set[str]]] = []
        self.gap = 0

    def known(self, entry: Entry) -> Entry | None:
        """The entry that this one copies; None for a new one, which is kept."""
        reading = entry.reading
        for gap, other, ranks in reversed(self.kept[-4 * LAG_ROWS:]):
            if other.tool != entry.tool or other.reading.values != reading.values or other.reading.scaler != reading.scaler:
                continue
            if entry.rank and other.rank and entry.rank not in ranks and self.gap - gap <= LAG_ROWS:
                ranks.add(entry.rank)
                return other
            if self.engines == 1 and gap == self.gap and other is self.kept[-1][1] and self._repeats(other, entry):
                return other
        if self.engines > 1 and reading.values:
            self._attribute(entry)
        self.kept.append((self.gap, entry, {entry.rank}))
        return None

    def _repeats(self, other: Entry, entry: Entry) -> bool:
        """Whether the same overflow is told again: a scale that fell cannot fall from where it was."""
        values = entry.reading.values
        if entry.reading.part == "minimum":
            return True
        if not values or "scale_after" not in values:
            return False
        attempted = values.get("scale_attempted")
        return attempted is None or attempted != values["scale_after"] or "hysteresis" in entry.line.text and \
            entry.line.text.split("OVERFLOW")[-1] == other.line.text.split("OVERFLOW")[-1]

    def _attribute(self, entry: Entry) -> None:
        attempted, after = (entry.reading.values.get(name) for name in ("scale_attempted", "scale_after"))
        number = next((n for n, scale in enumerate(self.scales) if scale is not None and scale == attempted), None)
        if number is None:
            number = next((n for n, scale in enumerate(self.scales) if scale is None), 0)
        self.scales[number] = after
        entry.engine = number
        if number:
            entry.reading.scaler = f".engine{number + 1}"


def _counted_skips(entries: list[Entry], run: ImportedRun) -> list[Entry]:
    """Skipped steps that an engine counts and that no overflow line tells: an overflow in the row's step."""
    kept, told, counts = [], Counter(), defaultdict(dict)
    engines = max((entry.engine for entry in entries), default=0) + 1
    silent = before = 0
    rows = [entry for entry in entries if entry.reading.what == ROW and entry.reading.skipped is not None]
    interval = rows[engines].reading.step - rows[0].reading.step if len(rows) > engines else rows[0].reading.step if rows else 0
    last: dict[int, int] = {}
    for entry in entries:
        reading, engine = entry.reading, entry.engine
        if reading.what == OVERFLOW and entry.tool == "DeepSpeed":
            told[engine] += 1
        if reading.what == ROW and reading.skipped is not None:
            if engine not in last:
                base = 0 if reading.step <= max(interval, 0) else reading.skipped - told[engine]
                before += max(base, 0)
            elif reading.step <= last[engine]:   # began again, from a checkpoint
                base = max(((step, count) for step, count in counts[engine].items() if step < reading.step), default=(0, 0))[1]
            else:
                base = counts[engine][last[engine]]
            missing = reading.skipped - base - told[engine]
            if missing > 0:
                silent += missing
                suffix = f".engine{engine + 1}" if engine else ""
                kept.append(replace(entry, reading=Reading(ROW, {"overflows": float(missing)}, reading.step, scaler=suffix)))
            counts[engine][reading.step], last[engine], told[engine] = reading.skipped, reading.step, 0
        if reading.what == ROW and engine:
            continue   # its learning rate is another's
        kept.append(entry)
    if silent:
        run.assumptions.append(f"{silent} skipped steps are counted without a line of their own: overflows in the step that counts them")
    if before:
        run.assumptions.append(f"{before} steps were skipped before the log begins")
    if engines > 1:
        run.assumptions.append(f"{engines} engines print a line each: overflows of the others are probes of their own")
    return kept
