"""The arms without guard: what is done with a step of a run, and when it is given up. docs/closed_loop.md says what each stands for."""

from __future__ import annotations

import copy
import math

import torch
from closed_loop.runs import Run
from closed_loop.subject import Subject
from closed_loop.zclip import ZClip
from workloads.text import Text

CHECKPOINT_EVERY = 16  # steps, as the guard's
RESTORES = 10          # then the run is given up


class Arm:
    """A run without a remedy: FP16 under the scenario's loss scale, which stays as it is, and no look at the gradients; BF16 where the
    scenario is."""
    name = "nothing"
    wide: str | None = None
    scaled = False
    perturbed = False

    def __init__(self, run: Run, text: Text):
        self.subject = Subject(run, text, self.wide, self.scaled, self.perturbed)
        self.reached: set[int] = set()  # batches whose steps are in the parameters
        self.why: str | None = None     # it was given up
        self._scale = run.scenario.training.init_loss_scale if self.subject.precision == "FP16" else 1.0

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def batches(self):
        return self.subject.batches()

    def step(self, index: int, batch) -> float:
        """One batch; its loss. The batch counts as reached when the optimizer has stepped and the parameters are finite."""
        subject = self.subject
        self.reached.discard(index)
        subject.begin(index)
        subject.optimizer.zero_grad()
        loss = subject.loss(batch)
        if self.take(loss):
            self.reached.add(index)
        return float(loss.detach())

    def take(self, loss) -> bool:
        """Backward and the optimizer's step; whether it was made."""
        (loss * self._scale).backward()
        if self._scale != 1.0:
            for parameter in self.subject.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._scale)
        self.subject.clip()
        self.subject.optimizer.step()
        if not self.subject.is_finite():
            self.why = "the parameters are not finite"
            return False
        return True

    def figures(self) -> dict:
        return {}


class Bf16(Arm):
    """Everything in BF16, without loss scale and without casts to 8 bits."""
    name = "BF16"
    wide = "BF16"


class Fp32(Arm):
    """Everything in FP32."""
    name = "FP32"
    wide = "FP32"


class Twin(Fp32):
    """FP32 once more, from weights that differ by a rounding error: what two runs differ by that nothing ails."""
    name = "FP32 again"
    perturbed = True


class Scaler(Arm):
    """The scenario as it is: GradScaler where it is in FP16."""
    name = "GradScaler"
    scaled = True

    def clip(self) -> None:
        self.subject.clip()

    def take(self, loss) -> bool:
        subject, scaler = self.subject, self.subject.scaler
        scaler.scale(loss).backward()
        scaler.unscale_(subject.optimizer)
        self.clip()
        before = scaler.get_scale()
        scaler.step(subject.optimizer)
        scaler.update()
        self.look_at_the_scale()
        if not subject.is_finite():
            self.spoilt()
            return False
        return scaler.get_scale() >= before

    def look_at_the_scale(self) -> None:
        scaler = self.subject.scaler
        if scaler.is_enabled() and scaler.get_scale() < self.subject.settings.min_loss_scale:
            self.why = f"the loss scale fell below {self.subject.settings.min_loss_scale:g}: every step is skipped"

    def spoilt(self) -> None:
        self.why = "the parameters are not finite"


class Zclip(Scaler):
    """GradScaler, and ZClip in the place of the scenario's clipping."""
    name = "ZClip"

    def __init__(self, run: Run, text: Text):
        super().__init__(run, text)
        self._zclip = ZClip()

    def clip(self) -> None:
        grads = [parameter.grad for parameter in self.subject.parameters if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(grads))
        limit = self._zclip.norm(norm)
        if norm > limit:  # a norm that is not finite: the scaler's, as theirs
            torch._foreach_mul_(grads, limit / (norm + 1e-6))


class Checkpoint(Scaler):
    """GradScaler, and a checkpoint every CHECKPOINT_EVERY steps that is restored when loss or parameters are not finite; the run goes
    on with the batches that come next."""
    name = "checkpoint"

    def __init__(self, run: Run, text: Text):
        super().__init__(run, text)
        self._since: list[int] = []
        self._restores = 0
        self._save()

    def _save(self) -> None:
        subject = self.subject
        self._held = copy.deepcopy((subject.model.state_dict(), subject.optimizer.state_dict(), subject.scaler.state_dict()))
        self._since = []

    def _restore(self) -> None:
        self._restores += 1
        if self._restores > RESTORES:
            self.why = f"restored {RESTORES} times, and not finite again"
            return
        model, optimizer, scaler = copy.deepcopy(self._held)
        self.subject.model.load_state_dict(model)
        self.subject.optimizer.load_state_dict(optimizer)
        if scaler:
            self.subject.scaler.load_state_dict(scaler)
        self.reached.difference_update(self._since)
        self._since = []

    def step(self, index: int, batch) -> float:
        self._is_spoilt = False
        self._since.append(index)
        loss = super().step(index, batch)
        if self.why is None and (self._is_spoilt or not math.isfinite(loss)):
            self.reached.discard(index)
            self._restore()
        elif len(self._since) >= CHECKPOINT_EVERY:
            self._save()
        return loss

    def spoilt(self) -> None:
        self._is_spoilt = True

    def figures(self) -> dict:
        return {"restores": self._restores}


ARMS = {arm.name: arm for arm in (Arm, Scaler, Checkpoint, Zclip, Bf16, Fp32, Twin)}
