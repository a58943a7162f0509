"""Command lines of the Python commands and of the scripts: nothing is ignored.

Parser is argparse's, with three rules more: an option of one value that comes twice is an error, values of one that may be
repeated are merged, and what is not known is an error with the nearest name, help asked for or not.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from opd.texts import suggestion


class _Once(argparse.Action):
    """Stores the value of an option; a second one is an error. Positional arguments come once by themselves."""

    def __call__(self, parser, namespace, values, option_string=None):
        if self.option_strings and self in parser.given:
            raise argparse.ArgumentError(self, "is given more than once; give it once")
        parser.given.add(self)
        setattr(namespace, self.dest, values)


class _Merged(argparse.Action):
    """Collects the values of an option that may be repeated, each once."""

    def __call__(self, parser, namespace, values, option_string=None):
        before = getattr(namespace, self.dest) if self in parser.given else None
        parser.given.add(self)
        setattr(namespace, self.dest, [*(before or ()), *([] if values in (before or ()) else [values])])


class Parser(argparse.ArgumentParser):
    """Exit status 2 and one line after the usage for whatever is wrong."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.given: set[argparse.Action] = set()  # options of this command line so far
        self._words: list[str] = []
        for name in (None, "store"):
            self.register("action", name, _Once)
        self.register("action", "append", _Merged)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace=None):
        self.given, self._words = set(), list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace=None):
        values, rest = self.parse_known_args(args, namespace)
        if rest:
            self._refuse(next((word for word in rest if word.startswith("-")), rest[0]))
        return values

    def print_help(self, file=None) -> None:
        for word in self._words:  # `--nonsense --help` is no question about what there is
            if word.startswith("--") and len(word) > 2 and not self._names(word):
                self._refuse(word)
        super().print_help(file)

    def _names(self, word: str) -> bool:
        name = word.partition("=")[0]
        return any(option.startswith(name) for option in self._option_string_actions)  # argparse takes the beginning of one

    def _refuse(self, word: str) -> None:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"'{word}' is not expected; --help lists what there is")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(f"{name}: no such option; {suggestion(name, known, '--help lists what there is')}")
