"""A small residual convolution net that learns to read digits: 8x8 images of scikit-learn, operators as leaf modules.

Without normalisation nothing brings activations back to size: what the first convolution makes of the pixels' scale is carried,
and grows with every residual sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.digits import CLASSES, Digits
from workloads.operators import Sum, as_it_is, choice
from workloads.text import Text
from workloads.workload import Batch, check_positive


def cross_entropy(scores: Tensor, digits: Tensor) -> Tensor:
    """Of [N, 10] scores and [N] digits."""
    return functional.cross_entropy(scores, digits)


def squared_error(scores: Tensor, digits: Tensor) -> Tensor:
    """Mean of (score - 1 for the digit shown, 0 for the others)^2, of [N, 10] scores and [N] digits."""
    return functional.mse_loss(scores.float(), functional.one_hot(digits, CLASSES).float())


LOSSES = {"cross-entropy": cross_entropy, "squared": squared_error}


@dataclass(frozen=True)
class Settings:
    """Of the model and its data. Defaults are those of a healthy run."""
    depth: int = 4               # residual blocks; those of the second half work on 4x4 pixels
    width: int = 8               # channels
    norm: str = "batch"          # batch, none
    bias: bool = True            # of convolutions that no norm follows
    input_scale: float = 1.0     # value of a white pixel: 1, 255 (raw 8-bit images), 4095 (raw 12-bit images)
    loss: str = "cross-entropy"  # cross-entropy, squared

    def __post_init__(self):
        check_positive(self, "depth", "width", "input_scale")
        choice({"batch": None, "none": None}, self.norm, "norm")
        choice(LOSSES, self.loss, "loss")


def convolution(settings: Settings, channels: int, stride: int = 1) -> nn.Conv2d:
    """3x3, same size (stride 2: half of it); a norm that follows has the bias."""
    return nn.Conv2d(channels, settings.width, 3, stride=stride, padding=1, bias=settings.bias and settings.norm == "none")


def norm(settings: Settings):
    return nn.BatchNorm2d(settings.width) if settings.norm == "batch" else as_it_is


class Block(nn.Module):
    """Two convolutions beside a residual stream, relu after the sum: [N, width, H, W] -> [N, width, H, W]."""

    def __init__(self, settings: Settings):
        super().__init__()
        self.conv1, self.norm1, self.relu1 = convolution(settings, settings.width), norm(settings), nn.ReLU()
        self.conv2, self.norm2 = convolution(settings, settings.width), norm(settings)
        self.sum, self.relu2 = Sum(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        branch = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(self.sum(x, self.norm2(self.conv2(branch))))


class Stem(nn.Module):
    """Convolution, norm and relu: [N, channels, H, W] -> [N, width, H / stride, W / stride]."""

    def __init__(self, settings: Settings, channels: int, stride: int = 1):
        super().__init__()
        self.conv, self.norm, self.relu = convolution(settings, channels, stride), norm(settings), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)))


class Convnet(nn.Module):
    """[N, 1, 8, 8] pixels -> [N, 10] scores in half precision."""

    def __init__(self, settings: Settings):
        super().__init__()
        self.stem = Stem(settings, 1)
        self.block = nn.ModuleList(Block(settings) for _ in range(settings.depth))
        self.down = Stem(settings, settings.width, stride=2)  # ahead of the second half of the blocks
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(settings.width, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, block in enumerate(self.block):
            x = block(self.down(x) if i == len(self.block) // 2 else x)
        return self.head(self.pool(x).flatten(1))


class ConvnetWorkload(Digits):
    """The net learns which digit an image shows."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        self._loss = LOSSES[settings.loss]
        super().__init__(Convnet(settings), settings.input_scale, batch,
                         f"residual convolution net, {settings.depth} blocks, {settings.width} channels, "
                         f"{'batch norm' if settings.norm == 'batch' else 'no norm'}")

    def loss(self, batch: Batch) -> Tensor:
        return self._loss(self.model(batch[0]), batch[1])
