"""opd.guard where the loop is not the user's: unedited scripts, the Trainers of Hugging Face and Lightning, Accelerate.

Testplan: GRD-05.
"""
from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

from opd.reference import ReferenceMissing, module  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

from opd.guard import cli  # noqa: E402
from opd.guard.auto import AutoGuard  # noqa: E402
from test_guard import Model, data  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python")}
GAIN = 220.0  # of queries and keys: their product overflows FP16
torch.set_num_threads(1)


class Loop:
    """A training loop that knows nothing of a guard. loader: batches come from a DataLoader; accumulate: micro-batches of a step;
    closure: the optimizer gets one; plant: called with the model and the number of the round."""

    def __init__(self, options: dict | None, precision: str = "FP16", loader: bool = True, accumulate: int = 1, closure: bool = False,
                 plant=None, schedule: bool = False, compiled: str | None = None, lr: float = 1e-3, validates: bool = True, **model):
        torch.manual_seed(0)
        self.auto = None if options is None else AutoGuard({"probes": "key,output", "ring": "64MiB", **options})
        try:
            self.model = Model(**model)
            self.called = self.model if compiled is None else torch.compile(self.model, backend=compiled)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr)
            self.precision, self.closure = precision, closure
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7) if precision == "FP16" else None
            scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5) if schedule else None
            batches = data()
            if loader:
                x, y = (torch.cat(parts) for parts in zip(*batches))
                batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)
            self.losses, self.seen = [], []
            for i, batch in enumerate(batches):
                if plant is not None:
                    plant(self.model, i)
                self.round(batch, (i + 1) % accumulate == 0, accumulate)
                if scheduler is not None:
                    scheduler.step()
                if i % 5 == 4 and validates:
                    self.validate()
            if self.auto is not None and self.auto._guard is not None:
                self.guard = self.auto._guard
                self.guard.finish()
                self.summary = self.guard.summary()
        finally:
            if self.auto is not None:
                self.auto.close()
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in self.model.modules())
        assert "step" not in vars(self.optimizer) or scheduler is not None
        for patched in (torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.update, nn.utils.clip_grad_norm_):
            assert patched.__code__.co_filename.startswith(str(Path(torch.__file__).parent))

    def loss(self, batch):
        with torch.autocast("cpu", torch.float16, enabled=self.precision == "FP16"):
            out = self.called(batch[0])
        return functional.mse_loss(out.float(), batch[1])

    def round(self, batch, is_last: bool, accumulate: int):
        self.seen.append(batch[0])
        if self.closure:
            def closure():
                self.optimizer.zero_grad()
                loss = self.loss(batch)
                loss.backward()
                return loss
            self.losses.append(float(self.optimizer.step(closure).detach()))
            return
        loss = self.loss(batch) / accumulate
        self.losses.append(float(loss.detach()))
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if not is_last:
            return
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(torch.full((4, 5, 8), 1e3), batch_size=2):
                self.called(batch)
        self.model.train()

    @property
    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def events(self, name):
        return [decision for decision in self.guard.decisions if decision["event"] == name]


# --- unedited scripts


@pytest.mark.parametrize("options", [{}, {"loader": False, "accumulate": 2}, {"precision": "FP32", "closure": True}, {"schedule": True}],
                         ids=str)
def test_a_healthy_script_is_bit_identical(options):
    plain, ours = Loop(None, **options), Loop({"probes": "all"}, **options)
    assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights)
    assert ours.summary["steps"] == 24 // options.get("accumulate", 1) and ours.summary["operators"] > 20
    assert ours.summary["stopped"] == ours.summary["mode_changes"] == 0 and ours.summary["detached"] is None


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_stopped_step_comes_again_from_its_loader(accumulate):
    """Without the guard the product overflows, and the scaler, which cannot tell, skips those steps and halves the loss scale for them."""
    plain = Loop(None, gain=GAIN, accumulate=accumulate)
    saved = Loop({"hints": False}, gain=GAIN, accumulate=accumulate)
    assert not all(map(math.isfinite, plain.losses)) and plain.scaler.get_scale() < saved.scaler.get_scale()
    assert saved.summary["steps"] == 24 // accumulate and saved.summary["retries"] == 1 and saved.summary["dropped"] == 0
    assert saved.events("stopped")[0]["operator"] == "attn:logits"
    assert len(saved.losses) == 24 + accumulate and all(map(math.isfinite, saved.losses[accumulate:]))
    for i in range(accumulate):
        assert torch.equal(saved.seen[i], saved.seen[accumulate + i])
    assert all(torch.equal(one, other) for one, other in zip(saved.seen[accumulate:], plain.seen))
    assert bool(saved.weights.isfinite().all())


def test_without_a_loader_the_step_is_dropped_and_the_next_one_is_in_other_modes():
    saved = Loop({"hints": False}, gain=GAIN, loader=False)
    assert saved.summary["steps"] == 23 and saved.summary["dropped"] == 1 and saved.summary["retries"] == 0
    assert saved.events("dropped")[0]["why"] == "the loop does not give its batches again"
    assert len(saved.losses) == 24 and all(map(math.isfinite, saved.losses[1:])) and saved.scaler.get_scale() >= 1024


def test_a_closure_runs_again():
    class Burst(nn.Module):
        """Infinite in FAST, which is what a mode cannot help, in its third call alone."""
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * math.inf if self.calls == 3 else x

    def plant(model, i):
        if i == 0:
            model.mlp[1] = Burst()
    plain = Loop(None, "FP32", closure=True, plant=plant)
    saved = Loop({"hints": False}, "FP32", closure=True, plant=plant)
    assert not math.isfinite(plain.losses[-1])
    assert len(saved.losses) == 24 and all(map(math.isfinite, saved.losses)) and saved.summary["retries"] == 1
    healthy = Loop(None, "FP32", closure=True)
    assert saved.losses[:2] == healthy.losses[:2] and bool(saved.weights.isfinite().all())


def test_parameters_that_turn_nan_are_rolled_back_and_the_batches_since_come_again():
    planted = []

    def plant(model, i):
        if i == 11 and not planted:
            planted.append(i)
            with torch.no_grad():
                model.mlp[0].weight[3, 3] = math.nan
    # Without validation, whose loader draws random numbers between two steps: a round more would move them.
    run, healthy = Loop({"ring_every": 4}, "FP32", plant=plant, validates=False), Loop(None, "FP32", validates=False)
    assert run.summary["roll_backs"] == 1 and run.summary["detached"] is None
    back = run.events("roll_back")[0]
    assert back["to"] == 7 and back["batches"] == 4 and back["step"] == 11
    assert run.losses[:11] == healthy.losses[:11] and run.losses[12:] == healthy.losses[8:]
    assert torch.equal(run.weights, healthy.weights)


def test_modules_of_one_optimizer_are_guarded_as_one():
    """From the second step on, an encoder and a decoder, with a parameter of no module."""
    def run(options):
        torch.manual_seed(0)
        auto = None if options is None else AutoGuard(options)
        first, second, loose = nn.Linear(8, 8), nn.Linear(8, 1), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters(), loose], 0.01)
        losses = []
        for i, (x, y) in enumerate(data(12)):
            if i == 7 and options:
                with torch.no_grad():
                    loose.fill_(math.nan)
            loss = functional.mse_loss(second(first(x)).mean(1) * loose, y)
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        summary = auto._guard.summary() if auto is not None else {}
        if auto is not None:
            auto.close()
        return losses, summary, loose
    losses, summary, loose = run({"probes": "output", "ring_every": 2})
    plain, _, _ = run(None)
    assert losses[:7] == plain[:7] and not math.isfinite(losses[7]) and all(map(math.isfinite, losses[8:])) and bool(loose.isfinite())
    assert summary["roll_backs"] == 1 and summary["operators"] == 2


def test_a_model_with_an_optimizer_of_its_own_is_left_alone():
    torch.manual_seed(0)
    auto = AutoGuard({"probes": "output"})
    one, other = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (one, other)]
    for i, (x, y) in enumerate(data(6)):
        for model, optimizer in zip((one, other), optimizers):
            loss = functional.mse_loss(model(x).mean(1), y) * (math.inf if i == 3 and model is other else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    summary, alone = auto._guard.summary(), auto._alone
    auto.close()
    assert summary["stopped"] == 0 and summary["detached"] is None and alone == {"Linear"}
    assert bool(one.weight.isfinite().all()) and not bool(other.weight.isfinite().any())


def test_two_optimizers_of_one_model_get_one_answer():
    torch.manual_seed(0)
    auto = AutoGuard({"probes": "output", "modes": False})
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizers = [torch.optim.SGD(part.parameters(), 0.01) for part in model]
    for i, (x, y) in enumerate(data(6)):
        before = [p.detach().clone() for p in model.parameters()]
        loss = functional.mse_loss(model(x).mean(1), y) * (math.nan if i == 3 else 1.0)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert [torch.equal(p, q) for p, q in zip(before, model.parameters())] == [i == 3] * 4
    auto._guard.finish()
    summary = auto._guard.summary()
    auto.close()
    assert summary["steps"] == 5 and summary["stopped"] == summary["dropped"] == 1


def test_a_guard_that_fails_never_ends_the_script(monkeypatch):
    def broken(number):
        raise RuntimeError("no such device")
    plain = Loop(None)
    ours = Loop({"device": broken})
    assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights) and "no such device" in ours.summary["detached"]
    monkeypatch.setattr(AutoGuard, "_see_call", lambda self, module: 1 / 0)
    ours = Loop({})
    assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights)


def test_lbfgs_is_said_to_be_beyond_it():
    torch.manual_seed(0)
    auto = AutoGuard({"probes": "output"})
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in data(3):
        def closure():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x).mean(1), y)
            loss.backward()
            return loss
        optimizer.step(closure)
    assert "LBFGS" in auto._guard.summary()["detached"]
    auto.close()


SCRIPT = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1)
    def forward(self, x):
        return self.down(self.norm(self.up(x)))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4, num_workers=int(sys.argv[2]))
for i, x in enumerate(loader):
    with torch.autocast("cpu", torch.float16):
        out = model(x * float(sys.argv[1]))
    loss = (out.float() - x[:, :1]).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print(repr(loss.item()), flush=True)
sys.exit(7)
"""


def opd_guard(*arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "opd", "guard", *map(str, arguments)], env=ENVIRONMENT, text=True, capture_output=True,
                          timeout=300, **options)


def test_the_command(tmp_path):
    """A healthy script: same output, same status, one last line. One that overflows: every loss but the first is finite."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain = subprocess.run([sys.executable, script, "1", "2"], text=True, capture_output=True, timeout=300)
    healthy = opd_guard("--", sys.executable, script, 1, 2)
    assert healthy.stdout == plain.stdout and len(plain.stdout.splitlines()) == 6 and healthy.returncode == plain.returncode == 7
    assert healthy.stderr.splitlines()[-1] == ("opd guard: Net: 6 steps went through, 0 stopped, 0 mode changes, 0.0 % of 9 operators' "
                                               "executions outside of FAST"), healthy.stderr
    saved = opd_guard("--log", tmp_path / "log.jsonl", "--", script, 1e6, 0)
    losses = [float(line) for line in saved.stdout.splitlines()]
    assert len(losses) == 7 and not math.isfinite(losses[0]) and all(map(math.isfinite, losses[1:])) and saved.returncode == 7
    assert "6 steps went through, 1 stopped (1 tried again, 0 dropped)" in saved.stderr.splitlines()[-1]
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {"stopped", "retry", "mode"} <= {event["event"] for event in events}


def test_probes_that_match_nothing_end_the_command(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = opd_guard("--probes", "nrom", "--", script, 1, 0)
    assert result.returncode == 2 and "did you mean" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("arguments, text", [
    ([], "no command"), (["--", "torchrun", "train.py"], "torchrun: starts several processes"),
    (["--", "python", "-m", "torch.distributed.run", "t.py"], "torch.distributed.run: starts several"),
    (["--", "accelerate", "launch", "t.py"], "accelerate: starts several"),
    (["--ring", "much", "--", "python", "t.py"], "ring: 'much' is no size"), (["--every", "0", "--", "python", "t.py"], "--every: 0"),
    (["--device", "abacus", "--", "python", "t.py"], "device: 'abacus' is unknown"),
    (["--config", "none.json", "--", "python", "t.py"], "none.json"),
    (["--log", "no/where/x", "--", "python", "t.py"], "--log: the folder"),
    (["--", "./no-such-command"], "cannot be run")], ids=str)
def test_what_cannot_work_is_said_before_the_script_runs(arguments, text, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    error = capsys.readouterr().err
    assert status == 2 and text in error and "Traceback" not in error


# --- Trainers


class Classifier(nn.Module):
    """Under FP16 autocast of its own: Trainers refuse FP16 on a CPU."""

    def __init__(self, gain: float):
        super().__init__()
        self.net = Model(gain=gain)

    def forward(self, x, labels):
        with torch.autocast("cpu", torch.float16):
            out = self.net(x)
        return {"loss": functional.mse_loss(out.float(), labels), "logits": out}


def huggingface(tmp_path, prepare, gain: float):
    import transformers
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=5, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3,
        use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=3)
    rows = [{"x": x[0], "labels": y[0]} for x, y in data(20)]
    trainer = prepare(transformers.Trainer(Classifier(gain), arguments, train_dataset=rows))
    trainer.train()
    return trainer, torch.cat([p.detach().flatten() for p in trainer.model.parameters()]), trainer.lr_scheduler.last_epoch


def test_trainer_of_hugging_face(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from opd.guard.huggingface import GuardCallback, guarded

    def alone(trainer):
        trainer.guard = GuardCallback(hints=False)
        trainer.add_callback(trainer.guard)
        return trainer

    for gain in (1.0, GAIN):
        _, plain, _ = huggingface(tmp_path, lambda trainer: trainer, gain)
        assert bool(plain.isfinite().all()) == (gain == 1.0)
        for prepare, dropped in ((lambda trainer: guarded(trainer, hints=False), 0), (alone, 1)):
            trainer, weights, schedule = huggingface(tmp_path, prepare, gain)
            summary = trainer.guard.summary()
            assert bool(weights.isfinite().all()) and summary["detached"] is None
            assert "training_step" not in vars(trainer) and "step" not in vars(trainer.optimizer)
            if gain == 1.0:
                assert torch.equal(weights, plain) and summary["steps"] == schedule == 5 and summary["stopped"] == 0
            else:
                assert summary["stopped"] == 1 and summary["dropped"] == dropped and summary["retries"] == 1 - dropped
                assert summary["steps"] == schedule == 5 - dropped and summary["mode_changes"] > 0


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_trainer_of_lightning(tmp_path, precision):
    """16-mixed by the plugin itself: by its name Lightning refuses it on a CPU."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from lightning.pytorch.plugins import MixedPrecision
    from opd.guard.lightning import GuardCallback

    class Module(lightning.LightningModule):
        def __init__(self, gain):
            super().__init__()
            self.net = Model(gain=gain)

        def training_step(self, batch, index):
            with torch.autocast("cpu", torch.float16):
                return functional.mse_loss(self.net(batch[0]).float(), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def run(callbacks, gain):
        torch.manual_seed(0)
        model = Module(gain)
        x, y = (torch.cat(parts) for parts in zip(*data(10)))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        plugins = {} if precision == "32-true" else {"plugins": [MixedPrecision(precision, "cpu", scaler)]}
        trainer = lightning.Trainer(max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False, callbacks=callbacks,
                                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                    gradient_clip_val=1.0, default_root_dir=tmp_path, **plugins)
        trainer.fit(model, loader)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), scaler.get_scale(), model

    healthy, _, _ = run([], 1.0)
    callback = GuardCallback(hints=False)
    weights, _, model = run([callback], 1.0)
    assert torch.equal(weights, healthy) and callback.summary()["steps"] == 5 and callback.summary()["stopped"] == 0
    broken, low, _ = run([], GAIN)
    assert precision == "16-mixed" or not bool(broken.isfinite().any())
    callback = GuardCallback(hints=False)
    weights, scale, model = run([callback], GAIN)
    summary = callback.summary()
    assert bool(weights.isfinite().all()) and summary["detached"] is None
    assert summary["steps"] == 5 and summary["retries"] == 1 and summary["dropped"] == 0 and (precision == "32-true" or scale > low)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_accelerate(mixed):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from opd.guard.accelerate import guard

    def run(options, gain, spoilt=False):
        torch.manual_seed(0)
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=2)
        model = Model(gain=gain)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        x, y = (torch.cat(parts) for parts in zip(*data(12)))
        x[18] *= math.nan if spoilt else 1.0
        loader = torch.utils.data.DataLoader(list(zip(x, y)), batch_size=4)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        made = None if options is None else guard(accelerator, model, optimizer, **options)
        for x, y in (loader if made is None else made.batches(loader)):
            with accelerator.accumulate(model):
                with torch.autocast("cpu", torch.float16, enabled=mixed == "no"):
                    out = model(x)
                accelerator.backward(functional.mse_loss(out.float(), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        summary = None
        if made is not None:
            made.close()
            summary = made.summary()
        return torch.cat([p.detach().flatten() for p in model.parameters()]), summary, schedule.scheduler.last_epoch

    healthy, _, epochs = run(None, 1.0)
    weights, summary, own = run({"hints": False}, 1.0)
    assert torch.equal(weights, healthy) and own == epochs == 6 and summary["steps"] == 6 and summary["stopped"] == 0
    gain, spoilt = (GAIN, False) if mixed == "no" else (1.0, True)  # no overflow that a wider mode than BF16 would help
    broken, _, _ = run(None, gain, spoilt)
    weights, summary, own = run({"hints": False}, gain, spoilt)
    assert not bool(broken.isfinite().any()) and bool(weights.isfinite().all()) and summary["detached"] is None
    if mixed == "no":
        assert summary["steps"] == 6 and summary["retries"] == 1 and summary["dropped"] == 0 and own == 6
    else:
        assert summary["steps"] == 5 and summary["retries"] == 0 and summary["dropped"] == 1 and own == 5


# --- torch.compile


def test_an_attention_in_compiled_code_changes_its_mode():
    """Its forward is the capture's already: a mode goes around it."""
    saved = Loop({"hints": False, "compiled": "split"}, gain=GAIN, compiled="eager", validates=False)
    assert saved.summary["retries"] == 1 and saved.summary["dropped"] == 0 and all(map(math.isfinite, saved.losses[1:]))
    assert not saved.events("ordinary") and "forward" not in vars(saved.model.attn)


@pytest.mark.parametrize("compiled", ["skip", "split"])
def test_a_healthy_compiled_script(compiled):
    """Left alone it is the compiled run bit for bit; cut at its probes it need not be."""
    plain, ours = Loop(None, compiled="aot_eager"), Loop({"compiled": compiled}, compiled="aot_eager")
    assert ours.summary["stopped"] == 0 and ours.summary["detached"] is None and ours.summary["steps"] == 24
    if compiled == "skip":
        assert ours.losses == plain.losses and torch.equal(ours.weights, plain.weights)
    else:
        assert ours.summary["operators"] > 20
