"""Tables: CSV or TSV with a header (csv_rows.py), JSON lines, arrays and HF's trainer_state.json (json_rows.py).

Columns are read by name (names.py, metrics.py). Layouts:

    long     a column with the name of a probe, one row per probe and step, statistics in the other columns
    metrics  a column with the name of a metric and one with its value (MLflow, Comet, TensorBoard's CSV)
    layers   a column "layer" and no step: the layers of one pass; each other column of each layer is a probe
    log      losses, gradient norms, loss scale per step; columns named PROBE_STATISTIC are probes too, others are left out
    wide     none of these: one row per step, each other column is the largest magnitude of a probe of that name

Columns "RUN - METRIC" (a panel of Weights & Biases) or a column that tells runs or ranks apart make a trace each. What a cell
may say stands in cells.py.
"""
from __future__ import annotations

import functools
import math
import re

from opd.importers import cells, csv_rows, json_rows
from opd.importers.names import (BLAND, EPOCHS, KINDS, MAGNITUDES, METRIC_NAMES, METRIC_VALUES, MODULE_PATH, NO_OPERATOR, PHASES,
                                 PROBE_NAMES, PROBE_PARTS, RUNS, STATISTIC_OF, STEPS, Meaning, format_of, is_evaluation,
                                 is_step, key, kind_of, may_be_operator, meaning, statistic_of, words)
from opd.importers.metrics import (FLAGS, SCALARS, UNKNOWN, Choice, check_scalars, choose, probe_kind, read_series, row_values,
                                   tell, tensor_stat, told_at)
from opd.importers.run import MAX_CELLS, ImportedRun, Stat, Step, listed
from opd.importers.scalars import PROBES, Row, read_rows
from opd.importers.source import Source
from opd.texts import quoted
from opd.trace import KINDS as PROBE_KINDS

_OVERFLOW = {"overflow", "overflows", "skip", "skipped", "nan", "inf"}
_SUSPECT = re.compile(r"(?i)overflow|\bnan\b|\binf\b|non-?finite|skipp?(?:ed|ing) (?:the |this )?(?:step|update|batch|iter)")
_LONGEST_TEXT = 400   # of a message; longer ones are configurations
_PANEL = re.compile(r"(.+) - (.+?)(__MIN|__MAX)?$")
_MAX_RUNS = 256


class Csv:
    """CSV or TSV"""
    NAME = "csv"
    WHAT = "CSV table, wide or long"

    @staticmethod
    def sniff(source: Source) -> int:
        """1 for a header with a known column, 0 for anything else."""
        header = csv_rows.header_of(source)
        return int(header is not None and (csv_rows.is_known(source, header) or
                                           source.path.lower().endswith((".csv", ".tsv", ".csv.gz"))))

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The table. Raises ImportFault with the line."""
        run = ImportedRun()
        columns, rows, delimiter = csv_rows.read_rows(source, run)
        if not rows:
            source.fail(None, "holds a header, but no rows", "give the table of a run that has logged something")
        _read(source, run, _Table(source, columns, rows, delimiter == ";"))
        return run


class Jsonl:
    """JSON lines or array, or trainer_state.json"""
    NAME = "jsonl"
    WHAT = "JSON lines or array, or HF trainer_state.json"

    @staticmethod
    def sniff(source: Source) -> float:
        """2 for trainer_state.json, 1.5 for rows of metrics, 1 for other objects line by line or in an array, else 0."""
        return json_rows.is_rows(source)

    @staticmethod
    def read(source: Source) -> ImportedRun:
        """The rows. Raises ImportFault with the line."""
        run = ImportedRun()
        rows = json_rows.read_rows(source, run)
        if not rows:
            source.fail(None, "holds no rows", "give the file of a run that has logged something")
        columns = list(dict.fromkeys(column for _, row in rows for column in row))
        if len(rows) * len(columns) > MAX_CELLS:
            source.fail(None, f"{len(rows)} rows x {len(columns)} keys are more than {MAX_CELLS} cells", "write the same keys in each row, or split it")
        _read(source, run, _Table(source, columns, rows, nulls_are_told=True))
        return run


# --- several runs, and the layout ------------------------------------------------------------------------------------------

def _read(source: Source, run: ImportedRun, table: _Table) -> None:
    """Adds the table to the run, each run of it as one of its own."""
    parts = _parts(table)
    if len(parts) > _MAX_RUNS:
        source.fail(None, f"holds {len(parts)} runs, more than {_MAX_RUNS}", "export fewer at a time")
    if len(parts) > 1:
        run.assumptions.append(f"{len(parts)} runs, a trace each: {listed(list(parts))}")
    for name, part in parts.items():
        begin = len(run.steps)
        _read_run(source, run, part, name)
        for step in run.steps[begin:]:
            step.run = name if len(parts) > 1 else ""


def _parts(table: _Table) -> dict[str, _Table]:
    """The runs of a table, by name."""
    panels: dict[str, dict[str, str]] = {}   # run -> {column: metric}
    shared = []
    for column in table.columns:
        found = _PANEL.match(column)
        if found:
            panels.setdefault(found[1], {})[column] = found[2] + (found[3] or "")
        else:
            shared.append(column)
    known = any(meaning(metric).what in (*SCALARS, *FLAGS, "norm") or metric.endswith("__MIN")
                for columns in panels.values() for metric in columns.values())
    if known and all(is_step(c) or key(c) in (*EPOCHS, *csv_rows.INDEX) or meaning(c).what in NO_OPERATOR for c in shared):
        return {name: table.renamed({**{c: c for c in shared}, **columns}) for name, columns in panels.items()
                if table.has_values(columns)}
    keys = sorted((c for c in table.columns if key(c) in RUNS), key=lambda c: RUNS.index(key(c)))
    several = [c for c in keys if len({str(row[c]) for _, row in table.rows if row.get(c) not in ("", None)}) > 1]
    chosen: list[str] = []
    count = 1
    for column in several:   # only those that part the rows further
        groups = len({tuple(str(row.get(c)) for c in [*chosen, column]) for _, row in table.rows})
        if groups > count:
            chosen, count = [*chosen, column], groups
    if not chosen:
        return {"": table}
    rows: dict[str, list] = {}
    for line, row in table.rows:
        name = ".".join((key(c) if str(row.get(c) or "").isdigit() else "") + str(row.get(c) or "") for c in chosen)
        rows.setdefault(name, []).append((line, row))
    columns = [c for c in table.columns if c not in keys]
    return {name: _Table(table.source, columns, part, table.decimal_comma, table.nulls_are_told)
            for name, part in rows.items()}


def _read_run(source: Source, run: ImportedRun, table: _Table, name: str) -> None:
    keys = table.keys
    probe = next((keys[k] for k in PROBE_NAMES if k in keys), None)
    statistics = {column: STATISTIC_OF[key(column)] for column in table.columns if key(column) in STATISTIC_OF}
    metric = next((keys[k] for k in METRIC_NAMES if k in keys), None)
    value = next((keys[k] for k in METRIC_VALUES if k in keys), None)
    if probe is not None and MAGNITUDES & set(statistics.values()):
        table.read_long(run, probe, statistics)
    elif metric is not None and value is not None:
        table.read_metrics(run, metric, value)
    elif "layer" in keys and table.step is None:
        table.read_layers(run, keys["layer"])
    else:
        if value is not None and all(c == value or is_step(c) or meaning(c).what in (*BLAND, "epoch") for c in table.columns):
            table = table.renamed({**{c: c for c in table.columns}, value: _metric_of_file(source, run)})
        table.read_wide(run)


def _metric_of_file(source: Source, run: ImportedRun) -> str:
    """The metric that the name of a file tells: TensorBoard's "run-validation-tag-epoch_loss.csv" and plain names."""
    found = re.fullmatch(r"run-(.*?)-tag-(.*)", source.stem)
    name = found[2] if found else source.stem
    run.assumptions.append(f"the metric is that of the file's name: {name}")
    return f"eval/{name}" if found and is_evaluation(found[1].replace("_", " ").split()[-1] if found[1].strip("_. ") else "") \
        else name


class _Table:
    """Rows of cells by column. nulls_are_told: an absent value is absent, so that null says something."""

    def __init__(self, source: Source, columns: list[str], rows: list, decimal_comma: bool = False,
                 nulls_are_told: bool = False):
        self.source, self.columns, self.rows = source, columns, rows
        self.decimal_comma, self.nulls_are_told = decimal_comma, nulls_are_told
        self.keys: dict[str, str] = {}
        for column in columns:
            self.keys.setdefault(key(column), column)
            self.keys.setdefault(key(column.rsplit("/", 1)[-1]), column)   # of "a/b" the last part, where none is called so

    def renamed(self, names: dict[str, str]) -> _Table:
        """A table of some columns, under other names."""
        rows = [(line, {new: row[old] for old, new in names.items() if old in row}) for line, row in self.rows]
        columns = list(dict.fromkeys(names[column] for column in self.columns if column in names))
        return _Table(self.source, columns, rows, self.decimal_comma, self.nulls_are_told)

    def has_values(self, columns) -> bool:
        return any(not cells.is_missing(row.get(column)) for _, row in self.rows for column in columns)

    # --- cells ---

    def number(self, line: int, column: str, cell) -> float | None:
        """The cell as a number, None when it has no value."""
        try:
            return (cells.flag if meaning(column).what in FLAGS else self._number)(cell)
        except ValueError:
            self.source.fail(line, f"{column}: {quoted(str(cell))} is not a number",
                             "correct the value, or leave the cell empty")

    def _number(self, cell) -> float | None:
        return cells.number(cell, self.decimal_comma)

    def whole(self, line: int, column: str, cell) -> int | None:
        """The cell as a step."""
        if isinstance(cell, str) and (found := cells.FRACTION.match(cell)):
            return int(found[1])
        value = self.number(line, column, cell)
        if value is not None and (not math.isfinite(value) or not value.is_integer() or value < 0):
            self.source.fail(line, f"{column}: {quoted(str(cell))} is not a whole number from 0", "correct the value")
        return None if value is None else int(value)

    @functools.cache
    def column(self, column: str) -> tuple[list[tuple[int, float]], list[tuple[int, str]]]:
        """The numbers of a column, by row from 0, and its texts, by line."""
        parse = cells.flag if meaning(column).what in FLAGS else self._number
        numbers, texts = [], []
        for at, (line, row) in enumerate(self.rows):
            if column not in row:
                continue
            try:
                if (value := parse(row[column])) is not None:
                    numbers.append((at, value))
            except ValueError:
                texts.append((line, str(row[column])))
        return numbers, texts

    # --- steps ---

    @functools.cached_property
    def step(self) -> str | None:
        """The column that counts the steps: the best name of those that have one in nearly every row with something to say."""
        told = {at for c in self.columns if meaning(c).what in (*SCALARS, *FLAGS, "norm", None)
                for at, _ in self.column(c)[0]} or set(range(len(self.rows)))
        found = []
        for column in self.columns:
            if not is_step(column):
                continue
            values = [(at, row[column]) for at, (_, row) in enumerate(self.rows) if not cells.is_missing(row.get(column))]
            if not values or sum(v is not None and math.isfinite(v) and not v.is_integer()
                                 for v in self._steps(values)) * 2 > len(values):
                continue
            changes = len({str(v) for _, v in values}) > 1 or len(values) == 1
            first = column if cells.FRACTION.match(str(values[0][1])) is None else column.split("/")[0]
            name = next((k for k in (key(first), key(first.rsplit("/", 1)[-1])) if k in STEPS), key(first))
            rank = STEPS.index(name) + (len(STEPS) if column.startswith("_") else 0)   # _step of W&B counts its own calls
            found.append((not changes, rank, -len(told & {at for at, _ in values}), column))
        most = max((-filled for changes, _, filled, _ in found if not changes), default=0)
        found = sorted(entry for entry in found if -entry[2] >= 0.9 * most) or sorted(found)
        return found[0][3] if found else None

    def _steps(self, values: list) -> list:
        steps = []
        for _, cell in values:
            try:
                steps.append(self._number(cell))
            except ValueError:
                steps.append(None)
        return steps

    @functools.cached_property
    def epoch(self) -> str | None:
        return next((self.keys[k] for k in EPOCHS if k in self.keys), None)

    def epoch_of(self, line: int, row: dict) -> int | None:
        begun = None
        if self.epoch is not None and not cells.is_missing(cell := row.get(self.epoch)):
            found = cells.FRACTION.match(str(cell))
            begun = float(found[1]) if found else self.number(line, self.epoch, cell)
        return int(begun) if begun is not None and math.isfinite(begun) else None

    def step_of(self, line: int, row: dict) -> int | None:
        return None if self.step is None else self.whole(line, self.step, row.get(self.step))

    def _epochs_are_steps(self, places: list[int]) -> bool:
        """Whether the epoch can be the step: a whole number in each of the rows, another one from row to row."""
        epochs = [self.rows[at][1].get(self.epoch) for at in places] if self.epoch is not None else []
        try:
            values = [float(found[1]) if (found := cells.FRACTION.match(str(e))) else self._number(e) for e in epochs]
        except ValueError:
            return False
        return bool(values) and all(v is not None and math.isfinite(v) and v.is_integer() and v >= 0 for v in values) and all(
            a != b for a, b in zip(values, values[1:]))

    # --- layouts ---

    def read_long(self, run: ImportedRun, name_column: str, statistics: dict[str, str]) -> None:
        """One row per probe and step."""
        parts = [self.keys[k] for k in PROBE_PARTS if k in self.keys and self.keys[k] != name_column]
        step_column = self.step
        merged = passes = 0
        for line, row in self.rows:
            fields = {field: value for column, field in statistics.items()
                      if (value := self.number(line, column, row.get(column))) is not None}
            if not fields:
                continue
            if not row.get(name_column) and row.get(name_column) != 0:
                self.source.fail(line, f"{name_column}: is empty", "name the probe")
            first = f"layer{row[name_column]}" if key(name_column) == "layer" else str(row[name_column])
            name = ".".join([first, *(str(row[part]) for part in parts if row.get(part))])
            number = self.step_of(line, row)
            if number is None and step_column is not None:
                self.source.fail(line, f"{step_column}: is empty", "give every row its step")
            if number is None:   # a name that comes again begins the next pass
                number = run.steps[-1].step if run.steps else 0
                if run.steps and name in run.steps[-1].stats:
                    number += 1
                    passes += 1
            if not run.steps or run.steps[-1].step != number:
                run.steps.append(Step(number, line))
            stat, known = tensor_stat(run, name, fields, line), run.steps[-1].stats.get(name)
            if known is None:
                run.steps[-1].stats[name] = stat
            else:
                known.merge(stat)
                merged += 1
            run.probe(name, self._kind(line, row, name), self._format(row), self._shape(line, row, fields))
        if step_column is None:
            run.assumptions.append("no column is the step: 0")
        if passes:
            run.assumptions.append(f"a probe comes again {passes} times: the next step begins there")
        if merged:
            run.assumptions.append(f"{merged} rows repeat a probe in its step: the largest magnitude, the sum of the counts")
        described = {self.keys.get(k) for k in ("kind", "format", "dtype", "shape")}
        self._tell(run, Choice(), {name_column, *parts, *statistics, step_column, *described})

    def read_metrics(self, run: ImportedRun, name_column: str, value_column: str) -> None:
        """One row per metric and step."""
        series: dict[str, list[tuple[int, int, float]]] = {}
        texts = 0
        phases = [c for c in self.columns if key(c) in PHASES and c != name_column and self.column(c)[1]]
        for line, row in self.rows:
            name, cell = str(row.get(name_column) or ""), row.get(value_column)
            if not name:
                self.source.fail(line, f"{name_column}: is empty", "name the metric")
            if any(is_evaluation(str(row.get(c) or "")) for c in phases):
                name = f"eval/{name}"
            try:
                value = cells.flag(cell) if meaning(name).what in FLAGS else self._number(cell)
            except ValueError:
                if meaning(name).what in SCALARS:
                    self.number(line, f"{name}: {value_column}", cell)
                value, texts = None, texts + 1
            number = self.step_of(line, row)
            if number is None:
                number = self.epoch_of(line, row) if self.step is None else None
            if number is None:
                number = len(series.get(name, ()))
            if value is not None:
                series.setdefault(name, []).append((number, line, value))
        if self.step is None:
            instead = "the epoch is" if self.epoch else "the rows of a metric are counted from 0"
            run.assumptions.append(f"no column is the step: {instead}")
        if texts:
            run.assumptions.append(f"{texts} values that are no number left out")
        begin = len(run.steps)
        read_series(run, series, {}, "metrics", is_line=True)
        if not any(step.stats for step in run.steps[begin:]):
            self._fail_empty(list(series))

    def read_layers(self, run: ImportedRun, layer_column: str) -> None:
        """The layers of one pass, in order."""
        run.assumptions.append("no column is the step: the layers are one pass, step 0")
        step = Step(0, self.rows[0][0])
        run.steps.append(step)
        used = [c for c in self.columns if c != layer_column and self.column(c)[0] and may_be_operator(c)]
        for line, row in self.rows:
            for column in used:
                value = self.number(line, column, row.get(column))
                if value is None:
                    continue
                name = f"layer{row[layer_column]}.{column}"
                if name in step.stats:
                    self.source.fail(line, f"{layer_column}: {quoted(str(row[layer_column]))} stands twice",
                                     "give a column with the step")
                run.probe(name, kind_of(column))
                step.stats[name] = Stat(line, abs(value))
        self._tell(run, Choice(), {layer_column, *used})

    def read_wide(self, run: ImportedRun) -> None:
        """One row per step: the numbers of a log, or a column per probe, or per statistic of a probe."""
        phases = [c for c in self.columns if key(c) in PHASES and self.column(c)[1]]
        aside = {at for at, (_, row) in enumerate(self.rows) if any(is_evaluation(str(row.get(c) or "")) for c in phases)}
        kinds = [c for c in phases if key(c) in KINDS]
        events = {at for at, (_, row) in enumerate(self.rows)
                  if any(_OVERFLOW & set(words(str(row.get(c) or ""))) for c in kinds)}
        named = {self.step, self.epoch, *phases}
        names = [c for c in self.columns if c not in named and not (is_step(c) and self.step is not None)]
        points = {c: [(at, v) for at, v in numbers if at not in aside] for c in names if (numbers := self.column(c)[0])}
        points = {c: numbers for c, numbers in points.items() if numbers}
        tensors = self._tensor_columns(points)
        taken = {column for columns in tensors.values() for column in columns}
        choice = choose({c: numbers for c, numbers in points.items() if c not in taken})
        plain = []
        if not choice.is_log and self.step is not None:
            plain = [c for c, why in choice.left.items() if why == UNKNOWN and meaning(c).what != "suspect"
                     or why in NO_OPERATOR and MODULE_PATH.search(c)]
            for column in plain:
                del choice.left[column]
        unreadable = [c for c in names if not self.column(c)[0] and meaning(c).is_whole and meaning(c).what not in choice.scalars]
        for column in (*choice.used, *plain, *taken, *unreadable):
            for line, text in self.column(column)[1][:1]:
                self.number(line, column, text)
        for name in [*plain, *tensors]:
            run.probe(_free(name), kind_of(name))
        self._read_rows(run, choice, points, tensors, plain, aside, events)
        for name in choice.probes:
            run.probe(_free(name), probe_kind(name))
        where = self._where
        overflows = {at for name, what in choice.flags.items() for at in told_at(what, points[name])}
        for what in ("loss_scale", "scale_after"):
            overflows |= told_at(Meaning("falls"), points.get(choice.scalars.get(what), []))
        check_scalars(run, choice, points, where)
        self._check_missing(run, choice, aside, {*events, *overflows})
        tell(run, choice, points, "columns", where)
        self._tell_aside(run, aside, named)
        self._tell_texts(run, {*choice.used, *plain, *taken, *named})

    def _read_rows(self, run: ImportedRun, choice: Choice, points: dict, tensors: dict, plain: list[str], aside: set[int],
                   events: set[int]) -> None:
        """Adds the rows as steps."""
        told = row_values(choice, points)
        is_wide = not (choice.scalars or choice.flags or events)
        rows, stats, places = [], [], []
        copies = 0
        for at, (line, row) in enumerate(self.rows):
            if at in aside:
                continue
            values, overflow = told.get(at, ({}, False))
            overflow = overflow or at in events
            found = {_free(name): stat for name, stat in self._tensor_stats(run, line, row, tensors).items()}
            for column in (*plain, *choice.probes):
                if column in row and (value := self.number(line, column, row[column])) is not None:
                    found[_free(column)] = Stat(line, abs(value))
            if not values and not overflow and not found and at not in told:
                continue
            number = self.step_of(line, row)
            if number is None and self.step is not None and found and not values and not overflow:
                self.source.fail(line, f"{self.step}: is empty", "give every row its step")
            entry = Row(line, number, self.epoch_of(line, row), dict(values), overflow)
            if rows and number is not None and _is_copy(rows[-1], stats[-1], entry, found):
                copies += 1
                continue
            rows.append(entry)
            stats.append(found)
            places.append(at)
        if not rows or not any(stats) and not any(row.values.keys() - {"lr"} or row.overflow for row in rows):
            self._fail_empty(self.columns)
        if self.step is None:
            self._count(run, rows, places)
        if copies:
            run.assumptions.append(f"{copies} rows say what the row before says: copies, left out")
        if is_wide:
            steps = []
            for row, found in zip(rows, stats):
                if not steps or steps[-1].step != row.step or steps[-1].stats.keys() & found.keys():
                    steps.append(Step(row.step, row.line))
                    run.steps.append(steps[-1])
                steps[-1].stats.update(found)
            return
        merged = 0
        for step, found in zip(read_rows(rows, run), stats):
            for name, stat in found.items():
                if name in step.stats:
                    step.stats[name].merge(stat)
                    merged += 1
                else:
                    step.stats[name] = stat
        if merged:
            run.assumptions.append(f"{merged} values of a probe that its step has already: the larger magnitude")

    def _count(self, run: ImportedRun, rows: list[Row], places: list[int]) -> None:
        """Gives the rows of a table without a step column their steps."""
        by_epoch = self._epochs_are_steps(places)
        run.assumptions.append("no column is the step: " + ("the epoch is" if by_epoch else "rows are counted from 0"))
        for number, row in enumerate(rows):
            row.step = row.epoch if by_epoch else number
            row.epoch = None

    def _tensor_columns(self, columns) -> dict[str, dict[str, str]]:
        """Probe name -> {column: statistic} of the columns PROBE_STATISTIC. A probe needs a magnitude among them."""
        tensors: dict[str, dict[str, str]] = {}
        for column in columns:
            if parts := statistic_of(column):
                tensors.setdefault(parts[0], {})[column] = parts[1]
        return {name: columns for name, columns in tensors.items() if MAGNITUDES & set(columns.values())}

    def _tensor_stats(self, run: ImportedRun, line: int, row: dict, tensors: dict[str, dict[str, str]]) -> dict[str, Stat]:
        stats = {}
        for name, columns in tensors.items():
            fields = {field: value for column, field in columns.items()
                      if column in row and (value := self.number(line, column, row[column])) is not None}
            if fields:
                stats[name] = tensor_stat(run, name, fields, line)
        return stats

    # --- what is left out ---

    def _where(self, place: int) -> tuple[int, str]:
        return self.rows[place][0], ""

    def _tell(self, run: ImportedRun, choice: Choice, used: set) -> None:
        """Says which columns a layout leaves out, and notes what is not finite in them."""
        points = {c: numbers for c in self.columns if c not in used and (numbers := self.column(c)[0])}
        for column in points:
            what = meaning(column).what
            choice.left[column] = what if what in (*NO_OPERATOR, "evaluation", "epoch") else UNKNOWN
        tell(run, choice, points, "columns", self._where)
        self._tell_texts(run, used)

    def _tell_texts(self, run: ImportedRun, used: set) -> None:
        """Says which columns are text, and notes messages that speak of an overflow."""
        texts = [c for c in self.columns if c not in used and self.column(c)[1] and not self.column(c)[0]]
        if texts:
            run.assumptions.append(f"columns of text left out: {listed(texts)}")
        for column in self.columns:
            if column in used and key(column) not in PHASES:
                continue
            suspects = [(line, text) for line, text in self.column(column)[1]
                        if len(text) <= _LONGEST_TEXT and _SUSPECT.search(text)]
            if key(column) in KINDS and column in used:
                suspects = [(line, text) for line, text in suspects if not _OVERFLOW & set(words(text))]
            if suspects:
                more = f" and {len(suspects) - 1} more" if len(suspects) > 1 else ""
                run.not_understood(suspects[0][0], f"{column}: {suspects[0][1]}{more}")

    def _tell_aside(self, run: ImportedRun, aside: set[int], named: set) -> None:
        """Says that rows of an evaluation are left out, and notes what is not finite in them."""
        if not aside:
            return
        run.assumptions.append(f"{len(aside)} rows of an evaluation left out")
        for column in self.columns:
            bad = [(at, value) for at, value in self.column(column)[0] if at in aside and not math.isfinite(value)]
            if bad and column not in named and meaning(column).what not in NO_OPERATOR[:-1]:
                more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
                run.not_understood(self.rows[bad[0][0]][0], f"{column} is {bad[0][1]:g}{more} (a row of an evaluation)")

    def _check_missing(self, run: ImportedRun, choice: Choice, aside: set[int], events: set[int]) -> None:
        """Notes a loss or gradient norm that is missing where it is due: many writers have no NaN and leave the value out. A
        loss is due beside a gradient norm, and in a row without any other number; null, beside a loss scale or learning rate
        too. An overflow explains it: such a step has no loss in Megatron's logs."""
        training = [choice.scalars[what] for what in ("loss", "grad_norm", "loss_scale", "lr") if what in choice.scalars]
        others = [c for c in self.columns if c not in training and self.column(c)[0] and c not in (self.step, self.epoch)
                  and meaning(c).what not in (*BLAND, "step", "epoch")]
        for what in ("loss", "grad_norm"):
            column = choice.scalars.get(what)
            if column is None:
                continue
            places = []
            for at, (_, row) in enumerate(self.rows):
                if at in aside or at in events or not cells.is_missing(row.get(column)):
                    continue
                if self.nulls_are_told and column not in row:
                    continue
                beside = [c for c in training if c != column and not cells.is_missing(row.get(c))]
                is_alone = not beside and not cells.is_missing(row.get(self.step or self.epoch)) and all(
                    cells.is_missing(row.get(c)) for c in others)
                is_due = bool(beside) if self.nulls_are_told else what == "loss" and choice.scalars.get("grad_norm") in beside
                if is_due or what == "loss" and is_alone:
                    places.append(at)
            if places:
                more = f" and {len(places) - 1} more" if len(places) > 1 else ""
                run.not_understood(self.rows[places[0]][0], f"{column} has no value{more}: so writes NaN who has no NaN")

    def _fail_empty(self, names: list[str]) -> None:
        """The error of a table in which nothing can be a probe: says what was recognised."""
        known = [f"{name} ({what})" for name in names if (what := meaning(name).what)]
        recognised = f"; recognised: {listed(known)}" if known else ""
        wanted = "" if self.step else "step, "
        self.source.fail(self.rows[0][0], f"no column is a {wanted}probe name, layer, loss, gradient norm, loss scale or overflow "
                         f"flag with a value{recognised}", "name the columns as docs/importing.md says")

    # --- probes of a long table ---

    def _kind(self, line: int, row: dict, name: str) -> str:
        column = self.keys.get("kind")
        if column is None or not row.get(column):
            return kind_of(name)
        if row[column] not in PROBE_KINDS:
            self.source.fail(line, f"{column}: {quoted(str(row[column]))} is not a kind", f"use {', '.join(PROBE_KINDS)}")
        return row[column]

    def _format(self, row: dict) -> str | None:
        column = next((self.keys[k] for k in ("format", "dtype") if k in self.keys), None)
        return format_of(str(row[column])) if column is not None and row.get(column) else None

    def _shape(self, line: int, row: dict, fields: dict) -> tuple[int, ...] | None:
        column = self.keys.get("shape")
        if column is not None and row.get(column):
            sizes = re.findall(r"\d+", str(row[column]))
            if not re.fullmatch(r"[\[(]?[\d, x]*[\])]?", str(row[column]), re.A) or any(
                    len(n) > 19 for n in sizes) or not cells.is_shape([int(n) for n in sizes], 1):
                self.source.fail(line, f"{column}: {quoted(str(row[column]))} is not a shape", "write it as \"[2, 4]\"")
            return tuple(map(int, sizes))
        count = fields.get("elements")
        if count is None:
            return None
        if not math.isfinite(count) or count < 1 or not count.is_integer():
            self.source.fail(line, f"{count} elements", "correct the element count")
        return (int(count),)


def _free(name: str) -> str:
    """The name of a probe, which none of the scalars' probes has."""
    return f"{name}.column" if name in PROBES else name


def _is_copy(row: Row, found: dict[str, Stat], other: Row, also: dict[str, Stat]) -> bool:
    """Whether a row says the same as the one before it, as where every rank writes into one file."""
    def said(entry, stats):
        return repr((entry.step, entry.epoch, sorted(entry.values.items()), entry.overflow,
                     sorted((name, stat.max_abs, stat.nonfinite) for name, stat in stats.items())))
    return bool(other.values) and said(row, found) == said(other, also)
