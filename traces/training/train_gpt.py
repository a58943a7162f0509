#!/usr/bin/env python3
"""Trains a small GPT in FP16 on the CPU and captures every operator output into a trace: makes traces/captured/.

    train_gpt.py --run all --out traces/captured       the shipped traces
    train_gpt.py --run healthy --steps 100 --set lr=1e-2 --name mine

Real mixed precision: autocast("cpu", float16), GradScaler("cpu"), AdamW on FP32 parameters. Nothing is injected: what
overflows does so because of the settings in runs.toml. The text is the King James Bible of the Debian package bible-kjv.

Deterministic: one thread, torch's deterministic algorithms, fixed seeds, code paths fixed to AVX2. The same torch and numpy
on the same kind of CPU write the same bytes; on another CPU the last bits of a sum, and from there everything, may differ.
The manifest in the trace names all of it.
"""

from __future__ import annotations

import os

# Read once, when torch loads. Wider vector units would add in another order.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ.setdefault("MKL_CBWR", "AVX2")

import argparse
import dataclasses
import hashlib
import json
import math
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "sw_reference" / "python"))

import numpy as np
import torch
from torch.nn import functional

from capture import Capture, RawWindow
from model import Gpt
from opd.trace import Trace, TraceError

SOURCES = ("train_gpt.py", "model.py", "capture.py")
PASSAGE = "gen1:1-rev22:21"
PACKAGE = "bible-kjv"
PROGRESS_STEPS = 25


class InputError(ValueError):
    """Bad input: exit code 2."""


@dataclass(frozen=True)
class Settings:
    """One run. Defaults are those of a healthy one; runs.toml says where the shipped runs differ."""

    seed: int = 1
    steps: int = 500
    # model
    layers: int = 3
    width: int = 64
    heads: int = 2
    context: int = 32  # tokens
    qk_scale: bool = True  # divide Q K^T by sqrt(width / heads)
    # optimizer
    batch: int = 2  # sequences
    lr: float = 1e-3
    warmup: int = 100  # steps of linear warm-up
    decay: int = 400  # steps of cosine decay after warm-up; 0: constant from there
    final_lr: float = 0.1  # learning rate after the decay, as part of lr
    weight_decay: float = 0.1
    clip: float = 1.0  # gradient norm
    # loss scaling
    init_loss_scale: float = 1024.0
    loss_scale_growth: int = 200  # good steps until the scale doubles
    min_loss_scale: float = 2.0**-14  # below it the run ends: it skips every step
    # steps whose elements are kept: raw_before ahead of the trigger and raw_after from it on
    raw_trigger: int = -1  # step; -1: the first non-finite forward value
    raw_before: int = 8
    raw_after: int = 8

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not math.isfinite(value):
                raise InputError(f"setting {name}: {value} is not finite; give a number")
        positive = ("steps", "layers", "width", "heads", "context", "batch", "loss_scale_growth", "init_loss_scale", "clip")
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"setting {name}: {getattr(self, name)} is not positive; give a larger value")
        for name in ("seed", "warmup", "decay", "raw_before", "raw_after", "lr", "weight_decay", "min_loss_scale"):
            if not getattr(self, name) >= 0:
                raise InputError(f"setting {name}: {getattr(self, name)} is negative; give 0 or more")
        if self.width % self.heads:
            raise InputError(f"setting heads: width {self.width} is not a multiple of {self.heads}; change one of them")

    def changed(self, values: dict[str, object]) -> Settings:
        """A copy with other values, given as text or as the field's own type. Raises InputError."""
        fields = {field.name: field.type for field in dataclasses.fields(self)}
        converted = {}
        for name, value in values.items():
            if name not in fields:
                raise InputError(f"setting {name} is unknown; use one of {', '.join(fields)}")
            try:
                converted[name] = {"int": int, "float": float, "bool": parse_bool}[fields[name]](value)
            except ValueError:
                raise InputError(f"setting {name}: {value!r} is not a value of type {fields[name]}; correct it") from None
        return dataclasses.replace(self, **converted)


def parse_bool(value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError
    return str(value).lower() == "true"


def read_runs() -> dict[str, Settings]:
    tables = tomllib.loads((HERE / "runs.toml").read_text())
    return {name: Settings().changed(table) for name, table in tables.items()}


def read_text(file: str | None) -> tuple[str, dict[str, str]]:
    """The text to train on and where it comes from: `file`, or the package's text without its verse numbers."""
    if file is None:
        try:
            dump = subprocess.run(["bible", "-f", PASSAGE], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            raise InputError(f"program bible: cannot be run; install the Debian package {PACKAGE}, or give --text") from None
        text = re.sub(r"(?m)^\S+ ", "", dump.decode("ascii"))
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", PACKAGE], capture_output=True, text=True).stdout
        source = {"package": PACKAGE, "version": version, "passage": PASSAGE}
    else:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: text: {error}; give a readable UTF-8 file") from None
        source = {"file": Path(file).name}
    return text, {**source, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up, then cosine decay to final_lr and constant from there. Does not depend on the length of the run."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.decay == 0:
        return settings.lr
    part = min(1.0, (step - settings.warmup) / settings.decay)
    return settings.lr * (settings.final_lr + (1.0 - settings.final_lr) * 0.5 * (1.0 + math.cos(math.pi * part)))


def train(name: str, settings: Settings, text: str, manifest: dict, report=print) -> Trace:
    """Runs the training and returns its trace. manifest: what is to be recorded of the run's origin."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(settings.seed)
    batches = torch.Generator().manual_seed(settings.seed)

    characters = sorted(set(text))
    if len(text) <= settings.context + 1 or len(characters) < 2:
        raise InputError(f"text: {len(text)} characters, {len(characters)} different ones; give a longer one")
    index = {character: i for i, character in enumerate(characters)}
    tokens = torch.tensor([index[character] for character in text])
    windows = tokens.unfold(0, settings.context + 1, 1)

    model = Gpt(len(characters), settings.context, settings.layers, settings.width, settings.heads, settings.qk_scale)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=settings.weight_decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.init_loss_scale, growth_interval=settings.loss_scale_growth)
    trigger = None if settings.raw_trigger < 0 else settings.raw_trigger
    capture = Capture(model, RawWindow(settings.raw_before, settings.raw_after, trigger))

    for step in range(settings.steps):
        lr = learning_rate(settings, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = windows[torch.randint(len(windows), (settings.batch,), generator=batches)]
        loss_scale = scaler.get_scale()

        capture.begin(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        scaler.step(optimizer)
        scaler.update()
        statistics = capture.end(loss=loss.item(), grad_norm=grad_norm.item(), lr=lr, loss_scale=loss_scale)

        diverged = scaler.get_scale() < settings.min_loss_scale
        if step % PROGRESS_STEPS == 0 or step == settings.steps - 1 or diverged:
            forward = [p.name for p in capture.probes if p.kind == "activation"]
            largest = max(forward, key=lambda probe: statistics[probe]["max_abs"])
            bad = sum(statistics[probe]["nonfinite"] > 0 for probe in forward)
            report(f"{name}: step {step:4d}  loss {loss.item():6.3f}  lr {lr:.2e}  loss scale {loss_scale:g}  "
                   f"largest {statistics[largest]['max_abs']:g} ({largest})"
                   + (f"  non-finite: {bad} operators" if bad else ""))
        if diverged:
            report(f"{name}: loss scale below {settings.min_loss_scale:g}: the run has diverged and ends")
            break

    parameters = sum(p.numel() for p in model.parameters())
    shape = f"{settings.layers} layers, width {settings.width}, {settings.heads} heads, context {settings.context}"
    return capture.finish(name, model=f"character-level GPT, {shape}, {parameters} parameters",
                          framework=f"torch {torch.__version__}", seed=str(settings.seed), manifest=manifest)


def cpu_name() -> str:
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        return platform.processor()


def origin(command: str, settings: Settings, source: dict[str, str]) -> dict:
    """Everything the bytes of a trace depend on."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()
    return {
        "command": command, "settings": dataclasses.asdict(settings), "text": source, "script_sha256": digest,
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "platform": {"machine": platform.machine(), "cpu": cpu_name(), "threads": 1,
                     "capability": torch.backends.cpu.get_cpu_capability()},
    }


def update_manifest(folder: Path, file: str, trace: Trace) -> None:
    """Enters one trace into MANIFEST.json of its folder; replaces the file as a whole. Raises InputError."""
    path = folder / "MANIFEST.json"
    try:
        entries = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        raise InputError(f"{path}: not valid JSON; correct or remove it, and run again") from None
    data = (folder / file).read_bytes()
    entries[file] = {
        "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "label": trace.label, "steps": len(trace.step),
        "probes": len(trace.probes), "raw_steps": [int(trace.raw_step[0]), int(trace.raw_step[-1])] if trace.raw else [],
        **trace.manifest,
    }
    temporary = folder / f"MANIFEST.json.{os.getpid()}"
    temporary.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
    temporary.replace(path)


def parse_arguments(arguments: list[str] | None, runs: dict[str, Settings]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, choices=[*runs, "all"], help="settings to start from (runs.toml)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for NAME.safetensors and MANIFEST.json")
    parser.add_argument("--steps", type=int, help="steps, instead of those of the run")
    parser.add_argument("--seed", type=int, help="seed of weights and batches, instead of that of the run")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="another setting; may be repeated")
    parser.add_argument("--name", help="name of the trace; default: the run's")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text to train on, instead of the package's")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    try:
        runs = read_runs()
        options = parse_arguments(arguments, runs)
        if options.run == "all" and options.name:
            raise InputError("--name: every run of --run all has its own; give one run")
        if options.name and not re.fullmatch(r"[A-Za-z0-9_.-]+", options.name):
            raise InputError(f"--name: {options.name!r} is not a short name; use letters, digits, '_', '.' and '-' only")
        changes = {}
        for setting in options.set:
            key, separator, value = setting.partition("=")
            if not separator:
                raise InputError(f"--set {setting}: no '='; give SETTING=VALUE")
            changes[key] = value
        changes |= {key: getattr(options, key) for key in ("steps", "seed") if getattr(options, key) is not None}
        folder = Path(options.out)
        try:  # before the work, not after it
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise InputError(f"{folder}: --out: {error.strerror}; give a folder that can be written to") from None
        text, source = read_text(options.text)

        for run in runs if options.run == "all" else [options.run]:
            settings = runs[run].changed(changes)
            name = options.name or run
            command = " ".join(["train_gpt.py --run", run, *(f"--set {key}={value}" for key, value in changes.items()),
                                *([f"--name {name}"] if options.name else []), *(["--text FILE"] if options.text else [])])
            trace = train(name, settings, text, origin(command, settings, source), report=lambda line: print(line, flush=True))
            file = f"{name}.safetensors"
            trace.write(folder / file)
            update_manifest(folder, file, trace)
            print(f"{folder / file}: {trace.label}: {trace.manifest['label_reason']}", flush=True)
    except (InputError, TraceError) as error:
        print(f"train_gpt: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"train_gpt: {error.filename}: {error.strerror}; check the folder and the free space", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_gpt: interrupted, nothing written for this run", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
