"""What a policy is, and what it is shown of a training step."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opd.device import Event, Hints
from opd.records import magnitudes

if TYPE_CHECKING:
    from opd.policy.device import Device


class Operator(NamedTuple):
    """An operator of the device. op: its number; kind: of docs/formats.md "Trace"; format: its own, that of FAST."""
    op: int
    name: str
    kind: str
    format: str


class Record(NamedTuple):
    """One completion: the fields of OpRecord (docs/formats.md)."""
    seq: int
    step: int
    op: int
    format: int
    mode: int
    max_mag: int
    nonfinite_count: int
    first_nonfinite: int
    saturated_count: int
    flags: int
    risk: int
    cause: int


@dataclass(frozen=True)
class Step:
    """A training step whose records are all out. records: structured array [N] with the fields of OpRecord, in the order of their
    completion; events: in the order of their records; hints: what the device's registers ask of the training loop now;
    last_clean_step: None before the first; limits: largest finite value of each operator's own format, float64 [operators]."""
    number: int
    records: np.ndarray
    events: Sequence[Event]
    hints: Hints
    last_clean_step: int | None
    operators: Sequence[Operator] = field(repr=False)
    limits: np.ndarray = field(repr=False)

    @cached_property
    def magnitudes(self) -> np.ndarray:
        """Largest finite magnitude of each record, float64 [N]; 0 where there is none."""
        return magnitudes(self.records["max_mag"], self.records["format"]).astype(np.float64)

    @cached_property
    def headroom(self) -> np.ndarray:
        """Bits from each record's magnitude to the largest finite value of the operator's own format, whatever format it ran in:
        float64 [N], Inf for a magnitude of 0, negative beyond the format."""
        with np.errstate(divide="ignore"):
            return np.log2(self.limits[self.records["op"]]) - np.log2(self.magnitudes)

    @cached_property
    def nonfinite(self) -> np.ndarray:
        """Whether each record has Inf or NaN, bool [N]."""
        return self.records["nonfinite_count"] > 0


class Policy:
    """Firmware of the host. It is asked between two training steps: when all records of a step are out, on_record for each of them,
    on_event for each event, then on_step. What it commands takes effect before the first operator of the next step.

    Every method may be left out. One object sees one run: `opd replay` makes a new one for each trace, without arguments.
    """

    def start(self, operators: Sequence[Operator], device: Device) -> None:
        """Before the first step. operators: in the order of their numbers; under a guard those that are known so far, and the list
        grows."""

    def on_record(self, record: Record, device: Device) -> None:
        """One completion. A policy that overrides it pays one call of Python for each; Step.records has them as an array."""

    def on_event(self, event: Event, device: Device) -> None:
        """One event of docs/controller.md."""

    def on_step(self, step: Step, device: Device) -> None:
        """The whole step."""
