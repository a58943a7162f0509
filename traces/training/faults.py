"""What is done to a run on purpose: flipped bits, bad batches, broken masks, drifting inputs. The manifest names it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from workloads.workload import Batch, Workload

KINDS = {
    "flip-weight": "bit {bit} of one element of {target}, as FP16, is flipped for good",
    "flip-activation": "bit {bit} of one element of the output of {target} is flipped",
    "repeat-token": "every input of the batch is the same token",
    "constant-rows": "the output of {target} is the same along its last dimension: no variance",
    "hidden-query": "one query of {target} is masked from every key: its softmax is 0 / 0",
    "nan-input": "one element of the input is NaN",
    "input-drift": "inputs are multiplied by {factor} to the power of the steps since then",
}
LASTING = ("flip-weight", "input-drift")  # these have no end; the others last `steps` steps

# Class of a run with that fault; a kind that is not named here leaves the class to what the trace shows.
CLASSES = {"flip-weight": "injected", "flip-activation": "injected", "constant-rows": "injected", "hidden-query": "injected",
           "repeat-token": "data", "nan-input": "data"}


@dataclass(frozen=True)
class Fault:
    """One of KINDS, in `steps` steps from `step` on."""
    kind: str
    step: int
    steps: int = 1
    target: str = ""      # name of a module; of a parameter for flip-weight
    bit: int = 14         # 14 is the highest exponent bit of FP16
    factor: float = 1.0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"fault.kind: {self.kind!r} is unknown; use one of {', '.join(KINDS)}")
        if self.step < 0:
            raise ValueError(f"fault.step: {self.step} is negative; give 0 or more")
        if self.steps < 1:
            raise ValueError(f"fault.steps: {self.steps} is not positive; give 1 or more")

    def text(self) -> str:
        """What is done and when."""
        last = self.step + self.steps - 1
        when = f"step {self.step}" + (f"..{last}" if self.steps > 1 else "")
        if self.kind in LASTING:
            when = f"from step {self.step} on"
        return f"{when}: " + KINDS[self.kind].format(target=self.target, bit=self.bit, factor=self.factor)


class Injector:
    """Puts a fault into a run. Made before the capture, so that the capture's hooks see what it does to outputs."""

    def __init__(self, fault: Fault | None, workload: Workload, seed: int):
        """Raises ValueError when the model has no such target."""
        self._fault = fault
        self._draw = torch.Generator().manual_seed(seed)
        self._active = False
        if fault is None:
            return
        if fault.kind in ("flip-activation", "constant-rows"):
            self._module(workload.model).register_forward_hook(self._on_output)
        elif fault.kind == "hidden-query":
            self._attention = self._module(workload.model)
            if not hasattr(self._attention, "hidden_query"):
                raise ValueError(f"fault.target: {fault.target!r} is no attention of a GPT; give one")
        elif fault.kind == "flip-weight":
            parameters = dict(workload.model.named_parameters())
            if fault.target not in parameters:
                raise ValueError(f"fault.target: {fault.target!r} is no parameter; use one of {', '.join(parameters)}")
            self._parameter = parameters[fault.target]
            check_bit(fault.bit, torch.half)

    def begin(self, step: int, batch: Batch) -> Batch:
        """What is done before the forward pass of a step; returns the batch to use. A batch that the fault cannot be put into
        raises ValueError, in the first step already."""
        batch = self.batch(step, batch)
        self.model(step)
        return batch

    def batch(self, step: int, batch: Batch) -> Batch:
        """What the data of a step become. Raises ValueError as `begin`."""
        fault = self._fault
        if fault is None:
            return batch
        if fault.kind in ("nan-input", "input-drift") and not batch[0].is_floating_point():
            raise ValueError(f"fault.kind: {fault.kind} needs inputs that are numbers, and these are tokens; use another kind")
        return self._batch(batch, step) if self._is_hit(step) else batch

    def model(self, step: int) -> None:
        """What the model does in the forward pass that comes, which is one of a step."""
        fault = self._fault
        self._active = fault is not None and self._is_hit(step)
        if fault is not None and fault.kind == "hidden-query":
            self._attention.hidden_query = 1 if self._active else None
        if self._active and fault.kind == "flip-weight":
            self._flip_weight()

    def _is_hit(self, step: int) -> bool:
        fault = self._fault
        return step >= fault.step if fault.kind == "input-drift" else fault.step <= step < fault.step + fault.steps

    def _batch(self, batch: Batch, step: int) -> Batch:
        fault, (inputs, *rest) = self._fault, batch
        if fault.kind == "repeat-token":
            inputs = torch.full_like(inputs, int(inputs.flatten()[0]))
        elif fault.kind == "nan-input":
            inputs = inputs.clone()
            inputs.view(-1)[0] = math.nan
        elif fault.kind == "input-drift":
            inputs = inputs * fault.factor ** (step - fault.step)
        return (inputs, *rest)

    def _module(self, model: nn.Module) -> nn.Module:
        modules = dict(model.named_modules())
        if self._fault.target not in modules:
            known = ", ".join(filter(None, modules))
            raise ValueError(f"fault.target: {self._fault.target!r} is no module; use one of {known}")
        return modules[self._fault.target]

    def _on_output(self, module: nn.Module, arguments, output: Tensor) -> Tensor | None:
        if self._fault.kind == "flip-activation":
            check_bit(self._fault.bit, output.dtype)  # in the first step already
        if not self._active:
            return None
        if self._fault.kind == "constant-rows":
            return output[..., :1].expand_as(output).contiguous()
        changed = output.clone()
        flat = changed.detach().view(-1)
        flat[:] = flip(flat, self._element(flat), self._fault.bit)
        return changed

    def _flip_weight(self) -> None:
        with torch.no_grad():
            flat = self._parameter.view(-1)
            at = self._element(flat)
            flat[at] = flip(flat[at:at + 1].half(), 0, self._fault.bit).float()[0]

    def _element(self, flat: Tensor) -> int:
        return int(torch.randint(len(flat), (1,), generator=self._draw))


def check_bit(bit: int, dtype: torch.dtype) -> None:
    """Raises ValueError for a bit that elements of this type do not have."""
    if not 0 <= bit < 8 * dtype.itemsize:
        raise ValueError(f"fault.bit: {bit} is no bit of {dtype}; give 0 to {8 * dtype.itemsize - 1}")


def flip(values: Tensor, at: int, bit: int) -> Tensor:
    """A copy of [N] values with one bit of one element flipped."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()]
    bits = values.clone().view(integer)
    mask = torch.tensor(1 << bit if bit < 8 * values.element_size() - 1 else -(1 << bit), dtype=integer)
    bits[at] ^= mask
    return bits.view(values.dtype)
