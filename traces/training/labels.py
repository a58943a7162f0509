"""Classes of runs, computed from their traces, and the labels file of a corpus (docs/evaluation.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from opd.trace import FORMATS, Trace

NEAR_LIMIT_BITS = 4.0  # a run whose smallest headroom is below this is not healthy
GRADUAL_STEPS = 10  # steps below NEAR_LIMIT_BITS before the first non-finite value that make it gradual
STRESS = (5.0, 50.0)  # least and largest learning rate, in sane ones, of a run that is stressed
INCIDENTS = ("forward", "gradient", "saturation")  # what counts as incident: see classify
SATURABLE = ("E4M3", "E5M2")  # formats whose casts may saturate


@dataclass(frozen=True)
class Class:
    """What a trace shows: class, first value that counts as incident, and the reason in words."""
    name: str
    first_bad_step: int | None
    first_bad_op: str | None
    decided: str
    event_step: int | None = None  # step of a fault


def headroom(trace: Trace) -> np.ndarray:
    """[S, P]: bits from the largest finite magnitude up to the format's limit; Inf where it is 0."""
    limit = np.array([FORMATS[probe.format].max_value for probe in trace.probes], np.float64)
    with np.errstate(divide="ignore"):
        return np.log2(limit) - np.log2(trace.max_abs.astype(np.float64))


def classify(trace: Trace, incident: str = "forward", sane_lr: float | None = None) -> Class:
    """Class of a trace. With `forward` only non-finite values of activations count, because a gradient overflow is ordinary
    under loss scaling; with `gradient` those of gradients count as well; with `saturation` those of activations and, in 8-bit
    formats, values equal to the largest finite one: what a saturating cast clips to, and what it rounds down to from there.

    gradual: a value became non-finite, and its operator had less than 4 bits of headroom in each of the 10 steps before;
    sudden: it had not. saturating: the first value that counts is finite. near-limit: none counts, but an activation had less
    than 4 bits somewhere; healthy: none had, or stressed, where `sane_lr` is the learning rate of a sane run and the largest
    one of this run was 5 to 50 times that.
    """
    kinds = ("activation", "gradient") if incident == "gradient" else ("activation",)
    counted = np.array([probe.kind in kinds for probe in trace.probes])
    bits = headroom(trace)
    bad = (trace.nonfinite > 0) & counted
    if incident == "saturation" and trace.saturated is not None:
        bad |= (trace.saturated > 0) & counted & [probe.format in SATURABLE for probe in trace.probes]
    if bad.any():
        at, op = np.argwhere(bad)[0]  # by step, then in order of execution
        step, probe = int(trace.step[at]), trace.probes[op]
        below = bits[:at, op] < NEAR_LIMIT_BITS
        run = int(at if below.all() else np.argmin(below[::-1]))
        text = f"at step {step}, after {run} steps in a row with less than {NEAR_LIMIT_BITS:g} bits of headroom"
        if trace.nonfinite[at, op]:
            return Class("gradual" if run >= GRADUAL_STEPS else "sudden", step, probe.name, f"{probe.name} is non-finite {text}")
        return Class("saturating", step, probe.name, f"{probe.name} holds {trace.saturated[at, op]} values of magnitude "
                     f"{FORMATS[probe.format].max_value:g}, the largest of {probe.format}, {text}")
    forward = [op for op, probe in enumerate(trace.probes) if probe.kind == "activation"]
    lowest = bits[:, forward].min(axis=1)
    close = int((lowest < NEAR_LIMIT_BITS).sum())
    text = f"no {'gradient' if incident == 'gradient' else 'forward'} value is non-finite"
    text += " or saturated" if incident == "saturation" else ""
    text += f"; smallest headroom {float(lowest.min()):.2f} bits"
    if close:
        return Class("near-limit", None, None, f"{text}, less than {NEAR_LIMIT_BITS:g} bits in {close} of {len(lowest)} steps")
    if sane_lr is None:
        return Class("healthy", None, None, text)
    times = float(trace.lr.max()) / sane_lr
    text = f"learning rate up to {times:.3g} times a sane one; {text}"
    return Class("stressed" if STRESS[0] <= round(times, 3) <= STRESS[1] else "healthy", None, None, text)
