"""Experiment C: incidents of the corpus made again live, each localised in the step in which it happens (opd.localise)."""

from __future__ import annotations

import math
import time

import torch
from closed_loop.arms import Scaler
from closed_loop.runs import Run
from closed_loop.subject import Subject
from opd.localise import localise, random_states
from torch.utils import _pytree as pytree
from workloads.text import Text

LATEST = 110   # step of an incident: the runs up to it are what takes the time
WINDOW = 25    # steps around that of the corpus in which modules are looked at
FAULTS_OF_THE_MODEL = ("flip-weight", "flip-activation", "constant-rows", "hidden-query")
FAULTS = ("convnet-nan-pixel", "gpt-hidden-query", "gpt-zero-variance", "convnet-lr-jump", "gpt-flip-weight")  # later ones, of other kinds


def incidents(runs: list[Run], every_seed: bool) -> list[Run]:
    """Of all seeds of the corpus, those whose incident is early, and some faults. Without every_seed two of a scenario."""
    taken: dict[str, int] = {}
    found = []
    for run in runs:
        early = run.label in ("gradual", "sudden") and run.incident is not None and run.incident <= LATEST
        if (early or run.scenario.name in FAULTS) and (every_seed or taken.get(run.scenario.name, 0) < (2 if early else 1)):
            taken[run.scenario.name] = taken.get(run.scenario.name, 0) + 1
            found.append(run)
    return found


class FirstBad:
    """The module that hands out the first tensor that is not finite, in a forward pass of its own: what is held against the localisation,
    and shares no code with it."""

    def __init__(self, subject: Subject):
        self._subject = subject
        self._name: str | None = None
        for name, module in subject.model.named_modules():
            module.register_forward_hook(self._look(name or "model"))
        self._is_on = False

    def _look(self, name: str):
        def look(module, arguments, output) -> None:
            if self._is_on and self._name is None and any(
                    isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not bool(leaf.float().isfinite().all())
                    for leaf in pytree.tree_leaves(output)):
                self._name = name
        return look

    def of(self, batch) -> str | None:
        """Buffers and random numbers are as before."""
        buffers = {name: buffer.clone() for name, buffer in self._subject.model.named_buffers()}
        self._name, self._is_on = None, True
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self._subject.loss(batch)
            for name, buffer in self._subject.model.named_buffers():
                buffer.copy_(buffers[name])
        self._is_on = False
        return self._name


def localised(run: Run, text: Text, of_corpus: str | None) -> dict:
    """The row of an incident: the first step, near that of the corpus' run, in which a module's output is not finite; on a CPU other than
    that of the corpus it may be another step. Of a gradient's incident, and where none comes, the step of the corpus.
    of_corpus: first operator of the corpus' run that was not finite, None where none was."""
    arm = Scaler(run, text)
    subject = arm.subject
    first_bad = FirstBad(subject)
    is_fault = run.scenario.fault is not None and run.scenario.fault.kind in FAULTS_OF_THE_MODEL
    expected = None
    for index, batch in subject.batches():
        subject.begin(index)
        if abs(index - run.incident) <= WINDOW or index > run.incident:
            expected = first_bad.of(batch)
            if expected is not None or (index >= run.incident and (is_fault or of_corpus is None or of_corpus.endswith(":grad"))):
                break
        arm.step(index, batch)
        if arm.why is not None:
            break
    states = random_states()
    scale = subject.scaler.get_scale() if subject.scaler.is_enabled() else 1.0
    began, used = time.monotonic(), time.process_time()
    finding = localise(lambda: subject.loss(batch), subject.model, batch=batch, number=index, optimizer=subject.optimizer, loss_scale=scale,
                       states=states)
    seconds, used = time.monotonic() - began, time.process_time() - used
    return {"run": run.name, "scenario": run.scenario.name, "split": run.split, "label": run.label, "step": index, "corpus_step": run.incident,
            "corpus_operator": of_corpus, "expected": expected or (of_corpus if of_corpus and of_corpus.endswith(":grad") else None),
            "kind": finding.kind, "operator": finding.operator, "where": finding.where, "function": finding.function, "substep": finding.substep,
            "direction": finding.direction, "operators": finding.operators, "replays": finding.replays,
            "most_replays": math.ceil(math.log2(max(finding.operators, 2))) + 2, "seconds": round(seconds, 3), "cpu_seconds": round(used, 3),
            "parameters": sum(p.numel() for p in subject.model.parameters())}
