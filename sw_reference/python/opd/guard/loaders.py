"""Batches of a script that iterates over DataLoaders and knows of no guard: a stopped step's come again from the same loader.

A batch belongs to a step when backward is called while it is the newest of its loader; those with which the model is called without
gradients are validation. What comes again is given out when the script asks its loader for the next batch, so that its loop has one round
more. Loaders that a framework iterates over are left alone: they are read ahead, and the newest batch is not the one in use.
"""
from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator

from torch.utils.data import DataLoader

from opd.capture.patch import Patch
from opd.guard.ring import Random, kept
from opd.guard.steps import StepGuard

FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "transformers")


class Loaders:
    """Watches every DataLoader of the process. guard: the one of the run, None before there is one."""

    def __init__(self, guard: Callable[[], StepGuard | None]):
        self._guard = guard
        self._numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._made = 0
        self._newest: dict[int, tuple] = {}  # number of a loader -> its newest batch, which no step has yet, and the random numbers then
        self._patch = Patch(DataLoader, "__iter__", self._wrap)

    def remove(self) -> None:
        self._patch.remove()
        self._guard = lambda: None

    def forget(self) -> None:
        """The model was called without gradients: what it was called with is no step's."""
        self._newest.clear()

    def take(self) -> None:
        """Backward is called: the newest batches are the open step's."""
        guard = self._guard()
        if guard is not None and self._newest:
            guard.take_batch({number: batch for number, (batch, _) in self._newest.items()}, next(iter(self._newest.values()))[1])
        self._newest.clear()

    def _wrap(self, original):
        @functools.wraps(original)
        def __iter__(loader):
            if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in FRAMEWORKS:
                return original(loader)
            if loader not in self._numbers:
                self._made += 1
                self._numbers[loader] = self._made
            return _Batches(self, original(loader), self._numbers[loader])
        return __iter__

    def _next(self, number: int, source: Iterator):
        guard = self._guard()
        batch = None if guard is None else self._again(guard, number)
        found = next(source) if batch is None else batch[number]
        self._newest[number] = (kept(found), Random.now())
        return found

    def _again(self, guard: StepGuard, number: int) -> dict | None:
        """Batches that come again, one of this loader among them; each loader takes its own."""
        waiting = guard.ask()
        living = set(self._numbers.values())
        while waiting and not living.intersection(waiting[0]):
            waiting.popleft()  # of a loader that is gone
        for batches in waiting:
            if number in batches:
                taken = {number: batches.pop(number)}
                if not batches:
                    waiting.remove(batches)
                return taken
        return None


class _Batches:
    """The iterator of a loader."""

    def __init__(self, loaders: Loaders, source: Iterator, number: int):
        self._loaders, self._source, self._number = loaders, source, number

    def __iter__(self):
        return self

    def __next__(self):
        return self._loaders._next(self._number, self._source)

    def __len__(self):
        return len(self._source)

    def __getattr__(self, name: str):
        return getattr(self._source, name)
