"""A small character-level GPT whose every operator is a module of its own, so that a forward hook sees its output.

Pre-norm decoder (embedding, blocks of attention and MLP, final norm, head) in half precision: under
`autocast("cpu", float16)` the matrix products, GELU and the residual stream are FP16, layer norm and softmax
compute in FP32 and hand on FP16. Parameters stay FP32.

The attention logits Q K^T are a tensor of their own, before mask and softmax: the product of two growing tensors
is what overflows first when training goes wrong, and a fused attention kernel would hide it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = torch.float16


class Embedding(nn.Module):
    """Token plus position: [B, T] indices -> [B, T, width] FP16, the start of the residual stream."""

    def __init__(self, vocabulary: int, context: int, width: int):
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocabulary, width))
        self.position = nn.Parameter(torch.empty(context, width))

    def forward(self, index: Tensor) -> Tensor:
        return (functional.embedding(index, self.token) + self.position[: index.shape[-1]]).to(HALF)


class Norm(nn.LayerNorm):
    """Layer norm, computed in FP32 by autocast, handed on in FP16."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(HALF)


class Residual(nn.Module):
    """Sum of the residual stream and a branch, in FP16."""

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return stream + branch


class Logits(nn.Module):
    """Q K^T: two [B, heads, T, d] -> [B, heads, T, T]."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2)


class CausalSoftmax(nn.Module):
    """Softmax over the keys that are not in the future; computed in FP32 by autocast, handed on in FP16."""

    def forward(self, logits: Tensor) -> Tensor:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return functional.softmax(logits.masked_fill(future, -math.inf), dim=-1).to(HALF)


class Mix(nn.Module):
    """Values weighted by attention: [B, heads, T, T], [B, heads, T, d] -> [B, heads, T, d]."""

    def forward(self, weight: Tensor, value: Tensor) -> Tensor:
        return weight @ value


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, qk_scale: bool):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5 if qk_scale else 1.0  # applied to Q: the product itself stays small
        self.norm = Norm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.qk = Logits()
        self.softmax = CausalSoftmax()
        self.mix = Mix()
        self.out = nn.Linear(width, width)
        self.residual = Residual()

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        weight = self.softmax(self.qk(query * self.scale, key))
        mixed = self.mix(weight, value).transpose(1, 2).reshape(batch, time, width)
        return self.residual(x, self.out(mixed))


class Mlp(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = Norm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.out = nn.Linear(4 * width, width)
        self.residual = Residual()

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x, self.out(self.gelu(self.hidden(self.norm(x)))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, qk_scale: bool):
        super().__init__()
        self.attn = Attention(width, heads, qk_scale)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class Gpt(nn.Module):
    """[B, T] token indices -> [B, T, vocabulary] FP16 logits. `width` must be a multiple of `heads`."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int, qk_scale: bool = True):
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}: change one of them")
        self.embedding = Embedding(vocabulary, context, width)
        self.block = nn.ModuleList(Block(width, heads, qk_scale) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        std = 0.02 * math.sqrt(768 / width)  # the initialization of GPT-2, 0.02 at width 768, kept per unit of fan-in
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=std / math.sqrt(2 * layers) if ".out." in name else std)

    def forward(self, index: Tensor) -> Tensor:
        x = self.embedding(index)
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x))
