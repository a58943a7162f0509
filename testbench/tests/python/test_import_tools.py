"""opd.importers on what the tools themselves write here and now: each is run on a small model whose numbers are known.

The tools are large; their tests are skipped where they are not installed (python -m pip install transformers
mindstudio-probe mlperf-logging neural-compressor-pt). test_import_formats.py holds files written as their sources say.
"""
import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opd.importers import Options, import_joined
from test_import import column, traces_of


def needs(module: str):
    """Skips a test whose tool is not installed, without importing it: that takes seconds."""
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def run_script(folder: Path, text: str) -> str:
    """Runs a script in a process of its own, as these tools patch PyTorch; returns what it prints."""
    (folder / "script.py").write_text(text)
    run = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@needs("transformers")
def test_hf_debug_underflow_overflow(tmp_path):
    text = run_script(tmp_path, """
import torch
from torch import nn
from transformers.debug_utils import DebugUnderflowOverflow
class Scale(nn.Module):
    def forward(self, x): return x * 300.0
model = nn.Sequential(nn.Linear(4, 3, bias=False), Scale(), Scale()).half()
with torch.no_grad(): model[0].weight.copy_(torch.arange(12).reshape(3, 4) / 4)
DebugUnderflowOverflow(model)
try:
    for i in range(3): model(torch.full((2, 4), 0.0625 * 4 ** i, dtype=torch.float16))
except ValueError: pass
""")
    (tmp_path / "report.txt").write_text(text)
    [trace] = traces_of(tmp_path / "report.txt", format="FP16")
    # Rows of weights sum to 1.5, 5.5 and 9.5; the outputs are those times the input, then times 300, and 300 again.
    assert trace.step.tolist() == [0, 1] and (trace.first_bad_step, trace.first_bad_op) == (1, "2.output")
    assert column(trace, "0.weight") == [2.75, 2.75] and column(trace, "0.input[0]") == [0.0625, 0.25]
    assert column(trace, "0.output") == np.float32(["5.94e-01", "2.38e+00"]).tolist()
    assert column(trace, "1.output") == np.float32(["1.78e+02", "7.12e+02"]).tolist()
    assert column(trace, "2.output")[0] == np.float32("5.34e+04") and column(trace, "2.output", "nonfinite") == [0, 1]


@needs("msprobe")
def test_msprobe_dump_and_monitor(tmp_path):
    config = {"task": "statistics", "dump_path": str(tmp_path / "dump"), "rank": [], "step": [], "level": "mix",
              "async_dump": False,
              "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}}
    (tmp_path / "dump.json").write_text(json.dumps(config))
    monitor = {"framework": "pytorch", "output_dir": str(tmp_path / "monitor"), "step_count_per_record": 10,
               "monitors": {"module": {"enabled": True, "targets": [], "ops": ["min", "max", "mean", "norm", "nans"]}}}
    (tmp_path / "monitor.json").write_text(json.dumps(monitor))
    (tmp_path / "monitor" / "rank_0").mkdir(parents=True)
    model = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3, bias=False)
        with torch.no_grad(): self.fc.weight.copy_(torch.arange(12).reshape(3, 4) / 4)
    def forward(self, x): return self.fc(x)
net = Net()
inputs = [torch.full((2, 4), 0.5), torch.full((2, 4), 2.0), torch.tensor([[float("inf"), 0, 0, 0], [1.0, 1, 1, 1]])]
"""
    run_script(tmp_path, model + f"""
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path={str(tmp_path / "dump.json")!r})
for x in inputs[:2]:
    debugger.start(net); net(x).sum().backward(); debugger.stop(); debugger.step()
""")
    dumps = sorted((tmp_path / "dump").glob("step*/*/dump.json"))
    assert len(dumps) == 2
    name, [imported] = import_joined(dumps, None, Options())
    trace, output = imported.trace, "Module.fc.Linear.forward.0.output.0"
    assert name == "msprobe-dump" and trace.step.tolist() == [0, 1]
    assert column(trace, output) == [9.5 * 0.5, 9.5 * 2] and column(trace, output.replace("output", "input")) == [0.5, 2]
    assert column(trace, "Module.fc.Linear.forward.0.parameters.weight") == [2.75, 2.75]
    assert {p.name: p for p in trace.probes}[output].shape == (2, 3)
    run_script(tmp_path, model + f"""
from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
monitor = TrainerMonitorV2({str(tmp_path / "monitor.json")!r}, fr="pytorch")
monitor.start(model=net, optimizer=optimizer)
for x in inputs:
    optimizer.zero_grad(); net(x).sum().backward(); optimizer.step(); monitor.step()
monitor.stop()
""")
    [table] = (tmp_path / "monitor").glob("rank_0/module_step*.csv")
    [trace] = traces_of(table)
    assert trace.step.tolist() == [0, 1, 2] and column(trace, "fc.output.0")[:2] == [4.75, 19]
    assert column(trace, "fc.input.0", "nonfinite") == [0, 0, 1] == column(trace, "fc.output.0", "nonfinite")


@needs("mlperf_logging")
def test_mlperf_logging(tmp_path):
    run_script(tmp_path, """
from mlperf_logging import mllog
mllog.config(filename="mlperf.log")
logger = mllog.get_mllogger()
logger.event(key="submission_benchmark", value="gpt3")
for step in (10, 20, 30):
    logger.event(key="tracked_stats", value={"train_loss": 30.0 / step, "grad_norm": step / 4}, metadata={"step": step})
logger.event(key="train_loss", value=float("nan"), metadata={"step": 40})
logger.end(key="run_stop", metadata={"status": "success"})
""")
    [trace] = traces_of(tmp_path / "mlperf.log")
    assert trace.step.tolist() == [10, 20, 30, 40] and trace.loss[:3].tolist() == [3, 1.5, 1] and math.isnan(trace.loss[3])
    assert column(trace, "grad_norm") == [2.5, 5, 7.5, 7.5] and trace.model == "gpt3" and trace.first_bad_op == "loss"


@needs("neural_compressor")
def test_neural_compressor_measurement(tmp_path):
    """Its own code saves the state of its observers; the observers themselves want a Gaudi."""
    run_script(tmp_path, """
import torch
from types import SimpleNamespace
from neural_compressor.torch.algorithms.fp8_quant._core.save_measure.save_files import (measure_control_to_state_dict,
                                                                                         save_measurements_files)
from neural_compressor.torch.algorithms.fp8_quant._quant_common.quant_config import set_hqt_config
model = torch.nn.Linear(2, 2)
set_hqt_config(model, SimpleNamespace(cfg={"global_rank": None, "local_rank": 0}))
observer = lambda *values: SimpleNamespace(state=torch.tensor([[v] for v in values], dtype=torch.bfloat16))
modules = {"fc": SimpleNamespace(inputs=[observer(1.5)], outputs=[observer(700.0)], params={"weight": observer(0.25, 0.5)}),
           "mm": SimpleNamespace(inputs=[observer(3.0), observer(float("inf"))], outputs=None, params={})}
arrays, lists = measure_control_to_state_dict(modules)
name = "m_hooks_maxabs_0_1"
save_measurements_files(model, arrays, lists, ["fc"], name + ".npz", name + ".json", name, "DynamicRange", 3)
""")
    [trace] = traces_of(tmp_path / "m_hooks_maxabs_0_1.json")
    assert [p.name for p in trace.probes] == ["fc.input.0", "fc.weight", "fc.output.0", "mm.input.0", "mm.input.1"]
    assert trace.max_abs.tolist() == [[1.5, 0.5, 700, 3, 0]] and trace.nonfinite.tolist() == [[0, 0, 0, 0, 1]]
    assert trace.manifest["NumSamples"] == 3
