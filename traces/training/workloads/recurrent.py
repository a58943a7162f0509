"""Character-level recurrent networks, their cells written out operator by operator.

Each operator is one module, called once per character: a probe's entry of a step covers all characters (largest magnitude,
summed counts). The states of LSTM and GRU are bounded or nearly so; that of the ReLU cell (Le, Jaitly and Hinton 2015:
recurrent weight initialised to the identity) can grow by a factor per character.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.next_character import NextCharacter
from workloads.operators import NORMS, Sum, choice
from workloads.text import Text
from workloads.workload import check_positive, half_of


@dataclass(frozen=True)
class Settings:
    """Of the model. Defaults are those of a healthy run."""
    cell: str = "lstm"         # lstm, gru, relu
    layers: int = 2
    width: int = 64            # of the hidden state and of the embedding
    context: int = 32          # characters
    norm: str = "none"         # before the head: layer, rms (sum of squares in half precision), none
    recurrent_scale: float = 1.0  # of the identity that the recurrent weight of the ReLU cell starts as

    def __post_init__(self):
        check_positive(self, "layers", "width", "context")


class Embedding(nn.Module):
    """[B, T] indices -> [B, T, width] in half precision."""

    def __init__(self, vocabulary: int, width: int, half: torch.dtype):
        super().__init__()
        self.token = nn.Parameter(torch.randn(vocabulary, width))
        self.half = half

    def forward(self, index: Tensor) -> Tensor:
        return nn.functional.embedding(index, self.token).to(self.half)


class Times(nn.Module):
    """Elementwise product: what a gate does."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right


class Blend(nn.Module):
    """left + gate * (right - left)"""

    def forward(self, gate: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return left + gate * (right - left)


class LstmCell(nn.Module):
    """One character: what the input linear layer made of it, [B, 4 width], and the state (hidden, cell) -> new state."""

    def __init__(self, settings: Settings):
        super().__init__()
        width = settings.width
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)
        self.sum = Sum()
        self.write_gate, self.keep_gate, self.output_gate = nn.Sigmoid(), nn.Sigmoid(), nn.Sigmoid()
        self.candidate = nn.Tanh()
        self.keep, self.write, self.cell = Times(), Times(), Sum()
        self.squash, self.hidden = nn.Tanh(), Times()
        for layer in (self.input, self.recurrent):
            nn.init.normal_(layer.weight, std=width**-0.5)
        nn.init.zeros_(self.input.bias)
        nn.init.ones_(self.input.bias[width:2 * width])  # of the forget gate: the cell remembers at first

    def start(self, zeros: Tensor) -> tuple[Tensor, ...]:
        return zeros, zeros

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = state
        write, keep, candidate, output = self.sum(x, self.recurrent(hidden)).chunk(4, dim=-1)
        kept = self.keep(self.keep_gate(keep), cell)
        cell = self.cell(kept, self.write(self.write_gate(write), self.candidate(candidate)))
        return self.hidden(self.output_gate(output), self.squash(cell)), cell


class GruCell(nn.Module):
    """One character: what the input linear layer made of it, [B, 3 width], and the state (hidden,) -> new state."""

    def __init__(self, settings: Settings):
        super().__init__()
        width = settings.width
        self.input = nn.Linear(width, 3 * width)
        self.recurrent = nn.Linear(width, 3 * width)
        self.reset_sum, self.update_sum, self.candidate_sum = Sum(), Sum(), Sum()
        self.reset_gate, self.update_gate = nn.Sigmoid(), nn.Sigmoid()
        self.reset, self.candidate, self.hidden = Times(), nn.Tanh(), Blend()
        for layer in (self.input, self.recurrent):
            nn.init.normal_(layer.weight, std=width**-0.5)
            nn.init.zeros_(layer.bias)

    def start(self, zeros: Tensor) -> tuple[Tensor, ...]:
        return (zeros,)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, = state
        x_reset, x_update, x_candidate = x.chunk(3, dim=-1)
        reset, update, candidate = self.recurrent(hidden).chunk(3, dim=-1)
        reset = self.reset_gate(self.reset_sum(x_reset, reset))
        update = self.update_gate(self.update_sum(x_update, update))
        candidate = self.candidate(self.candidate_sum(x_candidate, self.reset(reset, candidate)))
        return (self.hidden(update, candidate, hidden),)


class ReluCell(nn.Module):
    """One character: what the input linear layer made of it, [B, width], and the state (hidden,) -> new state, unbounded."""

    def __init__(self, settings: Settings):
        super().__init__()
        width = settings.width
        self.input = nn.Linear(width, width)
        self.recurrent = nn.Linear(width, width, bias=False)
        self.sum, self.hidden = Sum(), nn.ReLU()
        nn.init.normal_(self.input.weight, std=0.01)  # small, as in the paper: an identity adds up all inputs
        nn.init.zeros_(self.input.bias)
        with torch.no_grad():
            self.recurrent.weight.copy_(settings.recurrent_scale * torch.eye(width))

    def start(self, zeros: Tensor) -> tuple[Tensor, ...]:
        return (zeros,)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.hidden(self.sum(x, self.recurrent(state[0]))),)


CELLS = {"lstm": LstmCell, "gru": GruCell, "relu": ReluCell}


class Recurrent(nn.Module):
    """[B, T] token indices -> [B, T, vocabulary] logits in half precision. Raises ValueError for settings that do not fit."""

    def __init__(self, vocabulary: int, settings: Settings, half: torch.dtype):
        super().__init__()
        self.embedding = Embedding(vocabulary, settings.width, half)
        cell = choice(CELLS, settings.cell, "cell")
        self.layer = nn.ModuleList(cell(settings) for _ in range(settings.layers))
        self.norm = choice(NORMS, settings.norm, "norm")(settings.width, half)
        self.head = nn.Linear(settings.width, vocabulary, bias=False)
        nn.init.normal_(self.head.weight, std=settings.width**-0.5)

    def forward(self, index: Tensor) -> Tensor:
        x = self.embedding(index)
        for cell in self.layer:
            state = cell.start(torch.zeros_like(x[:, 0]))
            hidden = []
            for character in cell.input(x).unbind(1):
                state = cell(character, state)
                hidden.append(state[0])
            x = torch.stack(hidden, 1)
        return self.head(self.norm(x))


class RecurrentWorkload(NextCharacter):
    """The recurrent network learns the next character; its state starts at 0 in each sequence."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        what = (f"character-level recurrent network, {settings.layers} layers of cell {settings.cell}, width {settings.width}, "
                f"context {settings.context}")
        super().__init__(lambda vocabulary: Recurrent(vocabulary, settings, half_of(precision)), text, settings.context, batch,
                         what)
