"""opd.governor: every governor by hand and against its original, and what a replay counts on traces made for it and on shipped ones.

Testplan: GOV-01.
"""
from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT, script

from opd.evaluate.corpus import Runs, find_traces
from opd.governor import fp8_scale, loss_scale
from opd.governor.baseline import DAMPING, LAG_1, Baseline
from opd.governor.comparison import CHOSEN, FP8, GOVERNORS, LOSS, chosen_margins, compare, totals
from opd.governor.what_if import Casts, Gradients, replay_fp8_scale, replay_loss_scale
from opd.reference import ReferenceMissing, module
from opd.trace import FORMATS, Probe, Trace

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

CORPUS = ROOT / "traces" / "corpus"
E4M3 = np.array([448.0])


def corpus(name: str) -> Trace:
    return Trace.read(CORPUS / f"{name}.safetensors")


def outcome(step: int, overflow: bool, largest: float = 1.0, log2_scale: int = 0, recorded: float = 1.0) -> loss_scale.Outcome:
    finite = np.array([] if overflow else [0], int)
    return loss_scale.Outcome(step, recorded, overflow, finite, np.full(len(finite), largest), np.full(len(finite), log2_scale, np.int8))


def one_gradient() -> Baseline:
    return Baseline(["FP16"], np.array([4], np.uint32))


# --- delayed scaling: transformer_engine/common/recipe/delayed_scaling.cu -----------------------------------------------------

def kernel(history: np.ndarray, scale: np.float32, algorithm: str, scaled_max: np.float32) -> tuple[np.ndarray, np.float32]:
    """The update of one tensor as that kernel does it: the newest amax stands first, and goes last; float32 throughout."""
    last = history[0]
    rolled = np.append(history[1:], last)
    amax = last if algorithm == "most_recent" else rolled.max()
    if np.isfinite(amax) and amax > 0:
        with np.errstate(over="ignore"):
            scale = np.float32(scaled_max / amax)
    if np.isinf(scale):
        scale = np.finfo(np.float32).max
    rolled[0] = 0
    return rolled, scale


@given(amax=st.lists(st.one_of(st.floats(0, 3e4, width=32), st.sampled_from([0.0, math.inf, 1e-42, 1e-38])), min_size=1, max_size=40),
       length=st.integers(1, 8), algorithm=st.sampled_from(["max", "most_recent"]), margin=st.integers(0, 2), limit=st.sampled_from([448.0, 57344.0]))
@settings(max_examples=200, deadline=None)
def test_delayed_scaling_is_that_of_the_kernel(amax, length, algorithm, margin, limit):
    governor = fp8_scale.Delayed(np.array([limit]), length, algorithm, margin)
    history, scale = np.zeros(length, np.float32), np.float32(1)
    for step, value in enumerate(amax):
        assert governor.scale(np.zeros(1))[0] == scale
        history[0] = value  # what the cast has written
        history, scale = kernel(history, scale, algorithm, np.float32(np.float32(limit) * np.float32(2.0**-margin)))
        governor.update(step, np.array([True]), np.array([value], np.float32))
    assert governor.scale(np.zeros(1))[0] == scale


def test_delayed_scaling_by_hand():
    governor = fp8_scale.Delayed(E4M3, length=2)
    for amax, scale in ((7, 64), (14, 32), (3.5, 32), (3.5, 128), (0, 128), (0, 128)):
        governor.update(0, np.array([True]), np.array([amax], np.float32))
        assert governor.scale(np.zeros(1))[0] == scale
    governor.update(0, np.array([False]), np.array([448], np.float32))  # did not run
    assert governor.scale(np.zeros(1))[0] == 128
    assert fp8_scale.Delayed(E4M3).bits_per_operator == 1024 * 32 + 32


def test_an_infinite_amax_holds_the_scale_for_the_length_of_the_history():
    governor = fp8_scale.Delayed(E4M3, length=16)
    scales = []
    for amax in [1.0, math.inf] + [100.0] * 20:
        governor.update(0, np.array([True]), np.array([amax], np.float32))
        scales.append(float(governor.scale(np.zeros(1))[0]))
    assert scales[:17] == [448.0] * 17 and scales[17] == np.float32(4.48)


# --- GradScaler: the one of PyTorch -------------------------------------------------------------------------------------------

@given(overflows=st.lists(st.booleans(), min_size=1, max_size=60), interval=st.integers(1, 5), init=st.sampled_from([1.0, 65536.0, 2.0**126]),
       growth=st.sampled_from([2.0, 1.5]), backoff=st.sampled_from([0.5, 0.25]))
@settings(max_examples=40, deadline=None)
def test_gradscaler_is_that_of_pytorch(overflows, interval, init, growth, backoff):
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], 0.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    ours = loss_scale.GradScaler(init, growth, backoff, interval)
    for step, overflow in enumerate(overflows):
        assert ours.scale == theirs.get_scale()
        theirs.scale(torch.zeros(1))  # makes its scale
        parameter.grad = torch.tensor([math.inf if overflow else 1.0])
        theirs.step(optimizer)
        theirs.update()
        ours.update(outcome(step, overflow))
    assert ours.scale == theirs.get_scale()


def test_the_defaults_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    theirs, ours = torch.amp.GradScaler("cpu").state_dict(), loss_scale.GradScaler()
    assert (theirs["scale"], theirs["growth_factor"], theirs["backoff_factor"], theirs["growth_interval"]) == (
        ours.scale, float(ours._growth), float(ours._backoff), ours._interval)


@pytest.mark.parametrize("name", ["gpt-loss-scale-search-1", "convnet-loss-scale-search-1", "moe-loss-scale-2", "convnet-healthy-1"])
def test_gradscaler_with_the_settings_of_a_run_repeats_its_scales(name):
    trace = corpus(name)
    chosen = trace.manifest["settings"] if isinstance(trace.manifest, dict) else json.loads(trace.manifest)["settings"]
    scaler = loss_scale.GradScaler(chosen["init_loss_scale"], interval=chosen["loss_scale_growth"])
    gradients = Gradients(trace)
    for row in range(gradients.end):
        assert scaler.scale == trace.loss_scale[row], row
        scaler.update(outcome(row, bool(gradients.skipped[row])))


# --- the forecast baseline ----------------------------------------------------------------------------------------------------

def test_a_loss_scale_from_the_baseline_by_hand():
    """A gradient of 2^-10 without its scale, and a limit just below 2^16: with 3 bits of margin the scale is 2^floor(15.999 + 10 - 3) =
    2^22, reached by one bit a step."""
    governor = loss_scale.Forecast(one_gradient(), np.array([0]), margin=3, init=2.0**15)
    scales = []
    for step in range(12):
        scales.append(math.log2(governor.scale))
        governor.update(outcome(step, False, 2.0**-10 * governor.scale, int(scales[-1])))
    assert scales == [15, 16, 17, 18, 19, 20, 21, 22, 22, 22, 22, 22]
    governor.update(outcome(12, True))
    assert governor.scale == 2.0**21
    assert governor.bits_per_operator == 33 and governor.bits_per_run == 8


def test_an_fp8_scale_from_the_baseline_by_hand():
    """Amax 1.75: the baseline is log2 of it to 1/32 bit, so two bits of margin leave 448 / 4 / 1.75 = 64 within 2.2 %."""
    device = Baseline(["FP16"], np.array([4], np.uint32))
    governor = fp8_scale.Forecast(E4M3, device, 2)
    scales = []
    for step in range(6):
        scales.append(float(governor.scale(np.zeros(1))[0]))
        governor.update(step, np.array([True]), np.array([1.75], np.float32))
    assert scales[:4] == [1, 3, 9, 27] and scales[4] == scales[5] == pytest.approx(64, rel=0.045)
    assert governor.bits_per_operator == 33 + 32


@given(amax=st.lists(st.floats(2.0**-13, 59904.0, width=16), min_size=2, max_size=40), margin=st.sampled_from([1.0, 2.5, 4.0]), lag=st.booleans())
@settings(max_examples=60, deadline=None)
def test_damped_scales_move_by_a_factor_of_three_at_most_and_undamped_ones_as_they_are_asked(amax, margin, lag):
    config = LAG_1 if lag else None
    damped, undamped = (fp8_scale.Forecast(E4M3, Baseline(["FP16"], np.array([4], np.uint32), config), margin, damping) for damping in (DAMPING, None))
    before = 1.0
    for step, value in enumerate(amax):
        for governor in (damped, undamped):
            governor.update(step, np.array([True]), np.array([value], np.float32))
        now = float(damped.scale(np.zeros(1))[0])
        assert before / DAMPING * (1 - 1e-6) <= now <= before * DAMPING * (1 + 1e-6)
        before = now
        # The sample itself stays below the limit where the margin is no smaller than the lag of the baseline and log2's error.
        if margin > (1 if lag else 3) + 0.1:
            assert value * float(undamped.scale(np.zeros(1))[0]) <= 448


@given(st.lists(st.tuples(st.booleans(), st.floats(2**-10, 2**10)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_loss_scale_from_the_baseline_is_a_power_of_two_and_moves_by_one_bit(steps):
    governor = loss_scale.Forecast(one_gradient(), np.array([0]), margin=4)
    for step, (overflow, largest) in enumerate(steps):
        before = governor.scale
        governor.update(outcome(step, overflow, largest, 0))
        assert governor.scale / before in (0.5, 1, 2) and math.log2(governor.scale).is_integer()
        assert not overflow or governor.scale == before / 2


def test_a_hint_lowers_the_scale_until_it_is_taken_back():
    """A gradient is no precursor; an activation that climbs to its limit is."""
    device = Baseline(["FP16"], np.array([4], np.uint32))
    base = loss_scale.GradScaler(1024.0)
    governor = loss_scale.Hinted(base, device)
    shift = -8
    seen = []
    for step in range(130):
        seen.append(governor.scale)
        governor.update(outcome(step, False, 100.0 * 2 ** (step / 3) if step < 28 else 100.0))
    assert seen[0] == 1024 and min(seen) == 1024 * 2.0**shift and seen[-1] == 1024
    assert base.scale == 1024  # its own is left alone
    assert loss_scale.Hinted(loss_scale.GradScaler(16.0), device).scale == 16


def test_a_hinted_scale_is_one_at_least():
    governor = loss_scale.Hinted(loss_scale.GradScaler(64.0), one_gradient())
    governor._shift = -8
    assert governor.scale == 1.0
    small = loss_scale.Hinted(loss_scale.GradScaler(0.25), one_gradient())
    small._shift = -8
    assert small.scale == 0.25  # never above the scaler's own


# --- what a replay counts -----------------------------------------------------------------------------------------------------

def gradient_trace(max_abs, nonfinite=None, scale=(1024.0,), min_abs=None, loss=None) -> Trace:
    """One activation and one gradient, both FP16."""
    steps = len(max_abs)
    columns = np.stack([np.ones(steps), np.asarray(max_abs, float)], axis=1).astype(np.float32)
    bad = np.zeros((steps, 2), np.int64)
    if nonfinite is not None:
        bad[:, 1] = nonfinite
    return Trace(name="t", label="healthy", probes=[Probe("a", "activation", "FP16", (4,)), Probe("a:grad", "gradient", "FP16", (4,))],
                 step=np.arange(steps), max_abs=columns, nonfinite=bad, loss_scale=np.resize(np.array(scale, np.float32), steps),
                 loss=None if loss is None else np.array(loss, np.float32),
                 min_abs=None if min_abs is None else np.stack([np.ones(steps), np.asarray(min_abs, float)], axis=1).astype(np.float32))


class Fixed(loss_scale.LossScale):
    def __init__(self, scale: float):
        self.name, self.scale, self.told = "fixed", scale, []

    def update(self, outcome):
        self.told.append(outcome)


def test_a_loss_scale_replay_by_hand():
    trace = gradient_trace([16376, 16380, 8188, 100], min_abs=[0, 2.0**-20, 2.0**-24, 1])
    fixed = Fixed(4096.0)  # four times the recorded one: 65504 is the largest FP16, 65520 rounds to Inf
    tally, scales = replay_loss_scale(Gradients(trace), fixed)
    assert scales.tolist() == [4096] * 4
    assert (tally.steps, tally.samples, tally.overflows, tally.overflow_steps, tally.unknown, tally.above) == (4, 4, 1, 1, 0, 3)
    assert tally.measured == 3 and tally.wasted == pytest.approx(math.log2(65504 / 65504) + math.log2(65504 / 32752) + math.log2(65504 / 400))
    assert (tally.floors, tally.lost) == (3, 0)
    assert [told.overflow for told in fixed.told] == [False, True, False, False]
    assert [len(told.operators) for told in fixed.told] == [2, 1, 2, 2]  # the device does not see what overflowed
    assert fixed.told[0].scale_log2.tolist() == [0, 12] and fixed.told[0].max_abs.tolist() == [1, 65504]
    tally, _ = replay_loss_scale(Gradients(trace), Fixed(512.0))
    assert (tally.overflows, tally.above, tally.lost) == (0, 0, 1)  # 2^-24 halved is rounded to 0


@pytest.mark.parametrize("scale, steps, unknown", [(1024.0, 1, 0), (2048.0, 1, 0), (512.0, 0, 1)])
@pytest.mark.parametrize("probed", [True, False])
def test_a_step_that_the_recorded_scaler_skipped(scale, steps, unknown, probed):
    """Shown by a probe or by the scale of the next step alone: it overflows at no smaller a scale, below that nobody knows."""
    trace = gradient_trace([100] * 4, [0, 3 if probed else 0, 0, 0], scale=(1024, 1024, 512, 512))
    tally, _ = replay_loss_scale(Gradients(trace), Fixed(scale))
    assert (tally.overflow_steps, tally.unknown) == (steps, unknown) and tally.overflows == (steps if probed else 0)


def test_a_replay_ends_before_the_step_whose_loss_is_lost():
    trace = gradient_trace([100] * 5, loss=[1, 1, math.nan, 1, 1])
    assert replay_loss_scale(Gradients(trace), Fixed(1.0))[0].steps == 2


def cast_trace(amax, stored=None, format="E4M3", nonfinite=None) -> Trace:
    steps = len(amax)
    limit = float(FORMATS[format].max_value)
    values = np.stack([np.asarray(amax, float), np.minimum(np.asarray(amax, float), limit)], axis=1).astype(np.float32)
    bad = np.zeros((steps, 2), np.int64)
    if nonfinite is not None:
        bad[:] = nonfinite
    return Trace(name="t", label="healthy", probes=[Probe("a", "activation", "FP16", (4,)), Probe("a8.cast", "activation", format, (4,))],
                 step=np.arange(steps), max_abs=values, nonfinite=bad)


@pytest.mark.parametrize("format, largest, smallest_beyond", [("E4M3", 464.0, 464.5), ("E5M2", 61408.0, 61440.0)])
def test_a_cast_overflows_where_rounding_leaves_the_format(format, largest, smallest_beyond):
    casts = Casts(cast_trace([largest, smallest_beyond, 1.0], format=format))
    tally, overflowed = replay_fp8_scale(casts, fp8_scale.Static(casts.limit))
    assert overflowed[:, 0].tolist() == [False, True, False] and (tally.overflows, tally.overflow_steps, tally.samples) == (1, 1, 3)
    assert tally.beyond == pytest.approx(math.log2(smallest_beyond / casts.limit[0]))
    assert tally.wasted == pytest.approx(sum(math.log2(casts.limit[0] / value) for value in (largest, 1.0)))


def test_current_scaling_wastes_nothing_and_never_overflows():
    casts = Casts(cast_trace([3.0, 500.0, 0.0, 1e-4, 65504.0]))
    tally, _ = replay_fp8_scale(casts, fp8_scale.Current(casts.limit))
    assert tally.overflows == 0 and tally.measured == 4 and abs(tally.wasted) < 1e-5


def test_a_tensor_that_is_not_finite_is_seen_by_no_governor():
    casts = Casts(cast_trace([1.0, 1.0, 1.0], nonfinite=[[0, 0], [2, 2], [0, 0]]))
    tally, _ = replay_fp8_scale(casts, fp8_scale.Delayed(casts.limit))
    assert casts.end == 2 and tally.samples == 1  # and the run ends there


def test_traces_without_scales_are_refused():
    with pytest.raises(ValueError, match="no loss scale"):
        Gradients(cast_trace([1.0]))
    with pytest.raises(ValueError, match="no cast to FP8"):
        Casts(gradient_trace([1.0]))


@pytest.mark.parametrize("name", ["gpt-e4m3-overflow-1", "gpt-e5m2-high-lr-2", "t5-e4m3-high-lr-1", "vit-e4m3-high-lr-1", "gpt-e4m3-saturating-1",
                                  "gpt-healthy-e4m3-1"])
def test_a_scale_of_one_gives_what_the_run_recorded(name):
    """Every cast of the recorded runs had the scale 1: where it overflowed, and the largest magnitude that it stored."""
    casts = Casts(corpus(name))
    trace = casts.trace
    _, overflowed = replay_fp8_scale(casts, fp8_scale.Static(casts.limit))
    rows = slice(0, casts.end)
    recorded, finite = trace.nonfinite[rows][:, casts.casts] > 0, trace.nonfinite[rows][:, casts.sources] == 0
    if "saturating" in name:
        assert overflowed.any() and (trace.saturated[rows][:, casts.casts] > 0)[overflowed].all()
    else:
        np.testing.assert_array_equal(overflowed, recorded & finite)
    stored = np.stack([casts.cast(trace.max_abs[row, casts.sources].astype(np.float32)) for row in range(casts.end)])
    same = finite & ~overflowed
    np.testing.assert_array_equal(stored[same], trace.max_abs[rows][:, casts.casts][same])


def test_the_recorded_scale_overflows_where_the_run_did():
    gradients = Gradients(corpus("gpt-loss-scale-search-1"))
    tally, scales = replay_loss_scale(gradients, loss_scale.Recorded())
    assert tally.overflow_steps == gradients.skipped[:gradients.end].sum() == 12 and tally.unknown == tally.above == 0
    np.testing.assert_array_equal(scales, gradients.trace.loss_scale[:gradients.end])


# --- the comparison -----------------------------------------------------------------------------------------------------------

def entry_of(entries: list[dict], **wanted) -> list[dict]:
    return [entry for entry in entries if all(entry[key] == value for key, value in wanted.items())]


def test_what_is_committed_is_what_a_replay_gives():
    """FP8 of the tuning runs, and loss scales of one class of them: counts do not depend on the machine."""
    measured = script("measured_tables").measurement.load("governor")
    labels = Runs(find_traces([CORPUS]), None).labels
    chosen = {name for table in labels.values() for name, label in table.items() if label.split == "tuning"}
    files = [CORPUS / f"{name}.safetensors" for name in sorted(chosen)]
    fp8 = [file for file in files if "e4m3" in file.stem or "e5m2" in file.stem]
    found = compare(Runs(fp8, None).read(), {FP8: GOVERNORS[FP8]})
    assert found and found == entry_of(measured["entries"], scale=FP8, split="tuning"), "run scripts/measure governor"
    stressed = [file for file in files if labels[CORPUS / "labels.toml"][file.stem].kind == "stressed"]
    found = compare(Runs(stressed, None).read(), {LOSS: GOVERNORS[LOSS]})
    assert found and found == entry_of(measured["entries"], scale=LOSS, split="tuning", **{"class": "stressed"}), "run scripts/measure governor"


def test_the_margins_are_what_their_rule_chooses_on_the_tuning_runs():
    measured = script("measured_tables").measurement.load("governor")
    assert {entry["split"] for entry in measured["sweep"]} == {"tuning"}
    assert chosen_margins(measured["sweep"], measured["entries"]) == CHOSEN


def test_totals_add_up():
    measured = script("measured_tables").measurement.load("governor")["entries"]
    for split in ("tuning", "held-out", None):
        for total in totals(measured, split):
            own = [entry for entry in measured if (entry["scale"], entry["governor"]) == (total["scale"], total["governor"])
                   and split in (None, entry["split"])]
            for key in ("runs", "samples", "steps", "overflows", "overflow_steps", "unknown", "above", "measured", "lost", "floors"):
                assert total[key] == sum(entry[key] for entry in own)
            assert total["state_bits_per_operator"] == own[0]["state_bits_per_operator"]


def command(*arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python")}
    return subprocess.run([sys.executable, "-m", "opd", "governor", *map(str, arguments)], capture_output=True, text=True, env=environment)


def test_the_command():
    done = command(CORPUS / "gpt-e4m3-saturating-1.safetensors")
    assert done.returncode == 0, done.stderr
    assert "loss scale: 1 run, " in done.stdout and "FP8 scale: 1 run, " in done.stdout
    for kind in (LOSS, FP8):
        for name in GOVERNORS[kind]:
            assert any(line.split()[0] == name for line in done.stdout.splitlines() if line), name
    told = json.loads(command(CORPUS / "gpt-e4m3-saturating-1.safetensors", "--json").stdout)
    assert told["format"] == "opd-governor" and len(told["entries"]) == len(GOVERNORS[LOSS]) + len(GOVERNORS[FP8])


@pytest.mark.parametrize("arguments, told", [
    (["no-such-file.safetensors"], "no-such-file.safetensors"), ([ROOT / "README.md"], "is not a safetensors file"),
    ([CORPUS / "gpt-healthy-bf16-1.safetensors"], "no trace has a loss scale with gradients in FP16"),
    ([CORPUS / "gpt-healthy-bf16-1.safetensors", "--split", "nonsense"], "invalid choice"), ([], "required")])
def test_the_command_refuses(arguments, told):
    done = command(*arguments)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr and not done.stdout
