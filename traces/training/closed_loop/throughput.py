"""Experiment B: what the modes cost a whole training step in PyTorch, on one model; SAFE for one operator, for all, STABLE for all."""

from __future__ import annotations

import dataclasses
import statistics
import time

import numpy as np
import opd
import torch
from opd.guard.device import factory
from opd.registers import Mode
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, VOCABULARY, CONTEXT, BATCH = 512, 6, 8, 4096, 64, 1
CULPRIT = "block.2.attn"          # its logits: Q K^T
FAST, STABLE_ALL, SAFE_CULPRIT, SAFE_LINEAR, SAFE_ALL = "FAST", "STABLE for all", "SAFE for the culprit", "SAFE for one linear layer", "SAFE for all"
LINEAR = "block.2.up"
PLAIN = "without a guard"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, time_, _ = x.shape
        query, key, value = self.qkv(x).view(batch, time_, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        logits = (query * (WIDTH // HEADS) ** -0.5) @ key.transpose(-1, -2)
        hidden = torch.ones(time_, time_, dtype=torch.bool).triu(1)
        weights = functional.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1)
        return self.out((weights.to(value.dtype) @ value).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.activation, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Model(nn.Module):
    """A decoder: [B, T] tokens -> [B, T, vocabulary]."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, index):
        x = self.token(index) + self.position.weight
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x))


class Pinned:
    """A device whose modes are what `modes` says, whatever it sees."""

    def __init__(self, places: int):
        self._own = factory("cpu", None)(places)
        self.modes = np.zeros(places, np.uint8)

    def step(self, *completions):
        return dataclasses.replace(self._own.step(*completions), modes=self.modes.copy())

    def __getattr__(self, name):
        return getattr(self._own, name)


class Bench:
    """One model in training, a guard on it, and the modes that a policy asks for."""

    def __init__(self, half: bool):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = Model()
        self._half = half
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=half)
        self._devices: list[Pinned] = []
        self._batch = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))

    def _loss(self):
        with torch.autocast("cpu", torch.float16, enabled=self._half):
            logits = self.model(self._batch[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), self._batch[:, 1:].flatten())

    def _plain_step(self) -> None:
        self._optimizer.zero_grad()
        self._scaler.scale(self._loss()).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _device(self, places: int) -> Pinned:
        self._devices.append(Pinned(places))
        return self._devices[-1]

    def seconds(self, policy: str, steps: int) -> list[float]:
        """CPU seconds of each of some steps under a policy, after one that is not counted."""
        if policy == PLAIN:
            return self._timed(self._plain_step, steps)
        with opd.guard(self.model, self._optimizer, scaler=self._scaler, device=self._device, probes="output,logits", ring=0) as guard:
            def step() -> None:
                self._optimizer.zero_grad()
                guard.step(self._loss())

            step()  # the operators are known from here on
            for operator in guard.operators():
                self._devices[-1].modes[operator.op] = self._mode(policy, operator)
            step()  # the device answers with them
            if policy != FAST and not guard.modes():
                raise RuntimeError(f"{policy}: no operator is in another mode; the names of the model have changed")
            return self._timed(step, steps)

    @staticmethod
    def _mode(policy: str, operator) -> Mode:
        if policy == SAFE_CULPRIT:
            return Mode.SAFE if operator.module == CULPRIT and operator.part == "logits" else Mode.FAST
        if policy == SAFE_LINEAR:
            return Mode.SAFE if operator.module == LINEAR else Mode.FAST
        return {FAST: Mode.FAST, STABLE_ALL: Mode.STABLE, SAFE_ALL: Mode.SAFE}[policy]

    @staticmethod
    def _timed(step, steps: int) -> list[float]:
        step()
        found = []
        for _ in range(steps):
            began = time.process_time()
            step()
            found.append(time.process_time() - began)
        return found


def measure(rounds: int, steps: int, report) -> dict:
    """CPU time of a step under each policy, of FP16 autocast and of FP32; each round begins with another policy. What a policy loses is
    the median over the rounds of what it loses against FAST in the same round. rounds: 2 at least."""
    found = {}
    for precision, half in (("FP16", True), ("FP32", False)):
        bench = Bench(half)
        policies = [PLAIN, FAST, SAFE_CULPRIT, SAFE_LINEAR, STABLE_ALL, SAFE_ALL]
        times: dict[str, list[float]] = {policy: [] for policy in policies}
        for round_ in range(rounds):
            first = round_ % len(policies)
            for policy in policies[first:] + policies[:first]:
                times[policy].append(statistics.median(bench.seconds(policy, steps)))
            report(f"throughput, {precision}, round {round_ + 1} of {rounds}: " + ", ".join(
                f"{policy} {1e3 * statistics.median(values):.0f} ms" for policy, values in times.items()))
        lost = {policy: [100 * (1 - fast / own) for fast, own in zip(times[FAST], times[policy])] for policy in policies}
        found[precision] = {policy: {"ms": round(1e3 * statistics.median(times[policy]), 2), "rounds": rounds,
                                     "throughput_lost_percent": round(statistics.median(lost[policy]), 2),
                                     "quartiles_percent": [round(q, 2) for q in statistics.quantiles(lost[policy], n=4)[::2]]} for policy in policies}
    found["parameters"] = sum(p.numel() for p in bench.model.parameters())
    return found
