"""Which runs are made: the seeds of the corpus whose runs overflow, and five at ordinary settings."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from faults import CLASSES
from scenario import InputError, Scenario, read_scenarios

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent
TRACES = TRAINING.parent
OVERFLOWING = ("gradual", "sudden", "saturating", "injected", "data")
AFTER = 60          # batches behind the incident of the run as the corpus has it; then every arm ends
ORDINARY_STEPS = 120
ORDINARY = ("gpt-healthy", "convnet-healthy", "recurrent-lstm-healthy", "t5-healthy", "vit-healthy")
EXTRA = {"captured.toml": ("qk_overflow",)}  # scenarios outside of scenarios/ that belong to the corpus
CI = (("recurrent-relu-no-warmup", 1), ("moe-e4m3-high-lr", 1))  # scenario, seed: small, short, of two kinds


@dataclass(frozen=True)
class Run:
    """One run of a scenario. incident: step of the corpus' run in which it, or its fault, happens; None at ordinary settings;
    batches: that every arm is given."""
    name: str
    scenario: Scenario
    split: str
    seed: int
    label: str
    incident: int | None
    batches: int

    @property
    def is_ordinary(self) -> bool:
        return self.incident is None


def _labels() -> dict[str, dict]:
    """labels.toml of the corpus, by run. Raises InputError."""
    labels = {}
    for folder in ("captured", "corpus"):
        file = TRACES / folder / "labels.toml"
        try:
            labels |= tomllib.loads(file.read_text(encoding="utf-8"))["runs"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{file}: runs: cannot be read ({error}); restore it from the repository") from None
    return labels


def first_bad_operators() -> dict[str, str | None]:
    """Run of the corpus -> its first operator that was not finite. Raises InputError."""
    return {name: label.get("first_bad_op") for name, label in _labels().items()}


def all_runs() -> list[Run]:
    """Every run of the corpus that overflows or that a fault is put into, and the ordinary ones, first of a scenario first.
    Raises InputError."""
    labels = _labels()
    scenarios = read_scenarios(TRAINING / "scenarios")
    for file, names in EXTRA.items():
        scenarios |= {name: scenario for name, scenario in read_scenarios(TRAINING / file).items() if name in names}
    found = []
    for scenario in scenarios.values():
        for name, split, seed in scenario.runs:
            label = labels[name]
            incident = label.get("event_step", label.get("first_bad_step"))
            if incident is not None and (label["class"] in OVERFLOWING or scenario.fault is not None and scenario.fault.kind in CLASSES):
                found.append(Run(name, scenario, split, seed, label["class"], incident, incident + AFTER))
            elif scenario.name in ORDINARY and seed == scenario.runs[0][2]:
                found.append(Run(name, scenario, split, seed, label["class"], None, min(scenario.training.steps, ORDINARY_STEPS)))
    return found


def chosen(slice_: str, splits: tuple[str, ...], every_seed: bool) -> list[Run]:
    """slice_: "ci" or "all". Without every_seed the first seed of each scenario and split."""
    runs = [run for run in all_runs() if run.split in splits]
    if slice_ == "ci":
        return [run for run in runs if (run.scenario.name, run.seed) in CI]
    if every_seed:
        return runs
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        first.setdefault((run.scenario.name, run.split), run)
    return list(first.values())
