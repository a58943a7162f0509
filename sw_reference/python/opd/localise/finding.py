"""What a localisation found, and its page of text."""
from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from opd.texts import plain, printable

DATA, NUMERIC, HARDWARE, NONE = "data", "numeric", "hardware", "none"
WIDTH = 100


@dataclass(frozen=True)
class Seen:
    """What was seen of the incident when it happened. operator: as the replay names it, or a probe's name of a capture."""
    operator: str
    nonfinite: int = 0
    largest: float | None = None


@dataclass(frozen=True)
class Elements:
    """Where in a tensor it is. channel: the one with most of them; axis: of the channels; headroom: bits between the largest finite value
    and the format's limit."""
    count: int
    total: int
    first: tuple[int, ...]
    axis: int
    channel: int
    in_channel: int
    channels: int
    all_channels: int
    largest: float
    limit: float

    @property
    def headroom(self) -> float:
        return math.log2(self.limit / self.largest) if self.largest > 0 else math.inf


@dataclass(frozen=True)
class Piece:
    """A sub-step, computed again for the row of the first bad element: the largest magnitude as the operator computes it, and in FP64."""
    name: str
    own: float
    exact: float

    @property
    def is_bad(self) -> bool:
        return not math.isfinite(self.own)


@dataclass(frozen=True)
class Finding:
    """kind: data, numeric, hardware, or none where no replay shows anything and nothing was said to have been seen. operator: that
    computes it; where: whose output, or gradient (NAME:grad). replays: in all, of `operators` in question. agree: whether two replays
    give the operator the same statistic. modes: mode -> whether the vector unit's result of that row is finite, empty where that cannot
    be computed. evidence, advice: sentences."""
    kind: str
    operator: str | None
    where: str | None
    direction: str | None
    step: int | None
    function: str | None
    substep: str | None
    elements: Elements | None
    format: str | None
    pieces: tuple[Piece, ...]
    modes: dict[str, bool]
    agree: bool
    operators: int
    replays: int
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    seen: Seen | None = None
    source: dict = field(default_factory=dict)  # of data and weights: which tensor, index, value

    def json(self) -> dict:
        """Plain JSON: numbers that are not finite are texts."""
        content = asdict(self)
        if self.elements is not None:
            content["elements"]["headroom"] = self.elements.headroom
        return plain(content)

    def text(self, before: Sequence[str] = ()) -> str:
        """One page. before: sentences about the steps before."""
        at = "" if self.step is None else f" of step {self.step}"
        what = {DATA: "the data", NUMERIC: "the arithmetic", HARDWARE: "hardware, or a step that is not deterministic",
                NONE: "nothing found"}[self.kind]
        lines = [f"Incident{at}: {what}"]
        if self.operator is not None:
            part = f", in {self.substep}" if self.substep else ""
            backward = "backward of " if self.direction == "backward" else ""
            lines.append(f"  operator   {backward}{self.operator}{part}")
        if self.where not in (None, self.operator):
            lines.append(f"  shows in   {self.where}")
        if self.elements is not None:
            e = self.elements
            lines.append(f"  elements   {e.count} of {e.total} are not finite, the first at {list(e.first)}; channel {e.channel} (axis "
                         f"{e.axis}) has {e.in_channel} of them, "
                         f"{e.channels} of {e.all_channels} channels are hit")
            room = "all finite values are 0" if e.largest == 0 else f"largest finite value {e.largest:.4g}, {e.headroom:.2f} bits below {self.format}'s limit"
            lines.append(f"  range      {room}")
        for piece in self.pieces:
            mark = "  <-- not finite" if piece.is_bad else ""
            lines.append(f"  {'sub-steps' if piece is self.pieces[0] else '':9}  {piece.name:28} {piece.own:>12.5g}   in FP64 "
                         f"{piece.exact:>12.5g}{mark}")
        if self.modes:
            lines.append("  modes      " + ", ".join(f"{mode} {'finite' if finite else 'not finite'}" for mode,
                                                     finite in self.modes.items())
                         + " (the vector unit, that row)")
        agreement = "the same each time" if self.agree else "NOT the same each time"
        lines.append(f"  replays    {self.replays} over {self.operators} operators, {agreement}")
        for title, sentences in (("Seen in the numbers", self.evidence), ("Before it", before), ("What to do", self.advice)):
            if sentences:
                lines += ["", title]
                for sentence in sentences:
                    lines += textwrap.wrap(sentence, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)
        return printable("\n".join(lines) + "\n")
