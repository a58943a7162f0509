"""opd governor TRACE|FOLDER...: what chooses the scales of FP16 and FP8 runs, compared on their recorded maxima (docs/governor.md).

Exit status 0; 2 for bad input, or where no trace has a loss scale with gradients in FP16, or a cast to FP8 with the tensor before it.
"""
from __future__ import annotations

import argparse
import json
import sys

from opd.arguments import Parser
from opd.evaluate.corpus import LABELS_FILE, SPLITS, CorpusError, Runs, find_traces
from opd.governor.comparison import compare, totals
from opd.governor.tables import text
from opd.reference import ReferenceMissing
from opd.texts import printable
from opd.trace import TraceError


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(prog="opd governor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="TRACE|FOLDER", help="traces; of a folder its *.safetensors")
    parser.add_argument("--labels", metavar="FILE", help=f"labels of the traces (default: {LABELS_FILE} beside each)")
    parser.add_argument("--split", choices=SPLITS, help="only runs of this split")
    parser.add_argument("--json", action="store_true", help="one JSON object, counts by split and class, instead of the tables")
    arguments = parser.parse_args(argv)
    try:
        entries = compare(Runs(find_traces(arguments.paths), arguments.labels).read(arguments.split))
        if not entries:
            raise CorpusError(arguments.paths[0], "probes", "no trace has a loss scale with gradients in FP16, or a cast to FP8 with the "
                              "tensor before it", "name a trace of a run in FP16 or FP8, captured with the probes gradient and output")
    except (CorpusError, TraceError, ReferenceMissing) as error:
        print(f"opd governor: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"format": "opd-governor", "version": 1, "entries": entries}, indent=1, allow_nan=False))
    else:
        print(printable(text(totals(entries))))
    return 0
