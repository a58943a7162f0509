"""evaluation.html: the tables and the ROC of an evaluation as one file that works offline, in the style of report.html."""
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from opd.evaluate.tables import RATES, REACHED, absences, event, threshold
from opd.page import page
from opd.report_parts import text as _text
from opd.trace import LABELS

STYLE = Path(__file__).resolve().parents[1] / "report.css"
OWN_STYLE = Path(__file__).with_name("evaluation.css")
SCRIPT = Path(__file__).with_name("evaluation.js")
# Okabe-Ito colours, which colour-blind readers can tell apart; the symbol tells detectors of one colour apart.
COLOURS = ("#1f5fa6", "#86b4e0", "#d55e00", "#e69f00", "#009e73", "#5fc9a8", "#7b4fa3", "#cc79a7", "#7a8592", "#a61b1b",
           "#111111", "#8c6d31", "#b5bcc4", "#56b4e9", "#f0a6ca")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "x", "cross")
FLOOR = 0.01  # false alarms per 1000 at which the logarithmic axis begins; 0 is drawn there


def _number(value: float | None) -> str:
    return '<span class="none">&ndash;</span>' if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return f' <span class="unit">[{_number(bounds[0])}, {_number(bounds[1])}]</span>' if bounds else ""


def _recall(entry: dict) -> str:
    if not entry["incidents"]:
        return _number(None)
    return f"{entry['detected']}/{entry['incidents']}{_interval(entry['recall_interval'])}"


def _steps(value: int | None, bounds: Sequence[int] | None) -> str:
    if value is None:
        return _number(None)
    return f"{value}" + (f' <span class="unit">[{bounds[0]}, {bounds[1]}]</span>' if bounds else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; a title that starts with "#" heads a column of numbers, with "~" one of longer texts."""
    align = [{"#": ' class="n"', "~": ' class="t"'}.get(title[0], "") for title in columns]
    head = "".join(f'<th scope="col"{a}>{title.lstrip("#~")}</th>' for title, a in zip(columns, align))
    body = "".join("<tr>" + "".join(f"<td{a}>{cell}</td>" for cell, a in zip(row, align)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _label(kind: str) -> str:
    return f'<span class="label {_text(kind)}">{_text(kind)}</span>'


def _rate(entry: dict, what: str) -> str:
    return _number(entry[f"false_alarms_{what}_per_1000"]) + _interval(entry[f"false_alarms_{what}_interval"])


def _leads(figures: dict) -> list[str]:
    return [_steps(figures[key], figures[f"{key}_interval"]) for key in ("lead_median", "lead_p10")]


def _upstream(figures: dict) -> str:
    if not figures["incidents"]:
        return _number(None)
    return (f"{figures['upstream_same_step_events']}/{figures['incidents']}"
            f"{_interval(figures['upstream_same_step_interval'])}")


def _gradients(entry: dict) -> str:
    if not entry["gradient_overflows"]:
        return _number(None)
    return (f"{entry['gradient_overflows_forecast']}/{entry['gradient_overflows']}"
            f"{_interval(entry['gradient_overflows_interval'])}")


def _quality(entries: Sequence[dict]) -> str:
    rows = [[_text(entry["name"]), _recall(entry), *_leads(entry), _gradients(entry),
             *(_rate(entry, what) for what in ("before_incident", "before_own_alarm"))] for entry in entries]
    quiet = [[_text(entry["name"]), *(_rate(entry, what) for _, what in RATES)] for entry in entries]
    return (_table(["detector", "#recall", "#lead, median", "#lead, p10", "#gradient overflows forecast",
                    "#false alarms before the incident", "#before its own alarm"], rows)
            + "<h3>False alarms per 1000 probe-steps in runs without an incident</h3>"
            + _table(["detector", *(f"#{heading}" for heading, _ in RATES)], quiet))


def _by_class(entries: Sequence[dict]) -> str:
    """A table for each class with an incident."""
    kinds = [kind for kind, figures in entries[0]["recall_by_class"].items() if figures["incidents"]]
    if not kinds:
        return '<p class="note">No run with an incident: there is no recall and no lead to report.</p>'
    tables = []
    for kind in kinds:
        rows = []
        for entry in entries:
            figures = entry["recall_by_class"][kind]
            rows.append([_text(entry["name"]), _recall(figures), *_leads(figures), _upstream(figures),
                         _number(figures["upstream_by_chance"]),
                         *(_rate(figures, what) for what in ("before_incident", "before_own_alarm"))])
        tables.append(f"<div><h3>{_label(kind)}</h3>"
                      + _table(["detector", "#recall", "#median", "#p10", "#upstream", "#by chance",
                                "#false alarms before the incident", "#before its own alarm"], rows) + "</div>")
    operators = ", ".join(f"{_text(e['name'])} {e['operators_detected']}" for e in entries)
    return (f'<div class="columns">{"".join(tables)}</div><p class="note">Upstream: incidents with an alarm of an earlier '
            "operator in the same step; by chance: the share of steps long before the incident with one. "
            f"Of the {entries[0]['operators']} operators that went non-finite in these runs, with an alarm standing: "
            f"{operators}.</p>")


def _matched(entries: Sequence[dict]) -> str:
    """A table for each rate; nothing without a tuning half."""
    parts = []
    for wanted in dict.fromkeys(entry["rate"] for entry in entries):
        rows = []
        for entry in (entry for entry in entries if entry["rate"] == wanted):
            held = entry["held_out"]
            if held is None:
                rows.append([_text(entry["rule"]), f"none: at least {_number(entry['lowest_rate'])}", *[_number(None)] * 9])
                continue
            gradual, sudden = held["gradual"], held["sudden"]
            rows.append([_text(entry["rule"]), _text(threshold(entry)), _recall(gradual), *_leads(gradual), _recall(sudden),
                         _upstream(sudden), _number(sudden["upstream_by_chance"]), _rate(held, "near_limit"),
                         _rate(held, "healthy_with_warm_up"), _rate(held, "stressed_with_warm_up")])
        parts.append(f"<h3>At most {wanted:g} near-limit alarms per 1000 on the tuning half</h3>"
                     + _table(["rule", "#threshold", "#gradual: recall", "#lead, median", "#lead, p10", "#sudden: recall",
                               "#upstream", "#by chance", "#near-limit", "#healthy", "#stressed"], rows))
    if not parts:
        return ""
    return (f'<section class="matched"><h2>At a matched rate of near-limit alarms</h2>{"".join(parts)}'
            '<p class="note">Threshold: the most sensitive one of the sweep that keeps the rate on the tuning half; all figures '
            "are those of the held-out half. Healthy and stressed with the warm-up.</p></section>")


def _goals(goals: Sequence[dict]) -> str:
    """Nothing when the detector they are about was not evaluated."""
    if not goals:
        return ""
    rows = []
    for goal in goals:
        whole = goal["measured"] is not None and goal["measured"] == int(goal["measured"]) and goal["sense"] == "at least"
        measured = _steps(int(goal["measured"]), goal["interval"]) if whole and goal["goal"] >= 1 else (
            _number(goal["measured"]) + _interval(goal["interval"]))
        state = {True: "yes", False: "no", None: "none"}[goal["reached"]]
        rows.append(f'<tr class="{state}"><td>{_text(goal["name"])}</td><td>{goal["sense"]} {goal["goal"]:g}</td>'
                    f'<td class="n">{measured}</td><td>{REACHED[goal["reached"]]}</td></tr>')
    return (f'<h3>Goals, held against {_text(goals[0]["detector"])}</h3><div class="wide"><table class="goals"><thead><tr>'
            '<th scope="col">goal</th><th scope="col">wanted</th><th scope="col" class="n">measured</th>'
            f'<th scope="col">reached</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>')


def _matrix(runs: Sequence[dict]) -> str:
    """Every run against every detector, class by class: the lead, or the false alarms where there is no incident."""
    names = [said["name"] for said in runs[0]["detectors"]]
    head = "".join(f'<th scope="col" class="up"><span>{_text(name)}</span></th>' for name in names)
    body = "".join(f'<tr><td>{_text(run["name"])}</td><td>{_label(run["class"])}</td>'
                   + "".join(_cell(run, said) for said in run["detectors"]) + "</tr>"
                   for run in sorted(runs, key=lambda run: LABELS.index(run["class"])))
    return ('<div class="wide"><table class="matrix"><thead><tr><th scope="col">run</th><th scope="col">class</th>'
            f"{head}</tr></thead><tbody>{body}</tbody></table></div>")


def _cell(run: dict, said: dict) -> str:
    if run["outcome"] == "no operator":
        return '<td class="c miss">?</td>'
    if not said["has_verdict"]:
        return f'<td class="c {"calm" if said["lead_steps"] is None else "miss"}">&ndash;</td>'
    if said["lead_steps"] is not None:
        upstream = '<span class="unit">&nbsp;u</span>' if said["upstream_same_step"] else ""
        return f'<td class="c {"hit" if said["lead_steps"] else "miss"}">{said["lead_steps"]}{upstream}</td>'
    probe_steps = said["probe_steps"] + said["warm_up_probe_steps"]
    alarms = said["false_alarms"] + said["warm_up_false_alarms"]
    if not alarms:
        return '<td class="c calm">0</td>'
    return f'<td class="c loud">{1000 * alarms / probe_steps:.3g}</td>'


def _cost(entries: Sequence[dict]) -> str:
    rows = [[_text(e["name"]), f"{e['state_bits']:,}", f"{e['operations']:,}",
             ", ".join(f"{count:,} {kind}" for kind, count in e["operations_by_kind"].items()),
             ", ".join(f"{key} {value:g}" for key, value in e["settings"].items()),
             _text(e["source"])] for e in entries]
    return _table(["detector", "#state, bits", "#operations", "of which", "~settings", "~source"], rows)


def _runs(runs: Sequence[dict]) -> str:
    rows = []
    for run in runs:
        incident = _text(event(run)) if run["outcome"] != "none" else _number(None)
        rows.append([_text(run["name"]), _label(run["class"]), _text(run["split"]), f"{run['steps']:,}", f"{run['probes']:,}",
                     incident, f"{_text(run['decided'])} ({_text(run['label_from'])})"])
    return _table(["run", "class", "split", "#steps", "#probes", "~incident", "~label decided by"], rows)


def _figures(split: str, entries: Sequence[dict]) -> list[dict]:
    """ROC of each class without incidents: [] when there is no recall or no such run."""
    figures = []
    for key, runs in (("healthy", "healthy runs"), ("near_limit", "near-limit runs")):
        rate = f"false_alarms_{key}_per_1000"
        lines = []
        for number, entry in enumerate(entries):
            points = [point for point in entry["roc"] if point["recall"] is not None and point[rate] is not None]
            if not points:
                continue
            lines.append({"name": entry["name"], "x": [max(point[rate], FLOOR) for point in points],
                          "y": [point["recall"] for point in points],
                          "text": [f"{entry['unit']} {point['threshold']:g}: {point[rate]:.3g} per 1000, "
                                   f"recall {point['recall']:.2f}" for point in points],
                          "published": [point["threshold"] for point in points].index(entry["threshold"]),
                          "colour": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)]})
        if lines:
            figures.append({"id": f"roc-{split}-{key}", "runs": runs, "floor": FLOOR, "lines": lines})
    return figures


def page_of(evaluation: dict) -> str:
    """The text of evaluation.html."""
    sections, figures = [], []
    for split in dict.fromkeys(entry["split"] for entry in evaluation["detectors"]):
        entries = [entry for entry in evaluation["detectors"] if entry["split"] == split]
        drawn = _figures(split, entries)
        figures += drawn
        plots = [f'<figure><figcaption>ROC by threshold, {figure["runs"]}</figcaption><div id="{figure["id"]}"></div></figure>'
                 for figure in drawn]
        if plots:
            plots.append('<p class="note">One line for each detector as its threshold moves; the large mark is the published '
                         f"setting. Rates below {FLOOR} are drawn at {FLOOR}.</p>")
        sections += [f"<section><h2>Split {_text(split)}</h2>", _quality(entries),
                     '<p class="note">Recall: first incidents with an alarm standing. Lead in training steps, a miss counts 0. '
                     "Gradient overflows: those under a loss scale that were forecast. False alarms per 1000 probe-steps.</p>",
                     _by_class(entries), *plots,
                     _goals([goal for goal in evaluation["goals"] if goal["split"] == split]), "</section>"]
    first = [entry for entry in evaluation["detectors"] if entry["split"] == evaluation["detectors"][0]["split"]]
    absent = "".join(f"<li>{_text(sentence)}</li>" for sentence in absences(evaluation))
    count = len(evaluation["runs"])
    body = [
        f'<h1>Detectors on {count} {"run" if count == 1 else "runs"}</h1>',
        f'<p class="sub">Definitions: docs/evaluation.md. Intervals are {100 * evaluation["confidence"]:g} %: exact '
        f'(Clopper-Pearson) for recall, bootstrap over runs for the rest, seed {evaluation["seed"]}; a figure of fewer than '
        'two runs has none. '
        f'Operators judged: {_text(", ".join(evaluation["kinds"]))}.</p>',
        f'<h3>What this corpus cannot answer</h3><ul class="note">{absent}</ul>' if absent else "",
        *sections, _matched(evaluation["matched"]),
        "<section><h2>Cost</h2>", _cost(first),
        '<p class="note">Per operator and per sample. State without the controller, which is the same for all; shifts and '
        "selections are not counted.</p></section>",
        "<section><h2>Runs</h2>", _matrix(evaluation["runs"]),
        '<p class="note">Runs with an incident: lead in steps (0: a miss), u: an operator upstream raised an alarm in the same '
        "step; ?: no operator of the trace shows it. The others: alarms per 1000 probe-steps, warm-up included. &ndash;: not "
        "enough samples for a verdict.</p>",
        _runs(evaluation["runs"]), "</section>"]
    return page("opd evaluation", STYLE.read_text("ascii") + OWN_STYLE.read_text("ascii"), "\n".join(body), json.dumps(figures),
                SCRIPT.read_text("ascii"))
