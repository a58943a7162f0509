"""opd capture on scripts of many kinds, as they are: which models and steps it finds, and that its last line says what happened."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"
REPORTS = next((folder for folder in (ROOT.parent / "shared" / "reports", ROOT / "shared" / "reports") if folder.is_dir()), None)

from opd.trace import Trace  # noqa: E402
from test_capture import column, names  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGES)}
HEAD = """
import gc, math, os, sys
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.set_num_threads(1)
def net(): return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
def data(): return torch.randn(6, 4)
"""


class Captured:
    """What a script left: exit status, last lines of the launcher, traces by name."""

    def __init__(self, folder: Path, result: subprocess.CompletedProcess):
        self.status, self.output, self.errors, self.folder = result.returncode, result.stdout, result.stderr, folder
        self.lines = [line for line in result.stderr.splitlines() if line.startswith("opd capture: ")]
        self.files = sorted(path.name for path in folder.iterdir() if path.suffix != ".py")

    @property
    def trace(self) -> Trace:
        assert self.files == ["run.safetensors"], (self.files, self.errors)
        return Trace.read(self.folder / "run.safetensors")


@pytest.fixture
def captured(tmp_path):
    def run(script: str, *options: str, environment=ENVIRONMENT, command=()) -> Captured:
        file = tmp_path / "train.py"
        file.write_text(HEAD + textwrap.dedent(script))
        result = subprocess.run([sys.executable, "-m", "opd", "capture", "--out", str(tmp_path / "run.safetensors"), *options, "--",
                                 *(command or (sys.executable, str(file)))], env=environment, text=True, capture_output=True,
                                timeout=600)
        return Captured(tmp_path, result)
    return run


# --- the inputs that others have reported ----------------------------------------------------------------------------


def reported(captured, name: str, probes: str) -> Captured:
    if REPORTS is None:
        pytest.skip("the folder shared/ is not here")
    return captured("", "--probes", probes, command=(sys.executable, str(REPORTS / name)))


def test_reported_stop_on_nan(captured):
    result = reported(captured, "capture_stop_on_nan.py", "all")
    trace = result.trace
    assert result.status == 1 and trace.step.tolist() == list(range(30)) and trace.manifest["unfinished_step"] == 29
    assert (trace.first_bad_step, trace.first_bad_op, trace.label) == (29, "fc2", "sudden") and np.isnan(trace.loss[29])
    assert result.lines[-1].endswith("30 steps 0..29, step 29 unfinished; step 29: fc2 is the first that is non-finite")


def test_reported_stop_on_nan_with_default_probes(captured):
    result = reported(captured, "capture_stop_on_nan.py", "key")
    trace = result.trace
    assert trace.step[-1] == 29 and trace.label == "sudden" and np.isnan(trace.loss[29]) and not np.isnan(trace.loss[:29]).any()
    assert "step 29: the loss is nan" in result.lines[-1] and "--probes output" in result.lines[-1]


@pytest.mark.parametrize(("probes", "op", "step"), [("key", None, None), ("all", "block.1.wo", 46)])
def test_reported_default_probes(captured, probes, op, step):
    result = reported(captured, "capture_default_probes.py", probes)
    trace = result.trace
    assert (trace.label, trace.first_bad_op, trace.first_bad_step) == ("sudden", op, step)
    if probes == "key":
        first = trace.step[np.isnan(trace.loss)][0]  # which one depends on the CPU's order of sums
        assert trace.manifest["incident"]["text"].startswith(f"step {first}: the loss is nan")
        assert all("--probes output" in said for said in (trace.manifest["incident"]["advice"], result.lines[-1]))
        assert result.errors.count("no probe of the forward pass is non-finite") == 2  # at that moment, and at the end


def test_reported_called_twice(captured):
    trace = reported(captured, "capture_called_twice.py", "all").trace
    assert (trace.first_bad_step, trace.first_bad_op) == (33, "fc2")
    assert names(trace, "activation") == ["embed", "drop", "fc1", "fc2", "drop#2", "head"]


def test_reported_master_weights(captured):
    result = reported(captured, "capture_master_weights.py", "all")
    trace = result.trace
    skipped = [int(line.split()[2]) for line in result.output.splitlines() if line.startswith("overflow at")]
    assert len(skipped) == 6 and trace.step.tolist() == list(range(30)) and trace.manifest["no_optimizer_step"] == skipped
    gradients = [p for p, probe in enumerate(trace.probes) if probe.kind == "gradient"]
    assert np.flatnonzero(trace.nonfinite[:, gradients].any(axis=1)).tolist() == skipped and trace.label == "healthy"
    assert trace.loss_scale[0] == 2.0**22 and trace.loss_scale[-1] == 2.0**16 and trace.loss.max() < 10
    assert trace.lr.tolist() == [np.float32(1e-3)] * 30 and "0.weight:exp_avg" in names(trace, "optimizer")
    weight = column(trace, "0.weight")  # as the script has copied it back
    assert skipped == [0, 1, 2, 3, 4, 6] and (weight[:5] == weight[0]).all() and weight[5] != weight[4]
    assert weight[6] == weight[5] and weight[7] != weight[6]


def test_reported_nan_but_healthy(captured):
    result = reported(captured, "capture_nan_but_healthy.py", "key")
    trace = result.trace
    assert trace.label == "sudden" and trace.manifest["incident"]["step"] == 30 and np.isnan(trace.loss[30:]).all()
    assert "step 30: the loss is nan" in result.lines[-1]


# --- the step a script ends in ---------------------------------------------------------------------------------------


STOPS = {
    "item": "if not math.isfinite(loss.item()): sys.exit(3)",
    "float": "if math.isnan(float(loss)): sys.exit(3)",
    "torch": "if torch.isnan(loss): sys.exit(3)",
    "method": "assert not loss.isnan()",
    "raise": "if not torch.isfinite(loss).all(): raise FloatingPointError('nan')",
    "break": "if not math.isfinite(loss): break",
}


@pytest.mark.parametrize("stop", STOPS)
def test_the_loss_that_ended_a_script(captured, stop):
    """An MLP, of which the key probes see the weights alone."""
    result = captured(f"""
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)); optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            loss = F.mse_loss(model(data() * (math.inf if step == 4 else 1)), torch.zeros(6, 2))
            {STOPS[stop]}
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    """)
    assert result.status == {"item": 3, "float": 3, "torch": 3, "break": 0}.get(stop, 1)
    trace = result.trace
    assert trace.step.tolist() == [0, 1, 2, 3, 4] and trace.manifest["unfinished_step"] == 4 and trace.label == "sudden"
    assert np.isfinite(trace.loss).tolist() == [True] * 4 + [False] and "step 4: the loss is" in result.lines[-1]


def test_a_stop_in_the_first_step(captured):
    result = captured("""
        model = net().half(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(data().half() * 60000).sum()
        sys.exit(not torch.isfinite(loss))
    """, "--probes", "output")
    assert result.status == 1 and result.trace.manifest["unfinished_step"] == 0 and result.trace.label == "sudden"


# --- models and their steps ------------------------------------------------------------------------------------------


def test_folds_have_a_trace_each(captured):
    result = captured("""
        for fold in range(3):
            model = net(); optimizer = torch.optim.Adam(model.parameters(), 0.01 * (fold + 1))
            for step in range(3 + fold):
                optimizer.zero_grad(); loss = model(data()).square().mean(); loss.backward(); optimizer.step()
            print(repr(loss.item()))
            if fold: print(os.path.exists(sys.argv[0].replace("train.py", "run.safetensors")))  # its model is gone
    """)
    assert result.files == ["run.model2.safetensors", "run.model3.safetensors", "run.safetensors"], result.errors
    losses = [float(line) for line in result.output.splitlines() if line[0].isdigit()]
    for fold, name in enumerate(("run", "run.model2", "run.model3")):
        trace = Trace.read(result.folder / f"{name}.safetensors")
        assert trace.step.tolist() == list(range(3 + fold)) and trace.loss[-1] == np.float32(losses[fold])
        assert trace.lr.tolist() == [np.float32(0.01 * (fold + 1))] * (3 + fold)
    assert "True" in result.output and len(result.lines) == 3


def test_two_models_that_are_trained_together(captured):
    """A GAN: each has its own steps, losses and learning rate."""
    result = captured("""
        G, D = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), net()
        oG, oD = torch.optim.Adam(G.parameters(), 0.01), torch.optim.Adam(D.parameters(), 0.02)
        for step in range(4):
            fake = G(torch.randn(6, 3))
            oD.zero_grad(); d = D(fake.detach()).mean() - D(data()).mean(); d.backward(); oD.step()
            oG.zero_grad(); g = -D(fake).mean(); g.backward(); torch.nn.utils.clip_grad_norm_(G.parameters(), 1.0); oG.step()
            print(repr(g.item()), repr(d.item()))
    """, "--probes", "output,weight")
    assert result.files == ["run.model2.safetensors", "run.safetensors"], result.errors
    g, d = Trace.read(result.folder / "run.safetensors"), Trace.read(result.folder / "run.model2.safetensors")
    losses = np.array([line.split() for line in result.output.splitlines()], np.float32)
    assert g.step.tolist() == d.step.tolist() == [0, 1, 2, 3]
    assert g.loss.tolist() == losses[:, 0].tolist() and d.loss.tolist() == losses[:, 1].tolist()
    assert g.lr[0] == np.float32(0.01) and d.lr[0] == np.float32(0.02) and g.grad_norm is not None and d.grad_norm is None
    assert names(g, "activation") == ["0", "1"] and len(names(d, "activation")) == 3
    assert "no_optimizer_step" not in d.manifest


def test_two_parts_of_one_optimizer_are_one_run(captured):
    result = captured("""
        encoder, decoder = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        optimizer = torch.optim.SGD([{"params": encoder.parameters()}, {"params": decoder.parameters(), "lr": 0.2}], 0.1)
        for step in range(3):
            optimizer.zero_grad(); decoder(encoder(data())).square().mean().backward(); optimizer.step()
    """)
    trace = result.trace
    assert trace.step.tolist() == [0, 1, 2] and names(trace, "activation") == ["1", "Sequential1.1"]
    assert [group["lr"] for group in trace.manifest["lr_groups"]] == [[[0, 0.1]], [[0, 0.2]]]


def test_steps_that_a_script_skips_by_hand(captured):
    """Gradients that are dropped unused end a step, those of micro-batches do not."""
    result = captured("""
        model = net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for micro in range(2): model(data()).square().mean().backward()
            if step in (1, 2, 5): continue
            optimizer.step()
    """, "--probes", "output")
    trace = result.trace
    assert trace.step.tolist() == [0, 1, 2, 3, 4, 5] and trace.manifest["no_optimizer_step"] == [1, 2]
    assert trace.manifest["unfinished_step"] == 5 and {p.shape for p in trace.probes} == {(2, 6, 8), (2, 6, 2)}


def test_an_update_by_hand(captured):
    trace = captured("""
        model = net()
        for step in range(4):
            model.zero_grad(); model(data()).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters(): p -= 0.1 * p.grad
    """).trace
    assert trace.step.tolist() == [0, 1, 2, 3] and "no_optimizer_step" not in trace.manifest
    assert len(set(column(trace, "0.weight").tolist())) == 4


def test_a_closure_and_a_perturbation_are_one_step(captured):
    result = captured("""
        model = net(); optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        x = data()
        def closure():
            optimizer.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss
        for step in range(3): optimizer.step(closure)

        class Sam(torch.optim.Optimizer):  # two passes a step
            def __init__(self, parameters, base): super().__init__(parameters, {}); self.base = base; self.param_groups = base.param_groups
            def first_step(self):
                for group in self.param_groups:
                    for p in group["params"]: p.data.add_(0.01 * p.grad)
                self.zero_grad()
            def second_step(self): self.base.step(); self.zero_grad()
        other = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)); sam = Sam(other.parameters(), torch.optim.SGD(other.parameters(), 0.1))
        for step in range(3):
            other(x).square().mean().backward(); sam.first_step()
            other(x).square().mean().backward(); sam.second_step()
    """)
    assert result.files == ["run.model2.safetensors", "run.safetensors"], result.errors
    for name in result.files:
        trace = Trace.read(result.folder / name)
        assert trace.step.tolist() == [0, 1, 2] and "no_optimizer_step" not in trace.manifest


def test_fine_tuning_in_evaluation_mode(captured):
    trace = captured("""
        model = net().eval(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad(); model(data()).square().mean().backward(); optimizer.step()
    """).trace
    assert trace.step.tolist() == [0, 1, 2]


INFERENCE = """
    model = net().eval()
    with torch.no_grad():
        for step in range(5): model(data() * 10 ** step)
"""


def test_inference(captured):
    result = captured(INFERENCE)
    assert result.status == 0 and result.files == []
    assert "no trace" in result.lines[-1] and "Sequential (5 calls)" in result.lines[-1] and "--inference" in result.lines[-1]
    result = captured(INFERENCE, "--inference", "--probes", "output")
    trace = result.trace
    assert trace.step.tolist() == [0, 1, 2, 3, 4] and column(trace, "0")[-1] > 1e3 * column(trace, "0")[0]


def test_passes_without_a_backward_do_not_pile_up(captured):
    result = captured("""
        model = net()
        for step in range(400): model(data())
    """, "--probes", "output")
    assert result.status == 0 and result.files == [] and "without a backward pass: it is not trained" in result.lines[-1]


def test_forked_processes_have_a_trace_each(captured):
    result = captured("""
        import multiprocessing
        def train(fold):
            model = net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(3 + fold):
                optimizer.zero_grad(); model(data()).square().mean().backward(); optimizer.step()
                if step == 0: barrier.wait()
        context = multiprocessing.get_context("fork"); barrier = context.Barrier(2)
        children = [context.Process(target=train, args=(fold,)) for fold in range(2)]
        for child in children: child.start()
        for child in children: child.join()
    """)
    assert result.status == 0 and result.files == ["run.model2.safetensors", "run.safetensors"], result.errors
    assert sorted(len(Trace.read(result.folder / name).step) for name in result.files) == [3, 4]


# --- the last line ---------------------------------------------------------------------------------------------------


TRAINING = """
    model = net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        try: loss = model(data()).square().mean()
        except Exception: pass
        optimizer.zero_grad(); loss.backward(); optimizer.step(); print("step", step, flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize(("probes", "said"), [("blocks.9.*", "no module is called 'blocks.9.*'"), ("laernorm", "no module is called"),
                                              ("gradient:5.weight", "; did you mean 2.weight, ")])
def test_a_pattern_that_matches_nothing_ends_the_command(captured, probes, said):
    result = captured(TRAINING, "--probes", probes)
    assert result.status == 2 and result.files == [] and "step" not in result.output
    assert result.lines[-1].startswith("opd capture: the command was ended before it trained: probes: ") and said in result.lines[-1]


def test_a_model_class_that_is_not_there(captured):
    result = captured(TRAINING, "--model", "Gpt")
    assert result.status == 7 and "no module of class Gpt was called in training" in result.lines[-1]
    assert "Sequential (4 calls)" in result.lines[-1]


def test_a_disk_that_is_full(captured):
    """A limit on the size of files stands for it."""
    result = captured("""
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12000, 12000))
    """ + TRAINING.replace("range(4)", "range(400)"), "--probes", "all")
    assert result.status == 7 and result.output.count("step") == 400
    assert "capture ended before the run did" in result.lines[-1] and "File too large" in result.lines[-1]
    assert result.trace.manifest["complete"] is False and 1 < len(result.trace.step) < 400


def test_a_capture_of_the_same_path_in_the_command_itself(captured):
    """The trace of somebody else is not claimed."""
    result = captured("""
    sys.path.insert(0, os.environ["PACKAGES"])
    from opd.capture import Capture
    other = nn.Linear(2, 2); c = Capture(other, sys.argv[0].replace("train.py", "run.safetensors"), probes="output")
    other(torch.ones(1, 2)); c.step()
    """ + TRAINING, environment={**ENVIRONMENT, "PACKAGES": str(PACKAGES)})
    assert result.status == 7 and "no trace of a process" in result.lines[-1] and "another" in result.lines[-1]
    assert not any("4 steps" in line for line in result.lines) and result.trace.step.tolist() == [0]


def test_a_killed_process_says_so(captured):
    result = captured(TRAINING.replace("sys.exit(7)", "os.kill(os.getpid(), 9)"))
    assert result.status == 128 + 9 and "the process was killed, or left without its end; 4 steps 0..3" in result.lines[-1]


def hidden(*packages: str, folder: Path) -> dict:
    """An environment in which these packages cannot be imported."""
    site = folder / "hidden.py.d"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os, sys\nif 'OPD_UNEDITED' in os.environ:\n    sys.path.insert(0, os.path.dirname("
                                           "os.path.abspath(__file__)) + '/hidden')\n")
    (site / "hidden").mkdir()
    for name in packages:
        (site / "hidden" / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    return {**ENVIRONMENT, "PYTHONPATH": f"{PACKAGES}:{site}"}


def test_what_traces_need_is_not_needed_by_the_command(captured, tmp_path_factory):
    """Where the run lives without ml_dtypes and safetensors, the launcher makes the trace of the journal."""
    environment = hidden("ml_dtypes", "safetensors", folder=tmp_path_factory.mktemp("site"))
    result = captured("""
    for name in ("ml_dtypes", "safetensors"):
        try: __import__(name); print("there")
        except ImportError: pass
    """ + TRAINING, "--probes", "all", "--statistics", "full", environment=environment)
    assert result.status == 7 and "there" not in result.output and result.output.count("step") == 4, result.errors
    assert result.trace.step.tolist() == [0, 1, 2, 3] and "4 steps 0..3" in result.lines[-1]


def test_a_command_without_numpy_runs_without_a_capture(captured, tmp_path_factory):
    environment = hidden("numpy", folder=tmp_path_factory.mktemp("site"))
    result = captured(TRAINING, environment=environment)
    assert result.status == 7 and result.output.count("step") == 4 and result.files == []
    assert "numpy cannot be imported" in result.lines[-1] and "pip install numpy" in result.lines[-1]


def test_an_interpreter_that_lacks_something_is_told_before(captured, tmp_path):
    (tmp_path / "python3.py").write_text(f"#!{sys.executable}\nprint('numpy')\n")
    program = tmp_path / "python3.py"
    program.rename(tmp_path / "python.py")
    (tmp_path / "python.py").chmod(0o755)
    result = captured("", command=(str(tmp_path / "python.py"), "x"))
    assert result.status == 0  # a .py file is run by this Python: nothing is asked of it
    link = tmp_path / "bin"
    link.mkdir()
    (link / "python").write_text(f"#!{sys.executable}\nprint('numpy')\n")
    (link / "python").chmod(0o755)
    result = captured("", command=(str(link / "python"), "x"))
    assert result.lines[0].startswith(f"opd capture: {link / 'python'} lacks numpy: the command runs without a capture")
    assert "-m pip install numpy" in result.lines[0]
