"""The device as a policy has it: what software knows of it, and the commands of docs/programming.md."""
from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import numpy as np

from opd.device_config import checked
from opd.policy.base import Hints, Operator
from opd.registers import CONFIG_RESET, Mode
from opd.texts import suggestion
from opd.trace import FORMATS

# Commands as tuples: what they are called in summary.json, and what follows
SET, RESEED, CLEAR, CONFIGURE, LEARNING_RATE, HINTS = "set", "reseed", "clear", "configure", "learning_rate", "hints"
ALL = (SET, RESEED, CLEAR, CONFIGURE, LEARNING_RATE, HINTS)
_SHIFTS = ("loss_scale_shift", "clip_shift")


class Device:
    """Keeps commands until they are taken. Every method raises ValueError for what the device would refuse, and changes nothing then.

    operators  in the order of their numbers
    config     configuration in force, every field
    allowed    commands that this host can give

    modes uint8 [operators], locked and disabled bool [operators]: as they will be at the next step, read only.
    limits float64 [operators]: largest finite value of each operator's own format.
    """

    def __init__(self, operators: Sequence[Operator], config: Mapping[str, float], allowed: Sequence[str] = ALL):
        self.operators = operators
        self._config = {**CONFIG_RESET, **config}
        self._allowed = allowed
        self._mode, self._locked, self._disabled = (np.zeros(0, np.uint8), np.zeros(0, bool), np.zeros(0, bool))
        self._commands: list[tuple] = []
        self.limits = np.zeros(0)
        self._grow()

    @property
    def modes(self) -> np.ndarray:
        return self._shown(self._mode)

    @property
    def locked(self) -> np.ndarray:
        return self._shown(self._locked)

    @property
    def disabled(self) -> np.ndarray:
        return self._shown(self._disabled)

    @property
    def config(self) -> dict[str, float]:
        return dict(self._config)

    def set_operator(self, op: int, mode: int | None = None, locked: bool | None = None, disabled: bool | None = None) -> None:
        """SET: mode, lock and disable of an operator; None keeps. The operator's timer restarts. One that is locked keeps its mode
        whatever the controller says, one that is disabled is not judged."""
        self._check(SET)
        op = self._op(op)
        if mode is not None:
            mode = _whole("mode", mode)
            if mode not in list(Mode):
                raise ValueError(f"mode: {mode} is none; give Mode.FAST, STABLE or SAFE")
            self._mode[op] = mode
        for name, value, held in (("locked", locked, self._locked), ("disabled", disabled, self._disabled)):
            if value is None:
                continue
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"{name}: {value!r} is neither True nor False")
            held[op] = value
        self._commands.append((SET, op, int(self._mode[op]), bool(self._locked[op]), bool(self._disabled[op])))

    def reseed(self, op: int) -> None:
        """RESEED: the operator's baselines start again; mode, lock, disable and timer stay."""
        self._check(RESEED)
        self._commands.append((RESEED, self._op(op)))

    def clear(self, op: int) -> None:
        """CLEAR: everything of the operator as after reset: FAST, unlocked, enabled, no baseline."""
        self._check(CLEAR)
        op = self._op(op)
        self._mode[op], self._locked[op], self._disabled[op] = Mode.FAST, False, False
        self._commands.append((CLEAR, op))

    def configure(self, **fields: float) -> None:
        """Writes configuration fields, by the names of `opd registers`; the others stay."""
        self._check(CONFIGURE)
        written = {}
        for name, value in fields.items():
            if name not in CONFIG_RESET:
                raise ValueError(f"{name}: is no configuration field; {suggestion(name, CONFIG_RESET, 'opd registers lists the fields')}")
            written[name] = checked(name, value.item() if isinstance(value, np.generic) else value, _fail)
        self._config |= written
        self._commands.append((CONFIGURE, written))

    def announce_learning_rate(self, step: int) -> None:
        """LEARNING_RATE_CHANGE: the learning rate changes with this training step."""
        self._check(LEARNING_RATE)
        step = _whole("step", step)
        if not 0 <= step < 1 << 32:
            raise ValueError(f"step: {step} is not in 0..{(1 << 32) - 1}")
        self._commands.append((LEARNING_RATE, step))

    def set_hints(self, hints: Hints | None) -> None:
        """What the training loop is told from now on in place of the device's own hints; None: these again. A matter of the host: the
        device is not told."""
        self._check(HINTS)
        if hints is None:
            self._commands.append((HINTS, None))
            return
        if not isinstance(hints, Hints):
            raise ValueError(f"hints: {type(hints).__name__} is not opd.policy.Hints")
        shifts = [_whole(name, getattr(hints, name)) for name in _SHIFTS]
        for name, shift in zip(_SHIFTS, shifts):
            if not -128 <= shift <= 127:
                raise ValueError(f"{name}: {shift} is not in -128..127")
        factor = hints.learning_rate_factor
        if not isinstance(factor, (int, float)) or not 0 <= factor <= 1:
            raise ValueError(f"learning_rate_factor: {factor!r} is not in 0..1")
        self._commands.append((HINTS, (*shifts, round(factor * 65536))))

    # --- what the host does

    def see(self, records: np.ndarray) -> None:
        """Modes after a step's records."""
        self._grow()
        self._mode[records["op"]] = records["mode"]

    def follow(self, op: int, mode: int | None, locked: bool | None, disabled: bool | None) -> None:
        """A SET that is not the policy's."""
        self._grow()
        for value, held in ((mode, self._mode), (locked, self._locked), (disabled, self._disabled)):
            if value is not None and op < len(held):
                held[op] = value

    def take(self) -> list[tuple]:
        """The commands since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def _grow(self) -> None:
        more = len(self.operators) - len(self._mode)
        if more > 0:
            formats = [operator.format for operator in self.operators[-more:]]
            self.limits = np.append(self.limits, [float(FORMATS[name].max_value) for name in formats])
            self._mode, self._locked, self._disabled = (np.concatenate((held, np.zeros(more, held.dtype)))
                                                        for held in (self._mode, self._locked, self._disabled))

    def _check(self, command: str) -> None:
        if command not in self._allowed:
            raise ValueError(f"{command}: is no command that can be given here; there are {', '.join(self._allowed)}")

    def _op(self, op: int) -> int:
        op = _whole("op", op)
        self._grow()
        if not 0 <= op < len(self._mode):
            raise ValueError(f"op: there is no operator {op}; they are 0..{len(self._mode) - 1}")
        return op

    @staticmethod
    def _shown(held: np.ndarray) -> np.ndarray:
        view = held.view()
        view.flags.writeable = False
        return view


def _whole(name: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not a whole number") from None


def _fail(name: str, wrong: str, remedy: str) -> None:
    raise ValueError(f"{name.removeprefix('config.')}: {wrong}; {remedy}")
