"""A small text-to-text transformer after T5, of characters: an encoder reads a text with a gap, a decoder writes what stood there.

As in T5: relative positions as a bias on the logits, no 1/sqrt(d) on Q K^T (the weights start smaller instead), RMS norm with its
sum in FP32, no biases. Q K^T before and after the bias are tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from workloads.next_character import Characters
from workloads.operators import ACTIVATIONS, STORES, Narrow, Product, Softmax, Sum, as_it_is, choice, stored
from workloads.text import Text
from workloads.workload import Batch, Workload, check_heads, check_positive, half_of, parameters

GRADIENTS = (nn.Linear, nn.Embedding, Product)  # operators whose outputs' gradients are probed


@dataclass(frozen=True)
class Settings:
    """Of the model and its task. Defaults are those of a healthy run."""
    layers: int = 2            # of the encoder, and of the decoder
    width: int = 32
    heads: int = 2
    context: int = 24          # characters that the encoder reads
    gap: int = 6               # of them, hidden in one place; the decoder writes these
    norm: str = "rms"          # rms (FP32 inside), none
    activation: str = "relu"   # relu, gelu, relu2
    head_scale: bool = True    # divide what the head reads by sqrt(width)
    store: str = "half"        # as that of gpt.py

    def __post_init__(self):
        check_positive(self, "layers", "width", "heads", "context", "gap")
        check_heads(self)
        if self.gap >= self.context:
            raise ValueError(f"gap: {self.gap} of {self.context} characters leaves nothing to read; give fewer")
        choice(dict.fromkeys(("rms", "none")), self.norm, "norm")
        choice(dict.fromkeys(STORES), self.store, "store")


class RmsNorm(nn.Module):
    """x / sqrt(mean square) * weight, FP32 inside, `half` outside."""

    def __init__(self, width: int, half: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(self.half)


class RelativePosition(nn.Module):
    """Adds a learned number per head and distance to logits [B, heads, T, T]; distances from `reach` on share one."""

    def __init__(self, heads: int, reach: int):
        super().__init__()
        self.reach = reach
        self.bias = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def forward(self, logits: Tensor) -> Tensor:
        place = torch.arange(logits.shape[-1])
        distance = (place[None] - place[:, None]).clamp(-self.reach, self.reach) + self.reach
        return logits + self.bias[distance].permute(2, 0, 1).to(logits.dtype)


class Parts:
    """Makes the operators of a model as its settings say."""

    def __init__(self, settings: Settings, half: torch.dtype):
        self.settings, self.half = settings, half

    def norm(self) -> Callable[[Tensor], Tensor]:
        return RmsNorm(self.settings.width, self.half) if self.settings.norm == "rms" else as_it_is

    def linear(self, inputs: int, outputs: int, std: float | None = None) -> nn.Linear:
        """Weights start with a standard deviation of 1 / sqrt(inputs), or `std`."""
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(layer.weight, std=inputs**-0.5 if std is None else std)
        return layer

    def stored(self) -> Callable[[Tensor], Tensor]:
        """What follows an operator whose output is stored: nothing, or a rounding to 8 bits."""
        return stored(self.settings.store)


class Attention(nn.Module):
    """Attention with its norm and residual: stream [B, T, width], and `memory` [B, M, width] to read or None for the stream
    itself -> [B, T, width].

    causal: no element sees one that follows it. Positions count where the stream reads itself.
    """

    def __init__(self, parts: Parts, causal: bool, reads_memory: bool = False):
        super().__init__()
        settings = parts.settings
        width, size = settings.width, settings.width // settings.heads
        self.heads, self.causal = settings.heads, causal
        self.norm, self.norm8 = parts.norm(), parts.stored()
        self.q, self.q8 = parts.linear(width, width, (width * size) ** -0.5), parts.stored()  # smaller: no 1/sqrt(size) follows
        self.kv, self.kv8 = parts.linear(width, 2 * width), parts.stored()
        self.qk, self.qk8 = Product(), parts.stored()
        self.position = as_it_is if reads_memory else RelativePosition(settings.heads, settings.context // 2)
        self.softmax = Softmax(parts.half)
        self.mix, self.mix8 = Product(), parts.stored()
        self.out, self.out8 = parts.linear(width, width), parts.stored()
        self.residual = Sum()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        batch, time, width = x.shape
        read = self.norm8(self.norm(x))
        source = read if memory is None else memory
        query = self.q8(self.q(read)).view(batch, time, self.heads, -1).transpose(1, 2)
        key, value = self.kv8(self.kv(source)).view(batch, source.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = self.position(self.qk8(self.qk(query, key.transpose(-1, -2))))
        mask = torch.ones(time, time, dtype=torch.bool).triu(1) if self.causal else None
        mixed = self.mix8(self.mix(self.softmax(logits, mask), value)).transpose(1, 2).reshape(batch, time, width)
        return self.residual(x, self.out8(self.out(mixed)))


class FeedForward(nn.Module):
    """Two linear layers with their norm and residual: [B, T, width] -> [B, T, width]."""

    def __init__(self, parts: Parts):
        super().__init__()
        width = parts.settings.width
        self.norm, self.norm8 = parts.norm(), parts.stored()
        self.hidden, self.hidden8 = parts.linear(width, 4 * width), parts.stored()
        self.activation = choice(ACTIVATIONS, parts.settings.activation, "activation")()
        self.activation8 = parts.stored()
        self.out, self.out8 = parts.linear(4 * width, width), parts.stored()
        self.residual = Sum()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation8(self.activation(self.hidden8(self.hidden(self.norm8(self.norm(x))))))
        return self.residual(x, self.out8(self.out(hidden)))


class EncoderLayer(nn.Module):
    """[B, T, width] -> [B, T, width]"""

    def __init__(self, parts: Parts):
        super().__init__()
        self.attn, self.mlp = Attention(parts, causal=False), FeedForward(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class DecoderLayer(nn.Module):
    """Stream [B, T, width] and what the encoder made [B, M, width] -> [B, T, width]."""

    def __init__(self, parts: Parts):
        super().__init__()
        self.attn, self.cross = Attention(parts, causal=True), Attention(parts, causal=False, reads_memory=True)
        self.mlp = FeedForward(parts)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.mlp(self.cross(self.attn(x), memory))


class TextToText(nn.Module):
    """Indices [B, M] to read and [B, T] written so far -> logits [B, T, vocabulary] of what comes next, in half precision.

    One table of embeddings serves encoder and decoder; the head has weights of its own.
    """

    def __init__(self, vocabulary: int, settings: Settings, half: torch.dtype):
        super().__init__()
        parts = Parts(settings, half)
        self.token = nn.Embedding(vocabulary, settings.width)
        self.embedding = Narrow(half)
        self.encoder = nn.ModuleList(EncoderLayer(parts) for _ in range(settings.layers))
        self.memory = parts.norm()
        self.decoder = nn.ModuleList(DecoderLayer(parts) for _ in range(settings.layers))
        self.norm = parts.norm()
        self.scale = settings.width**-0.5 if settings.head_scale else 1.0
        self.head = parts.linear(settings.width, vocabulary, std=1.0 if settings.head_scale else None)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        x = self.embedding(self.token(torch.cat((read, written), 1)))
        memory, x = x[:, :read.shape[1]], x[:, read.shape[1]:]
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.memory(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.norm(x) * self.scale)


class T5Workload(Workload):
    """The model fills gaps: it reads a text of which `gap` characters in one place are replaced by one mark, and writes them."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        self._characters = Characters(text, settings.context, batch)
        self._gap, self._mark = settings.gap, self._characters.vocabulary  # the mark is one token more
        self.model = TextToText(self._characters.vocabulary + 1, settings, half_of(precision))
        named = [(name, module) for name, module in self.model.named_modules() if name and not any(module.children())]
        self.probes = ("output", *(f"gradient:{name}" for name, module in named if isinstance(module, GRADIENTS)))
        self.text = (f"character-level text-to-text transformer, {settings.layers} + {settings.layers} layers, "
                     f"width {settings.width}, {settings.heads} heads, context {settings.context}, gaps of {settings.gap}, "
                     f"{parameters(self.model)} parameters")
        self.source = text.source

    def batch(self, generator: Generator) -> Batch:
        """Indices, int64: what the encoder reads [sequences, context - gap + 1], what the decoder has written so far and what it
        writes next [sequences, gap]."""
        window, _ = self._characters.batch(generator)
        start = int(torch.randint(window.shape[1] - self._gap + 1, (1,), generator=generator))
        end = start + self._gap
        mark = torch.full_like(window[:, :1], self._mark)
        hidden = window[:, start:end]
        return torch.cat((window[:, :start], mark, window[:, end:]), 1), torch.cat((mark, hidden[:, :-1]), 1), hidden

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        read, written, following = batch
        return functional.cross_entropy(self.model(read, written).flatten(0, 1), following.flatten())
