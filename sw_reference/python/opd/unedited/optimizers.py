"""The optimizers of a script: all that were made since the start, and whose parameters they hold."""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.optim import Optimizer

from opd.capture.optimizer import parameters_of
from opd.capture.patch import Patch

made: weakref.WeakSet = weakref.WeakSet()


def registration(then: Callable[[Optimizer], None] = lambda optimizer: None) -> Patch:
    """From now on every optimizer that is made is noted in `made`, and `then` is told it."""
    def wrap(original):
        @functools.wraps(original)
        def __init__(optimizer, *arguments, **options):
            original(optimizer, *arguments, **options)
            made.add(optimizer)
            then(optimizer)
        return __init__
    return Patch(Optimizer, "__init__", wrap)


def of(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Those that hold one of the parameters."""
    parameters = list(parameters)
    return [optimizer for optimizer in list(made) if share(optimizer, parameters)]


def share(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    known = set(map(id, parameters))
    return any(id(parameter) in known for parameter in parameters_of(optimizer))
