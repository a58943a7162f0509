"""A policy that changes no precision: it has the loss scale alone, as a training loop without the device's modes.

Copy this file to try another rule: `opd replay --policy my_loss_scale.py`.
"""
from opd.policy.base import Hints, Policy
from opd.registers import Mode

SCALED = ("gradient", "collective")  # kinds that have the loss scale in them


class LossScaleOnly(Policy):
    """Every operator stays in FAST. An alarm of an operator that has the loss scale in it halves the loss scale, down to 2^-8 of the
    loop's own; after `quiet_steps` steps without one it is doubled again. A GradScaler waits for the overflow; this one is told before.

    The device judges operators that are locked as well: their records have flags and risk."""

    def __init__(self, quiet_steps: int = 64, smallest_shift: int = -8):
        self.quiet_steps, self.smallest_shift = quiet_steps, smallest_shift
        self.shift = 0
        self.quiet_since = 0

    def start(self, operators, device):
        for operator in operators:
            device.set_operator(operator.op, mode=Mode.FAST, locked=True)
        device.set_hints(Hints())

    def on_step(self, step, device):
        ops = step.records["op"]
        for op in ops[~device.locked[ops]]:  # that a guard has seen since
            device.set_operator(op, mode=Mode.FAST, locked=True)
        alarms = ops[step.records["risk"] >= device.config["risk_stable"]]
        shift = self.shift
        if any(step.operators[op].kind in SCALED for op in alarms):
            shift, self.quiet_since = max(self.smallest_shift, shift - 1), step.number
        elif shift < 0 and step.number - self.quiet_since >= self.quiet_steps:
            shift, self.quiet_since = shift + 1, step.number
        if shift != self.shift:
            self.shift = shift
            device.set_hints(Hints(loss_scale_shift=shift))
