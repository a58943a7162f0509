"""Replacing an attribute for a while."""
from __future__ import annotations

from collections.abc import Callable


class Patch:
    """Replaces owner.name by wrap(original). remove() puts the original back, unless somebody else replaced ours since: then
    ours stays in the chain and passes everything through."""

    def __init__(self, owner, name: str, wrap: Callable[[Callable], Callable]):
        self._owner, self._name = owner, name
        self._inherited = name not in vars(owner)
        self._original = getattr(owner, name)
        self._ours = wrap(self._original)
        setattr(owner, name, self._ours)

    def remove(self) -> None:
        if vars(self._owner).get(self._name) is not self._ours:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)
