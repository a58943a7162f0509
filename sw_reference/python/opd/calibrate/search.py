"""The most sensitive settings of an engine that keep a wanted rate of false alarms (docs/calibration.md "Method")."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from opd.calibrate.bounds import allowed, over_runs
from opd.calibrate.evidence import Evidence, Settings, settings_of
from opd.calibrate.fields import Engine, Threshold
from opd.evaluate.metrics import Count
from opd.registers import CONFIG_RANGE, CONFIG_RESET, PROFILES, Flag

WINDOW_GAIN = 0.9  # another window than that of the reset values must lower the last threshold at least so far
PASSES = 8         # at most; each one only makes thresholds more sensitive


@dataclass
class Proposal:
    """Settings of an engine."""
    engine: Engine
    window: float
    position: dict[str, int] = field(default_factory=dict)  # of the thresholds in use, by field
    horizon: int | None = None                              # value of the horizon's field
    plain: set[Flag] = field(default_factory=set)           # flags without a threshold that are in use

    @property
    def bound(self) -> int:
        """Thresholds that the samples have set: not at the end of what is searched."""
        return sum(position > 0 for position in self.position.values())

    @property
    def unused(self) -> list[Flag]:
        """Flags that do not keep the rate: their weight is 0."""
        return [flag for flag, _ in self.engine.flags if flag not in self.plain and not self._uses(flag)]

    def flag_fields(self, flag: Flag) -> dict[str, float]:
        """The registers that a flag in use depends on. A threshold of it that is not set yet is as insensitive as can be."""
        fields = {self.engine.window: self.window}
        for threshold in self._thresholds(flag):
            fields |= threshold.fields(self.position.get(threshold.field, threshold.positions))
            if self.engine.horizon and self.engine.horizon.threshold == threshold.field:
                fields |= self.engine.horizon.fields(self.horizon)
        return fields

    def flags(self) -> dict[Flag, tuple[Settings, int]]:
        """What adds to the risk: the settings that each flag depends on, and its weight."""
        weights = self._profile_weights()
        found = {flag: ((), weights[flag]) for flag in self.plain}
        searched = [flag for flag, _ in self.engine.flags]
        found |= {flag: (settings_of(self.flag_fields(flag)), weights[flag]) for flag in searched if self._uses(flag)}
        found |= {flag: ((), weight) for flag, weight in weights.items() if weight and flag not in searched}
        return found

    def fields(self) -> dict[str, float]:
        """The proposed registers but the weights. A flag that is not used keeps its reset threshold."""
        found = {self.engine.window: self.window}
        if self.engine.horizon:
            found |= self.engine.horizon.fields(None)
        for threshold in self.engine.thresholds:
            if self._uses(threshold.flag):
                found |= self.flag_fields(threshold.flag)
            else:
                found |= {name: CONFIG_RESET[name] for name in (threshold.field, *threshold.follows)}
        return found

    def weights(self) -> dict[str, int]:
        """Weights of the engine's flags in its own profile: 0 for those that are not used."""
        weights = self._profile_weights()
        return {field: 0 if flag in self.unused else weights[flag] for flag, field in self.engine.flags}

    def _thresholds(self, flag: Flag) -> list[Threshold]:
        return [threshold for threshold in self.engine.thresholds if threshold.flag is flag]

    def _uses(self, flag: Flag) -> bool:
        return any(threshold.field in self.position for threshold in self._thresholds(flag))

    def _profile_weights(self) -> dict[Flag, int]:
        """Of every flag in the engine's profile; status flags have none. Samples with NONFINITE are not judged."""
        profile = {**CONFIG_RESET, **PROFILES[self.engine.name]}
        return {flag: profile.get(f"weight_{flag.name.lower()}", 0) for flag in Flag if flag is not Flag.NONFINITE}


class Search:
    """Over some of the runs of the evidence."""

    def __init__(self, evidence: Evidence, runs: Sequence[int], rate: float, seed: int):
        self.evidence, self.runs, self.rate, self.seed = evidence, list(runs), rate, seed
        self.probe_steps = int(evidence.probe_steps[self.runs].sum())

    def counts(self, proposal: Proposal) -> list[Count]:
        alarms = self.evidence.counts(proposal.flags())
        return [Count(int(alarms[run]), int(self.evidence.probe_steps[run])) for run in self.runs]

    def keeps(self, proposal: Proposal, share: float = 1.0) -> bool:
        """Whether the proposal keeps the rate with both bounds, and uses at most this share of the alarms that may be. Where
        the samples are too few for the rate there may be none."""
        counts = self.counts(proposal)
        alarms = sum(count.alarms for count in counts)
        if alarms > share * (allowed(self.probe_steps, proposal.bound, self.rate) or 0):
            return False
        upper = over_runs(counts, self.seed) if alarms else None
        return upper is None or upper <= self.rate

    def best(self, engine: Engine) -> Proposal:
        """The window of the reset values, unless another lets the last threshold be WINDOW_GAIN of it or less, at a horizon
        that is no shorter."""
        reset = CONFIG_RESET[engine.window]
        chosen = self.fit(engine, reset)
        for window in engine.windows:
            if window == reset:
                continue
            other = self.fit(engine, window)
            if np.inf > self._last(other) <= WINDOW_GAIN * self._last(chosen) and self._steps(other) >= self._steps(chosen):
                chosen = other
        return chosen

    def fit(self, engine: Engine, window: float) -> Proposal:
        """Threshold by threshold, first each with an equal share of the alarms that may be, then each with what the others
        leave, until no register can move."""
        proposal = Proposal(engine, window)
        steps: list[Callable[[Proposal, float], None]] = [
            lambda proposal, share, flag=flag: self._fit_plain(proposal, flag, share) for flag, _ in engine.plain]
        steps += [lambda proposal, share, threshold=threshold: self._fit_threshold(proposal, threshold, share)
                  for threshold in engine.thresholds]
        for index, step in enumerate(steps):
            step(proposal, (index + 1) / len(steps))
        for _ in range(PASSES):
            before = (dict(proposal.position), proposal.horizon, set(proposal.plain))
            for step in steps:
                step(proposal, 1.0)
            if before == (proposal.position, proposal.horizon, proposal.plain):
                break
        return proposal

    def _fit_plain(self, proposal: Proposal, flag: Flag, share: float) -> None:
        proposal.plain.add(flag)
        if not self.keeps(proposal, share):
            proposal.plain.remove(flag)

    def _fit_threshold(self, proposal: Proposal, threshold: Threshold, share: float) -> None:
        horizon = proposal.engine.horizon
        if horizon is None or horizon.threshold != threshold.field:
            self._bisect(proposal, threshold, share)
            return
        found: list[tuple[int, int]] = []  # position, value of the horizon's field
        for value in range(CONFIG_RANGE[horizon.field][1], CONFIG_RANGE[horizon.field][0] - 1, -1):
            if value + proposal.window > horizon.longest:
                continue
            proposal.horizon = value
            self._bisect(proposal, threshold, share)
            if threshold.field in proposal.position:
                found.append((proposal.position[threshold.field], value))
                if threshold.value(found[-1][0]) >= horizon.enough:
                    return
        proposal.position.pop(threshold.field, None)
        proposal.horizon = None
        if found:  # none is as long as wanted: the widest gate, then the longest horizon
            proposal.position[threshold.field], proposal.horizon = min(found, key=lambda pair: (pair[0], -pair[1]))

    def _bisect(self, proposal: Proposal, threshold: Threshold, share: float) -> None:
        """Sets the most sensitive position that keeps the rate; takes the flag out of use when none does."""
        def keeps(position: int) -> bool:
            proposal.position[threshold.field] = position
            return self.keeps(proposal, share)

        low, high = 0, threshold.positions
        if keeps(low):
            return
        if not keeps(high):
            del proposal.position[threshold.field]
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if keeps(middle) else (middle, high)
        proposal.position[threshold.field] = high

    @staticmethod
    def _last(proposal: Proposal) -> float:
        threshold = proposal.engine.thresholds[-1]
        position = proposal.position.get(threshold.field)
        return np.inf if position is None else threshold.value(position)

    @staticmethod
    def _steps(proposal: Proposal) -> float:
        """log2 of the horizon; -1 when its flag is not used."""
        if proposal.engine.horizon is None:
            return 0
        return -1 if proposal.horizon is None else proposal.horizon + proposal.window
