"""opd.evaluate, the figures: lead, recall, false alarms, intervals and ROC on traces made for the purpose; labels; the command.

The C++ reference is read from the folder in OPD_BUILD (default: build); without it the tests that need it are skipped.
"""
import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opd.__main__ import main as opd_main
from opd.evaluate.command import evaluate, main
from opd.evaluate.corpus import CorpusError, Label, Run, find_traces, load, read_labels
from opd.evaluate.detector import Detector, Samples
from opd.evaluate.figures import clopper_pearson, per_1000, quantile, quantile_interval, rate_interval, summarise
from opd.evaluate.goals import GOALS, reached
from opd.evaluate.incident import first_bad
from opd.evaluate.limits import NonfiniteOnly
from opd.evaluate.matched import RATES
from opd.evaluate.metrics import Count, Facts, Upstream, assess, first_incident
from opd.reference import ReferenceMissing, module
from opd.evaluate.tables import per_run, text
from opd.trace import Probe, Trace

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "sw_reference" / "python"
BUILD = Path(os.environ.get("OPD_BUILD", ROOT / "build"))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False
needs_reference = pytest.mark.skipif(
    not BUILT, reason=f"{BUILD} holds no opd._reference (target opd_python; OPD_BUILD names the folder)")

ALARM = 7.0   # magnitude at which Planted raises an alarm
STRONG = 9.0  # and one at which it does with a higher threshold as well


class Planted(Detector):
    """An alarm at every sample of magnitude 7 or more."""
    name, source, settings, unit = "planted", "this test", {"level": 7}, "max"
    threshold, sweep, inclusive = 7.0, (7.0, 8.0, 10.0), True
    state_bits, operations = 3, {"compare": 1, "add": 2}

    def score(self, samples, threshold):
        return np.where(samples.finite, samples.magnitude, -np.inf)


def planted_trace(steps, alarms=(), bad=(), strong=(), probes=2, name="run", label="healthy", kinds=None, every=1) -> Trace:
    """Magnitude 1 but for the planted (sample, operator) pairs."""
    max_abs = np.ones((steps, probes), np.float32)
    nonfinite = np.zeros((steps, probes), np.int64)
    for s, p in alarms:
        max_abs[s, p] = ALARM
    for s, p in strong:
        max_abs[s, p] = STRONG
    for s, p in bad:
        nonfinite[s, p] = 1
    kinds = kinds or ["activation"] * probes
    first = min((pair for pair in bad if kinds[pair[1]] == "activation"), default=None)
    named = (None, None) if first is None else (int(first[0]) * every, f"op{first[1]}")
    return Trace(name, label, [Probe(f"op{p}", kinds[p], "FP16", (4,)) for p in range(probes)], np.arange(steps) * every,
                 max_abs, nonfinite, *named)


def run_of(trace, split="held-out", **changes) -> Run:
    known = {"kind": trace.label, "first_bad_step": trace.first_bad_step, "first_bad_op": trace.first_bad_op, **changes}
    return Run(Path(f"{trace.name}.safetensors"), trace, Label(split=split, decided="planted", file="test", **known))


def result_of(trace, **changes):
    return assess(Planted(), Facts.of(run_of(trace, **changes)))


# --- lead and recall -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("alarms, lead", [
    ([], 0),
    ([199], 1),
    ([190], 10),
    ([190, 160], 40),          # one standing alarm: it is recalled before it falls
    ([137], 63),               # still standing at the last sample before
    ([136], 64),               # quiet for 63 steps at that sample
    ([135], 0),                # back in FAST with the 64th quiet step
    ([100, 190], 10),          # the first was withdrawn
    (range(10, 200), 128),     # at most 128
    ([200], 0),                # the incident itself is no warning
])
def test_lead_by_hand(alarms, lead):
    trace = planted_trace(300, [(s, 1) for s in alarms], [(200, 1)], label="gradual")
    result = result_of(trace)
    assert result.lead == lead and result.operators == 1 and result.operators_detected == (lead > 0)
    assert result.kind == "gradual"


def test_lead_counts_training_steps():
    trace = planted_trace(60, [(s, 0) for s in (48,)], [(50, 0)], label="sudden", every=10)
    assert result_of(trace).lead == 20
    assert result_of(planted_trace(5, [], [(0, 0)], label="sudden")).lead == 0  # nothing comes before the first sample


def test_the_first_incident_is_the_one_the_label_names():
    kinds = ["gradient", "activation", "activation"]
    trace = planted_trace(100, [], [(20, 0), (40, 2), (50, 1)], probes=3, label="gradual", kinds=kinds)
    assert first_incident(run_of(trace, kind="near-limit"), np.array([20, 50, 40])) is None
    bad = first_bad(Samples.of(trace).bad)
    assert bad.tolist() == [20, 50, 40]
    assert first_incident(run_of(trace), bad) == 2
    assert first_incident(run_of(trace, first_bad_op="op1", first_bad_step=50), bad) == 1
    assert first_incident(run_of(trace, first_bad_op=None, first_bad_step=None), bad) == 2  # the earliest activation
    gradients = planted_trace(100, [], [(20, 0)], probes=1, label="data", kinds=["gradient"])
    assert first_incident(run_of(gradients), first_bad(Samples.of(gradients).bad)) == 0
    clean = planted_trace(10)
    assert first_incident(run_of(clean), first_bad(Samples.of(clean).bad)) is None


def test_a_clean_run_has_no_incident_to_detect():
    trace = planted_trace(300, [], [(200, 1)], kinds=["activation", "gradient"])  # a loss scaler at work
    result = result_of(trace)
    assert result.lead is None and result.operators == 1


# --- upstream in the same step --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("alarms, op, operators", [
    ([], None, None),
    ([(200, 0)], 0, 2),
    ([(200, 1)], 1, 1),
    ([(200, 1), (200, 0)], 0, 2),  # the earliest
    ([(200, 2)], None, None),      # the operator that goes non-finite is not upstream of itself
    ([(200, 3)], None, None),      # one that runs after it neither
    ([(199, 0)], None, None),      # it still stands at 200, but the alarm was raised a step before
])
def test_upstream_by_hand(alarms, op, operators):
    trace = planted_trace(300, alarms, [(200, 2)], probes=4, label="sudden")
    assert result_of(trace).upstream == Upstream(op, operators, 0.0)


def test_upstream_counts_alarms_and_no_nonfinite_values():
    # Gradient 0 is non-finite in the step of the incident: its sample is no alarm, whatever its finite elements were.
    trace = planted_trace(300, [(200, 0)], [(200, 0), (200, 1)], label="sudden", kinds=["gradient", "activation"])
    assert result_of(trace).upstream == Upstream(None, None, 0.0)
    assert assess(NonfiniteOnly(), Facts.of(run_of(trace))).upstream == Upstream(None, None, 0.0)
    assert result_of(planted_trace(300, label="data")).upstream is None  # no incident
    # By chance: of the samples from 32 on that are more than 128 steps before, here 32..71, four have an upstream alarm.
    alarms = [(0, 0), (31, 0), (32, 0), (40, 1), (40, 0), (50, 0), (71, 1), (72, 0), (199, 0), (60, 2)]
    trace = planted_trace(300, alarms, [(200, 2)], probes=3, label="sudden")
    assert result_of(trace).upstream == Upstream(None, None, 4 / 40)
    early = planted_trace(300, [(100, 0)], [(100, 1)], label="sudden")
    assert result_of(early).upstream == Upstream(0, 1, None)


# --- what is said of a run -------------------------------------------------------------------------------------------------

def test_the_log_of_a_run_by_hand():
    trace = planted_trace(400, [(20, 0), (171, 1), (172, 1), (250, 0), (300, 0), (300, 1), (310, 0), (310, 2)], [(300, 2)],
                          probes=3, label="sudden")
    log = result_of(trace).log
    assert log.alarms == 7 and log.has_verdict  # that of operator 2 comes after its first non-finite value
    assert (log.first.op, log.first.step) == (0, 20)
    assert (log.before.op, log.before.step) == (1, 172)  # 128 steps before
    assert (log.same_step.op, log.same_step.step) == (0, 300)
    assert not log.at_incident and (log.overflows, log.overflows_warned) == (1, 1)
    again = planted_trace(700, [(100, 0)], [(s, 1) for s in (200, 201, 203, 228, 229, 600)], label="sudden")
    log = result_of(again).log
    assert (log.overflows, log.overflows_warned) == (4, 3)  # at 200, 203, 228, 600: the alarm is 128 steps before the third
    quiet = result_of(planted_trace(10, label="data")).log
    assert (quiet.alarms, quiet.first, quiet.before, quiet.same_step) == (0, None, None, None)


def test_an_event_needs_no_nonfinite_value():
    trace = planted_trace(300, [(90, 0), (100, 1)], label="data")
    run = run_of(trace, event_step=100)
    log = assess(Planted(), Facts.of(run)).log
    assert (log.before.op, log.before.step, log.same_step.op) == (0, 90, 1)
    assert Facts.of(run).event == 100
    bad = planted_trace(300, [(100, 1)], [(200, 1)], label="sudden")  # what the label says goes before the incident
    assert Facts.of(run_of(bad, event_step=100)).event == 100
    assert result_of(bad, event_step=100).log.same_step.op == 1
    assert Facts.of(run_of(bad)).event == 200


def test_a_rule_without_enough_samples_has_no_verdict():
    class Patient(Planted):
        samples_needed = 20

    def has_verdict(steps, bad=()):
        trace = planted_trace(steps, [], bad, label="data")
        return assess(Patient(), Facts.of(run_of(trace))).log.has_verdict

    assert not has_verdict(20) and has_verdict(21)
    assert has_verdict(40, [(10, 0)]) and not has_verdict(40, [(10, 0), (20, 1)])  # before the first non-finite value


# --- false alarms ----------------------------------------------------------------------------------------------------------

def test_false_alarms_by_hand():
    result = result_of(planted_trace(132, [(0, 0), (31, 1), (32, 0), (33, 0), (131, 1)]))
    assert result.warm_up == Count(2, 64) and result.false_alarms == Count(3, 200)
    assert per_1000([result.false_alarms]) == 15.0 and per_1000([result.warm_up]) == 31.25
    assert per_1000([]) is None and per_1000([Count(0, 0)]) is None
    short = result_of(planted_trace(20, [(5, 0)]))
    assert short.warm_up == Count(1, 40) and short.false_alarms == Count(0, 0)


def test_alarms_before_an_incident_are_warnings():
    # Operator 1 goes non-finite at sample 300: from 172 on its alarms are warnings, from 300 on they are not judged.
    alarms = [(s, 1) for s in (100, 171, 172, 250, 299, 350)] + [(350, 0)]
    trace = planted_trace(400, alarms, [(300, 1)], kinds=["activation", "gradient"])
    result = result_of(trace)
    assert result.false_alarms == Count(2 + 1, (172 - 32) + (400 - 32))
    assert result.warm_up == Count(0, 64)


def test_sweep_by_hand():
    trace = planted_trace(300, [(100, 0), (199, 1)], [(200, 1)], strong=[(101, 0)], label="gradual")
    found = [(at.lead, at.false_alarms, at.warm_up, at.upstream) for at in result_of(trace).sweep]
    judged, early, silent = 40 + 268, Count(0, 64), Upstream(None, None, 0.0)
    # Of the 40 steps from 32 on that are more than 128 before the incident, the upstream operator alarms in none: 100 is later.
    assert found == [(1, Count(2, judged), early, silent), (0, Count(1, judged), early, silent),
                     (0, Count(0, judged), early, silent)]


# --- figures over runs -----------------------------------------------------------------------------------------------------

def test_clopper_pearson_against_published_values():
    def rounded(k, n):
        return tuple(round(bound, 4) for bound in clopper_pearson(k, n))

    assert rounded(13, 14) == (0.6613, 0.9982)
    assert rounded(0, 10) == (0.0, 0.3085) and rounded(10, 10) == (0.6915, 1.0)
    assert rounded(5, 10) == (0.1871, 0.8129)
    assert clopper_pearson(0, 0) is None
    low, high = clopper_pearson(1, 1)
    assert math.isclose(low, 0.025, rel_tol=1e-9) and high == 1.0


def test_quantiles_are_those_of_the_metrics():
    assert quantile([], 0.5) is None
    assert quantile([5], 0.1) == 5
    assert [quantile([40, 10, 30, 20], q) for q in (0, 0.1, 0.5, 0.9, 1)] == [10, 10, 20, 30, 40]  # floor(q (N - 1))


def test_bootstrap_is_over_runs_and_repeats():
    runs = [Count(0, 100)] * 5 + [Count(10, 100)] * 5
    low, high = rate_interval(runs, 1)
    assert (low, high) == rate_interval(runs, 1)
    assert 10 <= low <= 30 and 70 <= high <= 90  # standard error 15.8 around 50
    assert rate_interval(runs[:1], 1) is None and rate_interval([Count(0, 0)] * 3, 1) is None
    assert rate_interval([Count(1, 100)] * 4, 1) == (10.0, 10.0)
    leads = [0, 0, 5, 60, 70, 80, 90, 100, 110, 128]
    draws = np.random.default_rng(3).integers(10, size=(2000, 10))  # draw by draw, as the definition says
    medians = sorted(quantile([leads[i] for i in draw], 0.5) for draw in draws)
    assert quantile_interval(leads, 0.5, 3) == (quantile(medians, 0.025), quantile(medians, 0.975))
    assert quantile_interval([], 0.5, 1) is None and quantile_interval([7], 0.5, 1) is None


def test_a_summary_by_hand():
    results = [result_of(trace) for trace in (
        planted_trace(132, [(40, 0), (50, 0)], name="h1"),
        planted_trace(132, [(0, 0)], name="h2"),
        planted_trace(132, [(60, 1)], name="n1", label="near-limit"),
        planted_trace(300, [(190, 1)], [(200, 1)], name="g1", label="gradual"),
        planted_trace(300, [(170, 1)], [(200, 1)], name="g2", label="gradual"),
        planted_trace(300, [], [(200, 1)], name="s1", label="sudden"),
        planted_trace(300, [], name="d1", label="data"),  # nothing went non-finite: no incident
    )]
    entry = summarise(Planted(), results, "all", 1)
    assert (entry["incidents"], entry["detected"]) == (3, 2) and entry["recall"] == 2 / 3
    assert entry["recall_interval"] == clopper_pearson(2, 3)
    assert {kind: (value["detected"], value["incidents"]) for kind, value in entry["recall_by_class"].items()} == {
        "gradual": (2, 2), "sudden": (0, 1), "saturating": (0, 0), "injected": (0, 0), "data": (0, 0)}
    nothing = entry["recall_by_class"]["injected"]
    assert (nothing["incidents"], nothing["detected"], nothing["recall"], nothing["lead_median"]) == (0, 0, None, None)
    gradual, sudden = entry["recall_by_class"]["gradual"], entry["recall_by_class"]["sudden"]
    assert (gradual["lead_median"], gradual["lead_p10"]) == (10, 10) and (sudden["lead_median"], sudden["lead_p10"]) == (0, 0)
    assert gradual["lead_median_interval"] == (10, 30) and sudden["lead_median_interval"] is None
    assert (entry["lead_median"], entry["lead_p10"]) == (10, 0)  # of 0, 10, 30
    assert entry["false_alarms_healthy_per_1000"] == 1000 * 2 / 400 and entry["probe_steps_healthy"] == 400
    assert entry["false_alarms_near_limit_per_1000"] == 1000 * 1 / 200
    assert entry["false_alarms_warm_up_per_1000"] == 1000 * 1 / 192
    assert entry["false_alarms_healthy_with_warm_up_per_1000"] == 1000 * 3 / 528
    assert entry["probe_steps_healthy_with_warm_up"] == 528 and entry["false_alarms_healthy_with_warm_up_interval"] is not None
    assert entry["false_alarms_near_limit_interval"] is None  # of one run
    low, high = entry["false_alarms_healthy_interval"]
    assert (low, high) == (0.0, 10.0)
    assert (entry["state_bits"], entry["operations"]) == (3, 3)
    assert [(point["threshold"], point["recall"], point["false_alarms_healthy_per_1000"]) for point in entry["roc"]] == [
        (7.0, 2 / 3, 5.0), (8.0, 0.0, 0.0), (10.0, 0.0, 0.0)]
    empty = summarise(Planted(), [], "tuning", 1)
    assert empty["recall"] is None and empty["lead_median"] is None and empty["false_alarms_healthy_per_1000"] is None


def test_figures_of_the_upstream_and_the_goals_by_hand():
    results = [result_of(trace) for trace in (
        planted_trace(300, [(200, 0)], [(200, 2)], probes=3, name="s1", label="sudden"),
        planted_trace(300, [(200, 1)], [(200, 2)], probes=3, name="s2", label="sudden"),
        planted_trace(300, [(40, 0)], [(200, 2)], probes=3, name="s3", label="sudden"),
        planted_trace(300, [(190, 2)], [(200, 2)], probes=3, name="g1", label="gradual"),
        planted_trace(1032, [(0, 0)], name="h1"),
    )]
    entry = summarise(Planted(), results, "tuning", 1)
    sudden = entry["recall_by_class"]["sudden"]
    assert (sudden["upstream_same_step"], sudden["upstream_same_step_events"]) == (2 / 3, 2)
    assert sudden["upstream_same_step_interval"] == clopper_pearson(2, 3)
    assert sudden["upstream_operators_median"] == 1 and math.isclose(sudden["upstream_by_chance"], (0 + 0 + 1 / 40) / 3)
    assert entry["upstream_same_step"] == 2 / 4
    goals = reached([entry, summarise(Planted(), [], "held-out", 1)], "planted")
    number = len(GOALS)
    assert [(goal["measured"], goal["reached"]) for goal in goals[:number]] == [
        (1.0, True), (clopper_pearson(1, 1)[0], False), (10, False), (10, False), (0.0, False), (2 / 3, False),
        (1000 / 2064, False), (None, None), (None, None)]
    assert [goal["interval"] for goal in goals[:number]] == [
        clopper_pearson(1, 1), None, None, None, clopper_pearson(0, 3), clopper_pearson(2, 3), None, None, None]
    assert [goal["split"] for goal in goals] == ["tuning"] * number + ["held-out"] * number
    assert all(goal["reached"] is None and goal["measured"] is None for goal in goals[number:])
    assert reached([entry], "another") == []
    quiet = [planted_trace(1032, [(500, 0)] * (name == "n1"), name=name, label=label)  # 1 of 2000, and 1 of 2064 samples
             for name, label in (("n1", "near-limit"), ("n2", "stressed"))]
    edge = reached([summarise(Planted(), [result_of(trace) for trace in quiet], "tuning", 1)], "planted")
    assert [(goal["measured"], goal["reached"]) for goal in edge[-2:]] == [(0.0, True), (0.5, True)]
    four = planted_trace(2532, [(s, 0) for s in (500, 501, 502, 503)], name="n1", label="near-limit")  # 4 of 5000
    near_limit = reached([summarise(Planted(), [result_of(four)], "tuning", 1)], "planted")[-1]
    assert near_limit["measured"] == near_limit["goal"] == 0.8 and near_limit["reached"]  # at most: the goal itself is reached


def test_the_table_of_goals_in_the_documentation_is_that_of_the_code():
    document = (ROOT / "docs" / "evaluation.md").read_text()
    written = re.findall(r"^\| (.+?) \| (at least|at most) (\S+) \| `(.+?)` \|$", document, re.MULTILINE)
    assert written == [(goal.name, goal.sense, f"{goal.value:g}",
                        f"recall_by_class.{goal.kind}.{goal.key}" if goal.kind else goal.key) for goal in GOALS]


# --- labels ----------------------------------------------------------------------------------------------------------------

GOOD = '[runs.run]\nclass = "gradual"\nsplit = "tuning"\nfirst_bad_step = 200\nfirst_bad_op = "op1"\ndecided = "planted"\n'


@pytest.fixture
def folder(tmp_path):
    planted_trace(300, [(190, 1)], [(200, 1)], label="sudden").write(tmp_path / "run.safetensors")
    return tmp_path


def test_labels_come_from_the_file_else_from_the_trace(folder):
    (folder / "labels.toml").write_text(GOOD)
    labels = read_labels(folder / "labels.toml")
    run = load(folder / "run.safetensors", labels, folder / "labels.toml")
    assert run.label == Label("gradual", "tuning", 200, "op1", "planted", "labels.toml")
    own = load(folder / "run.safetensors", {}, None).label
    assert own == Label("sudden", "unassigned", 200, "op1", "metadata of the trace", "run.safetensors")


@pytest.mark.parametrize("content, field, wrong", [
    ("runs = [", "file", "is not TOML"),
    ("", "runs", "is missing"),
    ("runs = 3", "runs", "is missing or not a table"),
    ("version = 1\n" + GOOD, "version", "is not known"),
    ("[runs]\nrun = 3", "runs.run", "is not a table"),
    (GOOD.replace("class", "klass"), "runs.run.klass", "is not known"),
    (GOOD.replace('class = "gradual"\n', ""), "runs.run.class", "is missing or empty"),
    (GOOD.replace('split = "tuning"\n', ""), "runs.run.split", "is missing or empty"),
    (GOOD.replace('"planted"', '""'), "runs.run.decided", "is missing or empty"),
    (GOOD.replace('"gradual"', '"slow"'), "runs.run.class", "'slow' is no class"),
    (GOOD.replace('"tuning"', '"test"'), "runs.run.split", "'test' is no split"),
    (GOOD.replace("200", '"200"'), "runs.run.first_bad_step", "has the wrong type"),
    (GOOD.replace("200", "true"), "runs.run.first_bad_step", "has the wrong type"),
    (GOOD.replace("first_bad_step = 200\n", ""), "runs.run.first_bad_step", "are not both there"),
    (GOOD.replace('"gradual"', '"healthy"'), "runs.run.first_bad_op", "but the class is healthy"),
    (GOOD + "event_step = 300", "runs.run.event_step", "300 is no step of the trace"),
    (GOOD + 'event_step = "9"', "runs.run.event_step", "has the wrong type"),
    (GOOD.replace('"op1"', '"op9"'), "runs.run.first_bad_op", "is no probe of the trace"),
    (GOOD.replace("200", "201"), "runs.run.first_bad_step", "its first non-finite value is at step 200"),
    (GOOD.replace('"op1"', '"op0"'), "runs.run.first_bad_step", "it never holds a non-finite value"),
    (GOOD.replace('"gradual"', '"unknown"'), "runs.run.first_bad_op", "but the class is unknown"),
    (GOOD + 'incident = "some"', "runs.run.incident", "'some' is not known"),
    (GOOD + 'incident = "none"', "runs.run.incident", "but the class is gradual"),
    (GOOD.replace('"gradual"', '"data"') + 'incident = "none"', "runs.run.incident", "but first_bad_op is given"),
    ('[runs.run]\nclass = "data"\nsplit = "tuning"\ndecided = "x"\nincident = "none"\n', "runs.run.incident",
     "none, but op1 is non-finite at step 200"),
    ('[runs.run]\nclass = "unknown"\nsplit = "tuning"\ndecided = "x"\n', "runs.run.class", "op1 is non-finite at step 200"),
    ('[runs.run]\nclass = "stressed"\nsplit = "tuning"\ndecided = "x"\n', "runs.run.class", "op1 is non-finite at step 200"),
    (GOOD.replace('"gradual"', '"saturating"'), "runs.run.class", "no activation holds a clipped value (the trace has no co"),
    ('[runs.run]\nclass = "near-limit"\nsplit = "tuning"\ndecided = "x"\n', "runs.run.class", "op1 is non-finite at step 200"),
    (GOOD + GOOD.replace("runs.run", "runs.ruin"), "runs.ruin", "is the name of no trace"),
])
@needs_reference
def test_bad_labels_are_named(folder, capsys, content, field, wrong):
    (folder / "labels.toml").write_text(content)
    assert main([str(folder), "--out", str(folder / "out"), "--detector", "nonfinite-only"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"opd evaluate: {folder / 'labels.toml'}: {field}: ") and wrong in said and "; " in said
    assert not (folder / "out").exists()


@needs_reference
def test_bad_arguments_are_named(folder, capsys):
    def fault(*arguments) -> str:
        assert main([*map(str, arguments), "--out", str(folder / "out")]) == 2
        return capsys.readouterr().err

    (folder / "empty").mkdir()
    shutil.copy(folder / "run.safetensors", folder / "empty2.safetensors")
    assert "holds no *.safetensors" in fault(folder / "empty")
    assert "cannot be" in fault(folder / "nothing.safetensors")
    assert "is named twice" in fault(folder / "run.safetensors", folder / "run.safetensors")
    assert "is the name of" in fault(folder)  # two files, one name
    assert "is no detector; use forecast" in fault(folder / "run.safetensors", "--detector", "best")
    assert "no probe of the kinds" in fault(folder / "run.safetensors", "--kind", "weight")
    assert "--goals: zclip: is none of the detectors" in fault(folder / "run.safetensors", "--goals", "zclip",
                                                               "--detector", "nonfinite-only")
    assert "--split: tuning: has no run" in fault(folder / "run.safetensors", "--split", "tuning")
    assert "is negative" in fault(folder / "run.safetensors", "--seed", "-1")
    assert "cannot be read" in fault(folder / "run.safetensors", "--labels", folder / "none.toml")
    (folder / "broken.safetensors").write_bytes(b"not a trace")
    assert "broken.safetensors" in fault(folder / "broken.safetensors")
    (folder / "taken").write_text("")
    assert main([str(folder / "run.safetensors"), "--out", str(folder / "taken"), "--detector", "nonfinite-only"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(CorpusError):
        find_traces([str(folder / "empty")])


def test_evaluation_that_cannot_be_written_leaves_the_one_before(folder, monkeypatch, capsys):
    import opd.files as files
    out = folder / "out"
    arguments = [str(folder / "run.safetensors"), "--out", str(out), "--detector", "nonfinite-only"]
    assert main(arguments) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    synchronised = []

    def full_disk(descriptor):  # at the second file: the first is ready, and must not be there alone
        synchronised.append(descriptor)
        if len(synchronised) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full_disk)
        assert main([*arguments, "--seed", "2"]) == 2
    assert len(synchronised) == 2
    assert capsys.readouterr().err == (f"opd evaluate: {out / 'evaluation.json'}: cannot be written (No space left on device); "
                                       "check --out and its free space\n")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (out / "evaluation.html").unlink()
    (out / "evaluation.html").mkdir()
    assert main(arguments) == 2 and f"{out / 'evaluation.html'}: cannot be written (Is a dir" in capsys.readouterr().err
    assert sorted(file.name for file in out.iterdir()) == sorted(before)


def test_a_missing_reference_is_an_error(folder, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "OPD_BUILD": str(tmp_path / "none")}
    result = subprocess.run([sys.executable, "-m", "opd", "evaluate", str(folder)], env=environment, capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == 2 and "the C++ reference is not built" in result.stderr


# --- the command -----------------------------------------------------------------------------------------------------------

RATE = (float, int, type(None))
PAIR = (list, tuple, type(None))
INCIDENTS = {"incidents": int, "detected": int, "recall": RATE, "recall_interval": PAIR,
             "lead_median": (int, type(None)), "lead_median_interval": PAIR,
             "lead_p10": (int, type(None)), "lead_p10_interval": PAIR,
             "upstream_same_step": RATE, "upstream_same_step_events": int, "upstream_same_step_interval": PAIR,
             "upstream_operators_median": (int, type(None)), "upstream_by_chance": RATE}
def rates(*names: str) -> dict:
    return {key: kind for what in names for key, kind in ((f"false_alarms_{what}_per_1000", RATE),
                                                         (f"false_alarms_{what}_interval", PAIR), (f"probe_steps_{what}", int))}


QUIET = rates("healthy", "healthy_with_warm_up", "stressed", "stressed_with_warm_up", "near_limit", "warm_up")
OF_CLASS = {**INCIDENTS, "incidents_without_operator": int, **rates("before_incident", "before_own_alarm")}
ENTRY = {"name": str, "split": str, "source": str, "settings": dict, "unit": str, "threshold": float,
         **OF_CLASS, "recall_by_class": dict, "operators": int, "operators_detected": int,
         "gradient_overflows": int, "gradient_overflows_forecast": int, "gradient_overflows_share": RATE,
         "gradient_overflows_interval": PAIR, **QUIET,
         "state_bits": int, "operations": int, "operations_by_kind": dict, "roc": list}
RUN = {"name": str, "file": str, "class": str, "split": str, "label_from": str, "decided": str, "steps": int, "probes": int,
       "outcome": str, "first_incident": (dict, type(None)), "incident_without_operator": (dict, type(None)),
       "event_step": (int, type(None)), "operators_nonfinite": int, "overflows": int, "gradient_overflows": int,
       "detectors": list}
TOLD = (dict, type(None))
SAID = {"name": str, "lead_steps": (int, type(None)), "false_alarms": int, "probe_steps": int, "warm_up_false_alarms": int,
        "warm_up_probe_steps": int, "upstream_same_step": (bool, type(None)), "upstream_probe": (str, type(None)),
        "upstream_operators": (int, type(None)), "has_verdict": bool, "alarms": int, "first_alarm": TOLD, "alarm_before": TOLD,
        "alarm_same_step": TOLD, "alarm_at_incident": bool, "overflows_warned": int, "gradient_overflows_forecast": int,
        "alarms_before_incident": int, "alarms_before_own_alarm": int}
MATCHED = {"rule": str, "rate": float, "unit": str, "lowest_rate": float, "threshold": (float, int, type(None)),
           "end_of_sweep": (bool, type(None)), "tuning": TOLD, "held_out": TOLD}
GOAL = {"name": str, "split": str, "detector": str, "sense": str, "goal": (int, float), "measured": RATE, "interval": PAIR,
        "reached": (bool, type(None))}
TOP = {"format": str, "version": int, "seed": int, "confidence": float, "resamples": int, "lead_window": int,
       "warm_up_samples": int, "kinds": list, "only_split": (str, type(None)), "classes_without_run": list,
       "runs": list, "detectors": list, "matched": list, "goals": list}
NAMES = ["forecast", "forecast-no-jump", "published-before", "published-after", "static-headroom-1", "static-headroom-3",
         "static-headroom-1-scaled", "static-headroom-3-scaled", "fpchecker-5-percent", "zclip", "olmo-6-sigma",
         "msprobe-turbulence", "megatron-10x", "te-amax-history", "nonfinite-only"]
RULES = [*NAMES[:4], "static-headroom", "static-headroom-scaled", *NAMES[8:]]


def check(value: dict, schema: dict) -> int:
    assert list(value) == list(schema)
    for key, kind in schema.items():
        assert isinstance(value[key], kind), (key, value[key])
    return len(schema)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two splits, four classes; FP16 ramps into the limit, steady runs."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(11)
    labels = ""
    for name, label, split in (("calm", "healthy", "held-out"), ("calm2", "healthy", "tuning"),
                               ("edge", "near-limit", "held-out"), ("ramp", "gradual", "held-out"),
                               ("burst", "sudden", "tuning"), ("edge2", "near-limit", "tuning")):
        steps = 260
        level = 30000 if name.startswith("edge") else 10
        max_abs = (generator.uniform(0.9, 1.1, (steps, 3)) * level).astype(np.float16).astype(np.float32)
        nonfinite = np.zeros(max_abs.shape, np.int64)
        bad = None
        if name == "ramp":
            max_abs[:, 1] = np.minimum(2.0 ** np.linspace(3, 17, steps), 65504).astype(np.float16)
        if label in ("gradual", "sudden"):
            bad = 241
            nonfinite[bad:, 1] = 2
        probes = [Probe(f"layer<{p}>", "gradient" if p == 2 else "activation", "FP16", (8,)) for p in range(3)]
        Trace(name, label, probes, np.arange(steps), max_abs, nonfinite, bad, None if bad is None else "layer<1>").write(
            folder / f"{name}.safetensors")
        labels += f'[runs.{name}]\nclass = "{label}"\nsplit = "{split}"\ndecided = "made"\n'
        labels += f'first_bad_step = {bad}\nfirst_bad_op = "layer<1>"\n' if bad else ""
    (folder / "labels.toml").write_text(labels)
    return folder


@needs_reference
def test_evaluation_json_has_its_schema(corpus, tmp_path, capsys):
    assert opd_main(["evaluate", str(corpus), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    found = json.loads((tmp_path / "evaluation.json").read_text())
    checked = check(found, TOP)
    assert [run["first_incident"] for run in found["runs"]] == [
        {"op": 1, "probe": "layer<1>", "step": 241, "what": "non-finite"}, None, None, None, None,
        {"op": 1, "probe": "layer<1>", "step": 241, "what": "non-finite"}]
    assert (found["format"], found["version"]) == ("opd-evaluation", 1)
    assert found["classes_without_run"] == ["stressed", "saturating", "injected", "data"]
    assert [(run["name"], run["split"]) for run in found["runs"]] == [
        ("burst", "tuning"), ("calm", "held-out"), ("calm2", "tuning"), ("edge", "held-out"), ("edge2", "tuning"),
        ("ramp", "held-out")]
    for run in found["runs"]:
        checked += check(run, RUN)
        assert [entry["name"] for entry in run["detectors"]] == NAMES
        checked += sum(check(entry, SAID) for entry in run["detectors"])
    assert [(entry["split"], entry["name"]) for entry in found["detectors"]] == [
        (split, name) for split in ("tuning", "held-out", "all") for name in NAMES]
    for entry in found["detectors"]:
        checked += check(entry, ENTRY) + sum(check(figures, OF_CLASS) for figures in entry["recall_by_class"].values())
        thresholds = [point["threshold"] for point in entry["roc"]]
        assert entry["threshold"] in thresholds
        at = entry["roc"][thresholds.index(entry["threshold"])]  # the ROC passes through the published setting
        for key in ("recall", "false_alarms_healthy_per_1000", "false_alarms_near_limit_per_1000"):
            assert at[key] == entry[key], (entry["name"], key)
            checked += 1
    assert [(goal["split"], goal["name"]) for goal in found["goals"]] == [
        (split, goal.name) for split in ("tuning", "held-out", "all") for goal in GOALS]
    checked += sum(check(goal, GOAL) for goal in found["goals"])
    assert [(entry["rate"], entry["rule"]) for entry in found["matched"]] == [(rate, rule) for rate in RATES for rule in RULES]
    for entry in found["matched"]:
        checked += check(entry, MATCHED)
        if entry["held_out"] is not None:
            checked += check(entry["held_out"], {"gradual": dict, "sudden": dict, **QUIET})
            checked += sum(check(entry["held_out"][kind], INCIDENTS) for kind in ("gradual", "sudden"))
    assert checked > 8000
    by_name = {entry["name"]: entry for entry in found["detectors"] if entry["split"] == "held-out"}
    assert by_name["forecast"]["recall"] == by_name["static-headroom-3"]["recall"] == 1.0
    assert by_name["nonfinite-only"]["recall"] == 0.0
    near_limit = {name: entry["false_alarms_near_limit_per_1000"] for name, entry in by_name.items()}
    assert near_limit["static-headroom-3"] > 300 and near_limit["forecast"] == 0
    assert "split held-out: 3 runs (1 healthy, 1 near-limit, 1 gradual)" in told and "no run of class injected" in told
    of_split = (["detector"] + NAMES + ["false"] + NAMES, ["goals"] + [goal.name.split()[0] for goal in GOALS])
    classes = {"tuning": ["sudden"], "held-out": ["gradual"], "all": ["gradual", "sudden"]}
    tables = [word for kinds in classes.values()
              for word in of_split[0] + [name for kind in kinds for name in [kind, *NAMES]] + of_split[1]]
    tables += (["detector"] + RULES) * len(RATES) + ["detector"] + NAMES
    assert [line.split()[0] for line in told.splitlines() if line.startswith("  ")] == tables
    assert max(len(line) for line in told.splitlines()[:-1]) < 215  # the last one names the files


@needs_reference
def test_traces_without_labels_and_a_class_without_runs(corpus, tmp_path):
    shutil.copy(corpus / "calm.safetensors", tmp_path)
    found = evaluate([str(tmp_path)], names=["forecast", "megatron-10x"])
    assert [(entry["name"], entry["split"], entry["recall"]) for entry in found["detectors"]] == [
        ("forecast", "unassigned", None), ("megatron-10x", "unassigned", None)]
    assert found["classes_without_run"] == ["stressed", "near-limit", "gradual", "sudden", "saturating", "injected", "data"]
    assert found["matched"] == []
    told = text(found)
    assert "no run of class gradual: nothing is known of it" in told and "no run has an incident" in told
    planted_trace(20, name="short").write(tmp_path / "short.safetensors")
    short = text(evaluate([str(tmp_path / "short.safetensors")], names=["forecast"]))
    assert "no healthy run is longer than the warm-up of 32 samples" in short
    kinds = evaluate([str(corpus)], kinds=["gradient"], names=["forecast"])
    assert [run["probes"] for run in kinds["runs"]] == [1] * 6 and kinds["detectors"][0]["incidents"] == 0


@needs_reference
def test_one_split_alone_and_what_is_said_of_each_run(corpus, tmp_path, capsys):
    folder = tmp_path / "corpus"
    shutil.copytree(corpus, folder)
    (folder / "shut.safetensors").write_bytes((folder / "calm.safetensors").read_bytes()[:-1])
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 2 and "shut" in capsys.readouterr().err
    (folder / "shut.safetensors").unlink()
    # A trace of the other split that is damaged behind its header is not read.
    ramp = bytearray((folder / "ramp.safetensors").read_bytes())
    ramp[-100:] = b"\xff" * 100
    (folder / "ramp.safetensors").write_bytes(ramp)
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 2 and "ramp" in capsys.readouterr().err
    assert main([str(folder), "--out", str(tmp_path / "out"), "--split", "tuning", "--goals", "zclip"]) == 0
    told = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["only_split"] == "tuning" and [run["name"] for run in found["runs"]] == ["burst", "calm2", "edge2"]
    assert {entry["split"] for entry in found["detectors"]} == {"tuning"}
    assert {goal["detector"] for goal in found["goals"]} == {"zclip"} and "goals of zclip" in told
    assert "ramp" not in told and "held-out" not in told
    both = json.loads(json.dumps(evaluate([str(corpus)])))
    assert [e for e in both["detectors"] if e["split"] == "tuning"] == found["detectors"]  # the same figures as among all

    (folder / "ramp.safetensors").unlink()
    shutil.copy(corpus / "ramp.safetensors", folder)
    assert main([str(folder), "--out", str(tmp_path / "out"), "--runs", "--detector", "static-headroom-3",
                 "--detector", "megatron-10x", "--detector", "nonfinite-only"]) == 0
    told = capsys.readouterr().out
    assert "ramp: 260 steps, 3 probes, layer<1> non-finite at step 241" in told
    assert "calm: 260 steps, 3 probes, no incident" in told
    assert re.search(r"  static-headroom-3 +\d+  lead \d+; first alarm \d+ steps before, layer<1>\n", told)
    assert re.search(r"  nonfinite-only +0  at the incident itself\n", told)
    planted_trace(20, [(5, 0)], name="short").write(tmp_path / "short.safetensors")
    short = per_run(evaluate([str(tmp_path / "short.safetensors")], names=["megatron-10x", "msprobe-turbulence"]))
    assert "no verdict: the rule needs more samples than the log has" in short
    assert re.search(r"msprobe-turbulence +1  first alarm at step 5, op0", short)


@needs_reference
def test_the_output_is_the_same_each_time(corpus, tmp_path):
    outputs = []
    for seed in ("0", "1"):
        out = tmp_path / seed
        environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "PYTHONHASHSEED": seed}
        result = subprocess.run([sys.executable, "-m", "opd", "evaluate", str(corpus), "--out", str(out)], env=environment,
                                check=True, capture_output=True, text=True, timeout=300)
        outputs.append(((out / "evaluation.json").read_bytes(), (out / "evaluation.html").read_bytes(),
                        result.stdout.replace(str(out), "")))
    assert outputs[0] == outputs[1] and len(outputs[0][0]) > 10000
    assert main([str(corpus), "--out", str(tmp_path / "2"), "--seed", "2", "--detector", "zclip"]) == 0
    assert json.loads((tmp_path / "2" / "evaluation.json").read_text())["seed"] == 2


@needs_reference
def test_evaluation_html_is_self_contained_and_drawn(corpus, tmp_path):
    assert main([str(corpus), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "evaluation.html").read_text()
    assert "layer<1>" not in page and "layer&lt;1&gt;" in page
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)=', page)
    for name in NAMES:
        of_rule = len(RATES) * (name in RULES)
        assert page.count(f"<td>{name}</td>") == 2 * 3 + 4 + of_rule + 1  # twice each split, each class in it, matched, cost
        assert page.count(f'<th scope="col" class="up"><span>{name}</span></th>') == 1
    assert page.count('<table class="goals">') == 3 and page.count('<tr class="none"><td>gradual: recall<') == 1  # of tuning
    assert page.count('<td class="c ') == 6 * len(NAMES) and page.count('<section class="matched">') == 1
    if CHROMIUM is None:
        pytest.skip("no chromium: the page is not drawn")
    drawn = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
                            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "evaluation.html").as_uri()],
                           capture_output=True, text=True, timeout=300)
    assert 'data-drawn="yes"' in drawn.stdout[:2000]
    assert drawn.stdout.count('class="main-svg"') >= 6  # two plots of each of the three splits
