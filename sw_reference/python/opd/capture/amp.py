"""Loss and loss scale, found by watching the calls that every loop makes: GradScaler.scale(loss) and loss.backward()."""
from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from opd.capture.patch import Patch


class LossScale:
    """Watches torch.amp.GradScaler. on_scale(loss, scale) is told each loss and the scale it is multiplied by, a tensor of
    its device, copied before update() changes it: nothing waits for the device."""

    def __init__(self, on_scale: Callable[[object, Tensor | float], None]):
        def wrap(original):
            @functools.wraps(original)
            def scale(scaler, outputs):
                result = original(scaler, outputs)
                if scaler.is_enabled():
                    value = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
                    on_scale(outputs, value.detach().clone() if isinstance(value, Tensor) else scaler.get_scale())
                return result
            return scale
        self._patch = Patch(torch.amp.GradScaler, "scale", wrap)

    def remove(self) -> None:
        self._patch.remove()


class BackwardLoss:
    """Watches Tensor.backward: on_backward(tensor) is told each scalar it is called on."""

    def __init__(self, on_backward: Callable[[Tensor], None]):
        def wrap(original):
            @functools.wraps(original)
            def backward(tensor, *arguments, **options):
                if tensor.numel() == 1:
                    on_backward(tensor.detach())
                return original(tensor, *arguments, **options)
            return backward
        self._patch = Patch(Tensor, "backward", wrap)

    def remove(self) -> None:
        self._patch.remove()
