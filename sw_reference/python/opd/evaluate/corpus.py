"""Traces and what is known of them: labels from `labels.toml` beside the traces, else from each trace's own metadata.

    [runs.qk_overflow]                    # name of the trace
    class = "gradual"                     # one of opd.trace.LABELS
    split = "held-out"                    # tuning: thresholds were chosen with it in view; held-out: they were not
    first_bad_step = 235                  # step and operator of the first non-finite value; both or none
    first_bad_op = "block.2.attn.qk"
    decided = "computed: 91 steps below 4 bits of headroom before"    # how the label came about
    event_step = 230                      # optional: a step to report on, where nothing need be non-finite (a loss that jumps)
    incident = "none"                     # optional, of injected and data: nothing went wrong, the run counts in no recall
"""
from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors

from opd.evaluate.detector import Samples, clipped_values
from opd.evaluate.incident import CLEAN, SATURATING, UNKNOWN, Unlocated, first_forward, signs, unlocated
from opd.texts import printable
from opd.trace import LABELS, Trace

LABELS_FILE = "labels.toml"
LARGEST_LABELS = 4 << 20  # bytes
_MOST_TEXT = 200          # characters of an error that come from a file
SPLITS = ("tuning", "held-out")
UNASSIGNED = "unassigned"  # split of a run that no labels file names
_KEYS = {"class": str, "split": str, "first_bad_step": int, "first_bad_op": str, "decided": str, "event_step": int,
         "incident": str}
_REQUIRED = ("class", "split", "decided")
FAULTS = ("injected", "data")  # classes of which a run may be without an incident


class CorpusError(ValueError):
    """Traces or labels that cannot be used. The text is "FILE: FIELD: what is wrong; remedy"."""

    def __init__(self, file: Path | str, field: str, wrong: str, remedy: str):
        field, wrong = (text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "..." for text in (field, wrong))
        super().__init__(printable(f"{file}: {field}: {wrong}; {remedy}").replace("\n", "?"))


@dataclass(frozen=True)
class Label:
    """What is known of a run."""
    kind: str                  # class, one of LABELS
    split: str                 # one of SPLITS, or UNASSIGNED
    first_bad_step: int | None
    first_bad_op: str | None
    decided: str
    file: str                  # where it says so
    event_step: int | None = None
    no_incident: bool = False  # what was done to the run had no consequence


@dataclass(frozen=True)
class Run:
    """A trace file with its label."""
    file: Path
    trace: Trace
    label: Label
    unlocated: Unlocated | None = None  # the incident, where no operator shows it


def find_traces(paths: Sequence[str]) -> list[Path]:
    """Trace files of files and folders (*.safetensors, sorted by name). Raises CorpusError."""
    files = []
    for path in map(Path, paths):
        found = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not found:
            raise CorpusError(path, "folder", "holds no *.safetensors", "name a folder with traces, or trace files")
        files += found
    for file in files:
        if files.count(file) > 1:
            raise CorpusError(file, "file", "is named twice", "name every trace once")
    return files


def read_labels(file: Path) -> dict[str, Label]:
    """Labels by the name of their trace. Raises CorpusError."""
    def fail(wrong, remedy="write it as docs/evaluation.md shows"):
        raise CorpusError(file, "file", wrong, remedy) from None

    try:
        if file.exists() and not file.is_file():
            fail("is no regular file", "name a file")
        if file.stat().st_size > LARGEST_LABELS:
            fail(f"is larger than {LARGEST_LABELS >> 20} MiB")
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except CorpusError:
        raise
    except RecursionError:
        fail("is nested too deep")
    except OSError as error:
        fail(f"cannot be read ({error.strerror})", "check its name and permissions")
    except UnicodeDecodeError:
        fail("is not UTF-8 text")
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        fail(f"is not TOML ({error})")
    for key in content:
        if key != "runs":
            raise CorpusError(file, key, "is not known", "write one table [runs.NAME] for each trace")
    if not isinstance(content.get("runs"), dict):
        raise CorpusError(file, "runs", "is missing or not a table", "write one table [runs.NAME] for each trace")
    return {name: _label(file, name, entry) for name, entry in content["runs"].items()}


def _label(file: Path, name: str, entry) -> Label:
    def fail(key, wrong, remedy):
        raise CorpusError(file, f"runs.{name}.{key}" if key else f"runs.{name}", wrong, remedy)

    if not isinstance(entry, dict):
        fail("", "is not a table", "write [runs.NAME] and its fields")
    for key, value in entry.items():
        if key not in _KEYS:
            fail(key, "is not known", f"the fields are {', '.join(_KEYS)}")
        if type(value) is not _KEYS[key]:
            fail(key, "has the wrong type", f"give {'a text' if _KEYS[key] is str else 'a whole number'}")
    for key in _REQUIRED:
        if not entry.get(key):
            fail(key, "is missing or empty", "every run needs a class, a split, and how the label was decided")
    if entry["class"] not in LABELS:
        fail("class", f"{entry['class']!r} is no class", f"use {', '.join(LABELS)}")
    if entry["split"] not in SPLITS:
        fail("split", f"{entry['split']!r} is no split", f"use {' or '.join(SPLITS)}")
    if ("first_bad_step" in entry) != ("first_bad_op" in entry):
        fail("first_bad_step", "and first_bad_op are not both there", "give both or none")
    if entry["class"] in (*CLEAN, UNKNOWN) and "first_bad_op" in entry:
        fail("first_bad_op", f"is given, but the class is {entry['class']}", "correct one of the two")
    if "incident" in entry:
        if entry["incident"] != "none":
            fail("incident", f"{entry['incident']!r} is not known", 'write "none", or leave it out')
        if entry["class"] not in FAULTS:
            fail("incident", f"is given, but the class is {entry['class']}",
                 f"it belongs to the classes {' and '.join(FAULTS)}")
        if "first_bad_op" in entry:
            fail("incident", 'is "none", but first_bad_op is given', "correct one of the two")
    return Label(entry["class"], entry["split"], entry.get("first_bad_step"), entry.get("first_bad_op"), entry["decided"],
                 file.name, entry.get("event_step"), "incident" in entry)


def name_of(file: Path) -> str | None:
    """Name of a trace, of which nothing but the header is read; None when that cannot be read."""
    try:
        with safetensors.safe_open(file, "numpy") as opened:
            return (opened.metadata() or {}).get("name")
    except (OSError, safetensors.SafetensorError):
        return None


def load(file: Path, labels: dict[str, Label], labels_file: Path | None) -> Run:
    """A trace with its label, which must agree with it. Raises CorpusError, TraceError."""
    trace = Trace.read(file)
    label = labels.get(trace.name)
    label = _own_label(trace, file) if label is None else label
    if label.split != UNASSIGNED:
        _check(trace, label, file, labels_file)
    return Run(file, trace, label, _unlocated(trace, label))


def own_run(trace: Trace, file: Path) -> Run:
    """A trace with the label that it gives itself, unless its own numbers say otherwise."""
    label = _own_label(trace, file)
    return Run(file, trace, label, _unlocated(trace, label))


def _unlocated(trace: Trace, label: Label) -> Unlocated | None:
    """The incident of a run, where no operator output shows it; None when one does, or when there is no incident."""
    if label.kind in (*CLEAN, UNKNOWN) or label.no_incident or label.first_bad_op is not None:
        return None
    return unlocated(trace, Samples.of(trace, label.kind == SATURATING).bad,
                     scaler_at_work=label.kind in FAULTS and trace.loss_scale is not None)


def _contradiction(trace: Trace) -> str | None:
    """What in a trace is non-finite although the run is said to be without an incident; None without any. Gradients are not
    meant, because they overflow under a loss scaler as a matter of course, nor then their norm."""
    forward = first_forward(trace, trace.nonfinite > 0)
    if forward is not None:
        return f"{trace.probes[forward[1]].name} is non-finite at step {forward[0]}"
    found = signs(trace, scaler_at_work=trace.loss_scale is not None)
    return None if found is None else f"{found.what[0]} is non-finite at step {found.step}"


def _own_label(trace: Trace, file: Path) -> Label:
    """What the trace says itself, unless its own numbers say otherwise: a run that went wrong is never called clean."""
    kind, decided = trace.label, "metadata of the trace"
    wrong = _contradiction(trace) if kind in (*CLEAN, UNKNOWN) else None
    if wrong is not None:
        kind, decided = "sudden", f"metadata of the trace says {kind}, but {wrong}"
    named = (None, None) if kind == SATURATING else (trace.first_bad_step, trace.first_bad_op)  # of a non-finite value
    return Label(kind, UNASSIGNED, *named, decided, file.name)


def _check(trace: Trace, label: Label, file: Path, labels_file: Path | None) -> None:
    """Whether an entry of a labels file agrees with its trace. Raises CorpusError."""
    def fail(key, wrong):
        raise CorpusError(labels_file, f"runs.{trace.name}.{key}", wrong, f"correct it, or the trace {file.name}")

    if label.event_step is not None and label.event_step not in trace.step:
        fail("event_step", f"{label.event_step} is no step of the trace")
    if label.kind in (*CLEAN, UNKNOWN) or label.no_incident:
        wrong = _contradiction(trace)
        if wrong is not None:
            fail("incident" if label.no_incident else "class", f"{'none' if label.no_incident else label.kind}, but {wrong}")
    clipped = clipped_values(trace)
    if label.kind == SATURATING:
        first = first_forward(trace, clipped)
        if first is None:
            fail("class", f"{SATURATING}, but no activation holds a clipped value"
                 + (" (the trace has no counts of saturated elements)" if trace.saturated is None else ""))
        bad = first_forward(trace, trace.nonfinite > 0)
        if bad is not None and bad <= first:
            fail("class", f"{SATURATING}, but {trace.probes[bad[1]].name} is non-finite at step {bad[0]}, and the first clipped "
                 f"value is at step {first[0]}")
    if label.first_bad_op is not None:
        op = next((op for op, probe in enumerate(trace.probes) if probe.name == label.first_bad_op), None)
        if op is None:
            fail("first_bad_op", f"{label.first_bad_op!r} is no probe of the trace")
        what, values = ("clipped", clipped) if label.kind == SATURATING else ("non-finite", trace.nonfinite > 0)
        bad = trace.step[values[:, op]]
        if not len(bad) or bad[0] != label.first_bad_step:
            found = f"its first {what} value is at step {bad[0]}" if len(bad) else f"it never holds a {what} value"
            fail("first_bad_step", f"{label.first_bad_op} at step {label.first_bad_step} is asked for, but {found}")


class Runs:
    """The runs of trace files, each with its label: of `labels_file`, else of LABELS_FILE beside its trace.

    names: of the traces so far, with their files, also of those that were passed over."""

    def __init__(self, files: Sequence[Path], labels_file: str | None):
        """Reads the labels. Raises CorpusError."""
        self._beside = {file: _labels_of(file, labels_file) for file in files}
        self.labels = {labels: read_labels(labels) if labels else {} for labels in set(self._beside.values())}
        self.names: dict[str, Path] = {}

    def read(self, split: str | None = None) -> Iterator[Run]:
        """One after the other: a trace is in memory only while it is used. split: only those of it; of the others nothing is
        read but the name. Raises CorpusError, TraceError."""
        for file, beside in self._beside.items():
            labels = self.labels[beside]
            name = name_of(file) if split else None
            if name is not None and (name not in labels or labels[name].split != split):
                self.names.setdefault(name, file)
                continue
            run = load(file, labels, beside)
            if run.trace.name in self.names:
                raise CorpusError(file, "name", f"{run.trace.name} is the name of {self.names[run.trace.name]} too",
                                  "give every trace a name of its own")
            self.names[run.trace.name] = file
            yield run


def _labels_of(file: Path, labels_file: str | None) -> Path | None:
    if labels_file is not None:
        return Path(labels_file)
    beside = file.parent / LABELS_FILE
    return beside if beside.exists() else None


def label_table(name: str, fields: Mapping[str, str | int | None]) -> str:
    """One entry of a labels file; a field that is None is left out. A JSON string is a TOML basic string."""
    return f"[runs.{json.dumps(name)}]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items() if value is not None)
