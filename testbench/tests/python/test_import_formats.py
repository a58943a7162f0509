"""opd.importers, format by format: files as each tool writes them, compared value for value; cut, damaged and random ones.

Where the tool itself can run here its own code writes the file (nvdlfw_inspect, TensorBoard through PyTorch, NumPy,
safetensors, json); else a writer below follows the tool's source, which the importer's header names. test_import_tools.py runs
further tools where they are installed.
"""
import csv
import io
import json
import math
import os
import random
import re
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from nvdlfw_inspect.logging import FileLogger
from torch.utils.tensorboard import SummaryWriter

from opd.importers import IMPORTERS, ImportFault, detect, import_file
from opd.importers.source import Source
from opd.trace import Probe, Trace, TraceError, TraceWriter
from test_import import column, fault_of, traces_of

TOOL = os.environ.get("OPD_TRACE_TOOL")


# --- writers: one file of each format --------------------------------------------------------------------------------------

def hf_report(steps, announced=None) -> str:
    """transformers.debug_utils: dump_saved_frames. steps: [(batch, [(module, class, [(tensor, min, max)])])]."""
    frames, prefix = [], " " * 17
    for i, (batch, modules) in enumerate(steps):
        start = f"\n\n{prefix} *** Starting batch number={batch} ***\n{'abs min':8} {'abs max':8} metadata\n"
        for module, name, tensors in modules:
            lines = [f"{prefix} {module} {name}"]
            lines += [f"{'None':>17} {ctx}" if low is None else f"{low:8.2e} {high:8.2e} {ctx}" for ctx, low, high in tensors]
            frames.append(start + "\n".join(lines))
            start = ""
    head = f"\nDetected inf/nan during batch_number={steps[-1][0]}\nLast {announced or len(frames)} forward frames:\n"
    return "output has infs\n" + head + f"{'abs min':8} {'abs max':8} metadata\n" + "\n".join(frames) + "\n\n\n\nTraceback:\n"


HF = [(3, [("fc1", "Linear", [("weight", 0.01, 6.44), ("input[0]", 0.0, 9.74e3), ("output", 3.18e-4, 6.27e4)]),
           ("", "Net", [("input[0]", 1e-3, 2.0), ("output[0]", 0.5, 1.5), ("output[1]", None, None)])]),
      (4, [("fc1", "Linear", [("weight", 0.01, 6.45), ("input[0]", 0.0, 9.99e3), ("output", 0.0, math.inf)]),
           ("fc1", "Linear", [("output", math.nan, math.nan)])])]


def nvdlfw_log(folder: Path, scalars) -> Path:
    """The log of nvdlfw_inspect's own logger. scalars: [(name, value, iteration)]."""
    logger = FileLogger("nvdlfw_inspect", str(folder))
    logger._initialize_stats_logger("nvdlfw_inspect_statistics_logs")
    for name, value, iteration in scalars:
        logger.log_scalar(name, value, iteration)
    for handler in list(logger.stats_logger.handlers):
        handler.close()
        logger.stats_logger.removeHandler(handler)
    return folder / "nvdlfw_inspect_statistics_logs" / "nvdlfw_inspect_globalrank-0.log"


NVDLFW = [(f"decoder.fc1_{tensor}_{stat}", value, step) for step in (2, 5) for tensor, stat, value in (
    ("activation", "min", -4.3386 * step), ("activation", "max", 4.3188), ("activation", "mean", 0.25), ("activation", "std", 2.0),
    ("gradient", "cur_amax", 1e-5 if step == 2 else math.inf), ("activation", "l1_norm", 12.5),
    ("weight", "fp8_delayed_scaling_underflows%", 3.0), ("weight", "max", 0.5), ("weight", "min", -0.75))]


def msprobe_tensor(array: np.ndarray, dtype: str) -> dict:
    """PytorchDataProcessor._analyze_tensor with the statistics of DataWriter._replace_stat_placeholders."""
    with np.errstate(invalid="ignore", over="ignore"):
        return {"type": "torch.Tensor", "dtype": dtype, "shape": list(array.shape), "Max": array.max().item(),
                "Min": array.min().item(),
                "Mean": float(array.astype(np.float32).mean()), "Norm": float(np.linalg.norm(array.astype(np.float32))),
                "requires_grad": False}


def msprobe_dump() -> str:
    a, w = np.float16([[1, -3], [2, 0.5]]), np.float32([[0.25, -0.125]])
    whole = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [], "Max": 4, "Min": 4, "Mean": 4, "Norm": 4,
             "requires_grad": False}
    data = {
        "Module.fc.Linear.forward.0": {
            "input_args": [msprobe_tensor(a, "torch.float16"), whole, {"type": "int", "value": 1}, None],
            "input_kwargs": {"mask": msprobe_tensor(a * 2, "torch.float16")},
            "output": [msprobe_tensor(np.float16([np.inf, -7]), "torch.float16"),
                       [msprobe_tensor(np.float32([np.nan]), "torch.float32")]],
            "parameters": {"weight": msprobe_tensor(w, "torch.float32")}},
        "Distributed.all_reduce.0.forward": {"input_args": [msprobe_tensor(a, "torch.bfloat16")], "output": [
            {**msprobe_tensor(a, "torch.float32"), "Max": None, "Min": None}]},
        "Module.fc.Linear.backward.0": {"input": [msprobe_tensor(w * 8, "torch.float32")], "output": []},
        "Module.fc.Linear.parameters_grad.0": {"weight": [msprobe_tensor(w * 4, "torch.float32")]}}
    return json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data},
                      indent=1)


def monitor_v1(rows) -> str:
    """CSVWriterWithAD.write_csv: values rounded to 6 digits, what is no number as "nan"."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["vpp_stage", "name", "step", "micro_step", "min", "max", "mean", "norm", "nans", "shape", "dtype"])
    for stage, name, step, micro, *values, shape, dtype in rows:
        cells = ["nan" if isinstance(v, float) and math.isnan(v) else round(v, 6) for v in values]
        writer.writerow([stage, name, step, micro, *cells, "nan" if shape is None else str(list(shape)), dtype])
    return stream.getvalue()


MONITOR_V1 = [
    (0, "fc.input", 3, 0, -2.5, 1.0, 0.5, 4.0, 0, (2, 4), "torch.bfloat16"),
              (0, "fc.output", 3, 0, 0.0, 8.1234567, 1.0, 9.0, 0, (8,), "torch.float32"),
    (0, "fc.none", 3, 0, math.nan, math.nan, math.nan, math.nan, math.nan, None, "nan"),
    (0, "fc.input", 3, 1, -3.5, 1.0, 0.5, 4.0, 0, (2, 4), "torch.bfloat16"),
    (1, "fc.input", 4, 0, -1.5, 1.0, 0.5, 4.0, 0, (2, 4), "torch.bfloat16"),
              (0, "fc.output", 4, 0, math.nan, math.nan, math.nan, math.nan, 3, (8,), "torch.float32")]


def monitor_v2(rows) -> str:
    """CSVWriterV2.write_monitor_data."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


MONITOR_V2 = [dict(vpp_stage=-1, step=step, module_name=name, scope=scope, min=low, max=high, mean=0.0, norm=1.0, nans=nans)
              for step in (0, 10) for name, scope, low, high, nans in (
    ("0.output.0", "forward", -1.5, float(step), 0.0), ("0.grad_input.0", "backward", 0.0, 2.0 if step == 0 else math.inf, 0.0),
    ("all_reduce", "comm", math.nan if step else 0.0, 1.0, 5.0 if step else 0.0), ("0.weight", "param", -0.5, 0.25, 0.0),
    ("0.weight.exp_avg", "exp_avg", -0.125, 0.0, 0.0))]


def inc_measurement(mode="DynamicRange") -> str:
    """save_file with save_json (indent 4)."""
    nodes = {"model.layers.0.q_proj": {"inputs": [[[3.5]]], "outputs": [[[700.0]]],
                                       "params": {"weight": [[0.25], [0.5], [0.125]]}},
             "model.layers.0.matmul_qk": {"inputs": [[[3.0]], [[4.0]]], "outputs": [[[math.inf]]]},
             "model.layers.0.gate": {"inputs": [[[1.0]]], "outputs": [[2.0]]}}
    return json.dumps({"NumSamples": 3, "GlobalRank": None, "LocalRank": 0, "Mode": mode, "Nodes": nodes}, indent=4)


MEGATRON = "".join(
    f" [2026-01-01 10:00:00] iteration {i:8d}/ 1000 | consumed samples: {i * 16:12d} | elapsed time per iteration (ms): 431.0 | "
    f"learning rate: {1e-5 * i:.3E} | global batch size:    16 | {loss}loss scale: {scale:.1f} | grad norm: {norm:.3f} | "
    f"number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\ntime (ms) | forward: 1.2\n"
    for i, loss, scale, norm,
                   skipped in ((10, "lm loss: 7.400000E+00 | ", 1024, 1.5, 0), (20, "lm loss: 6.500000E+00 | ", 512, 2.5, 1),
                                          (30, "", 256, math.inf, 10)))
DEEPSPEED = """\
[2026-01-01 10:00:00,261] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, but hysteresis is 2. Reducing hysteresis to 1
step:0, loss:5.453125
[2026-01-01 10:00:00,307] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, reducing to 2048.0
[2026-01-01 10:00:00,308] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 1 Skipping step. Attempted loss scale: 4096, reducing to 2048.0
step:10, loss:3.5
"""
FAIRSEQ = """\
2026-01-01 10:00:00 | INFO | train_inner | epoch 002:     85 / 282 loss=3.147, ppl=8.86, wps=72384.3, bsz=2186.3, num_updates=400, lr=0.0002, gnorm=0.489, clip=0, loss_scale=128, train_wall=48, wall=0
2026-01-01 10:00:01 | INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: 64.0
2026-01-01 10:00:01 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 12.677 | ppl 6550.94 | num_updates 430 | best_bleu 30.53
2026-01-01 10:00:02 | INFO | train_inner | epoch 002:    100 / 282 loss=3.25, num_updates=500, lr=0.00025, gnorm=0.5, clip=0, loss_scale=64, train_wall=48, wall=0
2026-01-01 10:00:02 | INFO | train | epoch 002 | loss 3.14 | ppl 8.82 | num_updates 500 | lr 0.00025 | gnorm 0.485 | clip 0 | loss_scale 64 | train_wall 260 | wall 0
"""
GNMT = """\
0: TRAIN [0][0/20]\tTime 0.500 (0.500)\tData 1.00e-04 (1.00e-04)\tTok/s 36000 (36000)\tLoss/tok 10.5344 (10.5344)\tLR 2.000e-05
1: TRAIN [0][0/20]\tTime 0.500 (0.500)\tData 1.00e-04 (1.00e-04)\tTok/s 36000 (36000)\tLoss/tok 10.9999 (10.5344)\tLR 2.000e-05
0: Gradient norm: inf
0: Skipped batch, new scale: 256.0
1: Skipped batch, new scale: 256.0
0: TRAIN [0][10/20]\tTime 0.500 (0.500)\tData 1.00e-04 (1.00e-04)\tTok/s 36000 (36000)\tLoss/tok 9.5000 (10.0000)\tLR 3.000e-05
0: TRAIN [1][0/20]\tTime 0.500 (0.500)\tData 1.00e-04 (1.00e-04)\tTok/s 36000 (36000)\tLoss/tok 8.2500 (8.2500)\tLR 4.000e-05
"""
MLPERF = """\
:::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "submission_benchmark", "value": "gpt3", "metadata": {"file": "a.py", "lineno": 5}}
:::MLLOG {"namespace": "", "time_ms": 2, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"train_loss": 3.5, "throughput": 9}, "metadata": {"file": "a.py", "lineno": 8, "step": 10}}
:::MLL 1561426937.657 grad_norm: {"value": 0.75, "metadata": {"step": 10, "file": "a.py", "lineno": 1}}
0: :::MLLOG {"namespace": "", "time_ms": 3, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 2.5, "metadata": {"file": "a.py", "lineno": 9, "step": 20}}
:::MLLOG {"namespace": "", "time_ms": 4, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": 0.7, "metadata": {"file": "a.py", "lineno": 10, "epoch_num": 1}}
"""
LONG = """\
step,probe,io,kind,dtype,shape,max,min,nans,mean,std
7,l0,out,activation,torch.float16,"[2, 2]",1.5,-2.5,0,0.5,1.0
7,l0,in,,torch.float16,,3,1,0,0.5,1.0
8,l0,out,activation,torch.float16,"[2, 2]",inf,-2.5,2,0.5,1.0
8,l0,in,,torch.float16,,5,1,,0.25,2.0
8,l0,in,,torch.float16,,4,-6,1,0.25,2.0
"""
WIDE = "iteration;layer0.out;layer1.out_max;layer1.out_min;layer1.out_mean;epoch\n10;-4;2;-8;0.5;1\n20;5;3;;0.5;1\n"
LAYERS = "layer,gate,up\n0,1.5,-2\n31,inf,3\n"
JSONL = """\
{"step": 1, "train": {"loss": 2.5, "learning_rate": 1e-3}, "l0.out/max_abs": 4.0}
{"step": 1, "grad_norm": 0.5, "eval/loss": 9.0}

{"step": 2, "train": {"loss": NaN, "learning_rate": 2e-3}, "l0.out/max_abs": Infinity}
"""
TRAINER = json.dumps({"best_metric": None, "log_history": [
    {"epoch": 0.5, "grad_norm": 1.25, "learning_rate": 1e-3, "loss": 2.5, "step": 10},
                                                           {"epoch": 0.5, "eval_loss": 9.0, "step": 10},
    {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 5e-4, "loss": 0.0, "step": 20}], "global_step": 20}, indent=2)


def events(folder: Path) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step in range(3):
            writer.add_scalar("train/loss", 2.0 / (step + 1), step)
            writer.add_scalar("eval/loss", 9.0, step)
            writer.add_scalar("grad_norm", math.inf if step == 2 else 0.5, step)
            writer.add_histogram("fc1/weight", np.array([-3.0 * step, 1, 2]), step)
            writer.add_scalar("fc1_activation_max", 10.0 ** step, step)
            writer.add_scalar("fc1_activation_min", -50.0, step)
            writer.add_scalar("throughput", 1, step)
    [path] = folder.iterdir()
    return path


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


ELEMENTS = np.float16([[1, -70, 0, np.inf], [2, 3, np.nan, 65504]])
NPZ = dict(step=np.array([4, 9]),
           **{"l0.out": ELEMENTS, "l1.out": np.float32([1.5, np.inf]), "l2_max": np.float64([1, 2]),
              "l2_min": np.float64([-3, 1]),
           "bf": np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16), "loss": np.float32([2.5, 1.5]),
              "loss_scale": np.array([1024, 512]),
           "name_of_run": np.array("x y".split())})
MATRICES = dict(step=np.array([1, 2]), max_abs=np.float32([[1, 2], [3, 4]]), nonfinite=np.array([[0, 0], [0, 1]]),
                probe=np.array(["a", "b.grad"]),
                format=np.array(["FP16", "BF16"]), lr=np.float64([0.5, 0.25]))
TENSORS = {"fc.weight": np.float16([[1, -5]]), "fc.weight.grad": np.float32([np.nan, 3, 0]), "ids": np.array([1, 2]),
           "wide": np.float64([1e39, 2])}


def samples(folder: Path) -> dict[str, tuple[str, str, bytes]]:
    """name: (file name, importer, content)."""
    texts = {
        "hf": ("report.txt", "hf-debug", hf_report(HF)), "dump": ("dump.json", "msprobe-dump", msprobe_dump()),
        "monitor1": ("actv_0-9.csv", "msprobe-monitor", monitor_v1(MONITOR_V1)),
             "monitor2": ("module_step0-9.csv", "msprobe-monitor", monitor_v2(MONITOR_V2)),
        "inc": ("inc_output_hooks_maxabs_0_1.json", "inc-measurement", inc_measurement()),
             "megatron": ("a.log", "training-log", MEGATRON),
        "deepspeed": ("b.log", "training-log", DEEPSPEED), "fairseq": ("c.log", "training-log", FAIRSEQ),
             "gnmt": ("d.log", "training-log", GNMT),
        "mlperf": ("e.log", "training-log", MLPERF), "long": ("long.csv", "csv", LONG), "wide": ("wide.csv", "csv", WIDE),
        "layers": ("layers.csv", "csv", LAYERS), "jsonl": ("a.jsonl", "jsonl", JSONL),
             "trainer": ("trainer_state.json", "jsonl", TRAINER)}
    found = {name: (file, importer, text.encode()) for name, (file, importer, text) in texts.items()}
    found["nvdlfw"] = ("nvdlfw_inspect_globalrank-0.log", "nvdlfw-inspect", nvdlfw_log(folder / "nvdlfw", NVDLFW).read_bytes())
    path = events(folder / "events")
    found["tensorboard"] = (path.name, "tensorboard", path.read_bytes())
    found["npz"] = ("a.npz", "npz", npz(**NPZ))
    found["matrices"] = ("b.npz", "npz", npz(**MATRICES))
    found["safetensors"] = ("model.safetensors", "safetensors", safetensors.numpy.save(TENSORS))
    return found


@pytest.fixture(scope="module")
def sample_files(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("samples"))


NAMES = ["hf", "dump", "monitor1", "monitor2", "inc", "megatron", "deepspeed", "fairseq", "gnmt", "mlperf", "long", "wide",
         "layers",
         "jsonl", "trainer", "nvdlfw", "tensorboard", "npz", "matrices", "safetensors"]


@pytest.fixture
def sample(sample_files, tmp_path):
    """Writes a sample and returns its path."""
    def put(name: str, edit=lambda data: data) -> Path:
        file, _, data = sample_files[name]
        path = tmp_path / file
        path.write_bytes(edit(data))
        return path
    return put


def table(trace: Trace, member="max_abs") -> dict[str, list[float]]:
    return {probe.name: column(trace, probe.name, member) for probe in trace.probes}


def kinds(trace: Trace) -> dict[str, str]:
    return {probe.name: probe.kind for probe in trace.probes}


def assumed(trace: Trace) -> str:
    return " / ".join(trace.manifest["assumptions"]["source"] + trace.manifest["assumptions"]["trace"])


f32 = lambda *values: [float(np.float32(value)) for value in values]


# --- every format ----------------------------------------------------------------------------------------------------------

def test_every_sample_is_named(sample_files):
    assert sorted(sample_files) == sorted(NAMES)
    assert {importer for _, importer, _ in sample_files.values()} == set(IMPORTERS)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_importer_recognises_it(name, sample_files, sample):
    source = Source.open(sample(name))
    confidences = {other: importer.sniff(source) for other, importer in IMPORTERS.items()}
    best = max(confidences.values())
    assert [other for other, c in confidences.items() if c == best] == [sample_files[name][1]] == [detect(source)]


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_through_both_readers(name, sample, tmp_path):
    for number, trace in enumerate(traces_of(sample(name))):
        path = tmp_path / f"out{number}.trace"
        trace.write(path)
        again = Trace.read(path)
        assert again.max_abs.tolist() == trace.max_abs.tolist() and again.manifest == trace.manifest
        if TOOL:
            assert subprocess.run([TOOL, "check", path], capture_output=True, text=True, check=True).stdout == "ok\n"


@pytest.mark.parametrize("name", NAMES)
def test_empty_file(name, sample_files, sample):
    for data in (b"", b"\n \n"):
        path = sample(name, lambda _: data)
        assert fault_of(path, sample_files[name][1]) == f"{path}: is empty; the file is damaged or cut off: copy it again"


@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere(name, sample_files, sample):
    """A file that is cut off is an error, or, where nothing in it tells, a shorter run of the same probes."""
    whole = traces_of(sample(name))
    known = {probe.name for trace in whole for probe in trace.probes}
    size = len(sample_files[name][2])
    errors = shorter = 0
    for length in sorted({size * i // 40 for i in range(1, 40)}):
        try:
            traces = [i.trace for i in import_file(sample(name, lambda data: data[:length]), sample_files[name][1])[1]]
        except (ImportFault, TraceError) as error:
            assert str(error).count("\n") == 0 and "; " in str(error)
            errors += 1
        else:
            shorter += 1
            cells = lambda traces: sum(trace.max_abs.size for trace in traces)
            names = {probe.name for trace in traces for probe in trace.probes}
            assert all(any(other.startswith(name) for other in known) for name in names)   # the last name may be cut
            assert cells(traces) <= cells(whole)
    assert errors > 0 and errors + shorter > 20


@pytest.mark.parametrize("name", NAMES)
def test_random_damage(name, sample_files, sample):
    """Nothing but the two errors comes out of the importer that is asked for, and out of detection, whatever the bytes are."""
    seed = int(os.environ.get("OPD_SEED", "0x1A97"), 0)
    print(f"reproduce: OPD_SEED={seed}")
    rng = random.Random(f"{seed} {name}")
    file, importer, good = sample_files[name]
    outcomes = {"ok": 0, "error": 0}
    for i in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            edit = rng.randrange(5)
            if edit == 0:
                data[at] = rng.randrange(256)
            elif edit == 1:
                del data[at:at + rng.randint(1, 12)]
            elif edit == 2:
                data[at:at] = rng.choice([b"nan", b"-1", b"1e999", b"{", b"]", b'"', b",", b"\n", b"\0", b"\xff", b"9" * 30,
                                          b"null", b"  "])
            elif edit == 3:
                other = rng.randrange(len(data))
                data[at:at] = data[other:other + rng.randint(1, 40)]
            elif data[at:at + 1].isdigit():
                data[at:at + 1] = b"%d" % rng.randrange(10)
            data = data or bytearray(b"x")
        try:
            import_file(sample(name, lambda _: bytes(data)), importer if i % 2 else None)
            outcomes["ok"] += 1
        except (ImportFault, TraceError):
            outcomes["error"] += 1
    assert sum(outcomes.values()) == 60
    assert outcomes["error"] > 0 or importer == "training-log"   # reads on behind a damaged line


@pytest.mark.parametrize("name, old, new, error", [
    ("hf", "3.18e-04 6.27e+04 output", "3.18e-04 6.2", '13: is neither a frame nor "abs-min abs-max tensor"'),
    ("hf", " " * 17 + " fc1 Linear\n1.00e-02 6.45", " " * 17 + " fc1 Lin ear\n1.00e-02 6.45", "22: is neither a frame"),
    ("nvdlfw", "value=4.3188", "value=4.31x8", '2: is not "NAME iteration=N value=X"'),
    ("nvdlfw", "value=0.2500", "value=0.", '3: is not "NAME iteration=N value=X"'),
    ("dump", '"Min": -3.0,', '"Min": -3.0', "18: not valid JSON"),
    ("dump", '"Max": 2.0', '"Max": "2.0"', '7: tensor "Module.fc.Linear.forward.0.input.0": Max is not a number'),
    ("dump", '"dtype": "torch.bfloat16"', '"dtype": 16', "dtype is not text"),
    ("monitor1", "8.123457", "8.1x", '3: max: "8.1x" is not a number'),
    ("monitor1", "0,fc.output,3", "0,fc.output,-3", '3: step: "-3" is not a whole number'),
    ("monitor1", "[8]", "[8", '3: shape: "[8" is not a list of sizes'),
    ("monitor2", "0.grad_input.0,backward,0.0", "0.grad_input.0,backward", "3: 8 cells instead of 9"),
    ("inc", "700.0", '"700"', '7: "model.layers.0.q_proj.output.0" is not a magnitude'),
    ("inc", '"DynamicRange"', '"Scale"', '5: Mode "Scale" holds no measured magnitudes'),
    ("long", "8,l0,out", "8,l0", "4: 10 cells instead of 11"),
    ("long", "\n8,l0,out", "\nx,l0,out", '4: step: "x" is not a number'),
    ("long", "8,l0,in,,torch.float16,,5", "8,l0,in,odd,torch.float16,,5", '5: kind: "odd" is not a kind'),
    ("wide", "\n20;5", "\n2.5;5", '3: iteration: "2.5" is not a whole number from 0'),
    ("layers", "inf", "1_0", '3: gate: "1_0" is not a number'),
    ("jsonl", '{"step": 1, "grad_norm": 0.5,', '{"step": 1, "grad_norm": 0.5', "2: is not a JSON object"),
    ("trainer", '"loss": 0.0', '"loss": "bad"', '16: loss: "bad" is not a number'),
    ("trainer", '"log_history": [', '"log_history": 5, "x": [', '3: "log_history" is not a list of objects'),
])
def test_broken_line_is_named(name, old, new, error, sample):
    def edit(data):
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)
    path = sample(name, edit)
    fault = fault_of(path)
    assert fault.startswith(f"{path}:{error}") if error[0].isdigit() else error in fault


def test_broken_record_is_named(sample):
    def flip(data):
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
    path = sample("tensorboard", flip)
    assert re.fullmatch(rf"{re.escape(str(path))}:record \d+: (fails its CRC check|is cut off); .*", fault_of(path))
    path = sample("tensorboard", lambda data: data[:-3])
    assert re.fullmatch(rf"{re.escape(str(path))}:record \d+: is cut off; the file is damaged or cut off: copy it again",
                        fault_of(path))
    assert "not a valid npz archive" in fault_of(sample("npz", lambda data: data[:-30]))
    assert "not a valid safetensors file" in fault_of(sample("safetensors", lambda data: data[:-1]))


# --- values ----------------------------------------------------------------------------------------------------------------

def test_hf(sample):
    [trace] = traces_of(sample("hf"), format="FP16")
    assert trace.step.tolist() == [3, 4] and trace.framework == "PyTorch, HF transformers"
    assert table(trace) == {"fc1.weight": f32(6.44, 6.45), "fc1.input[0]": f32(9740, 9990), "fc1.output": [62700, 62700],
                            "model.input[0]": [2, 2], "model.output[0]": [1.5, 1.5], "fc1.output#2": [0, 0]}
    assert table(trace, "nonfinite") == {"fc1.weight": [0, 0], "fc1.input[0]": [0, 0], "fc1.output": [0, 1],
                                         "model.input[0]": [0, 0],
                                         "model.output[0]": [0, 0], "fc1.output#2": [0, 1]}
    assert kinds(trace)["fc1.weight"] == "weight" and set(kinds(trace).values()) == {"weight", "activation"}
    assert (trace.first_bad_step, trace.first_bad_op) == (4, "fc1.output")


def test_hf_frames_before_a_mark_are_of_the_batch_before(tmp_path):
    text = hf_report(HF).replace("*** Starting batch number=3 ***", "")
    (tmp_path / "a.txt").write_text(text.replace("                  \n", "\n"))
    assert traces_of(tmp_path / "a.txt")[0].step.tolist() == [3, 4]


def test_hf_report_that_ends_early(tmp_path):
    (tmp_path / "a.txt").write_text(hf_report(HF, announced=21))
    assert "the report announces 21 frames and ends after 4" in fault_of(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text(hf_report(HF, announced=21).replace("6.27e+04 output\n", "6.27e+04 output\n[...]\n"))
    assert len(traces_of(tmp_path / "a.txt")) == 1


def test_nvdlfw(sample):
    [trace] = traces_of(sample("nvdlfw"))
    assert trace.step.tolist() == [2, 5]
    assert table(trace) == {"decoder.fc1_activation": f32(8.6772, 21.693), "decoder.fc1_gradient": [0, 0],
                            "decoder.fc1_weight": [0.75, 0.75]}
    assert table(trace, "nonfinite") == {"decoder.fc1_activation": [0, 0], "decoder.fc1_gradient": [0, 1],
                                         "decoder.fc1_weight": [0, 0]}
    assert kinds(trace) == {"decoder.fc1_activation": "activation", "decoder.fc1_gradient": "gradient",
                            "decoder.fc1_weight": "weight"}
    assert "4 values of other statistics left out" in assumed(trace) and "four decimals" in assumed(trace)
    assert "mean (1), var (1)" in assumed(trace)
    [one] = traces_of(sample("nvdlfw"), match="activation")
    assert column(one, "decoder.fc1_activation", "var") == [4, 4]
    assert column(one, "decoder.fc1_activation", "mean") == [0.25, 0.25]


def test_nvdlfw_as_the_documentation_prints_it(tmp_path):
    (tmp_path / "a.log").write_text(
        "INFO - transformer_layer.self_attention.layernorm_qkv_activation_max                 iteration=000002                  value=4.3188\n"
        "INFO - transformer_layer.self_attention.layernorm_qkv_activation_min                 iteration=000002                  value=-4.3386\n")
    [trace] = traces_of(tmp_path / "a.log")
    assert table(trace) == {"transformer_layer.self_attention.layernorm_qkv_activation": f32(4.3386)}
    assert trace.step.tolist() == [2]


def test_msprobe_dump(sample, tmp_path):
    path = tmp_path / "step12" / "rank0" / "dump.json"
    path.parent.mkdir(parents=True)
    path.write_text(msprobe_dump())
    [trace] = traces_of(path)
    fc = "Module.fc.Linear.forward.0"
    assert trace.step.tolist() == [12] and trace.framework == "pytorch"
    assert {name: values[0] for name, values in table(trace).items()} == {
        f"{fc}.input.0": 3, f"{fc}.input.mask": 6, f"{fc}.output.0": 0, f"{fc}.output.1.0": 0, f"{fc}.parameters.weight": 0.25,
        "Distributed.all_reduce.0.forward.input.0": 3, "Module.fc.Linear.backward.0.input.0": 2,
        "Module.fc.Linear.parameters_grad.0.weight.0": 1}
    assert [name for name, values in table(trace, "nonfinite").items() if values[0]] == [f"{fc}.output.0", f"{fc}.output.1.0"]
    assert [p.format for p in trace.probes] == ["FP16", "FP16", "FP16", "FP32", "FP32", "BF16", "FP32", "FP32"]
    assert [p.shape for p in trace.probes][:3] == [(2, 2), (2, 2), (2,)]
    assert [p.kind for p in trace.probes] == ["activation"] * 4 + ["weight", "collective", "gradient", "gradient"]
    assert "1 tensors of whole numbers or bools left out" in assumed(trace)
    assert "1 tensors without a statistic left out" in assumed(trace)
    assert traces_of(sample("dump"))[0].step.tolist() == [0]


def test_msprobe_dump_without_statistics(tmp_path):
    (tmp_path / "dump.json").write_text(msprobe_dump().replace('"statistics"', '"overflow_check"'))
    assert "dump.json:2: task \"overflow_check\" has no statistics" in fault_of(tmp_path / "dump.json")


def test_msprobe_monitor_1(sample):
    [trace] = traces_of(sample("monitor1"))
    assert trace.step.tolist() == [3, 4]
    assert table(trace) == {"fc.input": [3.5, 3.5], "fc.output": f32(8.123457, 8.123457), "1:fc.input": [1.5, 1.5]}
    assert table(trace, "nonfinite") == {"fc.input": [0, 0], "fc.output": [0, 3], "1:fc.input": [0, 0]}
    assert [(p.format, p.shape) for p in trace.probes] == [("BF16", (2, 4)), ("FP32", (8,)), ("BF16", (2, 4))]
    assert "1 rows of NaN throughout left out" in assumed(trace) and "1 rows of further micro-batches" in assumed(trace)


@pytest.mark.parametrize("file, probe, kind", [
    ("grad_reduced_0-9.csv", "fc.input.grad_reduced", "gradient"), ("exp_avg_sq_0-9.csv", "fc.input.exp_avg_sq", "optimizer"),
    ("param_origin_0-9.csv", "fc.input.param_origin", "weight"), ("actv_grad_0-9.csv", "fc.input.actv_grad", "gradient")])
def test_msprobe_monitor_1_names_the_kind_in_its_file(file, probe, kind, tmp_path):
    (tmp_path / file).write_text(monitor_v1(MONITOR_V1[:1]))
    assert kinds(traces_of(tmp_path / file)[0]) == {probe: kind}


def test_msprobe_monitor_2(sample):
    [trace] = traces_of(sample("monitor2"))
    assert trace.step.tolist() == [0, 10]
    assert table(trace) == {"0.output.0": [1.5, 10], "0.grad_input.0": [2, 2], "all_reduce": [1, 1], "0.weight": [0.5, 0.5],
                            "0.weight.exp_avg": [0.125, 0.125]}
    assert table(trace, "nonfinite") == {"0.output.0": [0, 0], "0.grad_input.0": [0, 1], "all_reduce": [0, 1],
                                         "0.weight": [0, 0], "0.weight.exp_avg": [0, 0]}
    assert kinds(trace) == {"0.output.0": "activation", "0.grad_input.0": "gradient", "all_reduce": "collective",
                            "0.weight": "weight", "0.weight.exp_avg": "optimizer"}
    assert "1 non-finite counts cut to 1" in assumed(trace)


def test_inc(sample):
    [trace] = traces_of(sample("inc"), format="BF16")
    layer = "model.layers.0"
    assert {name: values[0] for name, values in table(trace).items()} == {
        f"{layer}.q_proj.input.0": 3.5, f"{layer}.q_proj.weight": 0.5, f"{layer}.q_proj.output.0": 700,
        f"{layer}.matmul_qk.input.0": 3, f"{layer}.matmul_qk.input.1": 4, f"{layer}.matmul_qk.output.0": 0,
                                                                          f"{layer}.gate.input.0": 1,
        f"{layer}.gate.output.0": 2}
    assert trace.first_bad_op == f"{layer}.matmul_qk.output.0" and trace.manifest["NumSamples"] == 3
    assert kinds(trace)[f"{layer}.q_proj.weight"] == "weight" and "1 tensors are measured per channel" in assumed(trace)


def test_megatron(sample):
    [trace] = traces_of(sample("megatron"))
    assert trace.step.tolist() == [10, 20, 30] and trace.framework == "Megatron"
    assert trace.loss.tolist() == f32(7.4, 6.5, 6.5)
    assert trace.loss_scale.tolist() == [1024, 512, 256]
    assert trace.lr.tolist() == f32(1e-4, 2e-4, 3e-4)
    assert column(trace, "grad_norm") == [1.5, 2.5, 2.5] and column(trace, "grad_norm", "nonfinite") == [0, 0, 1]
    assert column(trace, "gradients", "nonfinite") == [0, 1, 1] and trace.grad_norm.tolist() == [1.5, 2.5, math.inf]


def test_deepspeed(sample):
    [trace] = traces_of(sample("deepspeed"))
    assert trace.step.tolist() == [0, 1, 10] and column(trace, "gradients", "nonfinite") == [1, 1, 0]
    assert trace.loss_scale.tolist() == [4096, 4096, 2048] and trace.loss.tolist() == [5.453125, 5.453125, 3.5]
    assert "1 lines of other ranks left out" in assumed(trace)


def test_fairseq(sample):
    [trace] = traces_of(sample("fairseq"))
    assert trace.step.tolist() == [400, 401, 500] and column(trace, "gradients", "nonfinite") == [0, 1, 0]
    assert trace.loss.tolist() == f32(3.147, 3.147, 3.25)
    assert trace.grad_norm.tolist() == f32(0.489, 0.489, 0.5)
    assert trace.loss_scale.tolist() == [128, 128, 64]


def test_gnmt(sample):
    [trace] = traces_of(sample("gnmt"))
    assert trace.step.tolist() == [0, 1, 10, 20] and column(trace, "gradients", "nonfinite") == [0, 1, 0, 0]
    assert trace.loss.tolist() == f32(10.5344, 10.5344, 9.5, 8.25) and trace.lr.tolist() == f32(2e-5, 2e-5, 3e-5, 4e-5)
    assert "2 lines of other ranks left out" in assumed(trace) and "steps start again at 1 epochs" in assumed(trace)


def test_mlperf(sample):
    [trace] = traces_of(sample("mlperf"))
    assert trace.step.tolist() == [10, 20] and trace.loss.tolist() == [3.5, 2.5] and trace.grad_norm.tolist() == [0.75, 0.75]
    assert trace.model == "gpt3" and trace.framework == "MLPerf"


def test_events_between_two_runs_go_with_the_scale_they_continue(tmp_path):
    crash = "kind,step,loss,loss_scale,scale_after\ntrain,10,1,64,\noverflow,,,,32\noverflow,,,,16\ntrain,5,1,128,\n"
    (tmp_path / "a.csv").write_text(crash)
    first, second = traces_of(tmp_path / "a.csv")
    assert first.step.tolist() == [10, 11, 12] and first.loss_scale.tolist() == [64, 64, 32] and second.step.tolist() == [5]
    (tmp_path / "a.csv").write_text(crash.replace(",,32", ",,4096").replace(",,16", ",,2048"))
    first, second = traces_of(tmp_path / "a.csv")
    assert first.step.tolist() == [10] and second.step.tolist() == [3, 4, 5] and second.loss_scale.tolist() == [8192, 4096, 128]


def test_long_table(sample):
    [trace] = traces_of(sample("long"))
    assert trace.step.tolist() == [7, 8] and table(trace) == {"l0.out": [2.5, 2.5], "l0.in": [3, 6]}
    assert table(trace, "nonfinite") == {"l0.out": [0, 2], "l0.in": [0, 1]}
    assert [(p.format, p.shape) for p in trace.probes] == [("FP16", (2, 2)), ("FP16", ())]
    assert "1 rows repeat a probe in its step" in assumed(trace)


def test_wide_table(sample):
    [trace] = traces_of(sample("wide"))
    assert trace.step.tolist() == [10, 20] and table(trace) == {"layer0.out": [4, 5], "layer1.out": [8, 3]}


def test_layers_table(sample):
    [trace] = traces_of(sample("layers"))
    assert table(trace) == {"layer0.gate": [1.5], "layer0.up": [2], "layer31.gate": [0], "layer31.up": [3]}
    assert trace.first_bad_op == "layer31.gate"


def test_jsonl(sample):
    [trace] = traces_of(sample("jsonl"))
    assert trace.step.tolist() == [1, 2]
    assert trace.loss[0] == 2.5
    assert math.isnan(trace.loss[1])
    assert trace.lr.tolist() == f32(1e-3, 2e-3)
    assert table(trace) == {"l0.out": [4, 4], "loss": [2.5, 2.5], "grad_norm": [0.5, 0.5]}
    assert table(trace, "nonfinite")["l0.out"] == [0, 1]
    assert "columns left out: eval/loss" in assumed(trace)


def test_trainer_state(sample):
    [trace] = traces_of(sample("trainer"))
    assert trace.step.tolist() == [10, 20]
    assert trace.loss.tolist() == [2.5, 0]
    assert column(trace, "grad_norm", "nonfinite") == [0, 1]


def test_tensorboard(sample):
    [trace] = traces_of(sample("tensorboard"))
    assert trace.step.tolist() == [0, 1, 2]
    assert trace.loss.tolist() == f32(2, 1, 2 / 3)
    assert trace.grad_norm.tolist() == [0.5, 0.5, math.inf]
    assert table(trace) == {"fc1_activation": [50, 50, 100], "fc1/weight": [2, 3, 6], "loss": f32(2, 1, 2 / 3),
                            "grad_norm": [0.5] * 3}
    assert column(trace, "grad_norm", "nonfinite") == [0, 0, 1]
    assert "tags left out: eval/loss (evaluation); throughput (throughput)" in assumed(trace)
    assert {p.name: p.shape for p in trace.probes}["fc1/weight"] == (3,) and kinds(trace)["fc1/weight"] == "weight"
    [weight] = traces_of(sample("tensorboard"), match="weight")
    assert column(weight, "fc1/weight", "mean") == f32(1, 0, -1)
    assert column(weight, "fc1/weight", "var") == f32(2 / 3, 14 / 3, 38 / 3)


def test_tensorboard_in_the_tensor_form(tmp_path):
    """TensorFlow 2 writes scalars and histograms as tensors; TensorBoard's own conversion makes them of the old form."""
    from tensorboard import data_compat
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    events(tmp_path / "old")
    old = tmp_path / "old"
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    writer = EventFileWriter(str(tmp_path / "new"))
    for event in LegacyEventFileLoader(str(next(old.iterdir()))).Load():
        if event.HasField("summary"):
            writer.add_event(data_compat.migrate_event(event))
    writer.close()
    [trace] = traces_of(next((tmp_path / "new").iterdir()))
    [want] = traces_of(next(old.iterdir()))
    assert table(trace) == table(want)
    assert trace.step.tolist() == want.step.tolist()
    assert [p.shape for p in trace.probes] == [p.shape for p in want.probes]


def test_npz(sample):
    [trace] = traces_of(sample("npz"), raw=True)
    assert trace.step.tolist() == [4, 9] and trace.loss.tolist() == [2.5, 1.5] and trace.loss_scale.tolist() == [1024, 512]
    scalars = {"loss": [2.5, 1.5], "gradients": [0, 0], "loss_scale": [1024, 512]}
    assert table(trace) == {"l0.out": [70, 65504], "bf": [2, 4], "l1.out": [1.5, 1.5], "l2": [3, 2], **scalars}
    assert table(trace, "nonfinite") == {"l0.out": [1, 1], "bf": [0, 0], "l1.out": [0, 1], "l2": [0, 0], "loss": [0, 0],
                                         "gradients": [0, 1], "loss_scale": [0, 0]}
    assert {p.name: (p.format, p.shape) for p in trace.probes} == {
        "l0.out": ("FP16", (4,)), "bf": ("BF16", (2,)), "l1.out": ("FP32", ()), "l2": ("FP32", ()),
        **{name: ("FP32", ()) for name in scalars}}
    assert trace.raw["l0.out"].tobytes() == ELEMENTS.tobytes()
    assert trace.raw_step.tolist() == [4, 9]
    assert set(trace.raw) == {"l0.out", "bf"}
    assert "name_of_run" in assumed(trace) and "raw elements of 5 of 7 probes" in assumed(trace)
    assert traces_of(sample("npz"))[0].raw == {}


def test_npz_of_one_step(tmp_path):
    np.savez(tmp_path / "step3.npz", a=np.float16([[1, -2]]), b=np.float64([1e39, 4]))
    [trace] = traces_of(tmp_path / "step3.npz")
    assert trace.step.tolist() == [3]
    assert table(trace) == {"a": [2], "b": [4]}
    assert table(trace, "nonfinite") == {"a": [0], "b": [1]}
    assert "float64 elements rounded to FP32" in assumed(trace) and trace.zero.tolist() == [[0, 0]]


def test_npz_matrices(sample):
    [trace] = traces_of(sample("matrices"))
    assert table(trace) == {"a": [1, 3], "b.grad": [2, 4]} and table(trace, "nonfinite") == {"a": [0, 0], "b.grad": [0, 1]}
    assert [(p.kind, p.format) for p in trace.probes] == [("activation", "FP16"), ("gradient", "BF16")]
    assert trace.lr.tolist() == [0.5, 0.25]


@pytest.mark.parametrize("arrays, error", [
    (dict(NPZ, extra=np.float32([1, 2, 3])), '"extra": has shape [3], but "step" has 2 steps'),
    (dict(step=np.float32([1.5]), a=np.float32([1])), '"step": is not a list of whole numbers'),
    (dict(a=np.array([{}])), '"a": holds pickled objects, which are not read'),
    (dict(MATRICES, probe=np.array(["a"])), "probe: is not a list of 2 names"),
    (dict(MATRICES, probe=np.array(["a", "a"])), "probe: names two probes alike"),
    (dict(MATRICES, format=np.array(["FP16", "INT8"])), "format: is not a list of 2 formats"),
    (dict(MATRICES, nonfinite=np.zeros((2, 3))), "nonfinite: is not 2 x 2 numbers, but [2, 3]"),
    (dict(MATRICES, step=np.array([1, 2, 3])), "step: has 3 steps, max_abs 2"),
    (dict(a=np.zeros(3, np.int32)), "holds no statistic of a tensor"),
    (dict(a=np.array([1], ml_dtypes.float8_e4m3fn)), '"a": is of an 8-bit type whose name NumPy does not store'),
    (dict(a=np.array([1], ml_dtypes.float8_e5m2)), "not a valid npz archive (descr is not a valid dtype descriptor: '<f1')"),
])
def test_npz_errors(arrays, error, tmp_path):
    (tmp_path / "a.npz").write_bytes(npz(**arrays))
    assert error in fault_of(tmp_path / "a.npz")


def test_inc_npz_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "inc_output_hooks_maxabs_0_1.npz", {"Mode": "DynamicRange", "Nodes": {}})
    fault = fault_of(tmp_path / "inc_output_hooks_maxabs_0_1.npz")
    assert "for a measurement of Neural Compressor give the .json beside it" in fault


def test_safetensors(sample):
    [trace] = traces_of(sample("safetensors"), raw=True)
    assert table(trace) == {"fc.weight": [5], "fc.weight.grad": [3], "wide": [2]}
    assert {p.name: (p.kind, p.format, p.shape) for p in trace.probes} == {
        "fc.weight": ("weight", "FP16", (1, 2)), "fc.weight.grad": ("gradient", "FP32", (3,)), "wide": ("weight", "FP32", (2,))}
    assert column(trace, "fc.weight.grad", "nonfinite") == [1]
    assert column(trace, "wide", "nonfinite") == [1]
    assert column(trace, "fc.weight.grad", "zero") == [1]
    assert trace.raw["fc.weight"].tolist() == [[1, -5]] and "1 tensors of other types" in assumed(trace)


@pytest.mark.parametrize("dtype, format",
                         [(torch.bfloat16, "BF16"), (torch.float8_e4m3fn, "E4M3"), (torch.float8_e5m2, "E5M2"),
                          (torch.float16, "FP16")])
def test_safetensors_of_every_format(dtype, format, tmp_path):
    from safetensors.torch import save_file
    save_file({"a": torch.tensor([1.0, -8.0, 0.5]).to(dtype)}, tmp_path / "a.safetensors", metadata={"step": "77"})
    [trace] = traces_of(tmp_path / "a.safetensors")
    assert trace.probes[0].format == format and table(trace) == {"a": [8]} and trace.step.tolist() == [77]


def test_trace_is_not_imported(tmp_path):
    writer = TraceWriter("t", "healthy", [Probe("a", "activation", "FP16", ())])
    writer.add_step(0, max_abs=[1], nonfinite=[0])
    writer.write(tmp_path / "t.safetensors")
    assert fault_of(tmp_path / "t.safetensors").endswith("is a trace already; replay it: opd replay FILE")
