"""One guard for the processes of a run under DistributedDataParallel.

Every step has the same two collectives on every rank, in a process group of the guard's own (gloo: they run on the host and cannot mix with
those of the run):

  1. before the optimizer's step an all-gather of what each rank has found: the statistics of its operators and what the verdict depends
     on. Each rank merges the same bytes, so all take the same branch
  2. behind it a broadcast from rank 0, whose device has been asked: modes, events and hints

More are needed when operators are new (their names), when a step is stopped (what the way back depends on), when modes or hints have
changed (whether every rank has followed), and when the guard ends (why). What fails on one rank is kept until its next collective, where
all detach together. A rank that is gone breaks the collective on all others, which detach at once: the run goes on to the collective in
which DistributedDataParallel finds out by itself.
"""
from __future__ import annotations

import json
import logging
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from opd.capture.collectives import find_wrapper
from opd.device import Event, Hints, Outcome
from opd.guard import merging
from opd.guard.errors import GuardError
from opd.guard.findings import Facts, Findings
from opd.guard.monitor import SCALED, Monitor, Seen
from opd.guard.ring import Ring, State

log = logging.getLogger("opd.guard")

FAILED, LOSS, GRADIENTS_LOOKED_AT, GRADIENTS, JUDGES, BACKWARD, CORRUPT, FULL = (1 << bit for bit in range(8))
# of the all-gather: flags, names agreed on, their number, step, attempt, bytes about new operators
_HEADER = struct.Struct("<IIIqII")
# of the broadcast: what it holds, escalate, something changed, step, places of the device, last clean step or -1, hints
_ANSWER = struct.Struct("<BBBxqIqiid")
_NOTHING, _OUTCOME, _FAILED = range(3)
_DECISION = np.dtype([("mode", "u1"), ("old", "u1"), ("cause", "u1"), ("risk", "u1"), ("flags", "<u2")])
TOGETHER = timedelta(seconds=10)  # ranks whose backward fails in another mode fail together; one alone is waited for that long


class Parted(Exception):
    """The ranks guard no more together."""


class Alone:
    """A run of one process: what Ranks is for several."""
    rank, size = 0, 1
    counts = {"collectives": 0, "sent_bytes": 0, "received_bytes": 0, "waited_seconds": 0.0}
    failure: str | None = None
    must_run_backward = False  # whether a loss that is not finite has a backward all the same

    def defers(self, error: Exception) -> bool:
        """Whether a failure waits for the next collective."""
        return False

    def device(self, make: Callable[[int], object]) -> Callable[[int], object]:
        return make

    def merged(self, findings: Findings | None, monitor: Monitor, step: int, attempt: int, again: deque, is_full: bool) -> Findings | None:
        return findings

    def agreed(self, facts: Facts | None) -> Facts | None:
        return facts

    def is_full(self, own: bool) -> bool:
        return own

    def finish(self, was_stopped: bool, in_force: np.ndarray, again: deque) -> None:
        pass

    def folder(self, path: Path) -> Path:
        """Where this rank has its states."""
        return path

    def restored(self, ring: Ring) -> State | None:
        """The newest state on disk that every rank can read. Raises GuardError where there are some and none is whole."""
        steps = self._common(ring.on_disk())
        for step in reversed(steps):
            state = ring.load(step)
            if self._all(state is not None):
                return state
        if steps:
            raise ring.unreadable()
        return None

    def _common(self, steps: list[int]) -> list[int]:
        """Those that every rank has."""
        return steps

    def _all(self, did: bool) -> bool:
        return did

    def backward_failed(self) -> bool:
        """Whether a backward that failed in another mode may be left behind."""
        return True

    def end_of_batches(self) -> None:
        pass

    def hang_up(self) -> None:
        pass


class Ranks(Alone):
    """The ranks of a DistributedDataParallel, seen from one of them. Making it is a collective call."""
    must_run_backward = True  # the others wait for the gradients of this rank

    def __init__(self, wrapper: nn.parallel.DistributedDataParallel):
        run = wrapper.process_group
        self._wrapper = wrapper
        self.rank, self.size = dist.get_rank(run), dist.get_world_size(run)
        self._group = dist.new_group(backend="gloo", timeout=_timeout(run))
        self.counts = {"collectives": 0, "sent_bytes": 0, "received_bytes": 0, "waited_seconds": 0.0}
        self.failure = None
        self._is_over = False        # nothing is exchanged any more
        self._agreed = 0             # operators whose numbers all ranks have
        self._step = 0
        self._is_full = False
        self._was_answered = False   # the broadcast of this step is done
        self._answer_failed = False  # it said that rank 0 has failed
        self._changed = False        # it changed modes or hints
        self._modes = np.zeros(0, np.uint8)
        self._hints = Hints()

    # --- what fails

    def defers(self, error: Exception) -> bool:
        if self._is_over or isinstance(error, Parted):
            return False
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            log.error("rank %d: the guard has failed and ends with the next step, on all ranks", self.rank, exc_info=error)
        return True

    def hang_up(self) -> None:
        """Closes the connections: ranks that wait for this one in a collective of the guard learn it at once. They go on without."""
        group, self._group, self._is_over = self._group, None, True
        if group is not None:
            try:
                dist.destroy_process_group(group)
            except Exception:  # the script has destroyed all groups
                log.debug("the process group of the guard could not be destroyed", exc_info=True)

    def end_of_batches(self) -> None:
        """This rank has no more batches. Under Join others may have: they wait for it in the guard's collective, it for them in Join's."""
        if getattr(getattr(self._wrapper, "_join_config", None), "enable", False):
            self.hang_up()

    def _part(self, again: deque) -> None:
        """All ranks are here, and at least one has failed: why, to all. `again` is cut to what every rank has, so that none runs out of
        batches before the others."""
        own = json.dumps([self.failure, len(again)]).encode()
        told = [json.loads(blob) for blob in self._gather_blobs(own)]
        while len(again) > min(length for _, length in told):
            again.popleft()
        self._is_over = True
        whys = [f"rank {rank}: {why}" for rank, (why, _) in enumerate(told) if why is not None]
        raise Parted("; ".join(whys[:4]) or "the ranks are not in the same step, or have other operators in another order")

    # --- collectives

    def _timed(self, collective: Callable, sent: int, received: int) -> None:
        if self._group is None:
            raise Parted("another rank has left the guard")
        begin = time.perf_counter()
        try:
            collective()
        except Exception as error:
            self.hang_up()
            raise Parted(f"a rank is gone ({type(error).__name__}: {str(error)[:200]})") from error
        self.counts["waited_seconds"] += time.perf_counter() - begin
        self.counts["collectives"] += 1
        self.counts["sent_bytes"] += sent
        self.counts["received_bytes"] += received

    def _gather(self, own: bytes) -> list[bytes]:
        """What every rank gave, which is of the same length on all."""
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._timed(lambda: dist.all_gather(parts, mine, group=self._group), len(own), len(own) * (self.size - 1))
        return [part.numpy().tobytes() for part in parts]

    def _gather_blobs(self, own: bytes, lengths: Sequence[int] | None = None) -> list[bytes]:
        """The same of any length. lengths: where they are known already."""
        if lengths is None:
            lengths = [int.from_bytes(part, "little") for part in self._gather(len(own).to_bytes(8, "little"))]
        parts = self._gather(own.ljust(max(lengths), b"\0"))
        return [part[:length] for part, length in zip(parts, lengths)]

    def _broadcast(self, content: bytes | None, length: int) -> bytes:
        """From rank 0; content: None on the others."""
        buffer = torch.zeros(length, dtype=torch.uint8) if content is None else torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._timed(lambda: dist.broadcast(buffer, dist.get_global_rank(self._group, 0), group=self._group),
                    0 if content is None else length, length if content is None else 0)
        return buffer.numpy().tobytes()

    # --- the step

    def merged(self, findings: Findings | None, monitor: Monitor, step: int, attempt: int, again: deque, is_full: bool) -> Findings:
        """The findings of all ranks. findings: None where this rank has failed. Raises Parted."""
        agreed, self._step, self._was_answered, self._changed = self._agreed, step, False, False
        try:
            seen = Seen.nothing() if findings is None else findings.seen
            rows, blob = merging.rows_of(seen, agreed), merging.new_ones(seen, monitor.operators, agreed)
            flags, names = self._flags(findings, is_full), merging.names_hash(monitor.operators[:agreed])
        except Exception as error:
            self.defers(error)
            rows, blob, flags, names = np.zeros(agreed, merging.ROW), b"", FAILED, 0
        parts = self._gather(_HEADER.pack(flags, names, agreed, step, attempt, len(blob)) + rows.tobytes())
        heads = [_HEADER.unpack_from(part) for part in parts]
        union = 0
        for head in heads:
            union |= head[0]
        if union & FAILED or len({head[1:5] for head in heads}) > 1:
            self._part(again)
        tables = np.stack([np.frombuffer(part, merging.ROW, offset=_HEADER.size) for part in parts])
        if any(head[5] for head in heads):
            operators, others = merging.united(monitor.operators[:agreed], self._gather_blobs(blob, [head[5] for head in heads]))
            monitor.number(operators)
            tables, self._agreed = np.concatenate((tables, others), axis=1), len(operators)
        self._is_full = bool(union & FULL)
        seen = merging.merged(tables, monitor.operators)
        if union & (LOSS | BACKWARD):  # gradients of a loss that is not finite say nothing of the operators that have them
            seen = seen.without(SCALED)
        bad = [operator.op for operator, nonfinite in zip(seen.operators, seen.nonfinite) if nonfinite and not operator.is_ordinary]
        return Findings(seen, not union & LOSS, None if not union & GRADIENTS_LOOKED_AT else not union & GRADIENTS, bool(union & JUDGES),
                        "on another rank" if union & BACKWARD and findings.backward_error is None else findings.backward_error,
                        bool(union & CORRUPT),
                        [rank for rank, head in enumerate(heads)
                         if head[0] & (LOSS | BACKWARD | CORRUPT) or tables[rank]["nonfinite"][bad].any()])

    def _flags(self, findings: Findings | None, is_full: bool) -> int:
        if findings is None or self.failure is not None:
            return FAILED
        return (LOSS * (not findings.has_finite_loss) | GRADIENTS_LOOKED_AT * (findings.has_finite_gradients is not None)
                | GRADIENTS * (findings.has_finite_gradients is False) | JUDGES * findings.judges_gradients
                | BACKWARD * (findings.backward_error is not None) | CORRUPT * findings.is_corrupt | FULL * is_full)

    def is_full(self, own: bool) -> bool:
        """Whether the ring of any rank was full when the step was merged."""
        return self._is_full

    def agreed(self, facts: Facts | None) -> Facts:
        """The facts of all ranks: the worst of each, and the states that all of them hold. facts: None where this rank has failed; then
        finish() parts."""
        told = [json.loads(blob) for blob in self._gather_blobs(
            json.dumps(None if facts is None else [facts.is_corrupt, facts.has_finite_batches, facts.states]).encode())]
        told = [Facts(*fact) for fact in told if fact is not None]
        return Facts(any(fact.is_corrupt for fact in told), all(fact.has_finite_batches for fact in told),
                     _in_all([fact.states for fact in told]))

    def finish(self, was_stopped: bool, in_force: np.ndarray, again: deque) -> None:
        """The end of a step or of an attempt at one, in which every rank has to come here. Raises Parted."""
        if self._is_over:
            return
        if not self._was_answered:
            if self.rank == 0:
                self._tell(None)
            elif self._hear() is not None:
                self.defers(RuntimeError("the device was asked on rank 0 and not on this one"))
        if self._answer_failed:
            self._part(again)
        if was_stopped or self._changed:
            own = struct.pack("<BI", self.failure is not None, zlib.crc32(in_force[:self._agreed].tobytes()))
            told = [struct.unpack("<BI", part) for part in self._gather(own)]
            if any(failed for failed, _ in told) or len({modes for _, modes in told}) > 1:
                self._part(again)

    # --- rank 0's device

    def device(self, make: Callable[[int], object]) -> Callable[[int], object]:
        """What makes the device of this rank: on rank 0 the one that decides, which tells the others."""
        return _Maker(make, self)

    def _tell(self, outcome: Outcome | None) -> None:
        kind = _FAILED if self.failure is not None else _NOTHING if outcome is None else _OUTCOME
        rows = np.zeros(self._agreed, _DECISION)
        head = (kind, False, False, self._step, 0, -1, 0, 0, 1.0)
        if kind == _OUTCOME:
            own = outcome.modes[:self._agreed]
            rows["mode"][:len(own)] = own
            for event in outcome.events:
                if event.op < self._agreed:
                    rows[event.op] = (rows[event.op]["mode"], event.old_mode, event.cause, event.risk, event.flags)
            self._changed = not np.array_equal(outcome.modes, self._modes) and (bool(outcome.modes.any()) or bool(self._modes.any()))
            self._changed |= outcome.hints != self._hints
            self._modes, self._hints = np.array(outcome.modes), outcome.hints
            hints = outcome.hints
            head = (kind, outcome.escalate, self._changed, self._step, len(outcome.modes),
                    -1 if outcome.last_clean_step is None else outcome.last_clean_step, hints.loss_scale_shift, hints.clip_shift,
                    hints.learning_rate_factor)
        self._was_answered, self._answer_failed = True, kind == _FAILED
        self._broadcast(_ANSWER.pack(*head) + rows.tobytes(), _ANSWER.size + rows.nbytes)

    def _hear(self) -> Outcome | None:
        content = self._broadcast(None, _ANSWER.size + self._agreed * _DECISION.itemsize)
        kind, escalate, self._changed, step, places, clean, *hints = _ANSWER.unpack_from(content)
        self._changed = bool(self._changed)
        self._was_answered, self._answer_failed = True, kind == _FAILED
        if kind != _OUTCOME:
            return None
        rows = np.frombuffer(content, _DECISION, offset=_ANSWER.size)
        self._modes = np.zeros(places, np.uint8)
        self._modes[:len(rows)] = rows["mode"][:places]
        self._hints = Hints(*hints)
        events = [Event(step, op, int(row["old"]), int(row["mode"]), int(row["cause"]), int(row["flags"]), int(row["risk"]))
                  for op, row in enumerate(rows) if row["cause"] or row["flags"]]
        return Outcome(np.zeros(0), events, self._modes.copy(), self._hints, bool(escalate), None if clean < 0 else clean)

    # --- rare

    def folder(self, path: Path) -> Path:
        return path / f"rank{self.rank}"

    def _common(self, steps: list[int]) -> list[int]:
        return _in_all([json.loads(blob) for blob in self._gather_blobs(json.dumps(steps).encode())])

    def _all(self, did: bool) -> bool:
        return all(part != b"\0" for part in self._gather(bytes([did])))

    def backward_failed(self) -> bool:
        """A backward that failed in another mode: if it did on all ranks none waits for the gradients of another, and the step can be
        dropped. A rank that is alone with it has left the others in their collective, and nothing but its exception ends that."""
        if not self._wrapper.require_backward_grad_sync:
            return True
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            works = [dist.isend(torch.ones(1), rank, group=self._group) for rank in others]
            works += [dist.irecv(torch.zeros(1), rank, group=self._group) for rank in others]
            for work in works:
                work.wait(TOGETHER)
            self._wrapper.reducer._reset_state()
        except Exception:
            return False
        return True


class _Maker:
    """Makes the device of a rank. Its attributes are those of the maker of the device that decides."""

    def __init__(self, make: Callable[[int], object], ranks: Ranks):
        self._make, self._ranks = make, ranks

    def __call__(self, operators: int) -> _Deciding | _Following:
        return _Deciding(self._make(operators), self._ranks) if self._ranks.rank == 0 else _Following(operators, self._ranks)

    def __getattr__(self, name: str):
        return getattr(self._make, name)


class _Deciding:
    """The device of rank 0."""

    def __init__(self, device, ranks: Ranks):
        self._device, self._ranks = device, ranks

    def __getattr__(self, name: str):
        return getattr(self._device, name)

    def step(self, *arguments) -> Outcome:
        outcome = self._device.step(*arguments)
        self._ranks._tell(outcome)
        return outcome


class _Following:
    """Stands on the other ranks for the device of rank 0; what software writes into that one is written there."""

    def __init__(self, operators: int, ranks: Ranks):
        self._last, self._ranks = Outcome(np.zeros(0), [], np.zeros(operators, np.uint8), Hints(), False, None), ranks

    def step(self, *arguments) -> Outcome:
        outcome = self._ranks._hear()
        if outcome is None:  # rank 0 did not ask its device: everything stays
            return Outcome(self._last.records, [], self._last.modes, self._last.hints, False, self._last.last_clean_step)
        self._last = outcome
        return outcome

    def set_operator(self, op: int, mode: int | None = None, locked: bool | None = None, disabled: bool | None = None) -> None:
        if mode is not None:
            self._last.modes[op] = mode

    def announce_learning_rate(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


def is_of_many() -> bool:
    """Whether this process is one of several in a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def ranks_of(model: nn.Module) -> Alone:
    """The ranks of a model's run. Raises GuardError for a run of several processes that cannot be guarded."""
    if isinstance(model, nn.DataParallel):
        raise GuardError("model: DataParallel runs copies in threads, whose modes would differ; use DistributedDataParallel")
    parts = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    parts |= {type(parameter).__name__ for parameter in model.parameters()}
    sharded = parts & {"FullyShardedDataParallel", "FSDPModule", "DTensor", "DeepSpeedEngine"}
    if sharded:
        raise GuardError(f"model: {sharded.pop()} leaves each process a share of the parameters, and states to go back to are of whole "
                         "ones; guard runs under DistributedDataParallel, or of one process")
    if not (dist.is_available() and dist.is_initialized()):
        number = os.environ.get("WORLD_SIZE", "1")
        if number.isdigit() and int(number) > 1:
            raise GuardError(f"model: a run of {number} processes (WORLD_SIZE) without a process group; call init_process_group and "
                             "wrap the model in DistributedDataParallel first")
        return Alone()
    if not is_of_many():
        return Alone()
    wrapper = find_wrapper(getattr(model, "_orig_mod", model))
    if wrapper is None:
        raise GuardError(f"model: a run of {dist.get_world_size()} processes, and the model is not in DistributedDataParallel: their modes "
                         "would differ; wrap it")
    if dist.get_world_size(wrapper.process_group) != dist.get_world_size():
        raise GuardError("model: its DistributedDataParallel spans a part of the processes only, as under tensor or pipeline parallelism; "
                         "guard runs where it spans all of them")
    return Ranks(wrapper)


def inner(model: nn.Module) -> nn.Module:
    """The model in its DistributedDataParallel."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _in_all(lists: Sequence[Sequence[int]]) -> list[int]:
    return [step for step in lists[0] if all(step in other for other in lists[1:])] if lists else []


def _timeout(run: dist.ProcessGroup) -> timedelta | None:
    """That of the run's own collectives; None for the default."""
    for device in ("cpu", "cuda"):
        try:
            return run._get_backend(torch.device(device)).options._timeout
        except Exception:  # it has no such backend
            continue
    return None
