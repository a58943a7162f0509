"""Language models of characters: a model [B, T] indices -> [B, T, vocabulary] logits learns the next character of a text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from workloads.text import DataError, Text
from workloads.workload import Batch, Workload, every_output_and_its_gradient, parameters


class Characters:
    """Windows of `context` characters and the one that follows each: what a character-level language model learns."""

    def __init__(self, text: Text, context: int, sequences: int):
        """sequences: of a batch. Raises DataError for a text that is too short."""
        characters = sorted(set(text.content))
        if len(text.content) <= context + 1 or len(characters) < 2:
            raise DataError(f"text: {len(text.content)} characters, {len(characters)} different ones; give a longer one")
        index = {character: i for i, character in enumerate(characters)}
        self.vocabulary = len(characters)
        self._windows = torch.tensor([index[character] for character in text.content]).unfold(0, context + 1, 1)
        self._sequences = sequences

    def batch(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets, both int64 [sequences, context]."""
        chosen = self._windows[torch.randint(len(self._windows), (self._sequences,), generator=generator)]
        return chosen[:, :-1], chosen[:, 1:]


class NextCharacter(Workload):
    """Every output of the model, and its gradient, is probed."""

    def __init__(self, make_model: Callable[[int], nn.Module], text: Text, context: int, batch: int, what: str):
        """make_model: from the size of the vocabulary; context: characters; batch: sequences; what: the model in words.
        Raises DataError."""
        self._characters = Characters(text, context, batch)
        self.model = make_model(self._characters.vocabulary)
        self.probes = every_output_and_its_gradient(self.model)
        self.text = f"{what}, {parameters(self.model)} parameters"
        self.source = text.source

    def batch(self, generator: Generator) -> Batch:
        return self._characters.batch(generator)

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        return functional.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())
