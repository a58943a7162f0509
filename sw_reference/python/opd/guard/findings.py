"""What a step is judged by, before and after it is merged with that of other ranks."""
from __future__ import annotations

from dataclasses import dataclass, field

from opd.guard.monitor import Seen


@dataclass
class Findings:
    """Of one step, before the optimizer's. has_finite_gradients: None where nobody looked; judges_gradients: gradients that are not finite
    stop the step (else they are the scaler's); is_corrupt: parameters were not finite after the step before; ranks: where something of it
    is not finite."""
    seen: Seen
    has_finite_loss: bool = True
    has_finite_gradients: bool | None = None
    judges_gradients: bool = False
    backward_error: str | None = None
    is_corrupt: bool = False
    ranks: list[int] = field(default_factory=list)


@dataclass
class Facts:
    """Asked when a step is stopped. states: steps after which states were taken, oldest first."""
    is_corrupt: bool
    has_finite_batches: bool
    states: list[int]
