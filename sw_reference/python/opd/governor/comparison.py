"""All governors on a corpus: counts by kind of scale, split, class and governor."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from opd.evaluate.corpus import Run
from opd.governor import fp8_scale, loss_scale
from opd.governor.baseline import LAG_1
from opd.governor.what_if import Casts, Gradients, Tally, replay_fp8_scale, replay_loss_scale

LOSS, FP8 = "loss scale", "FP8 scale"
# Margins in bits. Each is the smallest of MARGINS that keeps, on the tuning runs: a loss scale at no more steps with an overflow than
# the published GradScaler; an FP8 scale at no more than ALLOWED overflows per 1000 casts. scripts/measure governor takes the sweep.
ALLOWED = 1.0
MARGINS = {(LOSS, "forecast"): (1, 2, 3, 4, 5, 6), (LOSS, "forecast-lag-1"): (1, 2, 3, 4, 5, 6),
           (FP8, "delayed"): (0, 1, 2, 3), (FP8, "forecast"): (2, 2.5, 3, 3.5, 4, 4.5), (FP8, "forecast-lag-1"): (1, 1.5, 2, 2.5, 3)}
CHOSEN = {(LOSS, "forecast"): 5, (LOSS, "forecast-lag-1"): 4, (FP8, "delayed"): 1, (FP8, "forecast"): 3.5, (FP8, "forecast-lag-1"): 2}
CONFIGS = {"forecast": None, "forecast-lag-1": LAG_1}


def _loss(name: str, margin: float, gradients: Gradients) -> loss_scale.LossScale:
    return loss_scale.Forecast(gradients.device(CONFIGS[name]), gradients.gradients, margin, name=name)


def _fp8(name: str, margin: float, casts: Casts) -> fp8_scale.TensorScale:
    if name == "delayed":
        return fp8_scale.Delayed(casts.limit, margin=int(margin))
    return fp8_scale.Forecast(casts.limit, casts.device(CONFIGS[name]), margin, name=name)


# Name -> what makes the governor anew for a run: it has state.
GOVERNORS: dict[str, dict[str, Callable]] = {
    LOSS: {"recorded": lambda g: loss_scale.Recorded(), "gradscaler": lambda g: loss_scale.GradScaler(),
           "recorded-hints": lambda g: loss_scale.Hinted(loss_scale.Recorded(), g.device()),
           "gradscaler-hints": lambda g: loss_scale.Hinted(loss_scale.GradScaler(), g.device()),
           **{name: partial(_loss, name, CHOSEN[LOSS, name]) for name in CONFIGS}},
    FP8: {"static-1": lambda c: fp8_scale.Static(c.limit), "current": lambda c: fp8_scale.Current(c.limit),
          "delayed": lambda c: fp8_scale.Delayed(c.limit),
          "delayed-most-recent": lambda c: fp8_scale.Delayed(c.limit, algorithm="most_recent"),
          f"delayed-margin-{CHOSEN[FP8, 'delayed']}": partial(_fp8, "delayed", CHOSEN[FP8, "delayed"]),
          **{name: partial(_fp8, name, CHOSEN[FP8, name]) for name in CONFIGS},
          "forecast-lag-1-undamped": lambda c: fp8_scale.Forecast(c.limit, c.device(LAG_1), CHOSEN[FP8, "forecast-lag-1"], None,
                                                                  "forecast-lag-1-undamped")}}
_REPLAYS = {LOSS: (Gradients, replay_loss_scale), FP8: (Casts, replay_fp8_scale)}


def sweep() -> dict[str, dict[str, Callable]]:
    """The governors whose margin is chosen, at each of MARGINS, by the name `RULE MARGIN`."""
    makers = {LOSS: _loss, FP8: _fp8}
    return {kind: {f"{rule} {margin:g}": partial(makers[kind], rule, margin) for (own, rule), margins in MARGINS.items() if own == kind
                   for margin in margins} for kind in (LOSS, FP8)}


def compare(runs: Iterable[Run], governors: Mapping[str, Mapping[str, Callable]] = GOVERNORS) -> list[dict]:
    """An entry for each kind of scale, split, class and governor: the fields of Tally, state bits, and how many runs there were. A run
    that has none of what a kind of scale acts on is left out of it."""
    groups: dict[tuple, Tally] = {}
    bits: dict[tuple, tuple[int, int]] = {}
    counts: dict[tuple, int] = {}
    for run in runs:
        for kind, (read, replay) in _REPLAYS.items():
            if not governors.get(kind):
                continue
            try:
                recorded = read(run.trace)
            except ValueError:
                continue
            for name, make in governors[kind].items():
                governor = make(recorded)
                key = (kind, run.label.split, run.label.kind, name)
                groups[key] = groups.get(key, Tally()) + replay(recorded, governor)[0]
                bits[kind, name] = (governor.bits_per_operator, getattr(governor, "bits_per_run", 0))
                counts[key] = counts.get(key, 0) + 1
    return [{"scale": kind, "split": split, "class": label, "governor": name, "runs": counts[key], **dataclasses.asdict(tally),
             "state_bits_per_operator": bits[kind, name][0], "state_bits_per_run": bits[kind, name][1]}
            for key, tally in groups.items() for kind, split, label, name in [key]]


def totals(entries: Iterable[dict], split: str | None = None) -> list[dict]:
    """The entries of all classes added up, in one split or in all: one for each kind of scale and governor."""
    found: dict[tuple[str, str], dict] = {}
    for entry in entries:
        if split not in (None, entry["split"]):
            continue
        total = found.setdefault((entry["scale"], entry["governor"]), {key: value for key, value in entry.items()
                                                                       if isinstance(value, str) or key.startswith("state_bits")})
        for key, value in entry.items():
            if key not in total or not (isinstance(value, str) or key.startswith("state_bits")):
                total[key] = total.get(key, 0) + value
    return [{**entry, "split": split or "all", "class": "all"} for entry in found.values()]


def chosen_margins(swept: Iterable[dict], entries: Iterable[dict]) -> dict[tuple[str, str], float]:
    """What the rule above chooses from the sweep and the comparison on the tuning runs."""
    found = {(entry["scale"], entry["governor"]): entry for entry in totals(swept, "tuning")}
    published = next(entry for entry in totals(entries, "tuning") if entry["governor"] == "gradscaler")
    allowed = {LOSS: lambda entry: entry["overflow_steps"] <= published["overflow_steps"],
               FP8: lambda entry: 1000 * entry["overflows"] <= ALLOWED * entry["samples"]}
    return {(kind, rule): next(margin for margin in margins if allowed[kind](found[kind, f"{rule} {margin:g}"]))
            for (kind, rule), margins in MARGINS.items()}
