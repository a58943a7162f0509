"""Classes of runs, computed from their traces, and the labels file of a corpus (docs/evaluation.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from opd.trace import FORMATS, Trace

NEAR_LIMIT_BITS = 4.0  # a run whose smallest headroom is below this is not healthy
GRADUAL_STEPS = 10  # steps below NEAR_LIMIT_BITS before the first non-finite value that make it gradual


@dataclass(frozen=True)
class Class:
    """What a trace shows: class, first non-finite value that counts, and the reason in words."""
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


def classify(trace: Trace, incident: str = "forward") -> Class:
    """Class of a trace. With `forward` only non-finite values of activations count, because a gradient overflow is ordinary
    under loss scaling; with `gradient` those of gradients count as well.

    gradual: a value became non-finite, and its operator had less than 4 bits of headroom in each of the 10 steps before;
    sudden: it had not. near-limit: nothing became non-finite, but an activation had less than 4 bits somewhere; healthy: none.
    """
    kinds = ("activation",) if incident == "forward" else ("activation", "gradient")
    counted = np.array([probe.kind in kinds for probe in trace.probes])
    bits = headroom(trace)
    bad = np.argwhere((trace.nonfinite > 0) & counted)  # by step, then in order of execution
    if len(bad):
        at, op = bad[0]
        step, name = int(trace.step[at]), trace.probes[op].name
        below = bits[:at, op] < NEAR_LIMIT_BITS
        run = int(at if below.all() else np.argmin(below[::-1]))
        return Class("gradual" if run >= GRADUAL_STEPS else "sudden", step, name,
                     f"{name} is non-finite at step {step}, after {run} steps in a row with less than "
                     f"{NEAR_LIMIT_BITS:g} bits of headroom")
    forward = [op for op, probe in enumerate(trace.probes) if probe.kind == "activation"]
    lowest = bits[:, forward].min(axis=1)
    close = int((lowest < NEAR_LIMIT_BITS).sum())
    text = f"no {incident} value is non-finite; smallest headroom {float(lowest.min()):.2f} bits"
    if close:
        return Class("near-limit", None, None, f"{text}, less than {NEAR_LIMIT_BITS:g} bits in {close} of {len(lowest)} steps")
    return Class("healthy", None, None, text)
