"""opd triage TRACE...: the incidents of a trace in words, a page each."""
from __future__ import annotations

import argparse
import json
import sys

from opd.arguments import Parser


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the traces were read, whatever happened in them; 2 for a file or option that is wrong."""
    parser = Parser(prog="opd triage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                    epilog="docs/triage.md explains the page and the kinds of incidents.")
    parser.add_argument("traces", nargs="+", metavar="TRACE|FOLDER", help="traces; of a folder its *.safetensors")
    parser.add_argument("--labels", metavar="FILE", help="labels of the traces (default: labels.toml beside each)")
    parser.add_argument("--json", action="store_true", help="a JSON object for each trace instead of its pages, one a line")
    parser.add_argument("--brief", action="store_true", help="a sentence for each trace instead of its pages")
    arguments = parser.parse_args(argv)
    if arguments.json and arguments.brief:
        parser.error("--brief: is given together with --json; choose one")

    from opd.evaluate import all_detectors
    from opd.evaluate.corpus import CorpusError, Runs, find_traces
    from opd.reference import ReferenceMissing
    from opd.texts import printable
    from opd.trace import TraceError
    from opd.triage.incidents import triage_run

    try:
        detectors = all_detectors()
    except ReferenceMissing as error:
        detectors = ()
        print(f"opd triage: without what detectors would have said: {error}", file=sys.stderr)
    try:
        for number, run in enumerate(Runs(find_traces(arguments.traces), arguments.labels).read()):
            found = triage_run(run, detectors)
            if arguments.json:
                print(json.dumps(found.json(), allow_nan=False))
            elif arguments.brief:
                print(printable(f"{found.name}: {found.sentence()}"))
            else:
                print(("" if number == 0 else "\n") + found.text(), end="")
    except (CorpusError, TraceError) as error:
        print(f"opd triage: {error}", file=sys.stderr)
        return 2
    return 0
