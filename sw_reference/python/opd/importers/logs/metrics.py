"""Numbers and names of metrics in printed text, as every tool's reader needs them."""
from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache

from opd.importers.names import SCALAR_OF, key
from opd.importers.source import whole_or_real

# A number as Python, C, JavaScript and MSVC print it: 1.5e-3, 65,536, inf, NAN, -nan(ind), 1.#QNAN.
REAL = (r"(?:[-+]?(?:1\.\#(?:INF|QNAN|SNAN|IND)\w*|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
        r"|(?i:infinity|inf|nan)(?:\(\w+\))?)(?![\w#\[]|\.[\d\[]))")
# What may stand around it: quotes, brackets, tensor(2.5, device='cuda:0'), np.float32(2.5).
_OPEN = r"[\"'\[(\{]*(?:(?i:tensor|np\.float\d+|float|array|item)\(\[*(?:shape=\[[^\]]*\],\s*dtype=\w+,\s*value=\s*)?)?"
VALUE = rf"{_OPEN}({REAL})"
MAX_DIGITS = 15


def number(text: str) -> float:
    """The value of a REAL."""
    text = text.strip().replace(",", "").lower()
    if "#" in text:
        return math.copysign(math.inf, -1 if text[0] == "-" else 1) if "inf" in text else math.nan
    return float(re.sub(r"\(\w+\)$", "", text))


def whole(text: str | None) -> int | None:
    """A whole number that may be a step; None for none, and for more digits than a step has."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None


def loose_json(text: str):
    """The value of JSON that a job printed: NaN and Infinity as other writers than Python's spell them, too. Raises ValueError."""
    try:
        return json.loads(re.sub(r"(?i)(?<=[\s:,\[])([-+]?)(nan|inf(?:inity)?)(?=\s*[,}\]])", _json_constant, text),
                          parse_int=whole_or_real)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _json_constant(found: re.Match) -> str:
    if found[2].lower() == "nan":
        return "NaN"
    return "-Infinity" if found[1] == "-" else "Infinity"


@dataclass(frozen=True)
class Metric:
    """A name with its number, as they stand in a text."""
    name: str      # as it stands there
    value: float
    start: int     # of the number in the text

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)


# Words that make a number one of an evaluation, and names that are settings or times, never metrics of a step.
EVALUATION = re.compile(r"(?i)(?:^|[\W_])(?:val|valid|validation|eval|evaluation|test|testing|dev|best|lowest|min|minimum)"
                        r"(?=[\W_]|$)")
SETTING = re.compile(r"(?i)(?:^|[\W_])(?:max|clip|clipping|coeff?|coefficient|weight|weights|factor|type|fn|function|window|ratio"
                     r"|threshold|alpha|beta|lambda|init|initial|static|dynamic|args|hysteresis|min|tolerance|patience|id|power"
                     r"|interval|curve|multiplier|decay|time|num|count|backend|reduction)(?=[\W_]|$)")
# The parts of a name have an end: without one, a line of one long word takes the square of its length.
_LOSS = r"[\w/.@-]{0,160}loss(?:es)?[\w/.@-]{0,160}"
_NORM = r"[\w/.@-]{0,160}(?:grad(?:ient)?s?[_ ./-]?norm|gnorm|global[_ ]norm)[\w/.@-]{0,160}"
_SCALE = r"[\w/.@-]{0,160}(?:loss|grad)[_ -]?scal(?:e|er|ing)(?![\w-]{0,160}[_-](?:window|factor|type|args|power))[\w/.@-]{0,160}"
_RATE = r"(?:[\w/.-]{0,160}[/._-])?(?:lr|learning[_ ]rate|lrate)"
_FIELDS = (("loss_scale", re.compile(rf"(?i)^(?:{_SCALE})$")), ("grad_norm", re.compile(rf"(?i)^(?:{_NORM}|norm)$")),
           ("lr", re.compile(rf"(?i)^{_RATE}(?:[-_/]\w*)?$")), ("loss", re.compile(rf"(?i)^(?:{_LOSS})$")))
_AFTER = r"(?:\s+(?:train(?:ing)?|total|avg|average|mean|value))?"
_SEPARATOR = r"[\"']?\s*(?:\([^()]{0,24}\)\s*)?(?::|=|\bis\b|\||\s)\s*"
_FIND = re.compile(rf"(?i)(?<![\w/.@-])[\"']?(?P<name>(?:(?:[a-z]+[ _-]){{0,2}}?)(?:{_SCALE}|{_NORM}|{_LOSS}|{_RATE})){_AFTER}"
                   rf"{_SEPARATOR}{_OPEN}(?P<value>{REAL})")
_BARE_NORM = re.compile(rf"(?i)(?<![\w/.-])(?<!\w\s)norm{_SEPARATOR}{_OPEN}(?P<value>{REAL})")

# What a run calls its own loss, best first; other losses are parts of it.
MAIN_LOSSES = ("loss", "train_loss_step", "train_step_loss", "train_loss", "training_loss", "lm_loss", "total_loss",
               "loss_total", "train_total_loss", "total_train_loss", "loss_train", "reduced_train_loss", "loss_tok",
               "step_loss", "avg_loss", "average_loss", "mean_loss", "running_loss", "batch_loss", "current_loss",
               "train_avg_loss", "avg_train_loss", "average_train_loss", "average_training_loss", "mean_train_loss",
               "loss_step", "loss_avg", "loss_mean", "train_loss_epoch", "epoch_loss", "global_avg_loss", "nll_loss",
               "mlm_loss", "masked_lm_loss")


@lru_cache(1 << 12)
def field_of(name: str) -> str | None:
    """loss, grad_norm, lr or loss_scale: what a name means; None for anything else."""
    name = name.strip().strip("\"'")
    if key(name) in SCALAR_OF:
        return SCALAR_OF[key(name)]
    if re.search(r"\.(?:py|cc|cpp|cu|h)$", name) or SETTING.search(
        name.lower().replace("-", "_").replace("_", " ").replace("/", " ")):
        return None
    joined = re.sub(r"\s+", "_", name)
    return next((field for field, pattern in _FIELDS if pattern.match(joined)), None)


def find(text: str) -> list[Metric]:
    """Losses, gradient norms, loss scales and learning rates with their numbers, in order, evaluations and settings too."""
    found = [Metric(m["name"].strip(), number(m["value"]), m.start("value")) for m in _FIND.finditer(text)]
    if any(field_of(metric.name) == "loss" for metric in found):
        found += [Metric("norm", number(m["value"]), m.start("value")) for m in _BARE_NORM.finditer(text)]
    return found


def choose(metrics: list[Metric]) -> tuple[dict[str, float], str | None]:
    """The values of a row: of several losses the run's own; and the name of the loss where none is called so (the largest, or
    the first that is not finite)."""
    values: dict[str, float] = {}
    losses = []
    for metric in metrics:
        field = field_of(metric.name)
        if field == "loss":
            losses.append(metric)
        elif field == "lr" and key(metric.name) in ("lr", "learning_rate"):
            values[field] = metric.value
        elif field is not None:
            values.setdefault(field, metric.value)
    if not losses:
        return values, None
    named = {key(metric.name.rsplit("/", 1)[-1] if key(metric.name) not in MAIN_LOSSES else metric.name): metric
             for metric in reversed(losses)}
    main = next((named[name] for name in MAIN_LOSSES if name in named), None)
    if main is not None:
        return {"loss": main.value, **values}, None
    bad = [metric for metric in losses if not metric.is_finite]
    part = bad[0] if bad else max(losses, key=lambda metric: abs(metric.value))
    return {"loss": part.value, **values}, part.name


_NONFINITE = re.compile(rf"[:=]\s*{_OPEN}[-+]?(?i:inf(?:inity)?|nan|1\.\#\w+)(?!\w)")
_NAME = re.compile(r"([\w/.@ -]{0,40})[\"']?\s*$")
# Names whose Inf or NaN tells nothing about the run's numbers: e^loss, divisions by a time, and what was not measured.
_HARMLESS = re.compile(r"(?i)ppl|perplexity|perp|exp|time|eta|speed|tps|tflop|mfu|throughput|per_?sec|/s\b|it/s|memory|mem\b|bpb"
                       r"|max_grad_norm|clip|best")


def nonfinite_names(text: str) -> list[str]:
    """The names that a text gives a value of Inf or NaN, but for those that say nothing about the run's numbers."""
    if not _NONFINITE.search(text):
        return []
    names = [_NAME.search(text[max(m.start() - 64, 0):m.start()])[1].strip() for m in _NONFINITE.finditer(text)]
    return [name for name in names if not _HARMLESS.search(name)]
