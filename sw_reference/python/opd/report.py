"""report.html: what a replay found, as one file that works offline.

`opd replay --out DIR` calls write(); by hand: python -m opd.report DIR TRACE...

Reads DIR/summary.json, for each trace the records of one path (cpu when it ran; all paths hold the same when the run has no
mismatch) and the baseline beside them, and the trace itself. The page holds every number once, as base64 of little-endian
arrays [P, S]; report.js draws the operator that is chosen. Definitions of all figures: docs/metrics.md.
"""
from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opd import report_compute, report_incidents, report_policy
from opd.arguments import Parser
from opd.files import write_whole
from opd.page import page
from opd.records import RECORD, magnitudes
from opd.registers import CONFIG_RESET, Cause, Flag, Mode, Order
from opd.report_parts import DASH, count, duration, label, number, size, table, text
from opd.trace import FORMATS, Trace, TraceError
from opd.triage import Triage, of_file

NO_RECORD = 255   # in the page's mode array: the detection unit never saw that completion
LEAD_WINDOW = 128  # docs/metrics.md "Lead"
OPEN_INCIDENTS = 12  # a longer list is folded
SHOWN_EVENTS = 500  # per trace
_REPLAY_AGAIN = "run `opd replay` again with the same --out"


class ReportError(ValueError):
    """Files of a replay that cannot be reported. The text is "FILE: what is wrong; remedy"."""

    def __init__(self, file: Path | str, wrong: str, remedy: str):
        super().__init__(f"{file}: {wrong}; {remedy}")


def write(out_dir: str, trace_files: list[str]) -> str:
    """Writes OUT_DIR/report.html from the files of a replay and returns its path.

    trace_files: the traces that were replayed, any order. Raises ReportError, or TraceError for a trace that cannot be read.
    """
    out = Path(out_dir)
    summary = _read_summary(out / "summary.json")
    traces = {trace.name: trace for trace in map(Trace.read, trace_files)}
    told = {found.name: found for found in map(of_file, trace_files)}
    entries = []
    for entry in summary["traces"]:
        if any(entry["name"] == other["name"] for other, _ in entries):  # their records went to the same files
            raise ReportError(out / "summary.json", f"two traces are named {entry['name']}", "replay them into two folders")
        if entry["name"] not in traces:
            raise ReportError(out / "summary.json", f"trace {entry['name']} is none of the given trace files",
                              f"give {entry['file']} as well")
        entry.setdefault("compute", None)  # written before operators could be computed
        entries.append((entry, traces[entry["name"]]))
    payload = {
        "flags": [flag.name for flag in Flag], "modes": [mode.name for mode in Mode], "causes": [cause.name for cause in Cause],
        "risk_stable": summary["config"]["risk_stable"], "risk_safe": summary["config"]["risk_safe"],
        "z_threshold": summary["config"]["z_threshold"], "order": Order(summary["config"]["published_order"]).name,
        "traces": [_trace_payload(out, entry, trace) | {"incident_pages": report_incidents.payload(trace, told[trace.name])}
                   for entry, trace in entries],
    }
    report = out / "report.html"
    try:
        write_whole(report, _page(out, summary, entries, payload, told).encode())
    except OSError as error:
        raise ReportError(report, f"cannot be written ({error.strerror})", "check the folder and its free space") from None
    return str(report)


# --- files of a replay -----------------------------------------------------------------------------------------------------

def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ReportError(file, f"cannot be read ({error.strerror})", _REPLAY_AGAIN) from None


def _read_summary(file: Path) -> dict:
    data = _read_bytes(file)
    try:
        summary = json.loads(data)
    except ValueError:
        raise ReportError(file, "is not JSON", _REPLAY_AGAIN) from None
    if not isinstance(summary, dict) or (summary.get("format"), summary.get("version")) != ("opd-summary", 1):
        raise ReportError(file, "is not an opd-summary of version 1", _REPLAY_AGAIN)
    if "verdict" not in summary:
        raise ReportError(file, "has no verdict", _REPLAY_AGAIN)
    return summary


def _read_array(file: Path, dtype: np.dtype) -> np.ndarray:
    data = _read_bytes(file)
    if len(data) % dtype.itemsize:
        raise ReportError(file, f"{len(data)} bytes are no multiple of {dtype.itemsize}", _REPLAY_AGAIN)
    return np.frombuffer(data, dtype)


def read_records(file: str | Path) -> np.ndarray:
    """Records of one path: structured array of dtype RECORD, in seq order. Raises ReportError."""
    return _read_array(Path(file), RECORD)


# --- data of the page ------------------------------------------------------------------------------------------------------

def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _source_path(entry: dict) -> str | None:
    """The path whose records are drawn."""
    return "cpu" if "cpu" in entry["paths"] else next(iter(entry["paths"]), None)


def _accumulators(entry: dict) -> dict[int, int]:
    """Operators of the device that are accumulators of others: number of each, and of its operator."""
    operators = entry["compute"]["operators"] if entry["compute"] else []
    return {operator["accumulator_op"]: operator["op"] for operator in operators if operator["accumulator_op"] is not None}


def _operator_names(entry: dict, trace: Trace) -> dict[int, str]:
    """Names by operator number: probes, then accumulators."""
    names = {op: probe.name for op, probe in enumerate(trace.probes)}
    return names | {op: f"{names[owner]}/accumulator" for op, owner in _accumulators(entry).items()}


def _trace_payload(out: Path, entry: dict, trace: Trace) -> dict:
    steps, probes = len(trace.step), len(trace.probes)
    max_abs = np.full((probes, steps), np.nan, "<f4")
    baseline = np.full((probes, steps), np.nan, "<f4")
    z = np.full((probes, steps), np.nan, "<f4")
    flags = np.zeros((probes, steps), "<u2")
    mode = np.full((probes, steps), NO_RECORD, "u1")
    risk = np.zeros((probes, steps), "u1")
    cause = np.zeros((probes, steps), "u1")
    nonfinite = np.zeros((probes, steps), "<u4")
    path = _source_path(entry)
    if path is not None:
        file = out / f"{trace.name}.{path}.records"
        records = read_records(file)
        column = np.searchsorted(trace.step, records["step"]).clip(max=steps - 1)
        if np.any(records["op"] >= probes + len(_accumulators(entry))) or np.any(trace.step[column] != records["step"]):
            raise ReportError(file, f"holds operators or steps that {entry['file']} does not have", _REPLAY_AGAIN)
        shown = records["op"] < probes  # accumulators have no row of their own
        cell = (records["op"][shown], column[shown])
        max_abs[cell] = magnitudes(records["max_mag"], records["format"])[shown]
        for target, field in ((flags, "flags"), (mode, "mode"), (risk, "risk"), (cause, "cause"), (nonfinite, "nonfinite_count")):
            target[cell] = records[field][shown]
        for target, name in ((baseline, "baseline"), (z, "z")):
            file = out / f"{trace.name}.{name}"
            if path != "cpu" or not file.exists():
                continue
            values = _read_array(file, np.dtype("<f8"))
            if len(values) != len(records):
                raise ReportError(file, f"{len(values)} values for {len(records)} records", _REPLAY_AGAIN)
            target[cell] = values[shown]

    limits = np.array([FORMATS[probe.format].max_value for probe in trace.probes], np.float32)
    went_bad = np.flatnonzero(nonfinite.any(axis=1))
    owners = _accumulators(entry)
    first = entry["first_incident"]
    largest = np.nan_to_num(max_abs, nan=0.0).max(axis=1)
    payload = {
        "name": trace.name,
        "path": path,
        "step": trace.step.tolist(),
        "probes": [{"name": probe.name, "kind": probe.kind, "format": probe.format, "shape": list(probe.shape),
                    "limit": float(limit), "raw": probe.name in trace.raw} for probe, limit in zip(trace.probes, limits)],
        "default_op": owners.get(first["op"], first["op"]) if first else int(np.argmax(largest / limits)),
        "incidents": [incident for incident in entry["incidents"] if incident["op"] < probes],
        "hints": entry["host"]["hints"] if entry["host"] else [],
        "raw_windows": _windows(trace),
        # [P, S]: value of operator p at step index s
        "max_abs": _base64(max_abs), "baseline_log2": _base64(baseline), "z": _base64(z), "flags": _base64(flags), "mode": _base64(mode),
        "risk": _base64(risk), "cause": _base64(cause),
        # [S] for each operator that ever was non-finite
        "nonfinite": {str(op): _base64(nonfinite[op]) for op in went_bad},
        # [S] or absent
        "series": {name: _base64(values.astype("<f4")) for name in ("loss", "grad_norm", "loss_scale")
                   if (values := getattr(trace, name)) is not None},
    }
    if trace.loss_scale is not None:
        payload["scale_log2"] = np.clip(np.frexp(trace.loss_scale)[1] - 1, -128, 127).tolist()  # floor(log2), exact
    return payload


def _windows(trace: Trace) -> list[list[int]]:
    """[first, last] step of each run of neighbouring steps that have raw elements."""
    if trace.raw_step is None:
        return []
    index = np.searchsorted(trace.step, trace.raw_step)
    runs = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)
    return [[int(trace.step[run[0]]), int(trace.step[run[-1]])] for run in runs if run.size]


def _lead(steps: int) -> str:
    if steps == 0:
        return '0 <span class="unit">(no warning)</span>'
    return ("&ge;&thinsp;" if steps >= LEAD_WINDOW else "") + str(steps)


# --- sections --------------------------------------------------------------------------------------------------------------

def _mismatch_kind(kind: dict) -> str:
    """One paragraph: the first place, and of several their number and the last place."""
    first, last = kind["first"], kind["last"]
    line = f"<p><b>{text(first['trace'])}</b>, first: <code>{text(first['text'])}</code>."
    if kind["count"] > 1:
        traces = f" in {kind['traces']} traces" if kind["traces"] > 1 else ""
        line += (f" {kind['count']:,} of this kind ({text(' and '.join(kind['paths']))}: {text(kind['quantity'])}){traces}; the last in "
                 f"<b>{text(last['trace'])}</b>: <code>{text(last['text'])}</code>.")
    return line + "</p>"


def _verdict(out: Path, summary: dict) -> str:
    paths = list(dict.fromkeys(path for entry in summary["traces"] for path in entry["paths"]))
    counts = (f"{summary['records_compared']:,} records, {summary['beats_compared']:,} beats, "
              f"{summary['events_compared']:,} events and {summary['cycles_compared']:,} cycles compared")
    if summary["states_compared"] is not None:
        counts += f", with {summary['states_compared']:,} stored states"
    if summary["mismatches"]:
        lines = [f'<div class="verdict bad"><p><strong>{count(summary["mismatches"], "mismatch", "es")}</strong>'
                 f" in {counts}.</p>"]
        lines += [_mismatch_kind(kind) for kind in summary["mismatch_kinds"]]
        for entry in summary["traces"]:
            if "waveform" in entry:
                lines.append(f"<p><b>{text(entry['name'])}</b>: waveform <code>{text(entry['waveform'])}</code>, for GTKWave "
                             f"<code>{text(entry['waveform_view'])}</code>.</p>")
        return "".join(lines) + "</div>"
    lines = []
    for entry in summary["traces"]:
        if entry["verdict"] == "nothing compared":
            lines.append(f"<p><b>{text(entry['name'])}</b>: <strong>nothing was compared.</strong> Only "
                         f"{text(', '.join(entry['paths']) or 'no path')} ran; a comparison needs two paths.</p>")
        elif entry["verdict"] == "path missing":
            missing = "; ".join(f"{path}: {reason}" for path, reason in entry["paths_skipped"].items())
            lines.append(f"<p><b>{text(entry['name'])}</b>: <strong>a path that was asked for did not run</strong> "
                         f"({text(missing)}).</p>")
    if lines or summary["verdict"] != "equal":
        return ('<div class="verdict idle">' + ("".join(lines) or "<p><strong>Nothing was compared.</strong></p>") +
                f"<p>{counts[0].upper() + counts[1:]}.</p></div>")
    return (f'<div class="verdict good"><p><strong>Equal.</strong> {text(", ".join(paths))}: {counts}, '
            "<strong>0&nbsp;mismatches</strong>.</p></div>")


def _head(out: Path, summary: dict) -> str:
    operators = sum(entry["steps"] * entry["probes"] for entry in summary["traces"])
    device = summary["device"]
    parameters = [("operators", device["num_ops"]), ("datapath", f"{device['datapath_width']} bits"),
                  ("streams", device["num_streams"]), ("op queue", f"{device['queue_depth']} completions"),
                  ("event queue", f"{device['event_depth']} events"), ("counters", f"{device['counter_width']} bits"),
                  ("engines", " and ".join(name for name in ("forecast", "published") if device[f"{name}_engine"])),
                  ("risk profile", text(summary["profile"]))]
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in parameters)
    return (f"<header><h1>Replay report</h1><p class=\"sub\">{count(len(summary['traces']), 'trace')}, {operators:,} operator "
            "executions replayed through models of the on-chip overflow-precursor detector</p>"
            f"{_verdict(out, summary)}<dl class=\"device\">{shown}</dl></header>")


def _pair(entry: dict, comparison: dict) -> str:
    """What the cross-check says of two paths; beside a mismatch, in how many records: it may have stopped the run."""
    left, right = text(comparison["left"]), text(comparison["right"])
    if comparison["mismatches"]:
        return f"<b>{left}&thinsp;&ne;&thinsp;{right}</b>"
    if not comparison["records"] and not comparison["events"] and not comparison["executions"]:
        # Records are compared with those of the first path; of two others the hosts: without events, hints and counts alone.
        if entry["mismatches"] or comparison["left"] == entry["comparisons"][0]["left"]:
            return f"{left}, {right} not compared"
        return f"{left}&thinsp;=&thinsp;{right} (hints, counts)"
    return f"{left}&thinsp;=&thinsp;{right}" + (f" in {count(comparison['records'], 'record')}" if entry["mismatches"] else "")


def _crosscheck(summary: dict) -> str:
    rows, skipped = [], {}
    for entry in summary["traces"]:
        bad = "alert" if entry["mismatches"] else ""
        pairs = ", ".join(_pair(entry, comparison) for comparison in entry["comparisons"])
        rows.append((bad, [text(entry["name"]), label(entry["label"]), f"{entry['steps']:,}", f"{entry['probes']:,}",
                           f"{entry['operators_raw']:,}", f"{entry['operators_statistic']:,}", f"{entry['records_compared']:,}",
                           f"{entry['beats_compared']:,}", f"{entry['cycles_compared']:,}", f"{entry['events_compared']:,}",
                           f"{entry['mismatches']:,}" if entry["verdict"] != "nothing compared" else DASH, pairs or DASH]))
        for skip in entry["paths_skipped"].items():
            skipped.setdefault(skip, []).append(entry["name"])
    if len(rows) > 1:
        rows.append(("total", ["all", "", "", "", "", "", *(f"{summary[key]:,}" for key in (
            "records_compared", "beats_compared", "cycles_compared", "events_compared", "mismatches")), ""]))
    told = "".join(f"<li><b>{text(path)}</b> skipped for {text(', '.join(names))}: {text(reason)}</li>"
                   for (path, reason), names in skipped.items())
    return ("<section><h2>Cross-check</h2>" +
            table(["trace", "label", "#steps", "#probes", "#raw ops", "#statistic ops", "#records", "#beats", "#cycles",
                    "#events", "#mismatches", "~pairs of paths"], rows) +
            '<p class="note">Records are compared bit for bit by seq; rtl and systemc also every output pin in every cycle; what a '
            "host's driver read (events one by one, hints, mode counts and last clean step at the end) with the reference. "
            "A <i>raw op</i> went element by element through the datapath, a <i>statistic op</i> through the sideband.</p>" +
            (f'<ul class="skipped">{told}</ul>' if told else "") + "</section>")


def _spread_cycles(spread: dict) -> str:
    low, high = spread["minimum"], spread["maximum"]
    return f"{low:.0f}" if low == high else f"{low:.0f}..{high:.0f}"


def _mapped_clock(summary: dict) -> float | None:
    """Slowest path of the mapped device in nanoseconds; None where the summary has no synthesis figures."""
    synthesis = summary.get("synthesis")
    return synthesis["parts"]["opd_top"]["critical_path_ns"] if synthesis else None


def _overhead_row(entry: dict, figures: dict, clock: float | None) -> list[str]:
    """One path of one trace: path, basis, reaction, worst, sideband waits in clocks, bytes re-read, operations, time per step, energy, run time.

    clock: nanoseconds of one cycle, None when no clock is known: then cycles have no time."""
    path = text(figures["path"]) + ("" if figures["ran"] else ' <b class="unit">not run</b>')
    basis = figures["reaction"]["basis"]
    reaction = worst = DASH
    if basis == "counted":
        ways = [(name, figures["reaction"][key]) for name, key, ops in (
            ("tap", "cycles", "operators_raw"), ("sideband", "sideband_cycles", "operators_statistic")) if entry[ops] and figures["reaction"][key]]
        reaction = "<br>".join(f"{name} {_spread_cycles(spread)} cycles" for name, spread in ways) or DASH
        if clock is not None:
            worst = "<br>".join(f"{duration(spread['maximum'] * clock)} <span class=\"unit\">mapped clock</span>" for _, spread in ways) or DASH
    elif basis == "modelled":
        reaction = duration(figures["reaction"]["nanoseconds"])
    elif basis == "measured" and figures["reaction"]["nanoseconds"]:
        reaction = duration(figures["reaction"]["nanoseconds"]["median"])
        worst = f"{duration(figures['reaction']['nanoseconds']['p99'])} <span class=\"unit\">p99</span>"
    step = figures.get("microseconds_per_step")
    return [path, f'<span class="basis {basis}">{basis}</span>', reaction, worst,
            f"{figures['sideband_wait_cycles']:,}" if "sideband_wait_cycles" in figures else DASH, size(figures["extra_element_bytes"]),
            f"{figures['extra_operations']:,}" if "extra_operations" in figures else DASH,
            duration(step * 1e3) if step is not None else DASH,
            f"{number(figures['energy']['nanojoule_per_operator'])}&nbsp;nJ" if "energy" in figures else DASH,
            duration(figures["seconds"] * 1e9) if "seconds" in figures else DASH]


def _overhead(summary: dict) -> str:
    rows, models, unseen = [], {}, []
    clock = _mapped_clock(summary)
    for entry in summary["traces"]:
        for position, figures in enumerate(entry["reaction_and_overhead"]):
            rows.append(("first" if position == 0 else "",
                         [text(entry["name"]) if position == 0 else "", *_overhead_row(entry, figures, clock)]))
            if figures["reaction"]["basis"] == "modelled":
                assumptions = {key: value for key, value in figures["reaction"]["assumptions"].items() if key != "bytes_per_operator"}
                models[json.dumps(assumptions, sort_keys=True)] = assumptions
            if figures.get("unseen"):
                unseen.append(f"<li>{text(entry['name'])}, {text(figures['path'])}: {count(figures['unseen'], 'completion')} "
                              "found the op queue full and were never seen by the detection unit</li>")
    notes = ["<i>Reaction</i>: from an operator's last element to the new value of its mode register. <i>Bytes re-read</i>: element "
             "bytes that the path reads a second time. <i>Run time</i>: of the path itself, simulators included, on this machine.",
             "<i>counted</i>: clock cycles of the simulated device, from the edge that samples the last beat to the first edge "
             "that can use the new mode. " +
             (f"In time at the mapped clock: the slowest path of the netlist below, {clock:.1f}&nbsp;ns (180&nbsp;nm, without wires). No "
              "faster clock has been mapped, so this is no figure for a modern process." if clock is not None else
              "Without synthesis figures no clock is known, and cycles have no time."),
             "<i>annotated</i>: the loosely timed model states its delay and measures none.",
             "<i>measured</i>: wall time on this machine for statistic, detection and decision of one operator (median, "
             "99th percentile)."]
    if any(figures["reaction"]["basis"] == "emulated" for entry in summary["traces"] for figures in entry["reaction_and_overhead"]):
        notes.append("<i>emulated</i>: the CUDA kernels, executed on the CPU from nvcc's PTX. Its records count; its run time is the emulation's, "
                     "and no figure of a GPU.")
    for a in models.values():
        notes.append("<i>modelled</i>: a GPU without the unit. That path <b>did not run</b>: computed, <b>not measured</b>, from these assumptions: kernel launch and "
                     f"synchronisation {a['launch_and_synchronise_us']}&nbsp;&micro;s, host decision "
                     f"{a['host_decision_us']}&nbsp;&micro;s, register write {a['register_write_us']}&nbsp;&micro;s, memory "
                     f"{a['bandwidth_bytes_per_us'] / 1e6:g}&nbsp;TB/s. Sources: <code>docs/metrics.md</code>.")
    notes.append("<i>Operations</i>: arithmetic that the path adds over the trace. <i>Energy per op</i>: always modelled, for one mean raw "
                 "operator: the tap's comparisons and counters, against reading the elements again from HBM2.")
    return ("<section><h2>Reaction and overhead</h2>" +
            table(["trace", "path", "basis", "#reaction", "#worst", "#sideband waits, clocks", "#bytes re-read", "#operations",
                    "#time per step", "#energy per op", "#run time"], rows) +
            '<ul class="note">' + "".join(f"<li>{note}</li>" for note in notes) + "</ul>" +
            (f'<ul class="skipped">{"".join(unseen)}</ul>' if unseen else "") + "</section>")


def _synthesis(summary: dict) -> str:
    """Area, state and critical path of the RTL, when the summary has them."""
    figures = summary.get("synthesis")
    if not figures:
        return ""
    rows = [[text(name), f"{part['area_um2']:,.0f}", f"{part['nand2_equivalents']:,.0f}", f"{part['state_bits']:,.0f}",
             f"{part['critical_path_ns']:.2f}"] for name, part in figures["parts"].items()]
    per_op = figures["per_op"]
    rows.append(["each further operator", f"{per_op['area_um2']:,.0f}", f"{per_op['nand2_equivalents']:,.0f}",
                 f"{per_op['state_bits']:,.0f}", DASH])
    told = ", ".join(f"{text(name)} {value:,}" for name, value in figures["parameters"].items())
    return ("<section><h2>Area and critical path</h2>" +
            table(["module", "#area (&micro;m&sup2;)", "#NAND2 equivalents", "#state bits", "#critical path (ns)"], rows) +
            f'<p class="note">Mapped to {text(figures["library"])} (180&nbsp;nm), without wires; {told}. State is made of flip-flops '
            "here; a product would use an SRAM for the operators.</p></section>")


def _detection(summary: dict) -> str:
    rows, flag_rows, incidents = [], [], []
    raised = [flag.name for flag in Flag if any(entry["detection"]["flags"].get(flag.name) for entry in summary["traces"])]
    for entry in summary["traces"]:
        quality, first = entry["detection"], entry["first_incident"]
        happened = ([f"step {first['step']:,}, {text(first['probe'])}", _lead(first["lead_steps"]), text(first["mode_before"])]
                    if first else ["none", DASH, DASH])
        rows.append([text(entry["name"]), label(entry["label"]), f"{quality['probe_steps']:,}", f"{quality['alarms']:,}",
                     f"{quality['alarms_per_1000']:.3f}", f"{quality['downshifts']:,}", *happened, f"{len(entry['incidents']):,}"])
        flag_rows.append([text(entry["name"]), *(f"{quality['flags'].get(name, 0):,}" for name in raised),
                          f"{quality['records_with_alarm_flags']:,}"])
        for i in entry["incidents"]:
            alarm = i["first_alarm_step"]
            incidents.append([text(entry["name"]), f"{i['step']:,}", f"{i['op']}", text(i["probe"]), _lead(i["lead_steps"]),
                              f"{alarm:,}" if alarm is not None else DASH, text(i["mode_before"])])
    parts = ["<section><h2>Detection</h2>",
             table(["trace", "label", "#probe-steps", "#alarms", "#per 1000", "#downshifts", "~first incident", "#lead (steps)",
                     "mode then", "#operators non-finite"], rows),
             '<p class="note">An <i>alarm</i> is a record with a risk of at least RISK.STABLE before its operator goes non-finite; '
             "an <i>incident</i> is an operator's first non-finite value; its <i>lead</i> counts the steps for which the alarm was "
             f"standing, at most {LEAD_WINDOW}. On traces labelled healthy or near-limit every alarm is a false one. Replay is open "
             "loop: the trace's elements do not change when a mode does" +
             (", but for the operators that the vector unit computed." if any(entry["compute"] for entry in summary["traces"]) else ".") +
             "</p>"]
    parts.append(table(["trace", *(f"#{name}" for name in raised), "#records with an alarm flag"], flag_rows,
                        "Records with each flag"))
    if any(entry["lead_when_sampled"] for entry in summary["traces"]):
        parts.append('<figure class="small"><figcaption>Lead of the first incident, and alarms per 1000 samples, when software '
                     'looks only at every n-th step</figcaption><div id="sampled-lead" class="plot"></div></figure>')
    if incidents:
        state = " open" if len(incidents) <= OPEN_INCIDENTS else ""
        parts.append(f'<details class="incidents"{state}><summary>'
                     f"All {count(len(incidents), 'incident')}</summary>" +
                     table(["trace", "#step", "#op", "~operator", "#lead (steps)", "#first alarm at step", "mode then"], incidents) +
                     "</details>")
    return "".join(parts) + "</section>"


def _engines(summary: dict) -> str:
    """What each engine flags, and what would have been decided under its risk profile."""
    rows = []
    for entry in summary["traces"]:
        for position, engine in enumerate(entry["engines"]):
            z = engine["largest_z"]
            incident = entry["first_incident"]
            rows.append(("first" if position == 0 else "", [
                text(entry["name"]) if position == 0 else "", label(entry["label"]) if position == 0 else "",
                text(engine["name"]), text(engine["order"]) if engine["order"] else DASH, f"{engine['records_flagged']:,}",
                f"{engine['alarms']:,}", f"{engine['alarms_per_1000']:.3f}", f"{engine['downshifts']:,}",
                _lead(engine["lead_steps"]) if incident else DASH, text(engine["mode_before"]) if incident else DASH,
                f"{number(z['z'])}" if z else DASH,
                f"step {z['step']:,}, {text(z['probe'])}" if z else DASH]))
    if not rows:
        return ""
    return ("<section><h2>Both engines</h2>" +
            table(["trace", "label", "engine", "order", "#records flagged", "#alarms", "#per 1000", "#downshifts",
                    "#lead (steps)", "mode then", "#largest z", "~at"], rows) +
            '<p class="note">Each engine under its own risk profile on the same records, whatever profile this replay ran with '
            f"({text(summary['profile'])}). <i>forecast</i>: FORECAST, CRITICAL, JUMP. <i>published</i>: Z and D2, the rule of the "
            "literature, scored before or after mean and variance take the sample in; scored after, z cannot pass "
            "&radic;((W&minus;1)/2), 7.97 for a window of 128, however large the outlier.</p></section>")


def _factor(value: float) -> str:
    """A factor on a setting of the training loop: 1/256, 0.1."""
    inverse = 1 / value if value > 0 else 0
    return f"1/{inverse:.0f}" if value < 1 and inverse == round(inverse) else f"{value:.3g}"


def _asked(factors: dict) -> str:
    names = (("loss_scale", "loss scale"), ("clip_threshold", "clip threshold"), ("learning_rate", "learning rate"))
    parts = [f"{told} &times;&thinsp;{_factor(factors[name])}" for name, told in names if factors[name] != 1]
    return ", ".join(parts) or "its own settings again"


def _flag_names(bits: int) -> str:
    return ", ".join(flag.name for flag in Flag if bits >> flag & 1) or DASH


def _host(entries: list[tuple[dict, Trace]]) -> str:
    """What the driver read, and what the training loop was asked to do."""
    rows, parts = [], []
    for entry, trace in entries:
        host = entry["host"]
        if not host:
            continue
        figures = next(f for f in entry["reaction_and_overhead"] if f["path"] == host["path"])
        changes = host["learning_rate_changes"]
        rows.append([text(entry["name"]), text(host["path"]), f"{len(host['events']):,}", f"{host['events_lost']:,}",
                     *(f"{figures[key]:,}" if key in figures else DASH for key in ("event_high_water", "queue_high_water")),
                     f"{len(host['hints']):,}", f"{host['stable_ops']:,}", f"{host['safe_ops']:,}",
                     f"{host['last_clean_step']:,}" if host["last_clean_step"] is not None else "none",
                     ", ".join(map(str, changes[:6])) + (" &hellip;" if len(changes) > 6 else "") or DASH])
        if host["hints"]:
            asked = [[f"{hint['step']:,}", _asked(hint["factors"])] for hint in host["hints"]]
            parts.append(f"<details{' open' if len(asked) <= OPEN_INCIDENTS else ''}><summary>{text(entry['name'])}: what the "
                         f"training loop was asked to do, {count(len(asked), 'change')}</summary>" +
                         table(["#step", "~from here on"], asked) + "</details>")
        if host["events"]:
            names = _operator_names(entry, trace)
            events = [[f"{e['step']:,}", f"{e['op']}", text(names[e["op"]]), f"{e['old_mode']} &rarr; {e['new_mode']}"
                       if e["old_mode"] != e["new_mode"] else text(e["new_mode"]), text(e["cause"]), _flag_names(e["flags"]),
                       f"{e['risk']}"] for e in host["events"][:SHOWN_EVENTS]]
            rest = len(host["events"]) - len(events)
            parts.append(f"<details><summary>{text(entry['name'])}: {count(len(host['events']), 'event')}</summary>" +
                         table(["#step", "#op", "~operator", "mode", "cause", "~flags", "#risk"], events) +
                         (f'<p class="note">{rest:,} more in summary.json.</p>' if rest else "") + "</details>")
    if not rows:
        return ""
    return ("<section><h2>Host</h2>" +
            table(["trace", "path", "#events", "#lost", "#event queue", "#op queue", "#hint changes", "#STABLE at end", "#SAFE at end",
                    "#last clean step", "~learning-rate changes at step"], rows) +
            '<p class="note">What the driver beside the device read through its registers. <i>event queue</i>, <i>op queue</i>: '
            "largest levels. A hint is a factor on the training loop's own settings; the trace was recorded without a loop that "
            "follows it.</p>" + "".join(parts) + "</section>")


def _trace_section(index: int, entry: dict, trace: Trace) -> str:
    facts = [f"{entry['steps']:,} steps", f"{entry['probes']:,} operators",
             f"{size(entry['raw_bytes'])} of raw elements" if entry["raw_bytes"] else "statistics only"]
    facts += [text(value) for value in (trace.model, trace.framework) if value]
    if trace.seed:
        facts.append(f"seed {text(trace.seed)}")
    title = f'<h2>{text(entry["name"])} {label(entry["label"])}</h2><p class="sub">{" &middot; ".join(facts)}</p>'
    manifest = json.dumps(trace.manifest, indent=2, sort_keys=True) if trace.manifest else ""
    foot = f"<details><summary>Manifest</summary><pre>{text(manifest)}</pre></details>" if manifest else ""
    path = _source_path(entry)
    if path is None:
        return f'<section class="trace">{title}<p class="note">No path was run: there are no records to draw.</p>{foot}</section>'
    first = entry["first_incident"]
    shown = f" Shown first: {text(first['probe'])}, the operator of the first incident." if first else ""
    wide = " An operator that was computed in STABLE or SAFE writes BF16 there, and may pass that limit." if entry["compute"] else ""
    options = "".join(f'<option value="{op}">{op}: {text(probe.name)}</option>' for op, probe in enumerate(trace.probes))
    return (f'<section class="trace" data-trace="{index}">{title}'
            "<h3>Where trouble starts</h3>"
            '<p class="note">Headroom of every operator at every step: how many doublings the largest magnitude is away from the '
            "format's limit. Click a row to see that operator below; zooming one picture zooms the other.</p>"
            '<div class="plot heat"></div>'
            f'<h3 class="operator"><label for="op-{index}">Operator</label> <select id="op-{index}">{options}</select></h3>'
            '<p class="note facts" aria-live="polite"></p><div class="plot detail"></div>'
            f'<p class="note">Records of path {text(path)}.{shown} z is that of the published engine, from the first sample that it '
            "scores. The limit is the format's largest finite magnitude. The device keeps "
            f"the baseline of a gradient with the loss scale taken out; it is drawn with the scale put back.{wide}</p>"
            f"{foot}</section>")


def _registers(config: dict) -> str:
    changed = sum(config[name] != CONFIG_RESET.get(name) for name in config)
    rows = []
    for name, value in config.items():
        reset = CONFIG_RESET.get(name)
        shown = (lambda v: f"{v:.6g}" if isinstance(v, float) else str(v))
        bits = f"{value / 32:.2f}" if name.startswith("limit_") or name in (
            "forecast_headroom", "forecast_headroom_scaled", "critical_headroom", "jump_threshold", "jump_headroom",
            "jump_headroom_scaled", "desensitise_jump") else DASH
        rows.append(("changed" if value != reset else "", [f"<code>{text(name)}</code>", shown(value), bits,
                                                           shown(reset) if reset is not None else DASH]))
    half = -(-len(rows) // 2)
    blocks = "".join(table(["field", "#value", "#log2", "#reset"], rows[i:i + half]) for i in range(0, len(rows), half))
    told = "all at their reset value" if not changed else f"{changed} changed from the reset value (bold)"
    documents = [("docs/metrics.md", "alarm, lead, reaction, overhead, energy"), ("docs/numerics.md", "flags, baseline, risk"),
                 ("docs/controller.md", "modes"), ("docs/registers.md", "meaning and range of every field"),
                 ("docs/architecture.md", "paths, timing"), ("docs/programming.md", "events, hints, the host"), ("docs/formats.md", "records and traces")]
    shown = "".join(f"<li><code>{file}</code>: {what}</li>" for file, what in documents)
    return (f'<section><h2>Registers</h2><p class="note">Configuration of every path in this replay: {told}.</p>'
            f'<div class="columns">{blocks}</div><h3>Definitions</h3><ul class="documents">{shown}</ul></section>')


def _page(out: Path, summary: dict, entries: list[tuple[dict, Trace]], payload: dict, told: dict[str, Triage]) -> str:
    payload["lead_when_sampled"] = [{"name": entry["name"], "leads": entry["lead_when_sampled"]} for entry, _ in entries
                                    if entry["lead_when_sampled"]]
    body = "".join([
        _head(out, summary), "\n", _crosscheck(summary), "\n", report_policy.section(summary), "\n", _overhead(summary), "\n",
        _synthesis(summary), "\n", _detection(summary), "\n", _engines(summary), "\n", _host(entries), "\n",
        "<noscript><p class=\"verdict idle\">The plots need JavaScript.</p></noscript>\n",
        "\n".join(_trace_section(i, entry, trace) + report_incidents.section(i, told[trace.name]) + report_compute.section(i, entry, trace)
                  for i, (entry, trace) in enumerate(entries)), "\n",
        _registers(summary["config"])])
    here = Path(__file__)
    style, script = here.with_suffix(".css").read_text("ascii"), here.with_suffix(".js").read_text("ascii")
    style += report_incidents.STYLE.read_text("ascii")
    script += report_incidents.SCRIPT.read_text("ascii")
    if any(entry["compute"] for entry, _ in entries):
        style += report_compute.STYLE.read_text("ascii")
    if computed := report_compute.payload(entries):
        body += computed
        script += report_compute.SCRIPT.read_text("ascii")
    return page("opd replay: " + ", ".join(entry["name"] for entry, _ in entries), style, body,
                json.dumps(payload, separators=(",", ":"), allow_nan=False), script)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m opd.report", description="Write DIR/report.html from the files of a replay.",
                    epilog="Exit status: 0 written, 2 bad input.")
    parser.add_argument("dir", metavar="DIR", help="folder that `opd replay --out` wrote")
    parser.add_argument("traces", metavar="TRACE", nargs="+", help="the traces that were replayed")
    options = parser.parse_args(arguments)
    try:
        print(write(options.dir, options.traces))
    except (ReportError, TraceError) as error:
        print(f"opd.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    from opd.__main__ import run

    sys.exit(run(main))
