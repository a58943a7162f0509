"""opd.importers.logs: every spelling of every tool, and what happens to logs on their way: ranks, colours, progress bars, restarts,
torn lines, other encodings. The inputs are our own words and numbers in the layout of each tool.

The inputs of ../shared/reports beside the repository are read where they are there (OPD_REPORTS names another folder).
"""
import bz2
import functools
import gzip
import io
import lzma
import math
import os
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from opd.importers import ImportFault, detect, import_file, logs
from opd.importers.command import main
from opd.importers.logs.lines import lines
from opd.importers.logs.reading import AVERAGE, EPOCH, EVALUATION, FALLBACK, KNOWN, MARK, OVERFLOW, ROW
from opd.importers.source import Source
from opd.trace import Trace, TraceError
from test_import import column, fault_of, traces_of

ROOT = Path(__file__).resolve().parents[3]
REPORTS = Path(os.environ.get("OPD_REPORTS", ROOT.parent / "shared" / "reports"))
needs_reports = pytest.mark.skipif(not REPORTS.is_dir(), reason=f"{REPORTS} is absent (OPD_REPORTS names another folder)")
NAN, INF = math.nan, math.inf


@pytest.fixture
def put(tmp_path):
    """Writes a file and returns its path."""
    def write(data: str | bytes, name: str = "job.log") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path
    return write


@pytest.fixture
def only(put):
    """The one trace of a text."""
    def read(data: str | bytes, name: str = "job.log", **options) -> Trace:
        [trace] = traces_of(put(data, name), **options)
        return trace
    return read


def said(trace: Trace) -> str:
    return " / ".join(trace.manifest["assumptions"]["source"] + trace.manifest["assumptions"]["trace"])


def bad(trace: Trace, probe: str) -> list[int]:
    """The steps at which a probe is not finite."""
    return [int(step) for step, n in zip(trace.step, column(trace, probe, "nonfinite"), strict=True) if n]


def same(values, wanted) -> None:
    assert np.array_equal(np.float32(values), np.float32(wanted), equal_nan=True), (list(values), wanted)


def last_row(trace: Trace) -> dict:
    return {name: float(getattr(trace, name)[-1]) for name in ("loss", "grad_norm", "lr", "loss_scale") if getattr(trace, name) is not None}


# --- every spelling --------------------------------------------------------------------------------------------------------
# tool, spelling: what it is, its values, its step (epoch, step where it tells an epoch)

SPELLED = {
    ("MLPerf", "MLLOG"): (ROW, {"loss": 2.5}, 20), ("MLPerf", "MLLOG, tracked stats"): (ROW, {"loss": 3.5}, 10),
    ("MLPerf", "MLL"): (ROW, {"grad_norm": 0.75}, 10), ("MLPerf", "v0.5"): (KNOWN, {}, None),
    ("DLLogger", "JSON"): (ROW, {"loss": 2.5, "lr": 1e-3}, (2, 79)), ("DLLogger", "JSON, one number"): (ROW, {"loss": 2.5, "lr": 1e-3}, 79),
    ("DLLogger", "JSON, epoch"): (FALLBACK, {"loss": 2.5}, (2, None)), ("DLLogger", "JSON, validation"): (EVALUATION, {}, None),
    ("DLLogger", "text"): (ROW, {"loss": 2.5, "lr": 1e-3}, (2, 79)), ("DLLogger", "text, BERT"): (ROW, {"loss": 2.5, "lr": 1e-3}, (2, 79)),
    ("DLLogger", "text, FastPitch"): (ROW, {"loss": 2.5, "lr": 1e-3}, (2, 79)), ("DLLogger", "parameters"): (KNOWN, {}, None),
    ("fairseq", "simple, until v0.8"): (ROW, {"loss": 7.624, "lr": 0.0019681, "grad_norm": 62144.234, "loss_scale": 4}, 996),
    ("fairseq", "simple"): (ROW, {"loss": 3.147, "lr": 2e-4, "grad_norm": 0.489, "loss_scale": 128}, 400),
    ("fairseq", "epoch"): (AVERAGE, {"loss": 3.14, "lr": 2.5e-4, "grad_norm": 0.485, "loss_scale": 64}, 564),
    ("fairseq", "JSON"): (ROW, {"loss": 14.5, "lr": 4e-5, "grad_norm": 19.25, "loss_scale": 8}, 1),
    ("fairseq", "JSON, epoch"): (AVERAGE, {"loss": 6.5, "lr": 1e-4, "grad_norm": 2.5, "loss_scale": 128}, 282),
    ("fairseq", "JSON, validation"): (EVALUATION, {}, None), ("fairseq", "validation"): (EVALUATION, {}, None),
    ("fairseq", "overflow, until v0.8"): (OVERFLOW, {"scale_after": 64}, None), ("fairseq", "overflow, v0.9"): (OVERFLOW, {"scale_after": 64}, None),
    ("fairseq", "overflow"): (OVERFLOW, {"scale_after": 64}, None), ("fairseq", "smallest scale"): (OVERFLOW, {}, None),
    ("NeMo", "step"): (ROW, {"loss": 2.5, "lr": 1e-4}, 20), ("NeMo", "without global_step"): (ROW, {"loss": 2.5, "lr": 1e-4}, (0, 20)),
    ("NeMo", "with the gradient norm"): (ROW, {"loss": 2.5, "lr": 1e-4, "grad_norm": 1.25}, 1020), ("NeMo", "validation"): (EVALUATION, {}, None),
    ("Megatron", "iteration"): (ROW, {"loss": 6.5, "lr": 2e-4, "grad_norm": 2.5, "loss_scale": 512, "overflows": 1, "nan_losses": 0}, 20),
    ("Megatron", "iteration without time"): (ROW, {"loss": 6.5, "lr": 2e-4, "loss_scale": 512}, 20),
    ("Megatron", "iteration, NAN in capitals"): (ROW, {"loss": NAN, "lr": 2e-4, "grad_norm": INF, "loss_scale": 512, "overflows": 0,
                                                       "nan_losses": 0}, 20),
    ("Megatron", "iteration, all skipped"): (ROW, {"lr": 6e-5, "loss_scale": 4096, "overflows": 1, "nan_losses": 0}, 1),
    ("Megatron", "iteration, fork"): (ROW, {"loss": 7.25, "lr": 1.47e-4, "grad_norm": 48.5, "loss_scale": 32768, "overflows": 1,
                                            "nan_losses": 0}, 824),
    ("Megatron", "validation"): (EVALUATION, {}, None), ("Megatron", "check of gradients"): (OVERFLOW, {}, None),
    ("Megatron", "overflow"): (OVERFLOW, {"scale_after": 32768}, None),
    ("apex", "scaler"): (OVERFLOW, {"scale_after": 512}, None), ("apex", "another scaler"): (OVERFLOW, {"scale_after": 64}, None),
    ("apex", "2018"): (OVERFLOW, {"scale_after": 512}, None),
    ("apex", "FP16_Optimizer"): (OVERFLOW, {"scale_attempted": 1024, "scale_after": 512}, None),
    ("apex", "torch_npu, step"): (OVERFLOW, {}, None), ("apex", "torch_npu, scale"): (OVERFLOW, {"scale_after": 512}, None),
    ("DeepSpeed", "ZeRO"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 32768}, None),
    ("DeepSpeed", "ZeRO, hysteresis"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 65536}, None),
    ("DeepSpeed", "ZeRO, BF16"): (OVERFLOW, {}, None),
    ("DeepSpeed", "ZeRO, 2020"): (OVERFLOW, {"scale_attempted": 262144, "scale_after": 131072}, None),
    ("DeepSpeed", "FP16_Optimizer"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 32768}, None),
    ("DeepSpeed", "unfused optimizer"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 32768}, None),
    ("DeepSpeed", "fused optimizer"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 32768}, None),
    ("DeepSpeed", "iteration"): (OVERFLOW, {}, None), ("DeepSpeed", "iteration, unfused"): (OVERFLOW, {}, None),
    ("DeepSpeed", "scale"): (OVERFLOW, {"scale_attempted": 65536, "scale_after": 32768}, None),
    ("DeepSpeed", "scale, 2020"): (OVERFLOW, {"scale_attempted": 65536}, None), ("DeepSpeed", "scale at its minimum"): (OVERFLOW, {}, None),
    ("DeepSpeed", "engine"): (ROW, {"lr": 7e-6}, 10), ("DeepSpeed", "pipeline engine"): (ROW, {"loss": 10.6554}, 20),
    ("ColossalAI", "skipped step"): (OVERFLOW, {}, None),
    ("HF Trainer", "dict"): (ROW, {"loss": 2.31, "grad_norm": 0.875, "lr": 2e-5}, None),
    ("HF Trainer", "dict, until 2023"): (ROW, {"loss": 2.31, "lr": 2e-5}, None),
    ("HF Trainer", "dict of strings"): (ROW, {"loss": 1.812, "grad_norm": 0.5, "lr": 3e-5}, None),
    ("HF Trainer", "dict with the step"): (ROW, {"loss": 2.31, "lr": 2e-5}, 20),
    ("HF Trainer", "ms-swift"): (ROW, {"loss": 2.31, "grad_norm": 0.875, "lr": 2e-5}, 20),
    ("HF Trainer", "evaluation"): (EVALUATION, {}, None), ("HF Trainer", "whole run"): (EVALUATION, {}, None),
    ("MaxText", "step"): (ROW, {"loss": 2.5}, 40), ("MaxText", "step, 2023"): (ROW, {"loss": 2.5}, 40),
    ("MaxText", "step, with the gradient norm"): (ROW, {"loss": 2.5, "lr": 3e-4, "grad_norm": 1.25}, 40),
    ("MaxText", "evaluation"): (EVALUATION, {}, None),
    ("OpenMMLab", "mmcv, by epoch"): (ROW, {"loss": 1.5, "lr": 0.01, "grad_norm": 4.5}, (2, 50)),
    ("OpenMMLab", "mmcv, by iteration"): (ROW, {"loss": 1.5, "lr": 9.996e-3}, 50), ("OpenMMLab", "mmcv, validation"): (EVALUATION, {}, None),
    ("OpenMMLab", "MMEngine, by epoch"): (ROW, {"loss": 1.5, "lr": 0.01, "grad_norm": 4.5}, (2, 50)),
    ("OpenMMLab", "MMEngine, by iteration"): (ROW, {"loss": 1.5, "lr": 9.996e-3}, 50),
    ("OpenMMLab", "MMEngine, validation"): (EVALUATION, {}, None),
    ("MindSpore", "LossMonitor"): (ROW, {"loss": 2.5}, (1, 39)), ("MindSpore", "LossMonitor, NaN"): (ROW, {"loss": NAN}, (2, 10)),
    ("MindSpore", "MindFormers"): (ROW, {"loss": 2.5, "lr": 1e-5, "grad_norm": 1.25, "loss_scale": 4096, "overflows": 1}, (2, 10)),
    ("MindSpore", "MindFormers, with the mean"): (ROW, {"loss": 2.5, "lr": 8e-8, "loss_scale": 4096, "overflows": 0}, (2, 10)),
    ("MindSpore", "step of all"): (ROW, {"loss": 2.5, "grad_norm": 1.25, "loss_scale": 4096, "overflows": 0}, 10),
    ("MindSpore", "MindCV"): (ROW, {"loss": 2.5, "lr": 1e-3, "overflows": 1}, (2, 10)),
    ("MindSpore", "YOLO"): (ROW, {"loss": 2.5, "lr": 3e-3}, 377),
    ("MindSpore", "BERT"): (ROW, {"loss": 2.5, "loss_scale": 4096, "overflows": 1}, 100),
    ("Paddle", "loop"): (ROW, {"loss": 8.125, "lr": 5e-6, "loss_scale": 65536}, 100),
    ("Paddle", "loop with epochs"): (ROW, {"loss": 8.125, "lr": 1e-5}, 100), ("Paddle", "Trainer"): (ROW, {"loss": 8.125, "lr": 2e-6}, 100),
    ("Paddle", "Trainer, skipped step"): (OVERFLOW, {"scale_attempted": 32768, "scale_after": 16384}, None),
    ("Paddle", "PaddleFleetX"): (ROW, {"loss": 8.125, "lr": 5e-6, "overflows": 0}, (0, 100)),
    ("Paddle", "PaddleSeg"): (ROW, {"loss": 8.125, "lr": 9e-3}, 100), ("Paddle", "PaddleOCR"): (ROW, {"loss": 8.125, "lr": 1e-3}, 100),
    ("Paddle", "PaddleClas"): (ROW, {"loss": 8.125, "lr": 0.1}, (2, 10)),
    ("GNMT", "interval"): (ROW, {"loss": 9.5, "lr": 3e-5}, (1, 10)), ("GNMT", "skipped batch"): (OVERFLOW, {"scale_after": 256}, None),
    ("GNMT", "gradient norm"): (OVERFLOW, {}, None), ("GNMT", "validation"): (EVALUATION, {}, None),
    ("nanoGPT", "iteration"): (ROW, {"loss": 2.5}, 20), ("nanoGPT", "evaluation"): (FALLBACK, {"loss": 2.5}, 20),
    ("torchtitan", "step"): (ROW, {"loss": 7.5, "grad_norm": 4.5}, 3), ("torchtitan", "step, 2024"): (ROW, {"loss": 7.5}, 3),
    ("torchtitan", "rank without a loss"): (ROW, {"grad_norm": 4.5}, 3), ("torchtitan", "validation"): (EVALUATION, {}, None),
    ("progress bar", "Lightning"): (ROW, {"loss": 2.5}, (3, 50)), ("progress bar", "Lightning 1"): (ROW, {"loss": 2.5}, (3, 50)),
    ("progress bar", "Lightning, rich"): (ROW, {"loss": 2.5}, (3, 50)), ("progress bar", "NeMo 1"): (ROW, {"loss": 2.5}, (0, 50)),
    ("progress bar", "Lightning, validation"): (EVALUATION, {}, None),
    ("progress bar", "tqdm, total not known"): (ROW, {"loss": 2.5}, (1, 50)),
    ("progress bar", "tqdm, postfix"): (ROW, {"loss": 2.5, "grad_norm": 1.25}, 50),
    ("progress bar", "tqdm, description"): (ROW, {"loss": 2.5}, (3, 50)),
    ("progress bar", "Keras"): (ROW, {"loss": 2.5}, 50), ("progress bar", "Keras 3"): (ROW, {"loss": 2.5}, 50),
    ("progress bar", "Keras, one line per epoch"): (ROW, {"loss": 2.5}, 100),
    **{("training loop", name): (ROW, {"loss": 2.5}, 20) for name in ("step and loss", "step, blanks", "iteration", "tensor",
                                                                     "TensorFlow estimator")},
    ("training loop", "step of all"): (ROW, {"loss": 2.5, "grad_norm": 1.25, "lr": 1e-4}, 20),
    ("training loop", "step in brackets"): (ROW, {"loss": 2.5, "grad_norm": 1.25}, 20),
    ("training loop", "epoch and step"): (ROW, {"loss": 2.5}, (2, 20)), ("training loop", "epoch, step, rank"): (ROW, {"loss": 2.5}, (1, 20)),
    ("training loop", "pytorch/examples, MNIST"): (ROW, {"loss": 2.5}, (2, 640)),
    ("training loop", "pytorch/examples, ImageNet"): (ROW, {"loss": 2.5}, (2, 20)),
    ("training loop", "PyTorch tutorial, CIFAR"): (ROW, {"loss": 2.5}, (2, 2000)),
    ("training loop", "PyTorch tutorial, quick start"): (ROW, {"loss": 2.5}, 6400),
    ("training loop", "MetricLogger"): (ROW, {"loss": 2.5, "lr": 1e-4}, (2, 20)), ("training loop", "timm"): (ROW, {"loss": 2.5, "lr": 1e-4}, (2, 20)),
    ("training loop", "detectron2"): (ROW, {"loss": 2.5, "lr": 0.00125}, 20),
    ("training loop", "llm.c"): (ROW, {"loss": 2.5, "grad_norm": 1.25, "lr": 8.57e-7}, 20),
    ("training loop", "build-nanogpt"): (ROW, {"loss": 2.5, "grad_norm": 1.25, "lr": 6e-4}, 20),
    ("training loop", "litgpt"): (ROW, {"loss": 2.5}, (1, 20)),
    ("training loop", "dict in a line"): (ROW, {"loss": 2.5, "grad_norm": 1.25}, 20),
    ("training loop", "dict behind the step"): (ROW, {"loss": 2.5, "grad_norm": 1.25}, 20),
    ("training loop", "global step"): (ROW, {"loss": 2.5, "lr": 1e-4}, 20), ("training loop", "update"): (ROW, {"loss": 2.5, "grad_norm": 1.25}, 20),
    ("training loop", "epochs only"): (ROW, {"loss": 2.5}, (3, None)), ("training loop", "a loss alone"): (ROW, {"loss": 2.5}, None),
    ("training loop", "loss is nan"): (ROW, {"loss": NAN}, None), ("training loop", "TerminateOnNaN"): (ROW, {"loss": NAN}, 20),
    ("training loop", "detectron2, NaN"): (ROW, {"loss": NAN}, 20), ("training loop", "heading"): (MARK, {}, 20),
    ("training loop", "heading with the epoch"): (MARK, {}, 20),
    ("training loop", "heading by a logger"): (MARK, {}, 20), ("training loop", "heading of an epoch"): (EPOCH, {}, (3, None)),
    ("training loop", "summary of wandb"): (EVALUATION, {}, None),
    ("HF Trainer", "metrics at the end"): (EVALUATION, {}, None), ("progress bar", "Lightning, layers"): (KNOWN, {}, None),
}
EXAMPLES = {(tool.NAME, name): example for tool in logs.TOOLS for name, example in tool.SPELLINGS.items()}


def entries_of(data: str | bytes, put) -> list:
    return [entry for line in lines(Source.open(put(data))) if (entry := logs._entry(line)) is not None]


def test_every_spelling_has_its_values():
    assert EXAMPLES.keys() == SPELLED.keys()
    assert len(logs.TOOLS) == len({tool.NAME for tool in logs.TOOLS}) == 18


@pytest.mark.parametrize("tool, name", EXAMPLES)
def test_spelling(tool, name, put):
    what, values, place = SPELLED[tool, name]
    [entry] = entries_of(EXAMPLES[tool, name], put)
    reading = entry.reading
    assert (entry.tool, reading.what) == (tool, what)
    assert reading.values.keys() == values.keys()
    for field, value in values.items():
        assert reading.values[field] == value or math.isnan(value) and math.isnan(reading.values[field]), field
    if what in (ROW, AVERAGE, FALLBACK, MARK, EPOCH):
        assert (reading.epoch, reading.step) == place if isinstance(place, tuple) else reading.step == place


def test_documented_spellings():
    """The table of docs/importing.md is that of the code; on a mismatch the right one is printed."""
    rows = ["| tool | spellings | kinds of lines |", "|---|---|---|"]
    rows += [f"| {tool.NAME} | {len(tool.SPELLINGS)} | {'; '.join(tool.SPELLINGS)} |" for tool in logs.TOOLS]
    rows.append(f"| {len(logs.TOOLS)} | {len(EXAMPLES)} | |")
    document = (ROOT / "docs" / "importing.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- spellings: checked by test_import_logs.py -->\n(.*?)<!-- end -->", document, re.DOTALL)[1]
    print("\n".join(rows))
    assert found.strip().splitlines() == rows


# A number in a line, and the same line when it is not finite. Where a tool prints NaN it must be read as one.
NUMBERS = [key for key, (what, values, _) in SPELLED.items() if what == ROW and math.isfinite(values.get("loss", NAN))]


@pytest.mark.parametrize("spelled", ["nan", "NaN", "NAN", "inf", "-inf", "Infinity"])
@pytest.mark.parametrize("tool, name", NUMBERS)
def test_loss_that_is_not_finite(tool, name, spelled, put):
    """In every spelling, as first line of the file and alone in it."""
    example, loss = EXAMPLES[tool, name], SPELLED[tool, name][1]["loss"]
    before = "value= " if name == "BERT" else r"loss[^\d]*?"
    pattern = re.compile(rf"(?i)({before})(?<![\d.]){re.escape(f'{loss:g}')}0*(?:e[-+]?00)?(?![\d.])")
    assert pattern.search(example), example
    assert import_file(put(example))[1][0].trace.label in ("healthy", "sudden")   # a skipped step is in some of the examples
    trace = traces_of(put(pattern.sub(rf"\g<1>{spelled}", example)))[0]
    assert trace.label == "sudden" and bad(trace, "loss") == [int(trace.step[-1])]
    assert not math.isfinite(trace.loss[-1])


# --- what happens to a line on its way -------------------------------------------------------------------------------------

WRAPPED = {
    "torchrun": "[rank0]:{}", "torchrun with a blank": "[rank0]: {}", "default": "[default0]:{}", "srun": "0: {}", "srun, aligned": " 0: {}",
    "mpirun": "[1,0]<stdout>:{}", "Ray": "(train_fn, pid=4112) {}", "Kubernetes": "[pod/job-0/main] {}", "Docker Compose": "worker-0  | {}",
    "time": "2024-05-06 07:08:09 {}", "time of a pod": "2024-05-06T07:08:09.123456789Z {}", "rank in brackets": "[Rank 0] {}",
    "colour": "\x1b[36m{}\x1b[0m", "colour as cat -v shows it": "^[[36m{}^[[0m", "colour on a web page": "\u241b[36m{}\u241b[0m",
    "colour without its escape": "[36m{}[0m", "hyperlink": "\x1b]8;;http://x\x07{}\x1b]8;;\x07", "carriage return": "\r{}\r", "erased": "{}\x1b[K",
    "rank and time": "[rank0]: 2024-05-06 07:08:09,123 {}", "blanks": "   {}   ", "drawn over": "waiting 12 s\r{}", "backspaces": "waiting\b\b\b\b{}",
}


@pytest.mark.parametrize("wrapping", WRAPPED)
@pytest.mark.parametrize("tool, name", [key for key in EXAMPLES if SPELLED[key][0] in (ROW, OVERFLOW)])
def test_spelling_in_a_wrapping(tool, name, wrapping, put):
    [plain] = entries_of(EXAMPLES[tool, name], put)
    found = entries_of(WRAPPED[wrapping].format(EXAMPLES[tool, name]), put)
    assert [(e.tool, e.reading.what, e.reading.step, e.reading.epoch) for e in found] == [
        (plain.tool, plain.reading.what, plain.reading.step, plain.reading.epoch)]
    assert repr(found[0].reading.values) == repr(plain.reading.values)



# --- steps -----------------------------------------------------------------------------------------------------------------

def overflow(attempted, after, rank=0):
    return (f"[2024-05-06 07:08:01,123] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank {rank} Skipping step. "
            f"Attempted loss scale: {attempted}, reducing to {after}\n")


def engine(step, skipped, rate=7e-6):
    return (f"[2024-05-06 07:08:09,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[{rate}], "
            "mom=[(0.9, 0.95)]\n")


def iteration(step, loss="2.500000E+00", scale=1.0, skipped=0, nans=0, norm="1.500"):
    return (f" [2024-05-06 07:08:09] iteration {step:8d}/    5000 | consumed samples:        12800 | learning rate: 1.200000E-04 | global "
            f"batch size:    64 | lm loss: {loss} | loss scale: {scale:.1f} | grad norm: {norm} | number of skipped iterations: {skipped:3d} "
            f"| number of nan iterations: {nans:3d} |\n")


def bar(done, total, rest="", description=""):
    return f"\r{description}{100 * done // total:3d}%|{'#' * 10}| {done}/{total} [00:01<00:01,  2.00s/it{rest}]"


def test_engine_counts_what_no_line_tells(only):
    """The skipped steps of an engine whose scaler prints nothing."""
    trace = only("".join(engine(step, skipped) for step, skipped in ((10, 0), (20, 0), (30, 2), (40, 2), (50, 3))))
    assert trace.step.tolist() == [10, 20, 30, 40, 50] and bad(trace, "gradients") == [30, 50] and trace.label == "sudden"
    assert "3 skipped steps are counted without a line of their own" in said(trace)
    trace = only(engine(10, 2) + engine(20, 2))
    assert bad(trace, "gradients") == [10]   # within the log
    trace = only(engine(1010, 7) + engine(1020, 7))
    assert trace.label == "healthy" and bad(trace, "gradients") == [] and "7 steps were skipped before the log begins" in said(trace)


def test_engine_and_its_overflow_lines_agree(only):
    trace = only(overflow(65536, 32768) + engine(10, 1) + engine(20, 1) + overflow(32768, 16384) + overflow(16384, 8192) + engine(30, 3))
    assert trace.step.tolist() == [9, 10, 20, 21, 22, 30] and bad(trace, "gradients") == [9, 21, 22]
    assert trace.loss_scale[[0, 3, 4]].tolist() == [65536, 32768, 16384] and "without a line" not in said(trace)
    trace = only(engine(10, 0) + overflow(65536, 32768) + engine(20, 3))
    assert bad(trace, "gradients") == [11, 20] and "2 skipped steps" in said(trace)


def test_engine_that_begins_again(only, put):
    """The counter comes back from the checkpoint."""
    first, second = traces_of(put(engine(10, 0) + engine(20, 1) + engine(30, 4) + engine(20, 1) + engine(30, 1)))
    assert first.step.tolist() == [10, 20, 30] and bad(first, "gradients") == [20, 30]
    assert second.step.tolist() == [20, 30] and bad(second, "gradients") == [20]   # as in the first: 1 after 0 at step 10


def test_two_engines_are_told_apart(only):
    """DeepSpeed-Chat: actor and critic print a line each; the skipped steps of the second are a probe of its own."""
    trace = only("".join(engine(step, a, 1e-5) + engine(step, b, 5e-6) for step, a, b in ((10, 0, 1), (20, 0, 1), (30, 0, 3))))
    assert trace.step.tolist() == [10, 20, 30] and bad(trace, "gradients.engine2") == [10, 30]
    assert "gradients" not in [p.name for p in trace.probes] or bad(trace, "gradients") == []
    same(trace.lr, [1e-5] * 3)
    assert "2 engines print a line each" in said(trace) and trace.label == "sudden"


@pytest.mark.parametrize("lines_, scales", [
    # one overflow in three lines, in two, and in the words of 2020
    ("Grad overflow on iteration 12\nReducing dynamic loss scale from 65536 to 32768.0\n[Rank 0] Overflow detected. Skipping step. Attempted "
     "loss scale: 65536, reducing to 32768.0\nGrad overflow on iteration 13\nReducing dynamic loss scale from 32768.0 to 16384.0\n[Rank 0] "
     "Overflow detected. Skipping step. Attempted loss scale: 32768.0, reducing to 16384.0\n", {12: 65536, 13: 32768}),
    ("Grad overflow on iteration: 12\nReducing dynamic loss scale from 64.0 to 32.0\n[deepspeed] fp16 dynamic loss scale overflow! Skipping "
     "step. Attempted loss scale: 64.0, reducing to 32.0\n", {12: 64}),
    ("Grad overflow on iteration  12\nUsing dynamic loss scale of  64.0\nOVERFLOW! Skipping step. Attempted loss scale: 64.0, reducing to "
     "32.0\n", {12: 64}),
    ("Overflow detected. Skipping step.\n", {11: None}),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step.\n", {11: None}),
    ("Gradient overflow. Skipping step\nLoss scaler reducing loss scale to 32.0\nLoss scaler reducing loss scale to 16.0\n", {11: 64, 12: 32}),
    ("Gradient norm: inf\nSkipped batch, new scale: 32.0\nGradient norm: nan\nSkipped batch, new scale: 16.0\n", {11: 64, 12: 32}),
    ("optimizer not run, scale_before: 64.0, scale_after: 32.0\n", {11: 64}),
    ("colossalai - INFO: Found overflow. Skip step\ncolossalai - INFO: Found overflow. Skip step\n", {11: None, 12: None}),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n" * 3, {11: None}),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.\n", {11: None}),
    ("AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication collective.\n", {11: None}),
    ("| WARNING: overflow detected, setting loss scale to: 32.0\n", {11: 64}),
    # hysteresis, and a scale that cannot fall any more
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, but hysteresis is 3. Reducing hysteresis to 2\n[deepspeed] "
     "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1\n", {11: 64, 12: 64}),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1\n" * 2, {11: 1, 12: 1}),
])
def test_overflow_lines(lines_, scales, only):
    trace = only("step: 10, loss: 2.5\n" + lines_ + "step: 20, loss: 2.25\n")
    assert bad(trace, "gradients") == list(scales) and trace.step.tolist() == [10, *scales, 20] and trace.label == "sudden"
    for step, scale in scales.items():
        assert scale is None or trace.loss_scale[trace.step.tolist().index(step)] == scale


def test_named_iteration_counts_only_where_it_fits(only):
    """Optimizer steps and micro-steps are different counters."""
    trace = only("step: 10, loss: 2.5\nGrad overflow on iteration 1\nReducing dynamic loss scale from 4 to 2\nstep: 20, loss: 2.25\n")
    assert trace.step.tolist() == [10, 11, 20] and bad(trace, "gradients") == [11]


def test_scalers_of_apex_are_told_apart(only):
    line = "Gradient overflow.  Skipping step, loss scaler {} reducing loss scale to {}\n".format
    trace = only("step: 10, loss: 2.5\n" + line(1, 64.0) + line(0, 512.0) + line(2, 8.0) + "step: 20, loss: 2.5\n")
    assert [p.name for p in trace.probes if p.name.startswith("gradients")] == ["gradients", "gradients.scaler1", "gradients.scaler2"]
    assert bad(trace, "gradients") == [12] and bad(trace, "gradients.scaler1") == [11] and bad(trace, "gradients.scaler2") == [13]


def test_loss_scale_that_falls_without_a_line(only):
    """Also in a log whose other overflows have lines: nothing tells this one."""
    trace = only(iteration(1, scale=64) + iteration(2, scale=32, skipped=1) + iteration(3, scale=32) + iteration(4, scale=16) + iteration(5, scale=16))
    assert bad(trace, "gradients") == [2, 4] and "the loss scale falls 1 times" in said(trace)


def test_row_of_an_overflow_explains_the_scale_after_it(only):
    """MindSpore prints the scale that a step ran with."""
    line = "step {}/25, loss: 2.5, per_step_time: 153ms, overflow cond: {}, loss_scale: {}, global_norm: [1.25]\n".format
    trace = only(line(1, True, 64.0) + line(2, False, 32.0) + line(3, False, 32.0) + line(4, False, 16.0))
    assert bad(trace, "gradients") == [1, 4]


def test_nan_iterations_of_megatron(only):
    """Within an interval whose mean is finite."""
    trace = only(iteration(10) + iteration(20, nans=2) + iteration(30))
    assert bad(trace, "loss") == [20] and trace.label == "sudden"


@pytest.mark.parametrize("text, steps", [
    ("Epoch [1][50/100]\tlr: 1e-2, loss: 1.0\nEpoch [2][50/100]\tlr: 1e-2, loss: 1.0\nEpoch [4][100/100]\tlr: 1e-2, loss: 1.0\n", [50, 150, 400]),
    ("Epoch: [0][  0/5005]\tLoss 2.5 (2.5)\nEpoch: [0][5000/5005]\tLoss 2.5 (2.5)\nEpoch: [1][  0/5005]\tLoss 2.5 (2.5)\n", [0, 5000, 5005]),
    ("[1,  2000] loss: 2.5\n[1,  4000] loss: 2.5\n[2,  2000] loss: 2.5\n", [2000, 4000, 6000]),
    ("epoch: 1 step: 39, loss is 2.5\nepoch: 2 step: 39, loss is 2.5\nepoch: 3 step: 39, loss is nan\n", [39, 78, 117]),
    ("{ Epoch:[  1/  2], step:[   19/   19], loss: 2.5, per_step_time: 1ms, overflow cond: False, loss_scale: 1.0\n"
     "{ Epoch:[  2/  2], step:[    1/   19], loss: 2.5, per_step_time: 1ms, overflow cond: True, loss_scale: 1.0\n", [19, 20]),
    ("Epoch 1/2\n 50/100 [==>...] - ETA: 3s - loss: 2.5\n100/100 [====] - 1s - loss: 2.5\nEpoch 2/2\n 50/100 [==>...] - ETA: 3s - loss: nan\n",
     [50, 100, 150]),
    ("Epoch 1/2\n100/100 - 5s - loss: 2.5 - val_loss: 2.5\nEpoch 2/2\n100/100 - 5s - loss: nan - val_loss: nan\n", [100, 200]),
    ("Epoch 1\n-----\nloss: 2.5  [   64/60000]\nloss: 2.5  [ 6464/60000]\nEpoch 2\n-----\nloss: 2.5  [   64/60000]\n", [64, 6464, 60064]),
    ("Epoch 1 loss 2.5\nEpoch 2 loss 2.25\nEpoch 3 loss nan\n", [1, 2, 3]),
    ("Epoch 1 loss 2.5\nEpoch 1 loss 2.25\nEpoch 2 loss nan\n", [0, 1, 2]),
    ("loss 2.5\nloss 2.25\nloss nan\n", [0, 1, 2]),
    ("[batch=1/20]:\n\t Train loss/train/total: 2.5\n[batch=2/20]:\n\t Train loss/train/total: nan\n", [1, 2]),
    ("DLL 2024-05-06 07:08:09.1 - epoch    1 | iter  99/100 | loss 2.5\nDLL 2024-05-06 07:08:09.1 - epoch    2 | iter   1/100 | loss 2.5\n", [99, 101]),
    ("DLLL {\"step\": [0, 10], \"data\": {\"loss\": 2.5}}\nDLLL {\"step\": [0], \"data\": {\"loss\": 2.5}}\nDLLL {\"step\": [0, 20], \"data\": "
     "{\"loss\": 2.5}}\n", [10, 20]),
    ("Training epoch 0, iteration 5/9 | lr: 1e-4 | reduced_train_loss: 2.5\nTraining epoch 0, iteration 6/9 | lr: 1e-4 | reduced_train_loss: 2.5\n",
     [5, 6]),
])
def test_steps_of_a_log(text, steps, only):
    assert only(text).step.tolist() == steps


def test_progress_bar_tells_the_step_of_what_stands_behind_it(only):
    dict_ = "\n{{'loss': {}, 'learning_rate': 1e-4, 'epoch': 0.3}}\n".format
    text = (bar(100, 100, description="Map: ") + bar(9, 200) + bar(10, 200) + dict_(2.5) + bar(10, 200) + bar(1, 8) + bar(8, 8)
            + "\n{'eval_loss': 2.5, 'eval_runtime': 3.5, 'epoch': 0.3}\n" + bar(19, 200) + overflow(64, 32) + bar(20, 200) + dict_(NAN) + bar(20, 200))
    trace = only(text)
    assert trace.step.tolist() == [10, 20] and bad(trace, "gradients") == [20] and bad(trace, "loss") == [20]
    assert "the step of 2 rows is that of the progress bar" in said(trace) and "1 lines of evaluations" in said(trace)


def test_progress_bar_with_the_loss(only):
    """Its last state at a step; a validation bar is none."""
    text = "".join(bar(n, 4, f", loss={loss}, v_num=0", f"Epoch {epoch}: ") + bar(n, 4, f", loss={loss}, v_num=0", f"Epoch {epoch}: ")
                   for epoch, losses in ((0, (2.5, 2.25, 2.0, 1.75)), (1, (1.5, "nan", 1.5, 1.5))) for n, loss in enumerate(losses, 1))
    trace = only(text + bar(2, 2, ", val_loss=9.0", "Validation DataLoader 0: "))
    assert trace.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] and bad(trace, "loss") == [6]
    same(trace.loss, [2.5, 2.25, 2, 1.75, 1.5, NAN, 1.5, 1.5])


def test_rows_of_several_tools_complete_a_step(only):
    trace = only(engine(10, 0) + "steps: 10 loss: 2.5000 iter time (s): 4.2 samples/sec: 7.5\n" + iteration(10, norm="inf")
                 + engine(20, 0) + iteration(20))
    assert trace.step.tolist() == [10, 20] and bad(trace, "grad_norm") == [10]
    same(trace.lr, [7e-6, 7e-6])
    assert trace.framework == "DeepSpeed Megatron"


def test_overflow_line_behind_the_row_of_its_step(only):
    """Megatron-DeepSpeed: another rank's line comes between the engine's, the pipeline's and Megatron's of one step."""
    late = "[2024-05-06 07:08:01,123] [INFO] [fused_optimizer.py:363:_update_scale] Reducing dynamic loss scale from 64 to 32.0\n"
    pipe = "steps: {} loss: 2.5000 iter time (s): 4.2 samples/sec: 7.5\n".format
    trace = only(engine(1, 1) + late + pipe(1) + iteration(1, scale=32) + engine(2, 1) + pipe(2) + iteration(2, scale=32))
    assert trace.step.tolist() == [1, 2] and bad(trace, "gradients") == [1] and trace.framework == "DeepSpeed Megatron"


def test_counters_that_differ(only):
    """A loop that counts micro-steps beside an engine that counts steps: one trace, the loop's steps."""
    trace = only("".join(f"step: {80 * n}, loss: 2.5\n" + engine(10 * n, n // 3) for n in range(1, 5)))
    assert trace.step.tolist() == [80, 160, 240, 320] and bad(trace, "gradients") == [240]
    assert "DeepSpeed counts other steps than training loop" in said(trace)


def test_restart_with_an_overflow(put):
    """The incident of the first stretch stays in it."""
    first, second = traces_of(put(iteration(10, scale=64) + iteration(20, scale=64) + "| WARNING: overflow detected, setting loss scale to: 32.0\n"
                                  + iteration(10, scale=128) + iteration(20, scale=128)))
    assert first.step.tolist() == [10, 20, 21] and bad(first, "gradients") == [21] and first.label == "sudden"
    assert second.step.tolist() == [10, 20] and second.label == "healthy"


# --- ranks -----------------------------------------------------------------------------------------------------------------

def titan(step, loss="2.50000", norm="1.5000", prefix=""):
    return f"{prefix}step: {step:2d}  loss: {loss:>8}  grad_norm: {norm:>8}  memory:  9.50GiB(60.00%)  tps: 7,250\n"


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[default{}]:", "{}: ", "[1,{}]<stdout>:", "(worker, pid=41{})  ", ""])
def test_copies_of_ranks(prefix, only):
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        trace = only("".join(titan(step, prefix=prefix.format(rank)) for step in (1, 2, 3) for rank in order))
        assert trace.step.tolist() == [1, 2, 3] and trace.label == "healthy" and "9 lines " in said(trace) and "left out" in said(trace)


def test_ranks_with_losses_of_their_own(only):
    """Without a label too: every step stands twice."""
    trace = only("".join(f"step: {n} loss: {2 + n / 4 + rank / 8}\n" for n in (1, 2, 3) for rank in (0, 1)))
    same(trace.loss, [2.25, 2.5, 2.75])


def test_rank_that_alone_went_wrong(only):
    trace = only("".join(f"[rank{rank}]:step: {n} loss: {'nan' if rank == n == 2 else 2.5}\n" for n in (1, 2, 3) for rank in range(4)))
    assert trace.label == "unknown" and "loss of rank2 is worse than that of rank0" in said(trace)


def test_rank_of_a_pipeline_that_has_the_loss(only):
    trace = only("".join(titan(n, "-1.00000", prefix="[rank0]:") + titan(n, "nan" if n == 2 else "2.5", prefix="[rank3]:") for n in (1, 2)))
    assert bad(trace, "loss") == [2] and trace.step.tolist() == [1, 2]


def test_overflow_lines_of_every_rank(only):
    trace = only("".join(overflow(64 >> n, 32 >> n, rank) for n in range(3) for rank in range(4)) + engine(10, 3))
    assert trace.step.tolist() == [7, 8, 9, 10] and trace.loss_scale[:3].tolist() == [64, 32, 16] and "9 lines of other ranks" in said(trace)
    apex_line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n".format
    trace = only("".join(apex_line(scale) * 4 for scale in (512.0, 256.0)))
    assert trace.step.tolist() == [0, 1] and "6 overflow lines that repeat the one before" in said(trace)


def test_another_launcher_after_a_restart_loses_nothing(put):
    run = iteration(10, scale=64) + iteration(20, scale=64) + overflow(64, 32)
    again = "".join(f"[rank0]:{line}\n" for line in (run + iteration(30, scale=32)).splitlines())
    first, second = traces_of(put(run + again))
    assert bad(first, "gradients") == [21] and bad(second, "gradients") == [21] and second.step.tolist() == [10, 20, 21, 30]


# --- what is not understood, and what is none of it ------------------------------------------------------------------------

GOOD = "step: 10, loss: 2.5\n{}\nstep: 20, loss: 2.25\n"


@pytest.mark.parametrize("line", [
    "Warning: NaN or Inf found in input tensor.", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    "overflow in the optimizer, this update is lost", "Skipping batch 17 because of its gradients", "found_inf: True", "WARNING loss scale reduced to 64",
    "2024-05-06 07:08:09 - the gradients are not finite", "FloatingPointError: invalid value (nan) encountered in jit(step)", "z_loss=nan",
    "NaN detected in output of encoder.layers.3, shape: torch.Size([2, 4]), forward", "Model diverged with loss = NaN.", "grad scale: inf",
    "GradScaler: scale is 32768.0, step skipped", "the loss exploded, restarting", "non-finite gradients in layer 3", "eval_loss: nan",
    "validation loss: inf", "iteration 201/    5000 | consumed sam", " lm loss: 3.1[rank3]: watchdog | loss scale: 1.0 |", "skipping step 14 (inf gradients)",
    "{'loss': 2.5, 'grad_norm': 0.5, 'learning_ra", "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65",
    "[Rank 0] step=10, skipped=", "step: 15, loss: 2.5e", "step: 15, loss:", "step 15 loss: 2.[rank1]:", ":::MLLOG {\"key\": \"train_loss\", \"value\": 2.", "DLLL {\"step\": [1, 2], \"data\"", "completed step: 41, seconds: 2.1",
    "Training epoch 0, iteration 20/999 | lr: 0.0001 | reduced_train_loss: 2.x", "iter 3: loss ", "Epoch(train)   [1][ 50/100]  lr: 1.0000e-02  eta: 0:3",
    "INFO | train_inner | {\"epoch\": 1, \"loss\": \"14.5\", \"num_updates\": \"3\", \"lr",
])
def test_line_that_was_not_understood(line, only):
    trace = only(GOOD.format(line))
    assert trace.label in ("unknown", "sudden"), said(trace)
    if trace.label == "unknown":
        assert "1 place looks like a metric or an overflow and was not understood: line 2: " in said(trace) and trace.step.tolist() == [10, 20]


@pytest.mark.parametrize("line", [
    "  loss_scale ...................................... None", "  initial_loss_scale .............................. 4294967296",
    "  check_for_nan_in_loss_and_grad .................. True", "  hysteresis ...................................... 2",
    "[2024-05-06 07:08:09,123] [INFO] [config.py:997:print]   loss_scale ................... 0",
    "[2024-05-06 07:08:09,123] [INFO] [config.py:997:print]   dynamic_loss_scale_args ...... {'init_scale': 65536, 'scale_window': 1000}",
    "    \"loss_scale\": 0, ", "    \"min_loss_scale\": 1", "loss_scale             : dynamic", "loss_scale             : 128.0", "loss_scale: 128",
    "Namespace(adam_eps=1e-09, fp16_init_scale=128, loss_scale=1.0, lr=[0.1], max_grad_norm=1.0, skip_invalid_size_inputs=True)",
    "TrainingArguments(learning_rate=5e-05, logging_nan_inf_filter=True, max_grad_norm=1.0, label_smoothing_factor=0.0)",
    "+ python train.py --loss-scale 12 --max-grad-norm 1.0 --no-check-for-nan-in-loss", "torchrun train.py --initial-loss-scale 65536",
    "max_grad_norm: 1.0", "clip_grad_norm: 1.0", "learning_rate: 1e-4", "label_smoothed_cross_entropy loss", "criterion: CrossEntropyLoss()",
    "(loss): CrossEntropyLoss()", "No Grad overflow for 500 iterations", "Increasing dynamic loss scale from 4096.0 to 8192.0",
    "[2024-05-06 07:08:09,123] [INFO] [timer.py:260:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=17.5, MemAllocated=0.0GB",
    "Validation loss 900:  0.625", "val loss 2.75", "eval_loss: 2.75", " validation loss at iteration 10 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |",
    "Test set: Average loss: 0.0343, Accuracy: 9879/10000 (99%)", "best val loss: 2.5 at step 10", "Saving checkpoint to run/model-loss=2.50.ckpt",
    "saved runs/step_10--reduced_train_loss=8.2760-epoch=0.ckpt", "Upscaling, new scale: 512.0", "Consecutive hysteresis is enabled. Restoring hysteresis to 2",
    "Using /root/.cache/overflow_check as extension root", "[INF] 07:08:09 starting", "Nan Zhang joined the run", "time (ms) | forward: 1.2",
    "0  foo  NaN  1.5", "step time: 1.25 s", "UserWarning: To copy construct from a tensor, it is recommended to use sourceTensor.clone()",
    "  File \"train.py\", line 33, in check_loss", "    raise ValueError(\"loss is nan\")", "    loss = criterion(output, target)", "if torch.isnan(loss):",
    "Creating fp16 ZeRO stage 2 optimizer with dynamic loss scale", "10/100 batches done", "https://example.org/loss=nan", "throughput: inf samples/s", "ppl: inf",
    "  warnings.warn('nan_to_num is slow')", "| # of parallel all-reduce cuda streams: 2", "skip_first_batches=0", "nan count: 0", "overflow: False",
])
def test_line_that_is_no_metric(line, only):
    trace = only(GOOD.format(line))
    assert trace.label == "healthy", said(trace)
    assert trace.step.tolist() == [10, 20] and column(trace, "loss") == [2.5, 2.25]


def test_number_of_places(only):
    trace = only(GOOD.format("found_inf: True\n" * 3 + "found nan in the output"))
    assert trace.label == "unknown" and "4 places look like a metric or an overflow" in said(trace) and "line 5" not in said(trace)


def test_loss_scale_alone_that_changes_is_no_setting(only):
    trace = only("step: 1, loss: 2.5\nloss scale: 64.0\nstep: 2, loss: 2.5\nloss scale: 32.0\nstep: 3, loss: 2.5\nloss scale: 32.0\n")
    assert trace.label == "sudden" and len(bad(trace, "gradients")) == 1


def test_part_of_a_loss_that_is_not_finite(only):
    trace = only(GOOD.format("step: 15, loss: 2.5, load_balancing_loss: nan"))
    assert trace.label == "unknown" and "load_balancing_loss is not finite" in said(trace)
    trace = only("Epoch [1][50/100]\tlr: 1.000e-02, loss_cls: nan, loss_bbox: 0.2500, loss: 1.5000\n")
    assert trace.label == "unknown"


def test_loss_of_zero_that_hf_trainer_prints(only):
    """It leaves losses out that are not finite (logging_nan_inf_filter)."""
    trace = only("{'loss': 2.5, 'learning_rate': 1e-4, 'epoch': 0.1}\n{'loss': 0.0, 'learning_rate': 1e-4, 'epoch': 0.2}\n")
    assert trace.label == "unknown" and "none of the interval was finite" in said(trace)
    trace = only("{'loss': 0.0, 'grad_norm': 0.001, 'learning_rate': 1e-4, 'epoch': 0.2}\n")
    assert trace.label == "healthy"


def test_healthy_log_of_hf_trainer_with_deepspeed(only):
    """Configuration, evaluation and metrics at the end make it neither unknown nor another tool's."""
    trace = only("""[2024-05-06 07:08:01,123] [INFO] [config.py:997:print]   loss_scale ................... 0
    "fp16": {
        "loss_scale": 0,
        "loss_scale_window": 1000,
***** Running training *****
{'loss': 2.31, 'grad_norm': 0.875, 'learning_rate': 2e-05, 'epoch': 0.05}
{'eval_loss': 2.2, 'eval_runtime': 3.5, 'epoch': 0.05}
{'loss': 2.21, 'grad_norm': 0.875, 'learning_rate': 2e-05, 'epoch': 0.1}
{'train_runtime': 30.25, 'train_samples_per_second': 1.0, 'train_loss': 2.26, 'epoch': 0.1}
***** train metrics *****
  epoch                    =     0.1
  train_loss               =     2.26
""")
    assert trace.label == "healthy" and trace.framework == "HF Trainer" and trace.step.tolist() == [0, 1]
    assert "3 lines of evaluations and of whole runs left out" in said(trace)


def test_average_and_evaluation_that_are_not_finite(only):
    trace = only("iter 0: loss 2.5, time 200.50ms, mfu 30.25%\nstep 0: train loss nan, val loss 2.5\n")
    assert trace.label == "unknown" and trace.step.tolist() == [0]
    trace = only("{'loss': 2.5, 'epoch': 0.1}\n{'eval_loss': nan, 'eval_runtime': 1.0, 'epoch': 0.1}\n")
    assert trace.label == "unknown" and "eval_loss is not finite" in said(trace)


TORN = {
    "megatron": (iteration(10) + iteration(20) + iteration(30), "grad norm: 1.500 | number of skipped iterations:   0 | number of nan iterations:   0 |",
                 "grad no", 1, [20, 30]),
    "deepspeed": (engine(10, 0) + overflow(64, 32) + engine(20, 1), "reducing to 32", "reducing to", 2, [10, 20]),
    "fairseq": ("".join(f"| epoch 002:     85 / 282 loss=3.147, num_updates={n}, lr=0.0002, gnorm=0.489, loss_scale=128, wall=0\n" for n in (1, 2, 3)),
                "num_updates=2, ", "", 2, [1, 3]),
    "fairseq, cut": ("".join(f"| epoch 002:     85 / 282 loss=3.147, num_updates={n}, lr=0.0002, loss_scale=128, wall=0\n" for n in (1, 2, 3)),
                     "num_updates=3, lr=0.0002, loss_scale=128, wall=0", "num_updates=3, lr=0.0002, loss_sc", 3, [1, 2]),
    "gnmt": ("".join(f"TRAIN [0][{n}/20]\tTime 0.5 (0.5)\tLoss/tok 9.5000 (10.0)\tLR 3.000e-05\n" for n in (1, 2, 3)), "[0][2/20]\tTime 0.5 (0.5)\tLoss/tok 9.5000",
             "[0][2/20]\tTime 0.5 (0.5)\tLoss/tok", 2, [1, 3]),
    "nanogpt": ("".join(f"iter {n}: loss 4.25, time 200.50ms, mfu 30.25%\n" for n in (1, 2, 3)), "iter 2: loss 4.25", "iter 2: loss 4.2x", 2, [1, 3]),
}


@pytest.mark.parametrize("name", TORN)
def test_torn_line_is_named_and_the_others_are_read(name, only):
    text, old, new, line, steps = TORN[name]
    assert old in text
    trace = only(text.replace(old, new, 1))
    assert trace.step.tolist() == steps
    assert f"1 place looks like a metric or an overflow and was not understood: line {line}: " in said(trace)
    assert trace.label == ("sudden" if bad(trace, "gradients") else "unknown") if "gradients" in [p.name for p in trace.probes] else "unknown"


@pytest.mark.parametrize("text, error", [
    *((f"\n{text.format('9' * 5000)}\nstep: 20, loss: 2.5\n", "2: {}: a step of more than 15 digits: ".format(tool)) for tool, text in (
        ("training loop", "step:{}, loss: 2.5"), ("Megatron", " iteration {}/ 1000 | lm loss: 2.5 |"), ("nanoGPT", "iter {}: loss 2.5, time 1ms"),
        ("DeepSpeed", "[Rank 0] step={}, skipped=0, lr=[1], mom=[1]"), ("MaxText", "completed step: {}, seconds: 1, loss: 2.5"),
        ("torchtitan", "step: {}  loss: 2.5  memory: 1GiB"), ("training loop", "Epoch: [1][{}/100]\tLoss 2.5 (2.5)"))),
    ("hello\n\niteration 201/    5000 | consumed sam\n", '3: looks like a metric or an overflow and cannot be read: "an iteration line that does not end'),
    ("{'eval_loss': 2.5, 'eval_runtime': 1.0}\n", "holds no line with a loss, gradient norm or loss scale of a step (only other lines of HF Trainer)"),
    ("Epoch 1\nEpoch 2\n", "holds no line with a loss"),
])
def test_log_without_a_row(text, error, put):
    path = put(text)
    fault = fault_of(path, "training-log")
    assert error in fault and fault.startswith(f"{path}:") and "copy it again" not in fault and re.search("; (?:give|correct) the ", fault)


def test_what_an_unknown_file_has_is_said(put):
    path = put("preparing\nmodel diverged, found nan in the output of layer 3\n")
    assert fault_of(path).startswith(f'{path}:2: is in no known format, but this line looks like a metric or an overflow: "model diverged')


# --- files -----------------------------------------------------------------------------------------------------------------

TEXT = iteration(10) + iteration(20, loss="NAN")


@pytest.mark.parametrize("encode", [
    lambda t: t.encode("utf-8-sig"), lambda t: t.encode("utf-16"), lambda t: t.encode("utf-16-le"), lambda t: t.encode("utf-16-be"),
    lambda t: b"\xfe\xff" + t.encode("utf-16-be"), lambda t: t.encode("utf-32"), lambda t: t.replace("\n", "\r\n").encode("utf-16"),
    lambda t: t.encode("utf-16")[:-1], lambda t: t.replace("\n", "\r\n").encode(), lambda t: gzip.compress(t.encode()), lambda t: bz2.compress(t.encode()),
    lambda t: lzma.compress(t.encode()), lambda t: zipped({"run/job.log": t.encode()}), lambda t: zipped({"job.log.gz": gzip.compress(t.encode())}),
    lambda t: zipped({"job.log": t.encode("utf-16"), "__MACOSX/._job.log": b"x", ".DS_Store": b"y"}), lambda t: t.encode()[:-1],
    lambda t: "starting\n".encode() + t.encode("utf-16-le"), lambda t: b"caf\xe9 \xff\n" + t.encode(), lambda t: t.encode() + b"\0" * 4096,
    lambda t: t.replace("iteration", "caf\u00e9 \u4e2d iteration").encode("utf-16"),
], ids=range(20))
def test_encodings_and_compressions(encode, only):
    trace = only(encode(TEXT))
    assert trace.step.tolist() == [10, 20] and bad(trace, "loss") == [20] and trace.loss[0] == 2.5


def zipped(files: dict[str, bytes], compression=zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize("data, error", [
    (zipped({"rank0.log": b"a", "rank1.log": b"b"}), 'is a zip of 2 files: "rank0.log", "rank1.log"; unpack it and import the one you mean'),
    (zipped({}), "is a zip that holds no file; unpack it"), (zipped({"job.log": b""}), "is empty"),
    (zipped({"job.log": TEXT.encode()})[:-30], "cannot be decompressed"),
    (b"\x28\xb5\x2f\xfd" + b"x" * 40, "is compressed by Zstandard; decompress it and import what it holds"),
    (functools.reduce(lambda data, _: gzip.compress(data, mtime=0), range(5), b"x"), "is compressed more than 4 times over"),
])
def test_compressed_file_that_is_refused(data, error, put):
    path = put(data, "job.zip")
    assert fault_of(path).startswith(f"{path}: {error}")


def test_bomb_is_bounded(put, monkeypatch):
    monkeypatch.setattr("opd.importers.source.FREE_BYTES", 1 << 20)
    for data in (zipped({"a.log": b"\n" * (8 << 20)}), gzip.compress(b"\n" * (8 << 20))):
        assert "decompresses to more than 1 MiB, from " in fault_of(put(data)) and "split it" in fault_of(put(data))


def test_control_characters_reach_no_terminal(put, capsys):
    path = put(b"\x1b]0;title\x07 iteration \x1b[31mx\x9b31m\x00/ 5000 | \x07 found nan in the loss\n")
    assert main([str(path), "--out", str(path.parent)]) == 2
    shown = capsys.readouterr().err
    assert all(c.isprintable() or c == "\n" for c in shown) and shown.count("\n") == 1
    path = put(b"step: 1, loss: 2.5\n\x1b]0;title\x07\x1b[31m found nan \x9b in the output\n")
    assert main([str(path), "--out", str(path.parent)]) == 0
    assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().out)


def test_long_lines(only):
    """A line without an end is other output; what it may hide is said."""
    assert only(GOOD.format("x" * 200000)).label == "healthy"
    assert only(GOOD.format("x " * 100000 + "loss: 2.5")).label == "unknown"
    states = "".join(bar(n, 3000, ", loss=2.5").strip("\r") for n in range(1, 3000))   # carriage returns lost
    assert len(only(states).step) == 2999


@pytest.mark.parametrize("part", range(8))
def test_random_damage(part, put):
    """Whatever the bytes are: a trace, or one of the two errors in one line; and a torn line is never a healthy run's."""
    seed = int(os.environ.get("OPD_SEED", "0x1A97"), 0)
    print(f"reproduce: OPD_SEED={seed}")
    rng = random.Random(f"{seed} logs {part}")
    examples = [example for key, example in EXAMPLES.items() if SPELLED[key][0] in (ROW, OVERFLOW)]
    read = 0
    for _ in range(40):
        data = bytearray("\n".join(rng.choice(examples) for _ in range(rng.randint(1, 12))).encode())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            edit = rng.randrange(4)
            if edit == 0:
                data[at] = rng.randrange(256)
            elif edit == 1:
                del data[at:at + rng.randint(1, 30)]
            elif edit == 2:
                data[at:at] = rng.choice([b"nan", b"-1", b"1e999", b"{", b"]", b'"', b"|", b"\n", b"\r", b"\0", b"\xff", b"9" * 30, b"\x1b[", b"%|",
                                          b"[rank3]:", b" 100%|##| 7/9 [00:01<00:01]", b"step=", b"loss: ", b"epoch "])
            else:
                other = rng.randrange(len(data))
                data[at:at] = data[other:other + rng.randint(1, 60)]
            data = data or bytearray(b"x")
        try:
            traces_of(put(bytes(data)), rng.choice([None, "training-log"]))
            read += 1
        except (ImportFault, TraceError) as error:
            assert str(error).count("\n") == 0 and "; " in str(error)
    assert read > 10


# --- the inputs of ../shared/reports ---------------------------------------------------------------------------------------
# file: steps, label, losses, {probe: steps where it is not finite}, words that are said

REPORTED = {
    "deepspeed_steps.log": ([7, 8, 9, 10, 20, 21, 30, 40], "sudden", None, {"gradients": [7, 8, 9, 21]}, ""),
    "hf_console.log": ([0, 1, 2, 3], "sudden", [2.31, 2.27, 2.4, 0.0], {"grad_norm": [2, 3], "loss": []}, "2 lines of evaluations and of whole runs left out"),
    "hf_console_strings.log": ([0, 1, 2], "sudden", [1.812, 1.75, 0], {"grad_norm": [2]}, "rows are counted from 0"),
    "hf_tqdm_deepspeed.log": ([600, 649, 650, 651], "sudden", [1.5, 1.5, 2.25, 2.25], {"gradients": [649, 650, 651]}, "progress bar"),
    "torchtitan.log": ([1, 2, 3, 4], "sudden", [8.125, 7.75, 7.5, 7.4375], {"grad_norm": [3, 4], "loss": []}, ""),
    "torchtitan_ranks.log": ([1, 2, 3], "healthy", [8.125, 7.75, 7.5], {"loss": [], "grad_norm": []}, "9 lines of other ranks left out"),
    "torchtitan_colour.log": ([1, 2], "sudden", [8.125, NAN], {"loss": [2], "grad_norm": [2]}, ""),
    "megatron_nan.log": ([200, 201, 202, 203], "sudden", [3.25, 3.125, NAN, INF], {"loss": [202, 203]}, ""),
    "megatron_colour.log": ([200, 201, 202], "healthy", [3.25, 3.125, 3.1875], {"loss": []}, ""),
    "megatron_interleaved.log": ([200, 202], "unknown", [3.25, 3.1875], {"loss": []}, "line 2: "),
    "megatron_utf16.log": ([200, 201, 202], "healthy", [3.25, 3.125, 3.1875], {"loss": []}, ""),
    "megatron.zip": ([200, 201, 202], "healthy", [3.25, 3.125, 3.1875], {"loss": []}, ""),
    "fairseq_json.log": ([1, 2, 3, 4], "sudden", [14.5, 14.25, 17.5, 16.25], {"gradients": [3], "grad_norm": []}, "2 rows have no step"),
    "apex.log": ([0, 1, 2, 3], "sudden", None, {"gradients": [0, 1, 2], "gradients.scaler1": [3]}, "line 5: \"Warning: NaN or Inf found"),
    "mmdet_text.log": ([50, 100, 150, 200], "sudden", [1.5, 1.25, NAN, 1.125], {"loss": [150], "grad_norm": [150]}, ""),
    "mmengine_text.log": ([50, 100, 150], "sudden", [0.5, 0.4375, NAN], {"loss": [150]}, ""),
    "paddlenlp.log": ([100, 200, 300], "sudden", [8.125, 7.5, NAN], {"loss": [300], "gradients": [300]}, "the loss scale falls 1 times"),
    "maxtext.log": ([40, 41, 42], "sudden", [2.5, 2.438, NAN], {"loss": [42]}, ""),
    "nanogpt.log": ([0, 1, 2, 3], "sudden", [4.25, 3.875, NAN, NAN], {"loss": [2, 3]}, "1 lines with averages"),
}


@needs_reports
@pytest.mark.parametrize("name", REPORTED)
def test_report(name):
    steps, label, losses, nonfinite, words = REPORTED[name]
    assert detect(Source.open(REPORTS / name)) == "training-log"
    [trace] = traces_of(REPORTS / name)
    assert (trace.step.tolist(), trace.label) == (steps, label)
    assert {probe: bad(trace, probe) for probe in nonfinite} == nonfinite
    if losses is not None:
        same(trace.loss, losses)
    assert words in said(trace)


@needs_reports
def test_scales_of_the_reports():
    def scales(name):
        return traces_of(REPORTS / name)[0].loss_scale.tolist()
    assert scales("deepspeed_steps.log") == [65536, 65536, 32768, 16384, 16384, 16384, 8192, 8192]
    assert scales("hf_tqdm_deepspeed.log") == [64, 64, 32, 16]
    assert scales("fairseq_json.log") == [8, 8, 2, 2]
    assert scales("apex.log")[:3] == [1024, 512, 256]
    assert scales("paddlenlp.log") == [65536, 65536, 32768]
    same(traces_of(REPORTS / "deepspeed_steps.log")[0].lr[[3, 4, 6, 7]], [7e-6, 7e-6, 6.9e-6, 6.9e-6])
    same(traces_of(REPORTS / "fairseq_json.log")[0].grad_norm, [19.25, 18.5, 96.5, 12.5])


@needs_reports
def test_step_of_5000_digits_is_an_error():
    path = REPORTS / "attack" / "log_step_of_5000_digits.log"
    assert fault_of(path).startswith(f'{path}:1: training loop: a step of more than 15 digits: "step:9999')
