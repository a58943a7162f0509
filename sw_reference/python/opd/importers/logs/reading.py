"""What a reader of one tool's lines says of a line."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from opd.importers.logs.lines import Line

ROW = "row"                # metrics of a step
OVERFLOW = "overflow"      # a step that was skipped because a gradient was not finite
AVERAGE = "average"        # metrics over an epoch: a row, but where the log has one of that step
FALLBACK = "fallback"      # metrics that the tool prints beside its rows: rows, but where the tool has others
EVALUATION = "evaluation"  # metrics of an evaluation or of the whole run
SCALE = "scale"            # a loss scale alone on its line: a setting, or a row
EPOCH = "epoch"            # begins an epoch: "Epoch 2/10"
MARK = "mark"              # tells the step and nothing else
KNOWN = "known"            # a line of the tool that tells no metric
TORN = "torn"              # begins like a line of the tool and does not go on like one


@dataclass
class Reading:
    """What one line tells. values: fields of names.SCALARS; those of an OVERFLOW are scale_attempted and scale_after."""
    what: str
    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    epoch: int | None = None
    length: int | None = None    # steps of an epoch, where `step` counts from its start
    epoch_base: int | None = None  # number of the tool's first epoch, where it is known
    rank: str | None = None      # where the text tells it and not a prefix
    scaler: str = ""             # of several loss scalers: a suffix of the probes' names; the first has none
    part: str = ""               # of an overflow that is told in several lines: which of them
    iteration: int | None = None   # of an overflow: the one that its line names
    skipped: int | None = None   # skipped steps so far
    loss_name: str | None = None   # where no loss of the line is called so
    counter: str = ""            # what `step` counts, where that is not steps
    doubt: str = ""              # why the line may be cut off; it is if others of its tool do not lack that
    note: str = ""               # why the row may hide a loss that was not finite
    rewrites: bool = False       # a progress bar: its last state at a step counts
    text: str = ""               # TORN: what is wrong
    model: str = ""


class Tool(Protocol):
    """A module that reads the lines of one tool, or of a family. Its header names the source files that print them."""
    NAME: str                       # as Trace.framework has it
    SPELLINGS: dict[str, str]       # what each kind of line that it reads looks like, one example each
    read: Callable[[Line], Reading | None]   # None: not a line of this tool


def torn(text: str) -> Reading:
    """A line that begins like one of the tool's."""
    return Reading(TORN, text=text)
