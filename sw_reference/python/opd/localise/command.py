"""opd localise BUNDLE: the first bad operator of an incident, on one page."""
from __future__ import annotations

import argparse
import json
import sys

from opd.arguments import Parser


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the bundle was replayed, whatever it shows; 2 for a bundle or option that is wrong."""
    parser = Parser(prog="opd localise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                    epilog="Rebuilding the model executes code that lies in the bundle. docs/localise.md explains bundle and page.")
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that opd.localise.write_bundle wrote")
    parser.add_argument("--trust", action="store_true", help="the bundle comes from a source that is trusted: run its code")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the page")
    arguments = parser.parse_args(argv)

    from opd.localise.bundle import read_bundle
    from opd.localise.errors import LocaliseError

    try:
        bundle = read_bundle(arguments.bundle, trust=arguments.trust)
        if bundle.missing:
            print(f"opd localise: the step ran on {bundle.missing}, which is not here; it is replayed on the CPU, whose kernels round "
                  "in their own way", file=sys.stderr)
        finding = bundle.localise()
    except LocaliseError as error:
        print(f"opd localise: {error}", file=sys.stderr)
        return 2
    history = None
    if bundle.history is not None:
        from opd.triage import triage

        history = triage(bundle.history)
    if arguments.json:
        print(json.dumps(finding.json() | {"history": None if history is None else history.json()}, indent=1, allow_nan=False))
    else:
        print(finding.text(() if history is None else history.before()), end="")
    return 0
