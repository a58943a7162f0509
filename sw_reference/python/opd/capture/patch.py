"""Replacing an attribute for a while."""
from __future__ import annotations

from collections.abc import Callable


class Patch:
    """Replaces owner.name by wrap(original). remove() puts the original back. While a later replacement stands before ours, ours
    stays in the chain and passes everything through: until that one is removed, when it is a Patch, and for good when it is
    somebody else's."""

    _standing: list["Patch"] = []  # in the order in which they were put

    def __init__(self, owner, name: str, wrap: Callable[[Callable], Callable]):
        self._owner, self._name = owner, name
        self._inherited = name not in vars(owner)
        self._original = getattr(owner, name)
        self._ours = wrap(self._original)
        self._removed = False
        setattr(owner, name, self._ours)
        self._standing.append(self)

    def remove(self) -> None:
        self._removed = True
        for patch in reversed(self._standing):
            if patch._removed and vars(patch._owner).get(patch._name) is patch._ours:
                patch._put_back()
        self._standing[:] = [patch for patch in self._standing if not patch._removed or patch._covered()]

    def _put_back(self) -> None:
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)

    def _covered(self) -> bool:
        """Whether a later Patch of the same attribute still stands: only then can ours come to light again."""
        later = self._standing[self._standing.index(self) + 1:]
        return any(patch._owner is self._owner and patch._name == self._name and not patch._removed for patch in later)
