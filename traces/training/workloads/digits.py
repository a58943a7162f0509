"""Images of handwritten digits, 8x8, of scikit-learn, and the workloads that learn to read them."""

from __future__ import annotations

import hashlib

import torch
from torch import Generator, Tensor, nn

from workloads.text import DataError
from workloads.workload import Batch, Workload, every_output_and_its_gradient, parameters

SIDE = 8  # pixels
CLASSES = 10
PIXEL_MAX = 16.0  # of the data set


def read_digits() -> tuple[Tensor, Tensor, dict[str, str]]:
    """Images, FP32 [N, 1, 8, 8] from 0 to 1; digits, int64 [N]; where they come from. Raises DataError."""
    try:
        import sklearn
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("package scikit-learn: is not installed; run scripts/setup --for test") from None
    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / PIXEL_MAX
    source = {"package": "scikit-learn", "version": sklearn.__version__, "data set": "digits",
              "sha256": hashlib.sha256(found.images.tobytes() + found.target.tobytes()).hexdigest()}
    return images, torch.from_numpy(found.target).long(), source


class Digits(Workload):
    """Batches of the digits, with pixels from 0 to `input_scale`. Every output of the model, and its gradient, is probed."""

    def __init__(self, model: nn.Module, input_scale: float, batch: int, what: str):
        """batch: images; what: the model in words. Raises DataError."""
        images, self._digits, self.source = read_digits()
        self._images = images * input_scale
        self._batch = batch
        self.model = model
        self.probes = every_output_and_its_gradient(model)
        self.text = f"{what}, {parameters(model)} parameters"

    def batch(self, generator: Generator) -> Batch:
        """Pixels, FP32 [N, 1, 8, 8], and digits, int64 [N]."""
        chosen = torch.randint(len(self._images), (self._batch,), generator=generator)
        return self._images[chosen], self._digits[chosen]
