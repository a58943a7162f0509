"""opd.guard with a simulated device in the loop: the same run as with the reference, and what happens when the device fails.

Testplan: COS-02.
"""
from __future__ import annotations

import logging
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.device import KINDS, Device, largest  # noqa: E402
from opd.guard import GuardError  # noqa: E402
from opd.reference import ReferenceMissing, module, simulated_devices  # noqa: E402
from test_guard import Run, SquareNorm, data  # noqa: E402
from torch import nn  # noqa: E402

try:
    module(), simulated_devices()
except ReferenceMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

SIMULATED = [kind for kind in KINDS if kind != "cpu"]
OVERFLOWS = {
    "product": ({"hints": False}, {"gain": 220.0, "lr": 1e-3}),
    "product-hints": ({"hints": True}, {"gain": 220.0, "lr": 1e-3}),
    "squares": ({"hints": True, "probes": "all", "config": {"safe_steps": 3, "quiet_steps": 2}}, {"norm": SquareNorm, "boost": 600.0, "growth": 10**6}),
}


@cache
def run_of(case: str, kind: str) -> Run:
    options, model = OVERFLOWS[case]
    return Run("FP16", {**options, "device": kind}, **model)


@pytest.mark.parametrize("case", OVERFLOWS)
@pytest.mark.parametrize("kind", SIMULATED)
def test_a_run_that_overflows_is_the_same_bit_for_bit(kind, case):
    """Losses, weights, the states of optimizer and scaler, every decision and every count: what the simulated device says is what the
    reference says, and what it says matters."""
    reference, simulated = run_of(case, "cpu"), run_of(case, kind)
    assert simulated.losses == reference.losses and torch.equal(simulated.weights, reference.weights)
    assert simulated.guard.decisions == reference.guard.decisions and simulated.summary == reference.summary
    assert simulated.scaler.state_dict() == reference.scaler.state_dict()
    for left, right in zip(simulated.optimizer.state_dict()["state"].values(), reference.optimizer.state_dict()["state"].values()):
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert reference.summary["detached"] is None and reference.summary["stopped"] > 0 and reference.summary["steps"] == 24
    assert {change["cause"] for change in reference.events("mode")} - {"RECOVERY"} and reference.events("hints")


def test_the_hints_of_the_device_matter():
    assert run_of("product", "rtl").losses != run_of("product-hints", "rtl").losses


@pytest.mark.parametrize("kind", SIMULATED)
def test_a_healthy_run_is_bit_identical(kind):
    plain, ours = Run("FP16", None), Run("FP16", {"device": kind, "probes": "all"})
    assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights)
    assert ours.summary["detached"] is None and ours.summary["operators"] > 20


class Stopping(Device):
    """Goes away in a step."""

    def step(self, step, *arguments, **options):
        if step == 3:
            self.close()
        return super().step(step, *arguments, **options)


@pytest.mark.parametrize("kind", SIMULATED)
def test_a_device_that_fails_ends_the_guard_and_not_the_run(kind, caplog):
    with caplog.at_level(logging.ERROR, "opd.guard"):
        run = Run("FP32", {"device": lambda count: Stopping(kind, count)})
    plain = Run("FP32", None)
    assert run.losses == plain.losses and torch.equal(run.weights, plain.weights)
    assert run.summary["detached"] == "step 3: RuntimeError: the device is closed; make another"
    assert len([record for record in caplog.records if "the guard ends" in record.getMessage()]) == 1
    Device("systemc", 4).close()  # it has been given back


def test_more_operators_than_the_rtl_has():
    most = largest("rtl")

    def run(device: str) -> tuple[dict, list]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Identity() for _ in range(most)), nn.Linear(8, 1))
        losses = []
        with opd.guard(model, torch.optim.SGD(model.parameters(), 0.01), device=device, probes="all") as g:
            for x, y in data(3):
                loss = (model(x).mean(1) - y).square().mean()
                losses.append(float(loss.detach()))
                assert g.step(loss)
                g._subject.optimizers[0].zero_grad()
            return g.summary(), losses
    refused, losses = run("rtl")
    assert f"device: the run has {refused['operators']} operators and the device places for {most}; watch fewer" in refused["detached"]
    assert refused["operators"] > most
    held, same_losses = run("systemc")
    assert held["detached"] is None and held["operators"] == refused["operators"] and losses == same_losses


def test_a_run_that_fills_the_rtl():
    """Fewer places than the guard would like for operators that come later."""
    model = nn.Sequential(*(nn.Identity() for _ in range(largest("rtl") - 60)), nn.Linear(8, 1))
    with opd.guard(model, torch.optim.SGD(model.parameters(), 0.01), device="rtl", probes="[0-9]*") as g:
        for x, y in data(2):
            g.step((model(x).mean(1) - y).square().mean())
    assert g.summary()["detached"] is None and g.summary()["operators"] > largest("rtl") // 2


def test_devices_that_cannot_be_had_end_before_training(tmp_path, monkeypatch):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    taken = Device("systemc", 4)
    with pytest.raises(GuardError, match="device: the process has one SystemC device and it is in use"):
        opd.guard(model, optimizer, device="systemc")
    taken.close()
    with pytest.raises(GuardError, match="config: baseline_shift: is not a whole number in 1..8"):
        opd.guard(model, optimizer, device="rtl", config={"baseline_shift": 9})
    with pytest.raises(GuardError, match="device: 'gpu' is unknown; use one of cpu, systemc, rtl"):
        opd.guard(model, optimizer, device="gpu")
    monkeypatch.setenv("OPD_BUILD", str(tmp_path))
    simulated_devices.cache_clear()
    try:
        with pytest.raises(GuardError, match="device: .*SystemC and RTL devices are not built .*opd_device_python"):
            opd.guard(model, optimizer, device="rtl")
    finally:
        simulated_devices.cache_clear()
    assert not model._forward_hooks


def test_guards_one_after_the_other_share_the_systemc_device():
    first, second = (Run("FP16", {"device": "systemc", "hints": False}, gain=220.0, lr=1e-3) for _ in range(2))
    assert first.losses == second.losses and first.guard.decisions == second.guard.decisions and second.summary["detached"] is None
