"""Both engines, how sure, near-limit runs and the gradient norm: the content of `calibration` (docs/calibration.md)."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opd.calibrate.bounds import needed, on_samples, over_runs
from opd.calibrate.evidence import Evidence, Subject
from opd.calibrate.fields import ENGINES, Engine, no_more_sensitive_than_reset
from opd.calibrate.search import Proposal, Search
from opd.device_config import DeviceConfig
from opd.evaluate.figures import CONFIDENCE, per_1000, quantile
from opd.evaluate.metrics import Count
from opd.registers import PROFILES

CLIP_QUANTILE = 0.9  # of the gradient norm


def calibrate(healthy: Sequence[Subject], near_limit: Sequence[Subject], rate: float, profile: str, seed: int,
              kinds: Sequence[str] | None = None, explore: bool = False) -> DeviceConfig:
    """The configuration for at most `rate` false alarms per 1000 probe-steps, with `calibration` filled. explore: settings more
    sensitive than the reset values are proposed as well, where the healthy runs allow them.

    profile: the engine whose flags decide; the thresholds of the other are proposed as well. healthy: at least one run."""
    evidence = Evidence(healthy)
    every = range(len(healthy))
    engines = {name: engine if explore else no_more_sensitive_than_reset(engine) for name, engine in ENGINES.items()}
    proposals = {name: Search(evidence, every, rate, seed).best(engine) for name, engine in engines.items()}
    thresholds = {}
    for proposal in proposals.values():
        thresholds |= proposal.fields()
    # Flags of the other engine have no weight in this profile.
    config = DeviceConfig(profile, thresholds | proposals[profile].weights())
    judged = {"engines": {name: _engine(proposal, thresholds, evidence, near_limit, rate, seed)
                          for name, proposal in proposals.items()}}
    decides = judged["engines"][profile]
    replayed = [subject.replayed(config.settings()) for subject in healthy]
    calibration = {
        "false_alarms_per_1000_wanted": rate, "kinds": sorted(kinds) if kinds else None, "seed": seed, "confidence": CONFIDENCE,
        "explored": explore,
        "promised": decides["promised"], "probe_steps": int(evidence.probe_steps.sum()),
        "probe_steps_not_judged": sum(_chosen(subject, kinds) - int(subject.judged.sum()) for subject in healthy),
        "runs": [{"name": subject.run.trace.name, "file": subject.run.file.name, "class": subject.run.label.kind,
                  "split": subject.run.label.split, "steps": len(subject.run.trace.step),
                  "probe_steps": int(subject.judged.sum()), "replay_alarms": alarms}
                 for subject, alarms in zip(healthy, replayed)],
        **judged, **_gradient_norm(healthy)}
    return DeviceConfig(profile, config.fields, calibration)


def _engine(proposal: Proposal, thresholds: dict, evidence: Evidence, near_limit: Sequence[Subject], rate: float,
            seed: int) -> dict:
    """One engine of `calibration.engines`: what it proposes, what it raises, and how sure that is."""
    engine = proposal.engine
    search = Search(evidence, range(len(evidence.subjects)), rate, seed)
    complete = {**thresholds, **PROFILES[engine.name], **proposal.weights()}
    counts = [subject.count(complete) for subject in evidence.subjects]
    if counts != search.counts(proposal):
        raise RuntimeError(f"opd calibrate: the reference raises other alarms than the search of {engine.name} reckoned with; "
                           "opd/calibrate/fields.py does not fit the engine")
    total = sum(counts, Count())
    upper = {"samples": on_samples(total.alarms, proposal.bound, total.probe_steps), "runs": over_runs(counts, seed)}
    left_out = _leave_one_out(engine, evidence, rate, seed)
    reasons = _doubts(proposal, total, upper, left_out, rate)
    near = [subject.count(complete) for subject in near_limit]
    return {
        "fields": proposal.fields() | proposal.weights(),
        "flags_not_used": [flag.name for flag in proposal.unused],
        "thresholds_set_by_samples": proposal.bound,
        "alarms": total.alarms, "alarms_per_1000": per_1000(counts),
        "raised_by_flag": {flag.name: evidence.raised(flag, settings) for flag, (settings, _) in proposal.flags().items()},
        "alarms_by_run": [count.alarms for count in counts],
        "upper_bound_samples_per_1000": upper["samples"], "upper_bound_runs_per_1000": upper["runs"],
        "leave_one_out": left_out,
        "near_limit": {"runs": [{"name": subject.run.trace.name, "alarms": count.alarms, "probe_steps": count.probe_steps}
                                for subject, count in zip(near_limit, near)],
                       "alarms_per_1000": per_1000(near)},
        "promised": not reasons, "not_promised_because": reasons,
    }


def _leave_one_out(engine: Engine, evidence: Evidence, rate: float, seed: int) -> dict | None:
    """Proposes without a run and counts on that run, for each; None for a single run."""
    runs = range(len(evidence.subjects))
    if len(runs) < 2:
        return None
    counts = []
    for left in runs:
        proposal = Search(evidence, [run for run in runs if run != left], rate, seed).best(engine)
        counts += Search(evidence, [left], rate, seed).counts(proposal)
    return {"alarms": sum(count.alarms for count in counts), "alarms_per_1000": per_1000(counts),
            "alarms_by_run": [count.alarms for count in counts]}


def _doubts(proposal: Proposal, total: Count, upper: dict, left_out: dict | None, rate: float) -> list[str]:
    """Why the rate is not promised; empty when it is."""
    reasons = []
    if upper["samples"] > rate:
        missing = needed(total.alarms, proposal.bound, rate) - total.probe_steps
        alarms = "no alarm" if not total.alarms else f"{total.alarms} alarms"
        reasons.append(f"{alarms} in {total.probe_steps:,} probe-steps: the rate may be up to {upper['samples']:.3g}; "
                       f"{missing:,} more probe-steps without an alarm are needed")
    if left_out is None:
        reasons.append("one run says nothing of others: give at least two")
    else:
        if upper["runs"] > rate:
            reasons.append(f"over runs the rate may be up to {upper['runs']:.3g}: the runs differ; give more of them")
        if left_out["alarms_per_1000"] > rate:
            reasons.append(f"set without it, the run that is left out has {left_out['alarms_per_1000']:.3g} on average: "
                           "the runs differ; give more of them")
    return reasons


def _chosen(subject: Subject, kinds: Sequence[str] | None) -> int:
    """Samples of operators of the chosen kinds."""
    return len(subject.judged) * sum(kinds is None or probe.kind in kinds for probe in subject.run.trace.probes)


def _gradient_norm(healthy: Sequence[Subject]) -> dict:
    """90th percentile of the finite gradient norms of all steps, for the clip threshold."""
    found = [subject.run.trace.grad_norm for subject in healthy if subject.run.trace.grad_norm is not None]
    values = np.concatenate(found) if found else np.empty(0)
    values = values[np.isfinite(values)].tolist()
    return {"grad_norm_p90": quantile(values, CLIP_QUANTILE), "grad_norm_steps": len(values), "grad_norm_runs": len(found)}
