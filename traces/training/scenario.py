"""Scenarios: what a run trains, with which settings, and what is done to it. One table of a TOML file each (scenarios/).

    [gpt-qk-overflow]
    why = "no 1/sqrt(d) on Q K^T and a learning rate 60 times the healthy one"
    model = "gpt"                    # workloads/
    expect = "gradual"               # class that the runs must turn out to have
    tuning = [1]                     # seeds of the runs, by split
    held-out = [2]
    turned_out = { 2 = "near-limit" }  # class of a seed that turned out otherwise; it is kept all the same
    lr = 6e-2                        # settings of the training (class Training) or of the model (its class Settings)
    qk_scale = false
    fault = { kind = "repeat-token", step = 200 }  # faults.py
    probes = ["output", "norm"]      # expressions of opd.capture, instead of those of the kind of model
    operands = { probes = ["*.qk"], ring = 12 }  # class Operands; raw = { ... }: class Raw
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path

from faults import Fault
from labels import INCIDENTS
from opd.evaluate.corpus import SPLITS
from opd.trace import LABELS
from workloads import KINDS


class InputError(ValueError):
    """Bad input: exit code 2."""


@dataclass(frozen=True)
class Training:
    """Settings of a training that do not depend on the model. Defaults are those of a healthy GPT."""
    steps: int = 500
    batch: int = 2                    # sequences, images
    precision: str = "FP16"           # FP16 with a loss scale, or BF16 without
    optimizer: str = "adamw"          # adamw, sgd (momentum 0.9)
    lr: float = 1e-3
    warmup: int = 100                 # steps of linear warm-up; 0: none
    decay: int = 400                  # steps of cosine decay after warm-up; 0: constant from there
    final_lr: float = 0.1             # learning rate after the decay, as part of lr
    lr_jump_step: int = 0             # from this step on ...
    lr_jump: float = 1.0              # ... the learning rate is multiplied by this
    weight_decay: float = 0.1
    clip: float = 1.0                 # gradient norm; 0: no clipping
    init_loss_scale: float = 1024.0
    loss_scale_growth: int = 200      # good steps until the scale doubles
    min_loss_scale: float = 2.0**-14  # below it the run ends: it skips every step
    after_incident: int = 24          # steps that follow the first non-finite forward value; then the run ends

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"setting {name}: {value} is not finite; give a number")
        for name in ("steps", "batch", "loss_scale_growth", "init_loss_scale", "lr_jump"):
            if not getattr(self, name) > 0:
                raise InputError(f"setting {name}: {getattr(self, name)} is not positive; give a larger value")
        for name in ("warmup", "decay", "lr", "weight_decay", "min_loss_scale", "clip", "lr_jump_step", "after_incident"):
            if not getattr(self, name) >= 0:
                raise InputError(f"setting {name}: {getattr(self, name)} is negative; give 0 or more")
        if self.init_loss_scale > 2.0**127:
            raise InputError(f"setting init_loss_scale: {self.init_loss_scale} is above 2^127; give a smaller value")
        for name, values in (("precision", ("FP16", "BF16")), ("optimizer", ("adamw", "sgd"))):
            if getattr(self, name) not in values:
                raise InputError(f"setting {name}: {getattr(self, name)!r} is unknown; use {' or '.join(values)}")

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, cosine decay to final_lr, constant from there; then the jump. Does not depend on `steps`."""
        jump = self.lr_jump if self.lr_jump_step and step >= self.lr_jump_step else 1.0
        if step < self.warmup:
            return jump * self.lr * (step + 1) / self.warmup
        if self.decay == 0:
            return jump * self.lr
        part = min(1.0, (step - self.warmup) / self.decay)
        return jump * self.lr * (self.final_lr + (1.0 - self.final_lr) * 0.5 * (1.0 + math.cos(math.pi * part)))


@dataclass(frozen=True)
class Raw:
    """Elements that are kept beside the statistics: of the probes `probes` (patterns), in `steps` = [first, last], or without
    it in the `ring` steps up to the first non-finite forward value."""
    probes: tuple[str, ...]
    steps: tuple[int, int] | None = None
    ring: int = 20

    def __post_init__(self):
        if not isinstance(self.probes, tuple) or not all(isinstance(pattern, str) for pattern in self.probes):
            raise InputError("raw.probes: is no list of patterns; give texts")
        if self.steps is not None and (not isinstance(self.steps, tuple) or [type(step) for step in self.steps] != [int, int]):
            raise InputError("raw.steps: is no pair of whole numbers; give [first, last]")
        if self.steps is not None and self.steps[0] > self.steps[1]:
            raise InputError(f"raw.steps: {list(self.steps)} ends before it begins; give [first, last]")


@dataclass(frozen=True)
class Operands:
    """Operators whose inputs are kept: those of the probes `probes` (patterns), in the `ring` steps up to the first incident."""
    probes: tuple[str, ...]
    ring: int = 8

    def __post_init__(self):
        if not isinstance(self.probes, tuple) or not all(isinstance(pattern, str) for pattern in self.probes):
            raise InputError("operands.probes: is no list of patterns; give texts")
        if not self.ring > 0:
            raise InputError(f"operands.ring: {self.ring} is not positive; give a number of steps")


@dataclass(frozen=True)
class Scenario:
    """One table of the file. `model_settings` is of the model's own class."""
    name: str
    why: str
    model: str
    expect: str
    seeds: dict[str, tuple[int, ...]]  # by split
    seed_in_name: bool                 # of the runs; the only run of a scenario has the scenario's name
    training: Training
    model_settings: typing.Any
    turned_out: dict[int, str] = dataclasses.field(default_factory=dict)  # class of seeds that are not as `expect` says
    incident: str = "forward"          # which values count as incident, one of INCIDENTS: labels.py
    sane_lr: float | None = None       # of a run that is put under stress: learning rate of a sane one
    fault: Fault | None = None
    raw: Raw | None = None
    operands: Operands | None = None
    probes: tuple[str, ...] | None = None  # expressions of opd.capture; None: those of the kind of model

    def __post_init__(self):
        for seed in (seed for seeds in self.seeds.values() for seed in seeds):
            if type(seed) is not int or not 0 <= seed < 2**63:
                raise InputError(f"seed {seed!r} is no whole number from 0 to 2^63 - 1; give one")

    @property
    def runs(self) -> list[tuple[str, str, int]]:
        """Name of the run, split, seed."""
        return [(f"{self.name}-{seed}" if self.seed_in_name else self.name, split, seed)
                for split in SPLITS for seed in self.seeds.get(split, ())]

    def expected(self, seed: int) -> str:
        """Class of the run of a seed."""
        return self.turned_out.get(seed, self.expect)

    def with_seeds(self, seeds: tuple[int, ...]) -> Scenario:
        """The scenario with runs of these seeds, all different. Runs that it has already keep name and split; further ones are
        for tuning."""
        own = {seed for split in SPLITS for seed in self.seeds.get(split, ())}
        held_out = self.seeds.get("held-out", ())
        split = {"tuning": tuple(seed for seed in seeds if seed not in held_out),
                 "held-out": tuple(seed for seed in seeds if seed in held_out)}
        return dataclasses.replace(self, seeds=split, seed_in_name=self.seed_in_name or own != set(seeds))

    def changed(self, values: dict[str, str]) -> Scenario:
        """A copy with other settings, given as text. Raises InputError."""
        typed = {}
        for name, text in values.items():
            kind = _setting_types(self.model).get(name)
            if kind is None:
                raise InputError(f"setting {name} is unknown; use one of {', '.join(_setting_types(self.model))}")
            typed[name] = _from_text(name, text, kind)
        return dataclasses.replace(self, training=_replace(self.training, typed),
                                   model_settings=_replace(self.model_settings, typed))


def read_scenarios(path: Path) -> dict[str, Scenario]:
    """The scenarios of a file, or of all *.toml of a folder, by name. Raises InputError."""
    scenarios = {}
    for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
        for name, scenario in _read_file(file).items():
            if name in scenarios:
                raise InputError(f"{file}: {name}: is the name of a scenario of another file too; give it a name of its own")
            scenarios[name] = scenario
    if not scenarios:
        raise InputError(f"{path}: holds no scenario; name a file or a folder with *.toml")
    names = [run for scenario in scenarios.values() for run, _, _ in scenario.runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: the run {name} stands there twice; give each seed once")
    return scenarios


def _read_file(file: Path) -> dict[str, Scenario]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check its name") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file}: is not TOML ({error}); correct it") from None
    scenarios = {}
    for name, table in tables.items():
        try:
            scenarios[name] = _scenario(name, table)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{file}: {name}: {error}") from None
    return scenarios


def _scenario(name: str, table) -> Scenario:
    if not isinstance(table, dict):
        raise InputError("is not a table; write [NAME] and its settings")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name == "all":
        raise InputError("is no name for a run; use letters, digits, '_', '.' and '-' only, and not all")
    table = dict(table)
    for key in ("why", "model", "expect"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise InputError(f"{key} is missing or no text; every scenario has one")
    model = table.pop("model")
    if model not in KINDS:
        raise InputError(f"model: {model!r} is unknown; use one of {', '.join(KINDS)}")
    fixed = {"name": name, "model": model, "why": table.pop("why"), "expect": table.pop("expect")}
    if fixed["expect"] not in LABELS:
        raise InputError(f"expect: {fixed['expect']!r} is no class; use one of {', '.join(LABELS)}")
    seeds = {split: table.pop(split, []) for split in SPLITS}
    for split, values in seeds.items():
        if not isinstance(values, list):
            raise InputError(f"{split}: {values!r} is no list of seeds; give [SEED, ...]")
    seeds = {split: tuple(values) for split, values in seeds.items()}
    turned_out = _turned_out(table.pop("turned_out", {}), {str(seed): seed for values in seeds.values() for seed in values})
    incident = table.pop("incident", INCIDENTS[0])
    if incident not in INCIDENTS:
        raise InputError(f"incident: {incident!r} is unknown; use one of {', '.join(INCIDENTS)}")
    sane_lr = table.pop("sane_lr", None)
    if sane_lr is not None and not (type(sane_lr) is float and 0 < sane_lr < math.inf):
        raise InputError(f"sane_lr: {sane_lr!r} is no learning rate above 0; give that of a sane run, as 1e-3")
    if (fixed["expect"] == "stressed") != (sane_lr is not None):
        raise InputError("sane_lr: belongs to the runs that expect \"stressed\", and to all of them; add or remove it")
    fault, raw, operands = (table.pop(key, None) for key in ("fault", "raw", "operands"))
    probes = table.pop("probes", None)
    if probes is not None and not (isinstance(probes, list) and probes and all(isinstance(text, str) for text in probes)):
        raise InputError("probes: is no list of expressions; give texts")
    types = _setting_types(model)
    for key, value in table.items():
        if key not in types:
            raise InputError(f"setting {key} is unknown; use one of {', '.join(types)}")
        if types[key] is float and type(value) is int:
            table[key] = float(value)
        elif type(value) is not types[key]:
            raise InputError(f"setting {key}: {value!r} is not a value of type {types[key].__name__}; correct it")
    return Scenario(**fixed, seeds=seeds, seed_in_name=sum(map(len, seeds.values())) > 1, turned_out=turned_out,
                    incident=incident, sane_lr=sane_lr,
                    training=_replace(Training(), table), model_settings=_replace(KINDS[model].settings(), table),
                    fault=None if fault is None else _table(Fault, "fault", fault),
                    raw=None if raw is None else _table(Raw, "raw", raw),
                    operands=None if operands is None else _table(Operands, "operands", operands),
                    probes=None if probes is None else tuple(probes))


def _turned_out(classes, seeds: dict[str, int]) -> dict[int, str]:
    """Classes by seed. seeds: those of the scenario, by their text."""
    if not isinstance(classes, dict):
        raise InputError(f"turned_out: {classes!r} is not a table; write {{ SEED = \"CLASS\", ... }}")
    for seed, name in classes.items():
        if seed not in seeds:
            raise InputError(f"turned_out: {seed} is no seed of this scenario; use one of {', '.join(seeds)}")
        if name not in LABELS:
            raise InputError(f"turned_out: {name!r} is no class; use one of {', '.join(LABELS)}")
    return {seeds[seed]: name for seed, name in classes.items()}


def _table(kind: type, key: str, values):
    if not isinstance(values, dict):
        raise InputError(f"{key}: {values!r} is not a table; write {{ NAME = VALUE, ... }}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    known = [entry.name for entry in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise InputError(f"{key}.{name} is unknown; use one of {', '.join(known)}")
    for name, wanted in typing.get_type_hints(kind).items():
        if wanted is float and type(values.get(name)) is int:
            values[name] = float(values[name])
        elif wanted in (int, float, str) and name in values and type(values[name]) is not wanted:
            raise InputError(f"{key}.{name}: {values[name]!r} is not a value of type {wanted.__name__}; correct it")
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{key}: {error}; give what is missing") from None


def _replace(settings, values: dict):
    names = {entry.name for entry in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{name: value for name, value in values.items() if name in names})


def _setting_types(model: str) -> dict[str, type]:
    return {**typing.get_type_hints(Training), **typing.get_type_hints(KINDS[model].settings)}


def _from_text(name: str, text: str, kind: type):
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise InputError(f"setting {name}: {text!r} is not a value of type {kind.__name__}; correct it") from None
