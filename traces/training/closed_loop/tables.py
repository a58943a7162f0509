"""The tables of docs/closed_loop.md, from rows of live runs, of localisations and of the throughput."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from closed_loop.classes import CLASSES
from closed_loop.verdict import verdict

ORDER = ("nothing", "GradScaler", "checkpoint", "ZClip", "BF16", "FP32", "FP32 again", "guard")
WITHOUT = "GradScaler"     # what the guard is put on top of: a run dies without it when it dies under this
WITHIN = 0.02              # of the final loss
GOALS = {"finish": 0.9, "loss": WITHIN, "outside": 0.05}

BEFORE = "guard before"    # the guard as it was before it was changed on tuning seeds; of some runs

Row = dict
Rows = dict[str, dict[str, Row]]  # run -> arm -> row


def by_run(rows: Iterable[Row]) -> Rows:
    """Runs in order of name, those of which every arm has been made."""
    found: Rows = {}
    for row in rows:
        found.setdefault(row["run"], {})[row["arm"]] = row
    return {run: found[run] for run in sorted(found) if set(ORDER) <= set(found[run])}


def trains(arms: dict[str, Row]) -> bool:
    """Whether FP32 ends with a loss below that of the weights that it started from."""
    row = arms["FP32"]
    return row["finished"] and row["final_loss"] < row["start_loss"]


def distance(row: Row, arms: dict[str, Row]) -> float | None:
    """Final loss relative to FP32's; None where there is none."""
    return row["final_loss"] / arms["FP32"]["final_loss"] - 1 if row["finished"] and arms["FP32"]["finished"] else None


def is_near(row: Row, arms: dict[str, Row]) -> bool:
    """Whether it finishes with a loss at most WITHIN above FP32's."""
    apart = distance(row, arms)
    return apart is not None and apart <= WITHIN


def first_bad(arms: dict[str, Row]) -> int:
    """Batch of the incident: the first loss that is not finite without the guard, else that of the corpus' run."""
    live = arms[WITHOUT]["first_bad_loss"]
    return arms[WITHOUT]["incident"] if live is None else live


def leads(runs: Rows) -> list[int]:
    """Steps from the first downshift to the first loss that is not finite without the guard, of the runs that have both."""
    found = [(arms[WITHOUT]["first_bad_loss"], arms["guard"]["guard"]["first_downshift"]) for arms in runs.values()]
    return [bad - first[0] for bad, first in found if bad is not None and first]


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else "none"


def summary(runs: Rows) -> list[list[str]]:
    """One row an arm, of the runs that overflow."""
    overflow = {name: arms for name, arms in runs.items() if arms["FP32"]["incident"] is not None}
    dead = {name: arms for name, arms in overflow.items() if not arms[WITHOUT]["finished"]}
    training = {name: arms for name, arms in overflow.items() if trains(arms)}
    table = [["arm", "finished", f"finished of those that die under {WITHOUT}", "steps lost of runs that finish: median / most",
              "loss within 2 % of FP32's, where FP32 trains", "loss beside FP32's there: median / worst", "step time / GradScaler's"]]
    for arm in ORDER:
        rows = [arms[arm] for arms in overflow.values()]
        lost = [row["lost"] for row in rows if row["finished"]]
        apart = [distance(arms[arm], arms) for arms in training.values()]
        known = [value for value in apart if value is not None]
        times = [arms[arm]["ms"] / arms[WITHOUT]["ms"] for arms in overflow.values()]
        table.append([arm, _share(sum(row["finished"] for row in rows), len(rows)),
                      _share(sum(arms[arm]["finished"] for arms in dead.values()), len(dead)),
                      f"{statistics.median(lost):g} / {max(lost)}" if lost else "–",
                      _share(sum(value <= WITHIN for value in known), len(apart)),
                      f"{100 * statistics.median(known):+.1f} % / {100 * max(known):+.1f} %" if known else "–",
                      f"{statistics.median(times):.2f}" if times else "–"])
    return table


def goals(runs: Rows) -> list[list[str]]:
    """The goals of the guard, and what came of them."""
    overflow = [arms for arms in runs.values() if arms["FP32"]["incident"] is not None]
    dead = [arms for arms in overflow if not arms[WITHOUT]["finished"]]
    saved = sum(arms["guard"]["finished"] for arms in dead)
    both = [arms for arms in overflow if trains(arms)]
    apart = [(distance(arms["guard"], arms), distance(arms["FP32 again"], arms) or 0) for arms in both]
    noise = sum(own is not None and own <= max(WITHIN, abs(twin)) for own, twin in apart)
    near, twins = (sum(is_near(arms[arm], arms) for arms in both) for arm in ("guard", "FP32 again"))
    outside = [arms["guard"]["guard"]["outside_fast"] for arms in overflow]
    beyond = [arms["guard"]["guard"]["beyond_format"] for arms in overflow]
    few = sum(share <= GOALS["outside"] for share in outside)
    return [["goal", "figure", ""],
            [f"≥ 90 % of the runs that die under {WITHOUT} finish", f"{_share(saved, len(dead))}", _met(saved >= GOALS["finish"] * len(dead))],
            ["final loss within 2 % of FP32's where FP32 trains", f"{_share(near, len(both))}; FP32 itself, from weights a rounding error apart: "
             f"{_share(twins, len(both))}. No further from FP32 than 2 % or FP32 again is: {_share(noise, len(both))}", _met(near == len(both))],
            ["≤ 5 % of operator-steps outside FAST", f"{_share(few, len(outside))} runs; median {percent(statistics.median(outside))}, "
             f"mean {percent(statistics.fmean(outside))}, most {percent(max(outside))}; beyond what their own format holds: mean "
             f"{percent(statistics.fmean(beyond))}, most {percent(max(beyond))}" if outside else "none", _met(few == len(outside))]]


def _met(reached: bool) -> str:
    return "reached" if reached else "missed"


def detail(runs: Rows) -> list[list[str]]:
    """One row a run. A loss, or † and the batch at which it was over; in brackets the steps lost."""
    def cell(row: Row) -> str:
        told = f"{row['final_loss']:.4g}" if row["finished"] else f"† {row['at']}"
        return told + (f" ({row['lost']})" if row["lost"] and row["finished"] else "")

    table = [["run", "class", "batches", *ORDER, "guard, outside FAST", "beyond its format"]]
    for name, arms in runs.items():
        trained = "" if trains(arms) or not arms["FP32"]["finished"] else " ⇡"
        table.append([f"`{name}`", arms["FP32"]["label"], str(arms["FP32"]["batches"]),
                      *(cell(arms[arm]) + (trained if arm == "FP32" else "") for arm in ORDER),
                      *(percent(arms["guard"]["guard"][key]) for key in ("outside_fast", "beyond_format"))])
    return table


def misses(runs: Rows) -> list[list[str]]:
    """Runs in which the guard misses a goal, with what the others make of them."""
    def apart(arm: str, arms: dict[str, Row]) -> str:
        value = distance(arms[arm], arms)
        return f"{100 * value:+.1f} %" if value is not None else f"† {arms[arm]['at']}" if not arms[arm]["finished"] else "–"

    table = [["run", "missed", "guard's loss beside FP32's", "BF16's", "FP32 again's", "outside FAST", "beyond its format"]]
    for name, arms in runs.items():
        if arms["FP32"]["incident"] is None:
            continue
        guard = arms["guard"]
        missed = [told for told, is_missed in (("finish", not guard["finished"]), ("loss", trains(arms) and not is_near(guard, arms)),
                                               ("FAST", guard["guard"]["outside_fast"] > GOALS["outside"])) if is_missed]
        if missed:
            losses = [apart(arm, arms) for arm in ("guard", "BF16", "FP32 again")] if trains(arms) else [
                "FP32 does not train" if arms["FP32"]["finished"] else f"FP32 dies at {arms['FP32']['at']}", "", ""]
            table.append([f"`{name}`", ", ".join(missed), *losses, *(percent(guard["guard"][key]) for key in ("outside_fast", "beyond_format"))])
    return table


def changed(runs: Rows) -> list[list[str]]:
    """The guard before and after what was changed, on the tuning runs that both have made."""
    both = [arms for arms in runs.values() if BEFORE in arms and arms["FP32"]["incident"] is not None]
    training = [arms for arms in both if trains(arms)]
    table = [["of the tuning runs that both have made", "before", "after"]]
    told = {arm: (_share(sum(arms[arm]["finished"] for arms in both), len(both)), str(sum(arms[arm]["lost"] for arms in both)),
                  _share(sum(is_near(arms[arm], arms) for arms in training), len(training)),
                  percent(statistics.fmean(arms[arm]["guard"]["outside_fast"] for arms in both)),
                  str(sum(arms[arm]["guard"]["stopped"] for arms in both))) for arm in (BEFORE, "guard")} if both else {}
    for i, name in enumerate(("finished", "steps lost, together", "loss within 2 % of FP32's, where FP32 trains", "outside FAST, mean", "attempts stopped, together")):
        table.append([name, *(told[arm][i] for arm in told)])
    return table


def promises(runs: Rows, found: list[Row], figures: dict | None) -> list[list[str]]:
    """What the article promises, and what was measured."""
    dead = [arms for arms in runs.values() if arms["FP32"]["incident"] is not None and not arms[WITHOUT]["finished"]]
    saved, wide = (sum(arms[arm]["finished"] for arms in dead) for arm in ("guard", "BF16"))
    ahead = sorted(leads(runs))
    told = f"median {statistics.median(ahead):g} steps from the first downshift to the first loss that is not finite without it, " \
           f"{sum(lead <= 0 for lead in ahead)} of {len(ahead)} runs none" if ahead else "–"
    table = [["the article", "measured"],
             ["NaN crashes down by about 90 %", f"of {len(dead)} runs that die under {WITHOUT}, {saved} finish with the guard; {wide} in BF16 alone"],
             ["a warning tens of steps before the NaN", told],
             ["localised in about ten replays, of several hundred operators",
              f"{len(found)} incidents: median {statistics.median(row['replays'] for row in found):g}, most {max(row['replays'] for row in found)}, of "
              f"{min(row['operators'] for row in found)} to {max(row['operators'] for row in found)} operators"]]
    if figures:
        def lost(policy: str) -> str:
            return ", ".join(f"{figures[precision][policy]['throughput_lost_percent']:.1f} % ({precision})" for precision in ("FP16", "FP32"))
        table += [["SAFE for the culprit alone costs 5 to 8 % of throughput", f"a PyTorch step: {lost('SAFE for the culprit')}"],
                  ["SAFE for the whole model over 40 %", f"a PyTorch step: {lost('SAFE for all')}"]]
    return table


def rivals(runs: Rows) -> str:
    """How often all-BF16 would have done."""
    overflow = [arms for arms in runs.values() if arms["FP32"]["incident"] is not None]
    dead = [arms for arms in overflow if not arms[WITHOUT]["finished"]]
    wide = sum(arms["BF16"]["finished"] for arms in dead)
    both = [arms for arms in dead if arms["BF16"]["finished"] and arms["guard"]["finished"] and trains(arms)]
    better = sum(arms["guard"]["final_loss"] < arms["BF16"]["final_loss"] * (1 - WITHIN) for arms in both)
    worse = sum(arms["guard"]["final_loss"] > arms["BF16"]["final_loss"] * (1 + WITHIN) for arms in both)
    return (f"Of the {len(dead)} runs that die under {WITHOUT}, {wide} finish in BF16 alone. Where both finish and FP32 trains ({len(both)}), "
            f"guard's final loss is more than 2 % lower in {better}, more than 2 % higher in {worse}.")


def localisation(rows: list[Row]) -> list[list[str]]:
    table = [["incident", "step", "first module not finite", "localised", "", "kind, sub-step", "operators", "replays (at most)", "CPU s"]]
    for row in sorted(rows, key=lambda row: row["run"]):
        table.append([f"`{row['run']}`", str(row["step"]), f"`{row['expected']}`" if row["expected"] else "none",
                      f"`{row['operator']}`" if row["operator"] else "–", verdict(row), row["kind"] + (f", {row['substep']}" if row["substep"] else ""),
                      str(row["operators"]), f"{row['replays']} ({row['most_replays']})", f"{row['cpu_seconds']:.2f}"])
    return table


def localisation_words(rows: list[Row]) -> str:
    verdicts = [verdict(row) for row in rows]
    return (f"{len(rows)} incidents: {verdicts.count('same')} in the module that handed out the first tensor that was not finite, {verdicts.count('inside')} in a function "
            f"that the module around it calls, {verdicts.count('none')} where nothing was non-finite and nothing was found, "
            f"{verdicts.count('other')} others. Replays: median {statistics.median(row['replays'] for row in rows):g}, most "
            f"{max(row['replays'] for row in rows)}, over {min(row['operators'] for row in rows)} to {max(row['operators'] for row in rows)} operators; "
            f"CPU seconds: median {statistics.median(row['cpu_seconds'] for row in rows):.2f}, most {max(row['cpu_seconds'] for row in rows):.2f}.")


def throughput(figures: dict, vector_unit: list[dict]) -> list[list[str]]:
    """vector_unit: cost of each trace of docs/measurements/compute.json."""
    def unit(policy: str) -> str:
        found = [p["throughput_lost_percent"] for trace in vector_unit for p in trace["cost"]["policies"] if p["policy"] == policy]
        return ", ".join(f"{value:.1f} %" for value in found) or "–"

    claims = {"SAFE for the culprit": "5 to 8 %", "SAFE for all": "over 40 %"}
    names = {"SAFE for the culprit": "SAFE for the culprit", "SAFE for all": "all SAFE", "FAST": "all FAST"}
    table = [["throughput lost against FAST under the guard", "PyTorch, FP16 autocast", "PyTorch, FP32", "vector unit's cycles, two windows", "the article says"]]
    for policy in figures["FP16"]:
        def cell(precision: str) -> str:
            row = figures[precision][policy]
            low, high = row["quartiles_percent"]
            return f"{row['throughput_lost_percent']:.1f} % ({low:.1f} to {high:.1f}), {row['ms']:.0f} ms" if policy != "FAST" else f"{row['ms']:.0f} ms"
        table.append([policy, cell("FP16"), cell("FP32"), unit(names[policy]) if policy in names else "–", claims.get(policy, "")])
    return table


def classes(runs: Rows, found: list[Row]) -> list[list[str]]:
    """The numeric kinds A to P: which run stands for it, and what came of it."""
    located = {row["run"]: row for row in found}
    table = [["kind", "run", "downshift before it", "stopped", "localised", "ends", "what is not caught"]]
    for entry in CLASSES:
        arms = runs.get(entry.run or "")
        if arms is None:
            table.append([entry.name, f"`{entry.run}`" if entry.run else "none", "–", "–", "–", "not made" if entry.run else "–", entry.words])
            continue
        row, guard = arms["guard"], arms["guard"]["guard"]
        first = guard["first_downshift"]
        lead = first_bad(arms) - first[0] if first else None
        place = located.get(entry.run)
        table.append([entry.name, f"`{entry.run}`",
                      f"`{first[1]}` {lead} steps before" if first and lead and lead > 0 else f"`{first[1]}` in that step or later" if first else "none",
                      f"{guard['stopped']}, first at {guard['first_stop']}" if guard["stopped"] else "never",
                      f"`{place['operator']}`, {place['kind']}" if place and place["operator"] else "nothing non-finite to find" if place else "–",
                      ("finishes" if row["finished"] else f"† {row['why']}") + f", {row['lost']} lost; {WITHOUT}: " +
                      ("finishes" if arms[WITHOUT]["finished"] else "†"), entry.words])
    return table
