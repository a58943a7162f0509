"""`opd calibrate TRACE|FOLDER...`: register settings for a wanted false-alarm rate.

Writes a device configuration file (docs/formats.md) and prints what it proposes and how sure that is. Exit status 0; 3 when
the rate cannot be promised (the file is written all the same, and says so); 2 for bad input: then nothing is written.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from opd.arguments import Parser
from opd.calibrate.calibration import calibrate
from opd.calibrate.evidence import Subject
from opd.calibrate.tables import text
from opd.device_config import ConfigFileError
from opd.evaluate.corpus import LABELS_FILE, SPLITS, CorpusError, Run, Runs, find_traces
from opd.reference import ReferenceMissing
from opd.registers import PROFILES
from opd.texts import printable
from opd.trace import KINDS, TraceError

NOT_PROMISED = 3


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(prog="opd calibrate", description="Propose register settings from healthy runs for a "
                    "wanted rate of false alarms (docs/calibration.md).")
    parser.add_argument("paths", nargs="+", metavar="TRACE|FOLDER",
                        help="healthy runs, and near-limit ones, which are reported apart; of a folder those of its "
                             "*.safetensors that are labelled so")
    parser.add_argument("--false-alarms", type=float, default=0.05, metavar="RATE",
                        help="wanted rate per 1000 probe-steps, warm-up included (default 0.05)")
    parser.add_argument("--profile", choices=list(PROFILES), default="forecast",
                        help="engine that decides in the file (default forecast); both are calibrated")
    parser.add_argument("--kind", action="append", choices=KINDS,
                        help="count alarms of operators of this kind only; may be repeated (default: all)")
    parser.add_argument("--labels", metavar="FILE", help=f"labels of the traces (default: {LABELS_FILE} beside each)")
    parser.add_argument("--split", choices=SPLITS, help="only runs of this split")
    parser.add_argument("--assume-healthy", action="store_true", help="take every trace as healthy, whatever its label says")
    parser.add_argument("--explore", action="store_true",
                        help="also propose settings more sensitive than the reset values, where healthy runs allow them")
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap over runs (default 1)")
    parser.add_argument("--out", default="out/device.json", metavar="FILE",
                        help="device configuration file to write (default: out/device.json)")
    arguments = parser.parse_args(argv)
    try:
        if not 0 < arguments.false_alarms < 1000 or math.isnan(arguments.false_alarms):
            raise CorpusError("--false-alarms", "rate", f"{arguments.false_alarms:g} is not between 0 and 1000",
                              "give alarms per 1000 probe-steps")
        if arguments.seed < 0:
            raise CorpusError("--seed", "seed", f"{arguments.seed} is negative", "give 0 or more")
        out = Path(arguments.out)
        healthy, near_limit, others = chosen_runs(arguments.paths, arguments.labels, arguments.split,
                                                  arguments.assume_healthy)
        subjects = [[_subject(run, arguments.kind) for run in runs] for runs in (healthy, near_limit)]
        config = calibrate(*subjects, arguments.false_alarms, arguments.profile, arguments.seed, arguments.kind,
                           arguments.explore)
        _make_folder(out.parent)
        config.write(out)
    except (CorpusError, TraceError, ReferenceMissing, ConfigFileError) as error:
        print(f"opd calibrate: {error}", file=sys.stderr)
        return 2
    print(printable(text(config, others)))
    print(f"\n{out}")
    return 0 if config.calibration["promised"] else NOT_PROMISED


def chosen_runs(paths: Sequence[str], labels_file: str | None, split: str | None,
                assume_healthy: bool) -> tuple[list[Run], list[Run], int]:
    """Healthy runs, near-limit runs, and how many others were left out. Raises CorpusError, TraceError."""
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    healthy, near_limit = [], []
    found = Runs(find_traces(paths), labels_file)
    for run in found.read(split):
        if assume_healthy or run.label.kind == "healthy":
            healthy.append(run)
        elif run.label.kind == "near-limit":
            near_limit.append(run)
        elif run.file.parent not in folders:
            raise CorpusError(run.file, "label", f"{run.label.kind} is not healthy or near-limit",
                              "leave the trace out, or insist with --assume-healthy")
    if not healthy:
        raise CorpusError(paths[0], "label", "no trace is labelled healthy" + (f" in the split {split}" if split else ""),
                          "give healthy runs, or insist with --assume-healthy")
    return healthy, near_limit, len(found.names) - len(healthy) - len(near_limit)


def _subject(run: Run, kinds: Sequence[str] | None) -> Subject:
    subject = Subject.of(run, kinds)
    if not subject.judged.any():
        wrong = "has no sample before a non-finite value" + (" of the kinds asked for" if kinds else "")
        raise CorpusError(run.file, "probes", wrong, "leave the trace out" + (", or ask for another --kind" if kinds else ""))
    return subject


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigFileError(folder, "file", f"cannot be made a folder ({error.strerror})", "choose another --out") from None
