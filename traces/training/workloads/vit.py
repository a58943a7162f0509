"""A small vision transformer that learns to read digits: the images of digits.py, cut into patches.

A learned class token goes before the patches; the score is read from where it ends. Attention sees all patches, both ways.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads import gpt
from workloads.digits import CLASSES, SIDE, Digits
from workloads.text import Text
from workloads.workload import Batch, check_heads, check_positive, half_of


@dataclass(frozen=True)
class Settings:
    """Of the model and its data. Defaults are those of a healthy run."""
    layers: int = 2
    width: int = 32
    heads: int = 2
    patch: int = 2             # pixels, of a side
    qk_scale: bool = True      # divide Q K^T by sqrt(width / heads)
    norm: str = "layer"        # layer, rms (sum of squares in half precision), none
    norm_eps: float = 1e-6     # of layer norm
    activation: str = "gelu"   # gelu, relu, relu2
    store: str = "half"        # as that of gpt.py
    input_scale: float = 1.0   # value of a white pixel

    def __post_init__(self):
        check_positive(self, "layers", "width", "heads", "patch", "input_scale")
        if SIDE % self.patch:
            raise ValueError(f"patch: {self.patch} does not divide an image of {SIDE} pixels; use 1, 2, 4 or 8")
        check_heads(self)


class Tokens(nn.Module):
    """Class token before the patches, plus positions: [N, T, width] -> [N, 1 + T, width] in half precision."""

    def __init__(self, patches: int, width: int, half: torch.dtype):
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, width))
        self.position = nn.Parameter(torch.empty(1 + patches, width))
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        return (torch.cat((self.token.expand(len(x), 1, -1), x), 1) + self.position).to(self.half)


class VisionTransformer(nn.Module):
    """[N, 1, 8, 8] pixels -> [N, 10] scores in half precision."""

    def __init__(self, settings: Settings, half: torch.dtype):
        super().__init__()
        parts = gpt.Parts(settings, half)
        self.patch = nn.Conv2d(1, settings.width, settings.patch, stride=settings.patch)
        self.tokens = Tokens((SIDE // settings.patch) ** 2, settings.width, half)
        self.block = nn.Sequential(*(
            nn.Sequential(OrderedDict(attn=gpt.Attention(parts, causal=False), mlp=gpt.Mlp(parts)))
            for _ in range(settings.layers)))
        self.norm = parts.norm()
        self.head = nn.Linear(settings.width, CLASSES)
        gpt.initialize(self, settings)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.tokens(self.patch(x).flatten(2).transpose(1, 2)))
        return self.head(self.norm(x)[:, 0])


class VitWorkload(Digits):
    """The transformer learns which digit an image shows."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        super().__init__(VisionTransformer(settings, half_of(precision)), settings.input_scale, batch,
                         f"vision transformer, {settings.layers} layers, width {settings.width}, {settings.heads} heads, "
                         f"patches of {settings.patch}x{settings.patch} pixels")

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        return functional.cross_entropy(self.model(batch[0]), batch[1])
