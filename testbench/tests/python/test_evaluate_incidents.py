"""opd.evaluate, what went wrong in a run: incidents without an operator, clipped values, labels without an incident, class
unknown; and the figures of incident runs: alarms before an incident, gradient overflows forecast, the matched rate. Each on
traces made for the purpose, with values worked by hand.

The C++ reference is read from the folder in OPD_BUILD (default: build); without it the tests that need it are skipped.
"""
import json
from dataclasses import replace

import numpy as np
import pytest
from test_evaluate import Planted, needs_reference, planted_trace, result_of, run_of

from opd.evaluate.command import evaluate, hold, main
from opd.evaluate.corpus import CorpusError, load, read_labels
from opd.evaluate.detector import Samples, clipped_values
from opd.evaluate.figures import rate_interval, summarise
from opd.evaluate.incident import Unlocated
from opd.evaluate.limits import NonfiniteOnly, StaticHeadroom, StaticHeadroomScaled
from opd.evaluate.matched import matched
from opd.evaluate.metrics import Count, Facts, assess, gradient_overflows
from opd.evaluate.tables import absences, event, per_run, text

NAN = np.float32("nan")


def series(steps, **values) -> np.ndarray:
    """1 everywhere but at the steps given as s30=nan."""
    made = np.ones(steps, np.float32)
    for name, value in values.items():
        made[int(name[1:])] = value
    return made


def loaded(folder, trace, labels=""):
    trace.write(folder / f"{trace.name}.safetensors")
    file = folder / "labels.toml"
    file.write_text(labels)
    return load(folder / f"{trace.name}.safetensors", read_labels(file) if labels else {}, file if labels else None)


def label(kind, **fields) -> str:
    return f'[runs.run]\nclass = "{kind}"\nsplit = "tuning"\ndecided = "x"\n' + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


# --- incidents without an operator -----------------------------------------------------------------------------------------

def lost(tmp_path, kinds=("activation", "activation"), bad=(), label="sudden", **members):
    """Facts of a run of 300 steps."""
    trace = planted_trace(300, [(90, 0)], bad, probes=len(kinds), label=label, kinds=list(kinds))
    return Facts.of(loaded(tmp_path, replace(trace, **members)))


def test_a_loss_that_no_probe_explains_is_an_incident_without_an_operator(tmp_path):
    facts = lost(tmp_path, loss=series(300, s100=NAN, s101=np.float32("inf")))
    assert facts.run.unlocated == Unlocated(100, ("loss",)) and facts.incident is None and facts.event == 100
    result = assess(Planted(), facts)
    assert result.unlocated and result.lead is None and result.upstream is None and result.log.before.step == 90


def test_weights_and_the_gradient_norm_are_no_culprits(tmp_path):
    kinds = ("activation", "weight", "optimizer", "weight")
    facts = lost(tmp_path, kinds, [(40, 1), (41, 1), (40, 3), (50, 2)], loss=series(300, s41=NAN))
    assert facts.run.unlocated == Unlocated(40, ("op1", "op3")) and facts.incident is None
    facts = lost(tmp_path, grad_norm=series(300, s20=np.float32("inf")), loss_scale=series(300))
    assert facts.run.unlocated == Unlocated(20, ("grad_norm",))  # of a run that is said to have gone wrong
    facts = lost(tmp_path, label="injected", grad_norm=series(300, s20=np.float32("inf")), loss_scale=series(300))
    assert facts.run.unlocated is None and facts.incident is None  # under a scaler, in a run that need not have
    facts = lost(tmp_path, label="injected", grad_norm=series(300, s20=np.float32("inf")))
    assert facts.run.unlocated == Unlocated(20, ("grad_norm",))


@pytest.mark.parametrize("kinds, bad, nan_at, step, op", [
    (("activation", "activation"), [(100, 1)], 100, None, 1),    # a forward probe shows it
    (("activation", "activation"), [(100, 1)], 103, None, 1),
    (("activation", "gradient"), [(40, 1)], 100, 100, None),     # a scaler skipped that one long ago
    (("activation", "gradient"), [(100, 1)], 100, 100, None),    # the gradient is non-finite because the loss is
    (("activation", "gradient"), [(99, 1)], 100, None, 1),       # its update broke the weights
    (("activation", "collective"), [(99, 1)], 100, None, 1),
    (("activation", "weight"), [(99, 1)], 100, 99, None),        # the earliest of what is known
    (("activation", "gradient"), [(40, 1)], None, None, 1),      # no loss is lost: the gradient is the incident
])
def test_where_a_lost_loss_comes_from(tmp_path, kinds, bad, nan_at, step, op):
    members = {} if nan_at is None else {"loss": series(300, **{f"s{nan_at}": NAN})}
    facts = lost(tmp_path, kinds, bad, **members)
    assert (facts.run.unlocated.step if facts.run.unlocated else None, facts.incident) == (step, op)


def test_a_named_incident_stands(tmp_path):
    trace = replace(planted_trace(300, [], [(40, 1)], label="data", kinds=["activation", "weight"]), loss=series(300, s41=NAN))
    facts = Facts.of(loaded(tmp_path, trace, label("data", first_bad_step=40, first_bad_op="op1")))
    assert facts.run.unlocated is None and facts.incident == 1


@pytest.mark.parametrize("kind", ["healthy", "stressed", "near-limit", "unknown"])
def test_a_trace_that_contradicts_its_clean_label_counts_as_sudden(tmp_path, kind):
    trace = replace(planted_trace(300, label=kind), loss=series(300, s30=NAN))
    run = loaded(tmp_path, trace)
    assert run.label.kind == "sudden" and run.unlocated == Unlocated(30, ("loss",))
    assert run.label.decided == f"metadata of the trace says {kind}, but loss is non-finite at step 30"
    forward = loaded(tmp_path, planted_trace(300, [], [(50, 1)], label=kind))
    assert (forward.label.kind, Facts.of(forward).incident) == ("sudden", 1)
    with pytest.raises(CorpusError, match=f"runs.run.class: {kind}, but loss is non-finite at step 30; correct it"):
        loaded(tmp_path, trace, label(kind))
    scaled = replace(planted_trace(300, [], [(50, 1)], label=kind, kinds=["activation", "gradient"]),
                     loss_scale=series(300), grad_norm=series(300, s50=np.float32("inf")))
    assert loaded(tmp_path, scaled).label.kind == kind  # the scaler at work
    with pytest.raises(CorpusError, match="grad_norm is non-finite at step 50"):
        loaded(tmp_path, replace(scaled, loss_scale=None), label(kind))


@needs_reference
def test_what_is_said_of_a_run_without_an_operator(tmp_path, capsys):
    kinds = ["weight"] * 5
    replace(planted_trace(60, [], [(30, op) for op in range(5)], probes=5, kinds=kinds, name="narrow", label="sudden"),
            loss=series(60, s30=NAN)).write(tmp_path / "narrow.safetensors")
    planted_trace(60, name="half", label="unknown").write(tmp_path / "half.safetensors")
    planted_trace(60, name="calm").write(tmp_path / "calm.safetensors")
    planted_trace(60, name="flip", label="injected").write(tmp_path / "flip.safetensors")
    assert main([str(tmp_path), "--runs", "--out", str(tmp_path / "out"), "--detector", "nonfinite-only"]) == 0
    told = capsys.readouterr().out
    assert ("narrow: 60 steps, 5 probes, loss, op0, op1 and 3 more non-finite at step 30, and no probe of an operator's output "
            "shows the culprit (to see it, `opd capture --probes output`)\n") in told
    assert "half: 60 steps, 2 probes, not all of the source was understood: whether there was an incident is not known" in told
    assert "calm: 60 steps, 2 probes, no incident\n" in told
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    runs = {run["name"]: run for run in found["runs"]}
    assert {name: run["outcome"] for name, run in runs.items()} == {
        "narrow": "no operator", "half": "unknown", "calm": "none", "flip": "none"}
    assert runs["narrow"]["incident_without_operator"] == {"step": 30, "what": ["loss", "op0", "op1", "op2", "op3", "op4"]}
    entry = found["detectors"][0]
    assert (entry["incidents"], entry["incidents_without_operator"]) == (0, 1)
    assert entry["recall_by_class"]["sudden"]["incidents_without_operator"] == 1
    assert entry["probe_steps_healthy"] == 2 * 28  # of calm alone
    said = absences(found)
    assert [line for line in said if line.startswith("narrow: an incident that no operator of the trace shows: in no recall")]
    assert [line for line in said if line.startswith("half: class unknown: in no figure")]
    assert "without an incident, in no recall: flip (injected)" in said
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert page.count('<td class="c miss">?</td>') == 1 and "no probe of an operator&#x27;s output" in page


def test_a_run_of_class_unknown_is_in_no_figure():
    alarmed = planted_trace(300, [(s, 0) for s in range(40, 240)], label="unknown")
    entry = summarise(Planted(), [result_of(alarmed)], "all", 1)
    counted = {key: value for key, value in entry.items() if key.startswith("probe_steps_") or key == "operators"}
    assert set(counted.values()) == {0} and entry["incidents"] == entry["gradient_overflows"] == 0


def test_a_label_can_say_that_there_was_no_incident(tmp_path):
    trace = replace(planted_trace(300, [], [(50, 1)], label="injected", kinds=["activation", "gradient"]),
                    loss_scale=series(300))
    assert Facts.of(loaded(tmp_path, trace)).incident == 1
    run = loaded(tmp_path, trace, label("injected", incident="none"))
    result = assess(Planted(), Facts.of(run))
    assert (result.lead, result.unlocated, run.unlocated) == (None, False, None)
    assert summarise(Planted(), [result], "tuning", 1)["incidents"] == 0
    with pytest.raises(CorpusError, match="runs.run.incident: none, but loss is non-finite at step 7"):
        loaded(tmp_path, replace(trace, loss=series(300, s7=NAN)), label("injected", incident="none"))


# --- a cast that saturates -------------------------------------------------------------------------------------------------

def clipping(steps=300, clipped=(), bad=(), kinds=("activation", "activation", "gradient"), alarms=(), name="run"):
    saturated = np.zeros((steps, len(kinds)), np.int64)
    for s, op in clipped:
        saturated[s, op] = 2
    return replace(planted_trace(steps, alarms, bad, probes=len(kinds), label="saturating", kinds=list(kinds), name=name),
                   saturated=saturated)


def test_the_first_clipped_value_of_an_activation_is_the_incident():
    trace = clipping(clipped=[(100, 2), (200, 1), (201, 0), (220, 1)], alarms=[(190, 1), (200, 0), (230, 1)])
    facts = Facts.of(run_of(trace))
    assert (facts.incident, facts.bad, facts.event) == (1, 200, 200)
    assert clipped_values(trace)[:, 2].sum() == 0  # a gradient is not meant
    result = assess(Planted(), facts)
    assert (result.lead, result.operators, result.upstream.op) == (10, 2, 0)
    assert result.log.overflows == 2 and result.log.alarms == 2  # stretches at 200 to 201 and at 220; none after the first
    # Judged: operator 0 to step 72, operator 1 to 71, the gradient to the end; each after the warm-up of 32.
    assert result.false_alarms == Count(0, (201 - 128 - 32) + (200 - 128 - 32) + (300 - 32))
    same = replace(trace, label="sudden")  # in any other class a clipped value is an ordinary one
    assert Facts.of(run_of(same)).incident is None and assess(Planted(), Facts.of(run_of(same))).operators == 0


@needs_reference
def test_a_saturating_run_in_words(tmp_path):
    clipping(clipped=[(200, 1)]).write(tmp_path / "run.safetensors")
    found = evaluate([str(tmp_path)], names=["static-headroom-1"])
    assert found["runs"][0]["first_incident"] == {"op": 1, "probe": "op1", "step": 200, "what": "clipped"}
    assert "run: 300 steps, 3 probes, op1 clipped at step 200\n" in per_run(found)
    assert found["detectors"][0]["recall_by_class"]["saturating"]["incidents"] == 1 and "\n  saturating " in text(found)


def test_labels_of_saturating_runs_are_checked(tmp_path):
    named = label("saturating", first_bad_step=200, first_bad_op="op1")
    trace = clipping(clipped=[(200, 1), (210, 0)])
    assert Facts.of(loaded(tmp_path, trace, named)).incident == 1
    assert Facts.of(loaded(tmp_path, trace, label("saturating"))).incident == 1
    asked = "first_bad_step: op1 at step 200 is asked for, but"
    for clipped, bad, wrong in (([(199, 1)], [], f"{asked} its first clipped value is at step 199"),
                                ([(9, 0)], [], f"{asked} it never holds a clipped value"),
                                ([], [], "class: saturating, but no activation holds a clipped value"),
                                ([(5, 2)], [], "class: saturating, but no activation holds a clipped value"),
                                ([(200, 1)], [(150, 0)], "class: saturating, but op0 is non-finite at step 150, and the first "
                                                         "clipped value is at step 200")):
        with pytest.raises(CorpusError, match=wrong):
            loaded(tmp_path, clipping(clipped=clipped, bad=bad), named)
    assert Facts.of(loaded(tmp_path, clipping(clipped=[(200, 1)], bad=[(250, 0)]))).incident == 1  # of the trace itself
    assert Facts.of(loaded(tmp_path, clipping(clipped=[(200, 0)], bad=[(200, 1)]), label("saturating"))).incident == 0  # in order


# --- alarms before an incident ---------------------------------------------------------------------------------------------

def test_alarms_before_an_incident_by_hand():
    # Incident: operator 1 at step 300, warned from 280 on. Operator 2 goes bad at 310, operator 0 never.
    alarms = [(31, 0), (50, 0), (279, 0), (290, 0), (300, 0), (350, 0), (280, 1), (60, 1), (150, 1), (181, 2), (182, 2),
              (200, 2)]
    trace = planted_trace(400, alarms, [(300, 1), (310, 2)], probes=3, label="gradual")
    result = result_of(trace)
    assert result.lead == 20
    # Judged before step 300, from 32 on: operator 0 all 268, operator 1 up to 171, operator 2 up to 181.
    # Alarms among them: 50, 279, 290 of operator 0; 60, 150 of operator 1; 181 of operator 2.
    assert result.before_incident == Count(6, 268 + (172 - 32) + (182 - 32))
    # Before step 280, all operators, whatever they do later: all but 31, 290, 300, 350 and the one at 280 itself.
    assert result.before_own_alarm == Count(7, 3 * (280 - 32))
    missed = result_of(planted_trace(400, [(250, 0), (299, 0)], [(300, 1)], label="sudden"))
    assert missed.lead == 0 and missed.before_own_alarm == Count(2, 2 * 268)  # without an own alarm, up to the incident
    early = result_of(planted_trace(400, [(s, 1) for s in range(100, 300)], [(300, 1)], label="sudden"))
    assert early.lead == 128 and early.before_own_alarm == Count(72, 2 * (172 - 32))  # the lead is 128 steps at most
    calm = result_of(planted_trace(400, [(250, 0)]))
    assert calm.before_incident == calm.before_own_alarm == Count()  # no incident
    other = planted_trace(400, [], [(300, 1)], name="other", label="sudden")
    entry = summarise(Planted(), [result, result_of(other)], "all", 1)
    assert entry["false_alarms_before_incident_per_1000"] == 1000 * 6 / (558 + 268 + 140)
    assert entry["probe_steps_before_own_alarm"] == 3 * 248 + 2 * 268
    assert entry["recall_by_class"]["gradual"]["false_alarms_before_own_alarm_per_1000"] == 1000 * 7 / 744
    assert entry["recall_by_class"]["sudden"]["false_alarms_before_incident_per_1000"] == 0
    counts = [result.before_incident, result_of(other).before_incident]
    assert entry["false_alarms_before_incident_interval"] == rate_interval(counts, 1)


# --- gradients under a loss scale ------------------------------------------------------------------------------------------

def scaled(alarms=(), bad=(), kinds=("activation", "gradient", "gradient"), label="healthy", name="run", scale=1024.0):
    trace = planted_trace(400, alarms, bad, probes=len(kinds), kinds=list(kinds), label=label, name=name)
    return replace(trace, loss_scale=np.full(400, scale, np.float32))


def test_gradient_overflows_by_hand():
    bad = [(100, 1), (101, 1), (101, 2), (150, 2), (300, 1), (300, 0), (350, 1)]
    trace = scaled(bad=bad, label="sudden")
    found = [(start, ops.tolist()) for start, ops in gradient_overflows(Samples.of(trace))]
    assert found == [(100, [1]), (150, [2])]  # the one at 300 comes with, that at 350 after a non-finite activation
    assert gradient_overflows(Samples.of(replace(trace, loss_scale=None))) == []


@pytest.mark.parametrize("alarms, forecast", [
    ([], 0),
    ([(99, 1)], 1),
    ([(99, 2), (99, 0)], 0),   # of another gradient than the one that overflows, of an activation
    ([(36, 1)], 1),            # still standing in the sample before
    ([(35, 1)], 0),            # withdrawn after 64 quiet steps
    ([(100, 1)], 0),           # at the overflow itself
    ([(102, 1)], 1),           # forecasts the second, at 150
    ([(99, 1), (149, 1)], 2),
    ([(99, 1), (105, 1), (200, 1)], 2),
])
def test_a_forecast_is_an_alarm_since_the_last_overflow(alarms, forecast):
    result = result_of(scaled(alarms, [(100, 1), (150, 1)]))
    assert result.gradients == Count(forecast, 2)
    assert assess(NonfiniteOnly(), Facts.of(run_of(scaled([], [(100, 1), (150, 1)])))).gradients == Count(0, 2)


def test_the_share_of_gradient_overflows_is_over_all_runs():
    results = [result_of(scaled([(99, 1)], [(100, 1), (200, 2)], name="a")),
               result_of(scaled([], [(100, 1)], name="b", label="near-limit")),
               result_of(scaled([(99, 1)], [(100, 1)], name="c", label="unknown"))]  # in no figure
    entry = summarise(Planted(), results, "all", 1)
    assert (entry["gradient_overflows"], entry["gradient_overflows_forecast"]) == (3, 1)
    assert entry["gradient_overflows_share"] == 1 / 3 and entry["gradient_overflows_interval"] == (0.0, 0.5)
    none = summarise(Planted(), [result_of(planted_trace(100))], "all", 1)
    assert none["gradient_overflows_share"] is None and none["gradient_overflows_interval"] is None


# --- the ablation, and the matched rate ------------------------------------------------------------------------------------

def test_static_headroom_with_the_special_case():
    # FP16: 65504 / 2^0.5 = 46318 is within 0.625 bit, 32752 (1 bit) and 16376 (2 bits) are not.
    values = np.float32([8000, 16376, 32752, 46000, 48000, 46000])
    trace = planted_trace(6, probes=3, kinds=["activation", "gradient", "gradient"])
    trace = replace(trace, max_abs=np.stack([values] * 3, axis=1), loss_scale=np.float32([1024] * 5 + [1]))
    raised = StaticHeadroomScaled(1).judge(Samples.of(trace)).alarms
    assert raised[:, 0].tolist() == [False, False, True, True, True, True]       # an activation: within 1 bit
    assert raised[:, 1].tolist() == [False, False, False, True, True, True]  # 46000 is 0.51 bit away; at a scale of 1: 1 bit
    unscaled = replace(trace, loss_scale=None)
    assert np.array_equal(StaticHeadroomScaled(1).judge(Samples.of(unscaled)).alarms,
                          StaticHeadroom(1).judge(Samples.of(unscaled)).alarms)
    swept = [verdict.alarms for verdict in StaticHeadroomScaled(3).judge_sweep(Samples.of(trace))]
    assert all(np.array_equal(alarms[:5, 1], raised[:5, 1]) for alarms in swept)  # no threshold moves the special case
    assert len({alarms[:, 0].sum() for alarms in swept}) > 3
    assert StaticHeadroomScaled(1).rule == StaticHeadroomScaled(3).rule != StaticHeadroom(1).rule == StaticHeadroom(3).rule


def results_for(*traces_and_splits):
    return [assess(Planted(), Facts.of(run_of(trace, split))) for trace, split in traces_and_splits]


def near_limit(name, weak, strong):
    """1000 judged probe-steps; alarms at threshold 7, and of them `strong` at 8 too."""
    return planted_trace(532, [(100 + s, 0) for s in range(weak)], strong=[(300 + s, 1) for s in range(strong)], name=name,
                         label="near-limit")


def test_the_matched_threshold_is_the_most_sensitive_one_that_keeps_the_rate():
    held_out = [(planted_trace(300, strong=[(190, 1)], bad=[(200, 1)], name="g", label="gradual"), "held-out"),
                (planted_trace(300, [(190, 1)], bad=[(200, 1)], name="s", label="sudden"), "held-out"),
                (near_limit("n2", 9, 2), "held-out"), (planted_trace(132, strong=[(5, 0)], name="h2"), "held-out")]
    tuning = [(near_limit("n1", 2, 1), "tuning"), (planted_trace(132, [(3, 0)], strong=[(40, 0)], name="h1"), "tuning")]
    at_most_1, at_most_3 = matched([Planted()], [results_for(*tuning, *held_out)], 1)
    # On the tuning half: 3 per 1000 at threshold 7, 1 at 8, none at 10.
    assert (at_most_1["rate"], at_most_1["threshold"], at_most_1["end_of_sweep"]) == (1, 8.0, False)
    assert (at_most_3["rate"], at_most_3["threshold"], at_most_3["end_of_sweep"]) == (3, 7.0, True)
    assert at_most_1["tuning"] == {"false_alarms_near_limit_per_1000": 1.0,
                                   "false_alarms_healthy_with_warm_up_per_1000": 1000 * 1 / 264}
    assert at_most_3["tuning"]["false_alarms_healthy_with_warm_up_per_1000"] == 1000 * 2 / 264
    held = at_most_1["held_out"]
    assert (held["gradual"]["detected"], held["gradual"]["lead_median"], held["sudden"]["detected"]) == (1, 10, 0)
    assert held["false_alarms_near_limit_per_1000"] == 2.0  # what it meets there
    assert held["false_alarms_healthy_with_warm_up_per_1000"] == 1000 / 264 and held["false_alarms_healthy_per_1000"] == 0
    assert at_most_3["held_out"]["sudden"]["detected"] == 1 and at_most_3["held_out"]["false_alarms_near_limit_per_1000"] == 11
    loud = matched([Planted()], [results_for((near_limit("n1", 0, 0), "tuning"), *held_out)], 1)
    assert [entry["threshold"] for entry in loud] == [7.0, 7.0]


def test_no_threshold_that_keeps_the_rate_and_no_half_to_choose_on():
    class Deaf(Planted):
        sweep = (7.0, 8.0)

    def of(*traces):
        return [assess(Deaf(), Facts.of(run_of(trace, split))) for trace, split in traces]

    held_out = (planted_trace(300, strong=[(190, 1)], bad=[(200, 1)], name="g", label="gradual"), "held-out")
    entries = matched([Deaf()], [of((near_limit("n1", 0, 2), "tuning"), held_out)], 1)
    assert [(entry["threshold"], entry["held_out"], entry["lowest_rate"]) for entry in entries] == [
        (None, None, 2.0), (7.0, entries[1]["held_out"], 2.0)]
    assert matched([Deaf()], [of(held_out)], 1) == []
    assert matched([Deaf()], [of((near_limit("n1", 0, 2), "tuning"))], 1) == []
    assert matched([Deaf()], [of((planted_trace(300, name="h1"), "tuning"), held_out)], 1) == []


def test_detectors_of_one_rule_are_one_row(tmp_path):
    near_limit("n1", 0, 0).write(tmp_path / "n1.safetensors")
    planted_trace(300, [], [(200, 1)], name="g", label="gradual").write(tmp_path / "g.safetensors")
    (tmp_path / "labels.toml").write_text(
        '[runs.n1]\nclass = "near-limit"\nsplit = "tuning"\ndecided = "x"\n'
        '[runs.g]\nclass = "gradual"\nsplit = "held-out"\ndecided = "x"\nfirst_bad_step = 200\nfirst_bad_op = "op1"\n')
    found = hold([StaticHeadroom(1), StaticHeadroom(3), StaticHeadroomScaled(1)], [str(tmp_path)], goals_of="static-headroom-1")
    assert [(entry["rule"], entry["rate"]) for entry in found["matched"]] == [
        ("static-headroom", 1), ("static-headroom-scaled", 1), ("static-headroom", 3), ("static-headroom-scaled", 3)]
    assert "at most 1 near-limit alarms /1k on the tuning half" in text(found)
    assert "matched" not in text(found, ["held-out"]).splitlines()[0] and "split tuning" not in text(found, ["held-out"])


def test_progress_is_shown_on_a_terminal_alone(tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        planted_trace(40, name=name).write(tmp_path / f"{name}.safetensors")
    hold([NonfiniteOnly()], [str(tmp_path)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    hold([NonfiniteOnly()], [str(tmp_path)])
    told = capsys.readouterr().err
    assert "opd evaluate: 1 of 2 traces" in told and "2 of 2" in told and told.endswith("\r\x1b[K")


def test_words_of_an_event():
    run = {"first_incident": None, "event_step": None, "incident_without_operator": None, "outcome": "none"}
    assert event(run) == "no incident" and event(run | {"event_step": 7}) == "event at step 7"
    assert event(run | {"incident_without_operator": {"step": 3, "what": ["grad_norm"]}, "event_step": 3}).startswith(
        "grad_norm non-finite at step 3, and no probe")
