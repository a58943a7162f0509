"""Traces and what the device raises on them, computed by the C++ reference.

An alarm is that of docs/metrics.md: a risk of at least RISK.STABLE, until the operator's first non-finite value. The warm-up
counts like the rest.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opd.evaluate.corpus import Run
from opd.evaluate.metrics import Count
from opd.evaluate.reference import statistics
from opd.reference import module
from opd.registers import CONFIG_RESET, Flag

Settings = tuple[tuple[str, float], ...]  # fields and values, sorted by name: a key


def settings_of(fields: Mapping[str, float]) -> Settings:
    return tuple(sorted(fields.items()))


@dataclass(frozen=True)
class Subject:
    """A run as the search sees it: S steps, P operators."""
    run: Run
    arguments: dict[str, np.ndarray]  # of opd._reference.run
    judged: np.ndarray                # bool [S, P]: before the operator's first non-finite value, operator of a chosen kind
    before_incident: np.ndarray       # bool [S, P]: the same for operators of any kind

    @staticmethod
    def of(run: Run, kinds: Sequence[str] | None) -> Subject:
        before = ~np.maximum.accumulate(run.trace.nonfinite > 0, axis=0)
        chosen = np.array([kinds is None or probe.kind in kinds for probe in run.trace.probes])
        return Subject(run, statistics(run.trace), before & chosen, before)

    def alarms(self, config: Mapping[str, float]) -> np.ndarray:
        """bool [S, P] under a complete configuration (fields that are not at their reset value)."""
        records, _ = module().run(**self.arguments, config=dict(config))
        return records["risk"] >= config.get("risk_stable", CONFIG_RESET["risk_stable"])

    def count(self, config: Mapping[str, float]) -> Count:
        return Count(int((self.alarms(config) & self.judged).sum()), int(self.judged.sum()))

    def replayed(self, config: Mapping[str, float]) -> int:
        """Alarms of operators of every kind: what opd replay counts."""
        return int((self.alarms(config) & self.before_incident).sum())


class Evidence:
    """Flags on all runs, one after the other. What has been asked once is kept: leaving runs out costs next to nothing."""

    def __init__(self, subjects: Sequence[Subject]):
        self.subjects = list(subjects)
        self.probe_steps = np.array([int(subject.judged.sum()) for subject in subjects])
        self._starts = np.concatenate(([0], np.cumsum([subject.judged.size for subject in subjects])[:-1])).astype(int)
        self._size = sum(subject.judged.size for subject in subjects)
        self._raised: dict[tuple[Flag, Settings], np.ndarray] = {}
        self._counts: dict[frozenset, np.ndarray] = {}

    def counts(self, flags: Mapping[Flag, tuple[Settings, int]]) -> np.ndarray:
        """Samples of each run at which the weights of the raised flags reach RISK.STABLE: int64 [N]. flags: for each that has a
        weight, the settings it depends on and that weight."""
        key = frozenset(flags.items())
        if key not in self._counts:
            stable = CONFIG_RESET["risk_stable"]
            alone = np.zeros((self._size + 7) // 8, np.uint8)
            for flag, (settings, weight) in flags.items():
                if weight >= stable:
                    alone |= self._samples(flag, settings)
            alarms = np.unpackbits(alone, count=self._size)
            together = [(flag, *item) for flag, item in flags.items() if item[1] < stable]
            if sum(weight for *_, weight in together) >= stable:
                risk = sum(np.int32(weight) * np.unpackbits(self._samples(flag, settings), count=self._size)
                           for flag, settings, weight in together)
                alarms |= risk >= stable
            self._counts[key] = np.add.reduceat(alarms, self._starts, dtype=np.int64)
        return self._counts[key]

    def raised(self, flag: Flag, settings: Settings) -> int:
        """Judged samples at which the flag is raised."""
        return int(np.unpackbits(self._samples(flag, settings), count=self._size).sum())

    def _samples(self, flag: Flag, settings: Settings) -> np.ndarray:
        """Judged samples at which the flag is raised, as packed bits."""
        if (flag, settings) not in self._raised:
            parts = []
            for subject in self.subjects:
                records, _ = module().run(**subject.arguments, config=dict(settings))
                parts.append(((records["flags"] & (1 << flag) != 0) & subject.judged).reshape(-1))
            self._raised[flag, settings] = np.packbits(np.concatenate(parts))
        return self._raised[flag, settings]
