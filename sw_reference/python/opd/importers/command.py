"""`opd import FILE...`: telemetry of other tools as traces.

One line per trace: file, format, steps, probes, first non-finite value; below it what had to be assumed, for this trace and
for the whole file. Exit status 0, or 2 for
bad input: then nothing is written.
"""
from __future__ import annotations

import argparse
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from opd.arguments import Parser
from opd.importers import IMPORTERS, ImportFault, Options, import_file, import_joined
from opd.importers.run import Imported, short_name
from opd.texts import printable
from opd.trace import FORMATS, KINDS, LABELS, TraceError

SUFFIX = ".safetensors"
MAX_MEMORY = 16 << 30   # bytes that an import may add to what the process has; what needs more is refused


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(
        prog="opd import", description="Make traces of telemetry that other tools wrote (docs/importing.md).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="formats:\n" + "\n".join(f"  {name:16} {importer.WHAT}" for name, importer in IMPORTERS.items()))
    parser.add_argument("files", nargs="+", metavar="FILE", help="telemetry; compressed files are read too")
    parser.add_argument("--out", default=".", metavar="DIR|FILE",
                        help="folder for NAME.safetensors, or the file of a single trace (default: here)")
    parser.add_argument("--from", dest="importer", choices=IMPORTERS, metavar="FORMAT",
                        help="read as this format instead of detecting it")
    parser.add_argument("--format", choices=FORMATS, help="element format where the source does not tell it (default FP32)")
    parser.add_argument("--kind", choices=KINDS, help="kind of every probe (default: by its name)")
    parser.add_argument("--label", choices=LABELS,
                        help="label of the traces (default: sudden when something is non-finite, else healthy)")
    parser.add_argument("--name", help="name of the trace (default: that of the file)")
    parser.add_argument("--match", metavar="REGEX", help="only probes whose name it finds")
    parser.add_argument("--restarts", choices=("split", "last"), default="split",
                        help="where steps go back: a trace for each stretch (default), or the last of every step")
    parser.add_argument("--join", action="store_true",
                        help="the files are of one run: one trace with the steps and probes of all of them")
    parser.add_argument("--raw", action="store_true", help="keep the elements where the source has them")
    arguments = parser.parse_args(argv)
    try:
        options = _options(arguments)
        with _bounded_memory():
            if arguments.join:
                found = [(" ".join(arguments.files), *import_joined(arguments.files, arguments.importer, options))]
            else:
                found = [(file, *import_file(file, arguments.importer, options)) for file in arguments.files]
            targets = _targets(arguments, [imported for _, _, traces in found for imported in traces])
            for target, imported in targets:
                imported.trace.write(target)
    except (ImportFault, TraceError, OSError) as error:
        print(printable(f"opd import: {error}"), file=sys.stderr)
        return 2
    except MemoryError:   # while traces are written
        print("opd import: more memory is needed than there is; import the files one by one", file=sys.stderr)
        return 2
    targets = iter(targets)
    for file, name, traces in found:
        for imported in traces:
            print(printable(summary(file, name, imported, next(targets)[0])))
        for text in traces[0].of_source:
            print(printable(f"  assumed for the file: {text}"))
    return 0


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Lets the process have MAX_MEMORY more than it has, or what its limit allows already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as status:
        limit = int(status.read().split()[0]) * resource.getpagesize() + MAX_MEMORY
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def summary(file: str, importer: str, imported: Imported, target: Path) -> str:
    """What was imported, in one line, and one line for each assumption about this trace."""
    trace = imported.trace
    bad = np.argwhere(trace.nonfinite > 0)
    first = "nothing non-finite"
    if len(bad):
        step, op = bad[0]
        first = f"first non-finite at step {trace.step[step]} in {trace.probes[op].name}"
    steps = len(trace.step)
    line = (f"{file} -> {target}: {importer}, {steps} {'step' if steps == 1 else 'steps'} {trace.step[0]}..{trace.step[-1]}, "
            f"{len(trace.probes)} {'probe' if len(trace.probes) == 1 else 'probes'}, {first}")
    return "\n".join([line, *(f"  assumed: {text}" for text in imported.of_trace)])


def _options(arguments) -> Options:
    if arguments.name is not None and arguments.name != short_name(arguments.name):
        raise ImportFault("--name", None, f"{arguments.name!r} is not a short name",
                          "use letters, digits, '_', '.' and '-' only")
    if arguments.name is not None and len(arguments.files) > 1 and not arguments.join:
        raise ImportFault("--name", None, f"one name for {len(arguments.files)} files", "import them one by one")
    try:
        re.compile(arguments.match or "")
    except re.error as error:
        raise ImportFault("--match", None, f"{arguments.match!r} is not a regular expression ({error})", "correct it") from None
    return Options(arguments.name, arguments.label, arguments.format, arguments.kind, arguments.restarts, arguments.match,
                   arguments.raw)


def _targets(arguments, traces: list[Imported]) -> list[tuple[Path, Imported]]:
    """The file of each trace. Nothing is written yet."""
    out = Path(arguments.out)
    is_folder = out.is_dir() or arguments.out.endswith("/")
    if not is_folder and len(traces) > 1:
        raise ImportFault("--out", None, f"{arguments.out!r} is one file, but there are {len(traces)} traces",
                          "give a folder, with / at its end when it is not there yet")
    if not is_folder:
        targets = [(out, traces[0])]
    else:
        out.mkdir(parents=True, exist_ok=True)
        targets = [(out / f"{imported.trace.name}{SUFFIX}", imported) for imported in traces]
    paths = Counter(path for path, _ in targets)
    for path, count in paths.items():
        if count > 1:
            raise ImportFault(str(path), None, "two traces would have this file", "import them one by one, with --name")
        if any(path.exists() and path.samefile(file) for file in arguments.files):
            raise ImportFault(str(path), None, "is the file that is read", "give another --out")
    return targets
