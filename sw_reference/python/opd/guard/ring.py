"""States of a run to go back to: parameters, buffers, optimizers, scaler, random numbers, and the batches since, under a budget.

A State is taken between two steps of a run in which everything is finite. On disk each one is a file `state-STEP.pt`, STEP the number of
the step that comes next (torch.save, read back with weights_only), written beside and renamed when it is whole and on the disk, so that a
killed process leaves whole ones alone.
"""
from __future__ import annotations

import copy
import math
import os
import random
import re
from collections import UserDict, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from opd.guard.errors import GuardError
from opd.localise.buffers import Buffers

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_FILE = re.compile(r"state-(\d+)\.pt")


def bytes_of_budget(budget: str | int) -> int:
    """Bytes of a text such as "256MiB", or of a number of bytes; 0 for no ring. Raises GuardError."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]iB|B|)", str(budget))
    if not found:
        raise GuardError(f"ring: {budget!r} is no size; give bytes, or a text such as \"256MiB\", or 0 for no ring")
    return int(float(found[1]) * _UNITS[found[2]])


def tensors_of_batches(batches: list) -> list[Tensor]:
    return [leaf for batch in batches for leaf in pytree.tree_leaves(batch.data if isinstance(batch, UserDict) else batch)
            if isinstance(leaf, Tensor)]


def size_of(value) -> int:
    """Bytes of the tensors and arrays in a batch or a state."""
    if isinstance(value, UserDict):
        value = value.data
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(value) if isinstance(leaf, (Tensor, np.ndarray)))


def kept(batch):
    """A batch of which the script may take elements out: its containers are copied, its tensors are not."""
    return copy.copy(batch) if isinstance(batch, (dict, list, UserDict)) else batch


@dataclass
class Random:
    """State of every random generator that a step may use."""
    torch_: Tensor
    cuda: list[Tensor]
    python: tuple
    numpy: tuple

    @classmethod
    def now(cls) -> Random:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        torch.set_rng_state(self.torch_)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        np.random.set_state(self.numpy)

    def to_file(self) -> dict:
        name, keys, *rest = self.numpy
        return {"torch": self.torch_, "cuda": self.cuda, "python": self.python,
                "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest]}

    @classmethod
    def from_file(cls, content: dict) -> Random:
        name, keys, *rest = content["numpy"]
        version, inner, gauss = content["python"]
        return cls(content["torch"], content["cuda"], (version, tuple(inner), gauss), (name, keys.numpy().astype(np.uint32), *rest))


def _copied(value):
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf), value)


class Subject:
    """What states are taken of. extra: objects with state_dict and load_state_dict, such as a scheduler."""

    def __init__(self, model: nn.Module, optimizers: list[Optimizer], scaler, extra: list):
        self.model, self.optimizers, self.scaler, self.extra = model, optimizers, scaler, extra
        self._buffers = Buffers(model)

    def take(self, step: int) -> State:
        with torch.no_grad():
            return State(
                step, {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()},
                {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()},
                [[_copied(dict(optimizer.state.get(p, {}))) for group in optimizer.param_groups for p in group["params"]]
                 for optimizer in self.optimizers],
                [[{k: _copied(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
                 for optimizer in self.optimizers],
                _copied(self.scaler.state_dict()) if self.scaler is not None else {},
                [_copied(item.state_dict()) for item in self.extra], Random.now())

    def put(self, state: State) -> None:
        """Everything as it was, in the same tensors. Hyperparameters of the groups follow where there is something `extra` that
        schedules them, else they stay the script's."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state.parameters[name])
            for name, buffer in self.model.named_buffers():
                if name in state.buffers:
                    buffer.copy_(state.buffers[name])
        for optimizer, entries, groups in zip(self.optimizers, state.optimizers, state.groups):
            held = [p for group in optimizer.param_groups for p in group["params"]]
            for parameter, entry in zip(held, entries):
                if entry:
                    optimizer.state[parameter] = _copied(entry)
                else:
                    optimizer.state.pop(parameter, None)
            if self.extra:
                for group, saved in zip(optimizer.param_groups, groups):
                    group.update(_copied(saved))
        if self.scaler is not None and state.scaler:
            self.scaler.load_state_dict(_copied(state.scaler))
        for item, saved in zip(self.extra, state.extra):
            item.load_state_dict(_copied(saved))
        state.random.restore()

    def light(self) -> Light:
        """What a step changes besides parameters and optimizer; large buffers that did not change are not copied again."""
        return Light(self._buffers.keep(), [_copied(item.state_dict()) for item in self.extra], Random.now())

    def put_light(self, light: Light) -> None:
        self._buffers.put(light.buffers)
        for item, saved in zip(self.extra, light.extra):
            item.load_state_dict(_copied(saved))
        light.random.restore()

    def is_finite(self, with_optimizer: bool = False) -> bool:
        """Whether parameters, and if asked for the optimizers' tensors, hold finite values alone."""
        tensors = [parameter.detach() for parameter in self.model.parameters()]
        if with_optimizer:
            tensors += [leaf for optimizer in self.optimizers for leaf in pytree.tree_leaves([dict(e) for e in optimizer.state.values()])
                        if isinstance(leaf, Tensor)]
        return all_finite(tensors)


def all_finite(tensors: list[Tensor]) -> bool:
    """One read of each tensor, one wait for each device."""
    groups: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        tensor = tensor._values() if tensor.is_sparse else tensor
        if tensor.is_floating_point() and tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for found in groups.values():
        if found[0].device.type == "cpu":
            if not all(map(_is_finite_cpu, found)):
                return False
        elif not bool(torch.isfinite(torch.stack(torch._foreach_norm(found, float("inf")))).all()):
            return False
    return True


def _is_finite_cpu(tensor: Tensor) -> bool:
    """A sum is the cheapest read, and finite only if all elements are; one that is not may be a sum beyond the type."""
    return math.isfinite(tensor.sum().item()) or all(math.isfinite(end.item()) for end in torch.aminmax(tensor))


@dataclass
class State:
    """After step `step`. batches: of the steps since, a list for each."""
    step: int
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizers: list[list[dict]]
    groups: list[list[dict]]
    scaler: dict
    extra: list
    random: Random
    scale_factor: float = 1.0  # the hint in the scaler's loss scale
    batches: list[list] = field(default_factory=list)

    def __post_init__(self):
        self._own_bytes = size_of([self.parameters, self.buffers, self.optimizers, self.extra])
        self._batch_bytes = 0

    @property
    def bytes(self) -> int:
        return self._own_bytes + self._batch_bytes

    def add_batches(self, batches: list) -> None:
        """Those of one more step."""
        self.batches.append(batches)
        self._batch_bytes += sum(map(size_of, batches))

    def forget_batches(self) -> None:
        self.batches, self._batch_bytes = [], 0

    def to_file(self) -> dict:
        return {"step": self.step, "parameters": self.parameters, "buffers": self.buffers, "optimizers": self.optimizers,
                "groups": self.groups, "scaler": self.scaler, "extra": self.extra, "scale_factor": self.scale_factor,
                "random": self.random.to_file()}


@dataclass
class Light:
    buffers: dict[str, Tensor]
    extra: list
    random: Random


class Ring:
    """The newest states under a budget of bytes, the batches since each one included. folder: where they are written as well."""

    def __init__(self, budget: int, folder: Path | None):
        self._budget, self._folder = budget, folder
        self._states: deque[State] = deque()
        self._is_ours = False  # what is in the folder
        self.refused: str | None = None if budget else "ring: it was switched off"  # why there is no ring
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GuardError(f"path: {folder} cannot be made ({error.strerror}); give a folder that can be written to") from None

    @property
    def newest(self) -> State | None:
        return self._states[-1] if self._states else None

    def at(self, step: int) -> State | None:
        """The state after a step."""
        return next((state for state in self._states if state.step == step), None)

    @property
    def steps(self) -> list[int]:
        return [state.step for state in self._states]

    @property
    def bytes(self) -> int:
        return sum(state.bytes for state in self._states)

    def fits(self, subject: Subject) -> bool:
        """Whether one state has room in the budget; if not there is no ring, and `refused` says why."""
        if self.refused:
            return False
        held = size_of([list(subject.model.parameters()), list(subject.model.buffers()),
                        [[dict(entry) for entry in optimizer.state.values()] for optimizer in subject.optimizers]])
        if held > self._budget:
            self.refused = (f"ring: one state takes {held / 2**20:.1f} MiB, the budget is {self._budget / 2**20:.1f} MiB, so there is "
                            "none to go back to; give ring a larger size")
            self.clear()
        return not self.refused

    def take_up(self, state: State) -> None:
        """The state that load() has given, as the first one."""
        self._is_ours = True
        self._states.append(state)

    def add(self, state: State) -> None:
        self._states.append(state)
        if self._folder is not None:
            self._write(state)
        self.trim()

    def add_batches(self, batches: list) -> None:
        """Batches of a step that has ended, for every state."""
        if self._states:
            self._states[-1].add_batches(batches)
            self.trim()

    @property
    def is_full(self) -> bool:
        """Whether the newest state with its batches takes the whole budget: then it is time for another one."""
        return bool(self._states) and self._states[-1].bytes > self._budget

    def since(self, state: State) -> list[list]:
        """The batches since a state, a list for each step."""
        found = []
        for held in self._states:
            if held.step >= state.step:
                found += held.batches
        return found

    def back_to(self, state: State) -> None:
        """The newer states, and the batches since, are gone."""
        while self._states[-1] is not state:
            self._remove(self._states.pop())
        state.forget_batches()

    def trim(self) -> None:
        while len(self._states) > 1 and self.bytes > self._budget:
            self._remove(self._states.popleft())

    def clear(self) -> None:
        while self._states:
            self._remove(self._states.popleft())

    def _path(self, step: int) -> Path:
        return self._folder / f"state-{step + 1:010d}.pt"

    def _remove(self, state: State) -> None:
        if self._folder is not None:
            self._path(state.step).unlink(missing_ok=True)

    def _write(self, state: State) -> None:
        if not self._is_ours:  # those of an earlier run, which this one does not go on with
            self._is_ours = True
            for old in self._files():
                (self._folder / "earlier").mkdir(exist_ok=True)
                os.replace(old, self._folder / "earlier" / old.name)
        path = self._path(state.step)
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            torch.save(state.to_file(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if _FILE.fullmatch(path.name))

    def on_disk(self) -> list[int]:
        """Steps of the states in the folder, oldest first, whole or not."""
        return [int(_FILE.fullmatch(path.name)[1]) - 1 for path in self._files()] if self._folder is not None else []

    def load(self, step: int) -> State | None:
        """The state after a step that an earlier run has left in the folder; None where it is not whole."""
        try:
            content = torch.load(self._path(step), map_location="cpu", weights_only=True)
            return State(**{key: value for key, value in content.items() if key != "random"}, random=Random.from_file(content["random"]))
        except Exception:  # torn by a power cut: the one before it is whole
            return None

    def unreadable(self) -> GuardError:
        return GuardError(f"path: none of the {len(self._files())} states in {self._folder} can be read; delete them, or give another path")
