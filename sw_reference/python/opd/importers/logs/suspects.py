"""Lines that no reader knows and that look like a metric or an overflow: a run with such is not called healthy.

Not such: settings (argument dumps, configurations, command lines), evaluations whose numbers are finite, names of files,
source code in tracebacks, and negations ("no overflow").
"""
from __future__ import annotations

import re

from opd.importers.logs.metrics import EVALUATION, field_of, find, nonfinite_names

def _any(*patterns: str) -> re.Pattern:
    return re.compile("|".join(patterns))


# Argument dumps, configurations, command lines.
_DUMPS = _any(
    r"^Config param ", r"\.{4,}", r"^\s*\"[\w./ -]+\":\s", r"^\s*-?\s*\w+: &",
    r"\b(?:Namespace|\w*Arguments|\w*Args|\w*Config|\w*Configs?)\s*\(",
    r"(?i:\b(?:args|arguments|hparams|hyper-?parameters|config(?:uration)?|settings|options|cfg)\b.{0,20}[:={(])",
    r"^\+", r"^\$ ", r"(?:^|\s)--?[a-z][\w-]+(?:[= ]\S+)?\s+--", r"\bpython3? \S+\.py\b", r"\btorchrun ", r"\bdeepspeed --")
# "loss_scale: 0" and nothing else on the line.
_ALONE = re.compile(r"^[-*\s]*[\"']?([\w./][\w./-]*)[\"']?\s*[:=]\s*([^\s,]+),?$")
_CODE = _any(
    r"^(?:File \"|if |elif |else:|raise |assert |return |def |class |import |from \w[\w.]* import|print\(|logger\.)",
    r"^(?:for |while |with |try:|except|@|>>> |\w[\w.]* = [\w.]+\()", r"^\s*\^+\s*$")
_PATH = re.compile(r"\S*/\S*|\S+\.(?:ckpt|pt|pth|bin|safetensors|png|json|tar|h5)\b|https?://\S+")
_SAVING = re.compile(
    r"(?i)\b(?:sav(?:ing|ed)|load(?:ing|ed)|writ(?:ing|ten)|remov(?:ing|ed)|delet(?:ing|ed)|upload\w*|restor\w+) ")
_NEGATED = re.compile("(?i)" + "|".join((
    r"\bno (?:grad(?:ient)? )?overflow", r"\bwithout overflow", r"overflow[\w ]{0,12}[:=]?\s*(?:false|0\b|none|no\b)",
    r"(?:stack|integer|buffer) ?overflow", r"overflow(?:ing)?[_ ](?:tokens|text|to|window|buffer|page|style)",
    r"\bnot? (?:nan|inf)\b", r"\bno (?:nan|inf|non-?finite)", r"nans? *[:=] *0\b", r"infs? *[:=] *0\b",
    r"check\w*[_ ](?:for[_ ])?(?:nan|inf|overflow)", r"(?:nan|inf)\w{0,40}[ _](?:check|filter|guard|policy|detect(?:ion|or))\b",
    r"(?:nan|inf|overflow)\w{0,40}[ _:=]*(?:count|iter\w*)?[ :=]+0\b(?!\.)",
    r"\b0 (?:steps?|batch(?:es)?|iterations?|updates?) (?:were |was )?skipped", r"skipped(?:[ _]\w+)?[:=] ?0\b",
    r"(?:set|use|using|enable[ds]?|with)\b.{0,40}\bskip(?:ping)?\b")))
_OVERFLOW = re.compile("(?i)" + "|".join((
    r"\boverflow(?:ed|s|ing)?\b", r"\bfound[_ ]inf", r"\bnon-?finite\b", r"\bnot finite\b", r"\binfinite (?:loss|grad|value)",
    r"\b(?:skip(?:s|ped|ping)?)(?: this| the| an?| optimizer| training| update| weight| gradient)*"
    r" (?:step|batch|iteration|update|optimizer)s?\b",
    r"\b(?:step|batch|iteration|update)(?:e?s)? (?:was |is |were |are )?skipped\b",
    r"\bminimum loss scale", r"\bloss scale\b.{0,30}\b(?:reduc|decreas|lower|halv|too small|minimum|underflow)",
    r"\b(?:reduc|decreas|lower|halv)\w* (?:the )?loss[ _]scale",
    r"\b(?:loss|model|training|run)\b.{0,20}\bdiverg(?:ed|ing|es)\b", r"\binvalid (?:loss|gradient)",
    r"\bexplod(?:ed|ing)\b.{0,30}\b(?:loss|grad)", r"\b(?:loss|grad\w*)\b.{0,30}\bexplod(?:ed|ing)\b")))
_NAN = re.compile(
    r"(?<![\w./-])[-+]?(?:nan|NaN|NAN|Nan)s?(?![\w./-])|\b(?:Inf|INF|inf|infinity|Infinity)s?/(?:nan|NaN|NAN)s?")
# What a line with a NaN is about, unless it is a table of somebody's data.
_ABOUT = re.compile("(?i)" + "|".join((
    "loss", "grad", "norm", "scale", "logit", "weight", "param", "activation", "tensor", "output", "value", "step", "iter",
    "epoch", "train", "detect", "found", "encounter", "contain", "return", "warn", "error", "assert", "abort", "terminat", "stop",
    "is nan", "overflow", "inf")))


def is_setting(text: str) -> bool:
    """Whether a line states a setting: an argument dump, a configuration, a command."""
    alone = _ALONE.match(text.strip())
    if alone and field_of(alone[1]) in ("loss_scale", "lr", None):
        return True
    return bool(_DUMPS.search(text)) and not re.match(r"(?i)\W*(?:step|iter|epoch)", text)


def is_code(text: str) -> bool:
    """Whether a line is source code, as tracebacks show it."""
    return bool(_CODE.search(text.strip()))


def without_paths(text: str) -> str:
    """A line about a file without its name, which may hold a metric; others without addresses."""
    return _PATH.sub("", text) if _SAVING.search(text) else re.sub(r"https?://\S+", "", text)


def looks_like_one(text: str) -> bool:
    """Whether a line that no reader knows looks like a metric of a step or like an overflow."""
    text = text.strip()
    bad = nonfinite_names(text)
    if is_setting(text):
        alone = _ALONE.match(text)
        return bool(alone and bad and field_of(alone[1]) in ("loss", "grad_norm"))
    if is_code(text):
        return False
    if re.search(r"(?i)--[a-z]", text):
        text = re.sub(r"(?<!\S)--?[A-Za-z][\w-]*(?:[= ](?!-)\S+)?", "", text)
    text = without_paths(text)
    if not _NEGATED.search(text):
        if _OVERFLOW.search(text) or _NAN.search(text) and _ABOUT.search(text):
            return True
    if bad:
        return True
    for metric in find(text):
        field = field_of(metric.name)
        if field == "loss_scale" and metric.is_finite and re.search(r"[{,]\s*[\"']loss_scale[\"']:", text):
            continue   # a configuration in one line
        if field in ("loss", "grad_norm", "loss_scale"):
            if not metric.is_finite:
                return True
            if not EVALUATION.search(re.sub(r"[_/.-]", " ", text[:metric.start])):
                return True
    return False
