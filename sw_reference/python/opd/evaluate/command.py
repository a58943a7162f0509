"""`opd evaluate TRACE|FOLDER...`: every detector on a corpus of traces.

Writes OUT/evaluation.json and OUT/evaluation.html and prints the tables of each split of the corpus. Exit status 0, or 2 for
bad input: then nothing is written.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from opd import device_config
from opd.arguments import Parser
from opd.device_config import ConfigFileError
from opd.evaluate import all_detectors
from opd.evaluate.corpus import LABELS_FILE, SPLITS, UNASSIGNED, CorpusError, Run, Runs, find_traces
from opd.evaluate.detector import Detector, of_kinds
from opd.evaluate.figures import CONFIDENCE, RESAMPLES, summarise
from opd.evaluate.goals import reached
from opd.evaluate.incident import UNKNOWN
from opd.evaluate.log import Alarm
from opd.evaluate.matched import matched
from opd.evaluate.metrics import LEAD_WINDOW, WARM_UP, Facts, RunResult, assess
from opd.evaluate.reference import Configured
from opd.evaluate.report import page_of
from opd.evaluate.tables import per_run, text
from opd.files import write_all_whole
from opd.reference import ReferenceMissing
from opd.texts import printable
from opd.trace import KINDS, LABELS, TraceError

ALL = "all"  # the split of a table over every run


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(prog="opd evaluate",
                    description="Hold detectors against a corpus of traces (docs/evaluation.md).")
    parser.add_argument("paths", nargs="+", metavar="TRACE|FOLDER", help="traces; of a folder its *.safetensors")
    parser.add_argument("--labels", metavar="FILE", help=f"labels of the traces (default: {LABELS_FILE} beside each)")
    parser.add_argument("--kind", action="append", choices=KINDS,
                        help="judge only operators of this kind; may be repeated (default: all)")
    parser.add_argument("--detector", action="append", metavar="NAME", help="only this detector; may be repeated")
    parser.add_argument("--config", metavar="FILE", help="also judge the device with this configuration file: `configured`")
    parser.add_argument("--split", choices=SPLITS, help="only runs of this split; no other trace is read beyond its name")
    parser.add_argument("--goals", default="forecast", metavar="NAME",
                        help="detector that is held against the goals (default forecast)")
    parser.add_argument("--runs", action="store_true", help="print what each detector says of each run instead of the figures")
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap (default 1)")
    parser.add_argument("--out", default="out", metavar="DIR",
                        help="folder for evaluation.json and evaluation.html (default: out)")
    arguments = parser.parse_args(argv)
    try:
        evaluation = evaluate(arguments.paths, arguments.labels, arguments.kind, arguments.detector, arguments.seed,
                              arguments.split, arguments.goals, arguments.config)
        out = Path(arguments.out)
        out.mkdir(parents=True, exist_ok=True)
        _write(out, evaluation)
    except (CorpusError, TraceError, ReferenceMissing, ConfigFileError) as error:
        print(f"opd evaluate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"opd evaluate: {error.filename2 or arguments.out}: cannot be written ({error.strerror}); "
              "check --out and its free space", file=sys.stderr)
        return 2
    print(printable(per_run(evaluation) if arguments.runs else text(evaluation)))
    if len(evaluation["runs"]) == 1:
        print("\n" + _in_words(arguments.paths, arguments.labels, evaluation["runs"][0]["file"]))
    print(f"\n{out / 'evaluation.json'}, {out / 'evaluation.html'}")
    return 0


def _in_words(paths: Sequence[str], labels: str | None, file: str) -> str:
    """The run's incident in a sentence, as opd triage says it; of all detectors, whichever were asked for."""
    from opd.triage import triage_run  # it is built on this package

    run = next(run for run in Runs([path for path in find_traces(paths) if path.name == file], labels).read())
    return printable(f"{run.trace.name}: {triage_run(run).sentence()}")


def _write(out: Path, evaluation: dict) -> None:
    """Both files, each as a whole: what an earlier evaluation wrote stays there until they are ready. Raises OSError."""
    content = json.dumps(evaluation, indent=1, allow_nan=False) + "\n"
    write_all_whole({out / "evaluation.html": page_of(evaluation).encode(), out / "evaluation.json": content.encode("ascii")})


def evaluate(paths: Sequence[str], labels_file: str | None = None, kinds: Sequence[str] | None = None,
             names: Sequence[str] | None = None, seed: int = 1, only: str | None = None, goals_of: str = "forecast",
             config_file: str | None = None) -> dict:
    """The content of evaluation.json. Raises CorpusError, TraceError, ReferenceMissing, ConfigFileError."""
    if seed < 0:
        raise CorpusError("--seed", "seed", f"{seed} is negative", "give 0 or more")
    return hold(_chosen(names, config_file), paths, labels_file, kinds, seed, only, goals_of)


def hold(detectors: Sequence[Detector], paths: Sequence[str], labels_file: str | None = None,
         kinds: Sequence[str] | None = None, seed: int = 1, only: str | None = None, goals_of: str = "forecast") -> dict:
    """The same for detectors of one's own, whose names differ. Raises CorpusError, TraceError, ReferenceMissing."""
    if goals_of != "forecast" and goals_of not in [detector.name for detector in detectors]:
        raise CorpusError("--goals", goals_of, "is none of the detectors",
                          f"use {', '.join(detector.name for detector in detectors)}")
    runs, results = [], [[] for _ in detectors]
    for run in _runs(paths, labels_file, kinds, only):
        facts = Facts.of(run)
        of_run = [assess(detector, facts) for detector in detectors]
        for collected, result in zip(results, of_run):
            collected.append(result)
        runs.append(_entry(facts, detectors, of_run))
    if not runs:
        raise CorpusError("--split", only, "has no run among the traces", "name other traces, or give them labels")
    present = [split for split in (*SPLITS, UNASSIGNED) if any(run["split"] == split for run in runs)]
    entries = []
    for split in (present if len(present) == 1 else [*present, ALL]):
        entries += [summarise(detector, [result for result in collected if split in (result.split, ALL)], split, seed)
                    for detector, collected in zip(detectors, results)]
    classes = {run["class"] for run in runs}
    return {"format": "opd-evaluation", "version": 1, "seed": seed, "confidence": CONFIDENCE, "resamples": RESAMPLES,
            "lead_window": LEAD_WINDOW, "warm_up_samples": WARM_UP, "kinds": sorted(kinds) if kinds else list(KINDS),
            "only_split": only,
            "classes_without_run": [kind for kind in LABELS if kind not in (*classes, UNKNOWN)],
            "runs": runs, "detectors": entries, "matched": matched(detectors, results, seed),
            "goals": reached(entries, goals_of)}


def _chosen(names: Sequence[str] | None, config_file: str | None) -> list[Detector]:
    detectors = all_detectors()
    if config_file is not None:
        detectors.insert(0, Configured(device_config.read(config_file)))
    known = [detector.name for detector in detectors]
    for name in names or ():
        if name not in known:
            raise CorpusError("--detector", name, "is no detector", f"use {', '.join(known)}")
    return [detector for detector in detectors if not names or detector.name in names]


def _runs(paths: Sequence[str], labels_file: str | None, kinds: Sequence[str] | None, split: str | None) -> Iterator[Run]:
    """The runs, one after the other, and then whether every label had a trace. split: only those of it."""
    files = find_traces(paths)
    found = Runs(files, labels_file)
    for run in _counted(found.read(split), len(files)):
        if kinds:
            try:
                run = replace(run, trace=of_kinds(run.trace, set(kinds)))
            except ValueError as error:
                raise CorpusError(run.file, "probes", str(error), "leave the trace out, or ask for another --kind") from None
        yield run
    folders = {path for path in map(Path, paths) if path.is_dir()}
    for labels, entries in found.labels.items():
        if labels and (labels.parent in folders or labels_file):
            for name in entries:
                if name not in found.names:
                    raise CorpusError(labels, f"runs.{name}", "is the name of no trace",
                                      "correct it, remove it, or name its trace as well")


def _counted(runs: Iterator[Run], traces: int) -> Iterator[Run]:
    """The runs; on a terminal a line tells how many there were, and goes away at the end."""
    if not sys.stderr.isatty():
        yield from runs
        return
    try:
        for number, run in enumerate(runs, 1):
            print(f"\r\x1b[Kopd evaluate: {number} of {traces} traces", end="", file=sys.stderr, flush=True)
            yield run
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _entry(facts: Facts, detectors: Sequence[Detector], results: Sequence[RunResult]) -> dict:
    """One entry of `runs` in evaluation.json."""
    run, op, lost = facts.run, facts.incident, facts.run.unlocated
    incident = without = None
    if op is not None:
        finite = bool(facts.samples.finite[facts.bad, op])
        incident = {"op": op, "probe": run.trace.probes[op].name, "step": int(facts.samples.step[facts.bad]),
                    "what": "clipped" if finite else "non-finite"}
    if lost is not None:
        without = {"step": lost.step, "what": list(lost.what)}
    outcome = "operator" if incident else "no operator" if without else "unknown" if run.label.kind == UNKNOWN else "none"
    return {"name": run.trace.name, "file": run.file.name, "class": run.label.kind, "split": run.label.split,
            "label_from": run.label.file, "decided": run.label.decided, "steps": len(run.trace.step),
            "probes": len(run.trace.probes), "outcome": outcome, "first_incident": incident,
            "incident_without_operator": without, "event_step": facts.event, "operators_nonfinite": results[0].operators,
            "overflows": results[0].log.overflows, "gradient_overflows": results[0].gradients.probe_steps,
            "detectors": [_said(run, detector, result) for detector, result in zip(detectors, results)]}


def _said(run: Run, detector: Detector, result: RunResult) -> dict:
    """One entry of `runs[].detectors` in evaluation.json."""
    def told(alarm: Alarm | None) -> dict | None:
        return None if alarm is None else {"probe": run.trace.probes[alarm.op].name, "step": alarm.step}

    upstream, log = result.upstream, result.log
    return {"name": detector.name, "lead_steps": result.lead, "false_alarms": result.false_alarms.alarms,
            "probe_steps": result.false_alarms.probe_steps, "warm_up_false_alarms": result.warm_up.alarms,
            "warm_up_probe_steps": result.warm_up.probe_steps,
            "upstream_same_step": None if upstream is None else upstream.op is not None,
            "upstream_probe": None if upstream is None or upstream.op is None else run.trace.probes[upstream.op].name,
            "upstream_operators": None if upstream is None else upstream.operators,
            "has_verdict": log.has_verdict, "alarms": log.alarms, "first_alarm": told(log.first),
            "alarm_before": told(log.before), "alarm_same_step": told(log.same_step),
            "alarm_at_incident": log.at_incident, "overflows_warned": log.overflows_warned,
            "gradient_overflows_forecast": result.gradients.alarms,
            "alarms_before_incident": result.before_incident.alarms,
            "alarms_before_own_alarm": result.before_own_alarm.alarms}
