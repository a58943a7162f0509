"""Tables that a script writes into a page, between two marks: the page keeps its words, a test compares the rest."""
from __future__ import annotations

import sys
from pathlib import Path

END = "<!-- end -->"


def put(page: Path, document: str, name: str, script: str, content: str) -> str:
    """The document with another content between the marks of that name. Ends the program when they are missing."""
    begin = f"<!-- {name}: written by scripts/{script} -->"
    head, _, rest = document.partition(begin)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"{script}: {page}: {begin!r} and {END!r} are missing")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def markdown(rows: list[list[str]]) -> str:
    """A table; the first row is its heading."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def code(text: str) -> str:
    return f"```\n{text.rstrip()}\n```"


def finish(page: Path, before: str, after: str, check: bool, what: str) -> int:
    """Writes the page, or says whether it is as committed. Returns the exit status."""
    if check:
        print(f"{page.name}: {what}, {'as committed' if after == before else 'STALE'}")
        return 0 if after == before else 1
    page.write_text(after, encoding="utf-8")
    print(f"{page.name}: {what}")
    return 0
