"""Text to train on: the King James Bible of the Debian package bible-kjv (public domain), or a file."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Generator, Tensor

PASSAGE = "gen1:1-rev22:21"
PACKAGE = "bible-kjv"


class DataError(ValueError):
    """Data that is not there or cannot be used. The text names it and the remedy."""


@dataclass(frozen=True)
class Text:
    """A text and where it comes from."""
    content: str
    source: dict[str, str]

    @property
    def verses(self) -> list[str]:
        return [line for line in self.content.splitlines() if line]


@cache
def read_text(file: str | None = None) -> Text:
    """`file` (UTF-8), or the package's text without its verse numbers, a verse a line. Raises DataError."""
    if file is None:
        try:
            dump = subprocess.run(["bible", "-f", PASSAGE], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            raise DataError(f"program bible: cannot be run; install the Debian package {PACKAGE}, or give --text") from None
        text = re.sub(r"(?m)^\S+ ", "", dump.decode("ascii"))
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", PACKAGE], capture_output=True, text=True).stdout
        source = {"package": PACKAGE, "version": version, "passage": PASSAGE}
    else:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: text: {error}; give a readable UTF-8 file") from None
        source = {"file": Path(file).name}
    return Text(text, {**source, "sha256": hashlib.sha256(text.encode()).hexdigest()})


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
