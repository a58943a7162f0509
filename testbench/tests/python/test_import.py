"""opd.importers: detection, the rules that complete a source to a trace, the command, and the public telemetry.

Public telemetry is read from the folder in OPD_PUBLIC_TRACES, else ../shared/public_traces beside the repository; without it
its tests are skipped. With OPD_TRACE_TOOL every trace is read by the C++ reader as well.
"""
import csv
import gzip
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opd.__main__ import main as opd_main
from opd.importers import IMPORTERS, ImportFault, Options, detect, import_file, import_joined
from opd.importers.command import main
from opd.importers.names import format_of, kind_of, split_statistic
from opd.importers.source import Source
from opd.trace import Trace, TraceError

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = Path(os.environ.get("OPD_PUBLIC_TRACES", ROOT.parent / "shared" / "public_traces"))
TOOL = os.environ.get("OPD_TRACE_TOOL")
needs_public = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"{PUBLIC} is absent (OPD_PUBLIC_TRACES names another folder)")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def traces_of(path, importer=None, **options) -> list[Trace]:
    return [imported.trace for imported in import_file(path, importer, Options(**options))[1]]


def fault_of(path, importer=None, **options) -> str:
    with pytest.raises(ImportFault) as caught:
        import_file(path, importer, Options(**options))
    return str(caught.value)


def fault_text(path) -> str:
    with pytest.raises((ImportFault, TraceError)) as caught:
        import_file(path)
    return str(caught.value)


def column(trace: Trace, probe: str, member: str = "max_abs") -> list[float]:
    return getattr(trace, member)[:, [p.name for p in trace.probes].index(probe)].tolist()


# --- names -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, kind", [
    ("layers.0.mlp.output", "activation"), ("layers.0.mlp.weight", "weight"), ("fc.bias", "weight"),
                                        ("fc.weight.grad", "gradient"),
    ("layers.0.grad_input.0", "gradient"), ("fc.weight.exp_avg", "optimizer"), ("all_reduce.0", "collective"),
    ("weighted_sum", "activation")])
def test_kind_by_name(name, kind):
    assert kind_of(name) == kind


@pytest.mark.parametrize("name, parts", [
    ("l0.out_max_abs", ("l0.out", "max_abs")), ("l0/out/min", ("l0/out", "min")), ("l0.out.cur_amax", ("l0.out", "max_abs")),
    ("l0.std", ("l0", "std")), ("max", None), ("_max", None), ("consumed_samples", None)])
def test_statistic_by_name(name, parts):
    assert split_statistic(name) == parts


@pytest.mark.parametrize("name, format", [
    ("torch.float16", "FP16"), ("bf16", "BF16"), ("torch.float8_e4m3fn", "E4M3"), ("E5M2", "E5M2"), ("float32", "FP32"),
                                          ("int64", None)])
def test_format_by_name(name, format):
    assert format_of(name) == format


# --- the rules of docs/importing.md ----------------------------------------------------------------------------------------

def test_value_that_is_missing_repeats_the_one_before(tmp_path):
    path = write(tmp_path, "a.csv", "step,a,b\n1,,2\n2,3,inf\n3,,5\n4,nan,\n")
    [trace] = traces_of(path)
    assert column(trace, "a") == [3, 3, 3, 3] and column(trace, "a", "nonfinite") == [0, 0, 0, 1]
    assert column(trace, "b") == [2, 2, 5, 5] and column(trace, "b", "nonfinite") == [0, 1, 0, 0]
    assert (trace.first_bad_step, trace.first_bad_op) == (2, "b")
    text = " ".join(trace.manifest["assumptions"]["trace"])
    assert "5 of 8 values of max_abs not in the source" in text and "FP32" in text and "one element" in text


def test_probe_that_is_never_finite_is_zero(tmp_path):
    [trace] = traces_of(write(tmp_path, "a.csv", "step,a\n1,inf\n2,nan\n"))
    assert column(trace, "a") == [0, 0] and column(trace, "a", "nonfinite") == [1, 1]


def test_steps_that_go_back_are_split_or_the_last_is_kept(tmp_path):
    path = write(tmp_path, "run.csv", "step,a\n1,1\n2,2\n3,3\n2,20\n4,40\n4,41\n")
    traces = traces_of(path)
    assert [(t.name, t.step.tolist(), column(t, "a")) for t in traces] == [
        ("run.1", [1, 2, 3], [1, 2, 3]), ("run.2", [2, 4], [20, 40]), ("run.3", [4], [41])]
    assert "the steps go back 2 times: trace 2 of 3" in traces[1].manifest["assumptions"]["trace"]
    [last] = traces_of(path, restarts="last")
    assert (last.name, last.step.tolist(), column(last, "a")) == ("run", [1, 2, 3, 4], [1, 20, 3, 41])
    assert "the steps go back 2 times: the last of every step is kept" in last.manifest["assumptions"]["trace"]


def test_steps_without_order_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", "step,a\n" + "".join(f"{step},1\n" for step in range(300, 0, -1)))
    assert fault_of(path).endswith("a.csv:258: the steps go back more than 256 times; sort the file by step, or import it with "
                                   "--restarts last")
    assert len(traces_of(path, restarts="last")[0].step) == 300


def test_magnitude_in_the_format_of_the_probe(tmp_path):
    path = write(tmp_path, "a.csv", "step,a\n1,65504\n2,65519\n3,65520\n4,1e39\n")
    [fp16] = traces_of(path, format="FP16")
    assert column(fp16, "a") == [65504] * 4 and column(fp16, "a", "nonfinite") == [0, 0, 1, 1]
    assert [p.format for p in fp16.probes] == ["FP16"]
    text = " ".join(fp16.manifest["assumptions"]["trace"])
    assert "2 magnitudes that the probe's format rounds to Inf" in text
    assert "1 magnitudes above the largest finite value" in text
    [fp32] = traces_of(path)
    assert column(fp32, "a", "nonfinite") == [0, 0, 0, 1]


def test_probe_whose_format_or_shape_changes(tmp_path):
    path = write(tmp_path, "a.csv",
                 'step,probe,dtype,shape,max_abs\n1,a,fp16,"[2, 3]",1\n2,a,fp32,"[4, 3]",2\n3,a,fp16,"[1]",3\n')
    [trace] = traces_of(path)
    assert [(p.format, p.shape) for p in trace.probes] == [("FP16", (4, 3))]
    assert trace.manifest["assumptions"]["trace"][:2] == ["format of 1 probes changes in the source: the first",
                                                          "shape of 1 probes changes in the source: the largest"]


def test_counts_that_cannot_be(tmp_path):
    path = write(tmp_path, "a.csv", "step,probe,numel,max_abs,nans\n1,a,4,1,5\n")
    assert fault_of(path).endswith('a.csv:2: probe "a" has more non-finite values than elements; correct the count or the shape')
    path = write(tmp_path, "a.csv", "step,probe,max_abs,nans\n1,a,1,0\n2,a,1,-1\n")
    assert fault_of(path).endswith('a.csv:3: probe "a" has a negative count; correct the value')
    path = write(tmp_path, "a.csv", "step,probe,absmax,absmin\n1,a,1,-1\n")
    assert "min_abs" in fault_text(path)


def test_options(tmp_path):
    path = write(tmp_path, "a b.csv", "step,l0.out,l1.out\n1,1,2\n")
    [trace] = traces_of(path, label="gradual", kind="collective", match="l1", name="given")
    assert (trace.name, trace.label) == ("given", "gradual")
    assert [(p.name, p.kind) for p in trace.probes] == [("l1.out", "collective")]
    assert traces_of(path)[0].name == "a_b" and traces_of(path)[0].label == "healthy"
    assert fault_of(path, match="zzz").endswith("none of its 2 probes matches 'zzz'; give another pattern")


def test_manifest_names_the_source(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"step,a\n1,2\n", mtime=0))
    [trace] = traces_of(path)
    assert trace.manifest["sources"] == [{"file": "a.csv.gz", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]
    assert trace.manifest["importer"] == "csv" and trace.name == "a"


def test_too_many_probes(tmp_path):
    names = ",".join(f"p{i}" for i in range(65537))
    path = write(tmp_path, "a.csv", f"step,{names}\n1{',1' * 65537}\n")
    assert "65537 probes, more than the 65536 op ids; choose some with --match" in fault_of(path)


def test_join(tmp_path):
    first = write(tmp_path, "a.csv", "step,a\n1,1\n2,2\n")
    second = write(tmp_path, "b.csv", "step,b\n2,20\n3,30\n")
    _, [imported] = import_joined([second, first])
    trace = imported.trace
    assert trace.step.tolist() == [1, 2, 3] and column(trace, "a") == [1, 2, 2] and column(trace, "b") == [20, 20, 30]
    assert len(trace.manifest["sources"]) == 2
    with pytest.raises(ImportFault, match="a.csv:2: step 1 of a is in .*a.csv too; join files that differ in steps or probes"):
        import_joined([first, first])
    back = write(tmp_path, "c.csv", "step,a\n5,1\n4,2\n")
    with pytest.raises(ImportFault, match="c.csv:3: the steps go back to 4; import it alone, or with --restarts last"):
        import_joined([first, back])
    other = write(tmp_path, "d.jsonl", '{"step": 9, "loss": 1}\n')
    with pytest.raises(ImportFault, match="d.jsonl: is jsonl, but .*a.csv is csv"):
        import_joined([first, other])


# --- files that are no telemetry -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("data, wrong", [
    (b"", "is empty"), (b" \n\n", "is empty"), (b"hello world\n", "is in no known format"),
                                         (b"\x7fELF\x00\x01", "is in no known format"),
    (b"{}", "no column is a step"), (b"[1, 2]", "is in no known format"),
                                         (b"\x1f\x8b\x08\x00damaged", "cannot be decompressed"),
    (gzip.compress(b"step,a\n1,2\n" * 99, mtime=0)[:-9], "cannot be decompressed"), (b"1,2,3\n4,5,6\n", "is in no known format")])
def test_what_is_no_telemetry(tmp_path, data, wrong):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert fault_of(path).startswith(f"{path}") and wrong in fault_of(path)


def test_what_is_no_file(tmp_path):
    assert fault_of(tmp_path).endswith("is a directory; give the path of a file")
    assert "cannot be opened (No such file or directory)" in fault_of(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    assert fault_of(tmp_path / "fifo").endswith("is not a regular file; give the path of a file")


# --- the command -----------------------------------------------------------------------------------------------------------

def test_command_writes_and_tells(tmp_path, capsys):
    source = write(tmp_path, "run.csv", "step,loss,loss_scale\n1,2.5,1024\n2,nan,512\n")
    assert main([str(source), "--out", str(tmp_path / "new" / "folder") + "/"]) == 0
    path = tmp_path / "new" / "folder" / "run.safetensors"
    out = capsys.readouterr().out
    assert out.splitlines()[0] == (f"{source} -> {path}: csv, 2 steps 1..2, 3 probes, first non-finite at step 2 in loss")
    assert "  assumed for the file: the loss scale falls 1 times: a gradient was not finite there" in out
    assert Trace.read(path).loss_scale.tolist() == [1024, 512]
    assert main([str(source), "--out", str(tmp_path / "one.trace"), "--label", "gradual"]) == 0
    assert Trace.read(tmp_path / "one.trace").label == "gradual"


@pytest.mark.parametrize("arguments, error", [
    (["bad.csv"], r"bad\.csv:3: a: \"x\" is not a number; correct the value, or leave the cell empty"),
    (["good.csv", "bad.csv"], r"bad\.csv:3: "),
    (["two.csv", "--out", "one.trace"], "--out: 'one.trace' is one file, but there are 2 traces; give a folder, with / at its "
     "end when it is not there yet"),
    (["good.csv", "good.csv"], "two traces would have this file"),
    (["good.csv", "--out", "good.csv"], "is the file that is read; give another --out"),
    (["good.csv", "--name", "a/b"], "--name: 'a/b' is not a short name"),
    (["good.csv", "two.csv", "--name", "n"], "--name: one name for 2 files; import them one by one"),
    (["good.csv", "--match", "("], "--match: '\\(' is not a regular expression"),
    (["good.csv", "--out", "good.csv/folder/"], "Not a directory"),
    (["good.csv", "--out", "none/one.trace"], "cannot be written"),
])
def test_command_errors_write_nothing(tmp_path, monkeypatch, capsys, arguments, error):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "good.csv", "step,a\n1,1\n")
    write(tmp_path, "bad.csv", "step,a\n1,1\n2,x\n")
    write(tmp_path, "two.csv", "step,a\n1,1\n1,1\n")
    assert main(arguments) == 2
    assert re.search(error, capsys.readouterr().err)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv", "good.csv", "two.csv"]


def test_opd_module(capsys):
    assert opd_main(["--help"]) == 0 and "import" in capsys.readouterr().out
    assert opd_main([]) == 2
    assert opd_main(["nonsense"]) == 2 and "opd: nonsense: no such command" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="^2$"):
        opd_main(["import"])
    run = subprocess.run([sys.executable, "-m", "opd", "import", "--help"], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python")})
    assert run.returncode == 0
    for name in IMPORTERS:
        assert name in run.stdout


# --- public telemetry ------------------------------------------------------------------------------------------------------
# file: importer, and for each trace: steps, first and last step, probes, first non-finite (step, probe) of all probes

FILES = {
    "bigscience/train_tr1-13B-base_chronicles.csv": ("csv", [(10, 29020, 43680, 4, (29050, "gradients"))]),
    "bigscience/train_tr11-176B-ml_chronicles-prequel.csv": ("csv", [(1, 2, 2, 4, None)] * 6),
    "bigscience/train_tr11-176B-ml_chronicles.csv": ("csv", [(13, 12695, 45000, 2, None)]),
    "bigscience/train_tr8-104B-wide_chronicles.csv": ("csv", [(3, 7000, 7220, 4, None), (8, 6900, 11448, 4, None),
                                                              (8, 8738, 9027, 4, (9026, "gradients"))]),
    "bigscience/train_tr8b-104B_chronicles.csv": ("csv", [(18, 6502, 17068, 4, (14000, "gradients"))]),
    "deepspeed/tunib_gpt2_zero_fp16.csv": ("csv", [(31, 0, 300, 1, None)] * 3 + [(51, 0, 300, 3, (0, "gradients"))]),
    "mlperf_v0.6/dgx1_ngc19.05_pytorch_gnmt_result_0.csv": ("csv", [(815, 0, 7750, 3, (0, "gradients"))]),
    "mlperf_v0.6/dgx1_ngc19.05_pytorch_transformer_result_0.csv": ("csv", [(12, 991, 4905, 4, (991, "gradients"))]),
    "mlperf_v0.6/transformer_result_0.txt.gz": ("training-log", [(12, 991, 4905, 4, (991, "gradients"))]),
    "msprobe/pytorch_dump.json": ("msprobe-dump", [(1, 0, 0, 27, None)]),
    "transformers_reports/fairseq_512_collapse.csv": ("csv", [(13, 10198, 10210, 3, (10199, "gradients"))]),
    "transformers_reports/llama2_fp16_transformers_27179.csv": ("csv", [(1, 0, 0, 24, (0, "layer30.down_h4"))]),
    "transformers_reports/mt5_small_fp16.csv": ("csv", [(1, 0, 0, 23, (0, "encoder.block.2.layer.1.dropout Dropout.output"))]),
    "transformers_reports/mt5_small_fp16_report.txt": ("hf-debug", [
        (1, 0, 0, 23, (0, "encoder.block.2.layer.1.dropout.output")), (1, 0, 0, 13, (0, "encoder.block.2.layer.1.dropout.output"))]),
}


@needs_public
def test_every_public_file_is_listed():
    found = {str(p.relative_to(PUBLIC)) for p in PUBLIC.rglob("*") if p.suffix in (".csv", ".json", ".txt", ".gz")}
    assert found == set(FILES)


@needs_public
@pytest.mark.parametrize("name", FILES)
def test_public_file(name, tmp_path):
    importer, wanted = FILES[name]
    source = Source.open(PUBLIC / name)
    confidences = sorted((i.sniff(source) for i in IMPORTERS.values()), reverse=True)
    assert detect(source) == importer and confidences[0] > confidences[1]
    found = []
    for number, trace in enumerate(traces_of(PUBLIC / name)):
        bad = np.argwhere(trace.nonfinite > 0)
        first = (int(trace.step[bad[0][0]]), trace.probes[bad[0][1]].name) if len(bad) else None
        found.append((len(trace.step), int(trace.step[0]), int(trace.step[-1]), len(trace.probes), first))
        assert trace.label == ("sudden" if len(bad) else "healthy")
        trace.write(tmp_path / f"{number}.trace")
        assert Trace.read(tmp_path / f"{number}.trace").manifest["importer"] == importer
    assert found == wanted
    if TOOL:
        verdict = subprocess.run([TOOL, "check", *sorted(tmp_path.iterdir())], capture_output=True, text=True,
                                 check=True).stdout
        assert verdict.split() == ["ok"] * len(wanted)


def rows_of(name: str) -> list[dict[str, str]]:
    with open(PUBLIC / name, newline="") as file:
        return list(csv.DictReader(file))


@needs_public
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("bigscience/")])
def test_bigscience_value_for_value(name):
    """Every number of the table is in its trace, in its row."""
    rows, at, compared = rows_of(name), 0, 0
    for trace in traces_of(PUBLIC / name):
        for s, step in enumerate(trace.step):
            row, at = rows[at], at + 1
            assert int(row["iteration"]) == step
            for column_, member in (("lm_loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "lr"),
                                    ("loss_scale", "loss_scale")):
                if row[column_]:
                    assert getattr(trace, member)[s] == np.float32(row[column_])
                    compared += 1
                    if member != "lr":
                        assert column(trace, member)[s] == np.float32(row[column_])
    assert at == len(rows) and compared > 15


@needs_public
def test_tr11_is_the_precursor_of_the_chronicle():
    [trace] = traces_of(PUBLIC / "bigscience/train_tr11-176B-ml_chronicles.csv")
    first = trace.step.tolist().index(31214)
    assert column(trace, "grad_norm")[first:first + 6] == np.float32([0.242, 0.947, 2.39, 15.886, 145.119, 960.351]).tolist()


@needs_public
def test_deepspeed_overflows():
    """23 overflows, 2^32 -> 2^10; those between two printed steps take the steps after the first of them."""
    trace = traces_of(PUBLIC / "deepspeed/tunib_gpt2_zero_fp16.csv")[3]
    bad = [int(trace.step[s]) for s in range(51) if column(trace, "gradients", "nonfinite")[s]]
    assert bad == list(range(0, 23))
    attempted = [float(row["scale_attempted"]) for row in rows_of("deepspeed/tunib_gpt2_zero_fp16.csv")
                 if row["kind"] == "overflow"]
    assert len(attempted) == 23 and trace.loss_scale[:23].tolist() == attempted and trace.loss_scale[23] == 1024
    printed = {int(r["step"]): float(r["loss"]) for r in rows_of("deepspeed/tunib_gpt2_zero_fp16.csv")[93:]
               if r["kind"] == "train"}
    assert len(printed) == 31
    for step, loss in printed.items():
        assert trace.loss[trace.step.tolist().index(step)] == np.float32(loss)


@needs_public
def test_gnmt_overflows_and_epochs():
    [trace] = traces_of(PUBLIC / "mlperf_v0.6/dgx1_ngc19.05_pytorch_gnmt_result_0.csv")
    rows = rows_of("mlperf_v0.6/dgx1_ngc19.05_pytorch_gnmt_result_0.csv")
    overflows = [float(row["loss_scale_after"]) for row in rows if row["kind"] == "overflow"]
    assert sum(column(trace, "gradients", "nonfinite")) == len(overflows) == 40
    bad = np.array(column(trace, "gradients", "nonfinite")) > 0
    assert trace.loss_scale[bad].tolist() == [2 * scale for scale in overflows]
    assert np.isin([float(np.float32(r["loss"])) for r in rows if r["kind"] == "train"], trace.loss.tolist()).all()
    assert "steps start again at 3 epochs" in " ".join(trace.manifest["assumptions"]["source"])


@needs_public
def test_the_log_and_its_table_are_the_same_run():
    """The table was made from the log by someone else."""
    [log] = traces_of(PUBLIC / "mlperf_v0.6/transformer_result_0.txt.gz")
    [table] = traces_of(PUBLIC / "mlperf_v0.6/dgx1_ngc19.05_pytorch_transformer_result_0.csv")
    compared = 0
    for member in ("step", "max_abs", "nonfinite", "loss", "grad_norm", "lr", "loss_scale"):
        assert getattr(log, member).tolist() == getattr(table, member).tolist(), member
        compared += getattr(log, member).size
    assert compared == 12 * (1 + 4 + 4 + 4) and [p.name for p in log.probes] == [p.name for p in table.probes]
    assert log.model == "transformer" and log.framework == "MLPerf fairseq"


@needs_public
def test_fairseq_collapse():
    [trace] = traces_of(PUBLIC / "transformers_reports/fairseq_512_collapse.csv")
    assert trace.loss_scale.tolist() == [2.0 ** -k for k in range(1, 14)]
    assert column(trace, "gradients", "nonfinite") == [0] + [1] * 12
    assert set(trace.grad_norm.tolist()) == {float(np.float32(0.39))}


@needs_public
def test_llama2_layers():
    [trace] = traces_of(PUBLIC / "transformers_reports/llama2_fp16_transformers_27179.csv", format="FP16")
    compared = 0
    for row in rows_of("transformers_reports/llama2_fp16_transformers_27179.csv"):
        for name in ("gate_h1", "act_h2", "up_h3", "down_h4"):
            probe, value = f"layer{row['layer']}.{name}", float(row[name])
            assert column(trace, probe, "nonfinite") == [int(not math.isfinite(value))]
            assert column(trace, probe) == [value if math.isfinite(value) else 0]
            compared += 1
    assert compared == 24 and {p.format for p in trace.probes} == {"FP16"}


@needs_public
def test_mt5_report_value_for_value():
    """Every line of numbers of the report is a probe of its trace; and the table says the same as the first report."""
    lines = (PUBLIC / "transformers_reports/mt5_small_fp16_report.txt").read_text().splitlines()
    traces = traces_of(PUBLIC / "transformers_reports/mt5_small_fp16_report.txt", format="FP16")
    values, module = [], None
    for line in lines:
        if re.match(r" {18}\S", line):
            module = line.split()[0]
        elif found := re.match(r"\s*(\S+)\s+(\d\S*|inf) (\S+)$", line):
            values.append((f"{module}.{found[3]}", float(found[2])))
    assert len(values) == 36 == sum(len(t.probes) for t in traces)
    got = [(p.name, column(t, p.name)[0], column(t, p.name, "nonfinite")[0]) for t in traces for p in t.probes]
    assert got == [(name, float(np.float32(v)) if math.isfinite(v) else 0, int(not math.isfinite(v))) for name, v in values]
    assert [p.kind for p in traces[0].probes].count("weight") == 4
    table = rows_of("transformers_reports/mt5_small_fp16.csv")
    assert [float(row["absmax"]) for row in table] == [v for _, v in values[:23]]


@needs_public
def test_msprobe_dump_value_for_value():
    [trace] = traces_of(PUBLIC / "msprobe/pytorch_dump.json")
    data = json.loads((PUBLIC / "msprobe/pytorch_dump.json").read_text())["data"]
    wanted = []
    for operator, parts in data.items():
        for part, tensors in parts.items():
            for i, tensor in enumerate(tensors) if isinstance(tensors, list) else tensors.items():
                if isinstance(tensor, dict) and "float" in str(tensor.get("dtype")) and tensor["Max"] is not None:
                    wanted.append((f"{operator}.{part.removesuffix('_args').removesuffix('_kwargs')}.{i}", tensor))
    assert len(wanted) == 27 == len(trace.probes)
    for probe, (name, tensor) in zip(trace.probes, wanted):
        assert (probe.name, probe.shape) == (name, tuple(tensor["shape"]))
        assert probe.format == {"torch.bfloat16": "BF16", "torch.float32": "FP32", "torch.float16": "FP16"}[tensor["dtype"]]
        assert column(trace, name) == [np.float32(max(abs(tensor["Max"]), abs(tensor["Min"])))]
        assert column(trace, name, "mean") == [np.float32(tensor["Mean"])]
    kinds = {p.name: p.kind for p in trace.probes}
    assert kinds["Distributed.all_reduce.0.forward.output.0"] == "collective"
    assert kinds["NPU.npu_fusion_attention.0.backward.output.0"] == "gradient"
