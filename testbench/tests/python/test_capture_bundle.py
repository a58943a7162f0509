"""The incident bundle of a capture: of a loop with the capture in it, and of scripts that know nothing of it.

Testplan: PYT-11.
"""
from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

from opd.capture import Capture, CaptureError  # noqa: E402
from opd.localise import read_bundle  # noqa: E402
from opd.localise.command import main as localise_command  # noqa: E402
from opd.trace import Trace  # noqa: E402
from torch import nn  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
torch.set_num_threads(1)


class Net(nn.Module):
    """overflows: the step, counted in calls, in which the square is beyond FP32."""

    def __init__(self, overflows: int, returns_loss: bool = False):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.overflows, self.calls, self.returns_loss = overflows, 0, returns_loss

    def forward(self, x):
        x = self.norm(self.first(x))
        if self.calls == self.overflows:
            x = x * 1e30
        self.calls += torch.is_grad_enabled() and not self.is_replayed
        out = self.second(x.square())
        return out.mean() if self.returns_loss else out

    is_replayed = False


def run(path: Path, folder, returns_loss: bool = False, steps: int = 8, overflows: int = 5, **options):
    torch.manual_seed(0)
    model = Net(overflows, returns_loss)
    optimizer = torch.optim.AdamW([{"params": [*model.first.parameters(), *model.norm.parameters()], "lr": 1e-3},
                                   {"params": model.second.parameters(), "lr": 1e-2}])
    states = []
    with Capture(model, path, optimizer=optimizer, probes="output", bundle=folder, **options) as c:
        for i in range(steps):
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            optimizer.zero_grad()
            out = model(torch.randn(16, 4, generator=torch.Generator().manual_seed(i)))
            loss = out if returns_loss else out.mean()
            loss.backward()
            optimizer.step()
            c.step(loss=loss)
    return model, states, c


@pytest.mark.parametrize("returns_loss", [False, True])
def test_the_weights_are_those_of_the_step(returns_loss, tmp_path, caplog):
    """The optimizer has spoilt them by the time at which the trace knows of the incident."""
    with caplog.at_level(logging.WARNING, "opd.capture"):
        model, states, c = run(tmp_path / "run.safetensors", tmp_path / "bundles", returns_loss)
    assert not bool(model.first.weight.isfinite().all())
    folder, = (tmp_path / "bundles").iterdir()
    assert folder.name == "step-00000005" and f"opd localise {folder} --trust" in caplog.text
    bundle = read_bundle(folder, trust=True)
    for name, value in bundle.model.state_dict().items():
        assert torch.equal(value, states[5][name]), name
    assert [state["param_groups"][1]["lr"] for state in bundle.optimizers] == [1e-2] and bundle.optimizers[0]["state"][0]["step"] == 5
    bundle.model.calls, bundle.model.is_replayed = 5, True
    finding = bundle.localise()
    assert (finding.operator, finding.direction, finding.kind) == ("model:square", "forward", "numeric")
    assert ("only its forward pass is replayed" in finding.evidence[-1]) == (not returns_loss)
    assert bundle.history.step.tolist() == list(range(6)) and bundle.history.first_bad_op == "second"
    assert [group["first"] for group in bundle.history.manifest["lr_groups"]] == ["first.weight", "second.weight"]


def test_a_capture_with_a_bundle_changes_nothing(tmp_path):
    with_bundle = run(tmp_path / "a.safetensors", tmp_path / "bundles", overflows=-1)
    without = run(tmp_path / "b.safetensors", None, overflows=-1)
    assert all(torch.equal(a, b) for a, b in zip(with_bundle[0].state_dict().values(), without[0].state_dict().values()))
    assert list((tmp_path / "bundles").iterdir()) == []
    a, b = (Trace.read(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert (a.max_abs == b.max_abs).all() and (a.loss == b.loss).all()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in with_bundle[0].modules())


def test_a_gradient_alone_is_an_incident_without_a_loss_scale(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with Capture(model, tmp_path / "run.safetensors", optimizer=optimizer, probes="all", bundle=tmp_path / "bundles") as c:
        for i in range(3):
            loss = (model(torch.ones(1, 2)).sum() * (0.0 if i == 1 else 1.0)).abs().sqrt()  # its derivative at 0 is infinite
            loss.backward()
            c.step(loss=loss)
            optimizer.zero_grad()
    folder, = (tmp_path / "bundles").iterdir()
    assert folder.name == "step-00000001"
    assert read_bundle(folder, trust=True).localise().kind == "none"  # the loss is not in it: nobody is blamed


def test_a_folder_that_cannot_be_made_ends_before_training(tmp_path):
    model = nn.Linear(1, 1)
    with pytest.raises(CaptureError, match="bundle: /dev/null/x cannot be made"):
        Capture(model, tmp_path / "run.safetensors", bundle="/dev/null/x")
    assert not model._forward_hooks


SCRIPT = """
import torch
from torch import nn
WIDTH = 8
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("gain", torch.ones(()))
    def forward(self, x):
        return self.second((self.first(x) * self.gain).exp())
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(6):
    model.gain.fill_(1000.0 if step == 4 else 1.0)
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).mean()
    if not torch.isfinite(loss) and STOPS:
        break
    loss.backward()
    optimizer.step()
open("trained", "a").write("x")
"""


@pytest.mark.parametrize("stops", [False, True])
def test_a_script_that_knows_nothing_of_it(stops, tmp_path, capsys):
    """It has no `if __name__`: rebuilding its model must not train. With STOPS it leaves the loop before any backward."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("STOPS", str(stops)))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python")}
    done = subprocess.run([sys.executable, "-m", "opd", "capture", "--probes", "output", "--bundle", "bundles", "--out", "run.safetensors", "--",
                           sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    folder, = (tmp_path / "bundles").iterdir()
    assert f"opd capture: incident bundle of step 4: {folder}; opd localise {folder} --trust" in done.stderr
    assert "run.safetensors: second (FP32) is non-finite at step 4: " in done.stderr
    (tmp_path / "trained").unlink()
    assert localise_command([str(folder), "--trust"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "operator model:exp, in exp" in page and "only its forward pass is replayed" in page and "Before it" in page
    assert "to run the whole of it would" in page and not (tmp_path / "trained").exists()
