"""What the columns, tags and keys of other tools mean: one table, used by every importer that reads free names."""
from __future__ import annotations

import re

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

# A number of the whole run at one step.
SCALARS = {
    "loss": ("loss", "lm_loss", "train_loss", "training_loss", "loss_tok"),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm", "total_grad_norm", "global_norm"),
    "lr": ("lr", "learning_rate"),
    "loss_scale": ("loss_scale", "loss_scaler", "scaler_scale", "grad_scale", "cur_scale"),
    "scale_after": ("scale_after", "loss_scale_after", "new_scale", "new_loss_scale"),
    "scale_attempted": ("scale_attempted", "attempted_scale", "attempted_loss_scale"),
    # Counts since the row before: more than 0 says that a gradient was not finite, or the loss.
    "overflows": ("overflow", "overflows", "found_inf", "skipped", "skipped_iterations", "number_of_skipped_iterations"),
    "nan_losses": ("nan_iters", "nan_iterations", "number_of_nan_iterations"),
}
SCALAR_OF = {name: field for field, names in SCALARS.items() for name in names}

# The training step, best first.
STEPS = ("step", "global_step", "train_step", "training_step", "_step", "iteration", "iter", "num_updates", "update",
         "batch", "batch_number", "batch_idx")
PROBE_NAMES = ("probe", "op", "operator", "module", "module_name", "layer_name", "tensor", "tensor_name", "name",
               "layer")
PROBE_PARTS = ("io", "scope", "tensor", "direction")  # columns that tell apart the tensors of one operator

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
