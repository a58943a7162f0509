"""opd.guard on small training runs: what it changes of a healthy one (nothing), what it saves, and what it does when it fails itself.

Testplan: GRD-02.
"""
from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.capture.attention import logits_bound  # noqa: E402
from opd.capture.errors import CaptureError  # noqa: E402
from opd.device import Device, Hints  # noqa: E402
from opd.evaluate.reference import statistics  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.guard import GuardError, ring  # noqa: E402
from opd.registers import Mode  # noqa: E402
from opd.trace import Trace  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import _get_current_function_mode_stack  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

torch.set_num_threads(1)
PRECISIONS = {"FP32": None, "FP16": torch.float16, "BF16": torch.bfloat16}


class Attention(nn.Module):
    """gain: of the queries and keys, with no scaling of their product."""

    def __init__(self, width: int, gain: float = 1.0, fused: bool = False):
        super().__init__()
        self.gain, self.fused = gain, fused
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.q(x) * self.gain, self.k(x) * self.gain, self.v(x)
        if self.fused:
            return functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return (q @ k.transpose(-1, -2)).softmax(-1).to(v.dtype) @ self.drop(v)


class Squares(nn.Module):
    def forward(self, x):
        return x.square().sum(-1, keepdim=True)


class SquareNorm(nn.Module):
    """An RMS norm whose squares stay in FP16 under autocast, as in many that were written by hand."""

    def __init__(self, width: int):
        super().__init__()
        self.gain, self.squares = nn.Parameter(torch.ones(width)), Squares()
        self.last = None

    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        self.last = x * torch.rsqrt(self.squares(x) / x.shape[-1] + 1e-5).to(x.dtype)
        return self.last * self.gain.to(x.dtype)


class Model(nn.Module):
    def __init__(self, width: int = 16, gain: float = 1.0, fused: bool = False, norm: type[nn.Module] = nn.LayerNorm,
                 boost: float = 1.0, checkpointed: bool | None = None, batch_norm: bool = False):
        super().__init__()
        self.embedding = nn.Linear(8, width)
        self.attn = Attention(width, gain, fused)
        self.norm = norm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.BatchNorm1d(5) if batch_norm else nn.Identity(), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 1)
        self.boost, self.checkpointed = boost, checkpointed

    def block(self, x):
        x = x + self.attn(x)
        return x + self.mlp(self.norm(x * self.boost))

    def forward(self, x):
        x = self.embedding(x)
        x = self.block(x) if self.checkpointed is None else checkpoint(self.block, x, use_reentrant=self.checkpointed)
        return self.head(x).mean(1)


def data(batches: int = 24, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(4, 5, 8, generator=generator) for _ in range(batches)]
    return [(x, x[..., :2].sum((1, 2))[:, None] * 0.3) for x in made]


class Run:
    """A training run, with a guard (options) or without (None). plant: called with the model and the number of the batch."""

    def __init__(self, precision: str, options: dict | None, batches=None, plant=None, accumulate: int = 1, lr: float = 3e-3,
                 growth: int = 7, **model):
        torch.manual_seed(0)
        self.model = Model(**model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr)
        self.dtype = PRECISIONS[precision]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=growth) if precision == "FP16" else None
        self.losses, self.seen = [], []
        batches = data() if batches is None else batches
        torch.manual_seed(7)
        if options is None:
            self._plain(batches, accumulate, plant)
            return
        with opd.guard(self.model, self.optimizer, scaler=self.scaler, **options) as g:
            self.guard = g
            for i, batch in enumerate(g.batches(batches)):
                if plant is not None:
                    plant(self.model, i)
                loss = self._loss(batch) / accumulate
                self.seen.append(batch[0])
                if (i + 1) % accumulate:
                    g.backward(loss)
                elif g.step(loss):
                    self.losses.append(float(loss.detach()))
                    self.optimizer.zero_grad()
                else:
                    self.losses.append(None)
                    self.optimizer.zero_grad()
            self.summary = g.summary()
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in self.model.modules())

    def _loss(self, batch):
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            out = self.model(batch[0])
        assert not _get_current_function_mode_stack()
        return functional.mse_loss(out.float(), batch[1])

    def _plain(self, batches, accumulate, plant):
        for i, batch in enumerate(batches):
            if plant is not None:
                plant(self.model, i)
            loss = self._loss(batch) / accumulate
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            if (i + 1) % accumulate:
                continue
            before = 0 if self.scaler is None else self.scaler.get_scale()
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.losses.append(float(loss.detach()) if self.scaler is None or self.scaler.get_scale() >= before else None)
            self.optimizer.zero_grad()

    @property
    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    @property
    def good(self):
        return [loss for loss in self.losses if loss is not None]

    def events(self, name):
        return [decision for decision in self.guard.decisions if decision["event"] == name]


# --- a healthy run


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"checkpointed": True}, {"checkpointed": False}, {"fused": True},
                                     {"batch_norm": True}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_healthy_run_is_bit_identical(precision, options):
    plain = Run(precision, None, **options)
    ours = Run(precision, {"probes": "all"}, **options)
    assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights)
    assert ours.summary["stopped"] == ours.summary["mode_changes"] == 0 and ours.summary["detached"] is None
    assert ours.summary["steps"] == len(ours.losses) and ours.summary["operators"] > 20
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in ours.model.modules())


def test_ordinary_skips_of_a_scaler_stay_ordinary():
    """A loss scale that overflows the gradients: the scaler skips, nothing is stopped, no gradient's operator is downshifted."""
    def run(options):
        torch.manual_seed(0)
        made = nn.Linear(8, 1)
        optimizer, scaler = torch.optim.SGD(made.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
        losses = []
        with opd.guard(made, optimizer, scaler=scaler, probes="all", **options) as g:
            for x, y in data(12):
                with torch.autocast("cpu", torch.float16):
                    out = made(x).mean(1)
                losses.append((float(functional.mse_loss(out.float(), y).detach()), g.step(functional.mse_loss(out.float(), y)), scaler.get_scale()))
                optimizer.zero_grad()
            return losses, g.summary(), g.decisions
    losses, summary, decisions = run({})
    assert summary["skipped_by_scaler"] > 0 and not losses[0][1]
    assert summary["stopped"] == 0 and decisions == []


@pytest.mark.parametrize("magnitude, is_bounded", [(1.0, True), (60000.0, True), (1e17, True), (1e20, False), (math.nan, False)])
def test_no_logit_exceeds_its_bound(magnitude, is_bounded):
    """sideband="bound": where the bound is finite so is every logit; else the product itself is made."""
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(3, 2, length, 8, generator=generator) * magnitude for length in (5, 7))
    key[0, 0, 0] = query[0, 0, 0]  # parallel: the bound is reached but for rounding
    bound, product = logits_bound(query, key, None), (query @ key.transpose(-1, -2)) / math.sqrt(8)
    assert (bound is not None) == is_bounded
    if is_bounded:
        assert bool(product.isfinite().all()) and float(product.abs().amax()) <= float(bound) * (1 + 2.0**-20)
        assert float(bound) < 20 * float(product.abs().amax())


def test_the_bound_stands_for_the_largest_logit():
    seen = {}
    for sideband in ("bound", "logits", "off"):
        run = Run("FP16", {"sideband": sideband, "probes": "key"}, fused=True, batches=data(1))
        seen[sideband] = [operator.name for operator in run.guard._monitor.operators if operator.name.endswith(":logits")]
    assert seen == {"bound": ["attn:logits"], "logits": ["attn:logits"], "off": []}


# --- a run that overflows


def test_a_product_that_overflows_without_the_guard():
    """Q K^T beyond 65504: without the guard the loss is NaN and the scaler skips for ever; with it the run finishes near FP32."""
    options = {"gain": 220.0, "lr": 1e-3}
    plain = Run("FP16", None, **options)
    assert not plain.good or not math.isfinite(plain.losses[-1] or math.nan)
    saved = Run("FP16", {"hints": False}, **options)
    wide = Run("FP32", None, **options)
    assert len(saved.good) == 24 and all(map(math.isfinite, saved.good)) and bool(saved.weights.isfinite().all())
    assert saved.summary["detached"] is None and saved.summary["dropped"] == 0
    stopped = saved.events("stopped")
    assert stopped[0]["what"] == "output" and stopped[0]["operator"] == "attn:logits"
    safe = {change["operator"] for change in saved.events("mode") if change["new"] == "SAFE"}
    assert safe == {"attn:logits"}
    assert abs(saved.good[-1] - wide.losses[-1]) < 0.05 * max(wide.losses)
    assert saved.summary["outside_fast"] < 0.1


def test_a_fused_product_that_overflows():
    """The logits of a fused kernel are FP32 and finite; what overflows are queries and keys themselves, which the attention gets."""
    saved = Run("FP16", {"hints": False}, gain=1e5, fused=True, lr=1e-3)
    assert len(saved.good) == 24 and bool(saved.weights.isfinite().all()) and saved.summary["detached"] is None


def test_a_sum_of_squares_that_overflows():
    """Without the guard the norm silently hands out zeros (1 / sqrt(Inf)) and its block learns nothing; with it the run is FP32's."""
    options = {"norm": SquareNorm, "boost": 600.0, "lr": 3e-3, "growth": 10**6}
    plain, saved, wide = Run("FP16", None, **options), Run("FP16", {"hints": False}, **options), Run("FP32", None, **options)
    assert not plain.model.norm.last.any() and saved.model.norm.last.abs().amax() > 1
    first = saved.events("stopped")[0]
    assert first["what"] == "output" and first["operator"] == "norm.squares" and saved.summary["detached"] is None
    assert len(saved.good) == 24 and saved.summary["dropped"] == 0
    assert abs(saved.good[-1] - wide.losses[-1]) < 0.1 * abs(plain.good[-1] - wide.losses[-1])


def test_modes_come_back():
    """SAFE, STABLE, FAST, as the controller says; with every operator in FAST no hook of a mode is left."""
    def plant(model, i):
        model.attn.gain = 220.0 if i == 4 else 1.0
    run = Run("FP16", {"hints": False, "config": {"safe_steps": 3, "quiet_steps": 2}}, plant=plant, batches=data(40))
    changes = [(c["old"], c["new"], c["cause"]) for c in run.events("mode") if c["operator"] == "attn:logits"]
    assert changes[-2:] == [("SAFE", "STABLE", "SAFE_EXPIRED"), ("STABLE", "FAST", "RECOVERED")]
    assert run.guard.modes() == {}


# --- values that are carried on


class Producer(nn.Module):
    """A linear layer whose output is beyond FP16, and one that reads it and brings it back."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            self.up.weight.fill_(4e4)
            self.down.weight.fill_(2.0**-16)

    def forward(self, x):
        return self.down(self.up(x))


def test_a_saved_value_survives_the_consumer_cast():
    """Under autocast the consumer casts BF16 to FP16: beyond 65504 that is Inf, and the downshift would be undone."""
    torch.manual_seed(0)
    model = Producer()
    x = torch.ones(4, 8)
    with torch.autocast("cpu", torch.float16):
        assert not torch.isfinite(functional.linear(torch.full((1, 8), 1e5, dtype=torch.bfloat16), model.down.weight)).any()  # what happens
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**6)
    with opd.guard(model, optimizer, scaler=scaler, hints=False) as g:
        results = []
        for batch in g.batches([x] * 3):
            with torch.autocast("cpu", torch.float16):
                out = model(batch)
            results.append(out.detach().float())
            g.step(out.float().square().mean() * 1e-6)
        assert g.modes() == {"up": "SAFE"} and g.summary()["carried"] > 0 and g.summary()["retries"] == 1
    assert not results[0].isfinite().all()
    torch.testing.assert_close(results[-1], torch.full((4, 1), 8 * 8 * 4e4 * 2.0**-16), rtol=2.0**-7, atol=0)


def test_a_model_in_fp16_takes_bf16_where_it_must():
    """No autocast: weights in FP16 meet a BF16 operand. It becomes FP16 again where it fits."""
    torch.manual_seed(0)
    model = Producer().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with opd.guard(model, optimizer, hints=False) as g:
        for scale in (1.0, 1.0, 1e-3, 1e-3):
            for batch in g.batches([torch.full((4, 8), scale, dtype=torch.float16)]):
                out = model(batch)
                kind = out.dtype
                g.step(out.float().mean() * 1e-6)
        assert kind == torch.float16 and g.summary()["detached"] is None and g.summary()["carried"] > 0


# --- the way back


def test_a_planted_nan_in_the_parameters_is_rolled_back():
    planted = []

    def plant(model, i):
        if i == 11 and not planted:
            planted.append(i)
            with torch.no_grad():
                model.mlp[0].weight[3, 3] = math.nan
    run = Run("FP32", {"ring_every": 4, "probes": "key,output"}, plant=plant)
    healthy = Run("FP32", None)
    assert run.summary["roll_backs"] == 1 and run.summary["detached"] is None
    back = run.events("roll_back")[0]
    assert back["to"] == 7 and back["batches"] == 4 and back["step"] == 11
    # Steps 8 to 10 ran twice, with the random numbers of the first time: the run is the healthy one.
    assert run.losses[:11] == healthy.losses[:11] and run.losses[11] is None and run.losses[12:] == healthy.losses[8:]
    assert torch.equal(run.weights, healthy.weights)
    assert run.summary["mode_changes"] == 0


def test_parameters_that_the_optimizer_spoils_are_rolled_back():
    """An infinite learning rate in one step: the probe of the weights sees it after the step."""
    def plant(model, i):
        for group in optimizers[0].param_groups:
            group["lr"] = math.inf if i == 6 else 3e-3
    optimizers = []
    original = torch.optim.AdamW.__init__

    def keep(self, *arguments, **options):
        original(self, *arguments, **options)
        optimizers.append(self)
    torch.optim.AdamW.__init__ = keep
    try:
        run = Run("FP32", {"ring_every": 2}, plant=plant)
    finally:
        torch.optim.AdamW.__init__ = original
    assert run.events("stopped")[0]["what"] == "parameter" and run.summary["roll_backs"] == 1
    assert bool(run.weights.isfinite().all()) and run.summary["detached"] is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_batch_with_nan_is_dropped(precision):
    batches = data()
    batches[5][0][0, 0, 0] = math.nan
    run = Run(precision, {}, batches=batches)
    without = Run(precision, None, batches=batches[:5] + batches[6:])
    dropped = run.events("dropped")
    assert [(d["step"], d["batches"], d["why"]) for d in dropped] == [(5, 1, "the batch itself is not finite")]
    assert len(run.good) == 23 and bool(run.weights.isfinite().all())
    assert run.good[:5] == without.losses[:5]


def test_a_loss_that_no_mode_helps_is_dropped_and_then_the_oldest_state_restored():
    """The loss is divided by zero from batch 6 on, whatever the modes: dropped, once back to the oldest state, then detached."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with opd.guard(model, optimizer, ring_every=2) as g:
        for i, (x, y) in enumerate(g.batches(data(60))):
            g.step(functional.mse_loss(model(x), y) / (0.0 if i >= 6 else 1.0))
            optimizer.zero_grad()
        summary = g.summary()
    assert summary["dropped"] == 6 and summary["roll_backs"] == 1 and "6 steps" not in summary["detached"]
    assert "oldest state" in summary["detached"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_accumulation_gives_all_micro_batches_again():
    def plant(model, i):
        model.attn.gain = 220.0 if i in (5,) else 1.0
    run = Run("FP16", {"hints": False}, plant=plant, accumulate=2)
    assert run.summary["retries"] >= 1 and run.summary["dropped"] == 0
    again = [i for i, x in enumerate(run.seen) if any(torch.equal(x, y) for y in run.seen[:i])]
    assert again == [6, 7]
    assert len(run.good) == 12


@pytest.mark.parametrize("reentrant", [True, False])
def test_modes_under_checkpointing(reentrant):
    run = Run("FP16", {"hints": False}, gain=220.0, lr=1e-3, checkpointed=reentrant)
    assert len(run.good) == 24 and run.summary["detached"] is None and run.guard.decisions
    assert bool(run.weights.isfinite().all())


def test_every_n_th_step_is_enough_to_get_back():
    def plant(model, i):
        model.attn.gain = 220.0 if 5 <= i <= 9 else 1.0
    run = Run("FP16", {"hints": False, "every": 10}, plant=plant)
    assert run.summary["dropped"] == 0 and run.summary["detached"] is None and len(run.good) == 24
    assert [e["operator"] for e in run.events("stopped")][:2] == [None, "attn:logits"]


def test_modes_off_only_keeps_bad_steps_away():
    run = Run("FP16", {"modes": False, "hints": False}, plant=lambda model, i: setattr(model.attn, "gain", 220.0 if i in (5, 6) else 1.0))
    assert run.summary["dropped"] == 2 and len(run.good) == 22 and bool(run.weights.isfinite().all())


def test_an_output_that_is_made_with_inf_is_ordinary():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.mask = nn.Linear(8, 8), Mask()

        def forward(self, x):
            return self.mask(self.lin(x)).softmax(-1).sum(-1)

    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.arange(8) > 5, -math.inf)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with opd.guard(model, optimizer) as g:
        for x, _ in g.batches(data(5)):
            g.step((model(x) - 1).square().mean() + model.lin.weight.square().mean())
    ordinary = [d for d in g.decisions if d["event"] == "ordinary"]
    assert [d["operators"] for d in ordinary] == [["mask"]] and ordinary[0]["step"] == 0
    assert g.modes() == {} and g.summary()["retries"] == 1 and g.summary()["steps"] == 5


# --- hints


class Scripted(Device):
    """A device whose hints are chosen by the step."""

    def __init__(self, num_ops, hints, modes=None):
        super().__init__("cpu", num_ops)
        self._script, self._modes_at = hints, modes or {}

    def step(self, step, *arguments, **options):
        import dataclasses
        outcome = super().step(step, *arguments, **options)
        modes = outcome.modes.copy()
        modes[:] = self._modes_at.get(step, 0)
        return dataclasses.replace(outcome, hints=self._script.get(step, outcome.hints), modes=modes)


def test_hints_act_on_the_next_step_and_are_taken_back():
    rates, norms, scales = [], [], []

    class Sgd(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            norms.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
            return super().step(closure)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer, scaler = Sgd(model.parameters(), 0.5), torch.amp.GradScaler("cpu", init_scale=1024.0)
    script = {1: Hints(-8, -1, 0.1), 2: Hints(-8, -1, 1.0)}
    with opd.guard(model, optimizer, scaler=scaler, clip=0.01, hints=True, device=lambda count: Scripted(count, script)) as g:
        for x, y in data(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(x).mean(1)
            g.step(functional.mse_loss(out.float(), y * 10))
            scales.append(scaler.get_scale())
    assert rates == [0.5, 0.5, 0.05, 0.5, 0.5] and optimizer.param_groups[0]["lr"] == 0.5
    assert scales == [1024.0, 4.0, 4.0, 1024.0, 1024.0]
    assert norms == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.01], rel=1e-3)


def test_a_change_of_the_learning_rate_is_announced():
    announced = []

    class Listening(Device):
        def announce_learning_rate(self, step):
            announced.append(step)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with opd.guard(model, optimizer, device=lambda count: Listening("cpu", count)) as g:
        for i, (x, y) in enumerate(data(6)):
            g.step(functional.mse_loss(model(x).mean(1), y))
            optimizer.param_groups[0]["lr"] = 0.1 if i < 3 else 0.05
    assert announced == [5]  # seen when the step after the change ends


# --- the device


@pytest.mark.parametrize("name", ["near_limit", "qk_overflow"])
def test_the_device_step_by_step_is_the_device_of_a_replay(name):
    """opd._reference.Unit on a recorded run: the records of opd._reference.run, its modes, and the events of the mode changes."""
    trace = Trace.read(Path(__file__).resolve().parents[3] / "traces" / "captured" / f"{name}.safetensors")
    given = statistics(trace)
    records, _ = module().run(**given)
    operators = len(trace.probes)
    device = Device("cpu", operators)
    changes = 0
    for i, step in enumerate(given["step"]):
        if given["learning_rate_changes"][i]:
            device.announce_learning_rate(int(step))
        outcome = device.step(int(step), np.arange(operators, dtype=np.uint16), given["format"], given["max_mag"][i], given["element_count"],
                              given["nonfinite"][i], given["saturated"][i], given["scale_log2"][i])
        assert outcome.records.tobytes() == records[i].tobytes() and (outcome.modes == records[i]["mode"]).all()
        assert {event.op for event in outcome.events} == set(np.flatnonzero(records[i]["cause"]))
        assert all(event.new_mode == records[i]["mode"][event.op] for event in outcome.events)
        changes += len(outcome.events)
    assert changes == np.count_nonzero(records["cause"]) > 0
    device.set_operator(3, disabled=True)
    device.set_operator(3, mode=2)
    assert device.operator(3) == (2, False, True)


def test_a_device_refuses_what_it_cannot_take():
    device = Device("cpu", 4)
    one = {"format": np.zeros(1, np.uint8), "max_mag": np.ones(1, np.uint32), "element_count": np.ones(1, np.uint32), "nonfinite": np.zeros(1, np.uint32)}
    with pytest.raises(ValueError, match="op: 4 is none of the unit's 4"):
        device.step(0, np.array([4], np.uint16), **one)
    with pytest.raises(ValueError, match="format: 9"):
        device.step(0, np.array([0], np.uint16), **{**one, "format": np.full(1, 9, np.uint8)})
    with pytest.raises(ValueError, match="max_mag: is not"):
        device.step(0, np.array([0], np.uint16), **{**one, "max_mag": np.ones(2, np.uint32)})


# --- STABLE


def test_stable_runs_in_bf16():
    """A module in STABLE computes in BF16 under FP16 autocast, and is FP16 again afterwards."""
    kinds = []
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    model[0].register_forward_hook(lambda m, a, out: kinds.append(out.dtype))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    given = data(1)[0][0]
    outputs = []
    with opd.guard(model, optimizer, scaler=scaler, probes="0", hints=False,
                   device=lambda count: Scripted(count, {}, {1: int(Mode.STABLE), 2: int(Mode.SAFE)})) as g:
        for _ in range(4):
            with torch.autocast("cpu", torch.float16):
                out = model(given)
            outputs.append(out.detach().double())
            g.step(out.float().mean())
    assert kinds == [torch.float16, torch.float16, torch.bfloat16, torch.bfloat16]
    with torch.autocast("cpu", torch.bfloat16):
        bf16 = model[0](given)
    kinds.clear()
    assert bool((outputs[2] - outputs[0]).abs().max() < 2.0**-7) and bool((outputs[3] - outputs[0]).abs().max() < 2.0**-7)
    assert bf16.dtype == torch.bfloat16 and torch.equal(outputs[0], outputs[1])


# --- failures


def test_a_ring_that_is_too_small_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "opd.guard"):
        run = Run("FP32", {"ring": 1000, "ring_every": 1})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "one state takes" in said[0] and "give ring a larger size" in said[0]
    assert run.summary["ring_states"] == [] and run.summary["detached"] is None and len(run.events("no_ring")) == 1
    assert run.losses == Run("FP32", None).losses


def test_without_a_ring_spoilt_parameters_end_the_guard_not_the_run(caplog):
    def plant(model, i):
        if i == 3:
            with torch.no_grad():
                model.head.weight[:] = math.nan
    with caplog.at_level(logging.ERROR, "opd.guard"):
        run = Run("FP32", {"ring": 0}, plant=plant)
    assert "no state to go back to" in run.summary["detached"] and len(run.losses) == 24
    assert len([record for record in caplog.records if "the guard ends" in record.getMessage()]) == 1


@pytest.mark.parametrize("where", ["device", "statistics", "log", "ring", "judge"])
def test_a_guard_that_fails_never_ends_the_run(where, caplog, tmp_path, monkeypatch):
    """It fails at step 3; from then on the run is the one without a guard, and it was so before."""
    from opd.capture import statistics as measuring
    from opd.guard import session
    calls = []

    def failing(original, at):
        def function(*arguments, **options):
            calls.append(1)
            if len(calls) >= at:
                raise OSError(f"{where} fails")
            return original(*arguments, **options)
        return function
    options = {"ring_every": 1}
    if where == "device":
        class Failing(Device):
            step = failing(Device.step, 3)
        options["device"] = lambda count: Failing("cpu", count)
    elif where == "statistics":
        monkeypatch.setattr(measuring, "measure", failing(measuring.measure, 60))
    elif where == "log":
        monkeypatch.setattr(session.DecisionLog, "note", failing(session.DecisionLog.note, 1))
        monkeypatch.setattr(session.Guard, "_room", lambda self: self._log.note("x", 0))
    elif where == "ring":
        monkeypatch.setattr(session.Subject, "take", failing(session.Subject.take, 3))
    else:
        monkeypatch.setattr(session.Guard, "_has_finite_gradients", failing(session.Guard._has_finite_gradients, 3))
    with caplog.at_level(logging.ERROR, "opd.guard"):
        run = Run("FP32", options)
    monkeypatch.undo()
    plain = Run("FP32", None)
    assert run.losses == plain.losses and torch.equal(run.weights, plain.weights)
    assert run.summary["detached"] is not None and (where == "log" or f"{where} fails" in run.summary["detached"])
    assert len([record for record in caplog.records if "the guard ends" in record.getMessage()]) == 1
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.model.modules())


def test_a_safe_function_that_fails_is_called_as_it_was_written(monkeypatch):
    from opd.guard import products

    def broken(*_):
        raise RuntimeError("broken")
    monkeypatch.setattr(products, "product", broken)
    run = Run("FP16", {"hints": False}, plant=lambda model, i: setattr(model.attn, "gain", 220.0 if i == 5 else 1.0))
    assert "broken" in run.summary["detached"] and len(run.losses) >= 24


def test_a_backward_that_fails_in_another_mode_ends_the_guard_not_the_run(monkeypatch):
    from opd.guard import arithmetic
    monkeypatch.setattr(arithmetic._Scaled, "backward", staticmethod(lambda ctx, gradient: 1 / 0))
    run = Run("FP16", {"hints": False}, plant=lambda model, i: setattr(model.attn, "gain", 220.0 if i == 5 else 1.0))
    assert "ZeroDivisionError" in run.summary["detached"] and len(run.losses) >= 24 and bool(run.weights.isfinite().all())


def test_exceptions_of_the_script_pass_through():
    model = nn.Linear(8, 1)
    with pytest.raises(RuntimeError, match="mine"):
        with opd.guard(model, torch.optim.SGD(model.parameters(), 0.1)):
            raise RuntimeError("mine")
    assert not model._forward_hooks


@pytest.mark.parametrize(("options", "text"), [
    ({"device": "gpu"}, "device: 'gpu'"), ({"ring": "lots"}, "ring: 'lots'"), ({"every": 0}, "every: 0"), ({"clip": -1.0}, "clip: -1.0"),
    ({"extra": [3]}, "extra: int"), ({"compiled": "yes"}, "compiled: 'yes'"), ({"sideband": 1}, "sideband: 1"), ({"config": {"nothing": 1}}, "config: nothing"),
    ({"log": "/nonexistent/x"}, "log: /nonexistent/x"), ({"path": "/dev/null/x"}, "path: /dev/null/x"), ({"ring_every": True}, "ring_every"),
    ({"first_step": -1}, "first_step: -1")])
def test_wrong_arguments_end_before_training(options, text):
    made = nn.Linear(2, 2)
    with pytest.raises(GuardError, match=text):
        opd.guard(made, torch.optim.SGD(made.parameters(), 0.1), **options)
    assert not made._forward_hooks


def test_wrong_models_optimizers_and_probes():
    made = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    with pytest.raises(GuardError, match="model: int"):
        opd.guard(3, optimizer)
    with pytest.raises(GuardError, match="optimizer: int"):
        opd.guard(made, 3)
    with pytest.raises(CaptureError, match="no module is called 'nothing'"):
        opd.guard(made, optimizer, probes="nothing")
    with pytest.raises(CaptureError, match="holds no parameter"):
        opd.guard(nn.Linear(2, 2), optimizer)
    assert not made._forward_hooks
    with opd.guard(made, optimizer) as g, pytest.raises(GuardError, match="resume: the guard has no folder"):
        g.resume()


def test_a_run_of_several_processes_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = nn.Linear(2, 2)
    with pytest.raises(GuardError, match="without a process group"):
        opd.guard(made, torch.optim.SGD(made.parameters(), 0.1))


def test_compiled_code_is_left_alone():
    """compiled="skip": no output is seen and no mode acts; a bad step is kept away all the same, and nothing is tried in vain."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.compile(Model(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with opd.guard(model, optimizer, probes="key,output") as g:
        for i, (x, y) in enumerate(g.batches(data(6))):
            g.step(functional.mse_loss(model(x), y) / (0.0 if i == 3 else 1.0))
            optimizer.zero_grad()
        summary = g.summary()
    assert {o.kind for o in g._monitor.operators} == {"weight"} and summary["detached"] is None
    assert (summary["steps"], summary["dropped"], summary["retries"]) == (5, 1, 0)
    torch.compiler.reset()


def test_the_page_names_every_option_event_and_count():
    """docs/guard.md: options of opd.guard, events of the log with their keys, counts of summary()."""
    from inspect import signature

    from opd.guard.decisions import EVENTS
    from opd.guard.session import Guard
    page = (Path(__file__).resolve().parents[3] / "docs" / "guard.md").read_text(encoding="utf-8")
    options, decisions, counts = (
        {re.search(r"`([^`]+)`", line)[1]: line for line in part.splitlines() if line.startswith("| `")}
        for part in (page[page.index("## Options"):page.index("## Modes")], page[page.index("## Decisions"):page.index("`g.summary()`:")],
                     page[page.index("`g.summary()`:"):page.index("## What it works with")]))
    for name in [name for name in signature(Guard.__init__).parameters if name not in ("self", "model", "optimizer")]:
        assert name in options, name
    for event, keys in EVENTS.items():
        assert all(f"`{key}`" in decisions[event] for key in keys), event
    assert set(decisions) == set(EVENTS)
    run = Run("FP32", {})
    assert set(counts) == set(run.summary)


def test_the_log_holds_every_decision(tmp_path):
    file = tmp_path / "decisions.jsonl"
    run = Run("FP16", {"log": file}, plant=lambda model, i: setattr(model.attn, "gain", 220.0 if i == 5 else 1.0))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == run.guard.decisions and {"stopped", "retry", "mode", "hints"} <= {line["event"] for line in lines}
    from opd.guard.decisions import EVENTS
    assert all(set(line) == {"event", "step", *EVENTS[line["event"]]} for line in lines)


# --- the ring on disk


def trained_in_a_child(folder: Path, kill_at: int | None, out: Path) -> tuple[int, dict[int, str]]:
    """A run of its own process, killed after a batch; its exit status, and the losses that it wrote."""
    child = os.fork()
    if child == 0:
        try:
            torch.manual_seed(0)
            model = Model()
            optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            batches = data(24)
            torch.manual_seed(7)
            with opd.guard(model, optimizer, path=folder, ring_every=5, extra=[schedule]) as g, open(out, "w") as file:
                start = g.resume() or 0
                for i, (x, y) in enumerate(g.batches(batches[start:]), start):
                    loss = functional.mse_loss(model(x), y)
                    if g.step(loss):
                        schedule.step()
                    optimizer.zero_grad()
                    print(i, float(loss.detach()).hex(), file=file, flush=True)
                    if i == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        except BaseException as error:
            out.write_text(repr(error))
            os._exit(1)
    _, status = os.waitpid(child, 0)
    lines = [line.split() for line in out.read_text().splitlines()]
    return os.waitstatus_to_exitcode(status), {int(number): loss for number, loss in lines}


def test_the_ring_survives_kill_9(tmp_path):
    """Killed after step 13, resumed from the state after step 9: the losses are those of a run that was not killed."""
    status, expected = trained_in_a_child(tmp_path / "other", None, tmp_path / "out")
    assert status == 0 and len(expected) == 24
    folder = tmp_path / "states"
    status, first = trained_in_a_child(folder, 13, tmp_path / "out")
    assert status == -signal.SIGKILL and len(first) == 14
    assert sorted(path.name for path in folder.iterdir())[-1] == "state-0000000010.pt"  # step 10 comes next
    (folder / "state-0000000012.pt").write_bytes(b"torn")  # as a power cut leaves it
    status, second = trained_in_a_child(folder, None, tmp_path / "out")
    assert status == 0 and min(second) == 10 and {**first, **second} == expected


def test_folders_of_other_runs(tmp_path):
    """A state of another model is refused, and so are torn ones; what an earlier run has left is set aside by one that begins anew."""
    def guard(width):
        made = Model(width=width)
        return made, opd.guard(made, torch.optim.AdamW(made.parameters()), path=tmp_path)

    def train(model, g):
        for x, y in data(2):
            g.step(functional.mse_loss(model(x), y))
    model, g = guard(16)
    with g:
        assert g.resume() is None
        train(model, g)
    assert [path.name for path in tmp_path.iterdir()] == ["state-0000000000.pt"]
    with guard(8)[1] as g, pytest.raises(GuardError, match="another model"):
        g.resume()
    model, g = guard(16)
    with g:
        train(model, g)
    assert [path.name for path in (tmp_path / "earlier").iterdir()] == ["state-0000000000.pt"]
    (tmp_path / "state-0000000000.pt").write_bytes(b"torn")
    with guard(16)[1] as g, pytest.raises(GuardError, match="can be read"):
        g.resume()


def test_budgets():
    assert ring.bytes_of_budget("1.5KiB") == 1536 and ring.bytes_of_budget(7) == 7 and ring.bytes_of_budget("2 GiB") == 2 << 30
    batch = {"a": torch.zeros(4), "b": [np.zeros(3)]}
    assert ring.size_of(batch) == 16 + 24
    copy = ring.kept(batch)
    batch.pop("a")
    assert "a" in copy


def test_the_ring_keeps_to_its_budget():
    run = Run("FP32", {"ring": "40KiB", "ring_every": 2, "path": None})
    assert 1 <= len(run.summary["ring_states"]) <= 3 and run.summary["ring_states"][-1] == 23
    assert run.summary["ring_bytes"] <= 40 << 10


def test_a_compiled_module_changes_its_mode():
    """compiled="split": what was compiled is thrown away, and the module runs as written, in its mode, until it is back in FAST."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Producer()
    with torch.no_grad():
        model.up.weight.fill_(5e3)  # its output fits FP16
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    kinds = []
    model.up.register_forward_hook(torch.compiler.disable(lambda m, a, out: kinds.append(out.dtype)))
    x = torch.ones(2, 8)
    with opd.guard(compiled, optimizer, scaler=torch.amp.GradScaler("cpu", init_scale=1.0), probes="output", compiled="split", hints=False,
                   device=lambda count: Scripted(count, {}, {1: int(Mode.STABLE), 2: int(Mode.SAFE)})) as g:
        for _ in range(4):
            with torch.autocast("cpu", torch.float16):
                out = compiled(x)
            g.step(out.float().mean() * 1e-6)
        assert g.summary()["detached"] is None and {"up", "down"} <= {o.name for o in g._monitor.operators}
    assert kinds == [torch.float16, torch.float16, torch.bfloat16, torch.bfloat16]
    assert "forward" not in vars(model.up)
    torch.compiler.reset()


# --- modes on modules of every kind


class LlamaNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


class Mixed(nn.Module):
    """Operators with names of their own, methods, and in-place ones."""

    def __init__(self):
        super().__init__()
        self.w, self.lin = nn.Parameter(torch.linspace(-1, 1, 64).view(8, 8)), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.einsum("btc,dc->btd", x, self.w) + 0.5 * x ** 2
        y += self.lin(x)
        y = torch.baddbmm(y, y, self.w.expand(x.shape[0], 8, 8)).clamp(-50, 50)
        return (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1e-3).sqrt()


class Own(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


ZOO = {
    "linear": lambda: nn.Linear(8, 8), "layer norm": lambda: nn.LayerNorm(8), "RMS norm": lambda: nn.RMSNorm(8),
    "a hand-written RMS norm": LlamaNorm, "mixed": Mixed, "multi-head attention": lambda: Own(8, 2, batch_first=True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "convolution": lambda: nn.Conv1d(5, 5, 3, padding=1), "transposed convolution": lambda: nn.ConvTranspose1d(5, 5, 3, padding=1),
    "batch norm": lambda: nn.BatchNorm1d(5), "group norm": lambda: nn.GroupNorm(1, 5), "recurrent": lambda: Recurrent(8, 8, batch_first=True),
    **{kind.__name__: kind for kind in (nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.Mish)},
    "softmax": lambda: nn.Softmax(-1), "log softmax": lambda: nn.LogSoftmax(-1), "gelu, tanh": lambda: nn.GELU("tanh"),
    "relu in place": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_modes_on_modules_of_every_kind(name, precision):
    """Outputs and gradients in SAFE and STABLE beside FAST: of FP32 the same but for roundings, of FP16 BF16's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), ZOO[name](), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0) if precision == "FP16" else None
    dtype, x = PRECISIONS[precision], torch.randn(4, 5, 8)
    script = {0: int(Mode.SAFE), 1: int(Mode.STABLE), 2: int(Mode.FAST)}
    outputs, gradients, kinds = [], [], []
    model[1].register_forward_hook(lambda m, a, out: kinds.append(out.dtype))
    with opd.guard(model, optimizer, scaler=scaler, probes="output,1", hints=False, device=lambda count: Scripted(count, {}, script)) as g:
        for _ in range(4):  # FAST, SAFE, STABLE, FAST
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                out = model(x)
            outputs.append(out.detach().float())
            g.step(out.float().square().mean())
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            optimizer.zero_grad()
        assert g.summary()["detached"] is None and g.summary()["steps"] == 4
    assert torch.equal(outputs[0], outputs[3]) and torch.equal(gradients[0], gradients[3]) and kinds[0] == kinds[3]
    if precision == "FP16" and kinds[0] == torch.float16:
        assert kinds[1:3] == [torch.bfloat16] * 2
    tolerance = {"FP32": 2e-5, "FP16": 0.05, "BF16": 0.05}[precision]
    for mode in (1, 2):
        for found, expected in ((outputs, outputs[0]), (gradients, gradients[0])):
            assert float((found[mode] - expected).abs().max()) <= tolerance * max(float(expected.abs().max()), 1e-3), (mode, found is outputs)


def test_a_stopped_step_leaves_no_trace_in_batch_norms():
    """They write their running statistics without a new version of the tensor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with opd.guard(model, optimizer, hints=False) as g:
        for i, x in enumerate(g.batches([torch.randn(8, 4, generator=torch.Generator().manual_seed(k)) for k in range(6)])):
            if i == 3:
                x = x * 1e38
            before = model[1].running_var.clone()
            optimizer.zero_grad()
            if not g.step(model(x).square().mean()):
                assert torch.equal(model[1].running_var, before)
    assert g.summary()["stopped"] and bool(model[1].running_var.isfinite().all())
