"""What counts as the first incident of a run, and what is said of it."""
from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from opd.capture.journal import ProbeEntry

# Kinds of probes and series in the order in which a step has them.
_ORDER = ("activation", "loss", "gradient", "collective", "grad_norm", "weight", "optimizer")
_SCALED = ("gradient", "collective", "grad_norm")  # ordinary when they overflow under a loss scale
_SERIES = {"loss": "the loss", "grad_norm": "the gradient norm"}


@dataclass(frozen=True)
class Incident:
    """text: what turned non-finite first. advice: which probes would show the operator; None when that is known."""
    text: str
    advice: str | None


def find_incident(number: int, bad: Sequence[tuple[ProbeEntry, int]], series: Mapping[str, float],
                  groups: Container[str]) -> Incident | None:
    """The incident of a step, None when all is well.

    bad: probes with non-finite elements, forward ones in order of their calls, and how many elements; series: what is known of
    the step. An overflow of gradients, or of their norm, under a loss scale above 1 is ordinary. groups:
    those of probes that are recorded in the whole model.
    """
    scaled = series.get("loss_scale", 0) > 1
    found = [(entry.kind, f"{entry.name} holds {count} non-finite elements") for entry, count in bad]
    found += [(name, f"{what} is {series[name]}") for name, what in _SERIES.items() if not math.isfinite(series.get(name, 0))]
    found = [item for item in found if not (scaled and item[0] in _SCALED)]
    if not found:
        return None
    kind, text = min(found, key=lambda item: _ORDER.index(item[0]))
    others = f", and {len(found) - 1} more are non-finite" if len(found) > 1 else ""
    return Incident(f"step {number}: {text}{others}", _advice(kind, groups))


def _advice(kind: str, groups: Container[str]) -> str | None:
    if kind == "activation" or kind in ("gradient", "collective"):
        return None
    if "output" not in groups:
        return ("no probe of the forward pass is non-finite: probes=\"output\" (--probes output) shows the module where it "
                "begins, probes=\"all\" (--probes all) the backward pass too")
    if "gradient" not in groups:
        return "no module's output is non-finite: probes=\"all\" (--probes all) shows whether the backward pass is where it begins"
    return "no probe before it is non-finite: it begins in the loss, in the optimizer, or in code outside of modules"
