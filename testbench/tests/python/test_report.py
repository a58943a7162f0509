"""opd.report: the page is one file, says what the summary says, and holds the numbers of the records."""
import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import opd.report
import opd.triage
import pytest

from opd.registers import CONFIG_RESET, Cause, Flag, Format, Mode
from opd.report import NO_RECORD, RECORD, ReportError, magnitudes, main, read_records, write
from opd.trace import FORMATS, Probe, Trace, TraceError

NASTY = 'mlp<b>&"out\'</script>'  # an operator's name may be any text
STEPS = [10, 11, 13, 20, 21, 22]
PROBES = (Probe("attn.qk", "activation", "FP16", (4, 8)), Probe(NASTY, "activation", "E4M3", (32,)),
          Probe("grad.qkv", "gradient", "BF16", (2, 2)), Probe("norm", "activation", "FP32", (3,)))
NONFINITE_AT = (4, 0)  # step index, operator


def make_trace(name: str = "small") -> Trace:
    rng = np.random.default_rng(7)
    shape = (len(STEPS), len(PROBES))
    max_abs = rng.uniform(1, 200, shape).astype(np.float32)
    max_abs[2, 3] = 0  # all zeros: no logarithm
    for op, probe in enumerate(PROBES):
        max_abs[:, op] = max_abs[:, op].astype(FORMATS[probe.format].numpy).astype(np.float32)
    nonfinite = np.zeros(shape, np.int64)
    nonfinite[NONFINITE_AT] = 5
    raw = np.zeros((3, 32), np.float16)
    raw[:, 0] = max_abs[1:4, 0]
    return Trace(name=name, label="gradual", probes=PROBES, step=np.array(STEPS, np.int64), max_abs=max_abs, nonfinite=nonfinite,
                 first_bad_step=STEPS[NONFINITE_AT[0]], first_bad_op="attn.qk", model="<i>tiny</i>", seed="3",
                 manifest={"lr": "<0.1>"}, loss=np.array([4, 3, 2, 2, np.nan, np.inf], np.float32),
                 loss_scale=np.array([1024, 1024, 1023, 2048, 2048, 0.5], np.float32),
                 raw_step=np.array(STEPS[1:4], np.int64), raw={"attn.qk": raw})


def make_records(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Records in an order other than the program's, one completion unseen, and a baseline for each."""
    rng = np.random.default_rng(11)
    records, seq = [], 0
    for s, step in enumerate(trace.step):
        for op in (1, 0, 2, 3):
            probe = trace.probes[op]
            dtype = FORMATS[probe.format].numpy
            if (s, op) == (3, 2):  # dropped by a full queue: seq is used up
                seq += 1
                continue
            bits = int(np.asarray(trace.max_abs[s, op]).astype(dtype).view(f"u{dtype.itemsize}"))
            count = int(trace.nonfinite[s, op])
            records.append((seq, step, op, Format[probe.format], rng.integers(len(Mode)), bits, count, 0 if count else 0xFFFFFFFF,
                            0, rng.integers(256), rng.integers(256), rng.integers(len(Cause))))
            seq += 1
    baseline = np.round(rng.uniform(-2000, 2000, len(records))) / 128
    baseline[:4] = np.nan
    return np.array(records, RECORD), baseline


def make_entry(trace: Trace, records: np.ndarray) -> dict:
    spread = {"minimum": 4, "median": 4, "p99": 4, "maximum": 4}
    incident = {"op": 0, "probe": "attn.qk", "step": 21, "lead_steps": 8, "first_alarm_step": 13, "mode_before": "STABLE"}
    device = {"records": len(records), "unseen": 1, "seconds": 0.25}
    engine = {"order": None, "records_flagged": 1357, "alarms": 24, "alarms_per_1000": 1.5, "downshifts": 3, "lead_steps": 8,
              "mode_before": "STABLE", "largest_z": None}
    event = {"step": 13, "op": 1, "old_mode": "FAST", "new_mode": "STABLE", "cause": "RISK", "flags": 1 << Flag.Z, "risk": 129}
    return {
        "name": trace.name, "file": trace.name + ".safetensors", "label": trace.label, "kind": "raw", "steps": len(STEPS),
        "probes": len(PROBES), "operators_raw": 3, "operators_statistic": 21, "raw_bytes": 192,
        "paths": ["rtl", "systemc", "cpu"], "paths_skipped": {"cuda": "no <CUDA> device"},
        "records_compared": len(records), "beats_compared": 12345, "cycles_compared": 67890, "events_compared": 246,
        "mismatches": 0, "verdict": "equal",
        "comparisons": [{"left": "rtl", "right": other, "records": len(records), "events": 246, "executions": 0, "mismatches": 0}
                        for other in ("systemc", "cpu")],
        "compute": None, "lead_steps": 8, "first_incident": incident, "incidents": [incident],
        "detection": {"probe_steps": len(records), "alarms": 4321, "alarms_per_1000": 17.25, "records_with_alarm_flags": 9,
                      "downshifts": 2, "flags": {flag.name: int(flag) for flag in Flag}},
        "engines": [{"name": "forecast", **engine},
                    {"name": "published", **engine, "order": "AFTER", "lead_steps": 0,
                     "largest_z": {"z": 7.875, "op": 1, "probe": NASTY, "step": 20}}],
        "host": {"path": "rtl", "events_lost": 2, "events": [event, {**event, "old_mode": "STABLE", "cause": "ESCALATE"}],
                 "hints": [{"step": 13, "factors": {"loss_scale": 0.00390625, "clip_threshold": 0.5, "learning_rate": 1.0}},
                           {"step": 20, "factors": {"loss_scale": 0.00390625, "clip_threshold": 0.5, "learning_rate": 6554 / 65536}},
                           {"step": 21, "factors": {"loss_scale": 1.0, "clip_threshold": 1.0, "learning_rate": 1.0}}],
                 "stable_ops": 1, "safe_ops": 0, "last_clean_step": None, "learning_rate_changes": [11, 20]},
        "lead_when_sampled": [{"every": 1, "lead_steps": 8, "alarms_per_1000": 0.5},
                              {"every": 2, "lead_steps": 7, "alarms_per_1000": 1.5}],
        "reaction_cycles": 12,
        "reaction_and_overhead": [
            *({"path": path, "ran": True, **device, "reaction": {"basis": "counted", "cycles": spread, "sideband_cycles": {**spread, "maximum": 5.0}},
               "cycles": 67890, "beats": 12345, "sideband_wait_cycles": 0, "queue_high_water": 2, "event_high_water": 6, "extra_element_bytes": 0}
              for path in ("rtl", "systemc")),
            {"path": "cpu", "ran": True, **device, "reaction": {"basis": "measured", "nanoseconds": {**spread, "median": 1234.0, "p99": 5678.0}},
             "extra_element_bytes": 192, "microseconds_per_step": 41.7},
            {"path": "cuda", "ran": False, "extra_element_bytes": 192, "extra_operations": 960,
             "reaction": {"basis": "modelled", "nanoseconds": 11600.0,
                          "assumptions": {"launch_and_synchronise_us": 6.7, "host_decision_us": 0.1, "register_write_us": 1.0,
                                          "bandwidth_bytes_per_us": 4.8e6, "bytes_per_operator": 64.0}},
             "energy": {"basis": "modelled", "nanojoule_per_operator": 2.0}}],
    }


COMPUTED_STEPS = STEPS[2:]  # 13, 20, 21, 22
CYCLES = {"FAST": 80, "STABLE": 81, "SAFE": 906}
ERRORS = ("largest_relative", "mean_relative", "largest_ulps", "mean_ulps")


def computed_operator(op: int, probe: str, kernel: str, own_format: str, ran: str = "", overflow: dict | None = None, inside: bool = False,
                      lead_steps: int | None = None, issued: dict | None = None, **others) -> dict:
    """An operator of `compute`. ran: the modes of its steps, one letter each, A for SAFE. overflow: indices of steps for each mode; inside:
    in the accumulators alone. issued: executions and first step for each mode."""
    names, overflow = {"F": "FAST", "S": "STABLE", "A": "SAFE"}, overflow or {}
    issued = issued or {"FAST": [len(STEPS), STEPS[0]]}
    rng = np.random.default_rng(op)
    steps = []
    for s, (step, letter) in enumerate(zip(COMPUTED_STEPS, ran)):
        modes = {}
        for mode in CYCLES:
            over = s in overflow.get(mode, ())
            gone = over and not inside  # no finite element is left
            modes[mode] = {"overflow": over, "nonfinite": 7 if gone else 0, "accumulator_nonfinite": 3 if over and inside else 0,
                           "largest": 0.0 if gone else float(rng.uniform(1, 60000)),
                           "accumulator_largest": float(rng.uniform(1, 1e6)) if inside else None, "elements": 0 if gone else 32,
                           **{key: None if gone else float(rng.uniform(1e-4, 1e-3)) for key in ERRORS}}
        steps.append({"step": step, "mode": names[letter], "format": own_format, "accumulator": "FP32", "compensated": False,
                      "compressed": False, "saturating": False, "operands_finite": True, "overflow": modes[names[letter]]["overflow"],
                      "modes": modes, "framework": None})
    figures = dict(zip(ERRORS, (0.000446968, 1e-4, 0.75, 0.25) if steps else (None,) * 4))
    modes = {mode: {"issued": issued.get(mode, [0, None])[0], "first_issue_step": issued.get(mode, [0, None])[1],
                    "overflows": len(overflow.get(mode, ())),
                    "first_overflow_step": COMPUTED_STEPS[overflow[mode][0]] if mode in overflow else None, "elements": 32, **figures,
                    "cost": {"passes": 2, "beats": 80, "cycles": cycles, "bytes_read": 3072, "bytes_written": 1024}}
             for mode, cycles in CYCLES.items()}
    return {"op": op, "probe": probe, "accumulator_op": None, "kernel": kernel, "format": own_format, "batch": 1, "rows": 4, "columns": 8,
            "depth": 0, "attribute": None, "operands": [], "overflows": sum(step["overflow"] for step in steps), "lead_steps": lead_steps,
            "modes": modes, "framework": None, "steps": steps, **others}


def difference(different: int, cause: str | None, wide: int | None, ulps: dict) -> dict:
    return {"elements": 3072, "different": different, "different_wide": wide, "cause": cause,
            "ulps": dict.fromkeys(("0", "1", "2", "3-4", "5-8", "more", "nonfinite"), 0) | ulps}


def make_compute() -> dict:
    """Scores that overflow at three steps and are downshifted at the second, squares that overflow in their accumulators, an operator of
    which only the shape is known, and a norm that never overflows."""
    def policy(name, cycles, added, lost, claimed=None):
        return {"policy": name, "cycles": cycles, "added_percent": added, "throughput_lost_percent": lost, "claimed_lost_percent": claimed}

    return {
        "executions": 12, "executions_compared": 12, "elements_compared": 13824, "force_mode": None, "accumulator": "per-operator",
        "saturate": False, "fp64_lanes": 8, "matrix_rows": 16,
        "operators": [
            computed_operator(0, "attn.qk", "matmul", "FP16", "FFSA", {"FAST": [1, 2, 3], "STABLE": [3]}, lead_steps=0, batch=2, depth=24,
                              attribute=0.5, issued={"FAST": [4, 10], "STABLE": [1, 21], "SAFE": [1, 22]},
                              framework=difference(1, "order of summation", 1, {"0": 3071, "1": 1})),
            computed_operator(1, NASTY, "sum_of_squares", "E4M3", "SSSS", {"FAST": [0]}, inside=True, lead_steps=2, accumulator_op=4,
                              issued={"FAST": [1, 10], "STABLE": [5, 11]},
                              framework=difference(807, "accumulator width", 5, {"0": 2265, "1": 746, "3-4": 61})),
            computed_operator(2, "grad.qkv", "linear", "BF16", depth=7),
            computed_operator(3, "norm", "rms_norm", "FP32", "FFFF", framework=difference(0, None, None, {"0": 3072})),
        ],
        "cost": {"operators": 4, "executions": 24, "culprit": NASTY, "policies": [
            policy("as issued", 19422, 14.62, 12.76), policy("all FAST", 16944, 0.0, 0.0),
            policy("SAFE for the culprit", 36768, 117.0, 53.92, "5 to <8>"), policy("all SAFE", 106968, 531.3, 84.16, "over 40")]},
    }


class Replay:
    """The folder that a replay of one small trace leaves behind."""

    def __init__(self, folder):
        self.out = folder
        self.trace = make_trace()
        self.file = str(folder / "small.safetensors")
        self.trace.write(self.file)
        self.records, self.baseline = make_records(self.trace)
        for path in ("rtl", "systemc", "cpu"):
            self.records.tofile(folder / f"small.{path}.records")
        self.baseline.astype("<f8").tofile(folder / "small.baseline")
        self.z = np.random.default_rng(13).normal(size=len(self.records))
        self.z[:7] = np.nan
        self.z.astype("<f8").tofile(folder / "small.z")
        self.entry = make_entry(self.trace, self.records)
        self.config = dict(CONFIG_RESET)
        self.synthesis = None
        self.mismatch_kinds = []

    def write(self) -> str:
        totals = {key: self.entry[key] for key in ("records_compared", "beats_compared", "cycles_compared", "events_compared",
                                                   "mismatches")}
        device = {"num_ops": 256, "datapath_width": 512, "num_streams": 4, "queue_depth": 8, "counter_width": 32, "event_depth": 16,
                  "forecast_engine": True, "published_engine": True}
        summary = {"format": "opd-summary", "version": 1, "device": device, "profile": "published", "config": self.config, "synthesis": self.synthesis,
                   "traces": [self.entry], **totals, "states_compared": None, "mismatch_kinds": self.mismatch_kinds,
                   "verdict": self.entry["verdict"]}
        (self.out / "summary.json").write_text(json.dumps(summary))
        path = write(str(self.out), [self.file])
        assert path == str(self.out / "report.html")
        return (self.out / "report.html").read_text("utf-8")


@pytest.fixture
def replay(tmp_path):
    return Replay(tmp_path)


class Page(HTMLParser):
    """Tags, visible text and the payload of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.text, self.scripts, self._inside = [], [], [], None
        self.feed(html)
        self.payload = json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "data"))
        self.words = " ".join(" ".join(self.text).split())  # no-break and thin spaces become plain ones

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs))

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside and self._inside[0] == "script":
            self.scripts.append((self._inside[1], data))
        elif not self._inside or self._inside[0] != "style":
            self.text.append(data)


def decode(text: str, dtype: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def test_page_loads_nothing(replay):
    html = replay.write()
    page = Page(html)
    assert len(page.tags) > 100
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "base"), tag
        assert not attributes.keys() & {"src", "href", "srcset", "action", "style", "onclick"}, (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert sum("Plotly" in text and len(text) > 1_000_000 for _, text in page.scripts) == 1
    assert len(page.scripts) == 4  # data, what closes the page, plotly, the page's own
    for directive in ("connect-src 'none'", "form-action 'none'", "base-uri 'none'"):
        assert directive in policy.split("; ")
    allowed = re.search("script-src ([^;]*)", policy)[1].split()
    found = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for _, text in page.scripts[1:]]
    assert allowed == found


def test_payload_holds_the_numbers_of_the_records(replay):
    data = Page(replay.write()).payload
    assert data["flags"] == [f.name for f in Flag] and data["modes"] == [m.name for m in Mode]
    trace = data["traces"][0]
    assert trace["path"] == "cpu" and trace["step"] == STEPS
    shape = (len(PROBES), len(STEPS))
    arrays = {name: decode(trace[name], dtype, *shape) for name, dtype in (
        ("max_abs", "<f4"), ("baseline_log2", "<f4"), ("z", "<f4"), ("flags", "<u2"), ("mode", "u1"), ("risk", "u1"), ("cause", "u1"))}
    compared = 0
    for record, baseline, z in zip(replay.records, replay.baseline, replay.z):
        op, s = int(record["op"]), STEPS.index(record["step"])
        for name in ("flags", "mode", "risk", "cause"):
            assert arrays[name][op, s] == record[name], (name, op, s)
        assert arrays["max_abs"][op, s] == replay.trace.max_abs[s, op]
        np.testing.assert_equal(float(arrays["baseline_log2"][op, s]), baseline)
        np.testing.assert_equal(arrays["z"][op, s], np.float32(z))
        compared += 1
    assert compared == 23
    assert arrays["mode"][2, 3] == NO_RECORD and np.isnan(arrays["max_abs"][2, 3])  # the unseen completion
    assert list(trace["nonfinite"]) == ["0"]
    assert decode(trace["nonfinite"]["0"], "<u4", len(STEPS)).tolist() == [0, 0, 0, 0, 5, 0]
    np.testing.assert_array_equal(decode(trace["series"]["loss"], "<f4", len(STEPS)), replay.trace.loss)
    assert trace["scale_log2"] == [10, 10, 9, 11, 11, -1]
    assert trace["raw_windows"] == [[11, 20]] and [p["raw"] for p in trace["probes"]] == [True, False, False, False]
    assert [p["limit"] for p in trace["probes"]] == [float(FORMATS[p.format].max_value) for p in PROBES]
    assert trace["default_op"] == 0
    assert "grad_norm" not in trace["series"]
    assert trace["hints"] == replay.entry["host"]["hints"] and (data["order"], data["z_threshold"]) == ("BEFORE", 5.0)
    assert data["lead_when_sampled"] == [{"name": "small", "leads": replay.entry["lead_when_sampled"]}]


def test_tables_say_what_the_summary_says(replay):
    words = Page(replay.write()).words
    for expected in ("23 records, 12,345 beats, 246 events and 67,890 cycles compared", "forecast and published", "1,357",
                     "risk profile published", "7.88", "loss scale \xd7 1/256, clip threshold \xd7 1/2, learning rate \xd7 0.1",
                     "its own settings again", "3 changes", "2 events", "FAST \u2192 STABLE", "ESCALATE", "11, 20", "0 mismatches", "512 bits", "8 completions",
                     "rtl = systemc, rtl = cpu", "skipped for small: no <CUDA> device", "tap 4 cycles",
                     "sideband 4..5 cycles", "1.23 \xb5s", "5.68 \xb5s", "41.7 \xb5s", "modelled", "not measured", "11.6 \xb5s",
                     "6.7 \xb5s", "4.8 TB/s", "4,321", "17.250", "step 21, attn.qk", "STABLE",
                     "1 completion found the op queue full", "all at their reset value"):
        assert expected in words, expected


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Words of the cells of each row of the first table below a heading."""
    table = page.split(f"<h2>{heading}</h2>")[1].split("</table>")[0]
    return [[" ".join(html.unescape(re.sub("<[^>]*>", " ", cell)).split()) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
            for row in table.split("<tr")[2:]]


def test_a_path_that_did_not_run_is_never_shown_as_if_it_had(replay):
    rows = {row[1]: row for row in rows_of(replay.write(), "Reaction and overhead")}
    assert list(rows) == ["rtl", "systemc", "cpu", "cuda not run"] and rows["cuda not run"][2] == "modelled"
    assert rows["cpu"][2] == "measured"
    replay.entry["reaction_and_overhead"][-1] = {**replay.entry["reaction_and_overhead"][-2], "path": "cuda", "ran": True}
    assert [row[1:3] for row in rows_of(replay.write(), "Reaction and overhead")][-1] == ["cuda", "measured"]


def test_cycles_have_a_time_at_the_mapped_clock_only(replay):
    def counted(page: str) -> list[list[str]]:
        return [row for row in rows_of(page, "Reaction and overhead") if row[2] == "counted"]

    assert [row[3:5] for row in counted(replay.write())] == [["tap 4 cycles sideband 4..5 cycles", "\N{EN DASH}"]] * 2
    part = {"area_um2": 1.0, "nand2_equivalents": 1.0, "state_bits": 1, "critical_path_ns": 17.5}
    replay.synthesis = {"library": "some180", "parameters": {"NumOps": 16}, "parts": {"opd_top": part}, "per_op": part}
    page = replay.write()
    assert [row[4] for row in counted(page)] == ["70.0 ns mapped clock 87.5 ns mapped clock"] * 2
    words = Page(page).words.replace("\xa0", " ")
    assert "17.5 ns (180 nm, without wires)" in words and "GHz" not in words


def test_names_are_escaped(replay):
    html = replay.write()
    page = Page(html)
    assert "<b>&\"out" not in html and "<i>tiny" not in html and "<0.1>" not in html and "<CUDA>" not in html
    assert page.payload["traces"][0]["probes"][1]["name"] == NASTY
    assert f"1: {NASTY}" in page.words and "<i>tiny</i>" in page.words


def test_divergence_is_named(replay):
    text = "op 1 (x), step 11, seq 5: risk: rtl = 3, cpu = <4>; cycle 99, last beat at cycle 95"
    replay.entry.update(mismatches=2, verdict="mismatch", first_divergence={"text": text})
    replay.entry["comparisons"][1]["mismatches"] = 2
    replay.config["quiet_steps"] = 32
    replay.entry.update(waveform="small.fst", waveform_view="small.gtkw")
    place = {"trace": "small", "text": text}
    replay.mismatch_kinds = [{"paths": ["rtl", "cpu"], "quantity": "risk", "count": 2, "traces": 1, "first": place,
                              "last": {"trace": "small", "text": "op 1, step 12, seq 7: risk: rtl = 3, cpu = 4"}}]
    page = Page(replay.write())
    assert ("div", {"class": "verdict bad"}) in page.tags
    assert f"2 mismatches in 23 records" in page.words and text in page.words and "small.fst" in page.words
    assert "2 of this kind (rtl and cpu: risk); the last in small : op 1, step 12" in page.words and "small.gtkw" in page.words
    assert "rtl \u2260 cpu" in page.words and "1 changed from the reset value" in page.words


def test_one_path_compares_nothing(replay):
    replay.entry.update(paths=["rtl"], comparisons=[], records_compared=0, beats_compared=0, cycles_compared=0,
                        verdict="nothing compared")
    page = Page(replay.write())
    assert "small : nothing was compared. Only rtl ran" in page.words
    assert ("div", {"class": "verdict idle"}) in page.tags and "mismatches" not in page.words.split("Cross-check")[0]
    assert page.payload["traces"][0]["path"] == "rtl"
    baseline = decode(page.payload["traces"][0]["baseline_log2"], "<f4", len(PROBES), len(STEPS))
    assert np.isnan(baseline).all()  # the baseline file belongs to the cpu path


def test_a_path_that_was_asked_for_and_did_not_run(replay):
    replay.entry.update(verdict="path missing", paths_skipped={"cuda": "no <CUDA> device"})
    page = Page(replay.write())
    assert ("div", {"class": "verdict idle"}) in page.tags
    assert "small : a path that was asked for did not run (cuda: no <CUDA> device)" in page.words


def test_pairs_beside_a_mismatch_say_what_was_compared(replay):
    """A mismatch of pins stops the run: the others are compared up to there, or not at all."""
    replay.entry.update(mismatches=1, verdict="mismatch", first_divergence={"text": "x"}, comparisons=[
        {"left": "rtl", "right": "systemc", "records": 7, "events": 0, "executions": 0, "mismatches": 1},
        {"left": "rtl", "right": "cpu", "records": 7, "events": 0, "executions": 0, "mismatches": 0},
        {"left": "rtl", "right": "systemc-lt", "records": 0, "events": 0, "executions": 0, "mismatches": 0}])
    words = Page(replay.write()).words
    assert "rtl \u2260 systemc , rtl = cpu in 7 records, rtl, systemc-lt not compared" in words, words[words.index("rtl \u2260"):][:90]


def test_pairs_whose_hosts_alone_are_compared(replay):
    """Records are compared with those of the first path; without an event the hosts still agree in hints and counts."""
    replay.entry["comparisons"].append({"left": "systemc", "right": "cpu", "records": 0, "events": 0, "executions": 0, "mismatches": 0})
    words = Page(replay.write()).words
    assert "systemc = cpu (hints, counts)" in words and "not compared" not in words


def test_a_summary_without_a_verdict_is_refused(replay):
    replay.write()
    summary = json.loads((replay.out / "summary.json").read_text())
    del summary["verdict"]
    (replay.out / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ReportError, match="has no verdict; run `opd replay` again"):
        write(str(replay.out), [replay.file])


@pytest.mark.parametrize("what", ["/dev/full", "fifo"])
def test_a_page_that_cannot_be_written_leaves_the_one_before(replay, what, monkeypatch):
    """A full disk, and a target that is no file: no cut page, and nothing in the place of a device."""
    import errno
    import os

    before = replay.write()
    if what == "fifo":
        (replay.out / "report.html").unlink()
        os.mkfifo(replay.out / "report.html")
        with pytest.raises(ReportError, match="is not a regular file"):
            replay.write()
        assert (replay.out / "report.html").is_fifo()
        return

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match="No space left"):
        replay.write()
    assert (replay.out / "report.html").read_text("utf-8") == before
    assert not list(replay.out.glob("report.html.*"))


def test_no_path_and_no_incident(replay):
    replay.entry.update(paths=[], comparisons=[], reaction_and_overhead=[], records_compared=0, verdict="nothing compared", first_incident=None, incidents=[],
                        lead_when_sampled=[], engines=[], host=None)
    page = Page(replay.write())
    assert "there are no records to draw" in page.words
    assert not [a for _, a in page.tags if "data-trace" in a]


def test_default_operator_has_the_least_headroom(replay):
    replay.entry.update(first_incident=None, incidents=[])
    assert Page(replay.write()).payload["traces"][0]["default_op"] == 1  # E4M3: its limit is the nearest


def test_magnitudes_follow_the_formats():
    """Every finite magnitude of the narrow formats against the definition of its fields (docs/numerics.md "Formats")."""
    compared = 0
    for name, exponent_bits, fraction_bits, bias, largest in (("FP16", 5, 10, 15, 0x7BFF), ("BF16", 8, 7, 127, 0x7F7F),
                                                              ("E4M3", 4, 3, 7, 0x7E), ("E5M2", 5, 2, 15, 0x7B)):
        bits = np.arange(largest + 1, dtype=np.uint32)
        assert bits[-1] < 1 << (exponent_bits + fraction_bits)
        exponent, fraction = bits >> fraction_bits, bits & ((1 << fraction_bits) - 1)
        expected = np.ldexp(fraction + np.where(exponent > 0, 1 << fraction_bits, 0).astype(np.float64),
                            np.maximum(exponent, 1).astype(np.int64) - bias - fraction_bits)
        np.testing.assert_array_equal(magnitudes(bits, np.full(bits.shape, Format[name], "u1")), expected.astype(np.float32))
        compared += len(bits)
    assert compared == 0x7C00 + 0x7F80 + 0x7F + 0x7C
    wide = np.array([0, 1, 0x3F800000, 0x7F7FFFFF], np.uint32)
    assert magnitudes(wide, np.full(4, Format.FP32, "u1")).view(np.uint32).tolist() == wide.tolist()


def test_read_records(replay):
    assert RECORD.itemsize == 32
    np.testing.assert_array_equal(read_records(replay.out / "small.rtl.records"), replay.records)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def other_steps(file):
    records = np.fromfile(file, RECORD)
    records["step"][3] = 12
    records.tofile(file)


def other_operators(file):
    records = np.fromfile(file, RECORD)
    records["op"][3] = len(PROBES)
    records.tofile(file)


@pytest.mark.parametrize("name, damage, wrong", [
    ("summary.json", lambda file: file.unlink(), "cannot be read (No such file or directory)"),
    ("summary.json", lambda file: file.write_text("{"), "is not JSON"),
    ("summary.json", lambda file: file.write_text("[]"), "is not an opd-summary of version 1"),
    ("small.cpu.records", lambda file: file.unlink(), "cannot be read (No such file or directory)"),
    ("small.cpu.records", truncate, "735 bytes are no multiple of 32"),
    ("small.cpu.records", other_steps, "holds operators or steps that small.safetensors does not have"),
    ("small.cpu.records", other_operators, "holds operators or steps that small.safetensors does not have"),
    ("small.baseline", lambda file: file.write_bytes(bytes(8)), "1 values for 23 records"),
    ("small.z", lambda file: file.write_bytes(bytes(16)), "2 values for 23 records"),
])
def test_errors_name_file_and_remedy(replay, name, damage, wrong, capsys):
    replay.write()
    damage(replay.out / name)
    with pytest.raises(ReportError) as error:
        write(str(replay.out), [replay.file])
    assert str(error.value) == f"{replay.out / name}: {wrong}; run `opd replay` again with the same --out"
    assert main([str(replay.out), replay.file]) == 2
    assert capsys.readouterr().err == f"opd.report: {error.value}\n"


def test_missing_trace_is_named(replay, tmp_path):
    replay.write()
    other = tmp_path / "other.safetensors"
    make_trace("other").write(other)
    with pytest.raises(ReportError, match="trace small is none of the given trace files; give small.safetensors as well"):
        write(str(replay.out), [str(other)])
    with pytest.raises(TraceError):
        write(str(replay.out), [str(tmp_path / "absent.safetensors")])


def test_traces_of_one_name_are_refused(replay):
    replay.write()
    summary = json.loads((replay.out / "summary.json").read_text())
    summary["traces"] *= 2
    (replay.out / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ReportError, match="two traces are named small; replay them into two folders"):
        write(str(replay.out), [replay.file])


def test_command_line(replay, capsys):
    replay.write()
    (replay.out / "report.html").unlink()
    assert main([str(replay.out), replay.file]) == 0
    assert capsys.readouterr().out == f"{replay.out / 'report.html'}\n"
    assert (replay.out / "report.html").stat().st_size > 1_000_000


# --- what the vector unit computed ------------------------------------------------------------------------------------------

def computed_data(page: Page) -> dict:
    return json.loads(next(text for attributes, text in page.scripts if attributes.get("id") == "computed"))


def sentences(page: str) -> str:
    """Visible text without the spaces that tags leave before punctuation."""
    return re.sub(r"\s+([.,:;)])", r"\1", Page(page).words)


def test_a_replay_that_computed_nothing_has_the_page_it_always_had(replay):
    page = replay.write()
    style, script = ("".join(Path(module.__file__).with_suffix(kind).read_text() for module in (opd.report, opd.report_incidents))
                     for kind in (".css", ".js"))
    assert f"<style>\n{style}</style>" in page and Page(page).scripts[-1][1] == script
    assert "data-compute" not in page and 'id="computed"' not in page and "overflows" not in page.split("<script")[0]
    del replay.entry["compute"]  # a summary of before
    assert replay.write() == page


def test_answers_are_told_worst_first(replay):
    replay.entry["compute"] = make_compute()
    words = sentences(replay.write())
    assert "Of 3 computed operators, those that overflow: 2 in FAST, 1 in STABLE, none in SAFE." in words
    assert "3 of 4 overflows of FAST did not happen in the mode that ran. As issued, 1 execution overflowed." in words
    scores = ("attn.qk (matmul, FP16): FAST overflows at steps 20..22; STABLE overflows at step 22; SAFE does not. The downshift came 1 step "
              "after the first, at step 21, so 2 of 3 overflows were avoided.")
    squares = (f"{NASTY} (sum_of_squares, E4M3): FAST overflows at step 13 in its accumulators alone; STABLE and SAFE do not. Out of FAST "
               "since step 11, 2 steps earlier, and issued in STABLE, so the overflow was avoided.")
    assert words.index(scores) < words.index(squares)
    assert "norm (rms_norm" not in words and "12 of them (13,824 elements) compared bit for bit" in words


@pytest.mark.parametrize("operator, told", [
    (dict(ran="FFFF", overflow={"FAST": [1, 3]}, lead_steps=0),
     "FAST overflows at steps 20, 22; STABLE and SAFE do not. Issued in FAST to the end, so none of 2 overflows was avoided."),
    (dict(ran="FFFS", overflow={"FAST": [0]}, lead_steps=0, issued={"FAST": [5, 10], "STABLE": [1, 22]}),
     "The downshift came 9 steps after the first, at step 22, so the overflow happened."),
    (dict(ran="FFSS", overflow={"FAST": [1, 2]}, lead_steps=0, issued={"FAST": [3, 11], "STABLE": [3, 10]}),
     "The downshift came 1 step after the first, at step 21 at the latest, so 1 of 2 overflows was avoided."),
    (dict(ran="AAAA", overflow={"FAST": [0, 1, 2, 3]}, lead_steps=3, issued={"SAFE": [6, 10]}),
     "FAST overflows at steps 13..22; STABLE and SAFE do not. Out of FAST since step 10, 3 steps earlier, and issued in SAFE, so all 4 "
     "overflows were avoided."),
    (dict(ran="SSSS", overflow={"STABLE": [2]}, issued={"STABLE": [6, 10]}),
     "STABLE overflows at step 21; FAST and SAFE do not. It overflowed at 1 step as issued."),
])
def test_when_the_downshift_came(replay, operator, told):
    compute = replay.entry["compute"] = make_compute()
    compute["operators"][0] = computed_operator(0, "attn.qk", "matmul", "FP16", depth=24, **operator)
    page = replay.write()
    assert told in sentences(page)
    drawn = next(drawn for drawn in computed_data(Page(page))["traces"]["0"]["operators"] if drawn["op"] == 0)
    assert told in drawn["answer"]  # beside the picture, too


def test_no_overflow_and_forced_modes_are_told(replay):
    compute = make_compute()
    replay.entry["compute"] = {**compute, "force_mode": "SAFE", "saturate": True, "accumulator": "wide"}
    words = sentences(replay.write())
    assert "forced to SAFE \xb7" in words and "saturating casts" in words and "accumulators of FAST all in FP32" in words
    assert "SAFE does not. Forced to SAFE, 2 of 3 overflows were avoided." in words
    assert "24 executions of 4 operators over 6 steps, forced to SAFE" in words
    replay.entry["compute"] = {**compute, "operators": compute["operators"][2:]}
    assert "No mode overflows in any of 1 computed operator." in sentences(replay.write())
    replay.entry["compute"] = {**compute, "operators": compute["operators"][2:3]}
    page = replay.write()
    assert "Nothing was computed: only shapes of operators are in the trace." in sentences(page)
    assert len(Page(page).scripts) == 4 and "compute-op-0" not in page  # nothing to draw


def test_computed_tables_say_what_the_summary_says(replay):
    replay.entry["compute"] = make_compute()
    page = replay.write()
    heading, dash = "small: computed in three modes", "\N{EN DASH}"
    costs = rows_of(page, heading)
    assert [row[0] for row in costs] == ["as issued", "all FAST", f"SAFE for {NASTY} alone", "all SAFE"]
    assert costs[0][2:] == ["19,422", "+14.6 %", "12.8 %", dash] and costs[1][2:] == ["16,944", dash, dash, dash]
    assert costs[2][2:] == ["36,768", "+117.0 %", "53.9 %", "5 to <8> %"] and costs[3][-1] == "over 40 %"
    bars = [float(width) for width in re.findall('class="added" width="([0-9.]+)"', page)]
    np.testing.assert_allclose(bars, [1000 * cycles / 106968 for cycles in (19422, 16944, 36768, 106968)], atol=0.06)
    words = Page(page).words
    assert "in the modes that the controller chose: 19,422 clocks of the vector unit, 14.6 % more than all in FAST" in words
    rows = rows_of(page.split(f"<h2>{heading}</h2>")[1].replace("<h3>Operators</h3>", "<h2>Operators</h2>"), "Operators")
    assert [row[0] for row in rows] == ["attn.qk", "matmul, FP16", "2 \xd7 4 \xd7 8, depth 24, factor 0.5", NASTY, "sum_of_squares, E4M3",
                                        "4 \xd7 8", "norm", "rms_norm, FP32", "4 \xd7 8"]
    assert rows[0][1:] == ["FAST", "4", "3", "20", "4.47e-4", "0.750", "80", "3.07 kB", "1.02 kB", "1 of 3,072 differ"]
    assert rows[1][1:5] == ["STABLE", "1", "1", "22"] and rows[2][1:5] == ["SAFE", "1", "0", dash]
    assert [row[-1] for row in rows[1:8]] == ["order of summation", "up to 1 ulp", "807 of 3,072 differ", "accumulator width; 5 with FP32",
                                              "up to 4 ulp", "equal", "3,072 elements"]
    assert "1 more operator, of which only the shape is known" in words and "linear, BF16" in words


def test_computed_pictures_hold_the_numbers_of_the_summary(replay):
    compute = replay.entry["compute"] = make_compute()
    compute["operators"][3]["steps"][0]["modes"]["FAST"]["largest_relative"] = 0.0
    data = computed_data(Page(replay.write()))
    assert data["modes"] == [mode.name for mode in Mode] and list(data["traces"]) == ["0"] and data["traces"]["0"]["default_op"] == 0
    drawn = {operator["op"]: operator for operator in data["traces"]["0"]["operators"]}
    assert list(drawn) == [0, 1, 3]  # worst first, and none without steps
    for op, operator in drawn.items():
        steps = compute["operators"][op]["steps"]
        assert operator["step"] == [step["step"] for step in steps]
        assert [data["modes"][mode] for mode in decode(operator["mode"], "u1", 4)] == [step["mode"] for step in steps]
        for name, key in (("largest", "largest"), ("accumulator", "accumulator_largest"), ("relative", "largest_relative"),
                          ("ulps", "largest_ulps")):
            expected = np.array([[step["modes"][mode][key] for step in steps] for mode in data["modes"]], np.float64).astype(np.float32)
            if np.isnan(expected).all():
                assert operator[name] is None
            else:
                np.testing.assert_array_equal(decode(operator[name], "<f4", 3, 4), expected)
    assert drawn[0]["bad"] == [[0, 1, 7, 0, 1], [0, 2, 7, 0, 1], [0, 3, 7, 0, 1], [1, 3, 7, 0, 1]] and drawn[1]["bad"] == [[0, 0, 0, 3, 1]]
    assert (drawn[0]["limit"], drawn[0]["accumulator_limit"], drawn[1]["accumulator_limit"]) == (65504.0, None, 448.0)
    assert drawn[0]["cost"] == ("Issued 4 in FAST at 80 clocks, 1 in STABLE at 81 clocks, 1 in SAFE at 906 clocks: 1,307 clocks, "
                                "172 % more than all in FAST.")
    assert drawn[3]["cost"] == "Issued 6 in FAST at 80 clocks: 480 clocks, as all in FAST."
    compute["accumulator"] = "narrow"
    assert computed_data(Page(replay.write()))["traces"]["0"]["operators"][0]["accumulator_limit"] == 65504.0


def test_names_of_computed_operators_are_escaped(replay):
    compute = replay.entry["compute"] = make_compute()
    compute["operators"][0].update(kernel="<u>matmul", framework=difference(3, "<u>cause", None, {"0": 3069, "1": 3}))
    compute["accumulator"] = "<u>wide"
    html = replay.write()
    page = Page(html)
    assert "<u>" not in html and "<b>&\"out" not in html and "5 to <8>" not in html
    assert [tag for tag, _ in page.tags].count("script") == len(page.scripts) == 5
    for told in ("<u>matmul, FP16", "<u>cause", "<u>wide", f"SAFE for {NASTY} alone", f"1: {NASTY}"):
        assert told in page.words, told
    assert not [tag for tag, attributes in page.tags if attributes.keys() & {"src", "href", "style", "onclick"}]


def test_many_computed_operators_stay_small(replay):
    before = len(replay.write())
    compute = replay.entry["compute"] = make_compute()
    squares = compute["operators"][1]
    steps = [{**squares["steps"][s % 4], "step": s} for s in range(50)]
    compute["operators"] = [{**squares, "op": op, "probe": f"block.{op}.attn.squares", "accumulator_op": None, "steps": steps} for op in range(200)]
    page = replay.write()
    assert len(page) - before < 1_500_000
    assert "188 more operators that overflow" in Page(page).words and "188 more operators</summary>" in page


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to draw the page with")
def test_browser_draws_the_plots(replay):
    replay.write()
    run = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
                          "--enable-logging=stderr", "--v=0", f"--user-data-dir={replay.out / 'profile'}", "--dump-dom",
                          (replay.out / "report.html").as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in run.stderr, [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert run.stdout.count("js-plotly-plot") >= 3  # heat map, operator, sampled lead
    facts = re.search(r'<p class="note facts"[^>]*>([^<]*)', run.stdout)[1]
    assert facts.startswith("activation, FP16 [4, 8]") and "first non-finite value at step 21, lead 8 steps, in STABLE" in facts
    assert '<option value="0">0: attn.qk</option>' in run.stdout


# --- incident pages

def test_an_incident_has_a_page_in_the_words_of_triage(replay):
    replay.trace.manifest = {"lr_groups": [{"lr": [[10, 1e-3]], "first": "<embedding>", "parameters": 1},
                                           {"lr": [[10, 1e-4], [20, 1e-2]], "first": "head.weight", "parameters": 2}]}
    replay.trace.write(replay.file)
    found = opd.triage.triage(replay.trace)
    page = Page(replay.write())
    told, = found.pages
    assert told.operator == "attn.qk" and told.jump.group == 1
    assert [attributes["data-incident"] for tag, attributes in page.tags if "data-incident" in attributes] == ["0:0"]
    for sentence in (f"{told.subject} {told.happened}: {told.kind}.", *told.evidence, *told.advice, told.caught()):
        assert " ".join(sentence.split()) in page.words, sentence
    assert all(f"{detector.name} " in page.words for detector in told.detectors)
    drawn, = page.payload["traces"][0]["incident_pages"]
    assert drawn["step"] == STEPS and drawn["incident"] == 21 and drawn["bad"] == [21] and drawn["jump"] == {"step": 20, "group": 1}
    assert [rate["name"] for rate in drawn["rates"]] == ["group 0: <embedding>, ...", "group 1: head.weight, ..."]
    assert np.allclose(decode(drawn["rates"][1]["lr"], "<f4", 6), [1e-4, 1e-4, 1e-4, 1e-2, 1e-2, 1e-2])
    assert np.allclose(decode(drawn["log2"], "<f4", 6), np.log2(replay.trace.max_abs[:, 0])) and drawn["limit"] == pytest.approx(16, abs=1e-3)


def test_a_run_without_an_incident_says_how_near_it_came(replay):
    replay.trace.nonfinite[:] = 0
    replay.trace.first_bad_step = replay.trace.first_bad_op = None
    replay.trace.label, replay.trace.loss = "healthy", None
    replay.trace.write(replay.file)
    page = Page(replay.write())
    assert not any("data-incident" in attributes for _, attributes in page.tags) and page.payload["traces"][0]["incident_pages"] == []
    assert "No incident; nearest to its limit: " in page.words
