"""opd.device: the SystemC and the RTL device, driven by their registers and ports, against the reference.

Testplan: COS-01.
"""
from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opd.device import KINDS, Device, Hints, largest
from opd.device_config import DeviceConfig
from opd.reference import ReferenceMissing, module, simulated_devices
from opd.registers import PROFILES, Cause, Flag, Format, Mode

try:
    module(), simulated_devices()
except ReferenceMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

LARGEST = {Format.FP16: 0x7BFF, Format.BF16: 0x7F7F, Format.E4M3: 0x7E, Format.E5M2: 0x7B, Format.FP32: 0x7F7FFFFF}
# Every transition of the controller is met often, and both engines are in the risk.
RESTLESS = {"quiet_steps": 5, "safe_steps": 3, "baseline_reseed_run": 3, "forecast_headroom_scaled": 60, "jump_headroom_scaled": 300,
            "weight_z": 128, "weight_d2": 64, "z_threshold": 1.5, "z_threshold_desensitised": 2.5, "published_min_samples": 4,
            "published_alpha": 0.125}
OPS = 48


@pytest.fixture
def devices():
    """The devices that it made are closed: the process has one SystemC device."""
    made = []

    def make(kind: str, *arguments, **options) -> Device:
        made.append(Device(kind, *arguments, **options))
        return made[-1]
    yield make
    for device in made:
        device.close()


class Stream:
    """Random completions: magnitudes that drift and jump in bits, so that they come near the limit of their format and leave it again."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.format = self.rng.integers(0, len(Format), OPS).astype(np.uint8)
        self.level = self.rng.uniform(0.6, 1.0, OPS)  # of the largest magnitude, in its bits
        self.scaled = self.rng.random(OPS) < 0.3
        self.sick = np.zeros(OPS, int)  # steps in which it is non-finite
        self.step = 0

    def next(self) -> tuple[int, dict]:
        rng = self.rng
        self.step = int(self.step + rng.integers(1, 4)) if rng.random() < 0.97 else max(0, self.step - 6)
        op = np.concatenate([np.flatnonzero(rng.random(OPS) < 0.8), rng.integers(0, OPS, rng.integers(0, 5))]).astype(np.uint16)
        if rng.random() < 0.05:
            op = op[:0]
        self.format[rng.integers(0, OPS)] = rng.integers(0, len(Format))  # an operator in another mode has another format
        self.level = np.clip(self.level + rng.normal(0, 0.004, OPS) + (rng.random(OPS) < 0.02) * rng.uniform(-0.2, 0.2, OPS), 0.4, 1)
        format = self.format[op]
        most = np.array([LARGEST[Format(code)] for code in format], np.float64)
        max_mag = np.where(rng.random(len(op)) < 0.02, 0, np.floor(self.level[op] * most)).astype(np.uint32)
        self.sick = np.where(rng.random(OPS) < 0.02, rng.integers(1, 7, OPS), np.maximum(self.sick - 1, 0))
        nonfinite = np.where(self.sick[op] > 0, rng.integers(1, 2**32, len(op)), 0).astype(np.uint32)
        elements = rng.integers(1, 2**32, len(op)).astype(np.uint32)
        scale_log2 = np.where(self.scaled[op], rng.integers(-128, 128), 0).astype(np.int8)
        return self.step, {"op": op, "format": format, "max_mag": max_mag, "element_count": elements, "nonfinite": nonfinite,
                           "saturated": np.where(max_mag == most, rng.integers(1, 9, len(op)), 0).astype(np.uint32),
                           "scale_log2": scale_log2}


def same(left, right) -> None:
    assert left.records.dtype == right.records.dtype
    for name in left.records.dtype.names:
        assert np.array_equal(left.records[name], right.records[name]), name
    assert left.records.tobytes() == right.records.tobytes()
    assert left.events == right.events and np.array_equal(left.modes, right.modes)
    assert (left.hints, left.escalate, left.last_clean_step) == (right.hints, right.escalate, right.last_clean_step)


@pytest.mark.parametrize(("seed", "config"), [(1, RESTLESS), (2, {}), (3, PROFILES["published"]),
                                              (4, DeviceConfig("published", {"published_order": 1})),
                                              (5, {**RESTLESS, "quiet_steps": 1, "safe_steps": 1, "hint_learning_rate_factor": 30000}),
                                              (6, {**RESTLESS, "control_enable": 0})],
                         ids=["restless", "reset", "published", "after", "quick", "off"])
def test_the_three_devices_are_one(devices, seed, config):
    """Every record, event, mode and hint, the last clean step and the state of operators, after every step of a random run with
    commands, locks and announced learning rates between the steps; SystemC and RTL in every clock."""
    three = {kind: devices(kind, OPS, config) for kind in KINDS}
    stream, rng = Stream(seed), np.random.default_rng(seed + 100)
    causes, flags, formats, modes, hints, completions, clean = Counter(), 0, set(), set(), set(), 0, set()
    for _ in range(80):
        step, completed = stream.next()
        if rng.random() < 0.1:
            for device in three.values():
                device.announce_learning_rate(step)
        outcomes = {kind: device.step(step, **completed) for kind, device in three.items()}
        for kind in ("systemc", "rtl"):
            same(outcomes["cpu"], outcomes[kind])
        assert outcomes["cpu"].cycles == 0 and outcomes["rtl"].cycles == outcomes["systemc"].cycles > 10 * len(completed["op"])
        for _ in range(rng.integers(0, 3)):
            op = int(rng.integers(0, OPS))
            chosen = {"mode": int(rng.integers(0, 3)), "locked": bool(rng.random() < 0.3), "disabled": bool(rng.random() < 0.2)}
            for name in [name for name in chosen if rng.random() < 0.4]:
                chosen[name] = None
            settings = [device.set_operator(op, **chosen) for device in three.values()]
            assert settings[0] == settings[1] == settings[2]
            assert all(new is None or getattr(settings[0], name) == new for name, new in chosen.items())
        op = int(rng.integers(0, OPS))
        assert three["cpu"].operator(op) == three["systemc"].operator(op) == three["rtl"].operator(op)
        assert three["systemc"].cycles == three["rtl"].cycles
        found = outcomes["cpu"]
        causes.update(event.cause for event in found.events)
        flags |= int(np.bitwise_or.reduce(found.records["flags"], initial=0))
        formats |= set(found.records["format"].tolist())
        modes |= set(found.modes.tolist())
        hints.add(found.hints)
        clean.add(found.last_clean_step)
        completions += len(completed["op"])
    # The run must have reached what it is for.
    assert completions > 2500 and formats == set(Format) and len(clean) > 3
    if seed in (1, 5):
        assert set(causes) == set(Cause) - {Cause.NONE} and modes == set(Mode) and len(hints - {Hints()}) == 2
        assert flags & 0xFF == 0xFF and flags >> Flag.Z_HALF & 1
    if seed == 6:
        assert not causes


def one(number: int = 0, **replaced) -> dict:
    """A completion of an FP16 operator that holds a NaN."""
    made = {"op": np.array([number], np.uint16), "format": np.zeros(1, np.uint8), "max_mag": np.full(1, 0x3C00, np.uint32),
            "element_count": np.full(1, 64, np.uint32), "nonfinite": np.ones(1, np.uint32)}
    return {**made, **replaced}


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_operator_that_there_can_be(devices, kind):
    device = devices(kind, largest(kind))
    outcome = device.step(0, **one(device.num_ops - 1))
    assert outcome.modes.shape == (device.num_ops,) and np.flatnonzero(outcome.modes).tolist() == [device.num_ops - 1]
    assert outcome.hints != Hints() and outcome.events[0].op == device.num_ops - 1
    assert device.operator(device.num_ops - 1).mode == Mode.STABLE
    assert largest("rtl") < largest("systemc") == largest("cpu") == 65536


def test_several_rtl_devices_do_not_know_of_each_other(devices):
    configs = [RESTLESS, {}, PROFILES["published"]]
    pairs = [(devices("cpu", OPS, config), devices("rtl", OPS, config)) for config in configs]
    streams = [Stream(seed) for seed in (20, 21, 22)]
    for i in range(30):
        for (reference, rtl), stream in zip(pairs, streams):
            step, completed = stream.next()
            same(reference.step(step, **completed), rtl.step(step, **completed))
        if i == 15:
            pairs.pop(0)[1].close()
            streams.pop(0)


def test_one_systemc_device_after_the_other(devices):
    """The second starts from a reset, whatever the first has been through."""
    first = devices("systemc", OPS, RESTLESS)
    for _ in range(10):
        first.step(*_positional(Stream(30).next()))
    with pytest.raises(RuntimeError, match="one SystemC device and it is in use; close the other one first"):
        Device("systemc", 4)
    assert first.step(0, **one()).events  # the refusal has changed nothing
    first.close()
    first.close()
    with pytest.raises(RuntimeError, match="the device is closed"):
        first.step(0, **one())
    second, reference, stream = devices("systemc", 2 * OPS), devices("cpu", 2 * OPS), Stream(31)
    for _ in range(20):
        step, completed = stream.next()
        same(reference.step(step, **completed), second.step(step, **completed))


def _positional(made):
    step, completed = made
    return (step, *completed.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_in_another_thread(devices, kind):
    device, reference = devices(kind, OPS), devices("cpu", OPS)
    stream = Stream(40)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            step, completed = stream.next()
            same(reference.step(step, **completed), pool.submit(device.step, step, **completed).result())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"op": np.array([4], np.uint16)}, ValueError, "op: 4 is none of the unit's 4"),
    ({"format": np.full(1, 9, np.uint8)}, ValueError, "format: 9 is no format code"),
    ({"max_mag": np.full(1, 0x7C00, np.uint32)}, ValueError, "max_mag: 31744 is no finite magnitude of its format"),
    ({"max_mag": np.full(2, 1, np.uint32)}, ValueError, r"max_mag: is not \[completions\] as op is"),
    ({"saturated": np.zeros(2, np.uint32)}, ValueError, "saturated: is not"),
    ({"op": np.zeros((1, 1), np.uint16)}, ValueError, "op: is not")], ids=["op", "format", "magnitude", "shape", "saturated", "rank"])
def test_a_device_refuses_what_it_cannot_take(devices, kind, arguments, error, text):
    device = devices(kind, 4)
    with pytest.raises(error, match=text):
        device.step(0, **one(**arguments))
    assert device.step(0, **one()).records["seq"].tolist() == [0]  # nothing of it was given to the device


@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_are_refused(devices, kind):
    device = devices(kind, 4)
    for call in (lambda: device.operator(4), lambda: device.set_operator(4, mode=1)):
        with pytest.raises(IndexError, match=r"op: 4 must be 0\.\.3"):
            call()
    with pytest.raises(ValueError, match="mode"):
        device.set_operator(0, mode=3)
    assert device.operator(0) == (0, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_devices_that_cannot_be_made(kind):
    most = largest(kind)
    for num_ops in (0, most + 1):
        remedy = "; the RTL is built" if num_ops and kind == "rtl" else "$"
        with pytest.raises(ValueError, match=f"num_ops: {num_ops} must be 1..{most}{remedy}"):
            Device(kind, num_ops)
    with pytest.raises(ValueError, match="nothing: is no configuration field"):
        Device(kind, 4, {"nothing": 1})
    with pytest.raises(ValueError, match="baseline_shift: is not a whole number in 1..8"):
        Device(kind, 4, {"baseline_shift": 9})
    with pytest.raises(ValueError, match="(?i)alpha"):
        Device(kind, 4, {"published_alpha": float("nan")})
    Device(kind, 4).close()
    with pytest.raises(ValueError, match="kind: 'fpga' is unknown; use one of cpu, systemc, rtl"):
        Device("fpga", 4)


def test_what_is_not_built_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_BUILD", str(tmp_path))
    simulated_devices.cache_clear()
    try:
        with pytest.raises(ReferenceMissing, match="opd/_device: the SystemC and RTL devices are not built .* --target opd_device_python"):
            Device("rtl", 4)
        assert Device("cpu", 4).step(0, **one()).events
    finally:
        simulated_devices.cache_clear()


def test_what_a_completion_costs_is_a_table(capsys):
    from opd.device_bench import main
    main(["--operators", "4", "--steps", "2", "--rounds", "1"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == list(KINDS) and all(float(cell) > 0 for row in rows[3:] for cell in row[1:])
    with pytest.raises(SystemExit) as exit:
        main(["--operators", "0"])
    assert exit.value.code == 2 and "num_ops: 0 must be 1..65536" in capsys.readouterr().err
