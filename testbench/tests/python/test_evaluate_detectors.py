"""opd.evaluate, the detectors: each against a series worked by hand and a plain oracle, one operator at a time; forecast and
published against the records and the summary of the opd program.

The C++ reference is read from the folder in OPD_BUILD (default: build); without it its tests are skipped.
"""
import json
import os
import statistics
import subprocess
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from opd.evaluate.averages import MsprobeTurbulence, OlmoSkipStep, ZClip
from opd.evaluate.detector import Samples, hold, of_kinds
from opd.evaluate.incident import first_bad
from opd.evaluate.limits import FpCheckerDangerZone, NonfiniteOnly, StaticHeadroom
from opd.evaluate.maxima import MegatronSpike, TransformerEngineAmax
from opd.evaluate.metrics import lead_steps
from opd.evaluate.reference import Forecast, Published, learning_rate_changes
from opd.evaluate.reference import statistics as arguments_of
from opd.reference import ReferenceMissing, module
from opd.registers import CONFIG_RESET, PROFILES, Flag
from opd.report import read_records
from opd.trace import Probe, Trace
from test_trace import operand_sample

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("OPD_BUILD", ROOT / "build"))
PROGRAM = Path(os.environ.get("OPD_PROGRAM", BUILD / "opd"))
CAPTURED = sorted((ROOT / "traces" / "captured").glob("*.safetensors"))
SEED = int(os.environ.get("OPD_SEED", "0xE7A1"), 0)

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False
needs_reference = pytest.mark.skipif(
    not BUILT, reason=f"{BUILD} holds no opd._reference (target opd_python; OPD_BUILD names the folder)")


def trace_of(*columns, nonfinite=None, format="FP32", **members) -> Trace:
    """A trace whose operators have these magnitudes: one list of S numbers per operator."""
    max_abs = np.array(columns, np.float32).T
    bad = np.zeros(max_abs.shape, np.int64) if nonfinite is None else np.array(nonfinite, np.int64).T
    probes = [Probe(f"op{op}", "activation", format, (64,)) for op in range(max_abs.shape[1])]
    return Trace("test", "healthy", probes, np.arange(len(max_abs)), max_abs, bad, **members)


def alarms(detector, *columns, threshold=None, **members) -> np.ndarray:
    return detector.judge(Samples.of(trace_of(*columns, **members)), threshold).alarms


def alarm_list(detector, column, **members) -> list[int]:
    """Samples of one operator with an alarm."""
    return np.flatnonzero(alarms(detector, column, **members)[:, 0]).tolist()


# --- by hand ---------------------------------------------------------------------------------------------------------------

def test_static_headroom_by_hand():
    assert alarm_list(StaticHeadroom(1), [0, 32736, 32752, 65504, 100], format="FP16") == [2, 3]  # 32752 is half of 65504
    assert alarm_list(StaticHeadroom(3), [8184, 8188, 8192], format="FP16") == [1, 2]
    assert alarm_list(StaticHeadroom(1), [223, 224], format="FP32") == []
    assert alarm_list(StaticHeadroom(1), [208, 224], format="E4M3") == [1]  # 448 is the limit


def test_fpchecker_by_hand():
    assert alarm_list(FpCheckerDangerZone(), [416, 448], format="E4M3") == [1]              # 0.95 of 448 is 425.6
    assert alarm_list(FpCheckerDangerZone(), [62208, 62240, 65504], format="FP16") == [1, 2]  # of 65504: 62228.8


def test_nonfinite_only_by_hand():
    assert alarm_list(NonfiniteOnly(), [1, 65504, 1, 1], nonfinite=[[0, 0, 3, 0]], format="FP16") == [2]


def test_zclip_by_hand():
    warm_up = [0] * 5 + [10] * 20  # mean 8, variance 16
    assert alarm_list(ZClip(), [*warm_up, 18]) == []  # z = 10 / (4 + 1e-6), just below 2.5
    assert alarm_list(ZClip(), [*warm_up, 18.1]) == [25]
    # 19 has z = 2.75 and enters as 8 + 10 / 1.1: mean 8.2727, variance 17.853, so the next alarm begins at 18.836. Not clipped,
    # it would begin at 19.21; with the variance of the mean before the update at 18.94.
    assert alarm_list(ZClip(), [*warm_up, 19, 18.8]) == [25]
    assert alarm_list(ZClip(), [*warm_up, 19, 18.9]) == [25, 26]
    assert alarm_list(ZClip(), [1] * 24 + [1000]) == []  # no verdict in the warm-up


def test_olmo_by_hand():
    window = [9, 11] * 32  # mean 10, standard deviation sqrt(64 / 63) = 1.00791: six of them are 6.0475
    assert alarm_list(OlmoSkipStep(), [*window, 16.04]) == []
    assert alarm_list(OlmoSkipStep(), [*window, 16.05]) == [64]
    assert alarm_list(OlmoSkipStep(), [*window, 3.95]) == []     # below the mean nothing counts
    assert alarm_list(OlmoSkipStep(), [10] * 62 + [1000]) == []  # the 63rd sample: no verdict
    assert alarm_list(OlmoSkipStep(), [10] * 63 + [1000]) == [63]
    assert alarm_list(OlmoSkipStep(), [10] * 200) == []          # nothing moves
    assert alarm_list(OlmoSkipStep(), [10] * 100 + [9, 11]) == [101]  # a sample below is none
    assert alarm_list(OlmoSkipStep(), [10] * 100 + [10.5]) == [100]     # above a window that does not move: 0.5 / 0
    # The early level has left the window of 128 when 128 others have come.
    assert alarm_list(OlmoSkipStep(), [1000] * 128 + window * 2 + [16.05])[-1] == 256


def test_msprobe_by_hand():
    assert alarm_list(MsprobeTurbulence(), [10, 15]) == []
    assert alarm_list(MsprobeTurbulence(), [10, 15, 15.07]) == []  # the average is 10.05
    assert alarm_list(MsprobeTurbulence(), [10, 15, 15.08]) == [2]
    assert alarm_list(MsprobeTurbulence(), [0, 0, 1]) == [2]


def test_megatron_by_hand():
    first = [1, 2] * 50
    assert alarm_list(MegatronSpike(), [*first, 19.9, 20, 1000, 19]) == [101, 102]
    assert alarm_list(MegatronSpike(), [*first[:-1], 1000, 9999]) == []  # the hundredth sample sets the largest
    assert alarm_list(MegatronSpike(), [0] * 102) == [100, 101]          # at least ten times zero


def test_te_amax_by_hand():
    assert alarm_list(TransformerEngineAmax(), [0, 1, 1, 2, 2, 2.5]) == [3, 5]  # no verdict while the history is zero
    series = [2] + [1] * 1023
    assert alarm_list(TransformerEngineAmax(), [*series, 1.5]) == []       # 2 is the 1024th before
    assert alarm_list(TransformerEngineAmax(), [*series, 1, 1.5]) == [1025]


def test_nonfinite_samples_change_no_state():
    series = [9, 11] * 70 + [30, 500, 9, 300]
    with_bad, bad = [], []
    for index, value in enumerate(series):
        if index % 7 == 3:
            with_bad.append(65504)
            bad.append(5)
        with_bad.append(value)
        bad.append(0)
    good = np.array(bad) == 0
    compared = 0
    for detector in (StaticHeadroom(1), FpCheckerDangerZone(), ZClip(), OlmoSkipStep(), MsprobeTurbulence(), MegatronSpike(),
                     TransformerEngineAmax()):
        plain = alarms(detector, series)[:, 0]
        mixed = alarms(detector, with_bad, nonfinite=[bad])[:, 0]
        assert np.array_equal(mixed[good], plain), detector.name
        assert not mixed[~good].any(), detector.name
        compared += 1
    assert compared == 7


# --- oracles: one operator, one sample at a time ----------------------------------------------------------------------------

def zclip_oracle(xs):
    buffer, mean, variance, said = [], None, None, []
    for x in xs:
        if mean is None:
            buffer.append(x)
            said.append(False)
            if len(buffer) == 25:
                mean = sum(buffer) / 25
                variance = sum((b - mean) ** 2 for b in buffer) / 25
            continue
        z = (x - mean) / (variance ** 0.5 + 1e-6)
        said.append(z > 2.5)
        if z > 2.5:
            x = mean + 2.5 * variance ** 0.5 / (z / 2.5)
        mean = 0.97 * mean + 0.03 * x
        variance = 0.97 * variance + 0.03 * (x - mean) ** 2
    return said


def olmo_oracle(xs):
    said, window = [], []
    for x in xs:
        enough = len(window) + 1 >= 64
        deviation = statistics.stdev(window) if enough else 0
        away = x - statistics.fmean(window) if enough else 0
        said.append(enough and away > 6 * deviation)  # one side
        window = [*window, x][-128:]
    return said


def msprobe_oracle(xs):
    said, average = [], None
    for x in xs:
        average = x if average is None else average
        said.append(x > 1.5 * average)
        average = 0.99 * average + 0.01 * x
    return said


def megatron_oracle(xs):
    largest = max(xs[:100], default=0)
    return [False] * min(100, len(xs)) + [x >= 10 * largest for x in xs[100:]]


def te_oracle(xs):
    said, history = [], deque(maxlen=1024)
    for x in xs:
        said.append(bool(history) and max(history) > 0 and x > max(history))
        history.append(x)
    return said


def headroom_oracle(xs):
    return [x >= 65504 / 2 for x in xs]


def fpchecker_oracle(xs):
    return [x > 0.95 * 65504 for x in xs]


ORACLES = [(ZClip(), zclip_oracle), (OlmoSkipStep(), olmo_oracle), (MsprobeTurbulence(), msprobe_oracle),
           (MegatronSpike(), megatron_oracle), (TransformerEngineAmax(), te_oracle), (StaticHeadroom(1), headroom_oracle),
           (FpCheckerDangerZone(), fpchecker_oracle)]


@pytest.mark.parametrize("detector, oracle", ORACLES, ids=[detector.name for detector, _ in ORACLES])
def test_detectors_equal_their_oracles(detector, oracle):
    print(f"repeat with OPD_SEED={SEED:#x}")
    generator = np.random.default_rng(SEED)
    steps, probes = 1500, 6
    # A slow walk over decades, heavy-tailed jumps, and stretches of zeros and non-finite samples.
    walk = np.cumsum(generator.normal(0, 0.02, (steps, probes)), axis=0) + generator.uniform(0, 4, probes)
    jump = (generator.random((steps, probes)) < 0.02) * generator.exponential(0.8, (steps, probes))
    values = np.minimum(np.float16(10.0 ** np.clip(walk + jump, -3, 4.8)), 65504).astype(np.float32)
    values[:, 1] *= generator.random(steps) < 0.9
    nonfinite = (generator.random((steps, probes)) < 0.05) * (np.arange(probes) % 2)
    samples = Samples.of(trace_of(*values.T, nonfinite=nonfinite.T, format="FP16"))
    found = detector.judge(samples).alarms
    compared = raised = 0
    for op in range(probes):
        rows = np.flatnonzero(nonfinite[:, op] == 0)
        expected = oracle([float(x) for x in values[rows, op]])
        assert found[rows, op].tolist() == expected
        assert not found[nonfinite[:, op] > 0, op].any()
        compared += len(expected)
        raised += sum(expected)
    assert compared > 8000 and 0 < raised < compared
    swept = [verdict.alarms for verdict in detector.judge_sweep(samples)]
    assert len(swept) == len(detector.sweep) and np.array_equal(swept[detector.sweep.index(detector.threshold)], found)


def test_hold_is_the_stable_row_of_the_controller():
    step = np.arange(200)
    raised = np.zeros(200, bool)
    raised[[10, 50]] = True
    assert np.flatnonzero(hold(raised, step)).tolist() == list(range(10, 50 + 64))  # back in FAST with the 64th quiet step
    raised[50] = False
    assert np.flatnonzero(hold(raised, step)).tolist() == list(range(10, 74))
    assert np.flatnonzero(hold(raised, step * 10)).tolist() == list(range(10, 17))     # 10 steps between samples
    assert np.flatnonzero(hold(raised, step * 200)).tolist() == list(range(10, 200))   # more than 127 read as a roll-back
    assert not hold(np.zeros(5, bool), np.arange(5)).any() and hold(np.zeros(0, bool), np.zeros(0, int)).shape == (0,)


def test_kinds_choose_operators():
    trace = trace_of([1, 2], [3, 4])
    trace.probes = [trace.probes[0], Probe("g", "gradient", "FP32", (64,))]
    chosen = of_kinds(trace, {"gradient"})
    assert [probe.name for probe in chosen.probes] == ["g"] and chosen.max_abs.tolist() == [[3], [4]]
    assert Trace.parse(of_kinds(operand_sample(), {"activation"}).to_bytes(), "f").operators == []  # the probes alone stay
    with pytest.raises(ValueError, match="no probe of the kinds"):
        of_kinds(trace, {"weight"})


# --- forecast and published ------------------------------------------------------------------------------------------------

def test_statistics_are_those_of_a_replay():
    trace = trace_of([1, 65504, 2], [0.5, 3, 1], format="FP16", lr=np.float32([1, 1.2, 2]),
                     loss_scale=np.float32([1024, 1000, 0.75]))
    trace.probes = [trace.probes[0], Probe("g", "gradient", "BF16", ())]
    found = arguments_of(trace)
    assert found["max_mag"].tolist() == [[0x3C00, 0x3F00], [0x7BFF, 0x4040], [0x4000, 0x3F80]]
    assert found["scale_log2"].tolist() == [[0, 10], [0, 9], [0, -1]]
    assert found["format"].tolist() == [0, 1] and found["element_count"].tolist() == [64, 1]
    assert learning_rate_changes(trace).tolist() == [False, False, True]  # 1.2 is no change, 2 / 1.2 is
    trace.max_abs[:] = -0.0
    assert not arguments_of(trace)["max_mag"].any()  # the sign of a zero is no magnitude


@needs_reference
@pytest.mark.parametrize("profile", ["forecast", "published"])
def test_the_reference_gives_the_records_of_opd_replay(tmp_path, profile):
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent (OPD_PROGRAM names another)")
    trace = Trace.read(next(file for file in CAPTURED if file.stem == "qk_overflow"))
    statistics_only = tmp_path / "trace.safetensors"
    trace.raw, trace.raw_step = {}, None
    trace.write(statistics_only)
    subprocess.run([PROGRAM, "replay", statistics_only, "--paths", "systemc-lt,cpu", "--profile", profile, "--out", tmp_path / "out"],
                   check=True, capture_output=True, timeout=300)
    replayed = read_records(tmp_path / "out" / f"{trace.name}.cpu.records")
    config = PROFILES[profile]
    records, z = module().run(**arguments_of(trace), config=config)
    records = records.reshape(-1)
    assert len(records) == len(replayed) == trace.max_abs.size > 20000
    for name in replayed.dtype.names:
        assert np.array_equal(records[name], replayed[name]), name
    assert np.array_equal(z.reshape(-1), np.fromfile(tmp_path / "out" / f"{trace.name}.z"), equal_nan=True)
    assert (records["flags"] & (1 << Flag.Z)).any() and (records["flags"] & (1 << Flag.FORECAST)).any()


@needs_reference
def test_lead_and_alarms_are_those_of_opd_replay(tmp_path):
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent (OPD_PROGRAM names another)")
    subprocess.run([PROGRAM, "replay", *CAPTURED, "--paths", "systemc-lt,cpu", "--out", tmp_path], check=True, capture_output=True,
                   timeout=300)
    summary = json.loads((tmp_path / "summary.json").read_text())
    compared = 0
    for file, entry in zip(CAPTURED, summary["traces"], strict=True):
        trace = Trace.read(file)
        samples = Samples.of(trace)
        before = np.arange(len(trace.step))[:, None] < first_bad(samples.bad)
        for detector, engine in zip((Forecast(), Published("BEFORE"), Published("AFTER")), entry["engines"], strict=True):
            verdict = detector.judge(samples)
            assert int((verdict.alarms & before).sum()) == engine["alarms"], (trace.name, detector.name)
            if entry["first_incident"]:
                op = entry["first_incident"]["op"]
                bad = int(first_bad(samples.bad)[op])
                assert lead_steps(verdict.standing(op), trace.step, bad) == engine["lead_steps"] > 0, detector.name
                compared += 1
            compared += 1
    assert compared == 3 * 3 + 3


@needs_reference
def test_the_settings_that_are_shown_are_the_reset_values():
    told = Forecast().settings
    assert told == {"headroom_bits": 3, "headroom_scaled_bits": 0.625, "horizon_shift": 2, "horizon_shift_fp8": 1,
                    "baseline_shift": 4, "max_lag_bits": 3, "jump_bits": 3, "jump_headroom_bits": 8}
    assert CONFIG_RESET["jump_headroom_scaled"] == 0  # what docs/evaluation.md says of jumps under a loss scale
    assert Forecast().threshold == Forecast(jump=False).threshold == -told["headroom_bits"]
    assert Forecast().threshold in Forecast().sweep and Forecast().config_at(-1.25) == {"forecast_headroom": 40}
    assert Forecast(jump=False).settings == {key: value for key, value in told.items() if not key.startswith("jump")}


@needs_reference
def test_forecast_sees_a_ramp_and_operators_are_independent():
    ramp = np.minimum(np.float32(2.0) ** np.linspace(0, 15.9, 160, dtype=np.float32), 65504)  # 0.1 bit a step
    steady = np.full(160, 30000, np.float32)
    samples = Samples.of(trace_of(ramp, steady, format="FP16"))
    verdict = Forecast().judge(samples)
    first = int(verdict.alarms[:, 0].argmax())
    assert 15.99 - np.log2(ramp[first]) < 3 and verdict.alarms[first:, 0].all()  # it opens with the gate of 3 bits
    assert not verdict.alarms[:, 1].any()  # near the limit, but not moving
    assert verdict.standing(0).tolist() == [False] * first + [True] * (160 - first)
    alone = Forecast().judge(Samples.of(trace_of(ramp, format="FP16")))
    assert np.array_equal(alone.alarms[:, 0], verdict.alarms[:, 0])


@needs_reference
def test_the_sweeps_move_the_thresholds_of_the_device():
    trace = Trace.read(next(file for file in CAPTURED if file.stem == "near_limit"))
    samples = Samples.of(trace)
    for detector in (Forecast(), Forecast(jump=False), Published("BEFORE"), Published("AFTER")):
        counts = [int(verdict.alarms.sum()) for verdict in detector.judge_sweep(samples)]
        assert len(counts) == len(detector.sweep) and max(counts) > min(counts)
        ordered = [count for _, count in sorted(zip(detector.sweep, counts))]
        assert ordered == sorted(ordered, reverse=True)  # a higher threshold never raises more
        assert counts[detector.sweep.index(detector.threshold)] == int(detector.judge(samples).alarms.sum())


@needs_reference
def test_published_after_never_passes_its_cap():
    series = np.concatenate([np.random.default_rng(SEED).uniform(0.9, 1.1, 300), [1e6]]).astype(np.float32)
    samples = Samples.of(trace_of(series))
    assert Published("AFTER").judge(samples, 7.9).alarms[300, 0] and not Published("AFTER").judge(samples, 8.0).alarms.any()
    assert Published("BEFORE").judge(samples, 100.0).alarms[300, 0]


@needs_reference
def test_the_binding_refuses_what_it_cannot_use():
    good = arguments_of(trace_of([1, 2, 3]))
    with pytest.raises(ValueError, match="no_such_field: is no configuration field"):
        module().run(**good, config={"no_such_field": 1})
    with pytest.raises(ValueError, match="forecast_headroom: is not a whole number in 0..1023"):
        module().run(**good, config={"forecast_headroom": 5000})
    with pytest.raises(ValueError, match="forecast_headroom: is not a whole number"):
        module().run(**good, config={"forecast_headroom": 1.5})
    with pytest.raises(ValueError, match="z_threshold"):
        module().run(**good, config={"z_threshold": -1})
    with pytest.raises(ValueError, match="format: 9 is no format code"):
        module().run(**{**good, "format": np.array([9], np.uint8)})
    with pytest.raises(ValueError, match="nonfinite: has another shape"):
        module().run(**{**good, "nonfinite": np.zeros((2, 1), np.uint32)})


@needs_reference
def test_a_missing_reference_is_named(tmp_path, monkeypatch):
    module.cache_clear()
    monkeypatch.setenv("OPD_BUILD", str(tmp_path))
    try:
        with pytest.raises(ReferenceMissing, match="run scripts/setup"):
            module()
    finally:
        module.cache_clear()
