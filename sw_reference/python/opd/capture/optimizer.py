"""Parameters after the optimizer's step, its moments, and its learning rates."""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

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


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def holds_masters(optimizer: Optimizer, parameters: Iterable[Tensor], processes: int) -> bool:
    """Whether an optimizer that holds none of these parameters may well hold FP32 copies of all of them: as they are, in flat
    buffers, or this process's share of those."""
    wanted = sum(parameter.numel() for parameter in parameters)
    found = sum(parameter.numel() for parameter in parameters_of(optimizer))
    return 0 < wanted <= 1.05 * found * processes and found <= 1.05 * wanted


class OptimizerProbes:
    """Reads parameters and moments when a step is closed; keeps the learning rates that the last step used. Nothing here keeps
    a model or an optimizer alive.

    named_parameters: of the models, by clean name. Frozen parameters are left out. Raises CaptureError when an optimizer
    holds none of them.
    """

    def __init__(self, optimizers: Iterable[Optimizer], named_parameters: Mapping[str, nn.Parameter], selection: Selection):
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._selection = selection
        self._rates: dict[int, list] = {}  # optimizer by its place -> learning rates of its last step
        self._parameters: dict[str, weakref.ref[nn.Parameter]] = {}
        self._masters: dict[str, weakref.ref[Tensor]] = {}  # parameters that an optimizer holds in another's place
        self._handles = []
        self.add(named_parameters)
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        owned = {id(parameter) for _, parameter in self._living()}
        if not any(id(parameter) in owned for parameter in parameters_of(optimizer)):
            raise CaptureError("optimizer: it holds no parameter of the model; pass the optimizer built from "
                               "model.parameters(), after the model was moved and wrapped")
        self._watch(optimizer)

    def add_masters(self, optimizer: Optimizer) -> None:
        """An optimizer that holds FP32 copies of the parameters. Where they are one for one, their moments are those of the
        parameters."""
        held = parameters_of(optimizer)
        trained = [(name, parameter) for name, parameter in self._living() if parameter.requires_grad]
        if [parameter.shape for parameter in held] == [parameter.shape for _, parameter in trained]:
            self._masters = {name: weakref.ref(master) for (name, _), master in zip(trained, held)}
        self._watch(optimizer)

    def add(self, named_parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters |= {name: weakref.ref(parameter) for name, parameter in named_parameters.items()}

    def take_rates(self) -> list:
        """Learning rate of every parameter group, optimizer by optimizer, as the step being closed used it: a scheduler may have
        moved on since. Tensors or numbers; None where a group has none."""
        rates = []
        for place, reference in enumerate(self._optimizers):
            optimizer = reference()
            rates += self._rates.pop(place, None) or (_rates_of(optimizer) if optimizer is not None else [])
        return rates

    def concerns(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of these is a parameter of the models, or of their optimizers."""
        known = {id(parameter) for _, parameter in self._living()}
        for reference in self._optimizers:
            known.update(map(id, parameters_of(reference())) if reference() is not None else ())
        return any(id(parameter) in known for parameter in parameters)

    @property
    def living(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def groups(self) -> list[list]:
        """Number of parameters and name of the first one, of every parameter group."""
        names = {id(parameter): name for name, parameter in self._living()}
        names |= {id(master()): name for name, master in self._masters.items()}
        found = []
        for reference in self._optimizers:
            for group in reference().param_groups if reference() is not None else ():
                parameters = group["params"]
                found.append([len(parameters), next((names[id(p)] for p in parameters if id(p) in names), "")])
        return found

    def read(self, record: Callable[[str, str, Tensor, str], None]) -> None:
        """record(name, kind, tensor, suffix) for every selected parameter, then every selected moment."""
        for name, parameter in self._living():
            if parameter.requires_grad and self._selection.wants("weight", name):
                record(name, "weight", parameter, "")
        if not self._selection.has("moment"):
            return
        for name, parameter in self._living():
            if not self._selection.wants("moment", name):
                continue
            master = self._masters[name]() if name in self._masters else None
            held = parameter if master is None else master
            for optimizer in filter(None, (reference() for reference in self._optimizers)):
                for key, value in optimizer.state.get(held, {}).items():
                    if isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape:
                        record(name, "optimizer", value, f":{key}")

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _living(self) -> list[tuple[str, nn.Parameter]]:
        found = ((name, reference()) for name, reference in self._parameters.items())
        return [(name, parameter) for name, parameter in found if parameter is not None]

    def _watch(self, optimizer: Optimizer) -> None:
        if any(reference() is optimizer for reference in self._optimizers):
            return
        place = len(self._optimizers)
        self._optimizers.append(weakref.ref(optimizer))

        def keep_rates(stepping: Optimizer, *_) -> None:
            self._rates[place] = _rates_of(stepping)

        self._handles.append(optimizer.register_step_pre_hook(keep_rates))


def _rates_of(optimizer: Optimizer) -> list:
    rates = (group.get("lr") for group in optimizer.param_groups)
    return [rate.detach().clone() if isinstance(rate, Tensor) else rate for rate in rates]
