"""Text to train on: the King James Bible of the Debian package bible-kjv (public domain), or a file."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
