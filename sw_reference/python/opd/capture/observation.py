"""What a probe saw in one execution, and its way from the device to the host."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from opd.capture.operands import Execution

_STORAGE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # bytes per element -> a type that numpy has


@dataclass(slots=True)
class Observation:
    """One execution of a probe: partial statistics on its device.

    name        of the module or parameter; with the suffix, and the number of the call, it makes the name of the probe
    sequence    grows from one observation to the next
    call        which one of its module in the pass, from 1 on
    passing     number of the pass; with what the model and autograd were set to in it
    execution   of its operator, where operands are captured and it is one that is known
    """
    name: str
    suffix: str
    kind: str
    format: str
    partials: Tensor | np.ndarray
    shape: tuple[int, ...]
    raw: Tensor | None
    sequence: int
    passing: int
    training: bool
    gradients: bool
    call: int = 1
    execution: Execution | None = None


@dataclass
class PendingStep:
    """A closed step whose values are on their way to the host. observations: in order, each with the number of its probe.
    rates: learning rates of all parameter groups, numbers or (None) the last of what is fetched."""
    number: int
    observations: list[Observation]
    entries: list
    series: dict[str, object]
    rates: list[float | None]
    notes: dict
    fetch: Callable[[], list[np.ndarray]] = field(repr=False)
    on_device: bool = False


def start_transfer(tensors: list[Tensor | np.ndarray]) -> tuple[Callable[[], list[np.ndarray]], bool]:
    """Starts to copy float64 tensors to the host, one copy per device, without waiting; what is an array is there already.
    Returns a function that waits and gives the arrays in order, and whether there is anything to wait for."""
    by_device: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor):
            by_device.setdefault(tensor.device, []).append(i)
    copies = []
    for device, members in by_device.items():
        flat = torch.cat([tensors[i].reshape(-1) for i in members])
        event = None
        if device.type == "cuda":
            host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            host.copy_(flat, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            flat = host
        copies.append((members, flat, event))

    def fetch() -> list[np.ndarray]:
        result = list(tensors)
        for members, flat, event in copies:
            if event is not None:
                event.synchronize()
            values, at = flat.cpu().numpy(), 0
            for i in members:
                size = tensors[i].numel()
                result[i] = values[at:at + size].reshape(tensors[i].shape)
                at += size
        return result

    return fetch, any(device.type != "cpu" for device in by_device)


def merge_shapes(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of what a probe saw in a step: its own when it ran once, [n, *shape] for n runs of one shape, else [elements]."""
    if len(shapes) == 1:
        return shapes[0]
    if all(shape == shapes[0] for shape in shapes):
        return (len(shapes), *shapes[0])
    return (sum(map(math.prod, shapes)),)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(_STORAGE[tensor.element_size()]).cpu().numpy().tobytes()
