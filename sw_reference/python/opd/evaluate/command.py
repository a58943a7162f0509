"""`opd evaluate TRACE|FOLDER...`: every detector on a corpus of traces.

Writes OUT/evaluation.json and OUT/evaluation.html and prints one table for each split of the corpus. Exit status 0, or 2 for
bad input: then nothing is written.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opd.evaluate import all_detectors
from opd.evaluate.corpus import CLEAN, LABELS_FILE, SPLITS, UNASSIGNED, CorpusError, Label, Run, find_traces, load, read_labels
from opd.evaluate.detector import Detector, Samples, of_kinds
from opd.evaluate.metrics import (CONFIDENCE, INCIDENT_CLASSES, LEAD_WINDOW, RESAMPLES, WARM_UP, RunResult, assess,
                                  first_incident, first_nonfinite, summarise)
from opd.evaluate.reference import ReferenceMissing
from opd.evaluate.report import absences, write_page
from opd.trace import KINDS, TraceError

ALL = "all"  # the split of a table over every run


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="opd evaluate",
                                     description="Hold detectors against a corpus of traces (docs/evaluation.md).")
    parser.add_argument("paths", nargs="+", metavar="TRACE|FOLDER", help="traces; of a folder its *.safetensors")
    parser.add_argument("--labels", metavar="FILE", help=f"labels of the traces (default: {LABELS_FILE} beside each)")
    parser.add_argument("--kind", action="append", choices=KINDS,
                        help="judge only operators of this kind; may be repeated (default: all)")
    parser.add_argument("--detector", action="append", metavar="NAME", help="only this detector; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap (default 1)")
    parser.add_argument("--out", default="out", metavar="DIR",
                        help="folder for evaluation.json and evaluation.html (default: out)")
    arguments = parser.parse_args(argv)
    try:
        evaluation = evaluate(arguments.paths, arguments.labels, arguments.kind, arguments.detector, arguments.seed)
        out = Path(arguments.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "evaluation.json").write_text(json.dumps(evaluation, indent=1, allow_nan=False) + "\n", encoding="ascii")
        write_page(out / "evaluation.html", evaluation)
    except (CorpusError, TraceError, ReferenceMissing) as error:
        print(f"opd evaluate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"opd evaluate: {error.filename or arguments.out}: cannot be written ({error.strerror}); "
              "check --out and its free space", file=sys.stderr)
        return 2
    _print(text(evaluation))
    print(f"\n{out / 'evaluation.json'}, {out / 'evaluation.html'}")
    return 0


def evaluate(paths: Sequence[str], labels_file: str | None = None, kinds: Sequence[str] | None = None,
             names: Sequence[str] | None = None, seed: int = 1) -> dict:
    """The content of evaluation.json. Raises CorpusError, TraceError, ReferenceMissing."""
    if seed < 0:
        raise CorpusError("--seed", "seed", f"{seed} is negative", "give 0 or more")
    detectors = _chosen(names)
    runs, results = [], [[] for _ in detectors]
    for run in _runs(paths, labels_file, kinds):
        samples = Samples.of(run.trace)
        of_run = [assess(detector, run, samples) for detector in detectors]
        for collected, result in zip(results, of_run):
            collected.append(result)
        runs.append(_entry(run, samples, detectors, of_run))
    present = [split for split in (*SPLITS, UNASSIGNED) if any(run["split"] == split for run in runs)]
    entries = []
    for split in (present if len(present) == 1 else [*present, ALL]):
        entries += [summarise(detector, [result for result in collected if split in (result.split, ALL)], split, seed)
                    for detector, collected in zip(detectors, results)]
    classes = {run["class"] for run in runs}
    return {"format": "opd-evaluation", "version": 1, "seed": seed, "confidence": CONFIDENCE, "resamples": RESAMPLES,
            "lead_window": LEAD_WINDOW, "warm_up_samples": WARM_UP, "kinds": sorted(kinds) if kinds else list(KINDS),
            "classes_without_run": [kind for kind in (*CLEAN, *INCIDENT_CLASSES) if kind not in classes],
            "runs": runs, "detectors": entries}


def _chosen(names: Sequence[str] | None) -> list[Detector]:
    detectors = all_detectors()
    known = [detector.name for detector in detectors]
    for name in names or ():
        if name not in known:
            raise CorpusError("--detector", name, "is no detector", f"use {', '.join(known)}")
    return [detector for detector in detectors if not names or detector.name in names]


def _runs(paths: Sequence[str], labels_file: str | None, kinds: Sequence[str] | None):
    """The runs one after the other: a trace is in memory only while it is judged."""
    files = find_traces(paths)
    known: dict[Path | None, dict[str, Label]] = {}
    seen: dict[str, Path] = {}
    beside = {file: _labels_of(file, labels_file) for file in files}
    for labels in set(beside.values()):
        known[labels] = read_labels(labels) if labels else {}
    for file in files:
        run = load(file, known[beside[file]], beside[file])
        if run.trace.name in seen:
            raise CorpusError(file, "name", f"{run.trace.name} is the name of {seen[run.trace.name]} too",
                              "give every trace a name of its own")
        seen[run.trace.name] = file
        if kinds:
            try:
                run = replace(run, trace=of_kinds(run.trace, set(kinds)))
            except ValueError as error:
                raise CorpusError(file, "probes", str(error), "leave the trace out, or ask for another --kind") from None
        yield run
    folders = {path for path in map(Path, paths) if path.is_dir()}
    for labels, entries in known.items():
        if labels and (labels.parent in folders or labels_file):
            for name in entries:
                if name not in seen:
                    raise CorpusError(labels, f"runs.{name}", "is the name of no trace",
                                      "correct it, remove it, or name its trace as well")


def _labels_of(file: Path, labels_file: str | None) -> Path | None:
    if labels_file is not None:
        return Path(labels_file)
    beside = file.parent / LABELS_FILE
    return beside if beside.exists() else None


def _entry(run: Run, samples: Samples, detectors: Sequence[Detector], results: Sequence[RunResult]) -> dict:
    """One entry of `runs` in evaluation.json."""
    label = run.label
    first_bad = first_nonfinite(samples)
    op = first_incident(run, first_bad)
    incident = None if op is None else {"op": op, "probe": run.trace.probes[op].name, "step": int(samples.step[first_bad[op]])}
    return {"name": run.trace.name, "file": run.file.name, "class": label.kind, "split": label.split, "label_from": label.file,
            "decided": label.decided, "steps": len(run.trace.step), "probes": len(run.trace.probes),
            "first_incident": incident, "operators_nonfinite": results[0].operators,
            "detectors": [{"name": detector.name, "lead_steps": result.lead, "false_alarms": result.false_alarms.alarms,
                           "probe_steps": result.false_alarms.probe_steps, "warm_up_false_alarms": result.warm_up.alarms,
                           "warm_up_probe_steps": result.warm_up.probe_steps} for detector, result in zip(detectors, results)]}


# --- text ------------------------------------------------------------------------------------------------------------------

def number(value: float | None) -> str:
    """Two decimals below 100; "-" for no value."""
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def interval(bounds: Sequence[float] | None) -> str:
    return f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else ""


def recall(entry: dict) -> str:
    return f"{entry['detected']}/{entry['incidents']}{interval(entry['recall_interval'])}" if entry["incidents"] else "-"


def text(evaluation: dict) -> str:
    """The tables of an evaluation."""
    lines = []
    runs = evaluation["runs"]
    for split in dict.fromkeys(entry["split"] for entry in evaluation["detectors"]):
        chosen = [run for run in runs if split in (run["split"], ALL)]
        counts = {kind: sum(run["class"] == kind for run in chosen) for kind in (*CLEAN, *INCIDENT_CLASSES)}
        lines.append(f"split {split}: {len(chosen)} {'run' if len(chosen) == 1 else 'runs'} (" +
                     ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) + ")")
        rows = [("detector", "recall", "lead median", "lead p10", "healthy /1k", "near-limit /1k", "warm-up /1k", "state bits",
                 "operations")]
        for entry in evaluation["detectors"]:
            if entry["split"] == split:
                rates = [number(entry[f"false_alarms_{what}_per_1000"]) + interval(entry[f"false_alarms_{what}_interval"])
                         for what in ("healthy", "near_limit", "warm_up")]
                leads = ["-" if entry[key] is None else str(entry[key]) for key in ("lead_median", "lead_p10")]
                cost = [f"{entry[key]:,}" for key in ("state_bits", "operations")]
                rows.append((entry["name"], recall(entry), *leads, *rates, *cost))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  " + "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                                   for column, (cell, width) in enumerate(zip(row, widths))) for row in rows]
        lines.append("")
    lines += ["recall: first incidents with an alarm standing, exact 95 % interval; lead: steps, at most 128, a miss counts 0;",
              "/1k: false alarms per 1000 probe-steps after the first 32 samples (warm-up: in them); [] needs two runs."]
    lines += absences(evaluation)
    return "\n".join(lines)


def _print(told: str) -> None:
    """Names come from files: nothing of them reaches the terminal as a control sequence."""
    print("".join(c if c.isprintable() or c == "\n" else "?" for c in told))
