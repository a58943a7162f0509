"""A policy without forecasts: an operator leaves FAST when its magnitude comes within some bits of its format's limit.

To try another rule, copy this file: `opd replay --policy my_headroom.py`.
"""
import numpy as np

from opd.policy.base import Policy
from opd.registers import Mode


class StaticHeadroom(Policy):
    """STABLE while the headroom is at most `bits`, one mode further when a value is not finite, and one mode back after `quiet_steps`
    steps with more headroom. The built-in controller decides nothing: every operator is locked.

    Headroom is that to the operator's own format, so one that runs in BF16 for now is still judged by what FAST can hold."""

    def __init__(self, bits: float = 1.0, quiet_steps: int = 64):
        self.bits, self.quiet_steps = bits, quiet_steps
        self.quiet_since: dict[int, int] = {}  # operators outside of FAST: step from which on they have been quiet

    def start(self, operators, device):
        for operator in operators:
            device.set_operator(operator.op, locked=True)

    def on_step(self, step, device):
        ops = step.records["op"]
        near = step.nonfinite | (step.headroom <= self.bits)
        for i in np.flatnonzero(near | (device.modes[ops] != Mode.FAST) | ~device.locked[ops]):
            op, mode = int(ops[i]), Mode(device.modes[ops[i]])
            if step.nonfinite[i]:
                wanted = Mode(min(mode + 1, Mode.SAFE))
            elif near[i]:
                wanted = max(mode, Mode.STABLE)
            elif mode != Mode.FAST and step.number - self.quiet_since.setdefault(op, step.number) >= self.quiet_steps:
                wanted = Mode(mode - 1)
            else:
                wanted = mode
            if near[i] or wanted != mode:
                self.quiet_since.pop(op, None)
            if wanted != mode or not device.locked[op]:
                device.set_operator(op, mode=wanted, locked=True)
