"""An evaluation as text: the tables that `opd evaluate` prints."""
from __future__ import annotations

from collections.abc import Sequence

from opd.evaluate.corpus import CLEAN
from opd.trace import LABELS

REACHED = {True: "yes", False: "no", None: "no data"}
_RATES = ("healthy", "healthy_with_warm_up", "near_limit", "warm_up")


def number(value: float | None) -> str:
    """Two decimals below 100; "-" for no value."""
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def plain(value: float | None) -> str:
    """A whole number without decimals, any other as `number`."""
    return number(value) if value is None or value != int(value) or abs(value) < 1 else f"{value:.0f}"


def interval(bounds: Sequence[float] | None, write=number) -> str:
    return f" [{write(bounds[0])}, {write(bounds[1])}]" if bounds else ""


def recall(entry: dict) -> str:
    return f"{entry['detected']}/{entry['incidents']}" if entry["incidents"] else "-"


def text(evaluation: dict) -> str:
    """The tables of an evaluation."""
    lines = []
    for split in dict.fromkeys(entry["split"] for entry in evaluation["detectors"]):
        entries = [entry for entry in evaluation["detectors"] if entry["split"] == split]
        runs = [run for run in evaluation["runs"] if split in (run["split"], "all")]
        classes = {kind: sum(run["class"] == kind for run in runs) for kind in dict.fromkeys(run["class"] for run in runs)}
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items(), key=_order))
        lines += [f"split {split}: {len(runs)} {'run' if len(runs) == 1 else 'runs'} ({said})", *_quality(entries), "",
                  *_by_class(entries),
                  *_goals([goal for goal in evaluation["goals"] if goal["split"] == split])]
    lines += ["cost, of an operator and of a sample", *_cost(evaluation["detectors"], evaluation["detectors"][0]["split"]), "",
              "recall: first incidents with an alarm standing, exact 95 % interval; lead: median, up to 128 steps, a miss 0;",
              "upstream: incidents with an alarm of an earlier operator in the same step; by chance: share of other steps so;",
              "/1k: false alarms per 1000 probe-steps after the first 32 samples (warm-up: in them); [] needs two runs."]
    return "\n".join([*lines, *absences(evaluation)])


def absences(evaluation: dict) -> list[str]:
    """What the corpus cannot answer, in sentences."""
    said = [f"no run of class {kind}: " + ("no false alarms to count there" if kind in CLEAN else "nothing is known of it")
            for kind in evaluation["classes_without_run"]]
    overall = evaluation["detectors"][-1]  # of all runs
    said += [f"no {kind} run is longer than the warm-up of {evaluation['warm_up_samples']} samples: "
             "no false alarms to count there"
             for kind, key in ((kind, kind.replace("-", "_")) for kind in CLEAN)
             if kind not in evaluation["classes_without_run"] and not overall[f"probe_steps_{key}"]]
    if not overall["incidents"]:
        said.append("no run has an incident to be detected: there is no recall and no lead")
    return said


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows as lines with aligned columns, two spaces before each; those in `left` to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [("  " + "  ".join(cell.ljust(width) if column in left else cell.rjust(width)
                              for column, (cell, width) in enumerate(zip(row, widths)))).rstrip() for row in rows]


def _order(item: tuple[str, int]) -> int:
    return LABELS.index(item[0])


def _quality(entries: Sequence[dict]) -> list[str]:
    rows = [("detector", "recall", "lead", "p10", "healthy /1k", "with warm-up /1k", "near-limit /1k",
             "warm-up /1k")]
    for entry in entries:
        rates = [number(entry[f"false_alarms_{what}_per_1000"]) + interval(entry[f"false_alarms_{what}_interval"])
                 for what in _RATES]
        leads = ["-" if entry[key] is None else str(entry[key]) for key in ("lead_median", "lead_p10")]
        rows.append((entry["name"], recall(entry) + interval(entry["recall_interval"]), *leads, *rates))
    return columns(rows)


def _upstream(figures: dict) -> str:
    return f"{figures['upstream_same_step_events']}/{figures['incidents']}" if figures["incidents"] else "-"


def _by_class(entries: Sequence[dict]) -> list[str]:
    """A table for all classes that have an incident: none when there is no incident."""
    kinds = [kind for kind, figures in entries[0]["recall_by_class"].items() if figures["incidents"]]
    if not kinds:
        return []
    rows = [("by class", *(cell for kind in kinds for cell in (f"| {kind}", "", "", "", ""))),
            ("detector", *("| recall", "lead", "p10", "upstream", "by chance") * len(kinds))]
    for entry in entries:
        row = [entry["name"]]
        for kind in kinds:
            figures = entry["recall_by_class"][kind]
            row += [f"| {recall(figures)}", str(figures["lead_median"]), str(figures["lead_p10"]), _upstream(figures),
                    number(figures["upstream_by_chance"])]
        rows.append(tuple(row))
    return [*columns(rows, left=(0, *range(1, len(rows[0]), 5))), ""]


def _goals(goals: Sequence[dict]) -> list[str]:
    """The goals of one split; nothing without any."""
    if not goals:
        return []
    rows = [(f"goals of {goals[0]['detector']}", "goal", "measured", "reached")]
    rows += [(goal["name"], f"{goal['sense']} {goal['goal']:g}", plain(goal["measured"]) + interval(goal["interval"], plain),
              REACHED[goal["reached"]]) for goal in goals]
    return [*columns(rows, left=(0, 1, 3)), ""]


def _cost(entries: Sequence[dict], split: str) -> list[str]:
    rows = [("detector", "state bits", "operations")]
    rows += [(entry["name"], f"{entry['state_bits']:,}", f"{entry['operations']:,}") for entry in entries
             if entry["split"] == split]
    return columns(rows)


def per_run(evaluation: dict) -> str:
    """What each detector says of each run: a table per run."""
    lines = []
    for run in evaluation["runs"]:
        lines += [f"{run['name']}: {run['steps']} {'step' if run['steps'] == 1 else 'steps'}, "
                  f"{run['probes']} {'probe' if run['probes'] == 1 else 'probes'}, {event(run)}"]
        rows = [("detector", "alarms", "says")]
        rows += [(said["name"], "-" if not said["has_verdict"] else str(said["alarms"]), verdict(run, said))
                 for said in run["detectors"]]
        lines += [*columns(rows, left=(0, 2)), ""]
    return "\n".join(lines)


def event(run: dict) -> str:
    """What happened in a run, in words."""
    first, at = run["first_incident"], run["event_step"]
    if first and at == first["step"]:
        return f"{first['probe']} non-finite at step {at}"
    return "no incident" if at is None else f"event at step {at}"


def verdict(run: dict, said: dict) -> str:
    """What a detector says of a run, in words; said: an entry of runs[].detectors[]."""
    if not said["has_verdict"]:
        return "no verdict: the rule needs more samples than the log has"
    at, first = run["event_step"], run["first_incident"]
    words = []
    if said["lead_steps"] and at == first["step"]:
        words.append(f"lead {said['lead_steps']}")
    if said["alarm_before"]:
        before = said["alarm_before"]
        words.append(f"first alarm {at - before['step']} steps before, {before['probe']}")
    if said["alarm_same_step"]:
        words.append(f"in the same step {said['alarm_same_step']['probe']}")
    if said["alarm_at_incident"]:
        words.append("at the incident itself")
    if not words and said["first_alarm"]:
        first = said["first_alarm"]
        distance = "" if at is None else f", {abs(at - first['step'])} {'before' if first['step'] < at else 'after'}"
        words.append(f"first alarm at step {first['step']}{distance}, {first['probe']}")
    if run["overflows"] > 1:
        words.append(f"warned of {said['overflows_warned']} of {run['overflows']} overflows")
    return "; ".join(words) or "quiet"
