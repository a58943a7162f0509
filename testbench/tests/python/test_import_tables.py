"""opd.importers, structured logs: the names that each tool writes and what they mean, samples of each in its own layout with one
fault each, and what is left out and still decides the label.

The small inputs of OPD_REPORTS, else ../shared/reports beside the repository, are read where they are there.
"""
import io
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from opd.importers import cells, import_file, import_joined
from opd.importers.command import main
from opd.importers.names import SCALARS, meaning, words
from test_import import column, fault_of, traces_of

ROOT = Path(__file__).resolve().parents[3]
REPORTS = Path(os.environ.get("OPD_REPORTS", ROOT.parent / "shared" / "reports"))
needs_reports = pytest.mark.skipif(not REPORTS.is_dir(), reason=f"{REPORTS} is absent (OPD_REPORTS names another folder)")

NAN, INF = math.nan, math.inf


def write(folder: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def one(folder: Path, text: str | bytes, name: str = "log.csv", **options):
    [trace] = traces_of(write(folder, text, name), **options)
    return trace


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def said(trace) -> str:
    return " / ".join(trace.manifest["assumptions"]["source"] + trace.manifest["assumptions"]["trace"])


def series(values) -> list:
    return [None if math.isnan(value) else float(value) for value in values]


def bad(trace) -> list[tuple[int, str]]:
    """Step and probe of every non-finite cell."""
    return [(int(trace.step[s]), trace.probes[op].name) for s, op in np.argwhere(trace.nonfinite > 0)]


def names(trace) -> list[str]:
    return [probe.name for probe in trace.probes]


# --- the names that each tool writes ---------------------------------------------------------------------------------------
# tool: {what: names}. "whole" is the loss of the model, "mean" one over an epoch or other summary, "part" that of a part.

TOOLS = {
    "HF Trainer": {
        "whole": "loss train/loss", "grad_norm": "grad_norm train/grad_norm", "lr": "learning_rate train/learning_rate",
        "step": "step train/global_step", "epoch": "epoch train/epoch",
        "evaluation": "eval_loss eval_accuracy eval/loss test_loss predict_loss", "time": "train_runtime",
        "throughput": "train_samples_per_second train_steps_per_second eval_samples_per_second",
        "counter": "total_flos num_input_tokens_seen", "score": "rewards/chosen rewards/margins",
        "none": "logits/chosen kl entropy"
    },
    "ms-swift": {
        "whole": "loss", "step": "global_step/max_steps", "score": "token_acc", "memory": "memory(GiB)",
        "throughput": "train_speed(iter/s) train_speed(s/it)", "time": "elapsed_time remaining_time",
        "counter": "percentage", "evaluation": "eval_token_acc"
    },
    "LLaMA-Factory": {
        "whole": "loss", "lr": "lr", "step": "current_steps", "counter": "total_steps total_tokens percentage",
        "throughput": "throughput", "score": "reward accuracy", "evaluation": "predict_loss"
    },
    "detectron2": {
        "whole": "total_loss", "part": "loss_cls loss_box_reg loss_rpn_cls loss_rpn_loc loss_mask", "step": "iteration",
        "time": "data_time time eta_seconds rank_data_time",
        "score": "fast_rcnn/cls_accuracy fast_rcnn/fg_cls_accuracy bbox/AP bbox/AP50",
        "counter": "roi_head/num_bg_samples roi_head/num_fg_samples"
    },
    "mmcv, MMEngine": {
        "whole": "loss", "part": "loss_cls loss_bbox d0.loss_cls s0.loss_rpn_cls decode.loss_ce loss_rpn_bbox",
        "step": "iter step", "epoch": "epoch", "lr": "lr", "grad_norm": "grad_norm", "time": "data_time time",
        "memory": "memory", "score": "acc decode.acc_seg coco/bbox_mAP"
    },
    "Lightning": {
        "whole": "loss train_loss train_loss_step train/loss train_loss/step", "mean": "train_loss_epoch train/loss_epoch",
        "evaluation": "val_loss val_loss_epoch val/acc test_loss_epoch", "lr": "lr-AdamW lr-Adam/pg1 lr-SGD-momentum",
        "grad_norm": "grad_norm grad_2.0_norm_total", "norm": "grad_2.0_norm/encoder.weight", "epoch": "epoch",
        "step": "step trainer/global_step", "score": "train_acc_step train_perplexity_step", "time": "epoch_time",
        "none": "hp_metric"
    },
    "NeMo": {
        "whole": "reduced_train_loss reduced_train_loss_step", "mean": "reduced_train_loss_epoch",
        "step": "global_step trainer/global_step", "counter": "consumed_samples",
        "time": "train_step_timing\u00a0in\u00a0s train_step_timing validation_step_timing", "grad_norm": "grad_norm",
        "evaluation": "val_loss validation_loss"
    },
    "Keras": {
        "whole": "loss batch_loss", "mean": "epoch_loss", "lr": "lr learning_rate epoch_learning_rate", "epoch": "epoch",
        "score": "accuracy epoch_accuracy batch_accuracy mae",
        "evaluation": "val_loss val_accuracy evaluation_loss_vs_iterations"
    },
    "ultralytics": {
        "part": "train/box_loss train/cls_loss train/dfl_loss train/seg_loss train/obj_loss",
        "evaluation": "val/box_loss val/cls_loss",
        "score": "metrics/mAP50(B) metrics/mAP50-95(B) metrics/precision(B) metrics/recall(B)",
        "lr": "lr/pg0 lr/pg1 lr/pg2 x/lr0", "time": "time"
    },
    "DeepSpeed monitor": {
        "whole": "Train/Samples/train_loss train_loss", "lr": "Train/Samples/lr", "loss_scale": "Train/Samples/loss_scale",
        "time": "Train/Samples/elapsed_time_ms_forward Train/Samples/elapsed_time_ms_step"
    },
    "Weights & Biases": {
        "step": "_step Step", "time": "_runtime _timestamp Relative\u00a0Time\u00a0(Process) Wall\u00a0Time",
        "memory": "system/gpu.0.memory system/cpu"
    },
    "Megatron-LM": {
        "whole": "lm\u00a0loss lm-loss", "part": "load_balancing_loss z_loss", "loss_scale": "loss-scale loss\u00a0scale",
        "lr": "learning-rate", "grad_norm": "grad-norm grad\u00a0norm", "norm": "params-norm",
        "overflows": "skipped number\u00a0of\u00a0skipped\u00a0iterations",
        "nan_losses": "number\u00a0of\u00a0nan\u00a0iterations", "time": "iteration-time",
        "counter": "batch-size consumed_samples world-size",
        "evaluation": "lm\u00a0loss\u00a0validation lm\u00a0loss\u00a0validation\u00a0ppl",
        "counted by something else": "lm\u00a0loss\u00a0vs\u00a0samples grad-norm\u00a0vs\u00a0samples loss-scale\u00a0vs\u00a0samples"
    },
    "torchtitan": {
        "mean": "loss_metrics/global_avg_loss loss_metrics/global_max_loss", "grad_norm": "grad_norm", "lr": "lr",
        "throughput": "throughput(tps) tflops mfu(%)",
        "time": "time_metrics/data_loading(s)_time time_metrics/end_to_end(s)_time",
        "memory": "memory/max_active(GiB) memory/max_reserved(%)"
    },
    "AMP, scripts": {
        "overflows": "overflow overflows num_skipped skip_count num_overflows found_inf skipped_steps grad_overflow is_nan has_inf_or_nan nan_grads nan_count",
        "nan_losses": "nan_loss loss_is_nan", "finite": "grads_finite all_finite is_finite",
        "suspect": "fc1_nans fp8_overflows", "loss_scale": "loss_scale lossScale amp_scale scaler/scale grad_scale",
        "scale_after": "scale_after new_loss_scale",
        "setting": "max_grad_norm grad_clip loss_weight loss_scale_window weight_decay warmup lr_mult",
        "best value so far": "best_loss best_val_loss",
        "part": "policy_loss value_loss generator/loss discriminator/loss nll_loss"
    },
}
WHATS = {
    "whole": ("loss", True), "mean": ("loss", True), "part": ("loss", False), "none": (None, False),
    "grad_norm": ("grad_norm", True)
}


@pytest.mark.parametrize("tool", TOOLS)
def test_names_of_the_tool(tool):
    wrong = []
    for what, listed in TOOLS[tool].items():
        for name in listed.split(" "):
            got = meaning(name.replace("\u00a0", " "))
            if (got.what, got.is_whole) != WHATS.get(
                    what, (what, False)) or (what in ("whole", "mean")) and (got.order >= 10) != (what == "mean"):
                wrong.append((name, what, got))
    assert not wrong


def test_documented_number_of_names():
    """docs/importing.md says how many names of each tool are checked here."""
    text = (ROOT / "docs" / "importing.md").read_text()
    found = dict(re.findall(r"^\| ([^|]+?) \| (\d+) \|", text[text.index("### Names"):text.index("### Cells")], re.M))
    assert found == {tool: str(sum(len(n.split(" ")) for n in kinds.values())) for tool, kinds in TOOLS.items()}


def test_exact_names_mean_themselves():
    for field, spellings in SCALARS.items():
        for name in spellings:
            assert meaning(name).what == field, name


@pytest.mark.parametrize("name", [
    "blocks.0.time_mixing.out", "layer0.out", "block.1.norm1.out", "encoder.valve", "std_dev", "lossless", "attn.qk",
    "x.max_val", "time_mixing"
])
def test_operators_are_no_metrics(name):
    assert meaning(name).what is None


def test_words():
    assert words("train/lossScale (avg)") == ["train", "loss", "scale", "avg"
                                              ] and words("metrics/mAP50-95(B)") == ["metrics", "map50", "95", "b"]


# --- cells -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell, value", [("2.5", 2.5), ("1e-3", 1e-3), ("+2", 2), ("nan", NAN), ("NaN", NAN), ("NAN", NAN),
                                         ("-nan", NAN), ("-nan(ind)", NAN), ("1.#QNAN", NAN), ("-1.#IND", NAN),
                                         ("nan(0x8000000000000)", NAN), ("inf", INF), ("INF", INF), ("Infinity", INF),
                                         ("-inf", -INF), ("1.#INF", INF), ("-1.#INF00", -INF), ("∞", INF), ("#NUM!", NAN),
                                         ("#DIV/0!", NAN), ("1e400", INF), ("-1e400", -INF), (10**400, INF),
                                         ("tensor(2.5)", 2.5), ("tensor(2.5, device='cuda:0')", 2.5),
                                         ("tensor(nan, device='cuda:0', dtype=torch.float16)", NAN),
                                         ("tensor(2.5, grad_fn=<MeanBackward0>)", 2.5), ("tensor([2.5])", 2.5),
                                         ("np.float32(2.5)", 2.5), ("array(inf, dtype=float32)", INF),
                                         ("<tf.Tensor: shape=(), dtype=float32, numpy=2.5>", 2.5), ("[2.5]", 2.5),
                                         ("1,234.5", 1234.5), ("1,234", 1234.0), ("", None), (" ", None), ("None", None),
                                         ("null", None), ("N/A", None), ("#N/A", None), ("NA", None), ("<NA>", None),
                                         (None, None), (3, 3.0)])
def test_cell(cell, value):
    got = cells.number(cell)
    assert got == value or math.isnan(got) and math.isnan(value)


@pytest.mark.parametrize(
    "cell", ["x", "1_000", "12%", "2,5", "1,23,456", "tensor([1, 2])", "#VALUE!", "diverged", True, "2024-01-01", "0x10"])
def test_no_number(cell):
    with pytest.raises(ValueError):
        cells.number(cell)


def test_decimal_comma():
    assert cells.number("2,5", decimal_comma=True) == 2.5 and cells.number("1,234", decimal_comma=True) == 1.234


# --- the inputs that were read wrongly -------------------------------------------------------------------------------------


def report(name: str):
    [trace] = traces_of(REPORTS / name)
    return trace


@needs_reports
def test_report_llama_factory():
    trace = report("llama_factory_trainer_log.jsonl")
    assert trace.step.tolist() == [20, 40, 60] and trace.loss.tolist() == [1.5, 1.25, 1.125] and trace.label == "healthy"


@needs_reports
def test_report_ms_swift():
    trace = report("ms_swift_logging.jsonl")
    assert trace.step.tolist() == [1, 20, 40] and trace.loss.tolist() == [12.5, 0.5, 0.25] and trace.label == "healthy"
    assert trace.grad_norm.tolist() == [40.25, 2.125, 1.5] and names(trace) == ["loss", "grad_norm"]


@needs_reports
def test_report_lightning():
    trace = report("lightning_metrics.csv")
    assert trace.step.tolist() == [49, 99, 149, 199] and series(trace.loss) == [7.5, 7.25, 6.5, None]
    assert names(trace) == ["loss"] and bad(trace) == [(199, "loss")] and trace.label == "sudden"


@needs_reports
def test_report_yolo():
    trace = report("yolo_results.csv")
    assert trace.step.tolist() == [0, 1, 2] and "the epoch is" in said(trace) and trace.label == "sudden"
    assert bad(trace) == [(2, "train/box_loss"), (2, "train/cls_loss")]
    assert trace.lr.tolist() == [0.0625, 0.03125, 0.03125]


@needs_reports
def test_report_pandas_index():
    trace = report("pandas_index.csv")
    assert trace.step.tolist() == [10, 20, 30] and trace.loss.tolist() == [2.25, 2.125, INF]
    assert bad(trace) == [(30, "loss"), (30, "grad_norm")] and series(trace.grad_norm) == [0.875, 1.5, None]


@needs_reports
def test_report_detectron2():
    trace = report("detectron2_metrics.json")
    assert trace.step.tolist() == [19, 39, 59] and series(trace.loss) == [2.5, 2.25, None]
    assert trace.lr.tolist() == [np.float32(0.00125)] * 3
    assert names(trace) == ["loss", "loss_cls"] and (trace.first_bad_step, trace.first_bad_op) == (59, "loss")


@needs_reports
def test_report_hf_debug_first_heading():
    trace = report("hf_debug_first_heading.txt")
    assert trace.step.tolist() == [7] and bad(trace) == [(7, "enc.layer.1.output[0]")] and len(trace.probes) == 5


@needs_reports
@pytest.mark.parametrize("name, error", [("npz_member_is_no_array.npz", '"a": is no array'),
                                         ("npz_header_cut.npz", '"a": not a valid npz archive'),
                                         ("npz_claims_4_TB.npz", '"a": claims 3999999999996 bytes'),
                                         ("npz_name_is_no_text.npz", '"probe": holds a name that is no text'),
                                         ("npz_bomb_1_GiB.npz", "more than 100 times as many"),
                                         ("module_step0-9.csv", "2: probe \"0.output.0\" has a negative count")])
def test_report_attack(name, error, tmp_path, capsys):
    assert main([str(REPORTS / "attack" / name), "--out", str(tmp_path) + "/"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"opd import: {REPORTS / 'attack' / name}:") and error in told and "; " in told and told.count(
        "\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- each tool's layout ----------------------------------------------------------------------------------------------------


def test_lightning_groups_and_validation(tmp_path):
    """A row each for learning rate, training, validation and epoch: one trace; all groups' rates are noted."""
    text = ("epoch,lr-AdamW/pg1,lr-AdamW/pg2,step,train_loss_epoch,train_loss_step,val_acc,val_loss\n"
            "0,0.5,0.25,49,,,,\n0,,,49,,2.5,,\n0,,,99,,,0.5,3.5\n0,,,99,2.25,,,\n1,0.25,0.125,149,,,,\n1,,,149,,1.5,,\n")
    trace = one(tmp_path, text)
    assert trace.step.tolist() == [49, 149] and trace.loss.tolist() == [2.5, 1.5] and trace.lr.tolist() == [0.5, 0.25]
    assert "learning rates of 2 parameter groups: that of the first, lr-AdamW/pg1" in said(
        trace) and trace.label == "healthy"


def test_mean_over_the_epoch_that_alone_is_not_finite(tmp_path):
    """The loss is logged every so often; the mean over the epoch saw what lies between."""
    text = "epoch,step,train_loss_epoch,train_loss_step\n0,49,,2.5\n0,99,nan,\n1,149,,1.5\n"
    trace = one(tmp_path, text)
    assert bad(trace) == [(99, "train_loss_epoch")] and trace.label == "sudden" and 49 in trace.step and trace.loss[0] == 2.5


def test_only_the_mean_over_the_epoch(tmp_path):
    trace = one(tmp_path, "epoch,step,train_loss_epoch,val_loss\n0,99,2.5,\n1,199,inf,\n")
    assert trace.loss.tolist() == [2.5, INF] and trace.step.tolist() == [99, 199]


def test_detectron2_part_alone(tmp_path):
    rows = [
        dict(iteration=i,
             total_loss=2.0 + i,
             loss_cls=1.0,
             loss_box_reg=NAN if i == 39 else 1.0,
             lr=0.5,
             time=0.1,
             eta_seconds=4000.0 - i) for i in (19, 39)
    ]
    trace = one(tmp_path, lines(*rows), "metrics.json")
    assert bad(trace) == [(39, "loss_box_reg")] and trace.loss.tolist() == [21, 41] and trace.label == "sudden"
    assert "further losses are probes of their own: loss_cls, loss_box_reg (not finite)" in said(trace)


def test_mmcv_json(tmp_path):
    """Iterations start again at each epoch; a list of learning rates; validation rows with a loss."""
    text = lines({"env_info": "sys.platform: linux", "config": "x" * 5000, "seed": 0}, {
        "mode": "train", "epoch": 1, "iter": 50, "lr": [0.5, 0.25], "memory": 9000, "data_time": 0.1, "loss": 2.5,
        "grad_norm": 4.5, "time": 1.0
    }, {
        "mode": "train", "epoch": 1, "iter": 100, "lr": [0.5, 0.25], "memory": 9000, "data_time": 0.1, "loss": 2.25,
        "grad_norm": 4.25, "time": 1.0
    }, {"mode": "val", "epoch": 1, "iter": 10, "lr": 0.5, "loss": 9.0, "bbox_mAP": 0.5}, {
        "mode": "train", "epoch": 2, "iter": 50, "lr": [0.25, 0.125], "memory": 9000, "data_time": 0.1, "loss": NAN,
        "grad_norm": NAN, "time": 1.0
    })
    trace = one(tmp_path, text, "20310101.log.json")
    assert trace.step.tolist() == [50, 100, 150] and series(trace.loss) == [2.5, 2.25, None
                                                                            ] and trace.lr.tolist() == [0.5, 0.5, 0.25]
    assert "1 rows of an evaluation left out" in said(trace) and names(trace) == ["loss", "grad_norm"]


def test_mmengine_scalars(tmp_path):
    """The step of an evaluation is the epoch: such a row is no step that goes back."""
    text = lines(
        {
            "lr": 0.5, "data_time": 0.1, "grad_norm": 4.5, "loss": 2.5, "loss_cls": 1.5, "time": 1.0, "epoch": 1, "iter": 50,
            "memory": 1, "step": 50
        }, {"coco/bbox_mAP": 0.5, "data_time": 0.1, "time": 1.0, "step": 1}, {
            "lr": 0.5, "data_time": 0.1, "grad_norm": INF, "loss": 2.25, "loss_cls": 1.25, "time": 1.0, "epoch": 2,
            "iter": 100, "memory": 1, "step": 100
        })
    trace = one(tmp_path, text, "scalars.json")
    assert trace.step.tolist() == [50, 100] and bad(trace) == [(100, "grad_norm")]


def test_trainer_state_summary_row(tmp_path):
    """The mean over the run in the last row is no loss of a step."""
    history = [{"loss": 2.5, "grad_norm": 1.5, "learning_rate": 0.5, "epoch": 0.5,
                "step": 10}, {"eval_loss": 2.25, "eval_runtime": 1.5, "epoch": 0.5,
                              "step": 10}, {"loss": 2.0, "grad_norm": 1.25, "learning_rate": 0.25, "epoch": 1.0, "step": 20},
               {"train_loss": 2.25, "train_runtime": 9.5, "total_flos": 1e18, "epoch": 1.0, "step": 20}]
    trace = one(tmp_path, json.dumps({"log_history": history, "global_step": 20}), "trainer_state.json")
    assert trace.step.tolist() == [10, 20] and trace.loss.tolist() == [2.5, 2] and names(trace) == ["loss", "grad_norm"]
    assert trace.label == "healthy"
    history[3]["train_loss"] = NAN
    trace = one(tmp_path, json.dumps({"log_history": history, "global_step": 20}), "trainer_state.json")
    assert trace.label == "sudden" and bad(trace) == [(20, "train_loss")]


def test_ms_swift_history_in_the_last_line(tmp_path):
    rows = [{"loss": 2.5, "global_step/max_steps": "1/60"}, {"loss": 2.25, "global_step/max_steps": "20/60"}]
    last = {"last_model_checkpoint": "x", "global_step": 60, "log_history": [{"loss": 2.5, "step": 1}]}
    trace = one(tmp_path, lines(*rows, last), "logging.jsonl")
    assert trace.step.tolist() == [1, 20] and trace.label == "healthy"
    last["log_history"].append({"loss": NAN, "step": 40})
    trace = one(tmp_path, lines(*rows, last), "logging.jsonl")
    assert trace.label == "unknown" and 'line 3: "log_history: nan in a list that is left out"' in said(trace)


@pytest.mark.parametrize("row, step", [({"iteration": "20/100"}, 20), ({"current_steps": 20}, 20),
                                       ({"train/global_step": 20, "_step": 7}, 20),
                                       ({"trainer/global_step": 20, "_step": 7}, 20), ({"Step": "20"}, 20),
                                       ({"num_updates": "20.0"}, 20), ({"iter": 20, "epoch": 3}, 20),
                                       ({"_step": 20, "_runtime": 3.5}, 20)])
def test_step_names(row, step, tmp_path):
    first = {
        name: ("10/100" if isinstance(v, str) and "/" in v else 10 if v == 20 else "10" if isinstance(v, str) else v)
        for name, v in row.items()
    }
    trace = one(tmp_path, lines({**first, "loss": "2.5"}, {**row, "loss": "NaN"}), "log.jsonl")
    assert trace.step.tolist() == [10, step] and bad(trace) == [(step, "loss")]


def test_step_column_that_is_filled(tmp_path):
    """W&B's history: the trainer's own step where every row of the loss has it, else the step of W&B."""
    trace = one(tmp_path, "_step,train/global_step,train/loss,eval/loss\n0,10,2.5,\n1,10,,3.5\n2,20,2.25,\n")
    assert trace.step.tolist() == [10, 20]
    trace = one(tmp_path, "_step,train/global_step,train/loss,eval/loss\n0,,2.5,\n1,10,,3.5\n2,,2.25,\n")
    assert trace.step.tolist() == [0, 2]


def test_keras_csv_logger(tmp_path):
    trace = one(tmp_path,
                "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss\n0,0.5,0.01,2.5,0.5,2.75\n1,0.5,0.01,nan,NA,NA\n")
    assert trace.step.tolist() == [0, 1] and "the epoch is" in said(trace) and bad(trace) == [(1, "loss")]
    assert trace.lr.tolist() == [np.float32(0.01)] * 2


def test_epochs_that_are_no_steps(tmp_path):
    trace = one(tmp_path, lines({"loss": 2.5, "epoch": 0.25}, {"loss": 2.25, "epoch": 0.5}), "a.jsonl")
    assert trace.step.tolist() == [0, 1] and "rows are counted from 0" in said(trace)
    trace = one(tmp_path, "epoch,loss\n0,2.5\n0,2.25\n1,2\n")
    assert trace.step.tolist() == [0, 1, 2] and "rows are counted from 0" in said(trace)


def test_wandb_panel_with_several_runs(tmp_path):
    header = ["Step"] + [
        f"{run} - {metric}{end}" for run in ("brisk-1", "calm - 2") for metric in ("_step", "train/loss")
        for end in ("", "__MIN", "__MAX")
    ]
    rows = [["10", "10", "10", "10", "2.5", "2.5", "2.5", "", "", "", "", "", ""],
            ["20", "20", "20", "20", "nan", "nan", "nan", "20", "20", "20", "3.5", "3.5", "3.5"],
            ["30", "", "", "", "", "", "", "30", "30", "30", "3.25", "3.25", "3.25"]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in [header, *rows]) + "\n"
    first, second = traces_of(write(tmp_path, text, "export.csv"))
    assert (first.name, second.name) == ("export.brisk-1", "export.calm_-_2")
    assert first.step.tolist() == [10, 20] and bad(first) == [(20, "loss")] and first.label == "sudden"
    assert second.step.tolist() == [20, 30] and second.loss.tolist() == [3.5, 3.25] and bad(second) == []
    assert names(first) == names(second) == ["loss"] and "2 runs, a trace each: brisk-1, calm - 2" in said(first)


def test_wandb_smallest_of_a_bucket(tmp_path):
    """A panel shows a mean of several steps; its extremes may hold what the mean does not."""
    text = '"Step","a - loss","a - loss__MIN","a - loss__MAX"\n10,2.5,2.5,2.5\n20,2.25,2,inf\n'
    trace = one(tmp_path, text)
    assert trace.label in ("sudden", "unknown") and "loss__MAX" in said(trace)


def test_runs_in_rows(tmp_path):
    text = "run_id,run_name,step,loss\na1,x,10,2.5\na1,x,20,2.25\nb2,y,10,3.5\nb2,y,20,nan\n"
    first, second = traces_of(write(tmp_path, text))
    assert [t.name for t in (first, second)] == ["log.a1", "log.b2"] and bad(first) == [] and bad(second) == [(20, "loss")]
    first, second = traces_of(write(tmp_path, "rank,step,loss\n0,10,2.5\n1,10,2.25\n0,20,2\n1,20,inf\n"))
    assert [t.name for t in (first, second)] == ["log.rank0", "log.rank1"] and second.loss.tolist() == [2.25, INF]
    [same] = traces_of(write(tmp_path, "run_id,step,loss\na1,10,2.5\na1,20,2.25\n"))
    assert same.name == "log"


def test_ranks_that_write_the_same_row(tmp_path):
    row = {"step": 10, "loss": 2.5, "time": 0.5}
    trace = one(tmp_path, lines(row, {**row, "time": 0.75}, {"step": 20, "loss": NAN}, {"step": 20, "loss": NAN}), "a.jsonl")
    assert trace.step.tolist() == [10, 20] and "2 rows say what the row before says: copies, left out" in said(trace)


def test_one_metric_a_row(tmp_path):
    """MLflow, Comet: metric by metric, so that the steps go back without a restart."""
    text = "run_id,key,value,timestamp,step\n" + "".join(f"r,{m},{v},1,{s}\n"
                                                         for m, vs in (("train_loss", (2.5, 2.25, "nan")), ("grad_norm",
                                                                                                            (1.5, 1.25, 4)),
                                                                       ("val_loss", (2.5, 2.5, 2.5)), ("loss_cls",
                                                                                                       (1, 1, 1)))
                                                         for s, v in enumerate(vs))
    trace = one(tmp_path, text)
    assert trace.step.tolist() == [0, 1, 2] and series(trace.loss) == [2.5, 2.25, None
                                                                       ] and trace.grad_norm.tolist() == [1.5, 1.25, 4]
    comet = [{"metricName": n, "metricValue": v, "step": s, "timestamp": 1}
             for n, s, v in (("loss", 5, "2.5"), ("loss", 6, "Infinity"))]
    trace = one(tmp_path, json.dumps(comet), "comet.json")
    assert trace.step.tolist() == [5, 6] and bad(trace) == [(6, "loss")]
    trace = one(tmp_path, "1700000000000 2.5 0\n1700000000001 nan 10\n", "train_loss")
    assert trace.step.tolist() == [0, 10] and bad(trace) == [(10, "loss")]


def test_tensorboard_csv(tmp_path):
    """TensorBoard's download: the metric stands in the file's name only."""
    trace = one(tmp_path, "Wall time,Step,Value\n1.7e9,0,2.5\n1.7e9,1,nan\n", "run-train-tag-epoch_loss.csv")
    assert bad(trace) == [(1, "loss")] and trace.step.tolist() == [0, 1]
    assert "evaluation" in fault_of(
        write(tmp_path, "Wall time,Step,Value\n1.7e9,0,2.5\n", "run-validation-tag-epoch_loss.csv"))


def test_deepspeed_csv_monitor(tmp_path):
    trace = one(tmp_path, "step,train_loss\n32,\"tensor(2.5, device='cuda:0')\"\n64,\"tensor(nan, device='cuda:0')\"\n",
                "Train_Samples_train_loss.csv")
    assert trace.step.tolist() == [32, 64] and bad(trace) == [(64, "loss")]
    trace = one(tmp_path, "step,loss_scale\n32,65536\n64,32768\n", "Train_Samples_loss_scale.csv")
    assert bad(trace) == [(64, "gradients")] and trace.label == "sudden"


def test_json_layouts(tmp_path):
    rows = [{"step": 10, "loss": 2.5}, {"step": 20, "loss": NAN}]
    wanted = ([10, 20], [(20, "loss")])
    layouts = {
        "array": json.dumps(rows), "pretty array": json.dumps(rows, indent=2),
        "pretty objects": "\n".join(json.dumps(r, indent=2) for r in rows),
        "list in an object": json.dumps({"run": "x", "metrics": rows},
                                        indent=1), "columns": json.dumps({"step": [10, 20], "loss": [2.5, NAN]}),
        "pandas": json.dumps({"step": {"0": 10, "1": 20}, "loss": {"0": 2.5, "1": NAN}}), "bom": "\ufeff" + lines(*rows),
        "printed": '{"step": 10, "loss": 2.5}\n{"step": 20, "loss": nan}\n',
        "printed array": '[{"step": 10, "loss": 2.5}, {"step": 20, "loss": nan}]',
        "texts": lines({"step": "10", "loss": "2.5"},
                       {"step": "20", "loss": "NaN"}), "nested": lines(*({"metrics": {"train": r}} for r in rows)),
        "foreign lines": lines(rows[0]) + "starting epoch 2\n" + lines(rows[1])
    }
    for layout, text in layouts.items():
        trace = one(tmp_path, text, "a.json")
        assert (trace.step.tolist(), bad(trace)) == wanted, layout


# --- event files -----------------------------------------------------------------------------------------------------------


def events(folder: Path, points, plugin="scalars") -> Path:
    """An event file as tf.summary and Keras write it: scalars as tensors. points: (tag, step, value)."""
    writer = EventFileWriter(str(folder))
    for tag, step, value in points:
        metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin))
        tensor = tensor_util.make_tensor_proto(np.asarray(value, np.float32) if not isinstance(value, bytes) else [value])
        writer.add_event(
            event_pb2.Event(
                step=step,
                wall_time=1.0,
                summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])))
    writer.close()
    return next(folder.iterdir())


def test_keras_events(tmp_path):
    points = [("epoch_loss", 0, 2.5), ("epoch_accuracy", 0, 0.5), ("epoch_learning_rate", 0, 0.25), ("epoch_loss", 1, NAN),
              ("epoch_learning_rate", 1, 0.25)]
    [trace] = traces_of(events(tmp_path / "train", [("keras", 0, b"model"), *points]))
    assert trace.step.tolist() == [0, 1] and bad(trace) == [(1, "loss")] and trace.lr.tolist() == [0.25, 0.25]
    assert "the step is the epoch" in said(trace) and names(trace) == ["loss"]


def test_keras_validation_folder(tmp_path):
    train = events(tmp_path / "train", [("epoch_loss", 0, 2.5), ("epoch_loss", 1, 2.25)])
    validation = events(tmp_path / "validation", [("epoch_loss", 0, 3.5), ("epoch_loss", 1, NAN),
                                                  ("evaluation_loss_vs_iterations", 9, 3.5)])
    assert "holds evaluations only; its tags: eval/epoch_loss" in fault_of(validation)
    _, [imported] = import_joined([train, validation])
    assert imported.trace.loss.tolist() == [2.5, 2.25
                                            ] and imported.trace.label == "unknown"   # the evaluation was not finite
    [alone] = traces_of(train)
    assert alone.label == "healthy"
    [named] = traces_of(events(tmp_path / "runs" / "test", [("loss", 0, 2.5)]))   # a run that is called test
    assert named.loss.tolist() == [2.5]


def test_keras_batches_and_epochs(tmp_path):
    """Batches and epochs are counted apart; what is not finite in the epochs is not lost."""
    points = [("batch_loss", 1, 2.5), ("batch_loss", 2, 2.25), ("epoch_loss", 0, 2.375)]
    [trace] = traces_of(events(tmp_path / "a", points))
    assert trace.step.tolist() == [1, 2] and trace.loss.tolist() == [2.5, 2.25] and trace.label == "healthy"
    [trace] = traces_of(events(tmp_path / "b", points[:2] + [("epoch_loss", 0, NAN)]))
    assert trace.loss.tolist() == [2.5, 2.25] and trace.label == "unknown" and "epoch_loss is nan at step 0" in said(trace)


def test_events_of_parts_and_one_element_tensors(tmp_path):
    points = [("train/loss", 1, [2.5]), ("train/loss_cls", 1, 1.5), ("val/loss", 1, 9.0), ("train/loss", 2, [2.25]),
              ("train/loss_cls", 2, INF), ("lr", 1, 0.5)]
    [trace] = traces_of(events(tmp_path / "a", points, plugin=""))
    assert trace.loss.tolist() == [2.5, 2.25] and bad(trace) == [(2, "train/loss_cls")]


def test_events_histogram_with_a_nan(tmp_path):
    for number, edges in enumerate(([[1.0, NAN, 3.0]], [[NAN, 2.0, 3.0]], [[-1.0, 0.0, 2.0], [0.0, NAN, 1.0]])):
        [trace
         ] = traces_of(events(tmp_path / str(number), [("fc/weight", 3, edges), ("loss", 3, 2.5)][:1], plugin="histograms"))
        assert bad(trace) == [(3, "fc/weight")]


def test_events_tensor_that_is_left_out(tmp_path):
    [trace] = traces_of(events(tmp_path / "a", [("loss", 1, 2.5), ("weights", 1, [1.0, NAN, 2.0])]))
    assert trace.label == "unknown" and "weights at step 1" in said(trace)
    [trace] = traces_of(events(tmp_path / "b", [("loss", 1, 2.5), ("weights", 1, [1.0, 2.0])]))
    assert trace.label == "healthy" and "tags that are no numbers left out: weights" in said(trace)


# --- what is left out decides too ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, label, told",
    [
        ("step,loss,foo\n1,2.5,1\n2,2.25,nan\n", "unknown", 'line 3: "foo is nan (left out, no known meaning)"'),
        ("step,loss,kl\n1,2.5,1\n2,2.25,inf\n", "unknown", "kl is inf"),
        ("step,loss,eval_loss\n1,2.5,\n2,2.25,nan\n", "unknown", "eval_loss is nan (left out, evaluation)"),
        ("step,loss,accuracy\n1,2.5,nan\n", "unknown", "accuracy is nan"),
        ("step,loss,lr\n1,2.5,0.5\n2,2.25,nan\n", "unknown", "lr is nan (lr)"),
        ("step,loss,lr/pg0,lr/pg1\n1,2.5,0.5,inf\n", "unknown", "lr/pg1 is inf"),
        ("step,loss,loss_scale\n1,2.5,1024\n2,2.25,inf\n", "unknown", "loss_scale is inf"),
        ("step,loss,loss_scale\n1,2.5,1024\n2,2.25,0\n", "sudden", "the loss scale falls"),
        ("step,loss,fc1_nans\n1,2.5,0\n2,2.25,3\n", "unknown", "fc1_nans is 3"),
        ("step,loss,fp8_overflows\n1,2.5,0\n2,2.25,3\n", "unknown", "fp8_overflows is 3"),
        ("step,loss,skipped_samples\n1,2.5,0\n2,2.25,3\n", "unknown", "skipped_samples is 3"),
        ("step,loss,message\n1,2.5,ok\n2,2.25,gradient overflow detected\n", "unknown",
         "message: gradient overflow detected"),
        ("mode,step,loss\ntrain,1,2.5\nval,1,nan\ntrain,2,2.25\n", "unknown", "loss is nan (a row of an evaluation)"),
        ("step,a,a_mean\n1,2.5,1\n", "healthy", ""),
        ("step,a_max,a_mean\n1,2.5,nan\n", "unknown", "mean of a is nan, its magnitude is finite"),
        ("step,probe,max_abs,l2_norm\n1,a,2.5,inf\n", "unknown", "l2_norm is inf"),
        ("step,probe,max_abs,mean\n1,a,2.5,nan\n", "unknown", "mean of a is nan"),
        ("layer,up,accuracy\n0,2.5,nan\n", "unknown", "accuracy is nan"),
   # what says nothing about the model
        ("step,loss,eta_seconds,tokens_per_second\n1,2.5,inf,nan\n", "healthy",
         "eta_seconds is inf in 1 places: as time it says nothing"),
        ("step,loss,max_grad_norm,best_val_loss\n1,2.5,inf,inf\n", "healthy", "best_val_loss is inf in 1 places"),
        ("step,loss,loss_scale\n1,2.5,0\n2,2.25,0\n", "healthy", ""),
        ("step,loss,eval_loss,host\n1,2.5,,inf1.cluster.local\n2,2.25,2.5,nan-debug\n", "unknown", "host"),
        ("step,loss,val_loss\n1,2.5,\n2,2.25,2.5\n", "healthy", "columns left out: val_loss (evaluation)"),
    ])
def test_label_of_what_is_left_out(text, label, told, tmp_path):
    trace = one(tmp_path, text)
    assert trace.label == label and told in said(trace)


@pytest.mark.parametrize("header, rows, wanted", [
    ("step,loss,found_inf", ["1,2.5,0", "2,2.25,1"], [2]),
    ("step,loss,found_inf", ["1,2.5,False", "2,2.25,True"], [2]),
    ("step,loss,grads_finite", ["1,2.5,1", "2,2.25,0"], [2]),
    ("step,loss,all_finite", ["1,2.5,true", "2,2.25,false"], [2]),
    ("step,loss,num_overflows", ["1,2.5,0", "2,2.25,3", "3,2.25,0"], [2]),
    ("step,loss,is_nan", ["1,2.5,0", "2,2.25,nan"], [2]),
    ("step,loss,total_skipped_steps", ["1,2.5,0", "2,2.25,1", "3,2,1", "4,2,2"], [2, 4]),
    ("step,loss,skipped", ["1,2.5,0", "2,2.25,1", "3,2,1"], [2, 3]),
    ("step,loss,event", ["1,2.5,", "2,2.25,OVERFLOW"], [2]),
    ("step,loss,type", ["1,2.5,train", "2,2.25,skipped step"], [2]),
    ("step,loss,loss_scale_0,loss_scale_1", ["1,2.5,1024,1024", "2,2.25,1024,512", "3,2,1024,512"], [2]),
    ("step,loss,scale", ["1,2.5,1024", "2,2.25,512"], [2]),
    ("step,found_inf", ["1,0", "2,1"], [2]),
    ("step,l0.out,found_inf", ["1,2.5,0", "2,2.25,1"], [2]),
    ("step,loss,lossScale", ["1,2.5,1024", "2,2.25,512"], [2]),
])
def test_overflow_flags(header, rows, wanted, tmp_path):
    trace = one(tmp_path, "\n".join([header, *rows]) + "\n")
    assert [step for step, probe in bad(trace) if probe == "gradients"] == wanted and trace.label == "sudden"


def test_nan_losses_of_a_count(tmp_path):
    trace = one(tmp_path, "iteration,lm loss,number of nan iterations\n10,2.5,0\n20,,3\n")
    assert bad(trace) == [(20, "loss")]


@pytest.mark.parametrize("text, name, label", [
    ("step,loss,grad_norm\n1,2.5,1\n2,,1\n", "a.csv", "unknown"),
    ("step,loss\n1,2.5\n2,\n", "a.csv", "unknown"),
    ("step,loss,lr\n1,2.5,1\n2,,1\n", "a.csv", "healthy"),
    ("step,loss,eval_loss\n1,2.5,\n2,,2\n", "a.csv", "healthy"),
    ("step,loss\n1,2.5\n,\n", "a.csv", "healthy"),
    ("step,loss,grad_norm\n1,2.5,\n2,2.25,1\n", "a.csv", "healthy"),
    ("step,loss,loss_scale,grad_norm\n1,2.5,1024,1\n2,,512,1\n", "a.csv", "sudden"),
    (lines({"step": 1, "loss": 2.5}, {"step": 2, "loss": None}), "a.jsonl", "unknown"),
    (lines({"step": 1, "loss": 2.5, "lr": 1}, {"step": 2, "loss": None, "lr": 1}), "a.jsonl", "unknown"),
    (lines({"step": 1, "loss": 2.5, "lr": 1}, {"step": 2, "lr": 1}), "a.jsonl", "healthy"),
    (json.dumps({"columns": ["step", "loss"], "index": [0, 1], "data": [[1, 2.5], [2, None]]}), "a.json", "unknown"),
])
def test_loss_that_is_due(text, name, label, tmp_path):
    """Writers without NaN leave the value out, or write null."""
    trace = one(tmp_path, text, name)
    assert trace.label == label and ("so writes NaN who has no NaN" in said(trace)) == (label == "unknown")


def test_null_beside_numbers(tmp_path):
    """Writers without NaN (orjson, pandas, JavaScript) write null."""
    rows = [{"step": 1, "loss": 2.5, "grad_norm": 1.5}, {"step": 2, "loss": None, "grad_norm": 1.25}]
    trace = one(tmp_path, lines(*rows), "a.jsonl")
    assert trace.label == "unknown" and 'line 2: "loss has no value: so writes NaN who has no NaN"' in said(trace)
    rows = [{"step": 1, "loss": 2.5, "eval_loss": None}, {"step": 1, "loss": None, "eval_loss": 2.5},
            {"step": 2, "loss": 2.25, "eval_loss": None}]
    trace = one(tmp_path, lines(*rows), "a.jsonl")
    assert trace.label == "healthy" and trace.step.tolist() == [1, 2]


def test_norms_are_probes(tmp_path):
    trace = one(tmp_path,
                "step,loss,grad_norm,param_norm,grad_norm/layer0.weight,max_grad_norm\n1,2.5,1,9,1,1\n2,2.25,1,9,nan,1\n")
    kinds = {p.name: p.kind for p in trace.probes}
    assert kinds == {
        "loss": "activation", "grad_norm": "collective", "param_norm": "weight", "grad_norm/layer0.weight": "gradient"
    }
    assert bad(trace) == [(2, "grad_norm/layer0.weight")]


def test_several_losses(tmp_path):
    """The whole model's by name; else the only one; else none."""
    trace = one(tmp_path, "step,total_loss,loss,loss_a\n1,9,2.5,1\n")
    assert trace.loss.tolist() == [2.5] and names(trace) == ["loss", "loss_a"]
    trace = one(tmp_path, "step,policy_loss\n1,2.5\n2,nan\n")
    assert series(trace.loss) == [2.5, None] and names(trace) == ["loss"]
    trace = one(tmp_path, "step,generator/loss,discriminator/loss\n1,2.5,1.5\n2,2.25,inf\n")
    assert trace.loss is None and bad(trace) == [(2, "discriminator/loss")]
    trace = one(tmp_path, "step,loss,total_loss\n1,2.5,3\n2,2.25,nan\n")
    assert bad(trace) == [(2, "total_loss")] and trace.loss.tolist() == [2.5, 2.25]


def test_wide_table_has_operators_only(tmp_path):
    text = "step,time,lr,accuracy,tokens_per_second,blocks.0.time_mixing.out,l1.out\n1,0.5,0.1,0.5,9,2.5,3.5\n2,0.5,0.1,0.5,9,inf,3.5\n"
    trace = one(tmp_path, text)
    assert names(trace) == ["blocks.0.time_mixing.out", "l1.out"] and bad(trace) == [(2, "blocks.0.time_mixing.out")]
    assert trace.lr.tolist() == [np.float32(0.1)] * 2


@pytest.mark.parametrize("name", ["step_time_max", "elapsed_time_ms", "throughput_max", "gpu_mem_max", "acc_max", "num_tokens_max",
                                  "val_loss_max", "lr_max", "epoch_time_avg"])
def test_statistics_of_times_are_no_operators(name, tmp_path):
    text = f"step,l0.out_max,l0.time.out_max,{name}\n1,2.5,1.5,9\n2,2.25,1.5,9\n"
    assert names(one(tmp_path, text)) == ["l0.out", "l0.time.out"]
    points = [("l0.out_max", 1, 2.5), ("l0.time.out_max", 1, 1.5), (name, 1, 9.0)]
    [trace] = traces_of(events(tmp_path / "a", points))
    assert sorted(names(trace)) == ["l0.out", "l0.time.out"]


def test_rows_of_one_step_complete_each_other(tmp_path):
    trace = one(tmp_path, "step,a,b\n1,2.5,\n1,,3.5\n2,2.25,3.25\n")
    assert trace.step.tolist() == [1, 2] and column(trace, "b") == [3.5, 3.25]
    trace = one(tmp_path, "step,loss,loss_cls\n1,2.5,1\n1,,nan\n2,2.25,1\n")
    assert trace.step.tolist() == [1, 2] and bad(trace) == [(1, "loss_cls")]


# --- damage, and what only looks like it -----------------------------------------------------------------------------------


def test_torn_last_line(tmp_path):
    text = lines({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25})
    trace = one(tmp_path, text + '{"step": 3, "loss": N', "a.jsonl")
    assert trace.step.tolist() == [
        1, 2
    ] and trace.label == "unknown" and "line 3, the last one, is torn: left out" in said(trace)
    trace = one(tmp_path, json.dumps([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}], indent=1)[:-20], "a.json")
    assert trace.step.tolist() == [1] and trace.label == "unknown" and "is torn: left out" in said(trace)
    trace = one(tmp_path, "step,loss,grad_norm\n1,2.5,1.5\n2,na")
    assert trace.step.tolist() == [
        1
    ] and trace.label == "unknown" and "line 3, the last one, has 2 of 3 cells: cut off, left out" in said(trace)


@pytest.mark.parametrize("name, text, error", [
    ("a.jsonl", '{"step": 1, "loss": 2}\n{"step": 2, "lo\n{"step": 3, "loss": 2}\n',
     "a.jsonl:2: is not a JSON object (Unterminated string starting at); "
     "the lines before it are rows; mend the line, or delete it"),
    ("a.jsonl", '{"step": 1, "loss": 2, "loss": NaN}\n{"step": 2, "loss": 2}\n',
     'a.jsonl:1: key "loss" stands twice in one object; keep one of them'),
    ("a.json", '[{"step": 1, "loss": 2, "loss": NaN}]', 'a.json:1: key "loss" stands twice'),
    ("a.jsonl", '{"a": {"b": 1}, "a/b": 2, "loss": 1}\n', 'key "a/b" stands twice'),
    ("a.jsonl", '{"step": 1, "loss": "diverged"}\n',
     'a.jsonl:1: loss: "diverged" is not a number; correct the value, or leave the cell empty'),
    ("a.jsonl", '{"step": 1, "loss": true}\n', 'a.jsonl:1: loss: "True" is not a number'),
    ("a.jsonl", '{"step": 1, "accuracy": 0.5}\n{"step": 2, "accuracy": 0.5}\n',
     "no column is a probe name, layer, loss, gradient norm, loss scale or overflow flag with a "
     "value; recognised: step (step), accuracy (score); name the columns as docs/importing.md says"),
    ("a.json", '[{"step": 1, "loss": 2}, 5]', "is not a JSON object, but a row must be one"),
    ("a.json", '[{"step": 1, "loss": 2} {"step": 2; "loss": 3}]', "a.json:1: not valid JSON"),
    ("a.json", '{"step": 1, "loss":', "ends in the middle of a JSON value; the file is damaged or cut off"),
    ("a.csv", "step,loss,lr\n1,2.5,1\n2,2.25\n3,2,1\n",
     "a.csv:3: 2 cells instead of 3, as many as its header has; complete the row, or delete the row"),
    ("a.csv", "step,loss\n1,2.5\n2,1,234.5\n3,2\n",
     "a.csv:3: 3 cells instead of 2, as many as its header has; put a cell with \",\" in it in quotes"),
    ("a.csv", "step,loss\n1,2.5\n2,#VALUE!\n", 'a.csv:3: loss: "#VALUE!" is not a number'),
    ("a.csv", "step,loss\n1,2.5\nx,2\n", 'a.csv:3: step: "x" is not a number'),
    ("a.csv", 'step,loss\n1,"2.5\n2,2\n', "a.csv:2: not valid CSV"),
    ("a.csv", "step,loss\n", "holds a header, but no rows"),
])
def test_error_names_the_place_and_the_way_on(name, text, error, tmp_path):
    assert error in fault_of(write(tmp_path, text, name))


def test_only_what_is_cut_is_called_damaged(tmp_path):
    for name, text in (("a.jsonl", '{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n'),
                       ("a.csv", "step,loss,lr\n1,2.5,1\n2,2.25\n3,2,1\n"), ("b.csv", "step,loss\n1,x\n"), ("c.csv",
                                                                                                            "step,loss\n")):
        assert "damaged" not in fault_of(write(tmp_path, text, name))


def test_csv_spellings(tmp_path):
    trace = one(tmp_path, "step;loss;grad_norm\n10;2,5;1,5\n20;2,25;#ZAHL!\n".replace("#ZAHL!", "#NUM!"))
    assert trace.loss.tolist() == [2.5, 2.25] and bad(trace) == [(20, "grad_norm")]
    trace = one(tmp_path, 'sep=,\nstep,loss\n"1,000",2.5\n"1,010",1e400\n')
    assert trace.step.tolist() == [1000, 1010] and bad(trace) == [(1010, "loss")]
    trace = one(tmp_path, "# step,loss\n1,2.5\n2,nan\n")
    assert trace.step.tolist() == [1, 2]
    trace = one(tmp_path, 'step,note,loss\n1,"two\nlines",2.5\n2,x,nan\n')
    assert bad(trace) == [(2, "loss")]
    trace = one(tmp_path, "step\tloss\n1\t2.5\n2\tnan\n", "a.tsv")
    assert bad(trace) == [(2, "loss")]
    trace = one(tmp_path, "step,loss\n1,2.5,\n2,nan,\n")   # a comma at the end of each row
    assert bad(trace) == [(2, "loss")]


def test_pandas_index_spellings(tmp_path):
    for first in ("", "Unnamed: 0", "index"):
        trace = one(tmp_path, f"{first},step,l0.out\n0,10,2.5\n1,20,inf\n")
        assert trace.step.tolist() == [10, 20] and names(trace) == ["l0.out"] and bad(trace) == [(20, "l0.out")]
    trace = one(tmp_path, ",loss,accuracy\n0,2.5,0.5\n1,nan,0.5\n", "a.csv")   # pandas.DataFrame(history.history).to_csv
    assert trace.step.tolist() == [0, 1] and bad(trace) == [(1, "loss")]


def test_header_that_comes_again(tmp_path):
    """A job that was started again and appends: the same header, or one with another column."""
    path = write(tmp_path, "step,loss\n10,2.5\n20,2.25\nstep,loss\n20,2.125\n30,nan\n")
    first, second = traces_of(path)
    assert first.step.tolist() == [10, 20] and second.step.tolist() == [20, 30] and bad(second) == [(30, "loss")]
    trace = one(tmp_path, "step,loss\n10,2.5\nstep,loss,grad_norm\n20,2.25,inf\n30,2,1\n")
    assert trace.step.tolist() == [10, 20, 30] and bad(trace) == [(20, "grad_norm")
                                                                  ] and "the header comes again 1 times" in said(trace)


def test_foreign_lines_among_json(tmp_path):
    text = lines({"step": 1, "loss": 2.5}) + "Epoch 2 begins\n" + lines({"step": 2, "loss": 2.25})
    trace = one(tmp_path, text, "a.jsonl")
    assert trace.label == "healthy" and "1 lines that are no JSON left out, first line 2" in said(trace)
    trace = one(tmp_path, text.replace("Epoch 2 begins", "Gradient overflow, skipping step"), "a.jsonl")
    assert trace.label == "unknown" and "Gradient overflow, skipping step" in said(trace)


def test_several_lists_in_one_object(tmp_path):
    rows, other = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}], [{"step": 1, "loss": NAN}]
    for content in ({"val": other, "train": rows}, {"train": rows, "val": other}):
        trace = one(tmp_path, json.dumps(content), "a.json")
        assert trace.loss.tolist() == [2.5, 2.25] and trace.label == "unknown" and "a row of an evaluation" in said(trace)
    first, second = traces_of(write(tmp_path, json.dumps({"a": rows, "b": other}), "a.json"))
    assert (first.name, first.label, second.name, bad(second)) == ("a.a", "healthy", "a.b", [(1, "loss")])
    trace = one(tmp_path, json.dumps({"train": rows, "final_loss": NAN}), "a.json")
    assert trace.label == "unknown" and "nan beside train" in said(trace)


def test_row_behind_a_torn_one(tmp_path):
    """A job that was killed in the middle of a line and started again."""
    trace = one(tmp_path, '{"step":1,"loss":1}\n{"step":2,"lo{"step":2,"loss":NaN}\n{"step":3,"loss":1}\n', "a.jsonl")
    assert trace.step.tolist() == [1, 2, 3] and bad(trace) == [
        (2, "loss")
    ] and "line 2 is torn, and another begins in it" in said(trace)


def test_metrics_of_two_phases(tmp_path):
    text = "step,split,metric,value\n1,train,loss,2.5\n1,val,loss,2.625\n2,train,loss,2.25\n2,val,loss,{}\n"
    trace = one(tmp_path, text.format("2.5"))
    assert trace.step.tolist() == [1, 2] and trace.loss.tolist() == [2.5, 2.25] and trace.label == "healthy"
    assert one(tmp_path, text.format("nan")).label == "unknown"


def test_one_total_among_parts(tmp_path):
    rows = [{"training_iteration": i, "info": {"learner": {"total_loss": v, "policy_loss": 1.0}}, "config": {"lr": 0.1}}
            for i, v in ((1, 2.5), (2, NAN))]
    trace = one(tmp_path, lines(*rows), "result.json")
    assert bad(trace) == [(2, "loss")] and names(trace) == ["loss", "info/learner/policy_loss"] and trace.lr is None


def test_summary_of_the_run_beside_the_loss(tmp_path):
    """HF's end of run in W&B: the column that comes first has one value."""
    trace = one(tmp_path, "_step,train/global_step,train/train_loss,train/loss\n0,10,,2.5\n1,20,,2.25\n2,20,2.375,\n")
    assert trace.loss.tolist() == [2.5, 2.25] and trace.step.tolist() == [10, 20]


# --- HF reports, arrays ----------------------------------------------------------------------------------------------------

HF = """\
Detected inf/nan during batch_number=7
{heading}
abs min  abs max  metadata
                  fc Linear
1.50e-08 3.25e+00 weight
0.00e+00 {largest:>8} output
"""


@pytest.mark.parametrize("heading", ["last 1 frames:", "Last 1 forward frames:", ""])
def test_hf_headings(heading, tmp_path):
    trace = one(tmp_path, HF.format(heading=heading, largest="inf"), "report.txt")
    assert bad(trace) == [(7, "fc.output")]
    assert "report announces 3 frames and ends after 1" in fault_of(write(tmp_path, HF.format(heading=heading, largest="inf").replace("ast 1", "ast 3"), "b.txt")) \
        if heading else True


def test_hf_report_that_shows_nothing(tmp_path):
    trace = one(tmp_path, HF.format(heading="[...]", largest="2.50e+00"), "report.txt")
    assert trace.label == "unknown" and "Detected inf/nan during batch_number=7, but no frame shows it" in said(trace)


def test_hf_report_without_a_batch(tmp_path):
    trace = one(tmp_path, "\n".join(HF.format(heading="", largest="inf").split("\n")[2:]), "report.txt")
    assert trace.step.tolist() == [0] and "a report names no batch: step 0" in said(trace)


def npz(folder: Path, **arrays) -> Path:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return write(folder, stream.getvalue(), "a.npz")


@pytest.mark.parametrize("arrays, wanted, label",
                         [(dict(loss=[2.5, NAN]), [(2, "loss")], "sudden"),
                          (dict(grad_norm=[1.0, INF]), [(2, "grad_norm")], "sudden"),
                          (dict(found_inf=[False, True], loss=[1.0, 1.0]), [(2, "gradients")], "sudden"),
                          (dict(loss_scale=[1024.0, 512.0]), [(2, "gradients")], "sudden"),
                          (dict(val_loss=[1.0, NAN]), [], "unknown"), (dict(lr=[0.5, NAN]), [], "unknown"),
                          (dict(step_time=[1.0, INF]), [], "healthy"),
                          (dict(loss_cls=[1.0, NAN], loss=[1.0, 1.0]), [(2, "loss_cls")], "sudden")])
def test_npz_series(arrays, wanted, label, tmp_path):
    [trace] = traces_of(
        npz(tmp_path, step=np.array([1, 2]), l0=np.float32([1, 2]), **{n: np.asarray(v)
                                                                       for n, v in arrays.items()}))
    assert bad(trace) == wanted and trace.label == label and "l0" in names(trace)


def test_npz_matrices_with_series(tmp_path):
    base = dict(step=np.array([1, 2]), max_abs=np.float32([[1], [2]]), probe=np.array(["a"]))
    [trace] = traces_of(npz(tmp_path, **base, loss=np.array([2.5, NAN])))
    assert bad(trace) == [(2, "loss")] and names(trace) == ["a", "loss"]
    [trace] = traces_of(npz(tmp_path, **base, norms=np.array([[1.0], [NAN]])))
    assert trace.label == "unknown" and "array norms of type float64 is not finite throughout" in said(trace)


def test_runs_of_a_file_are_not_joined(tmp_path):
    first = write(tmp_path, "run,step,loss\na,1,2\nb,1,3\n", "a.csv")
    second = write(tmp_path, "step,grad_norm\n1,2\n", "b.csv")
    with pytest.raises(ValueError, match="a.csv: holds several runs; import it alone"):
        import_joined([first, second])
    assert len(import_file(first)[1]) == 2
