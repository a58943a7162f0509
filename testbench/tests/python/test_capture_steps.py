"""opd.capture: the step a run ends in, what counts as its incident, calls of one module in their order, learning rates."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

from opd.capture import Capture, CaptureError, merge  # noqa: E402
from opd.capture.watch import MAX_CALLS  # noqa: E402
from opd.trace import Trace  # noqa: E402
from test_capture import Attention, column, names, probe  # noqa: E402
from torch import nn  # noqa: E402

INF = float("inf")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.safetensors"


def ones(value: float = 1.0) -> torch.Tensor:
    return torch.full((2, 2), value)


# --- the step a run ends in ------------------------------------------------------------------------------------------


class Stop(Exception):
    """Of a script."""


def run_until(file, how: str, tail=lambda model: None, **options) -> Trace:
    """Three steps; in the fourth the forward pass overflows and the script ends it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    c = Capture(model, file, optimizer=optimizer, auto_loss=True, **options)
    try:
        with c:
            for step in range(9):
                loss = model(ones(INF if step == 3 and how != "finite" else 1.0)).sum()
                if step == 3 and how != "tail":
                    if how == "raise":
                        raise Stop
                    break
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                c.step()
                if step == 2 and how == "tail":
                    break
            tail(model)
    except Stop:
        assert how == "raise"
    return Trace.read(file)


@pytest.mark.parametrize("how", ["raise", "break"])
def test_the_step_a_script_stops_in_is_in_the_trace(file, how):
    trace = run_until(file, how, probes="output,weight")
    assert trace.step.tolist() == [0, 1, 2, 3] and trace.manifest["unfinished_step"] == 3 and trace.manifest["complete"]
    assert (trace.first_bad_step, trace.first_bad_op, trace.label) == (3, "0", "sudden")
    assert column(trace, "0", "nonfinite").tolist() == [0, 0, 0, 4]
    assert (column(trace, "0.weight") > 0).all()  # as it is in the step that the script left
    # Nobody saw its loss: the one before is repeated, and said to be.
    assert trace.loss[3] == trace.loss[2] and trace.manifest["missing"] == {"loss": [[3, 3]]}


def validate(mode: str, gradients: bool):
    def tail(model):
        model.train(mode == "train")
        with torch.set_grad_enabled(gradients):
            for _ in range(3):
                model(ones(INF))
    return tail


@pytest.mark.parametrize(("mode", "gradients"), [("eval", False), ("eval", True), ("train", False)])
def test_validation_after_the_last_step_is_no_step(file, mode, gradients):
    trace = run_until(file, "tail", validate(mode, gradients), probes="output")
    assert trace.step.tolist() == [0, 1, 2] and "unfinished_step" not in trace.manifest and trace.label == "healthy"


def test_validation_after_a_stop_does_not_hide_it(file):
    """The run breaks off a finite step and then validates on something that overflows."""
    trace = run_until(file, "finite", validate("eval", True), probes="output")
    assert trace.step.tolist() == [0, 1, 2, 3] and trace.manifest["unfinished_step"] == 3 and trace.label == "healthy"


def test_a_loop_without_step_is_still_an_error(file):
    model = nn.Linear(2, 2)
    with pytest.raises(CaptureError, match=r"no step was recorded; call c.step"), Capture(model, file, probes="output"):
        for _ in range(3):
            model(ones()).sum().backward()
    assert not list(file.parent.iterdir())


# --- incidents -------------------------------------------------------------------------------------------------------


def run_with(file, *, bad_weight: bool = False, probes: str = "key", **series) -> Trace:
    """Three steps; the last has these values and perhaps a weight that is NaN."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with Capture(model, file, probes=probes) as c:
        for step in range(3):
            model(ones())
            if bad_weight and step == 2:
                with torch.no_grad():
                    model[0].weight[0, 0] = torch.nan
            c.step(**({"loss": 1.0} | series if step == 2 else {"loss": 1.0}))
            assert (c.incident is None) == (step < 2 or not (bad_weight or series) or series.get("loss_scale", 0) > 1)
    return Trace.read(file)


@pytest.mark.parametrize(("values", "text"), [
    (dict(loss=math.nan), "step 2: the loss is nan"), (dict(loss=torch.tensor(INF)), "step 2: the loss is inf"),
    (dict(bad_weight=True), "step 2: 0.weight holds 1 non-finite elements"), (dict(grad_norm=INF), "step 2: the gradient norm is inf"),
    (dict(grad_norm=math.nan, loss_scale=1.0), "step 2: the gradient norm is nan")])
def test_an_incident_whatever_the_probes(file, caplog, values, text):
    with caplog.at_level(logging.WARNING, "opd.capture"):
        trace = run_with(file, **values)
    assert trace.label == "sudden" and trace.first_bad_op is None and trace.manifest["incident"]["step"] == 2
    assert trace.manifest["incident"]["text"].startswith(text)
    advice = trace.manifest["incident"]["advice"]
    assert "--probes output" in advice and "--probes all" in advice
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and said[0] == f"{trace.manifest['incident']['text']}; {advice}"  # at that moment
    assert said[1] == f"{file}: {said[0]}"                                                  # and at the end


@pytest.mark.parametrize("values", [dict(grad_norm=INF, loss_scale=1024.0), {}])
def test_gradients_under_a_loss_scale_are_ordinary(file, values):
    trace = run_with(file, **values)
    assert trace.label == "healthy" and "incident" not in trace.manifest


def test_advice_when_outputs_are_probed_already(file):
    assert "no module's output is non-finite" in run_with(file, loss=math.nan, probes="output").manifest["incident"]["advice"]
    assert "it begins in the loss" in run_with(file, loss=math.nan, probes="all").manifest["incident"]["advice"]


def test_a_label_that_is_given_stays(file):
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output", label="data") as c:
        model(ones())
        c.step(loss=math.nan)
    assert Trace.read(file).label == "data"


def test_a_loss_that_nobody_gave_is_not_a_loss_that_is_nan(file):
    model = nn.Linear(2, 2)
    with Capture(model, file, probes="output") as c:
        for loss in (None, 3.0, None, 2.0, None):
            model(ones())
            c.step(loss=loss)
        assert c.incident is None
    trace = Trace.read(file)
    assert trace.loss.tolist() == [3, 3, 3, 2, 2] and trace.manifest["missing"] == {"loss": [[0, 0], [2, 2], [4, 4]]}
    assert trace.label == "healthy"


# --- calls in their order --------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One activation at the start and at the end; layers between."""

    def __init__(self):
        super().__init__()
        self.act, self.fc1, self.fc2 = nn.Softplus(), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, blow_up=False):
        x = self.fc1(self.act(x))
        return self.act(self.fc2(x * INF if blow_up else x))


def test_a_module_called_twice_has_a_probe_for_each_call(file):
    model = Twice()
    with Capture(model, file, probes="output,gradient") as c:
        for step in range(3):
            model(ones(), step == 2).sum().backward()
            c.step()
    trace = Trace.read(file)
    assert names(trace, "activation") == ["act", "fc1", "fc2", "act#2"]
    assert (trace.first_bad_step, trace.first_bad_op) == (2, "fc2")
    gradients = [name for name in names(trace, "gradient") if "weight" not in name and "bias" not in name]
    assert gradients == ["act#2:grad", "fc2:grad", "fc1:grad"]  # the input of the first call needs none
    assert all(probe(trace, name).shape == (2, 2) for name in (*names(trace, "activation"), *gradients))


def test_micro_batches_are_no_further_calls(file):
    model = Twice()
    with Capture(model, file, probes="output") as c:
        for _ in range(2):
            for _ in range(3):
                model(ones()).sum().backward()
            c.step()
        for _ in range(2):  # two passes before one backward: what a contrastive loss does
            (model(ones()).sum() + model(ones()).sum()).backward()
            c.step()
    trace = Trace.read(file)
    assert names(trace) == ["act", "fc1", "fc2", "act#2"] and {p.shape for p in trace.probes} == {(3, 2, 2)}


def test_parts_that_are_called_by_themselves(file):
    """A loop that never calls the model as a whole; passes end with their backward."""
    model = Twice()
    with Capture(model, file, probes="output") as c:
        for _ in range(2):
            for _ in range(3):
                model.act(model.fc1(model.act(ones()))).sum().backward()
            c.step()
    assert [(p.name, p.shape) for p in Trace.read(file).probes] == [(name, (3, 2, 2)) for name in ("act", "fc1", "act#2")]


class Cell(nn.Module):
    """hidden <- tanh(input + recurrent(hidden)), `times` times."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.sum, self.squash = nn.Linear(2, 2), nn.Identity(), nn.Hardtanh()

    def forward(self, times, overflow_at=None):
        hidden = ones()
        for time in range(times):
            total = self.sum(self.recurrent(hidden) + (INF if time == overflow_at else 0))
            hidden = total * 0.5 if time == overflow_at else self.squash(total)
        return hidden


def test_a_loop_over_time_keeps_its_probes_and_names_the_first(file):
    """More calls than MAX_CALLS: one probe each. `recurrent` runs before `sum`, but was non-finite only one time step later."""
    model = Cell()
    with Capture(model, file, probes="output", statistics="full") as c:
        for step in range(3):
            model(100, 50 if step == 2 else None).sum().backward()
            c.step()
    trace = Trace.read(file)
    assert (trace.first_bad_step, trace.first_bad_op, trace.label) == (2, "sum", "sudden")
    assert sorted(names(trace)) == ["recurrent", "squash", "sum"] and probe(trace, "sum").shape == (100, 2, 2)
    assert names(trace).index("sum") < names(trace).index("recurrent")
    trace.to_bytes()


def test_calls_are_bounded_when_they_become_more(file):
    """MAX_CALLS at first, then ten times as many: the last probe takes them all."""
    model = Cell()
    with Capture(model, file, probes="output", raw="sum*", raw_steps=range(9)) as c:
        for times in (MAX_CALLS, 10 * MAX_CALLS, 2):
            model(times).sum().backward()
            c.step()
    trace = Trace.read(file)
    assert len(names(trace)) == 3 * MAX_CALLS and names(trace)[:4] == ["recurrent", "sum", "squash", "recurrent#2"]
    assert probe(trace, f"sum#{MAX_CALLS}").shape == (9 * MAX_CALLS + 1, 2, 2) and probe(trace, "sum").shape == (2, 2)
    assert trace.manifest["absent"][f"sum#{MAX_CALLS}"] == [[2, 2]]


def test_an_attention_that_layers_share(file):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attention(4, 2, fused=False)

        def forward(self, x):
            return self.attn(self.attn(x))

    model = Shared()
    with Capture(model, file, probes="logits,softmax") as c:
        model(torch.randn(1, 3, 4)).sum().backward()
        c.step()
    assert names(Trace.read(file)) == ["attn:logits", "attn:softmax", "attn#2:logits", "attn#2:softmax"]


def test_merge_takes_the_order_of_the_rank_with_the_incident(tmp_path):
    for rank, overflow_at in ((0, None), (1, 50)):
        model = Cell()
        with Capture(model, tmp_path / str(rank), probes="output") as c:
            model(100, overflow_at).sum().backward()
            c.step()
    merged = merge([tmp_path / "0", tmp_path / "1"])
    assert (merged.label, merged.first_bad_op) == ("sudden", "sum")
    merged.to_bytes()


# --- learning rates, gradient norm, loss scale -----------------------------------------------------------------------


def test_learning_rates_of_all_parameter_groups(file):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.SGD([{"params": model[0].weight}, {"params": model[0].bias, "lr": 0.2}], lr=0.002),
                  torch.optim.SGD(model[1].parameters(), lr=torch.tensor(1.0))]
    with Capture(model, file, probes="weight", optimizer=optimizers) as c:
        for step in range(5):
            model(ones()).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            c.step()
            optimizers[0].param_groups[1]["lr"] = 0.201 if step == 0 else 0.4  # 0.5 % more, then much
            if step == 3:
                optimizers[1].param_groups[0]["lr"] = torch.tensor(INF)
    trace = Trace.read(file)
    assert trace.lr.tolist() == [np.float32(0.002)] * 5  # of the first
    groups = trace.manifest["lr_groups"]
    assert [(group["parameters"], group["first"]) for group in groups] == [(1, "0.weight"), (1, "0.bias"), (2, "1.weight")]
    assert [group["lr"] for group in groups] == [[[0, 0.002]], [[0, 0.2], [2, 0.4]], [[0, 1.0], [4, "inf"]]]


def test_one_parameter_group_needs_no_list(file):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with Capture(model, file, probes="weight", optimizer=optimizer) as c:
        model(ones()).sum().backward()
        optimizer.step()
        c.step()
    assert "lr_groups" not in Trace.read(file).manifest


@pytest.mark.parametrize("clip", [lambda: torch.nn.utils.clip_grad_norm_, lambda: torch.nn.utils.clip_grad.clip_grad_norm_])
def test_gradient_norm_is_that_of_clipping(file, clip):
    model = nn.Linear(2, 2)
    wanted = []
    before = torch.nn.utils.clip_grad_norm_
    with Capture(model, file, probes="weight", auto_loss=True) as c:
        for value in (1.0, 3.0):
            model.zero_grad()
            model(ones(value)).sum().backward()
            wanted.append(clip()((parameter for parameter in model.parameters()), 0.1).item())
            c.step()
    trace = Trace.read(file)
    assert trace.grad_norm.tolist() == [np.float32(value) for value in wanted] and wanted[1] > wanted[0] > 0.1
    assert torch.nn.utils.clip_grad_norm_ is before


@pytest.mark.parametrize(("factor", "scale"), [(1024.0, 1024.0), (lambda: torch.tensor(65536.0), 65536.0), (3.0, None), (2.0, None)])
def test_a_loss_scale_by_hand(file, factor, scale):
    model = nn.Linear(2, 2)
    factor = factor() if callable(factor) else factor
    losses = []
    with Capture(model, file, probes="gradient", auto_loss=True) as c:
        for _ in range(2):
            loss = model(ones()).sum()
            losses.append(loss.item())
            (loss * factor / 4).backward()
            c.step()
        if scale:
            (model(ones()).sum() * 2.0).backward()  # a dynamic scale that has fallen
            c.step()
    trace = Trace.read(file)
    if scale is None:
        assert trace.loss_scale is None and trace.loss.tolist() == [np.float32(loss * factor / 4) for loss in losses]
    else:
        assert trace.loss_scale.tolist() == [scale, scale, 2]
        np.testing.assert_allclose(trace.loss[:2], np.array(losses) / 4, rtol=1e-6)


def test_manifest_that_no_trace_can_hold_is_refused_at_once(file):
    with pytest.raises(CaptureError, match="manifest: .*use dictionaries, lists, texts and finite numbers"):
        Capture(nn.Linear(2, 2), file, manifest={"loss": math.nan})
    assert not list(file.parent.iterdir())


# --- inference -------------------------------------------------------------------------------------------------------


def test_inference_when_asked_for(file):
    model = nn.Linear(2, 2).eval()
    with torch.no_grad(), Capture(model, file, probes="output", inference=True) as c:
        for value in (1.0, 2.0):
            model(ones(value))
            c.step()
    assert Trace.read(file).step.tolist() == [0, 1]
    with torch.no_grad(), pytest.raises(CaptureError, match="no step was recorded"), Capture(model, file, probes="output") as c:
        model(ones())
        c.step()
