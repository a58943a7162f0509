"""What went wrong in a run: its first incident, or what became non-finite where no probe shows where (docs/evaluation.md)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opd.trace import Trace

CLEAN = ("healthy", "stressed", "near-limit")  # classes without an incident in the forward pass
UNKNOWN = "unknown"        # class of a run of which something was not understood: neither clean nor an incident
SATURATING = "saturating"  # class of a run whose first clipped value of an activation is the incident
OUTPUTS = ("gradient", "collective")  # kinds of operators in which a run goes wrong, beside activations
STORED = ("weight", "optimizer")      # kinds that go non-finite because something was written into them


@dataclass(frozen=True)
class Unlocated:
    """An incident without an operator: a series or stored values became non-finite, and no operator output shows where."""
    step: int
    what: tuple[str, ...]  # "loss", "grad_norm" or names of probes: all that are non-finite at that step


def first_bad(bad: np.ndarray) -> np.ndarray:
    """Index of each operator's first bad sample: bool [S, P] -> int64 [P], S where there is none."""
    return np.where(bad.any(axis=0), bad.argmax(axis=0), len(bad))


def first_forward(trace: Trace, values: np.ndarray) -> tuple[int, int] | None:
    """Step and operator of the first activation, as they execute, for which `values`, bool [S, P], holds; None without one."""
    found = np.argwhere(values & np.array([probe.kind == "activation" for probe in trace.probes]))
    return (int(trace.step[found[0][0]]), int(found[0][1])) if len(found) else None


def earliest(trace: Trace, first: np.ndarray) -> int | None:
    """Operator that goes bad first: of the activations, without one of the other operator outputs. first: `first_bad`."""
    order = [int(op) for op in np.argsort(first, kind="stable") if first[op] < len(trace.step)]
    for kinds in (("activation",), OUTPUTS):
        for op in order:
            if trace.probes[op].kind in kinds:
                return op
    return None


def signs(trace: Trace, scaler_at_work: bool) -> Unlocated | None:
    """The first step at which the loss, the gradient norm or stored values are non-finite; None without one.

    scaler_at_work: a gradient norm is no sign, because a loss scaler makes gradients overflow as a matter of course."""
    steps = len(trace.step)
    series = {"loss": trace.loss, "grad_norm": None if scaler_at_work else trace.grad_norm}
    bad = {name: ~np.isfinite(values) for name, values in series.items() if values is not None}
    bad |= {probe.name: trace.nonfinite[:, op] > 0 for op, probe in enumerate(trace.probes) if probe.kind in STORED}
    first = {name: int(where.argmax()) if where.any() else steps for name, where in bad.items()}
    at = min(first.values(), default=steps)
    return None if at == steps else Unlocated(int(trace.step[at]), tuple(name for name, where in bad.items() if where[at]))


def unlocated(trace: Trace, bad: np.ndarray, scaler_at_work: bool) -> Unlocated | None:
    """The incident that no operator output of the trace shows; None when one does, or when there is none. bad: bool [S, P];
    scaler_at_work: as in `signs`.

    A loss that is non-finite before any activation is comes from an operator of the forward pass that is not probed; unless an
    operator output of another kind was bad in the step before, whose update of the weights explains it."""
    first, steps = first_bad(bad), len(trace.step)
    op = earliest(trace, first)
    if op is None:
        return signs(trace, scaler_at_work)
    lost = np.zeros(steps, bool) if trace.loss is None else ~np.isfinite(trace.loss)
    at = int(lost.argmax()) if lost.any() else steps
    if at == steps or trace.probes[op].kind == "activation" and first[op] <= at:
        return None
    others = [op for op, probe in enumerate(trace.probes) if probe.kind in OUTPUTS]
    return None if at and bad[at - 1, others].any() else Unlocated(int(trace.step[at]), ("loss",))
