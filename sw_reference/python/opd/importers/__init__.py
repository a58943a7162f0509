"""Importers: telemetry of other tools as traces (docs/importing.md).

Each importer is a module or class with NAME, WHAT, sniff(source) -> confidence and read(source) -> ImportedRun. A confidence
is 0 (no), 1 (a general format whose content fits) or 2 (this format), or between; the highest one reads the file.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from opd.importers import arrays, hf_debug, inc, logs, msprobe, nvdlfw, table, tensorboard
from opd.importers.run import Imported, ImportedRun, Options, build, join
from opd.importers.source import ImportFault, Source

__all__ = ["IMPORTERS", "Imported", "ImportedRun", "ImportFault", "Options", "Source", "detect", "import_file", "import_joined",
           "read"]

IMPORTERS = {importer.NAME: importer for importer in (
    hf_debug, nvdlfw, msprobe.Dump, msprobe.Monitor, inc, logs, tensorboard, table.Csv, table.Jsonl, arrays.Npz,
    arrays.Safetensors)}


def detect(source: Source) -> str:
    """The name of the one importer that reads the source. Raises ImportFault when none does, or several."""
    found = {name: importer.sniff(source) for name, importer in IMPORTERS.items()}
    best = max(found.values())
    names = [name for name, confidence in found.items() if confidence == best]
    if best == 0:
        line, said = logs.hint(source) or (None, "")
        source.fail(line, "is in no known format" + (f", but this line {said}" if said else ""),
                    f"name it with --from: {', '.join(IMPORTERS)}")
    if len(names) > 1:
        source.fail(None, f"looks like {' and like '.join(names)}", "name one with --from")
    return names[0]


def read(path: str | os.PathLike, importer: str | None = None) -> tuple[str, Source, ImportedRun]:
    """Reads a file; `importer` None detects it. Returns the importer's name too. Raises ImportFault."""
    with _limits(path):
        source = Source.open(path)
        name = importer or detect(source)
        run = IMPORTERS[name].read(source)
        for step in run.steps:
            step.source = source
        return name, source, run


@contextmanager
def _limits(path: str | os.PathLike) -> Iterator[None]:
    """What any reader may meet: values that nest deeper, or take more memory, than there is. Raises ImportFault."""
    try:
        yield
    except MemoryError:
        wrong, remedy = "takes more memory than there is", "split it, or choose probes with --match"
    except RecursionError:
        wrong, remedy = "holds values that are nested too deep", "write flat ones"
    else:
        return
    raise ImportFault(os.fspath(path), None, wrong, remedy)


def import_file(path: str | os.PathLike, importer: str | None = None,
                options: Options = Options()) -> tuple[str, list[Imported]]:
    """The traces of a file and the importer's name; nothing is written. Raises ImportFault and opd.trace.TraceError."""
    name, source, run = read(path, importer)
    with _limits(path):
        return name, build(run, [source], name, options)


def import_joined(paths: list[str | os.PathLike], importer: str | None = None,
                  options: Options = Options()) -> tuple[str, list[Imported]]:
    """The trace of several files of one run, all of one format. Raises ImportFault and opd.trace.TraceError."""
    found = [read(path, importer) for path in paths]
    for name, source, _ in found:
        if name != found[0][0]:
            source.fail(None, f"is {name}, but {found[0][1].path} is {found[0][0]}", "join files of one format")
    with _limits(found[0][1].path):
        run = join([(source, run) for _, source, run in found], options.restarts)
        return found[0][0], build(run, [source for _, source, _ in found], found[0][0], options)
