"""What a guard leaves of an incident: bundles that replay to the operator, the operator to blame where nothing watched shows it, the last line.

Testplan: GRD-03.
"""
from __future__ import annotations

import json
import logging

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.guard import GuardError  # noqa: E402
from opd.guard.ring import bytes_of_budget  # noqa: E402
from opd.localise import LocaliseError, read_bundle  # noqa: E402
from opd.localise.command import main as localise_command  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

torch.set_num_threads(1)
BAD = 12  # step in which the product of queries and keys overflows FP16


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x):
        q, k = self.q(x) * self.gain, self.k(x) * self.gain
        return (q @ k.transpose(-1, -2)).softmax(-1).to(q.dtype) @ self.v(x)


class Net(nn.Module):
    """answers: what it returns: "logits", "loss", or "object" with .loss."""

    def __init__(self, answers: str = "logits"):
        super().__init__()
        self.first, self.attn, self.norm, self.head = nn.Linear(8, 16), Attention(16), nn.BatchNorm1d(5), nn.Linear(16, 1)
        self.drop = nn.Dropout(0.2)
        self.answers = answers

    def forward(self, x, y=None):
        x = self.first(x)
        out = self.head(self.norm(x + self.drop(self.attn(x)))).mean(1)
        if self.answers == "logits":
            return out
        loss = functional.mse_loss(out.float(), y)
        return loss if self.answers == "loss" else {"loss": loss, "out": out}


def loss_of(model, batch):
    with torch.autocast("cpu", torch.float16):
        out = model(batch[0]) if model.answers == "logits" else model(*batch)
    if isinstance(out, dict):
        return out["loss"]
    return functional.mse_loss(out.float(), batch[1]) if model.answers == "logits" else out


def data(batches: int = 20):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 5, 8, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(batches)]


def guarded(answers="logits", uses_batches=True, bad=(BAD,), steps=20, **options):
    """A run whose attention overflows in the steps `bad`, without modes with the batches `bad`. Returns the guard and the model."""
    torch.manual_seed(0)
    model = Net(answers)
    head = [parameter for name, parameter in model.named_parameters() if name.startswith("head")]
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    optimizer = torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": head, "lr": 5e-3}])
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with opd.guard(model, optimizer, scaler=scaler, hints=False, **options) as g:
        for i, batch in enumerate(g.batches(data(steps)) if uses_batches else data(steps)):
            model.attn.gain.fill_(300.0 if (g.step_number if options.get("modes", True) else i) in bad else 1.0)
            optimizer.zero_grad()
            g.step(loss_of(model, batch))
    return g, model


def events(g, name):
    return [decision for decision in g.decisions if decision["event"] == name]


# --- bundles

@pytest.mark.parametrize("answers, options", [("logits", {"loss_of": loss_of}), ("loss", {}), ("object", {})])
def test_a_bundle_of_a_stopped_step_replays_to_the_operator(answers, options, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "opd.guard"):
        g, model = guarded(answers, incidents=tmp_path / "incidents", **options)
    noted, = events(g, "bundle")
    assert noted["step"] == BAD and noted["missing"] == "" and noted["path"] == str(tmp_path / "incidents" / f"step-{BAD:08d}")
    bundle = read_bundle(noted["path"], trust=True)
    finding = bundle.localise()
    assert (finding.kind, finding.operator, finding.substep) == ("numeric", "attn:matmul", "cast")
    assert finding.step == BAD and bundle.info["loss_scale"] == 256.0 and finding.seen.operator == "attn:logits"
    assert [group["lr"] for group in bundle.info["rates"]] == [1e-3, 5e-3]
    assert bundle.info["rates"][1]["parameters"] == ["head.weight", "head.bias"]
    assert float(bundle.model.attn.gain) == 300.0 and bundle.model.norm.num_batches_tracked == BAD
    assert f"opd localise {noted['path']} --trust" in caplog.text


def test_the_bundle_holds_the_states_from_before_the_step(tmp_path):
    """With them the step can be made again as it would have been: here without the overflow, in the bundle and in a run without a guard."""
    g, _ = guarded(incidents=tmp_path, loss_of=loss_of, steps=BAD + 1)
    bundle = read_bundle(events(g, "bundle")[0]["path"], trust=True)
    plain = guarded_free(steps=BAD)
    for name, value in plain.model.state_dict().items():
        assert name == "attn.gain" or torch.equal(bundle.model.state_dict()[name], value), name
    state, = bundle.optimizers
    wanted = plain.optimizer.state_dict()
    assert state["param_groups"] == wanted["param_groups"] or [g["lr"] for g in state["param_groups"]] == [1e-3, 5e-3]
    assert state["state"].keys() == wanted["state"].keys()
    assert all(torch.equal(state["state"][i][key], wanted["state"][i][key]) for i in wanted["state"] for key in ("step", "exp_avg", "exp_avg_sq"))
    assert bundle.scaler["scale"] == 256.0 and bundle.scaler["_growth_tracker"] == BAD
    optimizer = torch.optim.AdamW([{"params": []}] and [{"params": group, "lr": 1.0} for group in parameters_of(bundle.model)])
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[1]["lr"] == 5e-3


def parameters_of(model):
    named = list(model.named_parameters())
    return [[p for name, p in named if not name.startswith("head")], [p for name, p in named if name.startswith("head")]]


class guarded_free:
    """The same run without a guard."""

    def __init__(self, steps):
        torch.manual_seed(0)
        self.model = Net()
        rest, head = parameters_of(self.model)
        self.optimizer = torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": head, "lr": 5e-3}])
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for batch in data(steps):
            self.model.attn.gain.fill_(1.0)
            self.optimizer.zero_grad()
            scaler.scale(loss_of(self.model, batch)).backward()
            scaler.step(self.optimizer)
            scaler.update()


def test_the_history_of_a_bundle_is_in_the_words(tmp_path, capsys):
    g, _ = guarded("loss", incidents=tmp_path)
    path = events(g, "bundle")[0]["path"]
    history = read_bundle(path, trust=True).history
    assert history.step.tolist() == list(range(BAD + 1)) and history.first_bad_op == "attn:logits"
    assert [group["first"] for group in history.manifest["lr_groups"]] == ["first.weight", "head.weight"]
    assert localise_command([path, "--trust"]) == 0
    page = capsys.readouterr().out
    assert "attn:matmul, in cast" in page and "Before it" in page and f"attn:logits (FP16) is non-finite at step {BAD}" in page
    assert localise_command([path, "--trust", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["operator"] == "attn:matmul" and content["history"]["pages"][0]["operator"] == "attn:logits"
    assert [rate["first"] for rate in content["history"]["pages"][0]["rates"]] == ["first.weight", "head.weight"]


def test_without_a_loss_function_the_forward_pass_is_in_it_and_that_is_said(tmp_path, capsys):
    g, _ = guarded(incidents=tmp_path)
    noted, = events(g, "bundle")
    assert noted["missing"].startswith("The loss function is not in this bundle")
    finding = read_bundle(noted["path"], trust=True).localise()
    assert (finding.operator, finding.substep) == ("attn:matmul", "cast") and finding.evidence[-1] == noted["missing"]
    assert localise_command([noted["path"], "--trust"]) == 0
    assert "The loss function is not in this bundle" in capsys.readouterr().out


def test_a_loss_that_alone_is_bad_is_no_bit_flip_without_its_function(tmp_path):
    """What the bundle cannot replay is not blamed on the hardware."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with opd.guard(model, optimizer, incidents=tmp_path, hints=False) as g:
        for i, (x, y) in enumerate(g.batches(data(6))):
            optimizer.zero_grad()
            g.step((model(x) - y).square().mean() / (0.0 if i == 3 else 1.0))
    assert read_bundle(events(g, "bundle")[0]["path"], trust=True).localise().kind == "none"


def test_bundles_are_few_and_in_their_budget(tmp_path, caplog):
    g, _ = guarded(incidents=tmp_path / "two", incident_limit=2, loss_of=loss_of, bad=(2, 5, 8, 11), modes=False)
    assert [event["step"] for event in events(g, "bundle")] == [2, 4] and len(list((tmp_path / "two").iterdir())) == 2
    g, _ = guarded(incidents=tmp_path / "small", incident_budget=100, loss_of=loss_of)
    noted, = events(g, "no_bundle")
    assert "give incident_budget a larger size" in noted["why"] and not list((tmp_path / "small").iterdir())
    assert guarded(incidents=tmp_path / "none", incident_limit=0)[0].summary()["stopped"] and not list((tmp_path / "none").iterdir())
    again, _ = guarded(incidents=tmp_path / "two", loss_of=loss_of, bad=(2,))
    assert events(again, "bundle")[0]["path"].endswith("step-00000002.2")


def test_what_cannot_be_written_is_said_and_the_run_goes_on(tmp_path):
    g, _ = guarded(incidents=tmp_path, loss_of=lambda model, batch: loss_of(model, batch))
    noted, = events(g, "no_bundle")
    assert "define it at the top level of a module or script" in noted["why"]
    assert g.summary()["steps"] == 20 and g.summary()["detached"] is None
    g, _ = guarded(incidents=tmp_path, loss_of=loss_of, uses_batches=False)
    assert "take them from g.batches(loader)" in events(g, "no_bundle")[0]["why"]


def test_spoilt_parameters_are_replayed_from_the_state_before_or_not_at_all(tmp_path):
    for every, written in ((1, True), (16, False)):
        torch.manual_seed(0)
        model = Net("loss")
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with opd.guard(model, optimizer, incidents=tmp_path / str(every), hints=False, ring_every=every) as g:
            for i, batch in enumerate(g.batches(data(8))):
                optimizer.zero_grad()
                if i == 5:
                    with torch.no_grad():
                        model.first.weight[0, 0] = torch.nan
                g.step(loss_of(model, batch))
        assert bool(events(g, "bundle")) == written and bool(events(g, "no_bundle")) != written
        if written:
            assert bool(read_bundle(events(g, "bundle")[0]["path"], trust=True).model.first.weight.isfinite().all())


# --- localising on the way back

def test_the_operator_that_nothing_watched_shows_goes_to_safe():
    """Only every tenth step is watched: of step BAD the loss alone is known to be bad."""
    g, _ = guarded(loss_of=loss_of, every=10)
    found, = events(g, "localised")
    assert (found["kind"], found["operator"], found["substep"]) == ("numeric", "attn:matmul", "cast") and found["watched"] == ["attn:logits"]
    assert [event["operator"] for event in events(g, "mode") if event["cause"] == "RECOVERY"][0] == "attn:logits"
    assert g.summary()["steps"] == 20 and g.summary()["dropped"] == 0
    assert not events(guarded(loss_of=loss_of, every=10, localise=False)[0], "localised")


def test_a_search_leaves_the_run_as_it_was():
    """The same run, with the search and without: weights, statistics of the batch norm, random numbers. Nothing goes to SAFE."""
    runs = [guarded(loss_of=loss_of, every=10, localise=localise, modes=False, steps=BAD + 3) for localise in (True, False)]
    assert events(runs[0][0], "localised") and not events(runs[1][0], "localised")
    assert all(torch.equal(a, b) for a, b in zip(*(model.state_dict().values() for _, model in runs)))


def test_a_search_is_made_only_where_nothing_else_says_it():
    assert not events(guarded(loss_of=loss_of)[0], "localised")
    g, _ = guarded(every=10)
    assert events(g, "localised")[0]["operator"] == "attn:matmul"  # by the forward pass alone
    assert len(events(guarded(loss_of=loss_of, every=10, incident_limit=1, bad=(2, 12))[0], "localised")) == 1


def test_a_search_that_fails_changes_nothing(monkeypatch, caplog):
    def broken(*arguments, **options):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("opd.localise.search.localise", broken)
    g, _ = guarded(loss_of=loss_of, every=10)
    assert g.summary()["steps"] == 20 and g.summary()["detached"] is None and "broken on purpose" in caplog.text


# --- the last line

def test_the_last_line_tells_the_incident(caplog):
    with caplog.at_level(logging.WARNING, "opd.guard"):
        guarded(loss_of=loss_of)
    assert caplog.messages[-1].startswith(f"attn:logits (FP16) is non-finite at step {BAD}: ") and "Normalise queries and keys" in caplog.messages[-1]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "opd.guard"):
        guarded(loss_of=loss_of, bad=())
    assert not caplog.messages


@pytest.mark.parametrize("options, text", [
    ({"loss_of": 3}, "loss_of: int is no function of (model, batch); give one that returns the loss"),
    ({"incident_limit": -1}, "incident_limit: -1 is not a whole number from 0 on; correct it"),
    ({"incident_budget": "many"}, "incident_budget: 'many' is no size; give bytes, or a text such as \"1GiB\""),
    ({"incidents": "/dev/null/folder"}, "incidents: /dev/null/folder cannot be made (Not a directory); give a folder that can be written to"),
])
def test_wrong_arguments_end_before_training(options, text):
    model = Net()
    with pytest.raises(GuardError) as error:
        opd.guard(model, torch.optim.SGD(model.parameters(), 0.1), **options)
    assert str(error.value) == text
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_damaged_state_or_history_is_refused(tmp_path):
    g, _ = guarded("loss", incidents=tmp_path)
    folder = tmp_path / f"step-{BAD:08d}"
    for name in ("state.safetensors", "history.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(LocaliseError, match=f"{name}: its SHA-256"):
            read_bundle(folder, trust=True)
        (folder / name).write_bytes(content)
    assert bytes_of_budget("1GiB") > sum(file.stat().st_size for file in folder.iterdir())
