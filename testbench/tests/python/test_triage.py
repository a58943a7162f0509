"""opd.triage: operator, since when, how fast, which kind, what would have caught it, what to do; on shipped runs and on made ones.

Testplan: TRI-01, TRI-02.
"""
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from opd.evaluate.corpus import LABELS_FILE, load, read_labels
from opd.localise import advice as words
from opd.reference import ReferenceMissing, module
from opd.trace import FORMATS, Probe, Trace
from opd.triage import triage, triage_run
from opd.triage.command import main
from opd.triage.history import growth_of, jumps_of, rates_of, role_of
from opd.triage.keeper import Keeper
from pages import cells, quoted, section

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT / "traces"
try:
    module()
    DETECTORS = None
except ReferenceMissing:
    DETECTORS = ()
needs_reference = pytest.mark.skipif(DETECTORS is not None, reason="opd._reference is not built (target opd_python)")


def shipped(name: str, detectors=()):
    file = next(TRACES.glob(f"*/{name}.safetensors"))
    return triage_run(load(file, read_labels(file.parent / LABELS_FILE), file.parent / LABELS_FILE), detectors)


# --- the kinds, on runs of which it is known what was done to them

# Scenario -> kinds of the first pages of its runs. What was done is in the scenarios of traces/training; the rules see the statistics alone.
KINDS = {
    "convnet-nan-pixel": {words.BAD_DATA: 2}, "gpt-hidden-query": {words.MASKED: 2}, "gpt-zero-variance": {words.VARIANCE: 2},
    "gpt-flip-activation": {words.FLIP: 2}, "gpt-flip-weight": {words.FLIP: 2},
    "convnet-lr-jump": {words.RATE_JUMP: 6}, "gpt-lr-jump": {words.RATE_JUMP: 3}, "gpt-lr-jump-no-norm": {words.RATE_JUMP: 2},
    "gpt-e4m3-lr-jump": {words.RATE_JUMP: 3}, "moe-lr-jump": {words.RATE_JUMP: 4}, "recurrent-relu-lr-jump": {words.RATE_JUMP: 4},
    "t5-lr-jump": {words.RATE_JUMP: 3}, "t5-lr-leap": {words.RATE_JUMP: 3}, "vit-lr-leap": {words.RATE_JUMP: 3},
    "convnet-loss-scale-search": {words.LOSS_SCALE: 6}, "gpt-loss-scale-search": {words.LOSS_SCALE: 3}, "moe-loss-scale-experts": {words.LOSS_SCALE: 3},
    "gpt-rms-accumulator": {words.ACCUMULATOR: 3}, "recurrent-bf16-layer-norm": {words.ACCUMULATOR: 3}, "recurrent-bf16-squares": {words.ACCUMULATOR: 1},
    "recurrent-bf16-long": {words.ACCUMULATOR: 2},
    "gpt-e4m3-saturating": {words.CLIPPED: 3}, "gpt-e5m2-saturating": {words.CLIPPED: 3}, "moe-e4m3-saturating": {words.CLIPPED: 3},
    "t5-e4m3-saturating": {words.CLIPPED: 3},
    "gpt-qk-overflow": {words.GROWTH: 4}, "moe-qk-overflow": {words.GROWTH: 4}, "minilm-high-lr": {words.GROWTH: 4},
    "convnet-sensor-gain": {words.GROWTH: 5}, "vit-sensor-gain": {words.GROWTH: 3}, "gpt-no-norm": {words.JUMP: 2, words.GROWTH: 2},
    "moe-squared-relu": {words.JUMP: 4, words.GROWTH: 3},
}


@pytest.mark.parametrize("scenario", KINDS)
def test_the_kind_of_every_run_of_a_scenario(scenario):
    found = Counter()
    for file in sorted((TRACES / "corpus").glob(f"{scenario}-*.safetensors")):
        name, _, number = file.stem.rpartition("-")
        if name == scenario:
            found[shipped(file.stem).pages[0].kind] += 1
    if scenario == "recurrent-bf16-squares":
        found[shipped(scenario).pages[0].kind] += 1
    assert found == KINDS[scenario]


def test_runs_without_an_incident_have_no_page():
    """Every healthy, stressed and near-limit run of the corpus, and those that are shipped with all elements."""
    labels = read_labels(TRACES / "corpus" / LABELS_FILE)
    clean = [name for name, label in labels.items() if label.kind in ("healthy", "stressed", "near-limit")]
    assert len(clean) > 100
    for name in [*clean, "healthy", "near_limit"]:
        found = shipped(name)
        assert not found.pages and found.sentence().startswith("No incident"), name


def test_near_the_limit_says_how_near():
    found = shipped("near_limit")
    assert (found.nearest.operator, found.nearest.step, found.nearest.near_steps, found.nearest.steps) == ("block.0.attn.qk", 443, 424, 500)
    assert found.sentence() == ("No incident; nearest to its limit: block.0.attn.qk (FP16), 1.73 bits at step 443, with less than 4 bits in 424 of "
                                "500 steps.")


@needs_reference
def test_the_page_of_qk_overflow():
    found = shipped("qk_overflow", DETECTORS)
    page, = found.pages
    assert (page.step, page.operator, page.format, page.role, page.what, page.kind) == (235, "block.2.attn.qk", "FP16", "logits", "non-finite",
                                                                                        words.GROWTH)
    assert (page.elements, page.total) == (28, 4096) and page.headroom == pytest.approx(0.0223, abs=1e-3)
    assert page.growth.rate == pytest.approx(0.0482, abs=1e-3) and page.growth.doubling == pytest.approx(20.7, abs=0.1)
    assert any("less than 4 bits of headroom in the 91 steps before" in sentence for sentence in page.evidence)
    by_name = {detector.name: detector for detector in page.detectors}
    assert (by_name["forecast"].lead, by_name["forecast"].first) == (63, 172)     # as README.md has it of the replay
    assert (by_name["published-before"].lead, by_name["nonfinite-only"].lead) == (6, 0)
    assert page.earliest.name == "forecast" and page.earliest_of_all.lead == 128
    assert page.advice[0].startswith("Normalise queries and keys (QK normalisation)")
    assert page.advice[-1] == "Lower the learning rate of parameter group 0 (0.06 now), or warm it up longer."
    text = found.text()
    assert "block.2.attn.qk (FP16) is non-finite at step 235" in text and "Earliest: forecast, 63 steps before (step 172)." in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_jump_of_the_learning_rate_names_step_group_and_rates():
    page, = shipped("convnet-lr-jump-1").pages
    assert (page.step, page.operator, page.jump.step, page.jump.group) == (151, "block.1.conv2", 150, 0)
    assert page.jump.after / page.jump.before == pytest.approx(998.6, abs=0.1)
    assert page.advice[0].startswith("Take the jump of the learning rate of parameter group 0 (0.964 now) back")
    assert "parameter group 0 went from a learning rate of 0.000967 to 0.966 at step 150" in page.sentence()


def test_the_other_pages_say_what_is_particular_to_them():
    def told(name):
        page = shipped(name).pages[0]
        return page, " ".join(page.evidence)

    page, text = told("convnet-loss-scale-search-1")
    assert page.again == (161, 182, 203, 224, 245, 266, 287) and "after 7 doublings from 1024, the last at step 140" in text and "by 6 bits in that time" in text
    page, text = told("gpt-rms-accumulator-1")
    assert page.operator == "norm.squares" and "No other operator is non-finite in that step" in text and "FP32" in page.advice[0]
    page, text = told("gpt-e4m3-saturating-1")
    assert page.what == "clipped" and words.FP8_SCALE in page.also and "block.0.attn.qk has 7.2 bits of headroom in FP16" in text
    assert page.advice[0].startswith("Scale the operand before its cast to FP8")
    page, text = told("gpt-flip-activation-1")
    assert (page.step, page.operator, page.what) == (200, "block.1.mlp.hidden", "rises") and "It is back 1 step later" in text
    page, text = told("gpt-flip-weight-1")
    assert page.operator == "block.1.attn.qkv" and "It stays there" in text and "Go back to a checkpoint" in page.advice[0]
    page, text = told("recurrent-bf16-layer-norm-1")
    assert "layer.2.hidden is finite, at most 2^95.8, but the square of that is 2^191.5" in text
    page, text = told("convnet-nan-pixel-1")
    assert "the first operator of the pass" in text and "the weights are not to blame" in text
    assert shipped("gpt-healthy-loss-scale-1").note.startswith("Gradients overflowed under the loss scale at steps 609, 652, 698, 781: ")


# --- made traces

def made(columns: dict[str, np.ndarray], nonfinite=(), fmt: str = "FP16", kinds=None, **options) -> Trace:
    """columns: name -> log2 of the largest magnitudes; nonfinite: (sample, operator)."""
    log2 = np.stack(list(columns.values()), axis=1)
    bad = np.zeros(log2.shape, np.int64)
    for s, op in nonfinite:
        bad[s, op] = 3
    limit = float(FORMATS[fmt].max_value)
    values = np.minimum(2.0**log2, limit).astype(FORMATS[fmt].numpy).astype(np.float32)
    probes = [Probe(name, (kinds or {}).get(name, "activation"), fmt, (64,)) for name in columns]
    forward = [(s, op) for s, op in sorted(nonfinite) if probes[op].kind == "activation"]
    first = {"first_bad_step": forward[0][0], "first_bad_op": probes[forward[0][1]].name} if forward else {}
    return Trace("made", "sudden" if nonfinite else "healthy", probes, np.arange(len(log2), dtype=np.int64), values, bad, **first, **options)


def test_since_when_and_how_fast():
    """Flat at 2^3 up to step 60, then a quarter of a bit a step up to the limit at step 112."""
    rise = 3 + np.maximum(0, np.arange(120) - 60) * 0.25 + np.random.default_rng(0).normal(0, 0.05, 120)
    page, = triage(made({"first": np.zeros(120), "mlp.out": rise}, [(s, 1) for s in range(112, 120)]), ()).pages
    assert page.kind == words.GROWTH and page.step == 112 and abs(page.growth.since - 60) <= 1 and not page.growth.from_start
    assert page.growth.rate == pytest.approx(0.25, abs=0.01) and page.growth.doubling == pytest.approx(4.0, abs=0.1)
    assert page.growth.level == pytest.approx(3, abs=0.05)


def test_what_has_not_grown():
    step = np.arange(100)
    assert growth_of(step, np.full(100, 8.0)) is None and growth_of(step, 2.0**(8 - step * 0.05)) is None
    assert growth_of(step, 2.0**(np.random.default_rng(1).normal(3, 0.4, 100))) is None and growth_of(step[:4], np.ones(4)) is None


def test_growth_across_layers_is_no_growth_over_steps():
    rng = np.random.default_rng(2)
    layers = {f"block.{i}.residual": 2.5 * i + 1 + rng.normal(0, 0.1, 80) for i in range(6)}
    page, = triage(made(layers, [(79, 5)]), ()).pages
    assert page.kind == words.LAYERS and "rises from block.0.residual to block.5.residual by 12." in page.evidence[0] and "over 5 layers" in page.evidence[0]


def test_a_jump_of_one_group_is_that_groups(tmp_path):
    """The first group, the only one in the trace's series, does not move."""
    groups = [{"lr": [[0, 1e-3]], "first": "embedding.weight", "parameters": 1},
              {"lr": [[0, 1e-4], [70, 1e-2]], "first": "head.weight", "parameters": 2}]
    columns = {"first": np.zeros(80), "head": np.r_[np.full(71, 2.0), np.full(9, 4.0)]}
    trace = made(columns, [(s, 1) for s in range(73, 80)], manifest={"lr_groups": groups}, lr=np.full(80, 1e-3, np.float32))
    assert [(jump.step, jump.group, jump.first) for jump in jumps_of(trace, rates_of(trace))] == [(70, 1, "head.weight")]
    page, = triage(trace, ()).pages
    assert page.kind == words.RATE_JUMP and (page.jump.group, page.jump.step) == (1, 70) and [rate.lr for rate in page.rates] == [1e-3, 1e-2]
    assert page.advice[0].startswith("Take the jump of the learning rate of parameter group 1 (0.01 now; it has head.weight) back")


def test_a_warm_up_is_no_jump():
    warm = made({"first": np.zeros(60)}, lr=np.minimum(1e-5 * (1 + np.arange(60)), 3e-4).astype(np.float32))
    assert jumps_of(warm, rates_of(warm)) == []


def test_a_scale_that_only_falls_and_a_loss_that_no_probe_explains():
    flat = {"first": np.zeros(40), "head": np.ones(40)}
    falls = 2.0**(10 - np.maximum(0, np.arange(40) - 20))
    page, = triage(made(flat, loss_scale=falls.astype(np.float32)), ()).pages
    assert (page.kind, page.step, page.operator) == (words.COLLAPSE, 21, None) and "19 times by half" in page.evidence[0]
    loss = np.r_[np.ones(30), np.full(10, np.nan)].astype(np.float32)
    page, = triage(made(flat, loss=loss), ()).pages
    assert (page.kind, page.step, page.series) == (words.UNSEEN, 30, ("loss",)) and 'probes="output"' in page.advice[0]


def test_later_incidents_of_other_operators_have_pages_and_the_same_one_comes_again():
    flat = {f"op.{i}": np.full(300, 2.0) for i in range(7)}
    bad = [(50, 3), (100, 3), (150, 4), (200, 5), (250, 2), (290, 1)]
    pages = triage(made(flat, bad), ()).pages
    assert [(page.step, page.operator) for page in pages] == [(50, "op.3"), (150, "op.4"), (200, "op.5"), (250, "op.2")]
    assert pages[0].again == (100,) and [page.number for page in pages] == [1, 2, 3, 4]


@pytest.mark.parametrize("name, kernel, role", [
    ("block.2.attn.qk", None, "logits"), ("model.attn:logits", None, "logits"), ("block.0.attn.qk8.cast", None, "logits"), ("attn", "matmul", "other"),
    ("block.0.attn.qk", "matmul", "logits"), ("attn:softmax", None, "softmax"), ("x", "softmax", "softmax"), ("model.norm", None, "norm"),
    ("layers.0.input_layernorm", None, "norm"), ("ln_f", None, "norm"), ("norm.squares", None, "sum of squares"), ("x", "sum_of_squares", "sum of squares"),
    ("lm_head", None, "head"), ("lm_head", "linear", "head"), ("block.1.mlp.residual:grad", None, "residual"), ("mlp.fc1#2", None, "linear"),
    ("mlp.down_proj", None, "linear"), ("embedding", None, "other"),
])
def test_roles(name, kernel, role):
    assert role_of(name, kernel) == role


def test_a_foreign_manifest_is_no_list_of_groups():
    for groups in (3, [3], [{"lr": [1]}], [{"lr": [["a", 1]]}], [{"lr": [[0, 1.0]], "first": 3}]):
        trace = made({"first": np.zeros(5)}, manifest={"lr_groups": groups}, lr=np.ones(5, np.float32))
        assert [rate.lr.tolist() for rate in rates_of(trace)] == [[1.0] * 5]


# --- the history of a run that is going on

def test_a_keeper_keeps_the_last_steps():
    keeper = Keeper(steps=10)
    assert keeper.trace("x") is None
    for step in range(30):
        probes = [("a:grad", "gradient", "FP32", 4), ("a", "activation", "FP16", 8), *([("b", "activation", "FP16", 2)] if step % 2 else [])]
        keeper.add(step, probes, [1.0, 2.0**step, *([1e9] if step % 2 else [])], [0, int(step == 29), *([0] if step % 2 else [])],
                   {"loss": 1.0 if step != 25 else None, "loss_scale": None}, (0.5, 0.25))
    trace = keeper.trace("x", [("a.weight", 2), ("b.weight", 1)])
    assert Trace.parse(trace.to_bytes(), "x").step.tolist() == list(range(20, 30))
    assert [(probe.name, probe.kind) for probe in trace.probes] == [("a", "activation"), ("b", "activation"), ("a:grad", "gradient")]
    assert (trace.first_bad_step, trace.first_bad_op, trace.label) == (29, "a", "sudden") and trace.loss.tolist() == [1.0] * 10
    assert trace.max_abs[-1].tolist() == [65504.0, 65504.0, 1.0]  # not beyond the format
    assert trace.manifest["lr_groups"][1] == {"lr": [[20, 0.25]], "first": "b.weight", "parameters": 1}
    keeper.add(27, [("a", "activation", "FP16", 8)], [1.0], [0], {})
    assert keeper.trace("x").step.tolist()[-2:] == [26, 27]  # after a roll-back


# --- the command

def test_the_command(capsys, tmp_path):
    file = str(TRACES / "captured" / "qk_overflow.safetensors")
    assert main([file]) == 0
    page = capsys.readouterr().out
    assert page.startswith("qk_overflow\n\nIncident 1: block.2.attn.qk (FP16) is non-finite at step 235\n")
    assert main([file, str(TRACES / "captured" / "healthy.safetensors"), "--json"]) == 0
    contents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(content["pages"]) for content in contents] == [1, 0] and contents[0]["pages"][0]["kind"] == words.GROWTH
    assert main([file, "--brief"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main([str(tmp_path / "none.safetensors")]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"opd triage: {tmp_path}/none.safetensors: file: cannot be opened") and len(told.err.splitlines()) == 1
    with pytest.raises(SystemExit) as end:
        main([file, "--brief", "--json"])
    assert end.value.code == 2


def test_the_page_of_the_docs_has_every_kind_key_and_count():
    page = (ROOT / "docs/triage.md").read_text(encoding="utf-8")
    kinds = {quoted(row[0])[0] for row in cells(section(page, "Kinds"))}
    assert kinds == {value for name, value in vars(words).items() if name.isupper() and isinstance(value, str) and not name.startswith("_")
                     and name not in ("DATA", "NUMERIC", "HARDWARE", "NONE", "LOGITS", "SOFTMAX", "ATTENTION", "NORM", "LINEAR", "HEAD", "LOSS", "OTHER",
                                      "SQUARES", "RESIDUAL")}
    keys = {name for row in cells(section(page, "Keys of `--json`")) for name in quoted(row[0] + row[1])}
    content = shipped("qk_overflow").json()
    assert set(content) | set(content["pages"][0]) | set(content["nearest"]) <= keys
    counts = {(quoted(row[0])[0], row[1].strip()): row[2].strip() for row in cells(section(page, "How it was checked"))}
    for scenario, wanted in KINDS.items():
        for kind, count in wanted.items():
            assert counts[scenario, kind] == str(count), scenario
    assert sum(len(wanted) for wanted in KINDS.values()) == len(counts)
