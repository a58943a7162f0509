"""An evaluation as text: the tables that `opd evaluate` prints."""
from __future__ import annotations

from collections.abc import Sequence

from opd.evaluate.incident import CLEAN, UNKNOWN
from opd.trace import LABELS

REACHED = {True: "yes", False: "no", None: "no data"}
RATES = (("healthy", "healthy"), ("healthy + warm-up", "healthy_with_warm_up"), ("stressed", "stressed"),
         ("stressed + warm-up", "stressed_with_warm_up"), ("near-limit", "near_limit"), ("warm-up", "warm_up"))  # heading, key


def number(value: float | None) -> str:
    """Two decimals below 100; "-" for no value."""
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def plain(value: float | None) -> str:
    """A whole number without decimals, any other as `number`."""
    return number(value) if value is None or value != int(value) or abs(value) < 1 else f"{value:.0f}"


def steps(value: int | None) -> str:
    return "-" if value is None else str(value)


def interval(bounds: Sequence[float] | None, write=number) -> str:
    return f" [{write(bounds[0])}, {write(bounds[1])}]" if bounds else ""


def recall(entry: dict) -> str:
    return f"{entry['detected']}/{entry['incidents']}" if entry["incidents"] else "-"


def rate(entry: dict, what: str, write=number) -> str:
    """A rate of false alarms with its interval."""
    return write(entry[f"false_alarms_{what}_per_1000"]) + interval(entry[f"false_alarms_{what}_interval"], write)


def text(evaluation: dict, splits: Sequence[str] | None = None) -> str:
    """The tables of an evaluation; splits: only those of these."""
    lines = []
    for split in dict.fromkeys(entry["split"] for entry in evaluation["detectors"]):
        if splits is not None and split not in splits:
            continue
        entries = [entry for entry in evaluation["detectors"] if entry["split"] == split]
        runs = [run for run in evaluation["runs"] if split in (run["split"], "all")]
        classes = {kind: sum(run["class"] == kind for run in runs) for kind in dict.fromkeys(run["class"] for run in runs)}
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(classes.items(), key=_order))
        lines += [f"split {split}: {len(runs)} {'run' if len(runs) == 1 else 'runs'} ({said})", *_quality(entries), "",
                  *_false_alarms(entries), "", *_by_class(entries),
                  *_goals([goal for goal in evaluation["goals"] if goal["split"] == split])]
    lines += [*_matched(evaluation["matched"]),
              "cost, of an operator and of a sample", *_cost(evaluation["detectors"], evaluation["detectors"][0]["split"]), "",
              "recall: first incidents with an alarm standing, exact 95 % interval; lead: up to 128 steps, a miss 0;",
              "gradients: overflows under a loss scale that were forecast; before incident: alarms per 1000 probe-steps before the",
              "incident, of operators that do not go bad within 128 steps; before own alarm: of all, before the one that stands;",
              "upstream: incidents with an alarm of an earlier operator in the same step; by chance: share of other steps so;",
              "/1k: false alarms per 1000 probe-steps after the first 32 samples (warm-up: in them); [] needs two runs."]
    return "\n".join([*lines, *absences(evaluation, splits)])


def absences(evaluation: dict, splits: Sequence[str] | None = None) -> list[str]:
    """What the corpus cannot answer, in sentences; splits: which runs are named."""
    said = [f"no run of class {kind}: " + ("no false alarms to count there" if kind in CLEAN else "nothing is known of it")
            for kind in evaluation["classes_without_run"]]
    overall = evaluation["detectors"][-1]  # of all runs
    said += [f"no {kind} run is longer than the warm-up of {evaluation['warm_up_samples']} samples: "
             "no false alarms to count there"
             for kind, key in ((kind, kind.replace("-", "_")) for kind in CLEAN)
             if kind not in evaluation["classes_without_run"] and not overall[f"probe_steps_{key}"]]
    if not overall["incidents"]:
        said.append("no run has an incident to be detected: there is no recall and no lead")
    runs = [run for run in evaluation["runs"] if splits is None or run["split"] in splits]
    for outcome, what in (("no operator", "an incident that no operator of the trace shows: in no recall"),
                          ("unknown", "class unknown: in no figure")):
        said += [f"{run['name']}: {what}; {event(run)}" for run in runs if run["outcome"] == outcome]
    calm = [f"{run['name']} ({run['class']})" for run in runs
            if run["outcome"] == "none" and run["class"] not in (*CLEAN, UNKNOWN)]
    if calm:
        said.append(f"without an incident, in no recall: {', '.join(calm)}")
    return said


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows as lines with aligned columns, two spaces before each; those in `left` to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [("  " + "  ".join(cell.ljust(width) if column in left else cell.rjust(width)
                              for column, (cell, width) in enumerate(zip(row, widths)))).rstrip() for row in rows]


def _order(item: tuple[str, int]) -> int:
    return LABELS.index(item[0])


def _quality(entries: Sequence[dict]) -> list[str]:
    rows = [("detector", "recall", "lead, median", "p10", "gradients", "before incident /1k", "before own alarm /1k")]
    for entry in entries:
        rows.append((entry["name"], recall(entry) + interval(entry["recall_interval"]), *_leads(entry), gradients(entry),
                     rate(entry, "before_incident"), rate(entry, "before_own_alarm")))
    return columns(rows)


def gradients(entry: dict, bounds: bool = True) -> str:
    """Overflows of gradients that were forecast, of all; bounds: with the interval of their share."""
    if not entry["gradient_overflows"]:
        return "-"
    return (f"{entry['gradient_overflows_forecast']}/{entry['gradient_overflows']}"
            + (interval(entry["gradient_overflows_interval"]) if bounds else ""))


def _leads(figures: dict) -> list[str]:
    return [steps(figures[key]) + interval(figures[f"{key}_interval"], steps) for key in ("lead_median", "lead_p10")]


def _false_alarms(entries: Sequence[dict]) -> list[str]:
    rows = [("false alarms /1k", *(heading for heading, _ in RATES))]
    rows += [(entry["name"], *(rate(entry, what) for _, what in RATES)) for entry in entries]
    return columns(rows)


def upstream(figures: dict, bounds: bool = True) -> str:
    """Incidents flagged upstream in the same step, of all; bounds: with the interval of their share."""
    if not figures["incidents"]:
        return "-"
    return (f"{figures['upstream_same_step_events']}/{figures['incidents']}"
            + (interval(figures["upstream_same_step_interval"]) if bounds else ""))


def _by_class(entries: Sequence[dict]) -> list[str]:
    """A table for each class that has an incident."""
    lines = []
    for kind in entries[0]["recall_by_class"]:
        rows = [(kind, "recall", "lead, median", "p10", "upstream", "by chance", "before incident /1k", "before own alarm /1k")]
        for entry in entries:
            figures = entry["recall_by_class"][kind]
            rows.append((entry["name"], recall(figures) + interval(figures["recall_interval"]), *_leads(figures),
                         upstream(figures), number(figures["upstream_by_chance"]), rate(figures, "before_incident"),
                         rate(figures, "before_own_alarm")))
        if entries[0]["recall_by_class"][kind]["incidents"]:
            lines += [*columns(rows), ""]
    return lines


def threshold(entry: dict, unit: bool = False) -> str:
    """The threshold of an entry of `matched`; "at most" where the sweep has no more sensitive one. unit: say of what; headroom,
    of which a rule wants the negative, in bits."""
    if unit and entry["unit"].startswith("-"):
        return ("at least " if entry["end_of_sweep"] else "") + f"{-entry['threshold']:g} bits"
    return ("at most " if entry["end_of_sweep"] else "") + f"{entry['threshold']:g}" + (f" ({entry['unit']})" if unit else "")


def _matched(entries: Sequence[dict]) -> list[str]:
    """A table for each rate; nothing without a tuning half."""
    lines = []
    for wanted in dict.fromkeys(entry["rate"] for entry in entries):
        lines.append(f"held-out, every threshold the most sensitive one with at most {wanted:g} near-limit alarms /1k on the "
                     "tuning half")
        rows = [("detector", "threshold", "gradual", "lead, median", "p10", "sudden", "upstream", "by chance", "near-limit /1k",
                 "healthy /1k", "stressed /1k")]
        for entry in (entry for entry in entries if entry["rate"] == wanted):
            held = entry["held_out"]
            if held is None:
                rows.append((entry["rule"], f"none: {number(entry['lowest_rate'])} at least", *[""] * 9))
                continue
            gradual, sudden = held["gradual"], held["sudden"]
            rows.append((entry["rule"], threshold(entry), recall(gradual) + interval(gradual["recall_interval"]),
                         *_leads(gradual), recall(sudden) + interval(sudden["recall_interval"]), upstream(sudden),
                         number(sudden["upstream_by_chance"]), rate(held, "near_limit"), rate(held, "healthy_with_warm_up"),
                         rate(held, "stressed_with_warm_up")))
        lines += [*columns(rows), ""]
    return lines


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
    first, at, without = run["first_incident"], run["event_step"], run["incident_without_operator"]
    if without:
        more = len(without["what"]) - 3
        what = ", ".join(without["what"][:3]) + (f" and {more} more" if more > 0 else "")
        return (f"{what} non-finite at step {without['step']}, and no probe of an operator's output shows the culprit "
                "(to see it, `opd capture --probes output`)")
    if first and at == first["step"]:
        return f"{first['probe']} {first['what']} at step {at}"
    if at is not None:
        return f"event at step {at}"
    if run["outcome"] == "unknown":
        return "not all of the source was understood: whether there was an incident is not known"
    return "no incident"


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
