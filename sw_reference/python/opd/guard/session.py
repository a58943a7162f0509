"""The guard of one run: statistics to the device, modes and hints back, and the way back when a value turns non-finite."""
from __future__ import annotations

import contextlib
import logging
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture.attention import BOUNDED_SIDEBANDS
from opd.capture.errors import CaptureError
from opd.capture.hooks import COMPILED
from opd.capture.optimizer import unwrap
from opd.device import Hints, Outcome
from opd.device_config import DeviceConfig
from opd.guard.attached import Attached
from opd.guard.deciding import Decider
from opd.guard.decisions import DecisionLog
from opd.guard.device import factory, with_defaults
from opd.guard.errors import GuardError
from opd.guard.findings import Facts, Findings
from opd.guard.incidents import BUDGET, MOST, Incidents
from opd.guard.modes import Modes
from opd.guard.monitor import FORWARD, SCALED, Monitor, Operator, Seen
from opd.guard.policy import Commander
from opd.guard.ranks import Parted, inner, ranks_of
from opd.guard.ring import Light, Ring, Subject, all_finite, bytes_of_budget, kept, tensors_of_batches
from opd.registers import Mode

log = logging.getLogger("opd.guard")

ATTEMPTS = 4        # of one step: as it is, the first operator in SAFE, all that are non-finite, everything; then it is dropped
DROPS = 3           # steps dropped in a row: then the parameters are to blame, and the oldest state is restored
RATE_CHANGE = 1.25  # factor by which a learning rate has to move to be announced to the device (docs/metrics.md)
RING_EVERY = 16


@dataclass
class _Verdict:
    """What is wrong with the open step. what: "loss", "output", "gradient", "parameter" or "backward"; bad: operators, the first one
    first; ranks: where."""
    what: str
    bad: list[Operator]
    ranks: list[int] = field(default_factory=lambda: [0])


class Guard(Attached):
    """Guards a training run; a context manager. opd.guard(...) makes one.

    model       a module, or its DistributedDataParallel: then every rank makes a guard, and they decide together (opd.guard.ranks)
    optimizer   a torch optimizer or a list of them
    scaler      the GradScaler of the run
    device      "cpu": the reference of the device; "systemc" or "rtl": co-simulation; or a function (number of operators) -> device
    probes      groups and patterns of opd.capture: what is watched
    modes       whether the modules follow the modes of their operators
    hints       whether loss scale, clip threshold and learning rate follow the device's hints
    ring        budget of the states to go back to, in bytes or as "256MiB"; 0: none
    ring_every  steps between two of them
    every       looks at every n-th step only, and at every step that is tried again; losses and gradients are always looked at
    config      fields of the device's configuration that are not at a guard's default (guard.device.DEFAULTS), or a DeviceConfig
    policy      firmware that commands the device between two steps: an object or a class of opd.policy.Policy, or FILE[:CLASS]
    log         file that gets the decisions, one JSON object a line
    path        folder where the states are written as well, so that they survive a kill; resume() takes the newest
    clip        norm that the gradients are clipped to
    extra       objects with state_dict and load_state_dict that belong to the run's state, such as a scheduler
    sideband    logits of fused attention: "bound" (what none of them exceeds), "logits" (recomputed), "full" (softmax as well) or "off"
    compiled    inside code of torch.compile: "skip" leaves it alone, "split" cuts it at every probe
    first_step  number of the first step
    incidents   folder that gets a bundle of a step that is stopped (opd localise), at most `incident_limit` of them, `incident_budget` bytes
    loss_of     function of (model, batch) that returns the loss, for bundles and for localising
    localise    whether a stopped step in which nothing that is watched is bad is replayed, to find the operator that goes to SAFE

    Raises GuardError, or CaptureError for probes, for arguments that cannot work. Once the run is on its way nothing is raised into it:
    a guard that fails detaches, says so once, and the run goes on.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], *, scaler=None, device: str | Callable = "cpu",
                 probes: str | Iterable[str] = "key,output", modes: bool = True, hints: bool = False, ring: str | int = "256MiB",
                 ring_every: int = RING_EVERY, every: int = 1, config: Mapping[str, float] | DeviceConfig | None = None,
                 log: str | os.PathLike | None = None, path: str | os.PathLike | None = None, clip: float | None = None,
                 extra: Iterable = (), sideband: str = "bound", compiled: str = "skip", first_step: int = 0, policy=None,
                 incidents: str | os.PathLike | None = None, incident_limit: int = MOST, incident_budget: str | int = BUDGET,
                 loss_of: Callable | None = None, localise: bool = True):
        if not isinstance(model, nn.Module):
            raise GuardError(f"model: {type(model).__name__} is not a torch.nn.Module; pass the model")
        for name, value, smallest in (("every", every, 1), ("ring_every", ring_every, 1), ("first_step", first_step, 0)):
            if type(value) is not int or value < smallest:
                raise GuardError(f"{name}: {value!r} is not a whole number from {smallest} on; correct it")
        for name, value, choices in (("compiled", compiled, COMPILED), ("sideband", sideband, BOUNDED_SIDEBANDS)):
            if value not in choices:
                raise GuardError(f"{name}: {value!r} is unknown; use one of {', '.join(choices)}")
        if clip is not None and not (isinstance(clip, (int, float)) and clip > 0):
            raise GuardError(f"clip: {clip!r} is no norm; give a number above 0")
        extra = list(extra)
        for item in extra:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise GuardError(f"extra: {type(item).__name__} has no state_dict and load_state_dict; leave it out")
        self._optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        try:
            plain = [unwrap(item) for item in self._optimizers]
        except CaptureError as error:
            raise GuardError(str(error)) from None
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        make_device = factory(device, with_defaults(config) if policy is None else config)
        commander = None if policy is None else Commander(policy, config)
        self._ranks = ranks_of(model)
        model = inner(model)
        self._follows_hints, self._every, self._clip = hints, every, clip
        self._ring_every = ring_every
        self._subject = Subject(model, plain, self._scaler, extra)
        self._ring = Ring(bytes_of_budget(ring), None if path is None else self._ranks.folder(Path(path)))
        self._log = DecisionLog(log if self._ranks.rank == 0 else None)
        self._incidents = Incidents(self._subject, self._log, None if incidents is None else self._ranks.folder(Path(incidents)), incident_limit,
                                    incident_budget, loss_of, localise and self._ranks.size == 1)
        self._monitor = Monitor(model, plain, probes, sideband, compiled, self._fail)
        self._incidents.watch(self._monitor)
        self._modes = Modes(self._monitor.modules, self._monitor.compiled, self._monitor.own_type, self._fail)
        self._counts: Counter[str] = Counter()
        if commander is not None:
            make_device = commander.over(make_device, self._monitor.operators)
        self._decider = Decider(self._ranks.device(make_device), self._monitor, self._modes, self._log, self._counts, modes, policy is None)
        self._step = first_step
        self._attempt = 0                       # of the open step
        self._informed = 0                      # those in which it was looked at
        self._drops = 0                         # steps dropped in a row
        self._went_back = False                 # to the oldest state, since the last clean step
        self._uses_batches = False
        self._is_due = False                    # a state is to be taken before the next step begins
        self._losses: list[float] = []          # of the open step
        self._backward_error: str | None = None
        self._is_corrupt = False                # parameters are not finite, which the ranks have yet to agree on
        self._open_batches: list = []
        self._again: deque = deque()            # batches that are to be yielded again
        self._light: Light | None = None
        self._hints = Hints()
        self._scale_factor = 1.0                # what the loss scale was multiplied by
        self._lr: list[float] = []
        self._last_state: int | None = None

    # --- what the user calls

    def __enter__(self) -> Guard:
        super().__enter__()
        self._monitor.listening = self._listens()
        return self

    def close(self) -> None:
        """Takes the guard off. A second call does nothing."""
        if not self._is_open:
            return
        self._guarded(self._decider.note_carried, self._step)
        self._is_open = False
        self._take_off()
        self._ranks.hang_up()
        self._incidents.tell()
        self._log.close()

    def batches(self, loader: Iterable) -> Iterator:
        """The batches of the loader; after a roll-back the lost ones again, before the next one."""
        source = iter(loader)
        self._uses_batches = True
        while True:
            self._guarded(self._settle)
            if self._again:
                batch = self._again.popleft()
            else:
                try:
                    batch = next(source)
                except StopIteration:
                    self._ranks.end_of_batches()
                    return
            self._guarded(self._begin)
            self._guarded(self._begin_batch, batch)
            yield kept(batch)
            if not self._is_on:
                self._open_batches.clear()

    def backward(self, loss: Tensor) -> None:
        """One micro-batch's backward, with the loss scale. A loss that is not finite gets none, unless other ranks wait for its
        gradients."""
        if not self._is_on:
            return self._plain_backward(loss)
        self._guarded(self._begin)
        self._losses.append(float(loss.detach()))
        if not math.isfinite(self._losses[-1]) and not self._ranks.must_run_backward:
            return None
        try:
            self._plain_backward(loss)
        except Exception as error:
            if not self._modes.plans or not self._ranks.backward_failed():  # not ours, or past saving
                raise
            self._backward_error = f"{type(error).__name__}: {error}"
        return None

    def step(self, loss: Tensor | None = None) -> bool:
        """Ends a training step: backward of the loss if one is given, then, if all is well, the optimizer's step. Returns whether the
        optimizer has stepped; a scheduler should step only then."""
        if loss is not None:
            self.backward(loss)
        if self._is_on:
            may_step, seen = self._permission()
            if not may_step:
                return False
            if self._is_on:
                has_stepped = self._optimizer_step()
                stays = self._end_step(seen, has_stepped)
                return has_stepped and stays is not False
        return self._plain_step()

    def _permission(self) -> tuple[bool, Seen | None]:
        """Whether the open step may reach the parameters, and what was seen of it. If not, what follows from that is done, and its
        gradients are gone."""
        self._guarded(self._begin)
        found = self._together(self._ranks.merged, self._guarded(self._find), self._monitor, self._step, self._attempt, self._again,
                               self._ring.is_full)
        verdict, made = (None, []) if found is None else self._together(self._judge, found) or (None, [])
        if found is not None and found.backward_error is not None:
            self._detach(f"RuntimeError: backward in other modes: {found.backward_error}")
        if not self._is_on:
            is_lost = self._is_lost()
            if is_lost:
                self._zero_grad()
            return not is_lost, None
        if made:
            self._guarded(self._decider.excuse, self._step, made)
        if verdict is not None:
            facts = self._together(self._ranks.agreed, self._guarded(self._facts))
            self._guarded(self._recover, verdict, found.seen, facts)
            self._zero_grad()
            self._together(self._ranks.finish, True, self._decider.in_force, self._again)
            return False, None
        return True, found.seen

    def resume(self) -> int | None:
        """Restores the newest state in the folder `path`, which an earlier run has left; returns the number of the step that comes
        next, None where there is no state. Call it before the first step."""
        if self._ring._folder is None:
            raise GuardError("resume: the guard has no folder; give one as path")
        state = self._ranks.restored(self._ring)
        if state is None:
            return None
        try:
            self._subject.put(state)
        except (KeyError, RuntimeError, ValueError) as error:
            raise GuardError(f"resume: the state after step {state.step} is of another model or optimizer ({error}); build the same, or give "
                             "another path") from None
        self._step = state.step + 1
        self._scale_factor = state.scale_factor
        self._log.note("resumed", self._step, to=state.step)
        if self._room():
            self._ring.take_up(state)
            self._last_state = state.step
        return self._step

    @property
    def step_number(self) -> int:
        """Number of the step that is open; it goes back with a roll-back."""
        return self._step

    def operators(self) -> list[Operator]:
        """What it watches, in the order in which each was seen first."""
        return list(self._monitor.operators)

    def summary(self) -> dict:
        """Counts of the run so far."""
        executions = self._counts["executions"]
        return {"steps": self._counts["steps"], "skipped_by_scaler": self._counts["skipped_by_scaler"], "stopped": self._counts["stopped"],
                "retries": self._counts["retries"], "roll_backs": self._counts["roll_backs"],
                "steps_rolled_back": self._counts["steps_rolled_back"], "dropped": self._counts["dropped"],
                "mode_changes": self._counts["mode_changes"], "operators": len(self._monitor.operators),
                "outside_fast": self._counts["outside_fast"] / executions if executions else 0.0,
                "beyond_format": self._counts["beyond"] / executions if executions else 0.0,
                "carried": sum(self._modes.carried.values()) + self._counts["carried"], "ring_states": self._ring.steps,
                "ring_bytes": self._ring.bytes, "ranks": self._ranks.size, **self._ranks.counts, "detached": self._why}

    # --- failing

    @property
    def _is_on(self) -> bool:
        """Asked between two calls of the model."""
        if self._why is not None:
            self._take_off()
        return self._is_open and self._why is None

    def _guarded(self, function: Callable, *arguments):
        if self._why is not None or self._ranks.failure is not None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        if self._why is None and not self._ranks.defers(error):
            self._detach(str(error) if isinstance(error, Parted) else f"{type(error).__name__}: {error}", error)

    def _warn(self, text: str, *arguments) -> None:
        """What all ranks would say, once."""
        if self._ranks.rank == 0:
            log.warning(text, *arguments)

    def _together(self, function: Callable, *arguments):
        """What every rank does at the same place, also one where something of the guard has failed."""
        try:
            return function(*arguments)
        except Parted as error:
            if self._why is None:
                self._detach(str(error))
        except Exception as error:
            self._ranks.hang_up()
            self._fail(error)
        return None

    def _is_lost(self) -> bool:
        """Of a step in which the guard has ended: whether it must not reach the parameters."""
        if self._backward_error is not None:
            return True
        if self._ranks.size > 1:  # gradients are the same on all ranks, losses are not; where there is a scaler, it skips
            return self._scaler is None and not self._has_finite_gradients()
        return not all(map(math.isfinite, self._losses))

    def _take_off(self) -> None:
        self._remove(self._modes.remove, self._monitor.remove, self._incidents.remove, lambda: self._scale_by(Hints()), self._decider.close)

    # --- the parts of a step

    def _begin(self) -> None:
        """Before the first step."""
        if self._light is not None:
            return
        self._light = self._subject.light()
        self._lr = self._rates()
        if self._last_state is None and self._room():
            self._take_state(self._step - 1)

    def _settle(self) -> None:
        """Between two steps, when the script has done what it does behind a step, such as moving its learning rate."""
        if self._light is None or self._open_batches or self._attempt:
            return
        if self._is_due and self._room() and self._subject.is_finite(with_optimizer=True):
            self._take_state(self._step - 1)
        self._is_due = False
        self._light = self._subject.light()

    def _begin_batch(self, batch) -> None:
        if not self._open_batches and self._light is not None:
            self._light.random = type(self._light.random).now()
        self._open_batches.append(kept(batch))

    def _listens(self) -> bool:
        return self.is_attached and (self._step % self._every == 0 or self._attempt > 0)

    def _plain_backward(self, loss: Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _plain_step(self) -> bool:
        """As the script would have done it."""
        if self._clip is not None:
            self._clip_to(self._clip)
        before = self._scaler.get_scale() if self._scaler is not None else 0.0
        for optimizer in self._optimizers:
            optimizer.step() if self._scaler is None else self._scaler.step(optimizer)
        if self._scaler is not None:
            self._scaler.update()
            return self._scaler.get_scale() >= before
        return True

    def _clip_to(self, norm: float) -> None:
        for optimizer in self._optimizers:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([p for o in self._subject.optimizers for g in o.param_groups for p in g["params"]], norm)

    def _optimizer_step(self) -> bool:
        """The optimizer's step under the hints in force, which are taken back behind it."""
        own_clip = self._clip
        try:
            if own_clip is not None and self._follows_hints:
                self._clip = own_clip * 2.0**self._hints.clip_shift
            with self._hinted_rates():
                return self._plain_step()
        finally:
            self._clip = own_clip

    @contextlib.contextmanager
    def _hinted_rates(self) -> Iterator[None]:
        """The learning rates under the hint in force."""
        factor = self._hints.learning_rate_factor if self._follows_hints else 1.0
        groups = [group for optimizer in self._subject.optimizers for group in optimizer.param_groups if group.get("lr") is not None]
        rates = [group["lr"] for group in groups]
        try:
            if factor != 1.0:
                for group, rate in zip(groups, rates):
                    group["lr"] = rate * factor
            yield
        finally:
            if factor != 1.0:
                for group, rate in zip(groups, rates):
                    group["lr"] = rate

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self._losses.clear()
        self._backward_error = None

    def _find(self) -> Findings:
        """What this rank has found in the step."""
        seen = self._monitor.take()
        judges = self._scaler is None or self._scaler.get_scale() <= 1.0  # else an overflow is the scaler's, and ordinary
        looks = judges or bool(seen.bad((FORWARD,)))
        return Findings(seen, all(map(math.isfinite, self._losses)), self._has_finite_gradients() if looks else None, judges,
                        self._backward_error, self._is_corrupt, [0])

    def _judge(self, found: Findings) -> tuple[_Verdict | None, list[Operator]]:
        """Whether the step may reach the parameters; operators that hold Inf or NaN in SAFE as well, while loss and gradients are finite:
        they are made that way, as a mask is. The device does not judge them, and they go back to FAST."""
        seen = found.seen
        outputs = [seen.operators[i] for i in seen.bad((FORWARD,))]
        made = []
        if found.has_finite_loss and found.backward_error is None and found.has_finite_gradients:
            made = [operator for operator in outputs if self._decider.mode_of(operator) == Mode.SAFE]
            outputs = [operator for operator in outputs if operator not in made]
        if found.is_corrupt:
            return _Verdict("parameter", [], found.ranks), []
        if outputs:
            return _Verdict("output", outputs, found.ranks), made
        if not found.has_finite_loss:
            return _Verdict("loss", [], found.ranks), made
        if found.backward_error is not None:
            return _Verdict("backward", [], found.ranks), made
        if found.judges_gradients and not found.has_finite_gradients:
            return _Verdict("gradient", [seen.operators[i] for i in seen.bad(SCALED)], found.ranks), made
        return None, made

    def _facts(self) -> Facts:
        return Facts(not self._subject.is_finite(), all_finite(tensors_of_batches(self._open_batches)), self._ring.steps)

    def _has_finite_gradients(self) -> bool:
        return all_finite([p.grad for o in self._subject.optimizers for g in o.param_groups for p in g["params"] if p.grad is not None])

    def _end_step(self, seen: Seen, has_stepped: bool) -> bool | None:
        """A step that went through. Returns whether it stays: its parameters are finite; None where the guard has failed."""
        stays = self._guarded(self._close_step, seen, has_stepped)
        self._together(self._ranks.finish, False, self._decider.in_force, self._again)
        return stays

    def _close_step(self, seen: Seen, has_stepped: bool) -> bool:
        listened = self._monitor.listening
        scale_log2 = self._scale_log2()
        if listened and has_stepped:
            parameters = self._monitor.take_parameters()
            bad = parameters.bad(("weight", "optimizer"))
            self._is_corrupt = bool(bad)
            if bad and self._ranks.size == 1:
                operators = [parameters.operators[i] for i in bad]
                self._recover(_Verdict("parameter", operators), seen, self._facts())
                self._zero_grad()
                return False
        if listened:
            self._feed(seen + parameters if has_stepped and not self._is_corrupt else seen, scale_log2)
            self._incidents.stepped(self._step, seen, self._losses)
        self._incidents.next_step()
        self._counts["steps"] += 1
        self._counts["skipped_by_scaler"] += not has_stepped
        self._ring.add_batches(self._open_batches)
        self._open_batches = []
        self._losses.clear()
        self._attempt = self._informed = self._drops = 0
        self._went_back = False
        self._is_due = (self._last_state is None or self._step - self._last_state >= self._ring_every
                        or self._ranks.is_full(self._ring.is_full))
        self._step += 1
        self._announce_rates()
        if not self._uses_batches:
            self._settle()
        self._monitor.listening = self._listens()
        return True

    def _take_state(self, step: int) -> None:
        state = self._subject.take(step)
        state.scale_factor = self._scale_factor
        self._ring.add(state)
        self._last_state = step

    def _room(self) -> bool:
        refused = self._ring.refused
        fits = self._ring.fits(self._subject)
        if not fits and refused is None:
            self._warn("%s", self._ring.refused)
            self._log.note("no_ring", self._step, why=self._ring.refused)
        return fits

    # --- the device

    def _scale_log2(self) -> int:
        """Of the loss scale of this step."""
        if self._scaler is None:
            return 0
        scale = self._scaler.get_scale()
        return int(min(127, max(-128, round(math.log2(scale))))) if 0 < scale < math.inf else 0

    def _feed(self, seen: Seen, scale_log2: int, last: Operator | None = None) -> Outcome | None:
        """Completions of a step to the device, up to that of one operator if it is given, and what follows from them."""
        taken = []
        stop = seen.operators.index(last) + 1 if last in seen.operators else len(seen.operators)
        for i, operator in enumerate(seen.operators[:stop]):
            if seen.nonfinite[i] and (operator.is_ordinary or (operator.kind in SCALED and self._scaler is not None)):
                continue  # made that way, or the scaler's
            taken.append(i)
        scales = np.array([scale_log2 if seen.operators[i].kind in SCALED else 0 for i in taken], np.int8)
        outcome = self._decider.feed(self._step, seen, taken, scales)
        if outcome is not None and outcome.hints != self._hints:
            self._log.note("hints", self._step, loss_scale_shift=int(outcome.hints.loss_scale_shift),
                           clip_shift=int(outcome.hints.clip_shift), learning_rate_factor=float(outcome.hints.learning_rate_factor))
            self._hints = outcome.hints
            if self._follows_hints:
                self._scale_by(outcome.hints)
        return outcome

    def _scale_by(self, hints: Hints) -> None:
        """The loss scale under a hint, 1 at least; it replaces the hint before."""
        if self._scaler is None or getattr(self._scaler, "_scale", None) is None:
            return
        own = self._scaler.get_scale() / self._scale_factor
        factor = max(2.0**hints.loss_scale_shift, min(1.0, 1.0 / own))
        if factor != self._scale_factor:
            self._scaler.update(own * factor)
            self._scale_factor = factor

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._subject.optimizers for group in optimizer.param_groups if "lr" in group]

    def _announce_rates(self) -> None:
        rates = self._rates()
        if len(rates) == len(self._lr) and any(new > RATE_CHANGE * old or new * RATE_CHANGE < old for old, new in zip(self._lr, rates)):
            if self._decider.device is not None:
                self._decider.device.announce_learning_rate(self._step & 0xFFFFFFFF)
        self._lr = rates

    # --- the way back

    def _recover(self, verdict: _Verdict, seen: Seen, facts: Facts) -> None:
        self._attempt += 1
        self._counts["stopped"] += 1
        first = verdict.bad[0] if verdict.bad else None
        is_corrupt = verdict.what == "parameter" or facts.is_corrupt
        was_seen = self._monitor.listening
        outcome = None
        if was_seen and not is_corrupt:  # what came after the first non-finite one says nothing of itself
            outcome = self._feed(seen, self._scale_log2(), first)
        self._log.note("stopped", self._step, what=verdict.what, operator=None if first is None else first.name, attempt=self._attempt,
                       escalate=outcome is not None and bool(outcome.escalate), ranks=verdict.ranks)
        if self._attempt == 1:
            self._warn("step %d: %s%s is not finite; the step does not reach the parameters", self._step, verdict.what,
                        "" if first is None else f" of {first.name}")
        if self._attempt == 1 and self._ranks.rank in (verdict.ranks or [0]):
            self._incidents.stopped(self._step, verdict.bad, seen, self._open_batches, self._light, self._ring.newest, is_corrupt, self._losses)
        if is_corrupt:
            self._roll_back(facts.states[-1:], "the parameters are not finite")
            return
        self._informed += was_seen
        if not facts.has_finite_batches:
            self._drop("the batch itself is not finite", facts)
            return
        if not self._decider.follows or self._informed >= ATTEMPTS:
            self._drop(f"{verdict.what} is not finite{' in any mode' if self._decider.follows else ''}", facts)
            return
        if self._informed and not self._to_safe(verdict):
            self._drop(f"{verdict.what} is not finite{' in any mode' if self._monitor.operators else ''}", facts)
            return
        self._retry()

    def _retry(self) -> None:
        """The step's batches come again, in the modes that are in force now."""
        batches, self._open_batches = self._open_batches, []
        self._again.extendleft(reversed(batches))
        self._counts["retries"] += 1
        self._log.note("retry", self._step, batches=len(batches), safe=sorted(self._safe()))
        if self._light is not None:
            self._subject.put_light(self._light)
        self._next_try()

    def _next_try(self) -> None:
        self._monitor.drop()
        self._incidents.next_step()
        self._monitor.listening = self._listens()

    def _safe(self) -> list[str]:
        return [name for name, mode in self.modes().items() if mode == Mode.SAFE.name]

    def _to_safe(self, verdict: _Verdict) -> bool:
        """The operator that was non-finite first, at the next attempt all that were, then all: to SAFE. What is there already leads to
        the next stage. Returns whether any was not."""
        stage, changed = self._decider.to_safe(self._step, verdict.bad, self._informed, ATTEMPTS)
        self._informed = max(self._informed, stage)
        return changed

    def _drop(self, why: str, facts: Facts) -> None:
        """The step's batches are given up; too many in a row, and the parameters are to blame."""
        self._drops += 1
        self._counts["dropped"] += 1
        self._log.note("dropped", self._step, batches=len(self._open_batches), why=why)
        self._open_batches = []
        self._put_back()
        self._attempt = self._informed = 0
        if self._drops >= DROPS:
            if self._went_back:
                self._detach(f"{self._drops} steps in a row are not finite, from the oldest state on as well")
                return
            self._drops, self._went_back = 0, True
            self._roll_back(facts.states[:1], f"{DROPS} steps in a row are not finite in any mode")
            return
        self._next_try()

    def _put_back(self) -> None:
        """What a step has changed besides random numbers, where its batches do not come again."""
        if self._light is not None:
            random = type(self._light.random).now()
            self._subject.put_light(self._light)
            random.restore()

    def _roll_back(self, to: list[int], why: str) -> None:
        """To the state after a step; `to` is empty where there is none that every rank has."""
        state = self._ring.at(to[0]) if to else None
        if state is None:
            self._detach(f"{why}, and there is no state to go back to ({self._ring.refused or 'none was taken'})")
            return
        lost = [batch for step in self._ring.since(state) for batch in step] + self._open_batches
        self._open_batches = []
        self._again.extendleft(reversed(lost))
        self._subject.put(state)
        self._ring.back_to(state)
        self._counts["roll_backs"] += 1
        self._counts["steps_rolled_back"] += self._step - state.step - 1
        self._log.note("roll_back", self._step, to=state.step, batches=len(lost), why=why)
        self._warn("step %d: %s; back to the state after step %d", self._step, why, state.step)
        self._is_corrupt = False
        self._scale_factor = state.scale_factor
        if self._follows_hints:
            self._scale_by(self._hints)
        self._step = state.step + 1
        self._last_state = state.step
        self._attempt = self._informed = 0
        self._light = self._subject.light()
        self._next_try()
