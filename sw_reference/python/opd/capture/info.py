"""What a journal holds, as text, like `opd info` of a trace. Nothing is locked or changed: the run may go on."""
from __future__ import annotations

import os
from pathlib import Path

from opd.capture.journal import is_busy
from opd.capture.launcher import describe
from opd.capture.reader import read_journal
from opd.texts import printable


def journal_text(path: str | os.PathLike) -> str:
    """Steps, incident and probes. Raises CaptureError for what is no journal of this version or holds no step."""
    state = "is being written" if is_busy(Path(path)) else "of a run that has ended"
    trace = read_journal(path)
    lines = [f"{path}: journal, {state}: {trace.name} ({trace.label}), {describe(trace)}, {len(trace.probes)} probes"
             f"{', with raw elements' if trace.raw else ''}",
             f"  {'op':>4}  {'probe':<32} {'kind':<11} {'fmt':<5} {'elements':>12} {'max |x|':>14} {'non-finite':>10}"]
    for op, probe in enumerate(trace.probes):
        lines.append(f"  {op:>4}  {probe.name:<32} {probe.kind:<11} {probe.format:<5} {probe.elements:>12} "
                     f"{trace.max_abs[:, op].max():>14.6g} {trace.nonfinite[:, op].sum():>10}")
    return printable("\n".join(lines) + "\n")
