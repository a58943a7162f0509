"""What the statistics of a trace say of the time before an incident: growth, learning rates, roles of probes."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opd.localise.advice import HEAD, LINEAR, LOGITS, NORM, OTHER, RESIDUAL, SOFTMAX, SQUARES
from opd.trace import Trace

WINDOW = 512        # samples before an incident that a growth is looked for in
LEAST_GROWTH = 1.0  # bits: what rises by less has not grown
FINAL = 16          # samples that the last rate is of
RATE_STEP = 1.5     # factor by which a learning rate has to rise between two steps to be a jump
OUT_OF_LINE = 4.0   # and its rise as many times those of the steps before: a warm-up rises too


@dataclass(frozen=True)
class Growth:
    """A magnitude that was flat and then rose: the hinge (a level, then a line) that fits log2 of the largest magnitudes best.

    since: the step at which it leaves its level; level: log2 of that; bits: it has risen since; rate: bits a step of the line, final: of
    the last FINAL samples; from_start: no level before it is in the window."""
    since: int
    level: float
    bits: float
    rate: float
    final: float
    from_start: bool

    @property
    def doubling(self) -> float:
        """Steps in which it doubles."""
        return 1 / self.rate


def growth_of(step: np.ndarray, magnitude: np.ndarray) -> Growth | None:
    """Of one operator up to the sample before its incident: steps [S], largest finite magnitudes [S]. None where it has not grown."""
    positive = magnitude > 0
    x, y = step[positive][-WINDOW:].astype(np.float64), np.log2(magnitude[positive][-WINDOW:].astype(np.float64))
    if len(x) < 5:
        return None
    knots = np.arange(len(x) - 2)
    ramp = np.maximum(0.0, x[None] - x[knots][:, None])  # [knots, samples]
    centred, rise = ramp - ramp.mean(axis=1, keepdims=True), y - y.mean()
    spread = (centred**2).sum(axis=1)
    slope = centred @ rise / spread
    error = (rise**2).sum() - slope**2 * spread
    at = int(error.argmin())
    bits = float(slope[at] * (x[-1] - x[at]))
    noise = float(np.sqrt(max(error[at], 0.0) / len(x)))
    if slope[at] <= 0 or bits < max(LEAST_GROWTH, 2 * noise):
        return None
    last = slice(-min(FINAL, len(x)), None)
    final = float(np.polyfit(x[last] - x[-1], y[last], 1)[0])
    level = float(y.mean() - slope[at] * ramp[at].mean())
    return Growth(int(x[at]), level, bits, float(slope[at]), final, at == 0)


# --- learning rates --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Rates:
    """Learning rate of one parameter group at every step of the trace. first: name of its first parameter, "" where nobody noted it."""
    group: int
    first: str
    parameters: int | None
    lr: np.ndarray  # float64 [S]; NaN where it was not known yet


@dataclass(frozen=True)
class RateJump:
    """A learning rate that rose by RATE_STEP or more between two steps, out of line with the rises before."""
    step: int
    group: int
    first: str
    before: float
    after: float


def rates_of(trace: Trace) -> list[Rates]:
    """Of every parameter group that the trace knows: those of its manifest (`lr_groups`), else the one of its series."""
    groups = trace.manifest.get("lr_groups")
    if _are_groups(groups):
        found = []
        for number, group in enumerate(groups):
            lr = np.full(len(trace.step), np.nan)
            for step, rate in group["lr"]:
                lr[np.searchsorted(trace.step, step):] = float(rate)
            found.append(Rates(number, group.get("first") or "", group.get("parameters"), lr))
        if found:
            return found
    return [] if trace.lr is None else [Rates(0, "", None, trace.lr.astype(np.float64))]


def _are_groups(groups) -> bool:
    """A manifest is free in what it holds."""
    def is_pair(item) -> bool:
        return isinstance(item, list) and len(item) == 2 and type(item[0]) is int and isinstance(item[1], (int, float))

    return isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("lr"), list) and all(map(is_pair, group["lr"]))
        and isinstance(group.get("first", ""), str) for group in groups)


def jumps_of(trace: Trace, rates: Sequence[Rates]) -> list[RateJump]:
    """Jumps of learning rates, in order of steps and groups."""
    found = []
    for rate in rates:
        lr = rate.lr
        rise = np.diff(lr, prepend=np.nan)
        for s in range(2, len(lr)):
            before = np.abs(rise[max(1, s - 4):s])
            if lr[s] >= RATE_STEP * lr[s - 1] > 0 and rise[s] > OUT_OF_LINE * np.nan_to_num(before).max():
                found.append(RateJump(int(trace.step[s]), rate.group, rate.first, float(lr[s - 1]), float(lr[s])))
    return sorted(found, key=lambda jump: (jump.step, jump.group))


# --- roles -----------------------------------------------------------------------------------------------------------------

_OF_KERNEL = {"softmax": SOFTMAX, "layer_norm": NORM, "rms_norm": NORM, "sum_of_squares": SQUARES, "variance": SQUARES, "linear": LINEAR}
# The last words of a probe's name -> the role of its operator. The first row that fits.
_OF_NAME = (
    (LOGITS, re.compile(r"(^|[.:_])(qk\d*|q_?k|logits|attn_?scores|attention_?scores)(\.cast)?$")),
    (SOFTMAX, re.compile(r"softmax|attn_?probs|attention_?probs")),
    (SQUARES, re.compile(r"squares?$|variance$|accumulator$")),
    (NORM, re.compile(r"(^|[._])(layer|rms|group|batch|instance)?_?norm\d*d?$|(^|[._])ln_?\w*$|layernorm", re.IGNORECASE)),
    (HEAD, re.compile(r"(^|[._])(lm_)?head$|(^|[._])(classifier|scores)$|output_projection$")),
    (RESIDUAL, re.compile(r"residual$|(^|[._])(sum|combine|add)$")),
    (LINEAR, re.compile(r"(^|[._])(qkv|kv|[qkv]|out\d*|hidden|dense|fc\d*|proj|\w+_proj|conv\d*|linear\d*|router|gate|up|down|patch|input|recurrent)"
                        r"(\.cast)?$")),
)


def role_of(name: str, kernel: str | None) -> str:
    """Role of a probe's operator, as opd.localise.advice has them: by its kernel where the trace names it, else by its name."""
    name = re.sub(r"#\d+", "", name.removesuffix(":grad"))
    by_name = next((role for role, pattern in _OF_NAME if pattern.search(name)), OTHER)
    if kernel == "matmul":
        return by_name if by_name == LOGITS else OTHER
    return by_name if by_name in (HEAD, RESIDUAL) else _OF_KERNEL.get(kernel, by_name)


class History:
    """A trace, looked at sample by sample. log2: of the largest finite magnitudes, -Inf where there is none or it is 0: float64 [S, P]."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.kernels = {entry["probe"]: entry["kernel"] for entry in trace.operators}
        self.activations = [op for op, probe in enumerate(trace.probes) if probe.kind == "activation"]

    @cached_property
    def log2(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log2(self.trace.max_abs.astype(np.float64))

    @cached_property
    def rates(self) -> list[Rates]:
        return rates_of(self.trace)

    @cached_property
    def jumps(self) -> list[RateJump]:
        return jumps_of(self.trace, self.rates)

    def role(self, op: int) -> str:
        probe = self.trace.probes[op]
        return role_of(probe.name, self.kernels.get(probe.name))

    def usual(self, sample: int, ops: Sequence[int] | int, samples: int = 32) -> np.ndarray:
        """Median of log2 over the samples before one."""
        return np.median(self.log2[max(0, sample - samples):sample][:, ops], axis=0)

    def growth(self, op: int, sample: int) -> Growth | None:
        """Up to the sample before; with the loss scale in it where it is a gradient."""
        finite = self.trace.nonfinite[:sample, op] == 0
        return growth_of(self.trace.step[:sample][finite], self.trace.max_abs[:sample, op][finite])
