"""A small character-level GPT: pre-norm decoder, attention written out so that Q K^T is a tensor of its own.

The product of two growing tensors is what overflows first when training goes wrong, and a fused attention kernel would
hide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.next_character import NextCharacter
from workloads.operators import ACTIVATIONS, NORMS, STORES, LayerNorm, Product, Softmax, Sum, choice, stored
from workloads.text import Text
from workloads.workload import check_heads, check_positive, half_of


@dataclass(frozen=True)
class Settings:
    """Of the model. Defaults are those of a healthy run."""
    layers: int = 3
    width: int = 64
    heads: int = 2
    context: int = 32          # characters
    qk_scale: bool = True      # divide Q K^T by sqrt(width / heads)
    norm: str = "layer"        # layer, rms (sum of squares in half precision), none
    norm_eps: float = 1e-5     # of layer norm
    activation: str = "gelu"   # gelu, relu, relu2
    store: str = "half"        # type of operator outputs, but for the residual stream: half; E4M3, E5M2, or these "-saturating"

    def __post_init__(self):
        check_positive(self, "layers", "width", "heads", "context")


class Embedding(nn.Module):
    """Token plus position: [B, T] indices -> [B, T, width] in half precision, the start of the residual stream."""

    def __init__(self, vocabulary: int, context: int, width: int, half: torch.dtype):
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocabulary, width))
        self.position = nn.Parameter(torch.empty(context, width))
        self.half = half

    def forward(self, index: Tensor) -> Tensor:
        return (functional.embedding(index, self.token) + self.position[: index.shape[-1]]).to(self.half)


class Parts:
    """Makes the operators of a model as its settings say."""

    def __init__(self, settings: Settings, half: torch.dtype):
        self.settings, self.half = settings, half
        self._norm = choice(NORMS, settings.norm, "norm")
        choice(dict.fromkeys(STORES), settings.store, "store")

    def norm(self) -> nn.Module:
        if self._norm is LayerNorm:
            return LayerNorm(self.settings.width, self.half, self.settings.norm_eps)
        return self._norm(self.settings.width, self.half)

    def activation(self) -> nn.Module:
        return choice(ACTIVATIONS, self.settings.activation, "activation")()

    def stored(self) -> Callable[[Tensor], Tensor]:
        """What follows an operator whose output is stored: nothing, or a rounding to 8 bits."""
        return stored(self.settings.store)


class Attention(nn.Module):
    """Self-attention with its norm and residual: [B, T, width] -> [B, T, width]. causal: no element sees one that follows it."""

    def __init__(self, parts: Parts, causal: bool = True):
        super().__init__()
        settings = parts.settings
        self.heads, self.causal = settings.heads, causal
        # Applied to Q: the product itself stays small.
        self.scale = (settings.width // settings.heads) ** -0.5 if settings.qk_scale else 1.0
        self.norm, self.norm8 = parts.norm(), parts.stored()
        self.qkv, self.qkv8 = nn.Linear(settings.width, 3 * settings.width), parts.stored()
        self.qk, self.qk8 = Product(), parts.stored()
        self.softmax = Softmax(parts.half)
        self.mix, self.mix8 = Product(), parts.stored()
        self.out, self.out8 = nn.Linear(settings.width, settings.width), parts.stored()
        self.residual = Sum()
        self.hidden_query: int | None = None  # a query that is masked from every key: what a broken padding mask does

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.qkv8(self.qkv(self.norm8(self.norm(x)))).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mask = torch.full((time, time), self.causal).triu(1)
        if self.hidden_query is not None:
            mask[self.hidden_query] = True
        weight = self.softmax(self.qk8(self.qk(query * self.scale, key.transpose(-1, -2))), mask)
        mixed = self.mix8(self.mix(weight, value)).transpose(1, 2).reshape(batch, time, width)
        return self.residual(x, self.out8(self.out(mixed)))


class Mlp(nn.Module):
    """Two linear layers with their norm and residual: [B, T, width] -> [B, T, width]."""

    def __init__(self, parts: Parts):
        super().__init__()
        width = parts.settings.width
        self.norm, self.norm8 = parts.norm(), parts.stored()
        self.hidden, self.hidden8 = nn.Linear(width, 4 * width), parts.stored()
        self.activation, self.activation8 = parts.activation(), parts.stored()
        self.out, self.out8 = nn.Linear(4 * width, width), parts.stored()
        self.residual = Sum()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation8(self.activation(self.hidden8(self.hidden(self.norm8(self.norm(x))))))
        return self.residual(x, self.out8(self.out(hidden)))


class Block(nn.Module):
    """Attention, then `feed_forward`: a function that makes a module [B, T, width] -> [B, T, width]."""

    def __init__(self, parts: Parts, feed_forward=Mlp):
        super().__init__()
        self.attn = Attention(parts)
        self.mlp = feed_forward(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class Gpt(nn.Module):
    """[B, T] token indices -> [B, T, vocabulary] logits in half precision. Raises ValueError for settings that do not fit."""

    def __init__(self, vocabulary: int, settings: Settings, half: torch.dtype, feed_forward=Mlp):
        super().__init__()
        check_heads(settings)
        parts = Parts(settings, half)
        self.embedding = Embedding(vocabulary, settings.context, settings.width, half)
        self.block = nn.ModuleList(Block(parts, feed_forward) for _ in range(settings.layers))
        self.norm = parts.norm()
        self.head = nn.Linear(settings.width, vocabulary, bias=False)
        initialize(self, settings)

    def forward(self, index: Tensor) -> Tensor:
        x = self.embedding(index)
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x))


def initialize(model: nn.Module, settings: Settings) -> None:
    """The initialization of GPT-2, 0.02 at width 768, kept per unit of fan-in; smaller where a branch ends in the stream."""
    std = 0.02 * math.sqrt(768 / settings.width)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() >= 2:
            nn.init.normal_(parameter, std=std / math.sqrt(2 * settings.layers) if ".out." in name else std)


class GptWorkload(NextCharacter):
    """The GPT learns the next character."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        super().__init__(lambda vocabulary: Gpt(vocabulary, settings, half_of(precision)), text, settings.context, batch,
                         f"character-level GPT, {shape_of(settings)}")


def shape_of(settings: Settings) -> str:
    """In words."""
    return f"{settings.layers} layers, width {settings.width}, {settings.heads} heads, context {settings.context}"
