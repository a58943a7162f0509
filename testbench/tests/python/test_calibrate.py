"""opd calibrate: bounds, search, certainty, the file it writes and what opd replay counts with it.

The C++ reference is read from the folder in OPD_BUILD (default: build); without it the tests that need it are skipped.
"""
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from opd import device_config
from opd.calibrate.bounds import allowed, expected_at_most, needed, on_samples, over_runs, spent
from opd.calibrate.calibration import calibrate
from opd.calibrate.command import main
from opd.calibrate.evidence import Evidence, Subject, settings_of
from opd.calibrate.fields import ENGINES
from opd.calibrate.search import Search
from opd.evaluate.corpus import Label, Run
from opd.evaluate.metrics import Count
from opd.evaluate.reference import statistics
from opd.reference import ReferenceMissing, module
from opd.registers import CONFIG_RANGE, CONFIG_RESET, PROFILES, Flag
from opd.trace import Probe, Trace, TraceWriter

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
CAPTURED = ROOT / "traces" / "captured"
SEED = 20260730

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False
needs_reference = pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python; OPD_BUILD)")
FORECAST, PUBLISHED = ENGINES["forecast"], ENGINES["published"]
HEADROOM, SCALED, JUMP = FORECAST.thresholds
D2, Z = PUBLISHED.thresholds


def trace_of(magnitudes, name="run", label="healthy", formats="FP16", kinds=None, **members) -> Trace:
    """A trace of magnitudes [S, P], without non-finite values unless `nonfinite` says so."""
    magnitudes = np.asarray(magnitudes, np.float32)
    steps, probes = magnitudes.shape
    kinds = kinds or ["activation"] * probes
    writer = TraceWriter(name, label, [Probe(f"op{p}", kinds[p], formats, (64,)) for p in range(probes)])
    nonfinite = members.pop("nonfinite", np.zeros((steps, probes), np.int64))
    for step in range(steps):
        writer.add_step(step, max_abs=magnitudes[step], nonfinite=nonfinite[step],
                        **{key: values[step] for key, values in members.items()})
    return writer.finish()


def subject_of(trace: Trace, kinds=None) -> Subject:
    label = Label(trace.label, "unassigned", None, None, "test", "test")
    return Subject.of(Run(Path(f"{trace.name}.safetensors"), trace, label), kinds)


def walks(seed: int, runs: int, steps: int, probes: int, scale=0.3, home=-3.0) -> list[Trace]:
    """Random walks of log2 magnitudes around 2^home that are drawn back there, in FP16."""
    rng = np.random.default_rng(seed)
    traces = []
    for run in range(runs):
        level, rows = np.full(probes, home), []
        for noise in rng.standard_t(4, size=(steps, probes)):
            level = np.clip(0.97 * (level - home) + home + scale * noise, -13, 15.8)
            rows.append(np.float16(2.0 ** level))
        traces.append(trace_of(np.array(rows), f"walk{run}"))
    return traces


# --- bounds ----------------------------------------------------------------------------------------------------------------

def test_poisson_bounds_against_published_values():
    # Upper 95 % limits of a Poisson expectation, e.g. Gehrels 1986 table 1, and chi-square tables beyond it.
    table = {0: 2.996, 1: 4.744, 2: 6.296, 3: 7.754, 4: 9.154, 5: 10.51, 10: 16.96, 20: 29.06, 50: 63.29, 100: 118.08}
    for alarms, bound in table.items():
        assert math.isclose(expected_at_most(alarms), bound, rel_tol=5e-4)
    large = 40_000  # the sum leaves out terms that are too small there: against Wilson and Hilferty's approximation
    wilson = (large + 1) * (1 - 1 / (9 * (large + 1)) + 1.6448536 / (3 * math.sqrt(large + 1))) ** 3
    assert math.isclose(expected_at_most(large), wilson, rel_tol=1e-6)


def test_the_rule_of_three_and_what_thresholds_cost():
    assert math.isclose(on_samples(0, 1, 60_000), 3 / 60, rel_tol=2e-3)
    assert needed(0, 1, 0.05) == math.ceil(2.99573227 / 0.05 * 1000) == 59_915
    assert needed(0, 0, 0.05) == needed(0, 1, 0.05) < needed(0, 2, 0.05) == math.ceil(4.74386452 / 0.05 * 1000)
    assert spent(3, 0) == spent(3, 1) == 3 and spent(3, 4) == 6
    assert allowed(59_914, 1, 0.05) is None and allowed(59_915, 1, 0.05) == 0 and allowed(94_877, 1, 0.05) == 0
    assert allowed(94_878, 1, 0.05) == 1 and allowed(94_878, 2, 0.05) == 0 and allowed(94_877, 2, 0.05) is None


@settings(deadline=None)
@given(strategies.integers(1, 2_000_000), strategies.integers(0, 4), strategies.floats(0.01, 20))
def test_so_many_alarms_are_allowed_and_no_more(probe_steps, thresholds, rate):
    most = allowed(probe_steps, thresholds, rate)
    if most is None:
        assert on_samples(0, thresholds, probe_steps) > rate * (1 - 1e-9)
    else:
        assert on_samples(most, thresholds, probe_steps) <= rate * (1 + 1e-9)
        assert on_samples(most + 1, thresholds, probe_steps) > rate * (1 - 1e-9)


@pytest.mark.parametrize("alarms, thresholds", [(0, 1), (0, 2), (4, 1), (4, 2)])
def test_the_bound_covers_thresholds_that_the_samples_have_set(alarms, thresholds):
    """Independent scores, thresholds at order statistics of the sample itself: how often does the true rate stay within?"""
    n, draws = 1000, 3000
    rng = np.random.default_rng(SEED)
    bound = on_samples(alarms, thresholds, n) / 1000
    within = 0
    for _ in range(draws):
        tail = [np.partition(rng.random(n), n - 1 - extra)[n - 1 - extra]
                for extra in ([alarms] + [0] * (thresholds - 1))]  # all alarms come from the first score
        within += 1 - math.prod(tail) <= bound
    assert 0.94 <= within / draws <= 0.97


def test_the_bound_over_runs_is_the_bootstrap_of_evaluate():
    assert over_runs([Count(1, 100)], 1) is None and over_runs([Count(0, 100)] * 3, 1) == 0
    assert over_runs([Count(1, 100)] * 4, 1) == 10
    assert 70 <= over_runs([Count(0, 100)] * 5 + [Count(10, 100)] * 5, 1) <= 90


# --- the table of fields ---------------------------------------------------------------------------------------------------

def test_the_table_names_fields_and_stays_in_their_ranges():
    for name, engine in ENGINES.items():
        assert name == engine.name and name in PROFILES and CONFIG_RESET[engine.window] in engine.windows
        assert set(engine.searched) <= set(CONFIG_RESET)
        for threshold in engine.thresholds:
            assert threshold.value(0) == threshold.sensitive
            assert threshold.value(threshold.positions) == threshold.insensitive
            for position in (0, 1, threshold.positions // 2, threshold.positions):
                for field, value in threshold.fields(position).items():
                    assert CONFIG_RANGE[field][0] <= value <= CONFIG_RANGE[field][1]
                    assert np.float32(value) == value
    assert [Z.value(Z._code(5.0) - Z._code(1.0) + step) for step in (0, 1)] == [5.0, 5.0625]
    assert Z.fields(Z._code(5.0) - Z._code(1.0)) == {"z_threshold": 5.0, "z_threshold_desensitised": 6.0}
    assert HEADROOM.value(1) == 255 and JUMP.value(1) == 1 and SCALED.value(0) == CONFIG_RESET["forecast_headroom_scaled"]
    assert len(set(FORECAST.searched)) == len(FORECAST.searched)
    shifts = [tuple(FORECAST.horizon.fields(value).values()) for value in (None, 3, 2, 1, 0)]
    assert list(FORECAST.horizon.fields(0)) == ["forecast_shift", "forecast_shift_fp8"]
    assert shifts == [(2, 1), (3, 2), (2, 1), (1, 0), (0, 0)]


@needs_reference
@pytest.mark.parametrize("threshold", [*FORECAST.thresholds, *PUBLISHED.thresholds], ids=lambda t: t.field)
def test_a_less_sensitive_value_never_raises_more(threshold):
    arguments = statistics(Trace.read(CAPTURED / "near_limit.safetensors"))
    arguments["max_mag"] = np.minimum(arguments["max_mag"] + 0x1400, 0x7BFF)  # five bits up: D2 has something to say
    wider, seen = None, set()
    for position in np.linspace(0, threshold.positions, 24).astype(int):
        records, _ = module().run(**arguments, config=threshold.fields(int(position)))
        raised = (records["flags"] >> threshold.flag & 1) == 1
        assert wider is None or not (raised & ~wider).any()
        wider = raised
        seen.add(int(raised.sum()))
    assert len(seen) > 2


# --- search ----------------------------------------------------------------------------------------------------------------

REST = 156.0  # log2 code 7 * 32 + 7 + 2 = 233
PEAK = {24: 256.0, 32: 312.0, 40: 368.0, 48: 432.0}  # by rise in 1/32 bit: codes 257, 265 = 256 + 7 + 2, 273, 281
SPIKES = [(48, 32), (48,), (40, 24), (40,)]          # rises by run: one operator each


def spiked() -> list[Trace]:
    """Four runs of eight constant operators; operators that are listed jump once, by so many 1/32 bit. The jump ends 7 to
    8 bits below the limit: JUMP counts there, and four times the deviation is less than the headroom, so FORECAST is quiet."""
    traces = []
    for run, rises in enumerate(SPIKES):
        magnitudes = np.full((300, 8), REST)
        for op, rise in enumerate(rises):
            magnitudes[100 + 20 * op, op] = PEAK[rise]
        traces.append(trace_of(magnitudes, f"spiked{run}"))
    return traces


@needs_reference
@pytest.mark.parametrize("rate, rise, alarms", [
    (1.0, 32, 4),   # 9.6 expected: 4 alarms are at most 9.15, 5 would be 10.5
    (0.7, 40, 2),   # 6.72: 2 are at most 6.30
    (0.5, 48, 0),   # 4.8: 1 is at most 4.74, but there are two of the highest
])
def test_the_right_jump_threshold_is_found(rate, rise, alarms):
    config = calibrate([subject_of(trace) for trace in spiked()], [], rate, "forecast", 1, explore=True)
    assert config.fields["jump_threshold"] == rise and config.fields["baseline_shift"] == 4
    engine = config.calibration["engines"]["forecast"]
    assert engine["alarms"] == alarms == engine["raised_by_flag"]["JUMP"] and engine["raised_by_flag"]["FORECAST"] == 0
    assert engine["thresholds_set_by_samples"] == 1 and config.fields["forecast_headroom"] == HEADROOM.sensitive
    assert engine["upper_bound_samples_per_1000"] == pytest.approx(on_samples(alarms, 1, 9600))
    assert engine["promised"] and engine["leave_one_out"]["alarms"] <= 4


def jump_thresholds(magnitudes: np.ndarray, shift: int) -> list[int]:
    """Of each sample of an FP16 operator: the smallest JUMP.THRESHOLD that stays quiet, by numerics.md. 8 bits below the limit
    and further away every one does."""
    found, baseline, age = [], 0, 0
    for bits in magnitudes.astype(np.float16).view(np.uint16).tolist():
        fraction = bits >> 5 & 31
        code = 32 * ((bits >> 10) - 15) + fraction + (1, 2, 3, 3, 3, 3, 2, 1)[fraction >> 2]
        deviation = 4 * code - baseline if age else 0
        found.append(-(-deviation // 4) if age >= 16 and 512 - code < 256 else 0)
        moved = baseline + (deviation + (1 << (shift - 1)) >> shift)
        baseline = max(moved, 4 * code - 3 * 128) if age else 4 * code
        age += 1
    return found


@needs_reference
@pytest.mark.parametrize("shift", FORECAST.windows)
def test_the_jump_threshold_of_random_walks_is_the_oracles(shift):
    """Between 8.05 and 7.2 bits below the limit: JUMP counts but at the lower end, and 8 times the largest deviation that is
    possible stays below the headroom, so FORECAST is quiet at any horizon."""
    rng = np.random.default_rng(SEED)
    runs = [2.0 ** np.clip(8 + np.cumsum(rng.normal(0, 0.2, (500, 6)), axis=0), 7.95, 8.8) for _ in range(3)]
    search = Search(Evidence([subject_of(trace_of(run, f"walk{i}")) for i, run in enumerate(runs)]), range(3), 3.0, 1)
    proposal = search.fit(FORECAST, shift)
    quiet = [sorted(sum((jump_thresholds(run[:, op], shift) for op in range(6)), []), reverse=True) for run in runs]
    everything = sorted(sum(quiet, []), reverse=True)
    assert proposal.position[HEADROOM.field] == 0
    assert search.evidence.raised(Flag.FORECAST, proposal.flags()[Flag.FORECAST][0]) == 0  # it takes no share of the alarms

    def keeps(threshold: int) -> bool:
        counts = [Count(sum(value > threshold for value in run), 3000) for run in quiet]
        alarms = sum(count.alarms for count in counts)
        return alarms <= allowed(9000, 1, 3.0) and (not alarms or over_runs(counts, 1) <= 3.0)

    assert JUMP.value(proposal.position[JUMP.field]) == next(t for t in range(everything[0] + 1) if keeps(t)) > 8


@needs_reference
def test_the_z_threshold_lies_right_above_the_scores_of_the_reference():
    traces = walks(SEED, 3, 400, 5)
    rate = 2.0
    search = Search(Evidence([subject_of(trace) for trace in traces]), range(3), rate, 1)
    proposal = search.fit(PUBLISHED, CONFIG_RESET["published_alpha"])
    scores = np.concatenate([module().run(**statistics(trace))[1].reshape(-1) for trace in traces])
    threshold = Z.value(proposal.position[Z.field])
    below = Z.value(proposal.position[Z.field] - 1)
    alarms = int((scores > threshold).sum())
    assert alarms == sum(count.alarms for count in search.counts(proposal)) <= allowed(6000, 1, rate)
    counts = [Count(int((module().run(**statistics(trace))[1] > below).sum()), 2000) for trace in traces]
    assert sum(count.alarms for count in counts) > allowed(6000, 1, rate) or over_runs(counts, 1) > rate


@needs_reference
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.integers(0, 1 << 30), strategies.floats(0.5, 200), strategies.sampled_from([0.05, 0.3, 1.0]),
       strategies.sampled_from([-3.0, 8.0, 12.0]))
def test_proposals_keep_the_rate_and_nothing_can_be_more_sensitive(seed, rate, scale, home):
    traces = [trace_of(trace.max_abs, trace.name, kinds=["activation", "activation", "gradient"],
                       loss_scale=np.full(80, 8, np.float32)) for trace in walks(seed, 3, 80, 3, scale, home)]
    evidence = Evidence([subject_of(trace) for trace in traces])
    search = Search(evidence, range(3), rate, 1)
    for engine in ENGINES.values():
        proposal = search.fit(engine, CONFIG_RESET[engine.window])
        counts = search.counts(proposal)
        alarms = sum(count.alarms for count in counts)
        most = allowed(720, proposal.bound, rate)
        assert alarms <= (most or 0)
        if most is not None:
            assert on_samples(alarms, proposal.bound, 720) <= rate * (1 + 1e-9)
            assert alarms == 0 or over_runs(counts, 1) <= rate
        for threshold in engine.thresholds:
            position = proposal.position.get(threshold.field)
            if position is None:  # not even the least sensitive value keeps the rate
                proposal.position[threshold.field] = threshold.positions
                assert not search.keeps(proposal), threshold.field
                del proposal.position[threshold.field]
            elif position > 0:
                proposal.position[threshold.field] = position - 1
                assert not search.keeps(proposal), threshold.field
                proposal.position[threshold.field] = position


@needs_reference
def test_a_flag_takes_the_alarms_that_others_leave():
    """In 15 samples JUMP is never raised: FORECAST may use the alarms of both."""
    search = Search(Evidence([subject_of(trace) for trace in walks(SEED, 12, 15, 6, 0.4, 11.0)]), range(12), 20.0, 1)
    proposal = search.fit(FORECAST, 4)
    assert proposal.position[JUMP.field] == 0 < proposal.position[HEADROOM.field]
    most = allowed(1080, 1, 20.0)
    assert most == 13 and sum(count.alarms for count in search.counts(proposal)) > 2 * most / 3  # its share at first
    proposal.position[HEADROOM.field] -= 1
    assert not search.keeps(proposal)


@needs_reference
def test_the_longest_horizon_that_leaves_the_gate_open_is_taken():
    enough = int(HEADROOM.sensitive - FORECAST.horizon.enough)  # position of the reset value
    taken = set()
    for scale in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        search = Search(Evidence([subject_of(trace) for trace in walks(SEED, 3, 200, 4, scale, 12.5)]), range(3), 5.0, 1)
        proposal = search.fit(FORECAST, 4)
        open_gate = proposal.position[HEADROOM.field] <= enough
        taken.add((proposal.horizon, open_gate))
        for refused in range(proposal.horizon + 1 if open_gate else 0, FORECAST.horizon.longest - 4 + 1):
            other = search.fit(FORECAST, 4)
            other.horizon, other.position[HEADROOM.field] = refused, enough
            assert not search.keeps(other)
    assert len(taken) > 2 and {True, False} == {open_gate for _, open_gate in taken}


@needs_reference
@pytest.mark.parametrize("kind, peak, plain, scaled", [
    ("gradient", 52224.0, 256, 10),   # 1.59375 * 2^15: code 15 * 32 + 19 + 3 = 502, 10 below the limit
    ("gradient", 65504.0, 256, 0),    # the limit itself: no value but 0 is quiet
    ("activation", 52224.0, 10, 20),  # nothing under a loss scale: the reset value stays
])
def test_operands_under_a_loss_scale_set_a_headroom_of_their_own(kind, peak, plain, scaled):
    magnitudes = np.full((300, 4), REST)
    magnitudes[100, 1] = peak
    traces = [trace_of(magnitudes, f"run{run}", kinds=["activation", kind, "activation", "activation"],
                       loss_scale=np.full(300, 1024, np.float32)) for run in range(3)]
    # One alarm would be too many.
    config = calibrate([subject_of(trace) for trace in traces], [], 1.0, "forecast", 1, explore=True)
    assert (config.fields["forecast_headroom"], config.fields["forecast_headroom_scaled"]) == (plain, scaled)
    engine = config.calibration["engines"]["forecast"]
    assert engine["alarms"] == engine["raised_by_flag"]["FORECAST"] == 0 and config.fields["weight_forecast"] == 128
    assert config.fields["jump_threshold"] == (0 if kind == "gradient" else 502 - 233)  # their jumps do not count
    assert engine["thresholds_set_by_samples"] == (1 if kind == "gradient" else 2)


@needs_reference
def test_another_window_must_be_worth_it():
    """Slow drift with sudden level changes of the same height everywhere: the window makes no difference worth having."""
    config = calibrate([subject_of(trace) for trace in spiked()], [], 0.5, "published", 1, explore=True)
    assert config.fields["baseline_shift"] == CONFIG_RESET["baseline_shift"]
    # A sawtooth that ends 7 bits below the limit: a shorter baseline, looking as far ahead, lags less behind it.
    saw = 2.0 ** (np.abs(np.arange(600) % 40 - 20)[:, None] * np.array([0.08, 0.1]) + 7)
    subjects = [subject_of(trace_of(np.roll(saw, 7 * run, axis=0), f"saw{run}")) for run in range(3)]
    config = calibrate(subjects, [], 20, "forecast", 1, explore=True)
    assert config.fields["baseline_shift"] < CONFIG_RESET["baseline_shift"]
    search = Search(Evidence(subjects), range(3), 20, 1)
    here, there = (search.fit(FORECAST, shift) for shift in (config.fields["baseline_shift"], CONFIG_RESET["baseline_shift"]))
    assert JUMP.value(here.position[JUMP.field]) <= 0.9 * JUMP.value(there.position[JUMP.field])


# --- flags that cannot be used ---------------------------------------------------------------------------------------------

@needs_reference
def test_a_flag_that_cannot_keep_the_rate_gets_weight_0(tmp_path, capsys):
    for run in range(3):
        saturated = np.ones((100, 2), np.int64)  # a format that is used up to its limit, as delayed scaling does
        trace_of(np.full((100, 2), 448.0), f"full{run}", formats="E4M3", saturated=saturated).write(
            tmp_path / f"full{run}.safetensors")
    assert main([str(tmp_path), "--false-alarms", "20", "--explore", "--out", str(tmp_path / "device.json")]) == 0
    config = device_config.read(tmp_path / "device.json")
    assert config.fields["weight_saturated"] == 0 and config.fields["weight_jump"] == 128
    assert config.calibration["engines"]["forecast"]["flags_not_used"] == ["SATURATED"]
    assert "SATURATED cannot be brought to 20 per 1000: its weight is 0" in capsys.readouterr().out


@needs_reference
def test_z_of_operators_without_variance_cannot_be_used():
    """Two neighbouring numbers, then 2^20 times as much: z is far beyond what the register holds."""
    magnitudes = np.where(np.arange(200) % 2 == 0, 1.0, np.nextafter(np.float32(1), np.float32(2)))[:, None]
    magnitudes = np.where(np.arange(200)[:, None] == 150, 2.0 ** 20, magnitudes)
    traces = [trace_of(magnitudes, f"flat{run}", formats="FP32") for run in range(3)]
    # 4.8: one alarm may be, not three.
    config = calibrate([subject_of(trace) for trace in traces], [], 8.0, "published", 1, explore=True)
    engine = config.calibration["engines"]["published"]
    assert engine["flags_not_used"] == ["Z"] and config.fields["weight_z"] == 0 and config.fields["weight_d2"] == 128
    assert config.fields["z_threshold"] == CONFIG_RESET["z_threshold"] and engine["alarms"] == 0


# --- certainty -------------------------------------------------------------------------------------------------------------

@needs_reference
def test_leaving_a_run_out_shows_the_run_that_is_different():
    calm = [trace_of(np.full((400, 4), REST), f"calm{run}") for run in range(5)]
    wild = np.full((400, 4), REST)
    wild[50::20] = PEAK[48]  # 18 steps x 4 operators: 1.5 bits
    subjects = [subject_of(trace) for trace in [*calm, trace_of(wild, "wild")]]
    engine = calibrate(subjects, [], 2.0, "forecast", 1, explore=True).calibration["engines"]["forecast"]
    assert engine["alarms_by_run"] == [0, 0, 0, 0, 0, 4]  # the first jump, before the baseline has risen
    assert engine["leave_one_out"]["alarms_by_run"] == [0, 0, 0, 0, 0, 72]
    assert not engine["promised"]
    assert "set without it, the run that is left out has" in engine["not_promised_because"][-1]
    engine = calibrate(subjects[:5], [], 2.0, "forecast", 1, explore=True).calibration["engines"]["forecast"]
    assert engine["promised"] and engine["leave_one_out"]["alarms"] == 0


@needs_reference
def test_too_few_probe_steps_are_counted(tmp_path, capsys):
    out = tmp_path / "device.json"
    assert main([str(CAPTURED / "healthy.safetensors"), "--out", str(out)]) == 3
    config = device_config.read(out)
    engine = config.calibration["engines"]["forecast"]
    missing = needed(0, engine["thresholds_set_by_samples"], 0.05) - 39_000
    said = capsys.readouterr().out
    assert config.calibration["promised"] is False and engine["alarms"] == 0 and missing >= 59_915 - 39_000
    assert f"{missing:,} more probe-steps without an alarm are needed" in said
    assert "NOT PROMISED" in said and "one run says nothing of others" in said and "opd replay counts 0 alarms" in said
    assert engine["upper_bound_runs_per_1000"] is None and engine["leave_one_out"] is None
    # P90 of the clip threshold: the value at index floor(0.9 (N - 1)) of the sorted ones.
    norms = np.sort(Trace.read(CAPTURED / "healthy.safetensors").grad_norm)
    assert config.calibration["grad_norm_p90"] == pytest.approx(float(norms[int(0.9 * (len(norms) - 1))]))
    assert config.calibration["grad_norm_steps"] == 500


# --- the file on the device ------------------------------------------------------------------------------------------------

def replayed_alarms(traces, config, out) -> list[int]:
    subprocess.run([PROGRAM, "replay", *map(str, traces), "--config", str(config), "--paths", "systemc-lt,cpu", "--out", str(out)],
                   check=True, capture_output=True, timeout=300)
    return [entry["detection"]["alarms"] for entry in json.loads((out / "summary.json").read_text())["traces"]]


@needs_reference
@pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
@pytest.mark.parametrize("profile", ["forecast", "published"])
def test_replay_counts_the_alarms_that_were_promised(tmp_path, profile):
    traces = walks(SEED, 3, 400, 6, home=9.0)
    bad = np.zeros((400, 6), np.int64)
    bad[200, 2] = bad[310, 2] = bad[3, 3] = 1  # a loss scaler at work
    scale = np.where(np.arange(400) < 200, 1024, 512).astype(np.float32)
    kinds = ["activation"] * 2 + ["gradient"] * 4
    rate = np.where(np.arange(400) < 100, 1e-3, 3e-3).astype(np.float32)
    traces.append(trace_of(traces[0].max_abs, "scaled", kinds=kinds, nonfinite=bad, loss_scale=scale, lr=rate))
    files = [tmp_path / f"{trace.name}.safetensors" for trace in traces]
    for trace, file in zip(traces, files):
        trace.write(file)
    out = tmp_path / "device.json"
    assert main([str(tmp_path), "--false-alarms", "4", "--explore", "--profile", profile, "--out", str(out)]) in (0, 3)
    config = device_config.read(out)
    found = config.calibration
    assert config.profile == profile and found["probe_steps_not_judged"] == 200 + 397
    assert found["probe_steps"] == 4 * 2400 - 597
    counted = replayed_alarms(sorted(files), out, tmp_path / "replayed")
    assert sum(counted) == found["engines"][profile]["alarms"] > 0
    assert counted == found["engines"][profile]["alarms_by_run"] == [run["replay_alarms"] for run in found["runs"]]


@needs_reference
@pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
def test_the_shipped_runs_stay_within_their_promise(tmp_path):
    runs = [CAPTURED / "healthy.safetensors", CAPTURED / "near_limit.safetensors"]
    for rate in (0.05, 1.0, 10.0):
        main([*map(str, runs), "--assume-healthy", "--explore", "--false-alarms", str(rate), "--out",
              str(tmp_path / "device.json")])
        found = device_config.read(tmp_path / "device.json").calibration
        engine = found["engines"]["forecast"]
        assert replayed_alarms(runs, tmp_path / "device.json", tmp_path / "out") == engine["alarms_by_run"]
        assert 1000 * engine["alarms"] / found["probe_steps"] <= rate
    assert engine["alarms"] > 0


@needs_reference
def test_evaluate_judges_the_configured_device(tmp_path):
    from opd.evaluate.command import evaluate

    run = tmp_path / "walk0.safetensors"
    walks(SEED, 1, 400, 6, 0.1, 8.0)[0].write(run)  # 8 bits below the limit, and nothing moves by 3 bits
    assert main([str(run), "--false-alarms", "5", "--explore", "--out", str(tmp_path / "device.json")]) == 3
    engine = device_config.read(tmp_path / "device.json").calibration["engines"]["forecast"]
    found = evaluate([str(run)], names=["configured", "forecast"], config_file=str(tmp_path / "device.json"))
    told = {entry["name"]: entry for entry in found["runs"][0]["detectors"]}
    assert told["configured"]["false_alarms"] + told["configured"]["warm_up_false_alarms"] == engine["alarms"] > 0
    assert told["forecast"]["false_alarms"] == 0


@needs_reference
def test_near_limit_runs_and_kinds_are_told_apart(tmp_path, capsys):
    out = tmp_path / "device.json"
    arguments = ["--false-alarms", "1", "--explore", "--out", str(out)]
    main([str(CAPTURED / "healthy.safetensors"), *arguments])
    alone = device_config.read(out)
    main([str(CAPTURED), *arguments])
    both = device_config.read(out)
    assert both.fields == alone.fields and both.calibration["probe_steps"] == alone.calibration["probe_steps"] == 39_000
    near = both.calibration["engines"]["forecast"]["near_limit"]
    assert [run["name"] for run in near["runs"]] == ["near_limit"] and near["runs"][0]["alarms"] > 100
    capsys.readouterr()
    main([str(CAPTURED / "healthy.safetensors"), "--kind", "activation", *arguments])
    forward = device_config.read(out)
    said = capsys.readouterr().out
    assert "probe-steps of activation" in said and "operators of every kind" in said
    kinds = [probe.kind for probe in Trace.read(CAPTURED / "healthy.safetensors").probes]
    assert forward.calibration["probe_steps"] == 500 * kinds.count("activation")
    assert forward.calibration["engines"]["forecast"]["alarms"] <= forward.calibration["runs"][0]["replay_alarms"]


@needs_reference
def test_nothing_is_more_sensitive_than_reset_unless_asked_for(tmp_path):
    """Quiet runs leave the reset values as they are; runs that trip them make them less sensitive."""
    quiet = calibrate([subject_of(trace) for trace in walks(SEED, 3, 300, 4, 0.1, 8.0)], [], 5.0, "forecast", 1)
    engine = quiet.calibration["engines"]["forecast"]
    assert engine["alarms"] == 0 and engine["thresholds_set_by_samples"] == 0
    assert {name: quiet.value(name) for name in FORECAST.searched} == {name: CONFIG_RESET[name] for name in FORECAST.searched}
    rough = [subject_of(trace) for trace in walks(SEED, 6, 300, 4, 1.5, 4.0)]
    config = calibrate(rough, [], 5.0, "forecast", 1)
    explored = calibrate(rough, [], 5.0, "forecast", 1, explore=True)
    assert config.calibration["engines"]["forecast"]["alarms_per_1000"] <= 5.0
    assert config.value("jump_threshold") >= CONFIG_RESET["jump_threshold"]
    assert config.value("forecast_headroom") <= CONFIG_RESET["forecast_headroom"]
    assert config.value("baseline_shift") == CONFIG_RESET["baseline_shift"]
    assert (config.value("jump_threshold"), config.value("forecast_headroom")) != (96, 96)
    assert config.calibration["explored"] is False and explored.calibration["explored"] is True


@needs_reference
def test_the_same_traces_give_the_same_file(tmp_path):
    texts = []
    for name in ("a", "b"):
        main([str(CAPTURED / "healthy.safetensors"), "--false-alarms", "2", "--out", str(tmp_path / name)])
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]


# --- bad input -------------------------------------------------------------------------------------------------------------

@pytest.fixture
def folder(tmp_path):
    trace_of(np.full((40, 2), 0.5), "calm").write(tmp_path / "calm.safetensors")
    trace_of(np.full((40, 2), 0.5), "rising", label="gradual").write(tmp_path / "rising.safetensors")
    return tmp_path


@needs_reference
def test_bad_input_is_named(folder, capsys):
    out = folder / "out" / "device.json"

    def fault(*arguments) -> str:
        assert main([*map(str, arguments), "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("opd calibrate: ") and "; " in said and not out.parent.exists()
        return said

    calm, rising = folder / "calm.safetensors", folder / "rising.safetensors"
    assert f"{rising}: label: gradual is not healthy or near-limit; leave the trace out, or insist" in fault(calm, rising)
    assert "no trace is labelled healthy; give healthy runs" in fault(folder / "near", *_near(folder))
    assert "no trace is labelled healthy in the split tuning" in fault(calm, "--split", "tuning")
    assert "cannot be opened" in fault(folder / "none.safetensors")
    assert "is named twice" in fault(calm, calm)
    assert "0 is not between 0 and 1000" in fault(calm, "--false-alarms", "0")
    assert "nan is not between 0 and 1000" in fault(calm, "--false-alarms", "nan")
    assert "is negative" in fault(calm, "--seed", "-1")
    assert "of the kinds asked for" in fault(calm, "--kind", "optimizer")
    assert "cannot be read" in fault(calm, "--labels", folder / "none.toml")
    (folder / "copy.safetensors").write_bytes(calm.read_bytes())
    assert "is the name of" in fault(calm, folder / "copy.safetensors")
    (folder / "taken").write_text("")
    assert main([str(calm), "--out", str(folder / "taken" / "device.json")]) == 2
    assert "cannot be made a folder" in capsys.readouterr().err
    assert main([str(calm), "--out", str(folder)]) == 2
    assert "cannot be written" in capsys.readouterr().err and not list(folder.glob("*.json"))


def _near(folder):
    (folder / "near").mkdir()
    trace_of(np.full((40, 2), 0.5), "near", label="near-limit").write(folder / "near" / "near.safetensors")
    return []


@needs_reference
def test_the_user_may_insist_and_folders_are_searched(folder, capsys):
    out = folder / "device.json"
    assert main([str(folder), "--out", str(out)]) == 3
    assert [run["name"] for run in device_config.read(out).calibration["runs"]] == ["calm"]
    said = capsys.readouterr().out
    assert "1 trace left out" in said and "no trace has a finite grad_norm" in said
    assert main([str(folder / "rising.safetensors"), "--assume-healthy", "--out", str(out)]) == 3
    assert device_config.read(out).calibration["runs"][0]["class"] == "gradual"
    (folder / "labels.toml").write_text('[runs.calm]\nclass = "gradual"\nsplit = "tuning"\ndecided = "x"\n'
                                        '[runs.rising]\nclass = "healthy"\nsplit = "tuning"\ndecided = "x"\n')
    assert main([str(folder), "--split", "tuning", "--out", str(out)]) == 3
    assert [run["name"] for run in device_config.read(out).calibration["runs"]] == ["rising"]


def test_a_missing_reference_is_an_error(folder, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python"), "OPD_BUILD": str(tmp_path / "none")}
    result = subprocess.run([sys.executable, "-m", "opd", "calibrate", str(folder), "--out", str(folder / "device.json")],
                            env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "the C++ reference is not built" in result.stderr
    assert not (folder / "device.json").exists()


@needs_reference
def test_alarms_are_what_the_weights_add_up_to():
    evidence = Evidence([subject_of(trace) for trace in spiked()])
    low, high = (settings_of({"jump_threshold": rise}) for rise in (32, 40))
    assert evidence.counts({}).tolist() == [0] * 4
    assert evidence.counts({Flag.JUMP: (low, 128)}).tolist() == [1, 1, 1, 1]
    assert evidence.counts({Flag.JUMP: (high, 200)}).tolist() == [1, 1, 0, 0]
    assert evidence.counts({Flag.JUMP: (high, 127)}).tolist() == [0] * 4
    early = (settings_of({}), 1)  # WARMUP: the first 16 samples of 8 operators
    assert evidence.counts({Flag.JUMP: (high, 127), Flag.WARMUP: early}).tolist() == [0] * 4
    assert evidence.counts({Flag.JUMP: (high, 128), Flag.WARMUP: (early[0], 128)}).tolist() == [129, 129, 128, 128]
    at_any_age = settings_of({"jump_threshold": 40, "jump_min_samples": 0, "baseline_warmup_samples": 200})
    both = {Flag.JUMP: (at_any_age, 64), Flag.WARMUP: (at_any_age, 64)}
    assert evidence.counts(both).tolist() == [1, 1, 0, 0] == evidence.counts({Flag.JUMP: (at_any_age, 128)}).tolist()
