"""opd.guard on runs of four processes under DistributedDataParallel (gloo, on the CPU): what it changes of a healthy one (nothing), that
modes are the same on all ranks in every step, and what becomes of a rank that fails, leaves or dies.

Testplan: GRD-04.
"""
from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

import opd  # noqa: E402
import torch._dynamo  # noqa: E402, F401 (DistributedDataParallel imports it: once here, and not in each process)
import torch.distributed as dist  # noqa: E402
from opd.device import Device  # noqa: E402
from opd.guard import GuardError, merging  # noqa: E402
from opd.guard.monitor import Operator, Seen  # noqa: E402
from opd.guard.steps import StepGuard  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.registers import Format  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch is built without gloo", allow_module_level=True)

torch.set_num_threads(1)
RANKS = 4
TIMEOUT = 20.0  # of the run's collectives, seconds


# --- processes


class Died(Exception):
    """A rank ended with a signal or an exception."""


def on_ranks(folder: Path, body: Callable[[int], object], ranks: int = RANKS) -> list:
    """What body(rank) returned in each of the processes of one group, or the Died of it."""
    folder.mkdir(parents=True, exist_ok=True)
    gc.collect()
    gc.freeze()  # else each process copies the heap of this one when it collects garbage
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks,
                                        timeout=timedelta(seconds=TIMEOUT))
                content = pickle.dumps(body(rank))
                (folder / f"result{rank}").write_bytes(content)
                status = 0
            except BaseException:
                (folder / f"error{rank}").write_text(traceback.format_exc())
            finally:
                os._exit(status)
        pids.append(pid)
    gc.unfreeze()
    left, end = dict(enumerate(pids)), time.monotonic() + 3 * TIMEOUT
    status: dict[int, int] = {}
    while left and time.monotonic() < end:
        for rank, pid in list(left.items()):
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                status[rank] = os.waitstatus_to_exitcode(code)
                del left[rank]
        time.sleep(0.01)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not left, f"ranks {sorted(left)} still ran"
    return [pickle.loads((folder / f"result{rank}").read_bytes()) if status[rank] == 0 else
            Died((folder / f"error{rank}").read_text() if (folder / f"error{rank}").exists() else f"signal {-status[rank]}")
            for rank in range(ranks)]


def whole(results: list) -> list:
    for result in results:
        if isinstance(result, Died):
            raise result
    return results


# --- the run


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(-1, -2)).softmax(-1).to(x.dtype) @ self.v(x).to(x.dtype)


class Model(nn.Module):
    """expert: a layer that only runs where the first element of a batch is positive."""

    def __init__(self, expert: bool = False, checkpointed: bool = False, batch_norm: bool = False, width: int = 8):
        super().__init__()
        self.embedding, self.attn, self.norm = nn.Linear(8, width), Attention(width), nn.LayerNorm(width)
        self.bn = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
        self.expert = nn.Linear(width, width) if expert else None
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, width))
        self.head = nn.Linear(width, 1)
        self.checkpointed = checkpointed

    def block(self, x):
        return x + self.mlp(self.norm(self.bn(x + self.attn(x))))

    def forward(self, x):
        chosen = float(x.flatten()[0]) > 0
        x = self.embedding(x)
        x = checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)
        if self.expert is not None and chosen:
            x = x + self.expert(x)
        return self.head(x).mean(1)


def data(rank: int, batches: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    made = [torch.randn(4, 5, 8, generator=generator) for _ in range(batches)]
    return [(x, x[..., :2].sum((1, 2))[:, None] * 0.3) for x in made]


def train(rank: int, options: dict | Callable[[int], dict] | None, *, plant=None, precision=None, accumulate: int = 1, batches=None,
          wrap: dict | None = None, join: bool = False, resume: bool = False, every_step=None, factor=None, **model_options) -> dict:
    """A run of one rank, with a guard (options) or without one (None). plant(rank, model, i, x) -> the input of batch i, which
    counts batches that come again; factor(rank, i): of its loss."""
    torch.manual_seed(0)
    model = Model(**model_options)
    ddp = DistributedDataParallel(model, **(wrap or {}))
    optimizer = torch.optim.AdamW(ddp.parameters(), 3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5) if precision == torch.float16 else None
    batches = data(rank) if batches is None else batches
    torch.manual_seed(7 + rank)
    losses, modes, stepped = [], [], []
    if callable(options):
        options = options(rank)
    g = None if options is None else opd.guard(ddp, optimizer, scaler=scaler, **options)
    with g or nullcontext(), Join([ddp]) if join else nullcontext():
        start = g.resume() if resume else None
        for i, (x, y) in enumerate(batches if g is None else g.batches(batches[start or 0:]), start or 0):
            if plant is not None:
                x = plant(rank, model, i, x)
            if g is not None:
                modes.append((g.step_number, g._attempt, sorted(g.modes().items()), sorted(map(str, g._modes.plans.items()))))
            last = (i + 1) % accumulate == 0
            with nullcontext() if last else ddp.no_sync():
                with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
                    out = ddp(x)
                loss = functional.mse_loss(out.float(), y) / accumulate * (1.0 if factor is None else factor(rank, i))
                if g is None:
                    (loss if scaler is None else scaler.scale(loss)).backward()
                elif not last:
                    g.backward(loss)
            losses.append(float(loss.detach()))
            if every_step is not None:
                every_step(rank, g, i)
            if not last:
                continue
            if g is not None:
                stepped.append(g.step(loss))
            elif scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        summary = None if g is None else g.summary()
        operators = [] if g is None else [(operator.op, operator.name) for operator in g._monitor.operators]
    return {"losses": losses, "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes(), "modes": modes,
            "stepped": stepped, "summary": summary, "decisions": [] if g is None else g.decisions,
            "finite": all(bool(p.isfinite().all()) for p in model.parameters()), "start": start, "operators": operators,
            "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())}


def same(results: list, key: str) -> None:
    assert all(result[key] == results[0][key] for result in results), key


def events(result: dict, name: str) -> list[dict]:
    return [decision for decision in result["decisions"] if decision["event"] == name]


# --- a healthy run


@pytest.mark.parametrize("options", [
    {}, {"precision": torch.float16}, {"accumulate": 2}, {"checkpointed": True, "wrap": {"static_graph": True}},
    {"batch_norm": True, "wrap": {"gradient_as_bucket_view": True}}, {"expert": True, "wrap": {"find_unused_parameters": True}}], ids=str)
def test_a_healthy_run_is_bit_identical(tmp_path, options):
    plain = whole(on_ranks(tmp_path / "plain", lambda rank: train(rank, None, **options)))
    ours = whole(on_ranks(tmp_path / "ours", lambda rank: train(rank, {"probes": "all"}, **options)))
    for before, after in zip(plain, ours):
        assert after["losses"] == before["losses"] and after["weights"] == before["weights"]
        summary = after["summary"]
        assert summary["stopped"] == summary["mode_changes"] == 0 and summary["detached"] is None and summary["ranks"] == RANKS
        assert after["hooks"] == 0
    same(ours, "weights")
    assert len({tuple(result["losses"]) for result in ours}) == RANKS  # each has its own data


# --- a run that overflows


def overflow(wanted: int, at: int, factor: float = 3e3):
    """The data of one rank are too large for FP16 from a batch on."""
    def plant(rank, model, i, x):
        return x * factor if rank == wanted and i == at else x
    return plant


@pytest.mark.parametrize("wanted", [0, 2])
def test_one_rank_overflows(tmp_path, wanted):
    """Without the guard every rank's parameters are NaN; with it the modes are the same on all in every step, and the run survives."""
    options = {"plant": overflow(wanted, 5), "precision": torch.float16, "accumulate": 1}

    def unscaled(rank, options):  # no scaler to skip the step
        return train(rank, options, plant=overflow(wanted, 5, 1e30), precision=None)
    plain = whole(on_ranks(tmp_path / "plain", lambda rank: unscaled(rank, None)))
    assert not any(result["finite"] for result in plain)

    saved = whole(on_ranks(tmp_path / "saved", lambda rank: train(rank, {"hints": wanted == 2}, **options)))
    for key in ("modes", "weights", "decisions", "stepped"):
        same(saved, key)
    first = saved[0]
    assert first["finite"] and first["summary"]["detached"] is None and first["summary"]["dropped"] == 0
    stopped = events(first, "stopped")
    assert stopped[0]["ranks"] == [wanted] and stopped[0]["what"] == "output" and stopped[0]["step"] == 5
    assert any(modes for _, _, modes, _ in first["modes"]) and first["summary"]["retries"] >= 1
    assert len(first["modes"]) == 12 + first["summary"]["retries"] and sum(first["stepped"]) == 12
    assert all(math.isfinite(loss) for result in saved for loss in result["losses"][-6:])


def test_a_loss_that_is_nan_on_one_rank(tmp_path):
    """In the first of two micro-batches, under no_sync: that rank still takes part in the all-reduce, and the step comes again."""
    def factor(rank, i):
        return math.nan if rank == 1 and i == 4 else 1.0
    runs = whole(on_ranks(tmp_path, lambda rank: train(rank, {}, factor=factor, accumulate=2)))
    for key in ("modes", "weights", "decisions", "stepped"):
        same(runs, key)
    stopped = events(runs[0], "stopped")
    assert [stop["ranks"] for stop in stopped] == [[1]] and stopped[0]["step"] == 2 and math.isnan(runs[1]["losses"][4])
    assert runs[0]["summary"]["steps"] == 6 and runs[0]["summary"]["detached"] is None and runs[0]["finite"]


def test_a_batch_with_nan_on_one_rank_is_dropped_on_all(tmp_path):
    batches = {rank: data(rank) for rank in range(RANKS)}
    batches[3][6][0][0] = math.nan
    runs = whole(on_ranks(tmp_path, lambda rank: train(rank, {}, batches=batches[rank], precision=torch.float16)))
    for key in ("modes", "weights", "decisions", "stepped"):
        same(runs, key)
    dropped, = events(runs[0], "dropped")
    assert dropped["step"] == 6 and dropped["why"] == "the batch itself is not finite" and runs[0]["summary"]["steps"] == 11
    assert events(runs[0], "stopped")[0]["ranks"] == [3] and runs[0]["finite"]


def test_operators_that_only_one_rank_has(tmp_path):
    """An expert that runs on one rank at a time, and overflows on rank 2 when it runs there for the first time: one number on all ranks."""
    batches = {rank: data(rank) for rank in range(RANKS)}
    for rank in range(RANKS):
        for i, (x, _) in enumerate(batches[rank]):
            x.view(-1)[0] = 1.0 if i >= 2 and (i - 2) % RANKS == (rank - 2) % RANKS else -1.0

    def plant(rank, model, i, x):
        with torch.no_grad():
            model.expert.weight.fill_(3e4 if i == 2 and rank == 2 else 0.1)
        return x
    runs = whole(on_ranks(tmp_path, lambda rank: train(rank, {"hints": False}, batches=batches[rank], plant=plant, expert=True,
                                                       precision=torch.float16, wrap={"find_unused_parameters": True})))
    for key in ("modes", "operators", "decisions", "stepped"):
        same(runs, key)
    stop = events(runs[0], "stopped")[0]
    assert (stop["step"], stop["operator"], stop["ranks"]) == (2, "expert", [2])
    assert "expert" in {change["operator"] for change in events(runs[0], "mode")} and runs[0]["summary"]["detached"] is None
    names = [name for _, name in runs[0]["operators"]]
    assert len(set(names)) == len(names) and [op for op, _ in runs[0]["operators"]] == list(range(len(names)))


def test_incident_bundles_are_those_of_the_rank_concerned(tmp_path):
    runs = whole(on_ranks(tmp_path / "run", lambda rank: train(rank, {"hints": False, "incidents": tmp_path / "incidents"},
                                                               plant=overflow(2, 5), precision=torch.float16)))
    same(runs, "modes")
    assert [len(list((tmp_path / "incidents" / f"rank{rank}").iterdir())) for rank in range(RANKS)] == [0, 0, 1, 0]
    assert [len(events(run, "bundle")) for run in runs] == [0, 0, 1, 0] and runs[0]["summary"]["detached"] is None


# --- the way back


def test_back_to_a_state_that_every_rank_has(tmp_path):
    """The parameters of one rank alone are spoilt; the ring of another has room for the newest states only."""
    def spoil(rank, g, i):
        if rank == 2 and i == 9 and not spoilt:
            spoilt.append(i)
            for group in g._optimizers[0].param_groups:
                group["params"][0].data.view(-1)[0] = math.inf
    spoilt: list[int] = []
    runs = whole(on_ranks(tmp_path, lambda rank: train(rank, {"ring_every": 2, "ring": "40KiB" if rank == 3 else "256MiB"},
                                                       every_step=spoil, batches=data(rank, 16))))
    for key in ("modes", "weights", "decisions", "stepped"):
        same(runs, key)
    back, = events(runs[0], "roll_back")
    assert back["to"] in (7, 8, 9) and back["why"] == "the parameters are not finite"
    assert runs[3]["summary"]["ring_states"] != runs[0]["summary"]["ring_states"] and runs[0]["finite"]
    assert runs[0]["summary"]["steps"] - runs[0]["summary"]["steps_rolled_back"] == 16 and runs[0]["summary"]["detached"] is None


def test_resumes_from_a_state_that_every_rank_has(tmp_path):
    """The newest state of one rank is torn: the one before it, with the random numbers of each rank (dropout)."""
    states = tmp_path / "states"
    options = {"path": states, "ring_every": 4, "log": tmp_path / "log"}
    first = whole(on_ranks(tmp_path / "first", lambda rank: train(rank, options)))
    newest = sorted((states / "rank1").glob("state-*.pt"))[-1]
    newest.write_bytes(b"torn")
    second = whole(on_ranks(tmp_path / "second", lambda rank: train(rank, options, resume=True)))
    same(second, "start")
    start = second[0]["start"]
    assert 0 < start == int(sorted((states / "rank0").glob("state-*.pt"))[-2].stem.removeprefix("state-")) < 12
    for before, after in zip(first, second):  # buckets are made anew, in which sums have another order
        np.testing.assert_allclose(after["losses"], before["losses"][start:], rtol=1e-5)
    assert (tmp_path / "log").read_text().count("resumed") == 1  # rank 0's


# --- what fails


class Broken(Device):
    """A device that fails in a step."""

    def __init__(self, places, at):
        super().__init__("cpu", places, {})
        self.at = at

    def step(self, step, *arguments):
        if step >= self.at:
            raise RuntimeError("device is broken")
        return super().step(step, *arguments)


def broken_hook(rank, g, i):
    if rank == 2 and i == 5 and g is not None:
        def record(*_):
            raise RuntimeError("hook is broken")
        g._monitor.observe = record


def broken_log(rank, g, i):
    if rank == 0 and i == 3:
        def note(*_, **__):
            raise OSError("disk is full")
        g._log.note = note


@pytest.mark.parametrize(("options", "every_step", "why"), [
    (lambda rank: {"device": lambda places: Broken(places, 4)}, None, "rank 0: RuntimeError: device is broken"),
    (lambda rank: {}, broken_hook, "rank 2: RuntimeError: hook is broken")], ids=["device", "hook"])
def test_a_guard_that_fails_on_one_rank_ends_on_all(tmp_path, options, every_step, why):
    """In the same step, and the run goes on as it would have without."""
    plain = whole(on_ranks(tmp_path / "plain", lambda rank: train(rank, None)))
    runs = whole(on_ranks(tmp_path / "runs", lambda rank: train(rank, options, every_step=every_step)))
    detached = [events(run, "detached") for run in runs]
    assert [[found["why"] for found in each] for each in detached] == [[why]] * RANKS
    for before, after in zip(plain, runs):
        assert after["losses"] == before["losses"] and after["weights"] == before["weights"] and after["hooks"] == 0
    assert all(run["stepped"] == [True] * 12 for run in runs)


def test_a_log_that_fails_while_modes_change(tmp_path):
    """Rank 0 cannot write that a step was stopped: no rank goes on in other modes than the others, or has another number of
    batches."""
    runs = whole(on_ranks(tmp_path, lambda rank: train(rank, {"hints": False}, every_step=broken_log, plant=overflow(2, 5),
                                                       precision=torch.float16)))
    assert all("rank 0: OSError: disk is full" in run["summary"]["detached"] for run in runs)
    for key in ("weights", "stepped"):
        same(runs, key)
    assert all([plans for _, _, _, plans in run["modes"]] == [[]] * 12 for run in runs) and runs[0]["finite"]
    assert [run["hooks"] for run in runs] == [0] * RANKS


class Fragile(torch.autograd.Function):
    """Its backward fails where it is told to."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ValueError("backward is broken")
        return gradient, None


@pytest.mark.parametrize("wanted", [range(RANKS), [1]], ids=["all", "one"])
def test_a_backward_that_fails_in_another_mode(tmp_path, wanted, monkeypatch):
    """On all ranks: the step is dropped, the guard ends, the run goes on. On one: the others wait for its gradients, so that its exception
    ends the run, as without a guard."""
    from opd.guard import ranks
    monkeypatch.setattr(ranks, "TOGETHER", timedelta(seconds=2))

    def run(rank):
        def plant(rank, model, i, x):
            x = x * 3e3 if rank == 2 and i == 5 else x
            g_plans = bool(model.attn._forward_pre_hooks) and any("SAFE" in str(plan) for plan in plans())
            return Fragile.apply(x.requires_grad_(), g_plans and rank in wanted)
        guards = []

        def plans():
            return list(guards[0]._modes.plans.values()) if guards else []
        return train(rank, {"hints": False}, plant=plant, precision=torch.float16, every_step=lambda rank, g, i: guards or guards.append(g))
    begin = time.monotonic()
    runs = on_ranks(tmp_path, run)
    if len(wanted) == 1:
        assert "backward is broken" in str(runs[1]) and all(isinstance(run, Died) for run in runs)
        assert time.monotonic() - begin < TIMEOUT
        return
    whole(runs)
    same(runs, "weights")
    assert all("ValueError: backward is broken" in run["summary"]["detached"] for run in runs) and runs[0]["finite"]
    assert len(runs[0]["stepped"]) == len(runs[0]["modes"]) and sum(runs[0]["stepped"]) >= 10


# --- ranks that leave, and ranks that die


def test_ranks_with_fewer_batches(tmp_path):
    """Join: the guard ends on all with the first rank that has no more batches, and the run is that without a guard."""
    batches = {rank: data(rank, 6 + 2 * rank) for rank in range(RANKS)}
    plain = whole(on_ranks(tmp_path / "plain", lambda rank: train(rank, None, batches=batches[rank], join=True)))
    begin = time.monotonic()
    runs = whole(on_ranks(tmp_path / "runs", lambda rank: train(rank, {}, batches=batches[rank], join=True)))
    assert time.monotonic() - begin < TIMEOUT
    for before, after in zip(plain, runs):
        assert after["losses"] == before["losses"] and after["weights"] == before["weights"]
    assert [run["summary"]["steps"] for run in runs] == [6] * RANKS and runs[0]["summary"]["detached"] is None
    assert all(run["summary"]["detached"].startswith("step 6: a rank is gone") for run in runs[1:])


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("before", ["forward", "step"])
def test_a_rank_that_dies_ends_the_run(tmp_path, victim, before):
    """With the error of DistributedDataParallel, and no later than without a guard."""
    def kill(rank, i, place):
        if rank == victim and i == 6 and place == before:
            os.kill(os.getpid(), signal.SIGKILL)

    def plant(rank, model, i, x):
        kill(rank, i, "forward")
        return x

    def run(rank, options):
        return train(rank, options, plant=plant, every_step=lambda rank, g, i: kill(rank, i, "step"))
    seconds = []
    for name, options in (("plain", None), ("ours", {})):
        begin = time.monotonic()
        runs = on_ranks(tmp_path / name, lambda rank: run(rank, options))
        seconds.append(time.monotonic() - begin)
        assert all(isinstance(result, Died) for result in runs) and "signal 9" in str(runs[victim])
        for rank in set(range(RANKS)) - {victim}:
            assert "Parted" not in str(runs[rank]).splitlines()[-1] and "RuntimeError" in str(runs[rank]), runs[rank]
    assert seconds[1] < TIMEOUT / 2


# --- arguments


def test_runs_that_are_refused(tmp_path):
    class FullyShardedDataParallel(nn.Module):
        pass

    def refusals(rank):
        made = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(made.parameters(), 0.1)
        half = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        found = []
        for model in (made, nn.Sequential(made, FullyShardedDataParallel()), nn.DataParallel(nn.Sequential(made)),
                      DistributedDataParallel(nn.Sequential(made), process_group=half)):
            with pytest.raises(GuardError) as error:
                opd.guard(model, optimizer)
            found.append(str(error.value))
        wrapped = DistributedDataParallel(made)
        with pytest.raises(GuardError) as error:
            StepGuard(wrapped, optimizer)
        assert not made._forward_hooks
        return [*found, str(error.value)]
    for found in whole(on_ranks(tmp_path, refusals)):
        assert "is not in DistributedDataParallel" in found[0] and "FullyShardedDataParallel leaves each process a share" in found[1]
        assert "DataParallel runs copies in threads" in found[2] and "spans a part of the processes" in found[3]
        assert "whose loop is not its own" in found[4]


# --- what is exchanged


def test_bytes_of_a_step(tmp_path):
    """docs/guard.md: a step's all-gather has 28 bytes and 21 an operator, the broadcast 40 and 6."""
    runs = whole(on_ranks(tmp_path / "six", lambda rank: train(rank, {"probes": "key"}, batches=data(rank, 6))))
    longer = whole(on_ranks(tmp_path / "ten", lambda rank: train(rank, {"probes": "key"}, batches=data(rank, 10))))
    operators = runs[0]["summary"]["operators"]
    gather, answer = 28 + 21 * operators, 40 + 6 * operators
    for rank, (six, ten) in enumerate(zip(runs, longer)):
        grown = {key: ten["summary"][key] - six["summary"][key] for key in ("collectives", "sent_bytes", "received_bytes")}
        assert grown == {"collectives": 8, "sent_bytes": 4 * (gather + (answer if rank == 0 else 0)),
                         "received_bytes": 4 * ((RANKS - 1) * gather + (0 if rank == 0 else answer))}
        assert 0 < six["summary"]["waited_seconds"] < TIMEOUT


def seen_of(operators: list[Operator], **columns) -> Seen:
    count = len(operators)
    base = {"format": np.full(count, int(Format.FP16), np.uint8), "max_abs": np.ones(count), "elements": np.full(count, 10, np.uint32),
            "nonfinite": np.zeros(count, np.uint32), "order": np.full(count, math.inf)}
    return Seen(operators, **{key: np.array(columns.get(key, value), value.dtype) for key, value in base.items()},
                start=columns.get("start", 0))


def test_merging_by_name():
    """Two ranks that know the same operators in another order, and one each that the other does not."""
    def operators(*names):
        return [Operator(op, name, "activation", "FP16", name) for op, name in enumerate(names)]
    first, second = operators("a", "b", "c"), operators("a", "expert", "c", "b")
    one = seen_of(first, max_abs=[1.0, 5.0, 2.0], elements=[10, 20, 0xFFFFFFFF], nonfinite=[0, 0, 3], order=[math.inf, math.inf, 7],
                  start=4)
    two = seen_of([second[0], second[1], second[2]], max_abs=[3.0, 9.0, 1.5], nonfinite=[0, 2, 1], order=[math.inf, 101, 103], start=100,
                  format=[Format.FP16, Format.FP16, Format.BF16])
    agreed, rows = merging.united([], [merging.new_ones(one, first, 0), merging.new_ones(two, second, 0)])
    assert [(operator.op, operator.name) for operator in agreed] == [(0, "a"), (1, "b"), (2, "c"), (3, "expert")]
    merged = merging.merged(rows, agreed)
    assert [operator.name for operator in merged.operators] == ["a", "expert", "b", "c"]  # behind what came before it on its rank
    assert merged.max_abs.tolist() == [3.0, 9.0, 5.0, 2.0] and merged.elements.tolist() == [20, 10, 20, 0xFFFFFFFF]
    assert merged.nonfinite.tolist() == [0, 2, 0, 4] and merged.format.tolist() == [Format.FP16, Format.FP16, Format.FP16, Format.BF16]
    assert [merged.operators[i].name for i in merged.bad(("activation",))] == ["expert", "c"]
    assert merging.names_hash(agreed) != merging.names_hash(agreed[::-1])
    dense = merging.rows_of(seen_of([agreed[3]], max_abs=[4.0]), 4)
    assert dense["max_abs"].tolist() == [0, 0, 0, 4.0] and dense["place"].tolist() == [merging.NEVER] * 3 + [0]
