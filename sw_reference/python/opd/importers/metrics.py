"""Many named numbers of a run, and which of them is the loss, the gradient norm, the loss scale: rules that tables, event
files and arrays share.

    the loss      the loss of the whole model, as directly named as there is one: "loss", else "total_loss", "lm_loss" ..., else
                  a mean over an epoch; where no loss is the whole model's, the only one there is, or the only total; else none
    probes        every other loss ("loss_cls"), and every other norm ("param_norm", "grad_norm/layer0"), is a probe of its
                  own. A second loss of the whole model (a mean over the epoch beside the steps) is one only where it is not
                  finite before the loss is
    learning rate the first parameter group
    loss scale    the first; of another one only the falls are read
    left out      evaluations, times, counters, throughput, memory, settings, scores, and what has no known meaning

Whatever is left out is named. A NaN or Inf in it is noted (ImportedRun.not_understood), so that the run is not called healthy;
only in a time, counter, setting or the like it says nothing about the model.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from opd.importers.names import BLAND, MAGNITUDES, SCALAR_OF, Meaning, key, kind_of, meaning, split_statistic, statistic_of, words
from opd.importers.run import ImportedRun, Stat, listed, stat_of
from opd.importers.scalars import Row, read_rows

Points = dict[str, list[tuple[int, float]]]   # name -> place and value, in order

SCALARS = ("loss", "grad_norm", "lr", "loss_scale", "scale_after", "scale_attempted")   # one name each
FLAGS = ("overflows", "nan_losses", "finite", "falls")                                  # any number of names each
UNKNOWN = "no known meaning"


@dataclass
class Choice:
    """What each name is taken for. left: name -> why it is left out."""
    scalars: dict[str, str] = field(default_factory=dict)     # field of SCALARS -> name
    flags: dict[str, Meaning] = field(default_factory=dict)   # name -> one of FLAGS
    probes: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_log(self) -> bool:
        """Whether these are numbers of a whole run, in contrast to the magnitudes of operators."""
        return bool(self.scalars.keys() - {"lr"}) or any(meaning(name).what == "loss" for name in self.probes)

    @property
    def used(self) -> set[str]:
        return {*self.scalars.values(), *self.flags, *self.probes}


def choose(points: Points) -> Choice:
    """Decides what each name is. A name without a point is left out without a word: it has nothing to say."""
    choice = Choice()
    found: dict[str, list[str]] = {}
    for name in points:
        what = meaning(name).what
        if what in SCALARS or what in FLAGS or what == "norm":
            found.setdefault(what, []).append(name)
        else:
            choice.left[name] = UNKNOWN if what in (None, "suspect", "step") else what
    _choose_loss(choice, found.get("loss", []), points)
    alone = [name for name in found.get("norm", []) if SCALAR_OF.get(key(name.rsplit("/", 1)[-1])) == "grad_norm"]
    if "grad_norm" not in found and len(alone) == 1:   # "actor/grad_norm"
        found["grad_norm"] = alone
        found["norm"].remove(alone[0])
    if norms := _by_directness(found.get("grad_norm", []), "grad_norm", points):
        choice.scalars["grad_norm"] = norms[0]
        choice.probes += [name for name in points if name in norms[1:]]
    choice.probes += found.get("norm", [])
    if rates := found.get("lr"):
        choice.scalars["lr"] = rates[0]
        choice.left |= dict.fromkeys(rates[1:], "another parameter group")
        if len(rates) > 1:
            choice.notes.append(f"learning rates of {len(rates)} parameter groups: that of the first, {rates[0]}")
    if "loss_scale" not in found and choice.is_log:
        found["loss_scale"] = [name for name, numbers in points.items()
                               if key(name.rsplit("/", 1)[-1]) == "scale" and _are_scales(numbers)]
        for name in found["loss_scale"]:
            choice.left.pop(name, None)
    for what in ("loss_scale", "scale_after", "scale_attempted"):
        if scales := _by_directness(found.get(what, []), what, points):
            choice.scalars[what] = scales[0]
            choice.flags |= dict.fromkeys(scales[1:], Meaning("falls"))
            if len(scales) > 1:
                choice.notes.append(f"{len(scales)} loss scales: {scales[0]}; of {listed(scales[1:])} only where it falls")
    for what in FLAGS:
        choice.flags |= {name: meaning(name) for name in found.get(what, [])}
    return choice


def _by_directness(names: list[str], what: str, points: Points) -> list[str]:
    """The names, best first: the most direct one, and of several such the one with the most values."""
    return sorted(names, key=lambda name: (meaning(name).order, key(name) != what, -len(points[name])))


def _choose_loss(choice: Choice, losses: list[str], points: Points) -> None:
    whole = _by_directness([name for name in losses if meaning(name).is_whole], "loss", points)
    parts = [name for name in losses if not meaning(name).is_whole]
    totals = [name for name in parts if "total" in words(name)]
    for only in (parts, totals):
        if not whole and len(only) == 1:
            whole, parts = only, [name for name in parts if name not in only]
    if whole:
        choice.scalars["loss"] = whole[0]
    elif parts:
        choice.notes.append(f"no loss is named as the whole model's: {listed(parts)} are probes of their own")
    begin = first_nonfinite(points[whole[0]]) if whole else None
    for name in whole[1:]:
        bad = first_nonfinite(points[name])
        if bad is not None and (begin is None or bad < begin):
            parts.append(name)
        else:
            choice.left[name] = f"the loss is {whole[0]}"
    choice.probes += [name for name in points if name in parts]
    if whole and parts:
        shown = [name + (" (not finite)" if first_nonfinite(points[name]) is not None else "") for name in parts]
        choice.notes.append(f"the loss is {whole[0]}; further losses are probes of their own: {listed(shown)}")


def probe_kind(name: str) -> str:
    """The kind of a further loss or norm."""
    kind = kind_of(name)
    of_weights = meaning(name).what == "norm" and {"param", "params", "weight", "weights"} & set(words(name))
    return "weight" if kind == "activation" and of_weights else kind


def first_nonfinite(points: list[tuple[int, float]]) -> int | None:
    """The place of the first value that is not finite."""
    return next((place for place, value in points if not math.isfinite(value)), None)


def _are_scales(points: list[tuple[int, float]]) -> bool:
    """Whether the values are powers of two from 1, as loss scalers have them."""
    return all(math.isfinite(value) and value >= 1 and math.frexp(value)[0] == 0.5 for _, value in points) and any(
        value > 1 for _, value in points)


def told_at(what: Meaning, points: list[tuple[int, float]]) -> set[int]:
    """The places where a flag or count says that something was not finite."""
    places, last = set(), None
    for place, value in points:
        if what.what == "finite":
            is_bad = not value
        elif what.what == "falls":
            is_bad = last is not None and not value >= last
        elif what.is_running:
            is_bad = not value <= (last if last is not None and last <= value else 0)   # a count that falls began again
        else:
            is_bad = not value <= 0
        last = value
        if is_bad:
            places.add(place)
    return places


def row_values(choice: Choice, points: Points) -> dict[int, tuple[dict[str, float], bool]]:
    """By place: values of a scalars.Row, and whether the place is an overflow."""
    rows: dict[int, dict[str, float]] = {}
    overflows = set()
    for what, name in choice.scalars.items():
        for place, value in points[name]:
            rows.setdefault(place, {})[what] = value
    for name, what in choice.flags.items():
        told = told_at(what, points[name])
        for place, _ in points[name]:
            rows.setdefault(place, {})
        if what.what == "nan_losses":
            for place in told:
                rows[place]["nan_losses"] = 1.0
        else:
            overflows |= told
    return {place: (values, place in overflows) for place, values in rows.items()}


def check_scalars(run: ImportedRun, choice: Choice, points: Points, where: Callable[[int], tuple[int | None, str]]) -> None:
    """Notes what a trace cannot hold: a learning rate or loss scale that is not finite, a loss scale that is not above 0."""
    for what in SCALARS[2:]:
        name = choice.scalars.get(what)
        if name is None:
            continue
        numbers = points[name]
        no_scaler = what != "lr" and all(value == 0 for _, value in numbers)
        bad = [(place, value) for place, value in numbers if not math.isfinite(value) or what != "lr" and value <= 0]
        if bad and not no_scaler:
            _note(run, name, bad, what.replace("_", " "), where)


def tell(run: ImportedRun, choice: Choice, points: Points, noun: str, where: Callable[[int], tuple[int | None, str]]) -> None:
    """Says what was chosen and what is left out, and notes what is not finite among the latter."""
    run.assumptions += choice.notes
    by_reason: dict[str, list[str]] = {}
    for name, why in choice.left.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        texts = [f"{listed(names)} ({why})" for why, names in by_reason.items()]
        run.assumptions.append(f"{noun} left out: {'; '.join(texts)}")
    for name, why in choice.left.items():
        bad = [(place, value) for place, value in points[name] if not math.isfinite(value)]
        if meaning(name).what == "suspect" or _is_count_of_nonfinite(name):
            bad = [(place, value) for place, value in points[name] if not value <= 0]
        if bad and why in BLAND:
            run.assumptions.append(f"{name} is {bad[0][1]} in {len(bad)} places: as {why} it says nothing about the model")
        elif bad:
            _note(run, name, bad, f"left out, {why}", where)


def _is_count_of_nonfinite(name: str) -> bool:
    parts = split_statistic(name)
    return parts is not None and parts[1] in ("nonfinite", "nans", "infs")


def _note(run: ImportedRun, name: str, bad: list[tuple[int, float]], why: str, where) -> None:
    line, at = where(bad[0][0])
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    run.not_understood(line, f"{name} is {bad[0][1]:g}{at}{more} ({why})")


def tensor_stat(run: ImportedRun, name: str, fields: dict[str, float], line: int | None) -> Stat:
    """The Stat of what a tool tells. A mean, variance or count that is not finite beside a finite magnitude is noted."""
    stat = stat_of(fields, line)
    if not stat.nonfinite and (stat.max_abs is None or math.isfinite(stat.max_abs)):
        for statistic, value in fields.items():
            if statistic not in MAGNITUDES and not math.isfinite(value):
                run.not_understood(line, f"{statistic} of {name} is {value:g}, its magnitude is finite")
    return stat


# --- named series of points: event files, tables of one number a row -------------------------------------------------------

Series = dict[str, list[tuple[int, int, float]]]   # tag -> step, line or record, value; in order


def stretches(points):
    """Each point with the number of times that the steps of its tag have gone back before it."""
    restarts, last = 0, None
    for point in points:
        restarts += last is not None and point[0] <= last
        last = point[0]
        yield (restarts, point[0]), point


def read_series(run: ImportedRun, series: Series, stats: dict[str, list[tuple[int, int, Stat]]], noun: str,
                is_line: bool) -> Choice:
    """Adds named series of numbers, and of statistics of tensors, to the run. The place of a point is a line where `is_line`,
    else the number of a record."""
    told_points = sum(map(len, series.values()))
    series = {tag: [at for i, at in enumerate(numbers) if not i or repr(at[::2]) != repr(numbers[i - 1][::2])]
              for tag, numbers in series.items()}
    copies = told_points - sum(map(len, series.values()))
    tensors: dict[str, dict[str, str]] = {}   # probe -> {statistic: tag}
    for tag in list(series):
        if parts := statistic_of(tag):
            tensors.setdefault(parts[0], {})[parts[1]] = tag
    tensors = {probe: tags for probe, tags in tensors.items() if MAGNITUDES & tags.keys()}
    taken = {tag for tags in tensors.values() for tag in tags.values()}
    by_epoch = _of_another_axis([tag for tag in series if tag not in taken])
    points = {tag: [(place, value) for _, place, value in numbers] for tag, numbers in series.items()}
    steps = {place: step for numbers in series.values() for step, place, _ in numbers}
    choice = choose({tag: numbers for tag, numbers in points.items() if tag not in taken and tag not in by_epoch})
    choice.left |= dict.fromkeys(by_epoch, "counted by epochs, the others by steps")

    def where(place: int) -> tuple[int | None, str]:
        return (place, f" at step {steps[place]}") if is_line else (None, f" at step {steps[place]}, record {place}")

    rows: dict[tuple[int, int], Row] = {}   # by run and step: a restarted run writes its steps again
    found: dict[tuple[int, int], dict[str, Stat]] = {}
    told = {name: told_at(what, points[name]) for name, what in choice.flags.items()}
    for tag in choice.used:
        what = next((field for field, name in choice.scalars.items() if name == tag), None)
        for at, (step, place, value) in stretches(series[tag]):
            if tag in choice.probes:
                found.setdefault(at, {})[tag] = Stat(place, abs(value))
                continue
            row = rows.setdefault(at, Row(place, step))
            if what is not None:
                row.values[what] = value
            elif place in told[tag] and choice.flags[tag].what == "nan_losses":
                row.values["nan_losses"] = 1.0
            else:
                row.overflow = row.overflow or place in told[tag]
    for probe, tags in tensors.items():
        fields: dict[tuple[int, int], dict[str, float]] = {}
        records = {}
        for statistic, tag in tags.items():
            for at, (_, place, value) in stretches(series[tag]):
                fields.setdefault(at, {})[statistic] = value
                records[at] = place
        for at, told_fields in fields.items():
            found.setdefault(at, {})[probe] = tensor_stat(run, probe, told_fields, records[at])
        run.probe(probe, kind_of(probe))
    for tag, numbers in stats.items():
        for at, (_, _, stat) in stretches(numbers):
            found.setdefault(at, {})[tag] = stat
    ordered = sorted(rows.keys() | found.keys())
    for at, step in zip(ordered, read_rows([rows.get(at) or Row(0, at[1]) for at in ordered], run)):
        step.stats.update(found.get(at, {}))
    for name in choice.probes:
        run.probe(name, probe_kind(name))
    check_scalars(run, choice, points, where)
    tell(run, choice, points, noun, where)
    if copies:
        run.assumptions.append(f"{copies} points say what the point before says: copies, left out")
    if any(_is_by_epoch(tag) for tag in choice.used):
        run.assumptions.append("the step is the epoch")
    return choice


def _is_by_epoch(tag: str) -> bool:
    """Whether a tag is counted by epochs: "epoch_loss" of Keras."""
    return words(tag.rsplit("/", 1)[-1])[:1] == ["epoch"] and meaning(tag).what != "epoch"


def _of_another_axis(tags: list[str]) -> list[str]:
    """The tags that are counted by epochs, where others with something to say are counted by steps."""
    by_step = [tag for tag in tags if not _is_by_epoch(tag) and meaning(tag).what in (*SCALARS, *FLAGS, "norm")]
    return [tag for tag in tags if _is_by_epoch(tag)] if by_step else []
