"""Which kind of incident it is, and what speaks for it: decided from the statistics of the trace alone, in the order of `kind_of`."""
from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np

from opd.localise.advice import (ACCUMULATOR, BAD_DATA, CLIPPED, FLIP, FP8_SCALE, GROWTH, JUMP, LAYERS, LOGITS, LOSS_SCALE, MASKED,
                                 NORM, RATE_JUMP, SOFTMAX, SQUARES, UNSEEN, VARIANCE)
from opd.trace import FORMATS
from opd.triage.history import Growth, History, RateJump

NEAR = 4.0          # bits of headroom that are near the limit, as the labels of the corpus have it
AFTER_A_JUMP = 64   # steps behind a jump of a learning rate in which what happens is laid to it
CALM = 1.5          # bits that operators before a flipped one may move by
ISOLATED = 8.0      # bits above all of the last 32 samples that a jump alone is an incident
COLLAPSED = 0.1     # of its usual output is what a norm gives of rows without variance
HALVINGS = 6        # of the loss scale in a row that are a collapse
LAYER_RISE = 1.0    # bits from one layer to the next
MOST_LAYERS = 3     # such rises, one after the other


@dataclass(frozen=True)
class Kind:
    """kind: one of opd.localise.advice's; also: further ones that have a part in it; evidence: sentences; jump: the learning rate's;
    is_stored: what changed stays, as in a weight."""
    kind: str
    evidence: tuple[str, ...]
    also: tuple[str, ...] = ()
    jump: RateJump | None = None
    is_stored: bool = False


@dataclass
class Case:
    """An incident of operator `op` at sample `bad`. clipped: it is finite, at its format's largest magnitude."""
    history: History
    op: int
    bad: int
    clipped: bool
    growth: Growth | None
    told: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        return int(self.history.trace.step[self.bad])

    @property
    def probe(self):
        return self.history.trace.probes[self.op]

    @property
    def role(self) -> str:
        return self.history.role(self.op)

    @property
    def is_gradient(self) -> bool:
        return self.probe.kind in ("gradient", "collective")

    @property
    def limit(self) -> float:
        """log2 of the format's."""
        return math.log2(float(FORMATS[self.probe.format].max_value))

    @property
    def before(self) -> float:
        """Headroom in bits of the last sample before; Inf without one."""
        return self.limit - float(self.history.log2[self.bad - 1, self.op]) if self.bad else math.inf

    @property
    def upstream(self) -> list[int]:
        """Operators of the forward pass before it; of a gradient all of the forward pass."""
        forward = self.history.activations
        return forward if self.is_gradient else [op for op in forward if op < self.op]

    @property
    def near_steps(self) -> int:
        """Samples in a row before the incident with less than NEAR bits of headroom."""
        near = self.limit - self.history.log2[:self.bad, self.op] < NEAR
        return len(near) if near.all() else int(near[::-1].argmin())


def kind_of(case: Case) -> Kind:
    """The first rule that fits."""
    for rule in (_inside_norm, _variance, _loss_scale, _masked, _data, _rate_jump, _accumulator, _clipped, _growth, _layers, _flip):
        kind = rule(case)
        if kind is not None:
            jump = _jump_before(case) if kind == RATE_JUMP else None
            return Kind(kind, tuple(case.told), tuple(dict.fromkeys(item for item in case.also if item != kind)), jump)
    case.told.append(f"{case.before:.1f} bits of headroom one step before, and no rise before that: nothing in this operator announced it."
                     if math.isfinite(case.before) else "It is so from the first step on that was recorded.")
    _told_upstream(case)
    return Kind(JUMP, tuple(case.told), tuple(dict.fromkeys(case.also)))


def without_operator(what: tuple[str, ...], least: str) -> Kind:
    """Of an incident that shows in a series or in stored values alone. least: the operator nearest to its limit, in words."""
    told = (f"{', '.join(what)} {'is' if len(what) == 1 else 'are'} not finite, and no watched operator was before.", least)
    return Kind(UNSEEN, told)


# --- rules -----------------------------------------------------------------------------------------------------------------

def _inside_norm(case: Case) -> str | None:
    """A norm that is bad while its operand is finite, and so large that the sum of its squares passes the format's limit."""
    history, trace = case.history, case.history.trace
    if case.role != NORM or case.is_gradient or case.clipped or not case.upstream:
        return None
    source = case.upstream[-1]
    columns = math.log2(max(1, (case.probe.shape or (1,))[-1]))
    now = float(history.log2[case.bad, source])
    if trace.nonfinite[case.bad, source] or 2 * now + columns < case.limit:
        return None
    name = trace.probes[source].name
    case.told.append(f"Its operand {name} is finite, at most 2^{_bits(now)}, but the square of that is 2^{_bits(2 * now)}, and the norm adds "
                     f"{2**columns:.0f} of them: what overflows is inside it.")
    case.growth = history.growth(source, case.bad)
    if case.growth is not None:
        case.told.append(f"{name} rises {_growth_words(case.growth, case.step)}.")
        case.also.append(GROWTH)
    return ACCUMULATOR


def _variance(case: Case) -> str | None:
    """A norm whose output has collapsed in that step, with the incident behind it or in its gradient; or a norm that is itself bad though
    all that was computed before it is finite and small."""
    history = case.history
    for op in case.upstream:
        if history.role(op) != NORM or case.bad < 4:
            continue
        now, usual = history.log2[case.bad, op], float(history.usual(case.bad, op))
        if history.trace.nonfinite[case.bad, op] == 0 and now < usual + math.log2(COLLAPSED) and math.isfinite(usual):
            case.told.append(f"The output of {history.trace.probes[op].name} is 2^{_bits(now)} in that step, 2^{_bits(usual)} before: its rows "
                             "have next to no variance, and its derivative divides by it.")
            return VARIANCE
    if case.role == NORM and not case.is_gradient and _upstream_is_calm(case) and case.growth is None and not case.clipped \
            and case.before > NEAR and _upstream_headroom(case) > 12:
        case.told.append("A norm, and everything before it is finite and small: it divides by a variance of 0.")
        return VARIANCE
    return None


def _loss_scale(case: Case) -> str | None:
    """A gradient, whose operand holds the loss scale."""
    trace = case.history.trace
    if not case.is_gradient or trace.loss_scale is None or trace.loss_scale[case.bad] <= 1:
        return None
    scale = trace.loss_scale.astype(np.float64)
    rises = np.flatnonzero(scale[1:case.bad + 1] > scale[:case.bad]) + 1
    start = scale[0]
    case.told.append(f"The loss scale is {scale[case.bad]:g} in that step"
                     + (f", after {len(rises)} doublings from {start:g}, the last at step {int(trace.step[rises[-1]])}." if len(rises) else "."))
    without = case.limit - float(np.log2(scale[case.bad]))
    case.told.append(f"Without it the limit of this gradient would be 2^{case.limit:.0f}; with it anything from 2^{without:.1f} on overflows.")
    if case.growth is not None:
        since = int(np.searchsorted(trace.step, case.growth.since))
        of_scale = float(np.log2(scale[case.bad - 1] / scale[since]))
        case.told.append(f"It rises {_growth_words(case.growth, case.step)}. The loss scale has risen by {of_scale:.0f} bits in that time.")
    return LOSS_SCALE


def _masked(case: Case) -> str | None:
    if case.role != SOFTMAX or case.is_gradient or case.clipped:
        return None
    trace = case.history.trace
    if any(trace.nonfinite[case.bad, op] for op in case.upstream):
        return None
    logits = [op for op in case.upstream if case.history.role(op) == LOGITS]
    if not logits:
        return None
    name = trace.probes[logits[-1]].name
    case.told.append(f"A softmax whose logits ({name}) are finite in that step: {int(trace.nonfinite[case.bad, case.op])} elements are NaN, 0 / 0 "
                     "of rows of which nothing is left.")
    return MASKED


def _data(case: Case) -> str | None:
    """The first operator of the pass, suddenly, and the next step is as before."""
    history = case.history
    if case.is_gradient or case.clipped or not history.activations or case.op != history.activations[0]:
        return None
    if case.before < NEAR or case.growth is not None or _jump_before(case) is not None:
        return None
    case.told.append(f"{case.probe.name} is the first operator of the pass and reads the batch; it had {case.before:.1f} bits of headroom one "
                     "step before, and no rise.")
    if _is_calm_after(case):
        case.told.append("In the next step everything is finite and as before: the weights are not to blame.")
    return BAD_DATA


def _rate_jump(case: Case) -> str | None:
    jump = _jump_before(case)
    if jump is None:
        return None
    history = case.history
    at = int(np.searchsorted(history.trace.step, jump.step))
    then = history.log2[at, case.op] if at < case.bad else history.log2[max(0, case.bad - 1), case.op]
    case.told.append(f"The learning rate of parameter group {jump.group}{f' ({jump.first}, ...)' if jump.first else ''} rises from {jump.before:.3g} "
                     f"to {jump.after:.3g} at step {jump.step} ({jump.after / jump.before:.0f} times), {_steps(case.step - jump.step)} before.")
    case.told.append(f"This operator had {case.limit - then:.1f} bits of headroom then.")
    if case.growth is not None and case.growth.since >= jump.step - 1:
        _told_growth(case)
    _told_format(case)
    return RATE_JUMP


def _accumulator(case: Case) -> str | None:
    """A sum of squares or products that is bad while operands and what reads it are not."""
    if case.role != SQUARES or case.is_gradient:
        return None
    history, trace = case.history, case.history.trace
    others = [op for op in history.activations if op != case.op]
    if any(trace.nonfinite[case.bad, op] for op in case.upstream):
        return None
    if case.growth is not None:
        _told_growth(case)
        case.also.append(GROWTH)
    case.told.append(f"It is a sum inside a norm: its operands are finite, at most 2^{_bits(history.log2[case.bad, case.upstream].max(initial=-99))}."
                     if case.upstream else "It is a sum inside a norm.")
    if not any(trace.nonfinite[case.bad, op] for op in others):
        case.told.append("No other operator is non-finite in that step: the norm divides by it and gives 0, so that neither outputs nor the loss "
                         "show it.")
    return ACCUMULATOR


def _clipped(case: Case) -> str | None:
    if not case.clipped:
        return None
    count = int(case.history.trace.saturated[case.bad, case.op])
    case.told.append(f"{count} element{'s are' if count != 1 else ' is'} clipped to the largest {case.probe.format} number, {2**case.limit:g}; "
                     "nothing becomes non-finite by that, and no check for NaN sees it.")
    if case.growth is not None:
        _told_growth(case)
        case.also.append(GROWTH)
    _told_format(case)
    return CLIPPED


def _growth(case: Case) -> str | None:
    """It has risen over steps, and the rise is what brought it near its limit."""
    growth = case.growth
    if growth is None or case.before > max(NEAR, growth.bits):
        return None
    _told_growth(case)
    if case.history.activations and case.op == case.history.activations[0]:
        case.told.append("It is the first operator of the pass: look at the range of the inputs as well, they may be what grows.")
    _told_format(case)
    return GROWTH


def _layers(case: Case) -> str | None:
    """In the last clean step the operators of the same name grow from layer to layer, up to this one."""
    history = case.history
    if case.is_gradient or not case.bad:
        return None
    alike = [op for op in (*case.upstream, case.op) if _pattern(history.trace.probes[op].name) == _pattern(case.probe.name)]
    values = history.log2[case.bad - 1, alike]
    rises = np.diff(values)
    last = 0
    for rise in rises[::-1]:
        if not rise >= LAYER_RISE:
            break
        last += 1
    if last < MOST_LAYERS:
        return None
    names = [history.trace.probes[op].name for op in alike[-last - 1:]]
    case.told.append(f"One step before, the magnitude rises from {names[0]} to {names[-1]} by {values[-1] - values[-last - 1]:.1f} bits over "
                     f"{last} layers, {rises[-last:].mean():.1f} bits each; over the steps it has not risen.")
    return LAYERS


def _flip(case: Case) -> str | None:
    if case.is_gradient or case.growth is not None or case.before < NEAR or not _upstream_is_calm(case) or not _is_calm_after(case):
        return None
    case.told.append(f"{case.before:.1f} bits of headroom one step before, everything before it in the pass as usual, and everything as usual "
                     "again in the next step: neither data, nor weights, nor a growth explains it.")
    return FLIP


# --- what the rules look at ------------------------------------------------------------------------------------------------

def _jump_before(case: Case) -> RateJump | None:
    """The last jump of a learning rate to which the incident is laid: at most AFTER_A_JUMP steps before, while the operator still had room."""
    history = case.history
    for jump in reversed(history.jumps):
        at = int(np.searchsorted(history.trace.step, jump.step))
        if not 0 <= case.step - jump.step <= AFTER_A_JUMP:
            continue
        room = case.limit - float(history.log2[max(0, min(at, case.bad) - 1), case.op])
        if room >= 2.0:
            return jump
    return None


def _upstream_headroom(case: Case) -> float:
    history = case.history
    if not case.upstream:
        return math.inf
    limits = np.array([math.log2(float(FORMATS[history.trace.probes[op].format].max_value)) for op in case.upstream])
    return float((limits - history.log2[case.bad, case.upstream]).min())


def _upstream_is_calm(case: Case) -> bool:
    """Whether the operators before it are in that step what they were before."""
    history = case.history
    if not case.upstream or case.bad < 8:
        return False
    if history.trace.nonfinite[case.bad, case.upstream].any():
        return False
    return bool((np.abs(history.log2[case.bad, case.upstream] - history.usual(case.bad, case.upstream)) <= CALM).all())


def _is_calm_after(case: Case) -> bool:
    """Whether there is a next step, in which all of the forward pass is finite and this operator what it was before."""
    history, after = case.history, case.bad + 1
    if after >= len(history.trace.step) or not case.bad:
        return False
    if history.trace.nonfinite[after, history.activations].any():
        return False
    return abs(float(history.log2[after, case.op] - history.usual(case.bad, case.op))) <= 2 * CALM


def isolated_jumps(history: History) -> list[tuple[int, int]]:
    """(operator, sample) of activations that rise by ISOLATED bits above all of their last 32 samples in one step, come near their limit,
    and of which nothing before them in the pass has moved: what a flipped bit leaves that makes nothing non-finite. The first each."""
    trace, found = history.trace, []
    for op in history.activations[1:]:
        limit = math.log2(float(FORMATS[trace.probes[op].format].max_value))
        y = history.log2[:, op]
        for s in range(33, len(y)):
            if y[s] - y[s - 1] < ISOLATED or limit - y[s] > 2 * NEAR or not y[s] - y[s - 32:s].max() >= ISOLATED:
                continue
            case = Case(history, op, s, False, None)
            if trace.nonfinite[s, op] == 0 and _upstream_is_calm(case) and not _moved_lately(history, s):
                found.append((op, s))
            break
    return found


def _moved_lately(history: History, sample: int) -> bool:
    return any(0 <= history.trace.step[sample] - jump.step <= AFTER_A_JUMP for jump in history.jumps)


def collapse_of(history: History) -> tuple[int, int] | None:
    """(first sample, halvings) of a loss scale that falls HALVINGS times or more without a rise and ends below 1; None without one."""
    scale = history.trace.loss_scale
    if scale is None or scale[-1] >= 1 or len(scale) < 2:
        return None
    change = np.sign(np.diff(scale.astype(np.float64)))
    rises = np.flatnonzero(change > 0)
    start = int(rises[-1]) + 1 if len(rises) else 0
    falls = np.flatnonzero(change[start:] < 0) + start + 1
    halvings = int(round(math.log2(float(scale[start]) / float(scale[-1])))) if scale[-1] > 0 else HALVINGS
    return (int(falls[0]), halvings) if len(falls) >= HALVINGS else None


def _pattern(name: str) -> str:
    """A probe's name without the numbers of its layers."""
    return re.sub(r"\d+", "*", name)


# --- words -----------------------------------------------------------------------------------------------------------------

def _told_growth(case: Case) -> None:
    case.told.append(f"It rises {_growth_words(case.growth, case.step)}.")
    if case.near_steps:
        case.told.append(f"It had less than {NEAR:.0f} bits of headroom in the {_steps(case.near_steps)} before, {case.before:.2f} bits in the last.")


def _growth_words(growth: Growth, step: int) -> str:
    since = f"from the first step that is recorded, {growth.since}," if growth.from_start else f"from step {growth.since} on"
    return (f"{since} by {growth.bits:.1f} bits in {_steps(step - growth.since)}: {growth.rate:.3g} bits a step, doubling every {growth.doubling:.3g} "
            f"steps; in the last samples before, {growth.final:.3g} bits a step")


def _told_format(case: Case) -> None:
    """Of a cast to FP8 whose operand is a probe of a wider format: what room that one has."""
    history = case.history
    if case.probe.format not in ("E4M3", "E5M2") or not case.upstream:
        return
    source = case.upstream[-1]
    wide = history.trace.probes[source]
    if wide.format in ("E4M3", "E5M2") or history.trace.nonfinite[case.bad, source]:
        return
    room = math.log2(float(FORMATS[wide.format].max_value)) - float(history.log2[case.bad, source])
    if room > NEAR:
        case.also.append(FP8_SCALE)
        case.told.append(f"Its operand {wide.name} has {room:.1f} bits of headroom in {wide.format}: a scale before the cast would have held it.")


def _told_upstream(case: Case) -> None:
    if case.upstream and not case.is_gradient and _upstream_is_calm(case):
        case.told.append("Everything before it in the pass is as usual in that step: it begins in this operator.")


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _bits(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-inf"
