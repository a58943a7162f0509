"""opd.capture where the loop is not the user's: launcher, several processes, torch.compile, Trainer of Hugging Face and Lightning."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"

from opd.capture import Capture, CaptureError, merge  # noqa: E402
from opd.capture import cli, collectives  # noqa: E402
from opd.trace import Trace  # noqa: E402
from test_capture import Gpt, hooks_of, names, probe, train  # noqa: E402
from torch import nn  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGES)}

# A script that knows nothing of opd: FP16 with a loss scale that overflows once, validation, a loss module.
SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 18, growth_interval=1000)
criterion = torch.nn.MSELoss()
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = criterion(model(torch.randn(16, 4)).float(), torch.ones(16, 2))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(repr(loss.item()), flush=True)
    model.eval()
    with torch.no_grad():
        model(torch.full((1, 4), 1e4))
    model.train()
    if step == 5 and len(sys.argv) > 2:
        sys.stdin.readline()
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def opd_capture(*arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "opd", "capture", *map(str, arguments)], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=300, **options)


# --- launcher --------------------------------------------------------------------------------------------------------


def test_a_script_is_captured_as_it_is(tmp_path, script):
    plain = subprocess.run([sys.executable, script, "6"], text=True, capture_output=True, timeout=300)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the other one', flush=True)\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{PACKAGES}:{tmp_path / 'site'}"}
    command = [sys.executable, "-m", "opd", "capture", "--out", tmp_path / "run.safetensors", "--probes", "all", "--", script, "6"]
    captured = subprocess.run(list(map(str, command)), env=environment, text=True, capture_output=True, timeout=300)
    assert plain.returncode == captured.returncode == 7, captured.stderr
    lines = captured.stdout.splitlines()  # of the launcher, then of the script
    assert lines[:2] == ["the other one"] * 2 and lines[2:] == plain.stdout.splitlines() and len(lines) == 8
    assert f"opd capture: {tmp_path / 'run.safetensors'}" in captured.stderr
    trace = Trace.read(tmp_path / "run.safetensors")
    assert trace.step.tolist() == list(range(6))  # a step that the scaler skipped is one too
    assert trace.loss.tolist() == [np.float32(float(line)) for line in lines[2:]]
    scales = trace.loss_scale.tolist()
    assert scales[0] == 2.0**18 and scales == sorted(scales, reverse=True) and scales[-1] < scales[0]
    assert probe(trace, "0").shape == (16, 8) and probe(trace, "0").format == "FP16" and trace.lr.tolist() == [np.float32(0.1)] * 6
    assert "2.weight:exp_avg_sq" in names(trace, "optimizer") and "2.weight:grad" in names(trace, "gradient")


def test_a_killed_command_leaves_its_trace(tmp_path, script):
    command = [sys.executable, "-m", "opd", "capture", "--out", str(tmp_path / "run.safetensors"), "--", sys.executable, str(script),
               "100", "wait"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        for _ in range(6):
            assert float(process.stdout.readline()) > 0
        process.send_signal(signal.SIGTERM)  # handed on; the script dies of it
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        assert "run.safetensors" in process.stderr.read()
    trace = Trace.read(tmp_path / "run.safetensors")
    assert trace.step.tolist() in (list(range(5)), list(range(6))) and trace.manifest["complete"] is False
    assert not list(tmp_path.glob("*.journal"))


def test_a_command_without_training(tmp_path):
    result = opd_capture("--out", tmp_path / "run.safetensors", "--", sys.executable, "-c", "import torch")
    assert result.returncode == 0 and "no trace: no process of the command trained" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "no command; for instance"),
    (["--recover", "missing.journal"], "missing.journal: cannot be read (No such file or directory)"),
    (["--recover", __file__], "is not the journal of a capture"),
    (["--merge", "a", "b"], "give the file to write with --out"),
    (["--merge", "a", "--out", "b"], "give the traces of at least two ranks"),
    (["--raw-steps", "1:2", "--", "true"], "name some with --raw"),
    (["--raw", "*", "--raw-steps", "5:2", "--", "true"], "'5:2' is not FIRST:LAST"),
    (["--out", "no/such/run.safetensors", "--", "true"], "its folder does not exist"),
    (["--", "no-such-command"], "no-such-command: cannot be run"),
    (["train.py"], "'train.py' is not expected"),
])
def test_bad_command_lines(arguments, message, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2 and message in capsys.readouterr().err


def test_recover_on_the_command_line(tmp_path, capsys):
    model = nn.Linear(2, 2)
    c = Capture(model, tmp_path / "run.safetensors", probes="output")
    model(torch.ones(1, 2))
    c.step(loss=1.0)
    copy = tmp_path / "copy.safetensors.journal"
    copy.write_bytes((tmp_path / "run.safetensors.journal").read_bytes())
    c.close()
    assert cli.main(["--recover", str(copy)]) == 0 and str(tmp_path / "copy.safetensors") in capsys.readouterr().out
    assert Trace.read(tmp_path / "copy.safetensors").step.tolist() == [0] and not copy.exists()


# --- several processes -----------------------------------------------------------------------------------------------


DDP = """
import os, sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    with ddp.no_sync():
        ddp(torch.randn(3, 4)).square().mean().backward()
    loss = ddp(torch.randn(3, 4)).square().mean()
    loss.backward()
    averaged = [parameter.grad.abs().max().item() for parameter in model.parameters()]
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    with open(f"{sys.argv[1]}.{rank}", "a") as log:  # two processes would mix on one standard output
        print(rank, step, repr(loss.item()), repr(total.item()), *map(repr, averaged), file=log)
dist.destroy_process_group()
"""


def test_two_processes(tmp_path):
    (tmp_path / "ddp.py").write_text(DDP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1",
                str(tmp_path / "ddp.py")]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "opd", "capture", "--out", str(tmp_path / "run.safetensors"), "--probes", "key,gradient",
               "--statistics", "full", "--", *torchrun]
    lines = {}
    for name, start in (("plain", torchrun), ("captured", command)):
        result = subprocess.run([*start, str(tmp_path / name)], env=environment, text=True, capture_output=True, timeout=300)
        assert result.returncode == 0, result.stderr
        lines[name] = [line for rank in (0, 1) for line in (tmp_path / f"{name}.{rank}").read_text().splitlines()]
    assert lines["captured"] == lines["plain"] and len(lines["plain"]) == 6
    traces = [Trace.read(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)]
    compared = 0
    for line in lines["captured"]:
        rank, step, loss, total, *averaged = line.split()
        trace, step = traces[int(rank)], int(step)
        assert trace.manifest["rank"] == [int(rank), 2] and trace.loss[step] != 0
        reduced = [trace.max_abs[step, names(trace).index(f"{i}.{part}:allreduce")] for i in (0, 1, 2) for part in ("weight", "bias")]
        assert reduced == [np.float32(float(value)) for value in averaged]  # before clipping
        compared += len(reduced)
    assert compared == 36
    assert probe(traces[0], "1").shape == (2, 3, 8) and probe(traces[0], "0.weight:allreduce").shape == (8, 4)

    out = tmp_path / "merged.safetensors"
    assert cli.main(["--merge", *(str(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)), "--out", str(out)]) == 0
    merged = Trace.read(out)
    assert names(merged) == names(traces[0]) and probe(merged, "1").shape == (2, 2, 3, 8)
    assert np.array_equal(merged.max_abs, np.maximum(traces[0].max_abs, traces[1].max_abs))
    assert np.array_equal(merged.zero, traces[0].zero + traces[1].zero)
    np.testing.assert_allclose(merged.mean, (traces[0].mean + traces[1].mean) / 2, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(merged.loss, (traces[0].loss + traces[1].loss) / 2, rtol=1e-6)
    weight = names(merged).index("0.weight")
    np.testing.assert_allclose(merged.var[:, weight], traces[0].var[:, weight], rtol=1e-5)  # replicas: the same elements twice


def test_explicit_all_reduce(tmp_path):
    """In a group of one process, so that the test itself sees the tensors."""
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        with Capture(model, tmp_path / "run.safetensors", probes="allreduce") as c:
            for step in range(2):
                dist.all_reduce(torch.full((3,), 2.0 + step))
                work = dist.all_reduce(torch.full((4,), -5.0).half(), async_op=True)
                assert work.wait() is not None and work.is_completed()
                dist.all_reduce(torch.ones(1, dtype=torch.long))
                c.step()
        wrapper = nn.parallel.DistributedDataParallel(model)
        with Capture(model, tmp_path / "inner.safetensors", probes="allreduce") as c:  # the wrapper around it is found
            wrapper(torch.ones(3, 2)).sum().backward()
            c.step()
    finally:
        dist.destroy_process_group()
    trace = Trace.read(tmp_path / "run.safetensors")
    assert [(p.name, p.kind, p.format, p.shape) for p in trace.probes] == [
        ("all_reduce", "collective", "FP32", (3,)), ("all_reduce[1]", "collective", "FP16", (4,))]
    assert trace.max_abs.tolist() == [[2, 5], [3, 5]]
    inner = Trace.read(tmp_path / "inner.safetensors")
    assert names(inner) == ["weight:allreduce", "bias:allreduce"] and inner.max_abs.tolist() == [[3, 3]]


@pytest.mark.parametrize(("bad_rank", "label"), [(None, "healthy"), (0, "sudden"), (1, "sudden")])
def test_merge_is_labelled_as_the_rank_where_something_happened(tmp_path, bad_rank, label):
    model = nn.Linear(2, 2)
    for rank in (0, 1):
        with Capture(model, tmp_path / str(rank), probes="output") as c:
            model(torch.full((1, 2), torch.inf if rank == bad_rank else 1.0))
            c.step()
    assert merge([tmp_path / "0", tmp_path / "1"]).label == label


def test_merge_refuses_what_does_not_belong_together(tmp_path):
    for name, model, first in (("a", nn.Linear(2, 2), 0), ("b", nn.Linear(2, 2), 5), ("c", nn.Sequential(nn.Linear(2, 2)), 0)):
        with Capture(model, tmp_path / name, probes="output", first_step=first) as c:
            model(torch.ones(1, 2))
            c.step()
    with pytest.raises(CaptureError, match="no step in common"):
        merge([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(CaptureError, match="no probe in common"):
        merge([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(CaptureError, match="is named twice"):  # its counts would count twice
        merge([tmp_path / "a", tmp_path / ".." / tmp_path.name / "a"])


# --- torch.compile ---------------------------------------------------------------------------------------------------


def in_place(model):
    model.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="aot_eager"), in_place], ids=["wrapped", "in place"])
def test_compiled_code_is_left_alone_or_split(tmp_path, wrap, caplog):
    caplog.set_level("WARNING", logger="opd.capture")  # the training program may have raised it in this process
    file = tmp_path / "run.safetensors"
    torch.compiler.reset()
    wanted = train(wrap=wrap)[0]
    plain = tmp_path / "plain.safetensors"
    train(plain, probes="all")
    torch.compiler.reset()
    assert train(file, wrap=wrap, probes="all")[0] == wanted
    skipped = Trace.read(file)
    assert names(skipped, "activation") == [] and len(names(skipped, "weight")) == 25
    assert "modules are inside code of torch.compile and are not probed" in caplog.text
    captured = train(file, wrap=wrap, probes="all", compiled="split")[0]
    split = Trace.read(file)
    assert captured == pytest.approx(wanted, rel=1e-6) and names(split, "activation") == names(Trace.read(plain), "activation")
    assert len(names(split, "activation")) == 20
    torch.compiler.reset()


def test_bench_of_both_models(tmp_path, capsys):
    """The table has a row for each way, and losses are compared: a capture that changed one would raise."""
    sizes = ["--layers", "1", "--width", "16", "--heads", "2", "--length", "8", "--batch", "2", "--steps", "2"]
    assert cli.main(["--bench", "--", *sizes]) == 0
    said = capsys.readouterr().out
    assert "1 layers, width 16" in said
    for way in ("nothing", "opd, key probes", "opd, all probes", "HF DebugUnderflowOverflow", "max, min, mean, norm"):
        assert f"\n{way}" in said, way
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: scripts/setup installs it")
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    transformers.BertModel(config).save_pretrained(tmp_path)
    assert cli.main(["--bench", "--", "--pretrained", str(tmp_path), "--length", "8", "--batch", "2", "--steps", "2"]) == 0
    assert "pretrained BertModel, 1 layers, width 16" in capsys.readouterr().out


# --- trainers --------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A model with the interface a Hugging Face Trainer wants."""

    def __init__(self):
        super().__init__()
        self.gpt = Gpt(fused=True)

    def forward(self, x, labels):
        logits = self.gpt(x)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}



def test_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from opd.capture.huggingface import CaptureCallback

    data = [{"x": torch.arange(8) % 19, "labels": (torch.arange(8) + i) % 19} for i in range(12)]

    def run(callbacks):
        torch.manual_seed(0)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=3)
        trainer = transformers.Trainer(Classifier(), arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
        return trainer, [row["loss"] for row in trainer.state.log_history if "loss" in row]

    wanted = run([])[1]
    trainer, losses = run([CaptureCallback(tmp_path / "run.safetensors", probes="all")])
    trace = Trace.read(tmp_path / "run.safetensors")
    assert losses == wanted and len(losses) == 3 and trace.step.tolist() == [0, 1, 2]
    np.testing.assert_allclose(trace.loss * 2, losses, rtol=1e-3)  # the Trainer divides by the accumulation steps
    np.testing.assert_allclose(trace.lr, [1e-2, 1e-2 * 2 / 3, 1e-2 / 3], rtol=1e-5)
    assert probe(trace, "gpt.blocks.0.norm1").shape == (2, 2, 8, 16) and "gpt.blocks.1.attn:logits" in names(trace)
    assert "gpt.head.weight:exp_avg" in names(trace, "optimizer") and hooks_of(trainer.model) == 0


def test_trainer_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from opd.capture.lightning import CaptureCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.gpt = Gpt()
            self.losses = []

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.gpt(batch).flatten(0, 1), batch.flatten())
            self.losses.append(loss.item())
            if self.fail_at == index:
                raise ZeroDivisionError("user")
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s)), "interval": "step"}]

    def run(callbacks, fail_at=None):
        torch.manual_seed(0)
        module = Module()
        module.fail_at = fail_at
        data = torch.utils.data.DataLoader(torch.randint(19, (12, 8)), batch_size=2)
        trainer = lightning.Trainer(max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False, callbacks=callbacks,
                                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=tmp_path)
        trainer.fit(module, data)
        return module

    wanted = run([]).losses
    module = run([CaptureCallback(tmp_path / "run.safetensors", probes="all")])
    trace = Trace.read(tmp_path / "run.safetensors")
    assert module.losses == wanted and len(wanted) == 6 and trace.step.tolist() == [0, 1, 2] and hooks_of(module) == 0
    np.testing.assert_allclose(trace.lr, [1e-2, 1e-2 / 2, 1e-2 / 3], rtol=1e-6)
    np.testing.assert_allclose(trace.loss * 2, np.reshape(wanted, (3, 2)).mean(axis=1), rtol=1e-5)
    assert probe(trace, "gpt.blocks.0.norm1").shape == (2, 2, 8, 16) and "gpt.head.weight:exp_avg" in names(trace, "optimizer")
    with pytest.raises(ZeroDivisionError):
        run([CaptureCallback(tmp_path / "failed.safetensors")], fail_at=4)
    failed = Trace.read(tmp_path / "failed.safetensors")
    assert failed.step.tolist() == [0, 1, 2] and failed.manifest["unfinished_step"] == 2


def test_a_dead_weak_proxy_is_no_wrapper(monkeypatch):
    """The search for the wrapper goes through every object; one may be a proxy of an object that is gone."""
    monkeypatch.setattr(collectives.dist, "is_initialized", lambda: True)
    model = torch.nn.Linear(2, 2)
    other = torch.nn.Linear(2, 2)
    proxy = weakref.proxy(other)
    del other
    gc.collect()
    assert collectives.find_wrapper(model) is None
    assert proxy is not None
