"""ZClip as its authors run it (bluorion-com/ZClip, zclip/zclip.py: mode zscore, adaptive_scaling), on the gradient norm of a run."""

from __future__ import annotations

from opd.evaluate.averages import ZClip as Rule

MAX_NORM = 1.0  # the authors' default: no step is clipped to more


class ZClip:
    """Settings are those of the rule that docs/evaluation.md compares. The first norms give mean and variance; from then on a norm
    with z above the threshold is clipped, and enters the averages clipped. A norm that is not finite enters them too, as theirs does."""

    def __init__(self):
        self._alpha, self._threshold, self._warmup, self._eps = (
            Rule.settings[key] for key in ("alpha", "z_thresh", "warmup_steps", "eps"))
        self._first: list[float] | None = []
        self._mean = self._variance = 0.0

    def norm(self, norm: float) -> float:
        """What gradients of that norm are clipped to."""
        if self._first is not None:
            self._first.append(norm)
            if len(self._first) == self._warmup:
                self._mean = sum(self._first) / self._warmup
                self._variance = sum((x - self._mean) ** 2 for x in self._first) / self._warmup
                self._first = None
            return MAX_NORM
        deviation = self._variance**0.5
        z = (norm - self._mean) / (deviation + self._eps)
        taken = self._mean + self._threshold * deviation / (z / self._threshold) if z > self._threshold else norm
        self._mean = self._alpha * self._mean + (1 - self._alpha) * taken
        self._variance = self._alpha * self._variance + (1 - self._alpha) * (taken - self._mean) ** 2
        return min(taken, MAX_NORM)
