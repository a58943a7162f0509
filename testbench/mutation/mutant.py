"""A mutant: one place of one source file with another text."""
from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Mutant:
    """Characters start..end of `file` become `after`. line and column count from 1."""
    file: str
    line: int
    column: int
    operator: str
    start: int
    end: int
    before: str
    after: str
    text: str  # the source's line, without the space around it

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.operator}: {short(self.before)} -> {short(self.after)}"

    def applied(self, source: str) -> str:
        if source[self.start:self.end] != self.before:
            raise ValueError(f"{self.file}: is not the file that the mutant {self.name} was made of")
        return source[:self.start] + self.after + source[self.end:]

    def key(self, digest: str) -> str:
        """Of this mutant among sources and tests with that digest."""
        return hashlib.sha256(f"{self.file}\0{self.start}\0{self.before}\0{self.after}\0{digest}".encode()).hexdigest()[:24]


def short(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= 40 else line[:37] + "...") or "nothing"


class Places:
    """Makes the mutants of one file from offsets."""

    def __init__(self, file: str, source: str):
        self.file, self.source = file, source
        self.found: list[Mutant] = []

    def add(self, operator: str, start: int, end: int, after: str) -> None:
        before = self.source[start:end]
        if before == after:
            return
        begin = self.source.rfind("\n", 0, start) + 1
        stop = self.source.find("\n", start)
        text = self.source[begin:stop if stop >= 0 else len(self.source)].strip()
        self.found.append(Mutant(self.file, self.source.count("\n", 0, start) + 1, start - begin + 1, operator, start, end, before, after, text))

    def mutants(self) -> list[Mutant]:
        return sorted(set(self.found), key=lambda m: (m.start, m.end, m.operator, m.after))
