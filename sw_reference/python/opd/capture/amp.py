"""Loss, loss scale and gradient norm, found by watching the calls that every loop makes: GradScaler.scale(loss),
loss.backward() and clip_grad_norm_(...). Nothing waits for the device."""
from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from opd.capture.patch import Patch

HAND_SCALE = 128.0  # a loss that is multiplied by this or a larger power of two has a loss scale; a smaller factor is a weight


def in_backward() -> bool:
    """Whether the autograd engine is running in this thread: a forward pass now is a recomputation."""
    return torch._C._current_graph_task_id() != -1  # as torch.utils.checkpoint itself asks


class LossScale:
    """Watches torch.amp.GradScaler. on_scale(loss, scale) is told each loss and the scale it is multiplied by, a tensor of
    its device, copied before update() changes it. scaler: the one that was seen last, None without one."""

    def __init__(self, on_scale: Callable[[object, Tensor | float], None]):
        def wrap(original):
            @functools.wraps(original)
            def scale(scaler, outputs):
                result = original(scaler, outputs)
                if scaler.is_enabled():
                    self._scaler = weakref.ref(scaler)
                    value = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
                    on_scale(outputs, value.detach().clone() if isinstance(value, Tensor) else scaler.get_scale())
                return result
            return scale
        self._scaler: Callable = lambda: None
        self._patch = Patch(torch.amp.GradScaler, "scale", wrap)

    @property
    def scaler(self):
        return self._scaler()

    def remove(self) -> None:
        self._patch.remove()


class BackwardCalls:
    """Watches torch.autograd.backward, which Tensor.backward calls as well; not what a checkpoint does inside. before(scalars)
    is told the tensors of one element that it is called on, after() that it has ended; failed(error) says whether an exception
    of it is taken, and goes no further."""

    def __init__(self, before: Callable[[list[Tensor]], None], after: Callable[[], None],
                 failed: Callable[[Exception], bool] = lambda error: False):
        def wrap(original):
            @functools.wraps(original)
            def backward(tensors, *arguments, **options):
                if in_backward():
                    return original(tensors, *arguments, **options)
                if not isinstance(tensors, Tensor):
                    tensors = tuple(tensors)
                given = (tensors,) if isinstance(tensors, Tensor) else tensors
                before([tensor for tensor in given if isinstance(tensor, Tensor) and tensor.numel() == 1])
                try:
                    return original(tensors, *arguments, **options)
                except Exception as error:
                    if not failed(error):
                        raise
                finally:
                    after()
            return backward
        self._patch = Patch(torch.autograd, "backward", wrap)

    def remove(self) -> None:
        self._patch.remove()


class GradientNorm:
    """Watches torch.nn.utils.clip_grad_norm_: on_norm(parameters, norm) is told a list and the norm before clipping."""

    def __init__(self, on_norm: Callable[[list[Tensor], Tensor], None]):
        def wrap(original):
            @functools.wraps(original)
            def clip_grad_norm_(parameters, *arguments, **options):
                parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
                norm = original(parameters, *arguments, **options)
                if isinstance(norm, Tensor) and norm.numel() == 1:
                    on_norm(parameters, norm.detach())
                return norm
            return clip_grad_norm_
        self._patches = [Patch(owner, "clip_grad_norm_", wrap) for owner in (torch.nn.utils, clip_grad)]

    def remove(self) -> None:
        for patch in self._patches:
            patch.remove()


def scale_by_hand(loss: Tensor, smallest: float = HAND_SCALE) -> float | None:
    """The loss scale of a script that has none of a GradScaler: backward is called on the product of the loss and a power of
    two from `smallest` on, divided perhaps by the number of micro-batches. None when it is not that."""
    node = loss.grad_fn
    for _ in range(2):
        name = "" if node is None else node.name()
        if name == "MulBackward0":
            return _power_of_two(getattr(node, "_saved_other", None), smallest)
        if name != "DivBackward0" or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return None


def _power_of_two(factor, smallest: float) -> float | None:
    if isinstance(factor, Tensor):
        if factor.numel() != 1 or factor.device.type != "cpu" or factor.requires_grad:
            return None
        factor = factor.item()
    if not isinstance(factor, (int, float)) or not smallest <= factor < math.inf:
        return None
    return float(factor) if math.frexp(factor)[0] == 0.5 else None
