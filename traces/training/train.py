#!/usr/bin/env python3
"""Trains small models and writes a trace of each run: the corpus of labelled runs, or your own variants.

    train.py --scenario all --out traces/corpus                                  the corpus
    train.py --file captured.toml --scenario all --out traces/captured           the runs with raw elements
    train.py --scenario gpt-healthy --seed 7 --steps 100 --set lr=1e-2 --out out

Real mixed precision: autocast("cpu") in FP16 with a GradScaler, or in BF16; optimizers on FP32 parameters. What overflows does
so because of the settings in scenarios/, or because of the fault that stands there. A run whose class is not the one that its
scenario expects is written all the same, and the exit status is 1.

Deterministic: one thread, torch's deterministic algorithms, fixed seeds, code paths fixed to AVX2. The same torch and numpy
on the same kind of CPU write the same bytes; on another CPU the last bits of a sum, and from there everything, may differ.
"""

from __future__ import annotations

import os

# Read once, when torch loads. Wider vector units would add in another order.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ.setdefault("MKL_CBWR", "AVX2")

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "sw_reference" / "python")]

from corpus import check, record
from loop import train
from opd.arguments import Parser
from opd.capture.errors import CaptureError
from scenario import InputError, Scenario, read_scenarios
from workloads.text import read_text

SCENARIOS = HERE / "scenarios"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", action="append", required=True, metavar="NAME",
                        help="a table of the file, or all; may be repeated")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the traces, MANIFEST.json and labels.toml")
    parser.add_argument("--file", default=SCENARIOS, type=Path, metavar="FILE|FOLDER",
                        help="scenarios, a file or all *.toml of a folder (default: those of the corpus)")
    parser.add_argument("--seed", type=int, action="append", help="seed instead of those of the scenario; may be repeated")
    parser.add_argument("--steps", type=int, help="steps, instead of those of the scenario")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="another setting; may be repeated")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text to train on, instead of the package's")
    parser.add_argument("--quiet", action="store_true", help="one line a run")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """The scenarios asked for, with the changes asked for. Raises InputError."""
    known = read_scenarios(options.file)
    for name in options.scenario:
        if name not in (*known, "all"):
            raise InputError(f"--scenario: {name} is unknown; use all, or one of {', '.join(known)}")
    names = list(known) if "all" in options.scenario else options.scenario
    changes = {}
    for setting in options.set:
        key, separator, value = setting.partition("=")
        if not separator:
            raise InputError(f"--set {setting}: no '='; give SETTING=VALUE")
        changes[key] = value
    if options.steps is not None:
        changes["steps"] = str(options.steps)
    scenarios = []
    for name in names:
        scenario = known[name].changed(changes)
        if options.seed:
            scenario = scenario.with_seeds(tuple(options.seed))
        if not scenario.runs:
            raise InputError(f"--scenario: {name} has no seed; give --seed, or seeds in its table")
        scenarios.append(scenario)
    return scenarios


def main(arguments: list[str] | None = None) -> int:
    unexpected = 0
    try:
        options = parse_arguments(arguments)
        scenarios = chosen(options)
        folder = Path(options.out)
        try:  # before the work, not after it
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise InputError(f"{folder}: --out: {error.strerror}; give a folder that can be written to") from None
        check(folder)
        text = read_text(options.text)
        changes = "".join(f" --set {setting}" for setting in options.set)
        changes += f" --steps {options.steps}" if options.steps else ""
        for scenario in scenarios:
            for name, split, seed in scenario.runs:
                command = f"train.py --scenario {scenario.name} --seed {seed}{changes}{' --text FILE' if options.text else ''}"
                report = (lambda line: None) if options.quiet else (lambda line: print(line, flush=True))
                file = folder / f"{name}.safetensors"
                trace, found = train(scenario, name, seed, text, file, command, report)
                record(folder, file.name, trace, found, split)
                as_expected = found.name == scenario.expected(seed)
                unexpected += not as_expected
                remark = "" if as_expected else f", not {scenario.expected(seed)} as expected"
                print(f"{file}: {found.name}{remark}: {found.decided}", flush=True)
    except (CaptureError, ValueError) as error:  # InputError, DataError and TraceError are ValueErrors
        print(f"train: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"train: {error.filename or options.out}: {error.strerror}; check the folder and the free space", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train: interrupted; a run that was not finished left its steps in a .journal: opd capture --recover",
              file=sys.stderr)
        return 130
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
