"""What every importer reads into, and the builder that makes traces of it.

An importer returns an ImportedRun: probes, and steps in the order of the source with what the source tells. build() makes
valid traces of it by TraceWriter (docs/formats.md "Trace"). Where a trace needs more than the source has, the rule of
docs/importing.md applies and is written down: in the trace's manifest, and in Imported.assumptions for the one who asked.
"""
from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from opd.importers.source import Source
from opd.texts import quoted
from opd.trace import COUNTS, FORMATS, MAX_PROBES, SERIES, Probe, Trace, TraceWriter, element_statistics

MAX_SEGMENTS = 256   # more restarts than that is a file whose steps have no order
MAX_CELLS = 1 << 25   # steps x probes of all traces of a file: where each row tells another probe, a trace is the square of it
OPTIONAL = ("min_abs", "mean", "var", "saturated", "subnormal", "zero")


@dataclass(frozen=True)
class SourceProbe:
    """A probe as the source names it. format and shape are None where the source does not tell them."""
    kind: str
    format: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(slots=True)
class Stat:
    """One probe at one step; None where the source has no value. max_abs may be Inf or NaN, as the source has it."""
    line: int | None = None
    max_abs: float | None = None
    nonfinite: int | None = None
    min_abs: float | None = None
    mean: float | None = None
    var: float | None = None
    saturated: int | None = None
    subnormal: int | None = None
    zero: int | None = None
    elements: np.ndarray | None = None  # in the probe's format; kept as raw rows when asked for

    def merge(self, other: Stat) -> None:
        """Another call of the same probe in the same step: the larger magnitude, the sum of the counts; a mean or variance of
        several calls is not known. A NaN on either side stays."""
        self.max_abs = _either(self.max_abs, other.max_abs, lambda a, b: math.nan if math.isnan(a + b) else max(a, b))
        self.min_abs = _either(self.min_abs, other.min_abs, min)
        for count in ("nonfinite", "saturated", "subnormal", "zero"):
            setattr(self, count, _either(getattr(self, count), getattr(other, count), lambda a, b: a + b))
        self.mean = self.var = self.elements = None


@dataclass(slots=True)
class Step:
    """One training step, or what of it one stretch of the source tells."""
    step: int
    line: int | None = None
    stats: dict[str, Stat] = field(default_factory=dict)     # by probe name
    series: dict[str, float] = field(default_factory=dict)   # of SERIES
    source: Source | None = None                             # set once the file is read
    run: str = ""                                            # name, where the source holds several runs


@dataclass
class ImportedRun:
    """A source, read. `rounding` is the relative error of its printed numbers (0.005 for three digits)."""
    probes: dict[str, SourceProbe] = field(default_factory=dict)  # in execution order
    steps: list[Step] = field(default_factory=list)               # in the order of the source
    assumptions: list[str] = field(default_factory=list)
    model: str = ""
    framework: str = ""
    rounding: float = 0.0
    details: dict = field(default_factory=dict)                   # further facts for the manifest
    empty: tuple[str, str] = ("holds no step with a value", "give a file that a run has written to")  # the fault of no step
    unread: list[tuple[int | None, str]] = field(default_factory=list)  # line and text: looks like a metric or an overflow
    changes: dict[str, set[str]] = field(default_factory=lambda: {"format": set(), "shape": set()})  # probes whose ... changes

    def not_understood(self, line: int | None, text: str) -> None:
        """Notes a line, column or entry that looks like a metric or an overflow and was not understood. A run with such is
        not called healthy: its traces are `unknown` unless something in them is non-finite."""
        self.unread.append((line, text))

    def probe(self, name: str, kind: str, format: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        """Adds the probe, or completes what was known of it."""
        known = self.probes.get(name)
        if known is None:
            self.probes[name] = SourceProbe(kind, format, shape)
            return
        if known.format and format and known.format != format:
            self.changes["format"].add(name)
        if known.shape is not None and shape is not None and known.shape != shape:
            self.changes["shape"].add(name)
        self.probes[name] = replace(known, format=known.format or format, shape=_larger(known.shape, shape))


@dataclass(frozen=True)
class Options:
    """What the one who imports decides."""
    name: str | None = None
    label: str | None = None
    format: str | None = None     # of probes whose format the source does not tell
    kind: str | None = None       # of every probe
    restarts: str = "split"       # steps that go back: "split" into traces, or keep the "last" of each step
    match: str | None = None      # regular expression: only probes whose name it finds
    raw: bool = False             # keep raw elements where the source has them


@dataclass(frozen=True)
class Imported:
    """A trace and what had to be assumed: for its whole source, and for this trace of it."""
    trace: Trace
    of_source: list[str]
    of_trace: list[str]


def magnitude(fields: dict[str, float]) -> tuple[float | None, int | None]:
    """max_abs and nonfinite of what a tool tells: fields of names.STATISTICS. None where it tells nothing.

    A NaN among the extremes stays NaN: the tool's maximum has no value then.
    """
    values = [abs(fields[name]) for name in ("max_abs", "max", "min") if name in fields]
    largest = None
    if values:
        largest = math.nan if any(map(math.isnan, values)) else max(values)
    counts = [fields[name] for name in ("nans", "infs") if name in fields]
    nonfinite = fields.get("nonfinite", sum(counts) if counts else None)
    return largest, None if nonfinite is None or math.isnan(nonfinite) else int(max(min(nonfinite, 2.0**62), -1.0))


def stat_of(fields: dict[str, float], line: int | None) -> Stat:
    """The Stat of what a tool tells."""
    max_abs, nonfinite = magnitude(fields)
    var = fields.get("var")
    if var is None and "std" in fields:
        var = fields["std"] * fields["std"]
    zero = fields.get("zero")
    # A smallest magnitude of 0 says that there is a zero, not which magnitude is the smallest above it.
    return Stat(line, max_abs, nonfinite, fields.get("min_abs") or None, fields.get("mean"), var,
                zero=None if zero is None or not zero.is_integer() else int(zero))


def listed(names: list[str], most: int = 8) -> str:
    """The first names and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def short_name(text: str) -> str:
    """A trace's name made of any text."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.") or "imported"


def join(runs: list[tuple[Source, ImportedRun]], restarts: str) -> ImportedRun:
    """Several files of one run as one: their steps in order; a step that stands in several has the probes of all of them."""
    joined = ImportedRun(framework=runs[0][1].framework, model=runs[0][1].model, rounding=max(run.rounding for _, run in runs),
                         details=runs[0][1].details)
    steps: dict[int, Step] = {}
    for source, run in runs:
        if len({step.run for step in run.steps}) > 1:
            source.fail(None, "holds several runs", "import it alone")
        segments, _ = _segments(run, restarts)
        if len(segments) > 1:
            source.fail(segments[1][0].line, f"the steps go back to {segments[1][0].step}",
                        "import it alone, or with --restarts last")
        for what, names in run.changes.items():
            joined.changes[what] |= names
        joined.unread += run.unread
        joined.assumptions += [text for text in run.assumptions if text not in joined.assumptions]
        for name, probe in run.probes.items():
            joined.probe(name, probe.kind, probe.format, probe.shape)
        for step in segments[0] if segments else []:
            known = steps.setdefault(step.step, Step(step.step, step.line, source=source))
            if twice := known.stats.keys() & step.stats.keys() or known.series.keys() & step.series.keys():
                source.fail(step.line, f"step {step.step} of {min(twice)} is in {known.source.path} too",
                            "join files that differ in steps or probes")
            known.stats.update(step.stats)
            known.series.update(step.series)
    joined.steps = [steps[number] for number in sorted(steps)]
    joined.assumptions.append(f"joined from {len(runs)} files")
    return joined


def build(run: ImportedRun, sources: list[Source], importer: str, options: Options) -> list[Imported]:
    """The traces of a run: one for each stretch of rising steps. Raises ImportFault and TraceError."""
    source = sources[0]
    if run.unread:
        shown = [f"line {line}: {quoted(text)}" if line is not None else quoted(text) for line, text in run.unread]
        places, were = ("place looks", "was") if len(shown) == 1 else ("places look", "were")
        run.assumptions.append(f"{len(shown)} {places} like a metric or an overflow and {were} not understood: "
                               f"{listed(shown, 3)}")
    if options.match is not None:
        run = _matching(run, source, options.match)
    if not run.steps:
        source.fail(None, *run.empty)
    name = options.name or short_name(source.stem)
    built, names = [], _run_names(run, name)
    for run_name, part in names.items():
        built += _build_run(part, sources, importer, options, run_name, sum(imported.trace.max_abs.size for imported in built))
    return built


def _run_names(run: ImportedRun, name: str) -> dict[str, ImportedRun]:
    """The runs of a source and the names of their traces: those of the source behind its own, where it holds several."""
    parts: dict[str, list[Step]] = {}
    for step in run.steps:
        parts.setdefault(step.run, []).append(step)
    named = {}
    for told, steps in parts.items():
        wanted = f"{name}.{short_name(told)}" if told else name
        while wanted in named:
            wanted += "_"
        named[wanted] = replace(run, steps=steps)
    return named


def _build_run(run: ImportedRun, sources: list[Source], importer: str, options: Options, name: str, cells: int) -> list[Imported]:
    """cells: of the traces before."""
    source = sources[0]
    segments, restarts = _segments(run, options.restarts)
    built = []
    for number, steps in enumerate(segments, 1):
        builder = _Builder(run, steps, options, cells)
        cells += len(steps) * len(builder.names)
        assumptions = builder.assumptions
        if restarts and options.restarts == "split":
            assumptions.append(f"the steps go back {_times(restarts)}: trace {number} of {len(segments)}")
        elif restarts:
            assumptions.append(f"the steps go back {_times(restarts)}: the last of every step is kept")
        label = options.label
        if label is None:
            is_bad = builder.anything_nonfinite()
            label = "sudden" if is_bad else "unknown" if run.unread else "healthy"
            assumptions.append(f"label {label}: {'something' if is_bad else 'nothing'} went non-finite"
                               + (", but not everything was understood" if label == "unknown" else ""))
        manifest = {"importer": importer, "assumptions": {"source": run.assumptions, "trace": assumptions}, **run.details,
                    "sources": [{"file": os.path.basename(source.path), "sha256": source.sha256} for source in sources]}
        writer = TraceWriter(name if len(segments) == 1 else f"{name}.{number}", label, builder.trace_probes, model=run.model,
                             framework=run.framework, manifest=manifest)
        builder.write(writer)
        trace = writer.finish()
        trace.to_bytes(source.path)  # a fault shows before anything is written
        built.append(Imported(trace, run.assumptions, assumptions))
    return built


def _either(a, b, both):
    return b if a is None else a if b is None else both(a, b)


def _larger(a, b):
    return _either(a, b, lambda x, y: x if math.prod(x) >= math.prod(y) else y)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _matching(run: ImportedRun, source: Source, pattern: str) -> ImportedRun:
    probes = {name: probe for name, probe in run.probes.items() if re.search(pattern, name)}
    if not probes:
        source.fail(None, f"none of its {len(run.probes)} probes matches {pattern!r}", "give another pattern")
    steps = [replace(step, stats={name: stat for name, stat in step.stats.items() if name in probes}) for step in run.steps]
    dropped = len(run.probes) - len(probes)
    return replace(run, probes=probes, steps=steps,
                   assumptions=[*run.assumptions, f"{dropped} probes left out by the pattern {pattern}"])


def _segments(run: ImportedRun, restarts: str) -> tuple[list[list[Step]], int]:
    """Stretches of strictly rising steps, and how often the steps went back or stood still."""
    segments: list[list[Step]] = []
    for step in run.steps:
        if not 0 <= step.step < 1 << 32:
            step.source.fail(step.line, f"step {step.step} is not in 0..2^32-1", "count steps from 0")
        if not segments or step.step <= segments[-1][-1].step:
            segments.append([])
        segments[-1].append(step)
    count = len(segments) - 1
    if restarts == "last":
        last = {step.step: step for segment in segments for step in segment}
        return [[last[number] for number in sorted(last)]], count
    if len(segments) > MAX_SEGMENTS:
        first = segments[MAX_SEGMENTS][0]
        first.source.fail(first.line, f"the steps go back more than {MAX_SEGMENTS} times",
                          "sort the file by step, or import it with --restarts last")
    return segments, count


class _Builder:
    """One trace: what the source has, completed by the rules of docs/importing.md."""

    def __init__(self, run: ImportedRun, steps: list[Step], options: Options, cells: int):
        self.run, self.steps, self.options = run, steps, options
        self.assumptions: list[str] = []
        self._became_infinite = self._clamped = self._cut_counts = 0
        self._held_series: dict[str, int] = {}
        used = {name for step in steps for name, stat in step.stats.items()}
        self.names = [name for name in run.probes if name in used]
        if not self.names:
            steps[0].source.fail(steps[0].line, "holds no statistic of a tensor, loss, gradient norm or loss scale",
                                 "give a file that has one")
        if len(self.names) > MAX_PROBES:
            steps[0].source.fail(None, f"{len(self.names)} probes, more than the {MAX_PROBES} op ids",
                                 "choose some with --match")
        if cells + len(steps) * len(self.names) > MAX_CELLS:
            others = f" beside {cells} of other traces" if cells else ""
            steps[0].source.fail(None, f"{len(steps)} steps x {len(self.names)} probes are more than {MAX_CELLS} values{others}",
                                 "choose probes with --match, or split the file")
        probes = [run.probes[name] for name in self.names]
        self.trace_probes = [Probe(name, options.kind or probe.kind, probe.format or options.format or "FP32",
                                   probe.shape or ())
                             for name, probe in zip(self.names, probes)]
        self._tell_guesses(probes)
        for probe in self.trace_probes:
            if probe.elements >= 1 << 63:
                step = next(step for step in steps if probe.name in step.stats)
                step.source.fail(step.stats[probe.name].line, f"probe {quoted(probe.name)} has a shape of more than 2^63-1 elements",
                                 "correct the shape")
        self._op = {name: op for op, name in enumerate(self.names)}
        self._read_cells()

    def _tell_guesses(self, probes: list[SourceProbe]) -> None:
        unknown_format = sum(probe.format is None for probe in probes)
        if unknown_format and self.options.format:
            self.assumptions.append(f"format {self.options.format} as asked for {unknown_format} of {len(probes)} probes")
        elif unknown_format:
            self.assumptions.append(f"format of {unknown_format} of {len(probes)} probes not in the source: FP32")
        for what, kept in (("format", "the first"), ("shape", "the largest")):
            if changed := len(self.run.changes[what].intersection(self.names)):
                self.assumptions.append(f"{what} of {changed} probes changes in the source: {kept}")
        unknown_shape = sum(probe.shape is None for probe in probes)
        if unknown_shape:
            self.assumptions.append(f"element count of {unknown_shape} of {len(probes)} probes not in the source: one element")

    def anything_nonfinite(self) -> bool:
        """Whether any cell is non-finite."""
        return bool(self._nonfinite.any())

    def write(self, writer: TraceWriter) -> None:
        """Every step, in order."""
        members = {"max_abs": _hold(self._max_abs, self._known), "nonfinite": self._nonfinite, **self._optional_members()}
        series, with_raw = self._series(), self._raw_probes()
        self._tell_rules()
        for s, step in enumerate(self.steps):
            writer.add_step(step.step, raw={name: step.stats[name].elements for name in with_raw},
                            **{member: values[s] for member, values in members.items()},
                            **{name: values[s] for name, values in series.items()})

    def _gather(self, member: str) -> tuple[np.ndarray, np.ndarray]:
        """A member of every cell [steps, probes], and where the source tells it."""
        values = np.zeros((len(self.steps), len(self.names)))
        told = np.zeros(values.shape, bool)
        for s, step in enumerate(self.steps):
            for name, stat in step.stats.items():
                value = getattr(stat, member)
                if value is not None:
                    values[s, self._op[name]] = value
                    told[s, self._op[name]] = True
        return values, told

    def _read_cells(self) -> None:
        """max_abs and nonfinite of every cell; _known is where the magnitude of the finite elements is known."""
        largest, told = self._gather("max_abs")
        counts, _ = self._gather("nonfinite")
        self._refuse(counts < 0, "has a negative count", "correct the value")
        self._refuse(largest < 0, "has a negative magnitude", "correct the value")
        bad = told & ~np.isfinite(largest)
        for op, probe in enumerate(self.trace_probes):
            layout = FORMATS[probe.format]
            limit = float(layout.max_value)
            above = np.flatnonzero(told[:, op] & ~bad[:, op] & (largest[:, op] > limit))
            with np.errstate(over="ignore"):
                rounded = largest[above, op].astype(layout.numpy).astype(np.float64)
            fits = np.isfinite(rounded) | (largest[above, op] <= limit * (1 + self.run.rounding))
            largest[above[fits], op] = limit
            bad[above[~fits], op] = True
            self._clamped += int(fits.sum())
            self._became_infinite += int((~fits).sum())
        counts = np.maximum(counts, bad)
        elements = np.array([probe.elements for probe in self.trace_probes], np.float64)
        guessed = np.array([self.run.probes[name].shape is None for name in self.names])
        excess = counts > elements
        self._refuse(excess & ~guessed, "has more non-finite values than elements", "correct the count or the shape")
        self._cut_counts = int((excess & guessed).sum())
        self._max_abs, self._known = largest, told & ~bad
        self._nonfinite = np.minimum(counts, elements).astype(np.int64)

    def _refuse(self, cells: np.ndarray, wrong: str, remedy: str) -> None:
        """Raises ImportFault for the first of the cells."""
        for s, op in np.argwhere(cells)[:1]:
            step, name = self.steps[s], self.names[op]
            step.source.fail(step.stats[name].line, f"probe {quoted(name)} {wrong}", remedy)

    def _optional_members(self) -> dict[str, np.ndarray]:
        """Statistics that every probe has somewhere: a trace holds them for all probes or not at all."""
        members, dropped = {}, []
        for member in OPTIONAL:
            values, told = self._gather(member)
            told &= np.isfinite(values)
            probes = int(told.any(axis=0).sum())
            if probes == len(self.names):
                members[member] = _hold(values, told).astype(np.int64 if member in COUNTS else np.float64)
            elif probes:
                dropped.append(f"{member} ({probes})")
        if dropped:
            self.assumptions.append(f"left out, because not all {len(self.names)} probes have it: {', '.join(dropped)}")
        return members

    def _series(self) -> dict[str, np.ndarray]:
        """loss, grad_norm, lr and loss_scale where any step has them."""
        found = {}
        for name in SERIES:
            told = np.array([[name in step.series] for step in self.steps])
            if told.any():
                values = np.array([[step.series.get(name, 0.0)] for step in self.steps], np.float64)
                with np.errstate(over="ignore"):
                    found[name] = _hold(values, told)[:, 0].astype(np.float32)
                self._held_series[name] = int((~told).sum())
        return found

    def _raw_probes(self) -> set[str]:
        """Probes whose elements are kept: those that have them at every step."""
        if not self.options.raw:
            return set()
        having = Counter(name for step in self.steps for name, stat in step.stats.items() if stat.elements is not None)
        kept = {name for name in self.names if having[name] == len(self.steps)}
        if len(kept) < len(self.names):
            missing = f"{len(self.names) - len(kept)} of {len(self.names)}"
            self.assumptions.append(f"raw elements of {missing} probes not in the source at every step")
        return kept

    def _tell_rules(self) -> None:
        def tell(count: int, text: str) -> None:
            if count:
                self.assumptions.append(f"{count} {text}")

        tell(int((~self._known).sum()),
             f"of {self._known.size} values of max_abs not in the source: the last one before is repeated (the first one "
             "after, at the start; 0 where there is none)")
        tell(self._clamped, "magnitudes above the largest finite value by no more than their rounding: that value")
        tell(self._became_infinite, "magnitudes that the probe's format rounds to Inf: one non-finite element each")
        tell(self._cut_counts, "non-finite counts cut to 1: the element count is not in the source")
        for name, count in self._held_series.items():
            tell(count, f"of {len(self.steps)} values of {name} not in the source: the last one before is repeated")


def _hold(values: np.ndarray, told: np.ndarray) -> np.ndarray:
    """values [steps, columns] where the source tells them, else the last one before; the first one after, at the start; 0
    where there is none."""
    last = np.maximum.accumulate(np.where(told, np.arange(len(told))[:, None], -1), axis=0)
    filled = np.take_along_axis(values, np.where(last < 0, told.argmax(axis=0), last), axis=0)
    return np.where(told.any(axis=0), filled, 0.0)


def elements_stat(elements: np.ndarray) -> Stat:
    """The Stat of all elements of a tensor, which are of the type of a format."""
    return Stat(elements=elements, **element_statistics(elements))
