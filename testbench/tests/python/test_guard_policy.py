"""guard(policy=...): a policy commands the guard's device, and what happens to one that fails.

Testplan: POL-02.
"""
import logging
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.guard import GuardError  # noqa: E402
from opd.guard.device import factory  # noqa: E402
from opd.policy import Hints, LossScaleOnly, Policy, StaticHeadroom  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.registers import Mode  # noqa: E402
from torch import nn  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

torch.set_num_threads(1)
STEPS = 12


class Rising(nn.Module):
    """Two layers; the first one's output is multiplied by `gain`, which a test raises."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.second(self.first(x))


def train(policy, steps: int = STEPS, gain: float = 1.0, **options):
    """gain: factor of the inputs from one step to the next. Returns the guard, and the weights at the end."""
    torch.manual_seed(3)
    model = Rising()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = [torch.randn(16, 8) * gain**i for i in range(steps)]
    with opd.guard(model, optimizer, policy=policy, probes="all", **options) as g:
        for batch in g.batches(batches):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(batch).float().square().mean()
            g.step(loss)
    return g, [p.detach().clone() for p in model.parameters()]


class Watching(Policy):
    def __init__(self):
        self.steps, self.records, self.names = [], 0, []

    def start(self, operators, device):
        self.operators = operators

    def on_record(self, record, device):
        self.records += 1

    def on_step(self, step, device):
        self.steps.append((step.number, len(step.records), float(step.headroom.min())))
        self.names = [operator.name for operator in self.operators]


def test_a_policy_that_commands_nothing_changes_nothing():
    watching = Watching()
    guarded, weights = train(watching)
    plain, plain_weights = train(None)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain_weights))
    assert guarded.decisions == plain.decisions and guarded.summary() == plain.summary()
    assert [number for number, _, _ in watching.steps] == list(range(STEPS))
    assert watching.records == sum(count for _, count, _ in watching.steps) > STEPS
    assert "first" in watching.names and "second" in watching.names
    assert all(0 < headroom < 24 for _, _, headroom in watching.steps)


class Locks(Policy):
    """Puts the first layer into SAFE after step 3 and back after step 6."""

    def on_step(self, step, device):
        op = next((operator.op for operator in step.operators if operator.name == "first"), None)
        if step.number in (3, 6):
            device.set_operator(op, mode=Mode.SAFE if step.number == 3 else Mode.FAST, locked=True)


@pytest.mark.parametrize("policy", [Locks, Locks()])
def test_a_command_acts_on_the_next_step_and_is_logged(policy):
    modes = []

    class Looking(Locks):
        def on_step(self, step, device):
            super().on_step(step, device)
            modes.append(device.modes[next(o.op for o in step.operators if o.name == "first")])

    guarded, _ = train(policy)
    told = [(d["step"], d["operator"], d["old"], d["new"], d["cause"]) for d in guarded.decisions if d["event"] == "mode"]
    assert told == [(3, "first", "FAST", "SAFE", "POLICY"), (6, "first", "SAFE", "FAST", "POLICY")]
    assert guarded.summary()["mode_changes"] == 2 and guarded.summary()["outside_fast"] > 0
    train(Looking)
    assert modes == [Mode.FAST] * 3 + [Mode.SAFE] * 3 + [Mode.FAST] * 6


def test_static_headroom_keeps_a_run_from_overflowing():
    """Values that double each step: at one bit of headroom an operator leaves FAST, before anything is stopped."""
    guarded, weights = train(StaticHeadroom(2.0), steps=20, gain=2.0)
    changed = [d for d in guarded.decisions if d["event"] == "mode"]
    assert changed and all(d["cause"] in ("POLICY", "RECOVERY") for d in changed) and changed[0]["cause"] == "POLICY"
    assert all(torch.isfinite(w).all() for w in weights) and guarded.is_attached is False
    assert guarded.summary()["detached"] is None


def test_loss_scale_only_moves_the_loss_scale_and_no_mode():
    class Alarming(LossScaleOnly):
        """As if a gradient had raised an alarm at step 2."""

        def on_step(self, step, device):
            device.set_hints(Hints(loss_scale_shift=-1)) if step.number == 2 else super().on_step(step, device)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    guarded, _ = train(Alarming, scaler=scaler)
    assert [d for d in guarded.decisions if d["event"] == "mode"] == []
    assert [(d["step"], d["loss_scale_shift"], d["clip_shift"]) for d in guarded.decisions if d["event"] == "hints"] == [(2, -1, 0)]
    assert guarded.summary()["outside_fast"] == 0


def test_a_recovery_comes_before_the_policy():
    """Everything locked in FAST by the policy: what overflows goes to SAFE all the same, and the policy sees it there."""
    seen = []

    class Held(LossScaleOnly):
        def on_step(self, step, device):
            super().on_step(step, device)
            seen.append(int(device.modes.max()))

    guarded, _ = train(Held, steps=20, gain=2.0)
    assert guarded.summary()["stopped"] > 0 and guarded.summary()["detached"] is None
    assert any(d["event"] == "mode" and d["cause"] == "RECOVERY" for d in guarded.decisions) and max(seen) == Mode.SAFE


# --- failing --------------------------------------------------------------------------------------------------------------

class Fails(Policy):
    def on_step(self, step, device):
        if step.number == 5:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), GeneratorExit()])
def test_a_policy_that_fails_takes_the_guard_off_and_the_run_goes_on(error, caplog):
    policy = Fails()
    policy.error = error
    with caplog.at_level(logging.ERROR, "opd.guard"):
        guarded, weights = train(policy)
    line = Fails.on_step.__code__.co_firstlineno + 2
    assert guarded.summary()["detached"].startswith(f"step 5: PolicyError: {__file__}:{line}: {type(error).__name__}")
    assert [d["step"] for d in guarded.decisions if d["event"] == "detached"] == [5]
    _, plain = train(None)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain))
    assert len(caplog.records) == 1


def test_an_interrupt_of_the_run_is_the_runs():
    class Interrupted(Policy):
        def on_step(self, step, device):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Interrupted)


@pytest.mark.parametrize("command", ["reseed(0)", "clear(0)", "configure(risk_stable=3)"])
def test_a_guards_device_takes_the_commands_that_every_device_has(command, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"from opd.policy import Policy\nclass Mine(Policy):\n    def on_step(self, step, device):\n        device.{command}\n")
    guarded, _ = train(str(file))
    told = f"{file}:4: ValueError: {command.partition('(')[0]}: is no command that can be given here; there are set,"
    assert told in guarded.summary()["detached"]


def test_what_is_no_policy_ends_before_training(tmp_path):
    class Picky(Policy):
        def __init__(self, bits):
            pass

    hooks = []
    for policy, told in ((3, "policy: 3 is no policy"), (tmp_path / "none.py", "none.py: cannot be read"), (Picky, f"{__file__}:"),
                         (int, "is no policy")):
        model = Rising()
        with pytest.raises(GuardError, match="^policy: ") as error:
            opd.guard(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)
        assert told in str(error.value)
        hooks += [hook for part in model.modules() for hook in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert hooks == []


def test_a_policy_knows_the_guards_configuration_and_every_device_can_be_commanded():
    seen = {}

    class Asks(Policy):
        def start(self, operators, device):
            seen.update(device.config)

    made = []

    def make(num_ops):
        made.append(factory("cpu", {"risk_stable": 77})(num_ops))
        return made[-1]

    train(Asks, steps=2, config={"risk_stable": 99})
    assert seen["risk_stable"] == 99 and seen["quiet_steps"] == 64
    train(StaticHeadroom, steps=2, device=make)
    assert len(made) == 1


def test_the_shipped_policies_are_files():
    for policy in (StaticHeadroom, LossScaleOnly):
        file = Path(__import__(policy.__module__, fromlist=["x"]).__file__)
        guarded, _ = train(f"{file}:{policy.__name__}", steps=3)
        assert guarded.summary()["detached"] is None and guarded.summary()["steps"] == 3
