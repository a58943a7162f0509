"""opd.guard where a downshifted module meets its neighbours: operands of several types, casts to 8 bits, a format that is too narrow to go
back to.

Testplan: GRD-07.
"""
from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.guard import joins, modes  # noqa: E402
from opd.guard.holding import Holding  # noqa: E402
from opd.guard.modes import Plan  # noqa: E402
from opd.guard.monitor import Operator  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.registers import Mode  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False
needs_reference = pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")
HALF, BF16 = torch.float16, torch.bfloat16


def downshifted(model: nn.Module, **plans: Plan) -> modes.Modes:
    """Modes of a model, by the names of its modules. An error of ours fails the test."""
    def failed(error):
        raise error
    made = modes.Modes(dict(model.named_modules()), set(), lambda name, number: HALF, failed)
    made.apply(plans)
    return made


class Joins(nn.Module):
    """Two linear layers whose outputs are put together by a function that takes one type only."""

    def __init__(self, function):
        super().__init__()
        self.left, self.right, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.left(x), self.right(x))


def put(a, b):
    total = a.clone()
    total[torch.tensor([0, 1])] = b[:2]
    return total


def add_in_place(a, b):
    return a.clone().index_add_(0, torch.tensor([1]), b[:1])


FUNCTIONS = {"cat": lambda a, b: torch.cat((a, b)), "stack": lambda a, b: torch.stack((a, b)), "lerp": lambda a, b: torch.lerp(a, b, 0.5),
             "index_add": lambda a, b: a.index_add(0, torch.tensor([0]), b[:1]), "index_copy": lambda a, b: a.index_copy(0, torch.tensor([0]), b[:1]),
             "scatter_add": lambda a, b: a.scatter_add(0, torch.zeros(3, 4, dtype=torch.long), b), "put": put, "in place": add_in_place,
             "promoted": lambda a, b: a.index_add(0, torch.tensor([0]), (a * b)[:1])}


@pytest.mark.parametrize("level", [Mode.STABLE, Mode.SAFE], ids=lambda level: level.name)
@pytest.mark.parametrize("first", ["left", "right"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_downshifted_neighbour_does_not_end_the_run(name, first, level):
    """FP16 autocast and torch refuse these mixtures; what comes out is that of the run in FAST, rounded otherwise."""
    torch.manual_seed(0)
    model, x = Joins(FUNCTIONS[name]), torch.randn(3, 4)
    with torch.autocast("cpu", HALF):
        fast = model(x)
        made = downshifted(model, **{first: Plan(level)})
        out = model(x)
        made.remove()
        assert torch.equal(model(x), fast)
    assert torch.allclose(out.float(), fast.float(), atol=0.02)
    out.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_value_that_fp16_does_not_hold_makes_all_of_them_bf16():
    model = Joins(lambda a, b: torch.cat((a, b)))
    with torch.no_grad():
        model.left.weight.fill_(3e4)
    with torch.autocast("cpu", HALF):
        downshifted(model, left=Plan(Mode.STABLE))
        out = model(torch.ones(3, 4))
        assert out.dtype == BF16 and out.isfinite().all() and float(out.detach().max()) > 1e5
        small = model(torch.full((3, 4), 0.1))
    assert small.dtype == HALF


def test_an_error_of_the_script_stays_its_own():
    fits = lambda x: True  # noqa: E731
    for func, operands in ((torch.matmul, (torch.ones(2, 3), torch.ones(2, 3))), (torch.cat, ((torch.ones(2, 3, dtype=HALF), torch.ones(3, 4)),))):
        with pytest.raises(RuntimeError) as plain:
            func(*operands)
        tensors = [x for x in torch.utils._pytree.tree_leaves(operands)]
        with pytest.raises(RuntimeError) as ours:
            joins.call(func, operands, {}, lambda: tensors, fits)
        assert str(ours.value) == str(plain.value)


class Eight(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


@pytest.mark.parametrize("level", [Mode.STABLE, Mode.SAFE], ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_cast_to_eight_bits_becomes_one_to_bf16(dtype, level):
    model, x = nn.Sequential(Eight(dtype), nn.Identity()), torch.tensor([1.0, 1e5], dtype=torch.float32)
    assert model[0](x).dtype == dtype
    made = downshifted(model, **{"0": Plan(level)})
    assert model(x).dtype == BF16 and torch.equal(model(x), x.bfloat16())
    made.remove()
    assert model[0](x).dtype == dtype
    made = downshifted(model, **{"1": Plan(level)})
    assert model[0](x).dtype == dtype, "another module's mode"


class Settings:
    """What is locked."""

    def __init__(self):
        self.locked: list[tuple[int, bool]] = []

    def set_operator(self, op, mode=None, locked=None, disabled=None):
        self.locked.append((op, locked))


def test_an_operator_is_held_while_its_own_format_is_too_narrow():
    device, holding = Settings(), Holding()
    eight, half, wide = Operator(0, "a", "activation", "E4M3"), Operator(1, "b", "activation", "FP16"), Operator(2, "c", "activation", "BF16")
    gradient = Operator(3, "d", "gradient", "FP16")
    modes_ = np.array([Mode.STABLE] * 4, np.uint8)
    large = [(eight, 300.0), (half, 4e4), (wide, 1e30), (gradient, 1e30)]
    assert holding.update(device, large, modes_) == (["a", "b"], []) and device.locked == [(0, True), (1, True)]
    assert holding.update(device, large, modes_) == ([], []) and len(device.locked) == 2
    assert holding.update(device, [(eight, 200.0), (half, 4e4)], modes_) == ([], ["a"])
    modes_[1] = Mode.SAFE  # its time in SAFE is not stretched
    assert holding.update(device, [(half, 1e6)], modes_) == ([], ["b"])
    modes_[0] = Mode.FAST
    assert holding.update(device, [(eight, 448.0)], modes_) == ([], []) and device.locked[2:] == [(0, False), (1, False)]


@needs_reference
def test_a_product_that_stays_large_is_stopped_once():
    """Without holding it would go back to FAST every 16 steps and be stopped there again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(1e5)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=256.0)
    with opd.guard(model, optimizer, scaler=scaler, probes="output") as guard:
        for x in guard.batches([torch.rand(8, 4) + 0.5 for _ in range(60)]):
            optimizer.zero_grad()
            with torch.autocast("cpu", HALF):
                loss = model(x).float().square().mean()
            guard.step(loss)
        summary = guard.summary()
        assert guard.modes()["0"] == "STABLE"
    assert summary["stopped"] == summary["retries"] == 1 and summary["dropped"] == 0 and summary["steps"] == 60
    held = [decision for decision in guard.decisions if decision["event"] == "held"]
    assert held[0]["operators"] == ["0"] and not held[0]["released"]


@needs_reference
def test_statistics_of_a_batch_norm_go_back_with_a_dropped_batch():
    """PyTorch's kernels write them without counting it in the buffer's version."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    batches = [torch.randn(8, 4) for _ in range(6)]
    batches[3][0, 0] = float("nan")
    with opd.guard(model, optimizer) as guard:
        for i, x in enumerate(guard.batches(batches)):
            before = model[1].running_mean.clone()
            optimizer.zero_grad()
            reached = guard.step(model(x).square().mean())
            if i == 3:
                assert not reached and torch.equal(model[1].running_mean, before)
    assert guard.summary()["dropped"] == 1 and model[1].running_var.isfinite().all()
