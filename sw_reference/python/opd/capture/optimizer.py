"""Parameters after the optimizer's step, its moments, and its learning rate."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from opd.capture.errors import CaptureError
from opd.capture.probes import Selection


def unwrap(optimizer) -> Optimizer:
    """The torch optimizer inside the wrappers of Accelerate and Lightning. Raises CaptureError for anything else."""
    seen = optimizer
    while isinstance(getattr(seen, "optimizer", None), Optimizer):
        seen = seen.optimizer
    if not isinstance(seen, Optimizer):
        raise CaptureError(f"optimizer: {type(optimizer).__name__} is not a torch.optim.Optimizer; pass the optimizer, "
                           "or a list of optimizers")
    return seen


class OptimizerProbes:
    """Reads parameters and moments when a step is closed; keeps the learning rate that the last step used.

    named_parameters: of the models, by clean name. Frozen parameters are left out. Raises CaptureError when an optimizer
    holds none of them.
    """

    def __init__(self, optimizers: Iterable[Optimizer], named_parameters: dict[str, nn.Parameter], selection: Selection):
        self.optimizers: list[Optimizer] = []
        self._selection = selection
        self._lr = None
        self._parameters = dict(named_parameters)
        self._handles = []
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        owned = set(map(id, self._parameters.values()))
        if not any(id(parameter) in owned for group in optimizer.param_groups for parameter in group["params"]):
            raise CaptureError("optimizer: it holds no parameter of the model; pass the optimizer built from "
                               "model.parameters(), after the model was moved and wrapped")
        if not self.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._keep_lr))
        self.optimizers.append(optimizer)

    def add(self, named_parameters: dict[str, nn.Parameter]) -> None:
        self._parameters |= named_parameters

    def take_lr(self) -> Tensor | float | None:
        """Of the first parameter group, as the step being closed used it: a scheduler may have moved on since."""
        if self._lr is None and self.optimizers:
            self._keep_lr(self.optimizers[0])
        value, self._lr = self._lr, None
        return value

    def read(self, record: Callable[[str, str, Tensor], None]) -> None:
        """record(name, kind, tensor) for every selected parameter, then every selected moment."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and self._selection.wants("weight", name):
                record(name, "weight", parameter)
        if not self._selection.has("moment"):
            return
        for name, parameter in self._parameters.items():
            if not self._selection.wants("moment", name):
                continue
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape:
                        record(f"{name}:{key}", "optimizer", value)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep_lr(self, optimizer: Optimizer, *_) -> None:
        value = optimizer.param_groups[0].get("lr")
        self._lr = value.detach().clone() if isinstance(value, Tensor) else value
