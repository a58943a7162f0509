"""One live run of an arm, and what came of it."""

from __future__ import annotations

import logging
import math
import statistics
import time

from closed_loop.arms import ARMS as WITHOUT_GUARD
from closed_loop.guarded import Guard
from closed_loop.runs import Run
from closed_loop.subject import Judge
from workloads.text import Text

ARMS = {**WITHOUT_GUARD, Guard.name: Guard}
TAIL = 20          # last batches: one of them has to reach the parameters, and the final loss is a mean over them
LOOKS = 4          # in the tail: how often the held-out loss is taken


def live(run: Run, arm_name: str, text: Text, device: str | None = None) -> dict:
    """The row of a run under an arm: docs/closed_loop.md has its keys. device: of the guard."""
    logging.getLogger("opd.guard").setLevel(logging.CRITICAL)
    judge = Judge(run, text)
    looks = {run.batches - 1 - i * (TAIL // LOOKS) for i in range(LOOKS)}
    arm = ARMS[arm_name](run, text) if device is None else ARMS[arm_name](run, text, device)
    start = judge.loss(arm.subject.model, 0)
    losses: dict[int, float] = {}
    held_out: dict[int, float] = {}
    seconds, first_bad = [], None
    with arm:
        for index, batch in arm.batches():
            began = time.process_time()
            losses[index] = arm.step(index, batch)
            seconds.append(time.process_time() - began)
            if first_bad is None and not math.isfinite(losses[index]):
                first_bad = index
            if arm.why is not None:
                break
            if index in looks:
                held_out[index] = judge.loss(arm.subject.model, index)
    why = arm.why
    if why is None and not arm.subject.is_finite():
        why = "parameters or buffers are not finite"
    if why is None and not any(index in arm.reached for index in range(run.batches - TAIL, run.batches)):
        why = f"none of the last {TAIL} batches reached the parameters"
    final = statistics.fmean(held_out.values()) if len(held_out) == LOOKS else math.nan
    if why is None and math.isnan(final):
        why = "its loss in FP32 is not finite"
    return {"run": run.name, "scenario": run.scenario.name, "split": run.split, "seed": run.seed, "label": run.label, "arm": arm_name,
            "incident": run.incident, "batches": run.batches, "finished": why is None, "why": why, "at": max(losses),
            "first_bad_loss": first_bad, "lost": run.batches - len(arm.reached), "tried": len(seconds),
            "start_loss": round(start, 5), "final_loss": round(final, 5) if why is None else None,
            "ms": round(1e3 * statistics.median(seconds), 3), **arm.figures()}
