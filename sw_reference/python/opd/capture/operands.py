"""The operands that a capture keeps: of which operators, in which steps, and the ring of the last steps before an incident.

Tensors stay on their device until they are written. The ring and the open step together hold at most MEMORY bytes of them: the
ring gets shorter when its steps are larger, and an operator that has no room in a step is left out, which is said.
"""
from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from opd.capture.errors import CaptureError
from opd.capture.journal import JournalWriter, ProbeEntry
from opd.capture.observation import bytes_of
from opd.capture.operators import PER_COLUMN, NotKnown, Operator, output_elements
from opd.trace_layout import KERNELS

log = logging.getLogger("opd.capture")

RING = 8          # steps whose operands are at hand when a value turns non-finite
MEMORY = 1 << 30  # bytes of operands that may be waiting
LAST = "last"     # in the place of steps: the ring is written at the end, incident or not


@dataclass(slots=True)
class Execution:
    """One execution of an operator. description: as Operator.description; tensors: copies of its operands in that order, empty
    where only its shapes are wanted; output: what PyTorch wrote, or None."""
    description: dict
    tensors: list[Tensor]
    output: Tensor | None

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors) + (0 if self.output is None else self.output.nbytes)


@dataclass(slots=True)
class _Row:
    """What the operator of a probe computed from in one step: its executions in the order in which they ran, described as one."""
    entry: ProbeEntry
    description: dict
    executions: list[Execution]


class Operands:
    """Keeps operands for one capture. Raises CaptureError for arguments that cannot work.

    patterns    of names of forward probes
    steps       anything with `in`; LAST: the ring, at the end of the run
    ring        number of steps; by default RING where no steps are chosen, else 0
    """

    def __init__(self, patterns: str | Iterable[str], steps: Container[int] | str | None, ring: int | None):
        texts = [patterns] if isinstance(patterns, str) else patterns
        self.patterns = [part.strip() for text in texts for part in str(text).split(",") if part.strip()]
        if not self.patterns:
            raise CaptureError("operands: no pattern; give names of probes, for instance operands=\"*.attn:logits\"")
        if (isinstance(steps, str) and steps != LAST) or (steps is not None and not hasattr(steps, "__contains__")):
            raise CaptureError(f"operand_steps: {steps!r} are no steps; give something with steps in it, for instance "
                               f"range(100, 120), or {LAST!r}")
        if ring is not None and (type(ring) is not int or ring < 0):
            raise CaptureError(f"operand_ring: {ring!r} is not a whole number from 0 on; correct it")
        self._at_end = isinstance(steps, str)
        self._steps = () if steps is None or self._at_end else steps
        self._ring_steps = ring if ring is not None else RING if steps is None or self._at_end else 0
        if not self._ring_steps and (steps is None or self._at_end):
            raise CaptureError("operand_ring: 0 steps, and no others are chosen; give operand_steps, or a ring of at least 1")
        self._ring: deque[tuple[int, list[_Row]]] = deque()
        self._open = self._ringed = 0          # bytes of the open step and of the ring
        self._is_over = False                  # the incident was there: the ring is written
        self._is_short = False
        self._described: dict[int, tuple[dict, int]] = {}  # number of a probe -> what the journal knows of its operator
        self._missing: set[str] = set()
        self.journal: JournalWriter | None = None  # set before the first step

    def options(self) -> dict:
        """For the manifest."""
        return {"asked": self.patterns, "ring": self._ring_steps}

    # --- while a step is open

    def take(self, name: str, call: int, suffix: str, number: int, operator: Operator, output: Tensor | None) -> Execution | None:
        """An execution as it is now: copies of its tensors where they are asked for in this step, else its shapes. None for an
        operator that a trace cannot describe, which is said where it is asked for."""
        full_name = f"{name}#{call}{suffix}" if call > 1 else name + suffix
        try:
            description = operator.description()
        except NotKnown as why:
            self.miss(full_name, str(why))
            return None
        is_asked = self._wants(full_name) or (call > 1 and self._wants(name + suffix))  # it may share a probe with the first call
        if not is_asked or not ((self._ring_steps and not self._is_over) or number in self._steps):
            return Execution(description, [], None)
        size = sum(tensor.nbytes for tensor in operator.operands.values()) + (0 if output is None else output.nbytes)
        while self._ring and self._open + self._ringed + size > MEMORY:
            self._shorten()
        if self._open + size > MEMORY:
            self.miss(full_name, f"operands of one step take more than {MEMORY >> 20} MiB")
            return Execution(description, [], None)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            tensors = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in operator.operands.values()]
            execution = Execution(description, tensors, None if output is None else output.detach().clone())
        self._open += size
        return execution

    def miss(self, name: str, why: str) -> None:
        """What is asked for and cannot be had is said once, in the log and in the trace. name: of a probe, or a pattern."""
        if name in self._missing or not (self._wants(name) or name in self.patterns):
            return
        self._missing.add(name)
        log.warning("operands: %s: %s", name, why)
        if self.journal is not None:
            self.journal.missing_operands(name, why)

    def next_step(self) -> None:
        """What is taken now belongs to another step."""
        self._open = 0

    # --- when a step is written

    def rows(self, probes: Iterable[tuple[ProbeEntry, int, Sequence[Execution | None]]]) -> list[_Row]:
        """The operators of a step, described in the journal. probes: each with its elements in the step and its executions."""
        found = []
        for entry, elements, executions in probes:
            if not executions or any(execution is None for execution in executions):
                continue
            try:
                description = _joined([execution.description for execution in executions])
                if output_elements(description) != elements:
                    raise NotKnown("its output has other elements than its probe")
            except NotKnown as why:
                self.miss(entry.name, str(why))
                continue
            if elements == entry.elements and self._described.get(entry.index) != (description, len(executions)):
                self._described[entry.index] = description, len(executions)
                self.journal.operator(entry, description, len(executions))
            if all(execution.tensors for execution in executions):
                found.append(_Row(entry, description, list(executions)))
        return found

    def close_step(self, number: int, rows: list[_Row], is_incident: bool) -> None:
        """Writes what is to be written now. is_incident: the step holds the first incident of the run."""
        if rows and number in self._steps:
            self._write(number, rows)
        elif rows and self._ring_steps and not self._is_over:
            self._ring.append((number, rows))
            self._ringed += _bytes(rows)
            while len(self._ring) > self._ring_steps:
                self._drop()
        if is_incident:
            self._write_ring()
            self._is_over = True

    def end(self) -> None:
        """The run ends."""
        if self._at_end:
            self._write_ring()
        self._ring.clear()

    def check(self, names: Sequence[str], other_names: Sequence[str], modules: Iterable[str], compiled: Iterable[str]) -> None:
        """Says what of the patterns cannot be had, once the probes are known. names: of forward probes; other_names: of other
        probes; modules: all that have hooks; compiled: those that have none."""
        for pattern in self.patterns:
            def matching(candidates: Iterable[str], pattern: str = pattern.partition(":")[0]) -> list[str]:
                return [name for name in candidates if fnmatchcase(name, pattern)]
            hidden = matching(compiled)
            if hidden:
                self.miss(pattern, f"inside code of torch.compile, into which no hook sees: {_listed(hidden)}; leave them uncompiled")
            elif not any(fnmatchcase(name, pattern) for name in names):
                others, unprobed = [name for name in other_names if fnmatchcase(name, pattern)], matching(modules)
                if others:
                    self.miss(pattern, f"no operator's output: {_listed(others)}; name probes of the forward pass")
                elif unprobed and ":" not in pattern:
                    self.miss(pattern, f"no probe in the first step is of {_listed(unprobed)}; choose modules with probes")
                else:
                    self.miss(pattern, "no probe is called that in the first step; a softmax or product that is called as a function "
                                       f"outside of an attention module has none; there are {_listed(list(names), 20)}")

    # --- within

    def _wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def _drop(self) -> None:
        self._ringed -= _bytes(self._ring.popleft()[1])

    def _shorten(self) -> None:
        self._drop()
        if not self._is_short:
            self._is_short = True
            log.warning("operands: a ring of %d steps takes more than %d MiB: it holds the last %d; ask for fewer operators or steps",
                        self._ring_steps, MEMORY >> 20, len(self._ring))

    def _write_ring(self) -> None:
        while self._ring:
            self._write(*self._ring.popleft())
        self._ringed = 0

    def _write(self, number: int, rows: list[_Row]) -> None:
        for row in rows:
            name = row.entry.name
            if not (self._wants(name) or self._wants(name.removesuffix(f":{row.entry.format}"))):
                continue  # taken as a possible part of another probe
            try:
                data = _elements(row)
            except NotKnown as why:
                self.miss(name, f"step {number}: {why}")
                continue
            has_output = row.executions[0].output is not None
            if has_output:
                data += b"".join(bytes_of(execution.output) for execution in row.executions)
            self.journal.operands(number, row.entry, row.description, len(row.executions), has_output, data)


def _bytes(rows: list[_Row]) -> int:
    return sum(execution.bytes for row in rows for execution in row.executions)


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _grows(description: dict, name: str) -> bool:
    """Whether an operand has rows of its own for each execution."""
    rows = description["operands"][name]["shape"][0]
    if KERNELS[description["kernel"]].is_matrix:
        return name in ("a", "b", "x")
    return name not in PER_COLUMN and rows == description["rows"]


def _joined(descriptions: Sequence[dict]) -> dict:
    """Executions of a step as one of more rows. Raises NotKnown."""
    first, number = descriptions[0], len(descriptions)
    if any(description != first for description in descriptions):
        raise NotKnown(f"its {number} executions in a step differ in shapes or attributes")
    if number == 1:
        return first
    joined = copy.deepcopy(first)
    joined["batch" if first["kernel"] == "matmul" else "rows"] *= number
    for name, operand in joined["operands"].items():
        if _grows(first, name):
            operand["shape"][0] *= number
    return joined


def _elements(row: _Row) -> bytes:
    """Operands one after the other, each with the executions in order. Raises NotKnown."""
    description = row.executions[0].description
    data = []
    for i, name in enumerate(description["operands"]):
        parts = [bytes_of(execution.tensors[i]) for execution in row.executions]
        if _grows(description, name):
            data += parts
        elif any(part != parts[0] for part in parts):
            raise NotKnown(f"{name} is not the same in its {len(parts)} executions")
        else:
            data.append(parts[0])
    return b"".join(data)
