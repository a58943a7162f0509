"""A comparison of governors as rows of text."""
from __future__ import annotations

from collections.abc import Sequence

from opd.governor.comparison import FP8, LOSS

HEADINGS = {LOSS: ("governor", "steps skipped", "per 1000", "taken, not known to fit", "taken above the recorded scale", "bits wasted", "smallest element lost",
                   "state bits"),
            FP8: ("governor", "overflows", "per 1000 casts", "steps with one", "bits beyond the limit", "bits wasted", "smallest element lost", "state bits")}


def per_1000(part: int, whole: int) -> str:
    if not whole:
        return "-"
    value = 1000 * part / whole
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def mean(total: float, count: int, pattern: str = "{:.2f}") -> str:
    return pattern.format(total / count).replace("-0.00", "0.00") if count else "-"


def state_bits(entry: dict) -> str:
    """Of an operator, and where there is something of the run as a whole that too."""
    own, run = entry["state_bits_per_operator"], entry["state_bits_per_run"]
    return f"{own:,}" + (f" + {run} of the run" if run else "")


def rows(entries: Sequence[dict], kind: str) -> list[tuple[str, ...]]:
    """A heading, and a row for each entry of that kind of scale."""
    found = [HEADINGS[kind]]
    for entry in (entry for entry in entries if entry["scale"] == kind):
        wasted = mean(entry["wasted"], entry["measured"])
        lost = mean(100 * entry["lost"], entry["floors"], "{:.1f} %")
        if kind == LOSS:
            found.append((entry["governor"], f"{entry['overflow_steps']:,}", per_1000(entry["overflow_steps"], entry["steps"]),
                          str(entry["unknown"]), f"{entry['above']:,}", wasted, lost, state_bits(entry)))
        else:
            found.append((entry["governor"], f"{entry['overflows']:,}", per_1000(entry["overflows"], entry["samples"]),
                          f"{entry['overflow_steps']:,} of {entry['steps']:,}", mean(entry["beyond"], entry["overflows"]), wasted, lost, state_bits(entry)))
    return found


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, the first to the left."""
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths))).rstrip()
            for row in table]


def said(entries: Sequence[dict], kind: str) -> str:
    """What was counted, in one line."""
    own = [entry for entry in entries if entry["scale"] == kind]
    first = own[0]
    return (f"{kind}: {first['runs']} {'run' if first['runs'] == 1 else 'runs'}, {first['steps']:,} steps"
            + (f", {first['samples']:,} casts" if kind == FP8 else f", {first['samples']:,} gradients"))


def text(entries: Sequence[dict]) -> str:
    """Of totals: a table for each kind of scale."""
    blocks = []
    for kind in (LOSS, FP8):
        if any(entry["scale"] == kind for entry in entries):
            blocks.append("\n".join([said(entries, kind), *columns(rows(entries, kind))]))
    return "\n\n".join(blocks)
