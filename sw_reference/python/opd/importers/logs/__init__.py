"""Training logs as text: what a job prints, read by one module per tool (docs/importing.md "Logs").

Each line goes to the tools in turn; the first that knows it says what it tells (reading.py). Lines that none knows are
other output of the job, unless they look like a metric or an overflow (suspects.py): these are counted as not understood.
"""
from __future__ import annotations

import re

from opd.importers.logs import (apex, colossalai, deepspeed, dllogger, fairseq, gnmt, hf_trainer, loops, maxtext, megatron,
                                mindspore, mlperf, nanogpt, nemo, openmmlab, paddle, progress, torchtitan)
from opd.importers.logs.lines import Line, lines
from opd.importers.logs.metrics import REAL, number
from opd.importers.logs.reading import EPOCH, EVALUATION, FALLBACK, KNOWN, MARK, SCALE, TORN, Reading, Tool
from opd.importers.logs.rows import Entry, note, selected
from opd.importers.logs.steps import rows_of
from opd.importers.logs.suspects import looks_like_one
from opd.importers.run import ImportedRun
from opd.importers.scalars import read_rows
from opd.importers.source import Source
from opd.texts import quoted

NAME = "training-log"

# In the order they are asked: a line of two tools is that of the first. The loops come last: they know any step and loss.
TOOLS: tuple[Tool, ...] = (mlperf, dllogger, fairseq, nemo, megatron, apex, deepspeed, colossalai, hf_trainer, maxtext, openmmlab,
                           mindspore, paddle, gnmt, nanogpt, torchtitan, progress, loops)
WHAT = f"what a training job prints ({', '.join(tool.NAME for tool in TOOLS[:-2])} and others)"
GENERAL = (progress.NAME, loops.NAME)

# What every line that a tool reads, or that looks like a metric, has.
_WORDS = re.compile(r"(?i)loss|(?<![a-z])(?:nan|inf(?![a-z])|infinit)|finite|overflow|norm(?!al)|scal(?:e|ing)|skip|:::ml|dll|"
                    r"diverg|explod|"
                    r"\d%\||^\d+/\d+\s|(?:step|iter\w*|epoch|batch)\W{0,12}\d|"
                    r"\btrain\W{0,5}\[")
_OF_A_TOOL = re.compile(rb"iteration +\d+/|OVERFLOW!|[Ss]kipping step|:::ML|DLLL? |num_updates.{0,4}[=:]|TRAIN \[|completed step:|\{'|"
                        rb"Epoch(?:\(train\))? *\[|Iter\(train\)|loss scale|global step \d|reduced_train_loss|  loss:|skipped=\d|"
                        rb"iter \d+: loss|overflow|, loss is |step:\[")   # what a file named like a table may be none for
_LONG = re.compile(r"(?i)loss[\"']?\s*[:=]\s*[\"']?[-+\d.n]|overflow")   # of a line that is too long to be read
_SCALE_ALONE = re.compile(rf"(?i)^[\"']?(?:loss|grad)[ _-]?scale[\"']?\s*[:=]\s*(?=\d)({REAL}),?$")
MAX_LINE = 1 << 16   # characters; what is longer is no line of a log
MAX_ENTRIES = 1 << 21   # lines that tell something, kilobytes each in memory
LOOP = 1.4           # above a table whose header could be one, below lines of JSON: other importers' 1 and 1.5
PEEK_LINES = 20000   # after the first line of a training loop, to find one of a known tool


def sniff(source: Source) -> float:
    """2 for a log with a line of a known tool, LOOP for one with a loss that a loop printed, 0 for anything else."""
    if b"\0" in source.head[:16] or source.head.startswith((b"PK", b"\x93NUMPY")) or _is_json(source):
        return 0
    is_table = source.path.lower().endswith((".csv", ".tsv", ".json"))
    if is_table and not _OF_A_TOOL.search(source.data):
        return 0   # a table may be long
    general = 0 if is_table else LOOP
    found = peeked = 0
    for line in lines(source):
        entry = _entry(line)
        if entry is not None and entry.reading.what not in (KNOWN, MARK, EPOCH, EVALUATION, SCALE):
            if entry.tool not in GENERAL:
                return 2
            found = max(found, general if entry.reading.what != TORN else 0)
        peeked += bool(found)
        if peeked > PEEK_LINES:
            break
    return found


def _is_json(source: Source) -> bool:
    """Whether all of the first lines are JSON objects, or the file is one: another importer's."""
    if not re.match(rb"\s*(?:\[\s*[\[{\"]|\{\s*[\"}])", source.head):
        return False
    if source.head.lstrip().startswith(b"[") or re.match(rb"\s*\{\s*\n|\s*\{[^\n]*$", source.head):
        return True   # an array, or one object over several lines
    return all(line.lstrip().startswith(b"{") for line in source.head.split(b"\n")[:64] if line.strip())


def read(source: Source) -> ImportedRun:
    """The log. Raises ImportFault with the line."""
    run = ImportedRun()
    entries, model = [], ""
    for line in lines(source):
        entry = _entry(line)
        if entry is not None:
            if entry.reading.refused:
                source.fail(line.number, f"{entry.tool}: {entry.reading.text}: {quoted(line.text)}", "correct the number")
            model = entry.reading.model or model
            entries.append(entry)
            if len(entries) > MAX_ENTRIES:
                source.fail(line.number, f"more than {MAX_ENTRIES} lines that tell a metric", "split the log")
        elif _is_suspect(line):
            note(run, line)
    counters = dict.fromkeys(entry.reading.counter for entry in entries if entry.reading.counter)
    named = dict.fromkeys(entry.reading.loss_name for entry in entries if entry.reading.loss_name)
    chosen = selected(entries, run)
    rows = rows_of(chosen, run)
    if all(row.is_mark for row in rows):
        _fail(source, entries, run)
    read_rows(rows, run)
    run.unread.sort(key=lambda place: place[0])
    run.model = model
    told = {entry.tool for entry in entries if entry.tool not in GENERAL and entry.reading.what != TORN}
    run.framework = " ".join(sorted(told | {entry.tool for entry in chosen if entry.reading.what != MARK}))
    for counter in sorted(counters):
        run.assumptions.append(f"MLPerf lines count by {counter}: that is the step")
    if named:
        run.assumptions.append(
            f"no loss of a line is called so: {', '.join(quoted(name) for name in list(named)[:3])} is taken")
    return run


def hint(source: Source) -> tuple[int, str] | None:
    """The first line of a file in no known format that looks like a metric or an overflow, for the error about it."""
    if b"\0" in source.head[:16]:
        return None
    for line in lines(source):
        entry = _entry(line)
        if entry is not None and entry.reading.what == TORN:
            return line.number, f"{entry.tool}: {entry.reading.text}"
        if entry is None and _is_suspect(line):
            return line.number, f"looks like a metric or an overflow: {quoted(line.text)}"
    return None


def _entry(line: Line) -> Entry | None:
    if line.bar is None and not _WORDS.search(line.text) or len(line.text) > MAX_LINE:
        return None
    if found := _SCALE_ALONE.match(line.text):
        return Entry(line, loops.NAME, Reading(SCALE, {"loss_scale": number(found[1])}))
    for tool in TOOLS:
        reading = tool.read(line)
        if reading is not None:
            return Entry(line, tool.NAME, reading)
    return None


def _is_suspect(line: Line) -> bool:
    if len(line.text) > MAX_LINE:
        return bool(_LONG.search(line.text))
    return bool(_WORDS.search(line.text)) and looks_like_one(line.text)


def _fail(source: Source, entries: list[Entry], run: ImportedRun) -> None:
    """Raises ImportFault: no line could be read."""
    if run.unread:
        line, text = run.unread[0]
        more = f" ({len(run.unread)} such lines)" if len(run.unread) > 1 else ""
        source.fail(line, f"looks like a metric or an overflow and cannot be read: {quoted(text)}{more}",
                    "give the whole log with lines of steps; a line that is cut off or torn needs its neighbours")
    known = sorted({entry.tool for entry in entries if entry.reading.what in (EVALUATION, KNOWN, FALLBACK)})
    seen = f" (only other lines of {', '.join(known)})" if known else ""
    source.fail(None, f"holds no line with a loss, gradient norm or loss scale of a step{seen}",
                "give the log of a training run that prints them")
