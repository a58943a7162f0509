"""What the columns, tags and keys of other tools mean: one table, used by every importer that reads free names.

meaning() reads a name word by word, so that a spelling need not be listed: "train/loss_step", "lossScale", "val loss" and
"lr-AdamW/pg1" are what they say. The tables are the words; testbench/tests/python/test_import_tables.py holds the names that
each tool writes and what they must mean.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass

# A statistic of one tensor, by the names that tools give it (lower case, words joined by "_").
STATISTICS = {
    "max_abs": ("max_abs", "maxabs", "abs_max", "absmax", "amax", "cur_amax"),
    "min_abs": ("min_abs", "minabs", "abs_min", "absmin", "amin"),
    "max": ("max", "maximum"),
    "min": ("min", "minimum"),
    "mean": ("mean", "avg"),
    "var": ("var", "variance"),
    "std": ("std", "stddev"),
    "nonfinite": ("nonfinite", "non_finite", "num_nonfinite", "nonfinite_count"),
    "nans": ("nans", "nan", "num_nan", "num_nans", "nan_count"),
    "infs": ("infs", "inf", "num_inf", "num_infs", "inf_count"),
    "zero": ("zero", "zeros", "num_zeros"),
    "elements": ("elements", "numel", "num_elements"),
}
STATISTIC_OF = {name: field for field, names in STATISTICS.items() for name in names}
MAGNITUDES = frozenset({"max_abs", "max", "min"})   # a probe has one of these

# A number of the whole run at one step: the names that stand for it whatever stands beside them.
SCALARS = {
    "loss": ("loss", "lm_loss", "train_loss", "training_loss", "total_loss", "loss_tok"),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm", "total_grad_norm", "global_norm"),
    "lr": ("lr", "learning_rate"),
    "loss_scale": ("loss_scale", "loss_scaler", "loss_scaling", "scaler_scale", "grad_scale", "cur_scale"),
    "scale_after": ("scale_after", "loss_scale_after", "new_scale", "new_loss_scale"),
    "scale_attempted": ("scale_attempted", "attempted_scale", "attempted_loss_scale"),
    # Counts since the row before: more than 0 says that a gradient was not finite, or the loss.
    "overflows": ("overflow", "overflows", "found_inf", "skipped", "skipped_iterations", "number_of_skipped_iterations"),
    "nan_losses": ("nan_iters", "nan_iterations", "number_of_nan_iterations"),
}
SCALAR_OF = {name: field for field, names in SCALARS.items() for name in names}

# The training step, best first; EPOCHS where a table counts by nothing else.
STEPS = ("global_step", "step", "train_step", "training_step", "current_steps", "current_step", "cur_step",
         "global_steps", "steps", "iteration", "iterations", "iter", "it", "n_iter", "cur_iter", "global_iter",
         "global_iteration", "train_iter", "training_iteration", "num_updates", "update", "updates", "optimizer_step",
         "opt_step", "trainer_step", "train_steps", "num_steps", "num_iters", "numiters", "batch", "batch_number",
         "batch_idx")
EPOCHS = ("epoch", "epochs", "current_epoch", "cur_epoch", "epoch_num", "train_epoch", "epoch_idx")
PROBE_NAMES = ("probe", "op", "operator", "module", "module_name", "layer_name", "tensor", "tensor_name", "name", "layer")
PROBE_PARTS = ("io", "scope", "tensor", "direction")  # columns that tell apart the tensors of one operator

# Tables of one number a row: the column with its name, and the one with the number.
METRIC_NAMES = ("metric", "metric_name", "metricname", "tag", "key", "attribute_path", "variable", "name")
METRIC_VALUES = ("value", "metric_value", "metricvalue", "float_value", "scalar_value")
# Columns that tell apart the runs, or the ranks, of one file; and the phase that a row is of.
RUNS = ("run", "run_id", "run_name", "run_uuid", "runid", "experiment", "experiment_id", "experiment_name",
        "experiment_key", "trial", "trial_id", "trial_name", "dir_name", "rank", "global_rank", "local_rank", "worker",
        "process_index", "replica")
PHASES = ("mode", "phase", "split", "stage", "subset", "kind", "event", "type")
KINDS = ("kind", "event", "type")   # may say that the row is an overflow

# Names of element types, by what tools call them.
FORMATS = {
    "FP16": ("fp16", "float16", "half", "f16"),
    "BF16": ("bf16", "bfloat16"),
    "E4M3": ("e4m3", "e4m3fn", "float8_e4m3", "float8_e4m3fn", "f8_e4m3", "fp8_e4m3"),
    "E5M2": ("e5m2", "float8_e5m2", "f8_e5m2", "fp8_e5m2"),
    "FP32": ("fp32", "float32", "float", "f32", "tf32"),
}
FORMAT_OF = {name: format for format, names in FORMATS.items() for name in names}

_COLLECTIVES = re.compile(r"(?i)all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|^distributed\.")
_OPTIMIZER = re.compile(r"(?i)exp_avg|optimi[sz]er|momentum|adam")
_GRADIENT = re.compile(r"(?i)grad|backward")
_WEIGHT = re.compile(r"(?i)(^|[._/])(weights?|bias|params?|parameters?|kernel|gamma|beta|embeddings?\.weight)(\[\d+\])?$")


@functools.lru_cache(maxsize=1 << 18)
def key(name: str) -> str:
    """A name as the tables above write it: lower case, words joined by "_"."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_") or name.strip().lower()


def format_of(name: str) -> str | None:
    """The trace's format for a tool's element type ("torch.float16", "BF16"); None when it is no format of a trace."""
    return FORMAT_OF.get(key(name.rsplit(".", 1)[-1]))


def kind_of(name: str) -> str:
    """The kind that a tensor's name suggests; an activation when it suggests none."""
    if _COLLECTIVES.search(name):
        return "collective"
    if _OPTIMIZER.search(name):
        return "optimizer"
    if _GRADIENT.search(name):
        return "gradient"
    if _WEIGHT.search(name):
        return "weight"
    return "activation"


def split_statistic(name: str) -> tuple[str, str] | None:
    """("layer0.output", "max") of "layer0.output_max", "layer0.output/max", "layer0.output.max": the longest ending that
    names a statistic and leaves a name; None when there is none."""
    for separator in re.finditer(r"[_./ ]", name):
        probe, statistic = name[:separator.start()], STATISTIC_OF.get(key(name[separator.end():]))
        if probe.strip("_./ ") and statistic:
            return probe, statistic
    return None


# --- the meaning of a metric's name ----------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Meaning:
    """What a column, tag or key holds.

    what        "step", "epoch", "loss", "grad_norm", "norm", "lr", "loss_scale", "scale_after", "scale_attempted",
                "overflows", "nan_losses", "finite" (a flag that is 0 where something is not), "suspect" (a count of what is not
                finite that belongs to nothing known), "evaluation", "extreme of a bucket", "counted by something else", or one
                of NO_OPERATOR; None: the name says nothing
    is_whole    of a loss or gradient norm: it is the one of the whole model, not of a part
    order       among several such, the lowest is taken: 0 says it directly, 1 in more words, 10 and more is a mean over an
                epoch or other summary
    is_running  a count since the start of the run, not since the row before
    """
    what: str | None
    is_whole: bool = False
    order: int = 0
    is_running: bool = False


# Neither an operator nor a number that training computes. What is not finite in one of BLAND is no incident.
BLAND = ("time", "counter", "throughput", "memory", "setting", "best value so far")
NO_OPERATOR = (*BLAND, "score")

MODULE_PATH = re.compile(r"[A-Za-z_]\.[A-Za-z0-9_]|\.\d+\.")   # "layers.0.mlp"

_EVALUATION = {"eval", "evals", "evaluation", "evaluate", "val", "valid", "validation", "test", "testing", "dev",
    "heldout", "predict", "prediction"}
_TRAINING = {"train", "training", "trn", "trainer"}
# Words that leave a loss, or a gradient norm, that of the whole model.
_NEUTRAL = _TRAINING | {"total", "lm", "reduced", "global", "overall", "sum", "tok", "token", "per", "all", "raw", "main",
    "final", "model", "combined", "mini", "batch", "minibatch", "step", "iter", "iteration", "current", "cur", "last",
    "metrics", "metric", "log", "logs", "scalars", "scalar", "samples", "optim", "losses", "stats"}
_PLAIN = _TRAINING | {"step", "iter", "iteration", "batch", "minibatch", "metrics", "metric", "log", "logs", "scalars",
    "scalar"}
_NORM_NEUTRAL = _NEUTRAL | {"l2", "unscaled", "before", "pre", "unclipped", "clip", "clipping", "optimizer", "grads"}
_SUMMARY = {"epoch", "avg", "average", "mean", "running", "smooth", "smoothed", "ema", "moving", "median", "rolling",
    "max", "min", "std", "var", "accumulated", "cumulative", "window"}
_BEST = {"best", "lowest", "highest"}
_LOSSES = {"nll", "xent", "crossentropy"}
_NO_LOSS = {"lossless", "gloss", "floss", "lossy"}
_GRADIENTS = {"grad", "grads", "gradient", "gradients", "gnorm", "gradnorm"}
_NORMS = {"norm", "norms", "gnorm", "gradnorm"}
_SETTING_NORMS = {"max_grad_norm", "max_norm", "clip_norm", "grad_clip_norm", "clip_grad_norm", "max_gradient_norm",
    "gradient_clip_norm", "gradient_clip_val", "grad_clip", "clip_grad", "clip_value", "clip_threshold"}
_SCALED = {"loss", "grad", "scaler", "gradscaler", "amp", "dynamic", "cur", "current", "new", "attempted", "fp16"}
_SETTINGS = {"weight", "weights", "coef", "coefficient", "coeff", "lambda", "factor", "threshold", "target", "window",
    "init", "initial", "growth", "interval", "backoff", "hysteresis", "mult", "multiplier", "decay", "warmup", "eps",
    "since", "tracker"}
_UPDATES = {"step", "steps", "iter", "iters", "iteration", "iterations", "update", "updates", "batch", "batches",
    "optimizer", "opt", "grad", "grads", "gradient", "gradients"}
_SKIPS = {"skipped", "skip", "skips"}
_NOT_FINITE = {"nan", "nans", "inf", "infs", "naninf", "nonfinite", "infnan", "infinite"}
_COUNTING = _NEUTRAL | _GRADIENTS | _UPDATES | {"num", "number", "count", "counts", "of", "is", "has", "any", "detected",
    "n", "or", "and", "found", "check", "flag", "params", "contains", "non", "finite", "cumulative", "cum", "isfinite",
    "are", "in"}
_RUNNING = {"total", "cumulative", "cum", "accumulated", "sofar"}
_TIMES = {"time", "times", "timing", "elapsed", "eta", "runtime", "duration", "timestamp", "date", "datetime",
    "remaining", "latency", "wall", "clock", "seconds", "secs", "sec", "ms", "msec", "minutes", "hours", "walltime"}
_UNITS = {"s", "in", "ms", "sec", "secs", "seconds", "us", "h", "hours", "min", "minutes", "process"}
_QUANTISED = {"fp8", "mxfp8", "nvfp4", "fp4", "int8", "e4m3", "e5m2"}
_RATES = {"throughput", "tflops", "tflop", "mfu", "hfu", "wps", "ups", "tps", "fps", "qps", "flops", "speed", "bandwidth",
    "tgs"}
_RATE = re.compile(r"(?i)/\s*s(ec(ond)?)?\b|\bs/it|per[_ ]?s(ec(ond)?)?(\b|_)")
_MEMORY = {"memory", "mem", "gib", "mib", "gb", "mb", "vram", "ram", "reserved", "allocated", "utilization", "util",
    "power", "temperature", "watts"}
_COUNTS = {"samples", "tokens", "examples", "batches", "images", "sequences", "params", "parameters", "flos", "epochs",
    "steps", "iterations", "iters", "size", "count", "seed", "rank", "ranks", "workers", "id", "index", "idx",
    "percentage", "percent", "progress", "version", "line", "seq", "order", "gbs", "retries", "ooms", "patience"}
_SCORES = {"acc", "accuracy", "ppl", "perplexity", "f1", "precision", "recall", "map", "map50", "ap", "ar", "ap50",
    "ap75", "iou", "miou", "dice", "psnr", "ssim", "bleu", "rouge", "rouge1", "rougel", "wer", "cer", "auc", "auroc",
    "top1", "top5", "em", "reward", "rewards", "score", "scores", "ratio", "fraction", "frac", "mae", "mse", "rmse", "r2",
    "fid", "bpb", "bpc", "margin", "margins", "correct", "fitness", "f", "error"}
_NAMESPACES = {"time": "time", "times": "time", "timer": "time", "timers": "time", "timing": "time", "perf": "throughput",
               "performance": "throughput", "throughput": "throughput", "system": "memory", "hardware": "memory",
               "memory": "memory", "config": "setting", "args": "setting", "hparams": "setting", "hyperparameters": "setting"}


def words(name: str) -> list[str]:
    """The words of a name in lower case: "train/lossScale (avg)" is train, loss, scale, avg."""
    text = re.sub(r"(?<=[a-z]{2})(?=[A-Z][a-z])", "_", name)   # lossScale; but not mAP
    found = re.findall(r"[a-z]+\d*|\d+", text.lower())
    split = (re.fullmatch(r"(train|val|valid|test|eval|total|mean|avg|batch|epoch|step)(loss)", word) for word in found)
    return [part for word, parts in zip(found, split) for part in (parts.groups() if parts else (word,))]


@functools.lru_cache(maxsize=1 << 18)
def is_step(name: str) -> bool:
    """Whether a column of this name counts training steps: of "a/b" the last part counts, of "global_step/max_steps" the
    first."""
    first, _, rest = name.partition("/")
    if key(first) in STEPS and re.match(r"(?i)\s*(max|total|num|n)[_ ]", rest):
        return True
    before, _, last = name.rpartition("/")
    return key(name) in STEPS or key(last) in STEPS and last.isidentifier() and not before[:1].isdigit() and (
        not any(_is_loss(word) or word in _TIMES and not last.endswith("s") for word in words(before)))


def is_evaluation(text: str) -> bool:
    """Whether a value of a column of PHASES, or a folder, says evaluation."""
    found = set(words(text))
    return bool(found & _EVALUATION) and not found & _TRAINING


def statistic_of(name: str) -> tuple[str, str] | None:
    """As split_statistic(), where the rest can be a tensor: the largest step time is no statistic of one."""
    parts = split_statistic(name)
    if parts is None or meaning(name).what not in (None, "suspect") and not MODULE_PATH.search(parts[0]):
        return None
    return parts if may_be_operator(parts[0]) else None


def may_be_operator(name: str) -> bool:
    """Whether a column or tag can be a tensor of the model. A module path can, whatever its words are."""
    return meaning(name).what in (None, "norm", "loss", "grad_norm") or bool(MODULE_PATH.search(name))


@functools.lru_cache(maxsize=1 << 18)
def meaning(name: str) -> Meaning:
    """What the name of a metric says."""
    if name.endswith(("__MIN", "__MAX")):   # of the steps that W&B draws as one point
        base = meaning(name[:-len("__MIN")])
        return base if base.what in BLAND else Meaning("extreme of a bucket")
    every = words(name)
    if "vs" in every[1:-1]:   # "lm loss vs samples" of Megatron: the axis is no step
        base = meaning(re.split(r"(?i)[^a-z]vs[^a-z]", name)[0])
        return base if base.what in (*BLAND, "evaluation") else Meaning("counted by something else")
    found = set(every)
    parts = [part for part in (words(part) for part in name.split("/")) if part] or [[]]
    last = parts[-1]
    if is_step(name):
        return Meaning("step")
    if key(name) in EPOCHS or key(name.rsplit("/", 1)[-1]) in EPOCHS:
        return Meaning("epoch")
    exact = SCALAR_OF.get(key(name))
    flag = _flag(name, every)
    if exact in ("overflows", "nan_losses", "loss_scale", "scale_after", "scale_attempted"):
        return Meaning(exact)
    if flag is not None:
        return flag
    if bland := _speed_or_time(name, every, parts):
        return Meaning(bland)
    if _BEST & found:
        return Meaning("best value so far")
    if _evaluates(every, parts):
        return Meaning("evaluation")
    if found & {"scale", "scaler", "scaling"} and found & _SCALED:
        if found & (_SETTINGS | {"min", "max"}):
            return Meaning("setting")
        what = "scale_attempted" if "attempted" in found else "scale_after" if found & {"after", "new"} else "loss_scale"
        return Meaning(what, order=len(every))
    if found & {"lr", "lrs"} or {"learning", "rate"} <= found or any(re.fullmatch(r"lr\d+", word) for word in every):
        return Meaning("setting" if found & (_SETTINGS | {"scale", "min", "max"}) else "lr")
    if any(_is_loss(word) for word in every) or {"cross", "entropy"} <= found:
        return _loss(parts)
    if key(name.rsplit("/", 1)[-1]) in _SETTING_NORMS:
        return Meaning("setting")
    if norm := _norm(name, parts):
        return norm
    if set(last) & _SCORES or len(parts) > 1 and set(parts[0]) & _SCORES - {"f", "map", "em", "ap", "ar"}:
        return Meaning("score")
    if set(last) & _MEMORY:
        return Meaning("memory")
    while len(last) > 1 and last[-1] in _SUMMARY:
        last = last[:-1]
    if last and (last[-1] in _COUNTS or last[0] in {"num", "n", "total", "consumed"} and set(last) & _COUNTS):
        return Meaning("counter")
    if last and last[-1] in _SETTINGS:
        return Meaning("setting")
    return Meaning(None)


def _evaluates(every: list[str], parts: list[list[str]]) -> bool:
    """Whether the name says evaluation: anywhere in the name of a metric, else at its beginning or end."""
    for i, word in enumerate(every):
        before = every[i - 1] if i else ""
        if word in _EVALUATION and not (word in ("val", "dev") and before in {"max", "min", "abs", "mean", "avg", "std"}):
            is_metric = any(_is_loss(w) or w in _SCORES or w in _NORMS for w in every)
            if is_metric or i == 0 or i == len(every) - 1 or any(part[0] == word for part in parts):
                return True
    return False


def _is_loss(word: str) -> bool:
    return word not in _NO_LOSS and (word in _LOSSES or bool(re.fullmatch(r".*loss(es)?|loss\d+", word)))


def _loss(parts: list[list[str]]) -> Meaning:
    """A loss: the whole model's, or that of a part ("loss_cls", "generator/loss")."""
    named = next((part for part in reversed(parts) if any(map(_is_loss, part))), parts[-1])
    every = {word for part in parts for word in part}
    rest = {word for part in parts for word in part if word != "loss"}
    if rest & _SETTINGS:
        return Meaning("setting")
    if rest & {"tokens", "count", "num", "n"}:
        return Meaning("counter")
    is_summary = bool(every & _SUMMARY)
    if parts[-1] is not named:   # "loss/total", "loss_metrics/global_avg_loss"
        rest = {word for part in parts for word in part if not _is_loss(word)}
    left = {word for word in rest if word not in _NEUTRAL and word not in _SUMMARY}
    order = 0 if not rest - _PLAIN - _SUMMARY else 1
    if every & {"max", "min", "std", "var", "median"}:
        order += 1
    return Meaning("loss", is_whole=not left, order=order + 10 * is_summary)


def _norm(name: str, parts: list[list[str]]) -> Meaning | None:
    """A norm: of all gradients, or a further one ("param_norm", "grad_norm/layer0.weight")."""
    tails = _SUMMARY | {"before", "after", "clip", "clipping", "clipped", "unclipped", "total", "step", "raw", "pre", "post"}
    for part in parts:
        at = max((i for i, word in enumerate(part) if word in _NORMS), default=None)
        if at is None or not all(word in tails or word.isdigit() for word in part[at + 1:]):
            continue
        every = [word for p in parts for word in p]
        is_gradient = bool(set(every) & _GRADIENTS) or key(name.rsplit("/", 1)[-1]) in ("global_norm", "total_norm")
        rest = {word for word in every if not word.isdigit()} - _GRADIENTS - _NORMS - _NORM_NEUTRAL
        if is_gradient and not rest:
            exact = SCALAR_OF.get(key(name.rsplit("/", 1)[-1])) == "grad_norm"
            return Meaning("grad_norm", is_whole=True, order=0 if exact else len(every))
        if is_gradient and not rest - _SUMMARY:
            return Meaning("grad_norm", is_whole=True, order=10 + len(every))
        return Meaning("norm")
    return None


def _flag(name: str, every: list[str]) -> Meaning | None:
    """A flag or count of what was not finite: an overflow, a skipped step, NaNs that were found."""
    found = set(every)
    is_running = bool(found & _RUNNING)
    told = found & {"overflow", "overflows", "overflowed", "foundinf"} or {"found", "inf"} <= found or (
        found & _SKIPS and (found & _UPDATES or not found - _SKIPS - (_COUNTING - {"samples"})))
    bad = found & _NOT_FINITE or {"non", "finite"} <= found
    if (told or bad) and found & (_SETTINGS | {"max"}):
        return Meaning("setting") if told or split_statistic(name) is None else None
    if (told or bad) and found & _QUANTISED:
        return Meaning("suspect")
    if told:
        return Meaning("overflows", is_running=is_running)
    if bad:
        if any(map(_is_loss, every)) or found & {"iterations", "iters"}:
            return Meaning("nan_losses", is_running=is_running)
        rest = found - _NOT_FINITE - _COUNTING
        return Meaning("suspect" if rest else "overflows", is_running=is_running)
    if found & {"finite", "isfinite"} and not found - _COUNTING - {"loss"}:
        return Meaning("finite")
    return Meaning("suspect") if found & {"skipped"} else None


def _speed_or_time(name: str, every: list[str], parts: list[list[str]]) -> str | None:
    found = set(every)
    bare = list(parts[-1])
    while len(bare) > 1 and (bare[-1] in _UNITS or bare[-1] in _SUMMARY) and set(bare[:-1]) & _TIMES:
        bare.pop()
    if found & _RATES or _RATE.search(name) or {"per", "second"} <= found or {"per", "sec"} <= found:
        return "throughput"
    if bare and bare[-1] in _TIMES or found & {"elapsed", "eta", "timestamp", "runtime", "walltime"}:
        return "time"
    if len(parts) > 1 and parts[0][0] in _NAMESPACES and set(parts[0][1:]) <= {"s", "ms", "sec", "metrics"}:   # "timing_s/step"
        return _NAMESPACES[parts[0][0]]
    return None
