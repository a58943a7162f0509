"""What the detector of a device is to reach, and whether it does, for each split of a corpus."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A figure that is to be at least, or at most, so large."""
    name: str
    sense: str         # "at least" or "at most"
    value: float
    key: str           # of an entry of `detectors` in evaluation.json; of an interval, its lower end is meant
    interval: str | None     # key of its interval
    kind: str | None = None  # class, when the figure is one of recall_by_class


# What `opd evaluate` holds a detector against; docs/evaluation.md "Goals" repeats this table.
GOALS = (
    Goal("gradual: recall", "at least", 0.95, "recall", "recall_interval", "gradual"),
    Goal("gradual: recall, lower end of its interval", "at least", 0.85, "recall_interval", None, "gradual"),
    Goal("gradual: lead, median", "at least", 60, "lead_median", "lead_median_interval", "gradual"),
    Goal("gradual: lead, p10", "at least", 15, "lead_p10", "lead_p10_interval", "gradual"),
    Goal("sudden: recall", "at least", 0.75, "recall", "recall_interval", "sudden"),
    Goal("sudden: upstream in the same step", "at least", 0.75, "upstream_same_step", "upstream_same_step_interval", "sudden"),
    Goal("healthy: false alarms per 1000, warm-up included", "at most", 0.02, "false_alarms_healthy_with_warm_up_per_1000",
         "false_alarms_healthy_with_warm_up_interval"),
    Goal("stressed: false alarms per 1000, warm-up included", "at most", 0.05, "false_alarms_stressed_with_warm_up_per_1000",
         "false_alarms_stressed_with_warm_up_interval"),
    Goal("near-limit: false alarms per 1000", "at most", 0.8, "false_alarms_near_limit_per_1000",
         "false_alarms_near_limit_interval"),
)


def reached(entries: Sequence[dict], name: str) -> list[dict]:
    """Entries of `goals` in evaluation.json: one for each goal and split. entries: `detectors`; name: of the detector."""
    return [_held(goal, entry) for entry in entries if entry["name"] == name for goal in GOALS]


def _held(goal: Goal, entry: dict) -> dict:
    figures = entry["recall_by_class"][goal.kind] if goal.kind else entry
    measured = figures[goal.key]
    if isinstance(measured, tuple):
        measured = measured[0]
    good = None if measured is None else measured >= goal.value if goal.sense == "at least" else measured <= goal.value
    return {"name": goal.name, "split": entry["split"], "detector": entry["name"], "sense": goal.sense, "goal": goal.value,
            "measured": measured, "interval": figures[goal.interval] if goal.interval else None, "reached": good}
