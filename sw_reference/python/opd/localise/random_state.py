"""The states of the random number generators that a step may draw from: PyTorch's, of the CPU and every CUDA device, Python's,
NumPy's."""
from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomStates:
    """As random_states took them. cuda: one a device."""
    cpu: Tensor
    cuda: tuple[Tensor, ...]
    python: tuple
    numpy: tuple

    def set(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in enumerate(self.cuda[:torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def random_states() -> RandomStates:
    """The states now. Waits for CUDA devices that are in use."""
    cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    return RandomStates(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())
