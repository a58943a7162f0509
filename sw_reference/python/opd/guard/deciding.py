"""What a guard asks the device, and what it makes of the answers: completions go in, modes of the modules come out. The guards of a
training run (session) and of a generation loop (generation) are both built on it."""
from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from opd.device import Outcome
from opd.guard.decisions import DecisionLog
from opd.guard.device import places_for
from opd.guard.holding import Holding, is_too_narrow
from opd.guard.modes import Modes, Plan
from opd.guard.monitor import Monitor, Operator, Seen
from opd.registers import Cause, Mode

log = logging.getLogger("opd.guard")


class Decider:
    """The device of one guard, and the modes in force.

    make_device  function (number of operators) -> device; called when the first operators are known
    follows      whether the modules follow the modes of their operators
    holds        whether operators are kept in STABLE while their own format is too narrow (a policy decides that itself)
    counts       gets executions, outside_fast, beyond, mode_changes, carried
    """

    def __init__(self, make_device: Callable[[int], object], monitor: Monitor, modes: Modes, decisions: DecisionLog, counts: Counter[str],
                 follows: bool, holds: bool = True):
        self._make_device, self._monitor, self._modes = make_device, monitor, modes
        self._log, self._counts, self.follows, self._holds = decisions, counts, follows, follows and holds
        self.device = None
        self.in_force: np.ndarray = np.zeros(0, np.uint8)  # mode of every operator
        self._holding = Holding()
        self._over: set[str] = set()                       # operators that the device has no place for

    def open(self) -> None:
        """Makes the device, with places for the operators that are known and, if it can, as many again. Raises GuardError."""
        places = places_for(self._make_device, len(self._monitor.operators))
        self.device = self._make_device(places)
        self.in_force = np.zeros(places, np.uint8)

    def close(self) -> None:
        device, self.device = self.device, None
        if device is not None:
            device.close()

    def mode_of(self, operator: Operator) -> Mode | None:
        """None where the device has no place for it, or there is no device yet."""
        return Mode(int(self.in_force[operator.op])) if operator.op < len(self.in_force) else None

    def outside_fast(self) -> dict[str, str]:
        """Operators that are not in FAST, and their modes."""
        modes = {operator.name: self.mode_of(operator) for operator in self._monitor.operators}
        return {name: mode.name for name, mode in modes.items() if mode}

    def feed(self, step: int, seen: Seen, taken: Sequence[int], scale_log2: np.ndarray | None = None) -> Outcome | None:
        """Hands completions of a step to the device and follows the modes that it answers with. taken: places of those in `seen`;
        scale_log2: int8, of each of them. None where there was nothing to hand over."""
        if not len(taken):
            return None
        if self.device is None:
            self.open()
        kept = [number for number, i in enumerate(taken) if seen.operators[i].op < len(self.in_force)]
        places = [taken[number] for number in kept]
        left = {seen.operators[i].name for i in taken} - {seen.operators[i].name for i in places} - self._over
        if left:
            self._over |= left
            log.warning("%d operators were seen too late to be watched: %s", len(left), ", ".join(sorted(left)[:5]))
        if not places:
            return None
        op = np.array([seen.operators[i].op for i in places], np.uint16)
        scale = np.zeros(len(places), np.int8) if scale_log2 is None else scale_log2[kept]
        outcome = self.device.step(step & 0xFFFFFFFF, op, seen.format[places], seen.max_mag()[places], seen.elements[places],
                                   seen.nonfinite[places], np.zeros(len(places), np.uint32), scale)
        self._counts["executions"] += len(places)
        self._counts["outside_fast"] += int(np.count_nonzero(self.in_force[op]))
        self._counts["beyond"] += sum(is_too_narrow(seen.operators[i], float(seen.max_abs[i]), 1.0) for i in places)
        names = self._monitor.operators
        reported = self.in_force.copy()
        for event in outcome.events:
            reported[event.op] = event.new_mode
            if event.old_mode != event.new_mode:
                self._note_mode(step, names[event.op], Mode(event.old_mode), Mode(event.new_mode), Cause(event.cause).name, int(event.risk))
        self.in_force = np.array(outcome.modes, np.uint8)
        for number in np.flatnonzero(self.in_force[:len(names)] != reported[:len(names)]):  # no event: a command
            self._note_mode(step, names[number], Mode(int(reported[number])), Mode(int(self.in_force[number])), "POLICY", 0)
        self._hold(step, seen, places)
        self.apply(step)
        return outcome

    def _hold(self, step: int, seen: Seen, places: Sequence[int]) -> None:
        if not self._holds:
            return
        taken, released = self._holding.update(self.device, ((seen.operators[i], float(seen.max_abs[i])) for i in places), self.in_force)
        if taken or released:
            self._log.note("held", step, operators=taken, released=released)

    def put(self, step: int, operators: Iterable[Operator], mode: Mode) -> None:
        """Operators into a mode that the device did not ask for."""
        for operator in operators:
            self.device.set_operator(operator.op, mode=int(mode))
            self._note_mode(step, operator, self.mode_of(operator), mode, "RECOVERY", 255)
            self.in_force[operator.op] = mode
        self.apply(step)

    def excuse(self, step: int, operators: Sequence[Operator]) -> None:
        """Operators that hold Inf or NaN by design: the device judges them no more, and they go back to FAST."""
        for operator in operators:
            operator.is_ordinary = True
            self.device.set_operator(operator.op, mode=int(Mode.FAST), disabled=True)
            self.in_force[operator.op] = Mode.FAST
        self.apply(step)
        self._log.note("ordinary", step, operators=[operator.name for operator in operators])

    def to_safe(self, step: int, found: Sequence[Operator], first_stage: int, stages: int) -> tuple[int, bool]:
        """One stage of a recovery: stage 1 puts the first of the operators to blame into SAFE, stage 2 all of them, a later one every
        operator that has a module. Stages that would change nothing are passed over. Returns the stage, and whether it changed any."""
        found = [operator for operator in found if operator.module]
        everything = [operator for operator in self._monitor.operators if operator.module and not operator.is_ordinary]
        if self.device is None and everything:
            self.open()
        stage, chosen = first_stage, []
        for stage in range(first_stage, stages):
            chosen = found[:1] if stage == 1 else found if stage == 2 else everything
            chosen = [operator for operator in chosen if self.mode_of(operator) not in (None, Mode.SAFE)]
            if chosen:
                break
        self.put(step, chosen, Mode.SAFE)
        return stage, bool(chosen)

    def apply(self, step: int) -> None:
        """The modules follow the modes in force."""
        if not self.follows:
            return
        levels: dict[str, dict[str, Mode]] = {}
        for operator in self._monitor.operators:
            mode = self.mode_of(operator)
            if operator.module and mode:
                parts = levels.setdefault(operator.module, {})
                parts[operator.part] = max(parts.get(operator.part, Mode.FAST), mode)
        self.note_carried(step)
        self._modes.apply({name: Plan(**parts) for name, parts in levels.items()})

    def note_carried(self, step: int) -> None:
        for name, calls in self._modes.carried.items():
            self._log.note("carried", step, module=name, calls=calls)
            self._counts["carried"] += calls
        self._modes.carried.clear()

    def _note_mode(self, step: int, operator: Operator, old: Mode, new: Mode, cause: str, risk: int) -> None:
        self._counts["mode_changes"] += 1
        self._log.note("mode", step, operator=operator.name, old=old.name, new=new.name, cause=cause, risk=risk)
