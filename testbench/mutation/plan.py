"""testbench/mutation.toml: components, how they are built and tested, and mutants that nothing can tell from the original."""
from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from . import brackets_source, python_source
from .mutant import Mutant
from .tokens import CPP, VERILOG

PYTHON = "python"
LANGUAGES = {".py": PYTHON, ".cpp": CPP, ".hpp": CPP, ".sv": VERILOG}


class PlanError(Exception):
    """The file says something that cannot be; the text names the file, the entry and the remedy."""


@dataclass(frozen=True)
class Component:
    name: str
    what: str
    sources: list[str]  # patterns, relative to the repository
    needs: list[str]  # patterns of what is copied as well
    build: list[list[str]]  # commands; one that fails makes the mutant invalid
    tests: list[list[str]]  # commands; one that fails kills it
    seconds: float  # a test's limit
    object: list[str] = field(default_factory=list)  # compiles {file} of the copy to {out}, for the proof by object code
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Equivalent:
    file: str
    text: str  # the line, without the space around it
    mutants: list[str]  # "before -> after"; an empty list: all of the line
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        told = f"{mutant.before} -> {mutant.after}"
        return mutant.file == self.file and mutant.text == self.text and (not self.mutants or told in self.mutants)


@dataclass(frozen=True)
class Plan:
    components: dict[str, Component]
    equivalents: list[Equivalent]


def _entry(path: Path, what: str, table: dict, kinds: dict[str, type | tuple[type, ...]], optional: tuple[str, ...] = ()) -> dict:
    for key, value in table.items():
        if key not in kinds:
            raise PlanError(f"{path}: {what}: unknown key '{key}'; there are: {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            raise PlanError(f"{path}: {what}: {key}: of another type than it must have")
    for key in kinds:
        if key not in table and key not in optional:
            raise PlanError(f"{path}: {what}: {key}: missing")
    return table


def read(path: Path) -> Plan:
    """Raises PlanError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read ({error})") from error
    _entry(path, "top level", content, {"component": dict, "equivalent": list}, ("equivalent",))
    component = {"what": str, "sources": list, "needs": list, "build": list, "tests": list, "seconds": (int, float), "object": list, "environment": dict}
    components = {name: Component(name, **_entry(path, f"component.{name}", table, component, ("build", "object", "environment", "needs"))
                                  | {key: table.get(key, []) for key in ("build", "needs")})
                  for name, table in content["component"].items()}
    equivalents = [Equivalent(**_entry(path, f"equivalent {number}", table, {"file": str, "text": str, "mutants": list, "reason": str}))
                   for number, table in enumerate(content.get("equivalent", []), 1)]
    for number, entry in enumerate(equivalents, 1):
        if not entry.reason.strip():
            raise PlanError(f"{path}: equivalent {number}: reason: empty; say why no test can tell it from the original")
    return Plan(components, equivalents)


def files_of(root: Path, patterns: list[str], where: str) -> list[Path]:
    """Files below root, relative to it. Raises PlanError for a pattern that fits none."""
    found: set[Path] = set()
    for pattern in patterns:
        fitting = {path.relative_to(root) for path in root.glob(pattern) if path.is_file() and "__pycache__" not in path.parts}
        if not fitting:
            raise PlanError(f"{where}: {pattern}: fits no file")
        found |= fitting
    return sorted(found)


def mutants(root: Path, component: Component) -> list[Mutant]:
    """All mutants of a component, in the order of files and places. Raises PlanError for a source that cannot be read."""
    found: list[Mutant] = []
    for file in files_of(root, component.sources, f"component.{component.name}: sources"):
        language = LANGUAGES.get(file.suffix)
        source = (root / file).read_text(encoding="utf-8")
        try:
            if language is None:
                raise ValueError(f"no mutator for {file.suffix or 'a file without a suffix'}; there are: {', '.join(LANGUAGES)}")
            found += python_source.mutants_of(str(file), source) if language == PYTHON else brackets_source.mutants_of(str(file), source, language)
        except (ValueError, SyntaxError) as error:
            raise PlanError(f"component.{component.name}: {file}: {error}") from error
    return found


def digest(root: Path, component: Component) -> str:
    """Of everything that decides whether a mutant is found: sources, tests, commands, and what lies beside them."""
    total = hashlib.sha256(json.dumps([component.build, component.tests, component.seconds, component.environment]).encode())
    for file in files_of(root, [*component.sources, *component.needs], f"component.{component.name}"):
        total.update(f"\0{file}\0".encode() + (root / file).read_bytes())
    return total.hexdigest()


def stale(plan: Plan, of: dict[str, list[Mutant]]) -> list[str]:
    """Entries of `equivalent` that fit no mutant, one line each; `of` has the mutants of every component."""
    every = [mutant for found in of.values() for mutant in found]
    lines = []
    for number, entry in enumerate(plan.equivalents, 1):
        fitting = {f"{mutant.before} -> {mutant.after}" for mutant in every if entry.matches(mutant)}
        lacking = [told for told in entry.mutants if told not in fitting] if entry.mutants else []
        if not fitting or lacking:
            lines.append(f"equivalent {number} ({entry.file}: {entry.text}): fits no mutant{': ' + ', '.join(lacking) if lacking else ''}; "
                         "the source has changed: look at it again, or take the entry out")
    return lines
