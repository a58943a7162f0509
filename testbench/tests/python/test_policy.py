"""opd replay --policy: a policy commands every path alike, what the shipped ones do, and what happens to one that fails.

Testplan: POL-01.
"""
import hashlib
import json
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from opd.policy import compare
from opd.policy.device import ALL, SET, Device
from opd.policy.host import operators_of
from opd.policy.load import load
from opd.records import RECORD
from opd.registers import Mode
from opd.report import read_records
from pages import script
from test_replay import LOCKSTEP_PATHS, PROGRAM, ROOT, opd, small_trace

SHIPPED = ROOT / "sw_reference/python/opd/policy"
STATIC, LOSS_SCALE = SHIPPED / "static_headroom.py", SHIPPED / "loss_scale_only.py"
OVERFLOW = ROOT / "traces/captured/qk_overflow.safetensors"
WINDOWS = sorted((ROOT / "traces/operands").glob("*.safetensors"))
HEAD = "from opd.policy import Hints, Policy\nfrom opd.registers import Mode\n"  # two lines

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")

RANDOM = HEAD + """
import random

class Random(Policy):
    def __init__(self):
        self.random = random.Random({seed})

    def start(self, operators, device):
        self.command(device, 0)

    def on_step(self, step, device):
        self.command(device, step.number + 1)

    def command(self, device, step):
        draw = self.random
        for _ in range(draw.randrange(4)):
            op = draw.randrange(len(device.operators))
            draw.choice([
                lambda: device.set_operator(op, mode=draw.choice([None, *Mode]), locked=draw.choice([None, True, False]),
                                            disabled=draw.choice([None, False, False, True])),
                lambda: device.reseed(op), lambda: device.clear(op), lambda: device.announce_learning_rate(step),
                lambda: device.configure(risk_stable=draw.randrange(1, 256), quiet_steps=draw.randrange(1, 20),
                                         z_threshold=draw.uniform(0, 9), weight_z=draw.randrange(256)),
                lambda: device.set_hints(draw.choice([None, Hints(-draw.randrange(9), -1, draw.random())])),
            ])()
"""


def written(folder: Path, text: str, name: str = "policy.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def replayed(out: Path, *arguments) -> dict:
    opd("replay", *arguments, "--out", out)
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def drift(tmp_path_factory) -> Path:
    """Values that grow beyond their formats."""
    path = tmp_path_factory.mktemp("drift") / "drift.safetensors"
    small_trace(steps=40, name="drift", scale=9000.0).write(path)
    return path


# --- the paths ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed, extra", [(1, []), (2, ["--streams", "4", "--bubbles", "0"]), (3, ["--profile", "published"]),
                                         (4, ["--compute"])])
def test_the_paths_stay_equal_under_random_commands(tmp_path, drift, seed, extra):
    policy = written(tmp_path, RANDOM.format(seed=seed))
    traces = WINDOWS if "--compute" in extra else [OVERFLOW, drift]
    summary = replayed(tmp_path / "out", *traces, "--policy", policy, *extra)
    assert summary["verdict"] == "equal" and summary["events_compared"] > 20
    for trace in summary["traces"]:
        assert trace["paths"] == LOCKSTEP_PATHS and trace["records_compared"] > 100
        assert min(trace["policy"]["commands"].values()) > 0, "a command was never drawn"
        assert 0 < trace["modes"]["outside_fast"] < 1
        assert trace["paths_skipped"]["cuda"]


def test_whoever_is_asked_the_records_are_the_same(tmp_path, drift):
    """The first path that runs asks; what it sees is the same on every path."""
    policy = written(tmp_path, RANDOM.format(seed=5))
    seen = []
    for paths in ("rtl,cpu", "systemc-lt,cpu", "cpu"):
        out = tmp_path / paths
        opd("replay", drift, "--policy", policy, "--paths", paths, "--out", out, expect=2 if paths == "cpu" else 0)
        seen.append((out / "drift.cpu.records").read_bytes())
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 40 * 6 * RECORD.itemsize


def test_a_policy_that_commands_nothing_changes_no_record(tmp_path, drift):
    policy = written(tmp_path, HEAD + "class Silent(Policy):\n    pass\n")
    replayed(tmp_path / "with", drift, "--policy", policy)
    replayed(tmp_path / "without", drift)
    for path in LOCKSTEP_PATHS:
        assert (tmp_path / "with" / f"drift.{path}.records").read_bytes() == (tmp_path / "without" / f"drift.{path}.records").read_bytes()


@pytest.mark.parametrize("fault", LOCKSTEP_PATHS)
def test_a_planted_fault_is_found_under_a_policy(drift, fault):
    assert "MISMATCH in drift" in opd("replay", drift, "--policy", STATIC, "--plant-fault", fault, expect=1).stdout


def test_a_command_takes_effect_before_the_next_step(tmp_path, drift):
    """Locked in a mode after step 10, every record from step 11 on has it, and none before."""
    policy = written(tmp_path, HEAD + "class Late(Policy):\n    def on_step(self, step, device):\n        if step.number == 10:\n"
                     "            device.set_operator(0, mode=Mode.SAFE, locked=True)\n            assert device.modes[0] == Mode.SAFE\n"
                     "    def start(self, operators, device):\n        device.set_operator(0, locked=True)\n")
    summary = replayed(tmp_path / "out", drift, "--policy", policy)
    records = read_records(tmp_path / "out" / "drift.rtl.records")
    own = records[records["op"] == 0]
    assert (own["mode"][:11] == Mode.FAST).all() and (own["mode"][11:] == Mode.SAFE).all()
    assert summary["traces"][0]["modes"]["issued"]["SAFE"] >= 29
    assert summary["traces"][0]["policy"]["commands"] == {name: 2 * (name == SET) for name in ALL}


def test_a_policy_sees_what_the_device_recorded(tmp_path, drift):
    """Records, events, hints and modes that a policy is shown against the files of the replay."""
    seen = tmp_path / "seen.jsonl"
    policy = written(tmp_path, HEAD + f"""
import json
class Scribe(Policy):
    def start(self, operators, device):
        self.file = open({str(seen)!r}, "w")
        self.records = self.events = 0
        print(json.dumps([list(operator) for operator in operators]), file=self.file, flush=True)
    def on_record(self, record, device):
        assert record.step >= 0 and device.operators[record.op].op == record.op
        self.records += 1
    def on_event(self, event, device):
        self.events += 1
    def on_step(self, step, device):
        print(json.dumps([step.number, self.records, self.events, step.records.tolist(), device.modes.tolist(),
                          step.hints.loss_scale_shift, step.headroom.tolist()]), file=self.file, flush=True)
""")
    summary = replayed(tmp_path / "out", drift, "--policy", policy)
    operators, *steps = map(json.loads, seen.read_text().splitlines())
    assert operators == [[i, f"op{i}", "gradient" if i == 1 else "activation", name]
                         for i, name in enumerate(("FP16", "FP16", "BF16", "E4M3", "E5M2", "FP32"))]
    records = read_records(tmp_path / "out" / "drift.cpu.records")
    assert np.array(sum(([tuple(record) for record in step[3]] for step in steps), []), RECORD).tobytes() == records.tobytes()
    assert [step[0] for step in steps] == list(range(40)) and steps[-1][1] == len(records)
    assert steps[-1][2] == len(summary["traces"][0]["host"]["events"]) > 0
    modes = np.zeros(6, int)
    for number, _, _, own, shown, shift, headroom in steps:
        for record in own:
            modes[record[2]] = record[4]
        assert shown == modes.tolist()
        assert shift == (-8 if modes.any() else 0)
        assert headroom[0] == pytest.approx(np.log2(65504) - np.log2(float(np.uint16(own[0][5]).view(np.float16))))


def test_the_policy_is_in_the_results(tmp_path, drift):
    summary = replayed(tmp_path / "with", drift, "--policy", STATIC)
    assert summary["policy"] == {"file": "static_headroom.py", "class": "StaticHeadroom",
                                 "sha256": hashlib.sha256(STATIC.read_bytes()).hexdigest()}
    page = (tmp_path / "with" / "report.html").read_text()
    assert "<h2>Policy</h2>" in page and "static_headroom.py" in page and summary["policy"]["sha256"][:16] in page
    without = replayed(tmp_path / "without", drift)
    assert without["policy"] is None and without["traces"][0]["policy"] is None
    assert sum(without["traces"][0]["modes"]["issued"].values()) == 40 * 6
    assert "<h2>Policy</h2>" not in (tmp_path / "without" / "report.html").read_text()


# --- the shipped policies -------------------------------------------------------------------------------------------------

def test_static_headroom_follows_its_rule_and_nothing_else(tmp_path):
    summary = replayed(tmp_path, OVERFLOW, "--policy", STATIC)["traces"][0]
    records = read_records(tmp_path / "qk_overflow.cpu.records")
    assert not set(np.unique(records["cause"])) - {0, 5}, "the controller decided"
    first = summary["first_incident"]
    own = records[records["op"] == first["op"]]
    largest = own["max_mag"].astype(np.uint16).view(np.float16).astype(float)
    crossed = own["step"][np.log2(65504 / largest) <= 1.0]
    assert crossed[0] == first["step"] - first["lead_steps"] and first["mode_before"] == "STABLE"
    assert (own["mode"][own["step"] <= crossed[0]] == Mode.FAST).all()


def test_loss_scale_only_leaves_every_operator_in_fast(tmp_path):
    summary = replayed(tmp_path, OVERFLOW, "--policy", LOSS_SCALE)["traces"][0]
    assert summary["modes"]["outside_fast"] == 0 and summary["modes"]["incidents"]["FAST"] == len(summary["incidents"]) > 0
    factors = [change["factors"] for change in summary["host"]["hints"]]
    assert [f["loss_scale"] for f in factors] == [2.0**-i for i in range(1, 9)]
    assert all(f["clip_threshold"] == f["learning_rate"] == 1 for f in factors)
    assert not read_records(tmp_path / "qk_overflow.rtl.records")["mode"].any()


def test_the_shipped_windows_under_a_policy_are_as_committed(tmp_path):
    """Counts, no times: they do not depend on the machine."""
    measurement = script("measured_tables").measurement
    summary = replayed(tmp_path, "--compute", *WINDOWS, "--policy", STATIC)
    assert measurement.overflows(summary) == measurement.load("policies")["windows"]["StaticHeadroom"], "run scripts/measure policies"


def test_replays_are_compared_by_label(tmp_path, drift, capsys):
    replayed(tmp_path / "one", drift, "--paths", "systemc-lt,cpu")
    replayed(tmp_path / "two", drift, "--paths", "systemc-lt,cpu", "--policy", LOSS_SCALE)
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    heading, built_in, policy = capsys.readouterr().out.splitlines()
    assert heading.startswith("label") and built_in.split()[:4] == ["data", "1", "built-in", "controller"]
    assert policy.split()[:4] == ["LossScaleOnly", "7", "0.000", "%"] and "0.000" not in built_in
    assert compare.main([str(tmp_path)]) == 2
    assert re.fullmatch(r"opd: .*summary\.json: is no summary of this version \(FileNotFoundError\); run .* again\n", capsys.readouterr().err)


# --- failing --------------------------------------------------------------------------------------------------------------

CLASS = HEAD + "class Mine(Policy):\n"
FAILURES = {
    "no class": ("x = 1\n", "{file}: has no class of opd.policy.Policy; write one"),
    "two classes": (HEAD + "class A(Policy): pass\nclass B(Policy): pass\n", "{file}:3: has the policies A, B; name one as {file}:A"),
    "syntax": (HEAD + "class A(Policy)\n", "{file}:3: SyntaxError: expected ':'"),
    "import": ("import nowhere_to_be_found\n", "{file}:1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    "body": ("\nraise SystemExit(0)\n", "{file}:2: SystemExit: 0"),
    "constructor": (CLASS + "    def __init__(self):\n        raise ValueError('two\\nlines')\n",
                    "{file}:5: ValueError: two lines (in __init__, trace"),
    "constructor's arguments": (CLASS + "    def __init__(self, bits):\n        pass\n", "{file}:4: TypeError: "),
    "start": (CLASS + "    def start(self, operators, device):\n        operators[99]\n",
              "{file}:5: IndexError: list index out of range (in start,"),
    "record": (CLASS + "    def on_record(self, record, device):\n        record.risky\n", "{file}:5: AttributeError: "),
    "event": (CLASS + "    def on_event(self, event, device):\n        import sys; sys.exit(0)\n",
              "{file}:5: SystemExit: 0 (in on_event, step "),
    "step": (CLASS + "    def on_step(self, step, device):\n        step.number < 7 or 1 / 0\n",
             "{file}:5: ZeroDivisionError: division by zero (in on_step, step 7, trace drift)"),
    "interrupt": (CLASS + "    def on_step(self, step, device):\n        raise KeyboardInterrupt\n", "{file}:5: KeyboardInterrupt"),
    "signature": (CLASS + "    def on_step(self, step):\n        pass\n", "{file}:4: TypeError: "),
    "helper": (CLASS + "    def on_step(self, step, device):\n        import json\n        json.loads('{')\n",
               "{file}:6: JSONDecodeError: "),
    "error without a text": (CLASS + "    def on_step(self, step, device):\n        class Bad(Exception):\n            def __str__(self):\n"
                             "                raise ValueError\n        raise Bad\n", "{file}:8: Bad (in on_step, step 0,"),
    "no operator": (CLASS + "    def on_step(self, step, device):\n        device.set_operator(6)\n",
                    "{file}:5: ValueError: op: there is no operator 6; they are 0..5 (in on_step, step 0, trace drift)"),
}


@pytest.mark.parametrize("case, paths", [*((case, "systemc-lt,cpu") for case in FAILURES),
                                         *((case, "rtl,cpu") for case in ("start", "step", "signature"))])
def test_a_policy_that_fails_ends_the_replay_with_its_line(tmp_path, drift, case, paths):
    text, wanted = FAILURES[case]
    policy = written(tmp_path, text)
    before = tmp_path / "out"
    before.mkdir()
    (before / "summary.json").write_text("{}")
    result = opd("replay", drift, "--policy", policy, "--paths", paths, "--out", before, expect=2)
    last = result.stderr.rstrip().splitlines()[-1]
    assert last.startswith("opd: " + wanted.format(file=policy)), last
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert [(file.name, file.read_text()) for file in before.iterdir()] == [("summary.json", "{}")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "policy.py"], "something was left beside the policy"


def test_a_policy_that_fails_in_the_second_trace_leaves_nothing_of_the_first(tmp_path, drift):
    other = tmp_path / "other.safetensors"
    small_trace(steps=4, name="other").write(other)
    policy = written(tmp_path, CLASS + "    def start(self, operators, device):\n        pass\n    def on_step(self, step, device):\n"
                     "        if step.number == 30:\n            raise ValueError\n")
    result = opd("replay", other, drift, "--policy", policy, "--out", tmp_path / "out", expect=2)
    assert f"{policy}:8: ValueError (in on_step, step 30, trace drift)" in result.stderr
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name, told", [("missing.py", "cannot be read (No such file or directory)"), (".", "is a folder"),
                                        ("policy.py:Other", "has no policy Other; the policies there are One, Two"),
                                        ("policy.py:Twoo", "has no policy Twoo; did you mean Two?")])
def test_what_is_no_policy_is_named(tmp_path, drift, name, told):
    written(tmp_path, HEAD + "class One(Policy): pass\nclass Two(Policy): pass\n")
    result = opd("replay", drift, "--policy", tmp_path / name, "--out", tmp_path / "out", expect=2)
    assert told in result.stderr and not (tmp_path / "out").exists()


def test_a_class_is_named_and_modules_beside_the_file_are_found(tmp_path, drift):
    written(tmp_path, "bits = 3.5\n", "shared_numbers.py")
    policy = written(tmp_path, HEAD + "from opd.policy import StaticHeadroom\nimport shared_numbers\nclass One(StaticHeadroom):\n"
                     "    def __init__(self):\n        super().__init__(shared_numbers.bits)\n        print('bits', self.bits)\n"
                     "class Two(Policy): pass\n")
    result = opd("replay", drift, "--policy", f"{policy}:One", "--paths", "systemc-lt,cpu")
    assert result.stdout.startswith("bits 3.5\n")


def test_cuda_has_no_commands(tmp_path, drift):
    result = opd("replay", drift, "--policy", STATIC, "--paths", "cpu,cuda", expect=2)
    assert "--paths cuda: a policy's commands come between steps" in result.stderr


def test_what_a_policy_prints_goes_to_the_terminal(tmp_path, drift):
    policy = written(tmp_path, CLASS + "    def on_step(self, step, device):\n        print('step', step.number)\n")
    lines = opd("replay", drift, "--policy", policy, "--paths", "systemc-lt,cpu").stdout.splitlines()
    assert lines[:40] == [f"step {number}" for number in range(40)]
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "replay", drift, "--policy", policy], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2 and "No space left on device" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("paths", ["rtl,cpu", "systemc-lt,cpu"])
def test_one_that_loops_can_be_interrupted(tmp_path, drift, paths):
    mark = tmp_path / "mark"
    policy = written(tmp_path, CLASS + f"    def on_step(self, step, device):\n        open({str(mark)!r}, 'w')\n"
                     "        while True: pass\n")
    process = subprocess.Popen([PROGRAM, "replay", drift, "--policy", policy, "--paths", paths, "--out", tmp_path / "out"],
                               stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    limit = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT  # 130 in a shell
    assert not list((tmp_path / "out").iterdir())


# --- the device of a policy -----------------------------------------------------------------------------------------------

@pytest.fixture
def device() -> Device:
    return Device(operators_of([("a", "activation", "FP16"), ("b", "gradient", "BF16")]), {})


@pytest.mark.parametrize("command, told", [
    (lambda d: d.set_operator(2), "op: there is no operator 2; they are 0..1"),
    (lambda d: d.set_operator(-1), "there is no operator -1"),
    (lambda d: d.set_operator("a"), "op: 'a' is not a whole number"),
    (lambda d: d.set_operator(0, mode=3), "mode: 3 is none"),
    (lambda d: d.set_operator(0, mode="SAFE"), "mode: 'SAFE' is not a whole number"),
    (lambda d: d.set_operator(0, locked=1), "locked: 1 is neither True nor False"),
    (lambda d: d.configure(risk_stabel=1), "did you mean risk_stable?"),
    (lambda d: d.configure(risk_stable=256), "risk_stable: 256 is outside the register's range; give a whole number in 1..255"),
    (lambda d: d.configure(risk_stable=1.5), "1.5 is not a whole number"),
    (lambda d: d.configure(z_threshold=float("nan")), "outside the register's range"),
    (lambda d: d.announce_learning_rate(1 << 32), "step: 4294967296 is not in 0..4294967295"),
    (lambda d: d.set_hints(3), "hints: int is not opd.policy.Hints"),
    (lambda d: d.reseed(None), "op: None is not a whole number"),
])
def test_what_the_device_would_refuse_is_refused_and_changes_nothing(device, command, told):
    with pytest.raises(ValueError, match="^[^\n]*$") as error:
        command(device)
    assert told in str(error.value)
    assert device.take() == [] and not device.modes.any() and not device.locked.any()


def test_commands_are_whole_and_in_order(device):
    device.set_operator(np.uint16(1), mode=Mode.SAFE)
    device.set_operator(1, locked=True)
    device.set_operator(1, disabled=True)
    device.clear(0)
    device.configure(risk_stable=np.int64(9), z_threshold=1 / 3)
    assert device.config["risk_stable"] == 9 and device.config["risk_safe"] == 255
    assert device.take() == [("set", 1, 2, False, False), ("set", 1, 2, True, False), ("set", 1, 2, True, True), ("clear", 0),
                             ("configure", {"risk_stable": 9, "z_threshold": float(np.float32(1 / 3))})]
    assert device.take() == []
    with pytest.raises(ValueError):
        device.modes[0] = 1


def test_a_policy_under_a_second_name_is_one_policy(tmp_path):
    found = load(written(tmp_path, HEAD + "class One(Policy): pass\nAgain = One\n"))
    assert found.cls.__name__ == "One" and found.file == str(tmp_path / "policy.py")
