"""scripts/closed_loop: live runs under each remedy, their rows and tables. A slice is run, the whole is docs/measurements/closed_loop.*.

Testplan: CLO-01.
"""
from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "traces" / "training"), str(ROOT / "sw_reference" / "python")]

from closed_loop import runs, tables  # noqa: E402
from closed_loop.classes import CLASSES  # noqa: E402
from closed_loop.localisation import incidents  # noqa: E402
from closed_loop.store import Store, read_rows  # noqa: E402
from closed_loop.subject import Judge, Subject  # noqa: E402
from closed_loop.verdict import verdict  # noqa: E402
from closed_loop.zclip import ZClip  # noqa: E402
from opd.evaluate.averages import ZClip as Rule  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from scenario import InputError  # noqa: E402
from workloads.text import DataError, read_text  # noqa: E402

try:
    TEXT = read_text()
except DataError as error:
    pytest.skip(str(error), allow_module_level=True)
try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

SLICE = ["--slice", "ci", "--arm", "GradScaler", "--arm", "FP32", "--arm", "guard"]


def closed_loop(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "scripts" / "closed_loop", *map(str, arguments)], capture_output=True, text=True, timeout=600)


def run_named(name: str) -> runs.Run:
    return next(run for run in runs.all_runs() if run.name == name)


# --- which runs


def test_every_scenario_that_overflows_is_run_and_five_that_do_not():
    made = runs.chosen("all", ("tuning", "held-out"), False)
    every = runs.all_runs()
    assert {(run.scenario.name, run.split) for run in made} == {(run.scenario.name, run.split) for run in every}
    assert len({(run.scenario.name, run.split) for run in made}) == len(made)
    labels = runs._labels()
    overflowing = {name for name, label in labels.items() if label["class"] in runs.OVERFLOWING}
    assert overflowing <= {run.name for run in every}
    assert {run.scenario.name for run in every if run.is_ordinary} == set(runs.ORDINARY)
    for run in every:
        assert run.batches == (runs.ORDINARY_STEPS if run.is_ordinary else run.incident + runs.AFTER)


def test_incidents_are_twenty_or_more():
    assert len(incidents(runs.all_runs(), False)) >= 20


def test_the_classes_name_runs_that_are_made():
    made = {run.name for run in runs.chosen("all", ("tuning", "held-out"), False)}
    assert [entry.name[0] for entry in CLASSES] == list("ABCDEFGHIJKLMNOP")
    assert {entry.run for entry in CLASSES} - {None} <= made


# --- the arms


def test_zclip_has_the_scores_of_the_rule_that_is_compared():
    norms = np.abs(np.random.default_rng(3).normal(2, 0.3, 120))
    norms[[40, 41, 77, 100]] *= [4, 9, 30, 2.4]
    ours, clipped = ZClip(), []
    for norm in norms:
        clipped.append(ours.norm(float(norm)))
    samples = SimpleNamespace(magnitude=norms[:, None], finite=np.ones((120, 1), bool))
    score = Rule().score(samples, Rule.settings["z_thresh"])[:, 0]
    rule = ZClip()
    raised = []
    for norm in norms:  # without the limit on every norm, what is taken is below the norm where the rule raises an alarm
        before = (rule._mean, rule._variance, rule._first is None)
        rule.norm(float(norm))
        z = (norm - before[0]) / (math.sqrt(before[1]) + Rule.settings["eps"]) if before[2] else None
        raised.append(z)
    known = [(z, s) for z, s in zip(raised, score) if z is not None]
    assert len(known) == 120 - 25 and all(z == pytest.approx(s, rel=1e-9) for z, s in known)
    assert max(clipped) == 1.0 and sum(z > 2.5 for z, _ in known) >= 4


def test_arms_start_from_the_same_weights_and_see_the_same_batches():
    run = run_named("moe-e4m3-high-lr-1")
    made = [Subject(run, TEXT), Subject(run, TEXT, "BF16"), Subject(run, TEXT, "FP32"), Subject(run, TEXT, "FP32", perturbed=True)]
    first, *others, twin = [torch.cat([p.detach().flatten() for p in subject.model.parameters()]) for subject in made]
    assert all(torch.equal(first, other) for other in others)
    change = (twin / first - 1)[first != 0].abs()
    assert 0 < float(change.max()) < 1e-5
    batches = [next(iter(subject.batches()))[1] for subject in made]
    assert all(torch.equal(a, b) for batch in batches[1:] for a, b in zip(batches[0], batch))
    assert made[0].model.block[0].attn.qk8 is not made[2].model.block[0].attn.qk8 and "Float8" not in str(made[2].model)


def test_a_bit_is_flipped_once_however_often_the_batch_is_tried():
    run = run_named("gpt-flip-weight-1")
    subject = Subject(run, TEXT)
    weight = dict(subject.model.named_parameters())[run.scenario.fault.target]
    before = weight.detach().clone()
    subject.begin(run.incident - 1)
    assert torch.equal(weight, before)
    subject.begin(run.incident)
    flipped = weight.detach().clone()
    subject.begin(run.incident)
    assert (flipped != before).sum() == 1 and torch.equal(weight, flipped)


def test_a_bad_batch_is_bad_again_when_it_is_tried_again():
    run = run_named("convnet-nan-pixel-1")
    bad = [index for index, batch in Subject(run, TEXT).batches() if not batch[0].isfinite().all()]
    assert bad == [run.incident]


def test_the_judge_leaves_the_run_alone():
    run = run_named("recurrent-relu-no-warmup-1")
    subject, judge = Subject(run, TEXT), Judge(run, TEXT)
    before, state = [p.detach().clone() for p in subject.model.parameters()], torch.get_rng_state()
    loss = judge.loss(subject.model, 0)
    assert math.isfinite(loss) and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, subject.model.parameters()))
    with torch.no_grad():
        next(subject.model.parameters()).fill_(math.nan)
    assert math.isnan(judge.loss(subject.model, 0))


# --- rows


def test_a_row_that_was_cut_off_is_made_again_and_damage_is_named(tmp_path):
    file = tmp_path / "rows.jsonl"
    Store(file).add("k", {"arm": "FP32", "run": "a"})
    with file.open("ab") as out:
        out.write(b'{"key": "cut')
    store = Store(file)
    assert list(store.rows) == ["k"] and store.has("k", "FP32", False) and not store.has("j", "FP32", True)
    store.add("j", {"arm": "guard", "run": "a"})
    assert list(Store(file).rows) == ["k", "j"] == [row["key"] for row in read_rows(file)]
    stale = store.rows["k"] | {"sources": "other"}
    file.write_text(json.dumps(stale) + "\n")
    assert not Store(file).has("k", "FP32", False) and Store(file).has("k", "FP32", True)
    file.write_text("[]\n")
    with pytest.raises(InputError, match=r"rows\.jsonl: line 1: is no row"):
        Store(file)


def test_a_slice_live_and_once_more(tmp_path):
    first = closed_loop(*SLICE, "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    rows = {(row["run"], row["arm"]): row for row in read_rows(tmp_path / "rows.jsonl")}
    assert len(rows) == 3 * len(runs.CI)
    for name, seed in runs.CI:
        run = f"{name}-{seed}"
        assert not rows[run, "GradScaler"]["finished"] and rows[run, "FP32"]["finished"]
        guarded = rows[run, "guard"]
        assert guarded["finished"] and guarded["guard"]["detached"] is None and guarded["lost"] <= 5
        assert guarded["final_loss"] < 1.05 * rows[run, "FP32"]["final_loss"]
        assert 0 < guarded["guard"]["outside_fast"] < 0.5
    again = closed_loop(*SLICE, "--out", tmp_path)
    assert again.returncode == 0 and "6 runs, 0 to make" in again.stdout


@pytest.mark.parametrize("arguments, told", [(["--jobs", "0"], "--jobs: 0 is not positive"), (["--scenario", "none"], "--scenario: none: no such run"),
                                             (["--slice", "ci", "--arm", "guard", "--device", "none"], "device: 'none' is unknown")], ids=str)
def test_bad_usage_is_named(tmp_path, arguments, told):
    done = closed_loop(*arguments, "--out", tmp_path)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


# --- tables


def row(arm: str, loss: float | None, lost: int = 0, **more) -> dict:
    return {"run": "r-1", "label": "gradual", "split": "tuning", "arm": arm, "incident": 40, "batches": 100, "finished": loss is not None, "why": None,
            "at": 99, "lost": lost, "tried": 100, "start_loss": 4.0, "final_loss": loss, "ms": 2.0 if arm == "guard" else 1.0, **more}


def made(guard: float | None, outside: float = 0.01) -> tables.Rows:
    guarded = {"outside_fast": outside, "beyond_format": 0.0, "stopped": 1, "first_stop": 40, "first_downshift": [30, "x"], "dropped": 0}
    rows = [row(arm, None if arm in ("nothing", "GradScaler", "ZClip", "checkpoint") else 2.0) for arm in tables.ORDER if arm != "guard"]
    return tables.by_run([*rows, row("guard", guard, 3, guard=guarded)])


def test_goals_are_reached_and_missed_by_what_the_rows_say():
    assert [line[2] for line in tables.goals(made(2.01))[1:]] == ["reached"] * 3
    assert [line[2] for line in tables.goals(made(2.05, 0.06))[1:]] == ["reached", "missed", "missed"]
    assert [line[2] for line in tables.goals(made(None))[1:]] == ["missed", "missed", "reached"]


def test_the_summary_counts():
    line = next(line for line in tables.summary(made(2.1)) if line[0] == "guard")
    assert line[1:] == ["1 of 1", "1 of 1", "3 / 3", "0 of 1", "+5.0 % / +5.0 %", "2.00"]
    assert tables.detail(made(2.1))[1][-3:] == ["2.1 (3)", "1.0 %", "0.0 %"]
    assert not tables.by_run([row("guard", 2.0)]), "a run that is not there under every arm"


@pytest.mark.parametrize("expected, operator, where, told", [
    ("block.0.attn.qk", "block.0.attn.qk#2", None, "same"), ("head", "head:grad", "head:grad", "same"), ("a.norm", "a:mul", None, "inside"),
    ("a.norm", "b:mul", None, "other"), ("x", "step:cross_entropy", None, "inside"), (None, None, None, "none"), (None, "a", None, "other")])
def test_a_verdict_on_a_localisation(expected, operator, where, told):
    assert verdict({"expected": expected, "operator": operator, "where": where, "kind": "none" if operator is None else "numeric"}) == told
