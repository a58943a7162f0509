"""The pages of the repository, and how tests read them."""
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[a-z]*/README.md")])


def page_id(page: Path) -> str:
    """Name of a page in the results."""
    return str(page.relative_to(ROOT))


def section(text: str, heading: str) -> str:
    """The text below a heading of the second level."""
    parts = re.split(rf"^## {re.escape(heading)}\n", text, flags=re.MULTILINE)
    assert len(parts) == 2, f"## {heading}: {len(parts) - 1} times"
    return re.split(r"^## ", parts[1], flags=re.MULTILINE)[0]


def cells(text: str) -> Iterator[list[str]]:
    """Rows of the tables, without headings."""
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def quoted(text: str) -> list[str]:
    """What stands in `quotes`."""
    return re.findall(r"`([^`\n]+)`", text)


def script(name: str) -> ModuleType:
    """A script of scripts/ as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # scripts/ stays as it is
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        loader.exec_module(loaded)
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        sys.dont_write_bytecode = writes
    return loaded
