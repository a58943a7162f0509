"""A page about one incident: as text, as a sentence, as JSON."""
from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from opd.localise.advice import LOSS_SCALE, group_words
from opd.texts import plain, printable
from opd.triage.history import Growth, RateJump

WIDTH = 110
SPARING = 3.0  # alarms per 1000 samples before an incident up to which a detector is called sparing
NONFINITE, WAS_CLIPPED, ROSE = "non-finite", "clipped", "rises"


@dataclass(frozen=True)
class Caught:
    """What one detector said of an incident, with its published settings. lead: steps for which an alarm of the operator had been standing;
    first: the step at which that began, None without one; probe, at: the earliest alarm of any operator in the window of steps before, and
    its step; alarms: in all samples before the incident, but for those of the operator itself in that lead; per_1000: of them."""
    name: str
    lead: int
    first: int | None
    probe: str | None
    at: int | None
    alarms: int
    per_1000: float | None


@dataclass(frozen=True)
class RateThen:
    """Learning rate of a parameter group in the step of the incident, None where nobody noted it."""
    group: int
    first: str
    parameters: int | None
    lr: float | None


@dataclass(frozen=True)
class Page:
    """operator: None where no probe shows the incident; series: what shows it then. what: NONFINITE, WAS_CLIPPED, or ROSE where nothing is
    non-finite. headroom: bits of the last sample before. again: steps at which it begins once more, after clean ones."""
    number: int
    step: int
    operator: str | None
    series: tuple[str, ...]
    where: str | None      # kind of the probe
    role: str | None
    format: str | None
    what: str
    elements: int          # non-finite or clipped in that step
    total: int
    kind: str
    also: tuple[str, ...]
    growth: Growth | None
    headroom: float | None
    jump: RateJump | None
    loss_scale: float | None
    rates: tuple[RateThen, ...]
    again: tuple[int, ...]
    detectors: tuple[Caught, ...]
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def earliest(self) -> Caught | None:
        """The sparing detector with the longest lead; None where none of them had one."""
        return self._earliest([d for d in self.detectors if d.per_1000 is not None and d.per_1000 <= SPARING])

    @property
    def earliest_of_all(self) -> Caught | None:
        return self._earliest(self.detectors)

    @staticmethod
    def _earliest(detectors: Sequence[Caught]) -> Caught | None:
        return min((d for d in detectors if d.lead > 0), key=lambda d: (-d.lead, d.alarms), default=None)

    def json(self) -> dict:
        """Plain JSON: numbers that are not finite are texts."""
        content = asdict(self)
        if self.growth is not None:
            content["growth"]["doubling"] = self.growth.doubling
        content["earliest"] = None if self.earliest is None else self.earliest.name
        return plain(content)

    # --- words

    @property
    def subject(self) -> str:
        if self.operator is None:
            return ", ".join(self.series)
        return f"{self.operator} ({self.format})"

    @property
    def happened(self) -> str:
        """What happened, without the operator."""
        if self.what == ROSE:
            return f"jumps at step {self.step}"
        return f"is {'clipped' if self.what == WAS_CLIPPED else 'non-finite'} at step {self.step}"

    def sentence(self) -> str:
        """One or two sentences, for a terminal's last line."""
        growth = ""
        if self.jump is not None:
            growth = (f": parameter group {self.jump.group} went from a learning rate of {self.jump.before:.3g} to {self.jump.after:.3g} at step "
                      f"{self.jump.step}")
        elif self.growth is not None and self.kind != LOSS_SCALE:
            growth = f", since step {self.growth.since}, {self.growth.rate:.2g} bits a step (doubling every {self.growth.doubling:.2g})"
        elif self.kind == LOSS_SCALE and self.loss_scale is not None:
            growth = f" ({self.loss_scale:g})"
        caught = self.caught() if self.earliest is not None or not self.detectors else "No sparing detector had warned."
        return printable(f"{self.subject} {self.happened}: {self.kind}{growth}. {caught}{' ' if caught else ''}{self.advice[0] if self.advice else ''}")

    def caught(self) -> str:
        """What would have caught it earliest, in a sentence; "" where no detector was asked."""
        if not self.detectors:
            return ""
        sparing, any_of_all = self.earliest, self.earliest_of_all
        if sparing is None and any_of_all is None:
            return "No detector had an alarm of this operator standing before."
        if sparing is None:
            return (f"Earliest: {any_of_all.name}, {_steps(any_of_all.lead)} before, but with {any_of_all.alarms} alarms in all before it; no "
                    f"detector of at most {SPARING:g} alarms per 1000 samples had one standing.")
        return f"Earliest: {sparing.name}, {_steps(sparing.lead)} before (step {sparing.first})."

    def text(self) -> str:
        """The page."""
        lines = [f"Incident {self.number}: {self.subject} {self.happened}", f"  kind       {self.kind}" + (f"; {', '.join(self.also)}" if self.also else "")]
        if self.operator is not None:
            lines.append(f"  operator   {self.where}, {self.role}, {self.format}" + (f"; {self.elements} of {self.total} elements" if self.elements else ""))
        if self.growth is not None:
            lines.append(f"  growth     since step {self.growth.since}, {self.growth.bits:.1f} bits, {self.growth.rate:.3g} bits a step, doubling every "
                         f"{self.growth.doubling:.3g} steps")
        if self.headroom is not None and math.isfinite(self.headroom):
            lines.append(f"  headroom   {self.headroom:.2f} bits in the last sample before")
        for rate in self.rates:
            mark = f", from {self.jump.before:.3g} at step {self.jump.step}" if self.jump is not None and self.jump.group == rate.group else ""
            told = f"{rate.lr:.3g}" if rate.lr is not None else "not known"
            lines.append(f"  {'lr' if rate is self.rates[0] else '':9}  group {rate.group}: {told}{mark}" + (f" ({rate.first}, ...)" if rate.first else ""))
        if self.loss_scale is not None:
            lines.append(f"  loss scale {self.loss_scale:g}")
        if self.again:
            shown = ", ".join(map(str, self.again[:8])) + (", ..." if len(self.again) > 8 else "")
            lines.append(f"  again      at steps {shown}")
        self._add(lines, "What speaks for it", self.evidence)
        if self.detectors:
            lines += ["", "What would have caught it", f"  {'detector':24} {'lead':>6} {'alarm at':>9} {'alarms before':>14}  earliest alarm of any operator"]
            for d in self.detectors:
                at = "-" if d.first is None else str(d.first)
                told = "-" if d.probe is None else f"step {d.at}, {d.probe}"
                lines.append(f"  {d.name:24} {d.lead or '-':>6} {at:>9} {d.alarms:>14}  {told}")
            lines += textwrap.wrap(self.caught(), WIDTH, initial_indent="  ", subsequent_indent="  ")
        self._add(lines, "What to do", self.advice)
        return printable("\n".join(lines) + "\n")

    @staticmethod
    def _add(lines: list[str], title: str, sentences: Sequence[str]) -> None:
        if sentences:
            lines += ["", title]
            for sentence in sentences:
                lines += textwrap.wrap(sentence, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)


@dataclass(frozen=True)
class Nearest:
    """The watched operator that came nearest to its format's limit. headroom: bits; near_steps: of the run's, those with less than 4 bits in
    any operator of the forward pass."""
    operator: str
    format: str
    step: int
    headroom: float
    near_steps: int
    steps: int


@dataclass(frozen=True)
class Triage:
    """Of one run. note: what is ordinary and still worth a sentence, "" for nothing."""
    name: str
    pages: tuple[Page, ...]
    nearest: Nearest | None
    note: str = ""

    def json(self) -> dict:
        return {"format": "opd-triage", "version": 1, "name": self.name, "pages": [page.json() for page in self.pages],
                "nearest": None if self.nearest is None else plain(asdict(self.nearest)), "note": self.note}

    def sentence(self) -> str:
        if self.pages:
            more = f" {len(self.pages) - 1} more incident{'s' if len(self.pages) > 2 else ''}." if len(self.pages) > 1 else ""
            return self.pages[0].sentence() + more
        if self.nearest is None:
            return "No incident."
        n = self.nearest
        near = f", with less than 4 bits in {n.near_steps} of {_steps(n.steps)}" if n.near_steps else ""
        return printable(f"No incident; nearest to its limit: {n.operator} ({n.format}), {n.headroom:.2f} bits at step {n.step}{near}.")

    def before(self) -> tuple[str, ...]:
        """Sentences about the steps before the first incident."""
        if not self.pages:
            return (self.sentence(),)
        page = self.pages[0]
        rates = ", ".join(f"group {rate.group} {rate.lr:.3g}" + (f" ({rate.first}, ...)" if rate.first else "") for rate in page.rates
                          if rate.lr is not None)
        told = (f"{page.subject} {page.happened}: {page.kind}.", *page.evidence, page.caught(), f"Learning rates: {rates}." if rates else "")
        return tuple(sentence for sentence in told if sentence)

    def text(self) -> str:
        pages = "\n".join(page.text() for page in self.pages) if self.pages else self.sentence() + "\n"
        return f"{printable(self.name)}\n\n{pages}" + (f"\n{self.note}\n" if self.note else "")


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def rate_words(rates: Sequence[RateThen], group: int) -> str:
    """The learning rate of a group as the advice names it; "" where none is known."""
    found = next((rate for rate in rates if rate.group == group), None)
    if found is None or found.lr is None:
        return ""
    if not found.first:
        return f"the learning rate of parameter group {group} ({found.lr:.3g} now)"
    return group_words([{"lr": 0.0, "parameters": []}] * group + [{"lr": found.lr, "parameters": [found.first]}], [found.first])
