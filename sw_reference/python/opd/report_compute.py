"""What the computing vector unit did, as a section of report.html: one for each trace that was replayed with --compute.

The sentences, tables and bars are HTML; report_compute.js draws the operator that is chosen from a block of data of its own
(payload()), which holds what is drawn and nothing else. A replay without --compute has neither. Definitions: docs/metrics.md
"Compute".
"""
from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from opd.registers import Mode
from opd.report_parts import DASH, count, number, size, table, text
from opd.trace import FORMATS, Trace
from opd.trace_layout import KERNELS

STYLE = Path(__file__).with_suffix(".css")
SCRIPT = Path(__file__).with_suffix(".js")
MODES = tuple(mode.name for mode in Mode)
SHOWN_OPERATORS = 12  # a longer list is folded
SHOWN_RUNS = 6  # of steps, in a sentence
WIDE_RANGE = ("FP32", "BF16")  # formats whose limit would flatten a picture of accumulators


# --- answers ---------------------------------------------------------------------------------------------------------------

def _overflows(operator: dict, mode: str) -> list[dict]:
    return [step for step in operator["steps"] if step["modes"][mode]["overflow"]]


def _avoided(operator: dict) -> tuple[int, int]:
    """Overflows of FAST that did not happen in the mode that ran, and all of them."""
    fast = _overflows(operator, "FAST")
    return sum(not step["overflow"] for step in fast), len(fast)


def _worst_first(operators: Sequence[dict]) -> list[dict]:
    """What overflowed as it ran, then what would have in SAFE, STABLE, FAST; then the earliest."""
    def key(operator: dict):
        modes = operator["modes"]
        first = [modes[mode]["first_overflow_step"] for mode in MODES if modes[mode]["first_overflow_step"] is not None]
        return (-operator["overflows"], *(-modes[mode]["overflows"] for mode in reversed(MODES)), min(first, default=0), operator["op"])
    return sorted(operators, key=key)


def _step_list(steps: Sequence[int], trace: Trace) -> str:
    """"step 7", "steps 7..9, 12": runs of neighbouring steps of the trace."""
    index = np.searchsorted(trace.step, steps)
    runs = [[steps[i] for i in run] for run in np.split(np.arange(len(steps)), np.flatnonzero(np.diff(index) > 1) + 1)]
    told = ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:SHOWN_RUNS])
    rest = sum(map(len, runs[SHOWN_RUNS:]))
    return ("step " if len(steps) == 1 else "steps ") + told + (f" and {rest:,} more" if rest else "")


def _mode_clauses(operator: dict, trace: Trace) -> str:
    """"FAST overflows at steps 3..5; STABLE and SAFE do not"."""
    clauses, fine = [], []
    for mode in MODES:
        found = _overflows(operator, mode)
        if not found:
            fine.append(mode)
            continue
        inside = sum(step["modes"][mode]["nonfinite"] == 0 for step in found)
        where = f"{'' if inside == len(found) else f', at {inside:,} of them'} in its accumulators alone" if inside else ""
        clauses.append(f"{mode} overflows at {_step_list([step['step'] for step in found], trace)}{where}")
    if fine:
        clauses.append(" and ".join(fine) + (" does not" if len(fine) == 1 else " do not"))
    return "; ".join(clauses)


def _downshift(operator: dict) -> str | None:
    """First step after the first overflow of FAST at which the operator was issued in another mode: "12", or "12 at the latest"."""
    first = operator["modes"]["FAST"]["first_overflow_step"]
    others = [operator["modes"][mode]["first_issue_step"] for mode in ("STABLE", "SAFE")]
    after = [step for step in others if step is not None and step > first]
    computed = [step["step"] for step in operator["steps"] if step["step"] > first and step["mode"] != "FAST"]
    if not after and not computed:
        return None
    found = min(after + computed)
    recovered = any(step is not None and step < first for step in others)  # an earlier downshift hides the first after a recovery
    return f"{found}" + (" at the latest" if recovered else "")


def _verdict_of(operator: dict, force_mode: str | None) -> str:
    """What the mode that it was issued in made of the overflows of FAST."""
    avoided, all_of_them = _avoided(operator)
    if not all_of_them:
        return f"it overflowed at {count(operator['overflows'], 'step')} as issued"
    if all_of_them == 1:
        outcome = "the overflow was avoided" if avoided else "the overflow happened"
    else:
        share = f"all {avoided:,} overflows" if avoided == all_of_them else f"{f'{avoided:,}' if avoided else 'none'} of {all_of_them:,} overflows"
        outcome = f"{share} {'was' if avoided < 2 else 'were'} avoided"
    if force_mode is not None:
        return f"forced to {force_mode}, {outcome}"
    first = operator["modes"]["FAST"]["first_overflow_step"]
    if operator["lead_steps"]:
        mode = next(step["mode"] for step in operator["steps"] if step["step"] == first)
        return (f"out of FAST since step {first - operator['lead_steps']}, {count(operator['lead_steps'], 'step')} earlier, and issued in {mode}, "
                f"so {outcome}")
    downshift = _downshift(operator)
    if downshift is None:
        return f"issued in FAST to the end, so {outcome}"
    late = int(downshift.split()[0]) - first
    return f"the downshift came {count(late, 'step')} after the first, at step {downshift}, so {outcome}"


def _answer(operator: dict, force_mode: str | None, trace: Trace) -> str:
    """One operator's outcome, without its name; plain text."""
    if not operator["steps"]:
        return "only its shape is in the trace: it has a cost, and nothing was computed"
    if not any(operator["modes"][mode]["overflows"] for mode in MODES):
        return f"no mode overflows at any of its {count(len(operator['steps']), 'step')}"
    return f"{_mode_clauses(operator, trace)}. {_capital(_verdict_of(operator, force_mode))}"


def _capital(told: str) -> str:
    return told[:1].upper() + told[1:]


def _cost_of(operator: dict) -> str:
    """What the modes that it was issued in cost; plain text."""
    cycles = {mode: operator["modes"][mode]["cost"]["cycles"] for mode in MODES}
    issued = {mode: operator["modes"][mode]["issued"] for mode in MODES}
    all_fast, as_issued = sum(issued.values()) * cycles["FAST"], sum(issued[mode] * cycles[mode] for mode in MODES)
    told = ", ".join(f"{issued[mode]:,} in {mode} at {count(cycles[mode], 'clock')}" for mode in MODES if issued[mode])
    added = as_issued - all_fast
    return (f"Issued {told}: {count(as_issued, 'clock')}, " +
            (f"{number(abs(100 * added / all_fast))} % {'more' if added > 0 else 'less'} than all in FAST" if added else "as all in FAST"))


# --- section ---------------------------------------------------------------------------------------------------------------

def _shape(operator: dict) -> str:
    if operator["depth"]:
        batch = f"{operator['batch']:,} \u00d7 " if operator["batch"] != 1 else ""
        return f"{batch}{operator['rows']:,} \u00d7 {operator['columns']:,}, depth {operator['depth']:,}"
    return f"{operator['rows']:,} \u00d7 {operator['columns']:,}"


def _attribute(operator: dict) -> str:
    kernel = KERNELS.get(operator["kernel"])
    value = operator["attribute"]
    return f", {kernel.attribute} {value:.6g}" if kernel and kernel.attribute and value is not None else ""


def _framework(operator: dict) -> list[str]:
    """FAST against the output in the trace, in three cells: how many differ, why, how far."""
    figures = operator["framework"]
    if figures is None:
        return [DASH, "", ""]
    if not figures["different"]:
        return ["equal", f'<span class="unit">{count(figures["elements"], "element")}</span>', ""]
    ulps = figures["ulps"]
    furthest = next((name for name in ("more", "5-8", "3-4", "2", "1", "0") if ulps[name]), "0")
    far = {"more": "more than 8&nbsp;ulp", "0": ""}.get(furthest, f"up to {furthest[-1]}&nbsp;ulp")
    if ulps["nonfinite"]:
        far += ("; " if far else "") + f"{ulps['nonfinite']:,} finite on one side only"
    wide = f"; {figures['different_wide']:,} with FP32" if figures["cause"] == "accumulator width" else ""
    return [f"{figures['different']:,} of {figures['elements']:,} differ", text(figures["cause"] or "cause not known") + wide, far]


def _error(value: float | None) -> str:
    return DASH if value is None else "0" if value == 0 else f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")


def _ulps(value: float | None) -> str:
    return _error(value) if value is None or value == 0 or value >= 1e5 else number(value)


def _rows(operators: Iterable[dict]) -> Iterable[tuple[str, list[str]]]:
    """Three rows for each operator, one for each mode."""
    for operator in operators:
        names = [f"<b>{text(operator['probe'])}</b>", f"{text(operator['kernel'])}, {text(operator['format'])}",
                 f'<span class="unit">{_shape(operator)}{text(_attribute(operator))}</span>']
        for position, (mode, name, against) in enumerate(zip(MODES, names, _framework(operator))):
            figures, cost = operator["modes"][mode], operator["modes"][mode]["cost"]
            first = figures["first_overflow_step"]
            overflows = f"{figures['overflows']:,}" if operator["steps"] else DASH
            kind = " ".join(word for word, chosen in (("first", position == 0), ("over", figures["overflows"])) if chosen)
            yield kind or "mode", [
                name, mode, f"{figures['issued']:,}", overflows, f"{first:,}" if first is not None else DASH,
                _error(figures["largest_relative"]), _ulps(figures["largest_ulps"]), f"{cost['cycles']:,}", size(cost["bytes_read"]),
                size(cost["bytes_written"]), against]


def _bar(cycles: int, base: int, largest: int) -> str:
    """The clocks of all FAST, and what comes on top."""
    width, foot = 1000 * cycles / largest, 1000 * min(base, cycles) / largest
    return ('<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="added" width="{width:.1f}" height="10"/><rect class="base" width="{foot:.1f}" height="10"/></svg>')


def _cost(entry: dict) -> str:
    compute = entry["compute"]
    cost = compute["cost"]
    policies = {policy["policy"]: policy for policy in cost["policies"]}
    issued, base = policies["as issued"], policies["all FAST"]["cycles"]
    largest = max(max(policy["cycles"] for policy in policies.values()), 1)
    force_mode = compute["force_mode"]
    how = f"forced to {force_mode}" if force_mode is not None else "in the modes that the controller chose"
    more = "as many as all in FAST" if issued["cycles"] == base else (
        f"{number(abs(issued['added_percent']))} % {'more' if issued['cycles'] > base else 'fewer'} than all in FAST")
    rows = []
    for name, policy in policies.items():
        shown = f"SAFE for {cost['culprit']} alone" if name == "SAFE for the culprit" else name
        changes = [f"{policy['added_percent']:+.1f} %", f"{policy['throughput_lost_percent']:.1f} %"] if name != "all FAST" else [DASH, DASH]
        claimed = policy["claimed_lost_percent"]
        rows.append(("total" if name == "as issued" else "mode", [
            text(shown), _bar(policy["cycles"], base, largest), f"{policy['cycles']:,}", *changes, f"{text(claimed)} %" if claimed else DASH]))
    executed = f"{count(cost['executions'], 'execution')} of {count(cost['operators'], 'operator')} over {count(entry['steps'], 'step')}"
    return (f"<h3>What it costs</h3><p>{executed}, {text(how)}: <strong>{count(issued['cycles'], 'clock')}</strong> of the vector unit, {more}.</p>"
            '<div class="policies">' +
            table(["policy", "", "#clocks", "#added", "#throughput lost", "#the article says"], rows) + "</div>"
            '<p class="note">By the formula of <code>docs/vector_unit.md</code>, every operator of the list once a step, those included of '
            "which only the shape is known. <i>Throughput lost</i>: 1 &minus; all FAST / clocks. <i>The article</i> that proposed the three modes "
            "counts whole training steps of a model of 13 billion parameters on GPUs, this table the clocks of one vector unit for the listed "
            "operators: the two are not the same measure.</p>")


def _answers(operators: Sequence[dict], compute: dict, trace: Trace) -> str:
    """The answer in one sentence, then operator by operator."""
    computed = [operator for operator in operators if operator["steps"]]
    over = [operator for operator in computed if any(operator["modes"][mode]["overflows"] for mode in MODES)]
    if not computed:
        return "<p><strong>Nothing was computed</strong>: only shapes of operators are in the trace.</p>"
    if not over:
        return f'<p class="verdict good"><strong>No mode overflows</strong> in any of {count(len(computed), "computed operator")}.</p>'
    counts = {mode: sum(operator["modes"][mode]["overflows"] > 0 for operator in computed) for mode in MODES}
    avoided, fast = map(sum, zip(*map(_avoided, computed)))
    happened = sum(operator["overflows"] for operator in computed)
    told = ", ".join(f"{counts[mode] or 'none'} in {mode}" for mode in MODES)
    share = "The" if fast == avoided else f"{avoided:,} of"
    kept = f" {share} {count(fast, 'overflow')} of FAST did not happen in the mode that ran." if fast else ""
    items = []
    for operator in over:
        name = f"<b>{text(operator['probe'])}</b> ({text(operator['kernel'])}, {text(operator['format'])})"
        bad = ' class="bad"' if operator["overflows"] else ""
        items.append(f"<li{bad}>{name}: {text(_answer(operator, compute['force_mode'], trace))}.</li>")
    shown, rest = items[:SHOWN_OPERATORS], items[SHOWN_OPERATORS:]
    return (f'<p class="verdict {"idle" if happened else "good"}"><strong>Of {count(len(computed), "computed operator")}, those that overflow: '
            f"{told}.</strong>{kept} As issued, {count(happened, 'execution') if happened else 'no execution'} overflowed.</p>"
            f'<ul class="answers">{"".join(shown)}</ul>' +
            (f'<details><summary>{count(len(rest), "more operator")} that overflow</summary><ul class="answers">{"".join(rest)}</ul></details>'
             if rest else ""))


def _setting(compute: dict) -> str:
    accumulator = {"per-operator": "as wide as each operator has them", "narrow": "all in the operator's own format",
                   "wide": "all in FP32"}
    facts = [f"{count(compute['executions'], 'execution')} computed by each path that computes",
             f"{compute['executions_compared']:,} of them ({count(compute['elements_compared'], 'element')}) compared bit for bit",
             f"accumulators of FAST {accumulator.get(compute['accumulator'], compute['accumulator'])}",
             "saturating casts" if compute["saturate"] else "casts to infinity",
             f"{count(compute['fp64_lanes'], 'FP64 adder')}, tiles of {count(compute['matrix_rows'], 'row')}"]
    if compute["force_mode"] is not None:
        facts.insert(0, f"forced to {compute['force_mode']}")
    return " \u00b7 ".join(facts)


def _picture(index: int, operators: Sequence[dict]) -> str:
    """The choice of an operator, and where it is drawn."""
    computed = sorted((operator for operator in operators if operator["steps"]), key=lambda operator: operator["op"])
    if not computed:
        return ""
    options = "".join(f'<option value="{operator["op"]}">{operator["op"]}: {text(operator["probe"])}</option>' for operator in computed)
    keys = "".join(f'<span class="key"><i class="{mode.lower()}"></i>{mode}</span>' for mode in MODES)
    return (f'<h3 class="operator"><label for="compute-op-{index}">Operator</label> '
            f'<select id="compute-op-{index}">{options}</select></h3>'
            '<p class="answer" aria-live="polite"></p><p class="note cost"></p>'
            f'<p class="keys">{keys}<span class="key"><i class="ran"></i>mode that ran</span>'
            '<span class="key"><i class="cross"></i>overflows</span>'
            '<span class="key"><i class="band stable"></i><i class="band safe"></i>issued in STABLE, in SAFE</span></p>'
            '<div class="plot computed"></div>'
            '<p class="note">Every step whose operands are in the trace, computed in all three modes on the same operands: largest finite '
            "magnitudes. The limit is that of the operator&rsquo;s own format; STABLE and SAFE write BF16 unless that is FP32. Accumulators of "
            "SAFE are of compressed operands. Errors are the largest of an output against binary64, over elements that are finite in both; an "
            "exact output is drawn hollow at the foot.</p>")


def _operators(operators: Sequence[dict]) -> str:
    """The table of all: first those that were computed, folded where they are many or only a shape is known."""
    columns = ["operator", "mode", "#issued", "#overflows", "#first at", "#largest relative error", "#in ulp", "#clocks", "#read", "#written",
               "FAST against the output in the trace"]
    shown = [operator for operator in operators if operator["steps"]][:SHOWN_OPERATORS] or operators[:SHOWN_OPERATORS]
    known = {operator["op"] for operator in shown}
    rest = [operator for operator in operators if operator["op"] not in known]
    shapes = sum(not operator["steps"] for operator in rest)
    told = count(len(rest), "more operator")
    if shapes:
        told += f", {'' if shapes == len(rest) else f'{shapes:,} '}of which only the shape is known"
    return ('<div class="operators">' + table(columns, _rows(shown)) +
            (f"<details><summary>{told}</summary>{table(columns, _rows(rest))}</details>" if rest else "") +
            '<p class="note"><i>issued</i>: of all steps of the trace. <i>overflows</i>, errors: of the steps with operands. Errors are against '
            "binary64, in units in the last place of the format that the mode writes: one of BF16 is eight of FP16. Clocks and bytes are of one "
            "execution. <i>n with FP32</i>: elements that differ with FP32 accumulators, too. Definitions: <code>docs/metrics.md</code>, "
            "<i>Compute</i>.</p></div>")


def section(index: int, entry: dict, trace: Trace) -> str:
    compute = entry["compute"]
    if not compute:
        return ""
    operators = _worst_first(compute["operators"])
    return (f'<section class="compute" data-compute="{index}"><h2>{text(entry["name"])}: computed in three modes</h2>'
            f'<p class="sub">{text(_setting(compute))}</p>' + _answers(operators, compute, trace) + _picture(index, operators) +
            _cost(entry) + "<h3>Operators</h3>" + _operators(operators) + "</section>")


# --- data of the pictures --------------------------------------------------------------------------------------------------

def _array(values, dtype: str) -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode("ascii")


def _series(operator: dict, key: str) -> str | None:
    """[3, S] of one figure, NaN where there is none; None where there is none at all."""
    values = np.array([[step["modes"][mode][key] for step in operator["steps"]] for mode in MODES], np.float64)
    with np.errstate(over="ignore"):
        return None if np.isnan(values).all() else _array(values, "<f4")


def _limit_of_accumulators(operator: dict, accumulator: str) -> float | None:
    """Of FAST, where it is near enough to be drawn (docs/numerics.md "Modes")."""
    kernel = KERNELS.get(operator["kernel"])
    wide = accumulator == "wide" or (accumulator != "narrow" and (kernel is None or kernel.is_matrix))
    return None if wide or operator["format"] in WIDE_RANGE else float(FORMATS[operator["format"]].max_value)


def _operator_payload(operator: dict, compute: dict, trace: Trace) -> dict:
    bad = [[m, s, figures["nonfinite"], figures["accumulator_nonfinite"], int(figures["overflow"])]
           for m, mode in enumerate(MODES) for s, step in enumerate(operator["steps"])
           if (figures := step["modes"][mode])["overflow"] or figures["nonfinite"] or figures["accumulator_nonfinite"]]
    return {
        "op": operator["op"], "format": operator["format"], "limit": float(FORMATS[operator["format"]].max_value),
        "accumulator_limit": _limit_of_accumulators(operator, compute["accumulator"]),
        "answer": f"{operator['kernel']}, {operator['format']}, {_shape(operator)}: {_answer(operator, compute['force_mode'], trace)}.",
        "cost": _cost_of(operator) + ".",
        "step": [step["step"] for step in operator["steps"]],
        "mode": _array([MODES.index(step["mode"]) for step in operator["steps"]], "u1"),
        "bad": bad,  # [mode, step index, non-finite elements, non-finite writes into accumulators, overflow]
        **{name: _series(operator, key) for name, key in (("largest", "largest"), ("accumulator", "accumulator_largest"),
                                                         ("relative", "largest_relative"), ("ulps", "largest_ulps"))},
    }


def payload(entries: Sequence[tuple[dict, Trace]]) -> str:
    """The block of data that report_compute.js reads; "" where nothing was computed."""
    traces = {str(index): {"default_op": computed[0]["op"], "operators": [_operator_payload(o, compute, trace) for o in computed]}
              for index, (entry, trace) in enumerate(entries) if (compute := entry["compute"])
              if (computed := [o for o in _worst_first(compute["operators"]) if o["steps"]])}
    if not traces:
        return ""
    data = json.dumps({"modes": MODES, "traces": traces}, separators=(",", ":"), allow_nan=False)
    return '<script type="application/json" id="computed">' + data.replace("<", "\\u003c") + "</script>\n"
