"""The GPT of gpt.py with a mixture of experts in place of its MLP: a router sends each token to one or two of the experts.

Experts work on their own tokens only. One that gets none in a step does not run: its probes repeat their last statistics (the
manifest lists those steps under `absent`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads import gpt
from workloads.next_character import NextCharacter
from workloads.operators import Sum
from workloads.text import Text
from workloads.workload import Batch, check_positive, half_of


@dataclass(frozen=True)
class Settings(gpt.Settings):
    """Of the model. Defaults are those of a healthy run."""
    layers: int = 2
    experts: int = 4
    top: int = 1                # experts of a token
    expert_width: int = 128     # of the hidden layer of an expert
    router_norm: bool = True    # the router reads the normalised stream, as the experts do; false: the residual stream
    balance: float = 1e-2       # weight of the load-balancing loss (Switch Transformer)
    z_loss: float = 1e-3        # weight of the router z-loss (ST-MoE): keeps router logits small

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "experts", "expert_width")


class Gate(nn.Module):
    """Router logits [N, experts] -> weights [N, experts] in half precision: softmax, FP32 inside; 0 but for the `top` largest."""

    def __init__(self, top: int, half: torch.dtype):
        super().__init__()
        self.top, self.half = top, half

    def forward(self, logits: Tensor) -> Tensor:
        probability = functional.softmax(logits, dim=-1, dtype=torch.float32)
        chosen = torch.zeros_like(probability).scatter(-1, probability.topk(self.top).indices, 1.0)
        return (probability * chosen).to(self.half)


class Expert(nn.Module):
    """Two linear layers: [n, width] -> [n, width]."""

    def __init__(self, parts: gpt.Parts):
        super().__init__()
        width, hidden = parts.settings.width, parts.settings.expert_width
        self.hidden, self.hidden8 = nn.Linear(width, hidden), parts.stored()
        self.activation, self.activation8 = parts.activation(), parts.stored()
        self.out, self.out8 = nn.Linear(hidden, width), parts.stored()

    def forward(self, x: Tensor) -> Tensor:
        return self.out8(self.out(self.activation8(self.activation(self.hidden8(self.hidden(x))))))


class Combine(nn.Module):
    """Sum over experts of gate weight times output: outputs [n, width] of the tokens `rows` [n] of each -> [N, width]."""

    def forward(self, weight: Tensor, rows: list[Tensor], outputs: list[Tensor]) -> Tensor:
        total = outputs[0].new_zeros(weight.shape[0], outputs[0].shape[-1])
        for expert, (at, output) in enumerate(zip(rows, outputs)):
            total = total.index_add(0, at, weight[at, expert, None] * output)
        return total


class Mixture(nn.Module):
    """Mixture of experts with its norm and residual: [B, T, width] -> [B, T, width]."""

    def __init__(self, parts: gpt.Parts):
        super().__init__()
        settings = parts.settings
        self.settings = settings
        self.norm, self.norm8 = parts.norm(), parts.stored()
        self.router = nn.Linear(settings.width, settings.experts, bias=False)
        self.gate = Gate(settings.top, parts.half)
        self.expert = nn.ModuleList(Expert(parts) for _ in range(settings.experts))
        self.combine = Combine()
        self.residual = Sum()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm8(self.norm(x)).flatten(0, 1)
        self._logits = self.router(tokens if self.settings.router_norm else x.flatten(0, 1))
        weight = self.gate(self._logits)
        rows = [assigned.nonzero().flatten() for assigned in (weight != 0).unbind(-1)]
        outputs = [expert(tokens[at]) for expert, at in zip(self.expert, rows)]
        return self.residual(x, self.combine(weight, rows, outputs).view_as(x))

    def router_loss(self) -> Tensor:
        """Load-balancing loss and z-loss of the last forward pass, weighted, in FP32."""
        logits = self._logits.float()
        probability = functional.softmax(logits, dim=-1)
        share = functional.one_hot(logits.argmax(-1), self.settings.experts).float().mean(0)
        balance = self.settings.experts * (share * probability.mean(0)).sum()
        return self.settings.balance * balance + self.settings.z_loss * logits.logsumexp(-1).square().mean()


class MoeWorkload(NextCharacter):
    """The mixture-of-experts GPT learns the next character."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        """Raises ValueError for settings that do not fit."""
        if not 1 <= settings.top <= settings.experts:
            raise ValueError(f"top: {settings.top} of {settings.experts} experts; give 1 to {settings.experts}")
        what = (f"character-level GPT with {settings.experts} experts of width {settings.expert_width}, top {settings.top}, "
                f"{gpt.shape_of(settings)}")
        super().__init__(lambda vocabulary: gpt.Gpt(vocabulary, settings, half_of(precision), Mixture), text, settings.context,
                         batch, what)

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy and the losses of the routers."""
        return super().loss(batch) + sum(block.mlp.router_loss() for block in self.model.block)
