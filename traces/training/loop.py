"""One training run with its capture: from a scenario and a seed to a trace file."""

from __future__ import annotations

import dataclasses
import logging
import platform
import re
from pathlib import Path

import numpy as np
import opd
import torch
from faults import CLASSES, Injector
from labels import Class, classify
from opd.trace import Trace
from scenario import Scenario, Training
from torch import nn
from workloads import KINDS
from workloads.operators import Float8Cast
from workloads.text import Text
from workloads.workload import half_of

PROGRESS_STEPS = 50


def train(scenario: Scenario, name: str, seed: int, text: Text, file: Path, command: str, report=print) -> tuple[Trace, Class]:
    """Runs the training and writes its trace. Raises ValueError for settings that do not fit, DataError for data that is
    not there, OSError, TraceError.

    Deterministic: one thread, torch's deterministic algorithms, fixed seeds. The caller fixes code paths before torch loads.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    settings = scenario.training
    workload = KINDS[scenario.model].build(scenario.model_settings, settings.precision, settings.batch, text)
    injector = Injector(scenario.fault, workload, seed)
    optimizer = make_optimizer(workload.model, settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.init_loss_scale, growth_interval=settings.loss_scale_growth,
                                  enabled=settings.precision == "FP16")
    draw = torch.Generator().manual_seed(seed)
    elements = {}
    if scenario.raw is not None:
        steps = scenario.raw.steps
        elements = {"raw": scenario.raw.probes, "ring": scenario.raw.ring,
                    "raw_steps": None if steps is None else range(steps[0], steps[1] + 1)}
    if scenario.operands is not None:
        elements |= {"operands": scenario.operands.probes, "operand_ring": scenario.operands.ring}
    logging.getLogger("opd.capture").setLevel(logging.ERROR)
    casts = [module for module in workload.model.modules() if isinstance(module, Float8Cast)]
    left, clipped = settings.after_incident, False
    manifest = origin(scenario, seed, workload.source, command)
    with opd.capture(workload.model, path=file, optimizer=optimizer, probes=scenario.probes or workload.probes, statistics="full",
                     name=name, seed=seed, model_text=workload.text, manifest=manifest, **elements) as capture:
        for step in range(settings.steps):
            lr = settings.learning_rate(step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            batch = injector.begin(step, workload.batch(draw))
            optimizer.zero_grad()
            with torch.autocast("cpu", half_of(settings.precision)):
                loss = workload.loss(batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            grad_norm = nn.utils.clip_grad_norm_(workload.model.parameters(), settings.clip or torch.inf)
            scaler.step(optimizer)
            scaler.update()
            capture.step(loss=loss, grad_norm=grad_norm, lr=lr)
            gave_up = scaler.is_enabled() and scaler.get_scale() < settings.min_loss_scale
            if step % PROGRESS_STEPS == 0 or step == settings.steps - 1 or gave_up:
                report(f"{name}: step {step:4d}  loss {loss.item():6.3f}  gradient norm {grad_norm.item():.3g}  lr {lr:.2e}  "
                       f"loss scale {scaler.get_scale():g}" + (f"  {capture.incident}" if capture.incident else ""))
            if gave_up:
                report(f"{name}: loss scale below {settings.min_loss_scale:g}: the run has diverged and ends")
                break
            clipped = clipped or scenario.incident == "saturation" and any(cast.clipped for cast in casts)
            if capture.incident is not None or clipped:
                left -= 1
                if left < 0:
                    break
    return conclude(scenario, file)


def class_of(trace: Trace, scenario: Scenario) -> Class:
    """What the trace shows, or what follows from the fault of the scenario."""
    found, fault = classify(trace, scenario.incident, scenario.sane_lr), scenario.fault
    if fault is None:
        return found
    # Bad data that does no harm leaves a run what it is: a detector should stay quiet.
    harmless = CLASSES.get(fault.kind) == "data" and found.first_bad_op is None
    return dataclasses.replace(found, name=found.name if harmless else CLASSES.get(fault.kind, found.name),
                               decided=f"{fault.text()}; {found.decided}",
                               event_step=fault.step if fault.kind in CLASSES else None)


def conclude(scenario: Scenario, file: Path) -> tuple[Trace, Class]:
    """Puts the class into the trace. Where no elements are kept it leaves out what the detectors do not read, so that many runs
    fit into a repository."""
    trace = Trace.read(file)
    found = class_of(trace, scenario)
    trace.label = found.name
    trace.manifest["label_reason"] = found.decided
    if scenario.raw is None:
        for member in ("min_abs", "mean", "var", "subnormal", "zero"):
            setattr(trace, member, None)
        if not trace.saturated.any():
            trace.saturated = None  # a count that is missing is 0
    trace.write(file)
    return trace, found


def make_optimizer(model: nn.Module, settings: Training) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(trained, lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay)


def cpu_name() -> str:
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        return platform.processor()


def origin(scenario: Scenario, seed: int, source: dict[str, str], command: str) -> dict:
    """Everything the bytes of a trace depend on."""
    return {
        "command": command, "scenario": scenario.name, "why": scenario.why, "seed": seed, "data": source,
        "settings": {**dataclasses.asdict(scenario.training), **dataclasses.asdict(scenario.model_settings)},
        "fault": None if scenario.fault is None else dataclasses.asdict(scenario.fault),
        **({} if scenario.sane_lr is None else {"sane_lr": scenario.sane_lr}),
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "platform": {"machine": platform.machine(), "cpu": cpu_name(), "threads": 1,
                     "capability": torch.backends.cpu.get_cpu_capability()},
    }
