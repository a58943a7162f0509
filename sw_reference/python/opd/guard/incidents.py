"""What a guard does about an incident beside the way back: a bundle of the step, the operator to blame where nothing that is watched shows it,
and the words about it."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from opd.guard.decisions import DecisionLog
from opd.guard.errors import GuardError
from opd.guard.monitor import Monitor, Operator, Seen
from opd.guard.ring import Light, State, Subject, all_finite, bytes_of_budget, size_of, tensors_of_batches
from opd.localise.calls import MOST_CALLS, NO_LOSS, NO_LOSS_TEXT, Calls, MeanLoss, ReplayedCalls
from opd.localise.errors import LocaliseError
from opd.localise.finding import HARDWARE, NONE, Finding
from opd.localise.finding import Seen as SeenThen
from opd.localise.hooks import lifted
from opd.localise.random_state import RandomStates
from opd.triage.keeper import Keeper

log = logging.getLogger("opd.guard")

MOST = 4           # bundles, and searches, of a run
BUDGET = "1GiB"    # of the folder
REMEDY = " Pass loss_of=, a function of (model, batch) that returns the loss."


class Incidents:
    """folder: for bundles, None for none; most: of them; budget: bytes or a text; loss_of: the run's loss function of (model, batch), None where it
    is not known; localises: whether to search for the operator when a stopped step shows none. Raises GuardError."""

    def __init__(self, subject: Subject, decisions: DecisionLog, folder, most: int, budget: str | int, loss_of: Callable | None,
                 localises: bool):
        if loss_of is not None and not callable(loss_of):
            raise GuardError(f"loss_of: {type(loss_of).__name__} is no function of (model, batch); give one that returns the loss")
        if type(most) is not int or most < 0:
            raise GuardError(f"incident_limit: {most!r} is not a whole number from 0 on; correct it")
        self._subject, self._log = subject, decisions
        self._folder = None if folder is None else Path(folder)
        try:
            self._left = bytes_of_budget(budget)
        except GuardError:
            raise GuardError(f"incident_budget: {budget!r} is no size; give bytes, or a text such as \"1GiB\"") from None
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GuardError(f"incidents: {folder} cannot be made ({error.strerror}); give a folder that can be written to") from None
        self._loss_of, self._localises, self._most = loss_of, localises, most
        self._bundles = self._searches = 0
        self._last: int | None = None    # step of the last bundle: after a roll-back it may come again
        self._keeper = Keeper()
        self._calls: Calls | None = None
        self._scale = self._scale_now()  # of the open step
        self._history = None             # up to the first incident

    def watch(self, monitor: Monitor) -> None:
        """Once the arguments of the guard are known to be right. monitor: what sees the operators."""
        self._monitor = monitor
        if self._folder is not None or self._localises:
            self._calls = Calls(self._subject.model, keep_random=False)  # the guard has them

    def stepped(self, step: int, seen: Seen, losses: Sequence[float]) -> None:
        """A step that went through, or one that was stopped."""
        self._keeper.add(step, [(operator.name, operator.kind, operator.own, int(elements)) for operator, elements
                                in zip(seen.operators, seen.elements)], np.nan_to_num(seen.max_abs, posinf=0.0), seen.nonfinite,
                         {"loss": float(np.mean(losses)) if losses else None, "loss_scale": self._scale}, self._rates())

    def next_step(self) -> None:
        """What the model is called with from now on is of another step, or another attempt."""
        if self._calls is not None:
            self._calls.next_step()
        self._scale = self._scale_now()

    def stopped(self, step: int, bad: list[Operator], seen: Seen, batches: list, light: Light | None, newest: State | None,
                is_corrupt: bool, losses: Sequence[float]) -> None:
        """The first attempt of a step that is not let through: a bundle, and where `bad` is empty of operators that have a module, the one that
        a search names is put there. newest: state of the ring. Never raises."""
        try:
            self.stepped(step, seen, losses)
            history = self._keeper.trace("guard", [(self._first_name(group), len(group["params"]))
                                                   for optimizer in self._subject.optimizers for group in optimizer.param_groups])
            self._history = self._history or history
            before = newest if newest is not None and newest.step == step - 1 else None
            if self._calls is None:
                return
            replay = self._replay(batches)
            if replay is not None and is_corrupt and before is None:
                replay = None
            if self._folder is not None and self._bundles < self._most and step != self._last:
                self._write(step, bad, seen, replay, light, before, is_corrupt, history)
            is_open = not is_corrupt and not any(operator.module for operator in bad) and all_finite(tensors_of_batches(batches))
            if self._localises and is_open and replay is not None and self._searches < self._most:
                bad[:0] = self._search(step, replay, light)
        except Exception as error:
            log.warning("step %d: nothing more is said of the incident: %s: %s", step, type(error).__name__, error)
            log.debug("incident", exc_info=True)

    def tell(self) -> None:
        """The last line: the first incident in words, with what detectors would have said of it. Never raises."""
        if self._history is None:
            return
        try:
            from opd.triage import triage

            log.warning("%s", triage(self._history).sentence())
        except Exception:
            log.debug("the incident could not be put into words", exc_info=True)

    def remove(self) -> None:
        if self._calls is not None:
            self._calls.remove()

    # --- within

    def _scale_now(self) -> float | None:
        return None if self._subject.scaler is None else float(self._subject.scaler.get_scale())

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._subject.optimizers for group in optimizer.param_groups if "lr" in group]

    def _replay(self, batches: list) -> tuple[Callable, object, str] | None:
        """The function of the step, its batch, and what is missing; None where nothing can be replayed."""
        if self._loss_of is not None:
            if not batches:
                return None
            return (self._loss_of, batches[0], "") if len(batches) == 1 else (MeanLoss(self._loss_of), list(batches), "")
        if not self._calls.calls or self._calls.too_many:
            return None
        return ReplayedCalls(self._calls.how), list(self._calls.calls), NO_LOSS_TEXT + REMEDY if self._calls.how == NO_LOSS else ""

    def _missing(self) -> str:
        if self._loss_of is not None:
            return "the step's batches are not known; take them from g.batches(loader)"
        if self._calls.too_many:
            return f"the model was called more than {MOST_CALLS} times in the step; pass loss_of=, and take the batches from g.batches(loader)"
        return "the model was not called in the step; pass loss_of=, and take the batches from g.batches(loader)"

    def _write(self, step: int, bad: list[Operator], seen: Seen, replay, light: Light | None, before: State | None, is_corrupt: bool,
               history) -> None:
        from opd.localise.bundle import free_path, write_bundle

        self._bundles, self._last = self._bundles + 1, step
        path = free_path(self._folder / f"step-{step:08d}")
        if replay is None:
            why = "the parameters are not finite, and no state from right before the step is kept" if is_corrupt else self._missing()
            self._refuse(step, why)
            return
        function, batch, note = replay
        size = size_of([list(self._subject.model.state_dict().values()), batch,
                        [[dict(entry) for entry in optimizer.state.values()] for optimizer in self._subject.optimizers]])
        if size > self._left:
            self._refuse(step, f"it takes {size / 2**20:.1f} MiB, {max(0, self._left) / 2**20:.1f} MiB are left; give incident_budget a larger size")
            return
        names = set(dict(self._subject.model.state_dict(keep_vars=True)))
        state = dict(before.parameters) | dict(before.buffers) if before is not None and is_corrupt else {}
        state |= {} if state else self._buffers(light)
        first = bad[0] if bad else None
        shown = None
        if first is not None and (first.kind == "activation" or not note):
            at = seen.operators.index(first) if first in seen.operators else None
            shown = SeenThen(first.name, 0 if at is None else int(seen.nonfinite[at]), None if at is None else float(seen.max_abs[at]))
        try:
            write_bundle(path, self._subject.model, batch, function, number=step, loss_scale=self._scale or 1.0, autocast=self._autocast(),
                         optimizer=self._subject.optimizers, seen=shown, state={name: tensor for name, tensor in state.items() if name in names},
                         states=self._random(light), scaler=self._subject.scaler, history=history, note=note)
        except LocaliseError as error:
            self._refuse(step, str(error))
            return
        self._left -= sum(file.stat().st_size for file in path.iterdir())
        self._log.note("bundle", step, path=str(path), missing=note)
        log.warning("step %d: an incident bundle is in %s; opd localise %s --trust", step, path, path)

    def _refuse(self, step: int, why: str) -> None:
        self._log.note("no_bundle", step, why=why)
        log.warning("step %d: no incident bundle: %s", step, why)

    def _search(self, step: int, replay, light: Light | None) -> list[Operator]:
        """The watched operators of the module that the search names, the nearest around it that is watched."""
        from opd.localise.search import localise

        function, batch, note = replay
        self._searches += 1
        model, listening = self._subject.model, self._monitor.listening
        self._monitor.listening = False  # hooks on parameters are no modules' hooks
        try:
            with lifted(model), self._calls.as_before():
                finding = localise(lambda: function(model, batch), model, batch=batch, number=step, loss_scale=self._scale or 1.0,
                                   autocast=self._autocast(), optimizer=self._subject.optimizers, states=self._random(light))
        except LocaliseError as error:
            log.warning("step %d: not localised: %s", step, error)
            return []
        finally:
            self._monitor.listening = listening
        found = [] if finding.kind in (NONE, HARDWARE) else self._operators_of(finding)
        self._log.note("localised", step, kind=finding.kind, operator=finding.operator, substep=finding.substep, replays=finding.replays,
                       watched=[operator.name for operator in found])
        if finding.operator is not None:
            log.warning("step %d: localised in %d replays: %s%s: %s", step, finding.replays, finding.operator,
                        f", in {finding.substep}" if finding.substep else "", finding.kind)
        return found

    def _operators_of(self, finding: Finding) -> list[Operator]:
        name = (finding.operator or "").partition("#")[0].removesuffix(":grad")
        module = name.rpartition(":")[0] or name
        part = {"logits": "logits", "softmax": "softmax"}.get(finding.function or "", "whole")
        while True:
            alike = [operator for operator in self._monitor.operators if operator.module == (module or "model") and operator.kind == "activation"]
            if alike:
                return [operator for operator in alike if operator.part == part] or alike
            if not module:
                return []
            module = module.rpartition(".")[0]

    def _autocast(self) -> dict | None:
        return self._calls.autocast if self._loss_of is None else None

    @staticmethod
    def _random(light: Light | None) -> RandomStates | None:
        """From before the step: when its batch was given, else when the step before had ended."""
        if light is None:
            return None
        return RandomStates(light.random.torch_, tuple(light.random.cuda), light.random.python, light.random.numpy)

    def _buffers(self, light: Light | None) -> dict:
        return self._calls.buffers if self._calls.calls or light is None else dict(light.buffers)

    def _first_name(self, group: dict) -> str:
        names = {id(parameter): name for name, parameter in self._subject.model.named_parameters()}
        return next((names[id(p)] for p in group["params"] if id(p) in names), "")
