"""Replays of the same traces under several policies, side by side: python -m opd.policy.compare DIR DIR ...

Reads DIR/summary.json of each replay; one row for each label of the traces and each replay.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from opd.arguments import Parser
from opd.registers import Mode
from opd.trace_layout import LABELS

BUILT_IN = "built-in controller"


def policy_name(summary: dict) -> str:
    """The class of the policy that ran, or the controller's."""
    policy = summary.get("policy")
    return policy["class"] if policy else BUILT_IN


def by_label(summary: dict) -> dict[str, dict]:
    """Label -> traces, completions, those outside of FAST, commands, and first
    incidents (one of a trace, docs/metrics.md) by the mode that they were met in."""
    found: dict[str, dict] = {}
    for label in LABELS:
        traces = [trace for trace in summary["traces"] if trace["label"] == label]
        if not traces:
            continue
        issued = [sum(trace["modes"]["issued"][mode.name] for trace in traces) for mode in Mode]
        met = [trace["first_incident"]["mode_before"] for trace in traces if trace["first_incident"]]
        found[label] = {"traces": len(traces), "completions": sum(issued), "outside_fast": sum(issued[1:]),
                        "commands": sum(sum(trace["policy"]["commands"].values()) for trace in traces if trace["policy"]),
                        "first_incidents": {mode.name: met.count(mode.name) for mode in Mode}}
    return found


def rows(replays: dict[str, dict[str, dict]]) -> list[list[str]]:
    """Of a table: name of a policy -> by_label. The first row is the heading."""
    table = [["label", "traces", "policy", "commands", "completions outside FAST",
              *(f"first incidents met in {mode.name}" for mode in Mode)]]
    for label in LABELS:
        for number, (name, labels) in enumerate((name, labels) for name, labels in replays.items() if label in labels):
            figures = labels[label]
            share = f"{100 * figures['outside_fast'] / figures['completions']:.3f} %" if figures["completions"] else ""
            met = figures["first_incidents"]
            heads = [label, str(figures["traces"])] if number == 0 else ["", ""]
            table.append([*heads, name, f"{figures['commands']:,}", share, *(str(met[mode.name]) for mode in Mode)])
    return table


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m opd.policy.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="DIR", help="--out of a replay")
    replays = {}
    for folder in parser.parse_args(argv).folders:
        file = Path(folder) / "summary.json"
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
            labels = by_label(summary)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"opd: {file}: is no summary of this version ({type(error).__name__}); run `opd replay --out {folder}` again",
                  file=sys.stderr)
            return 2
        name = policy_name(summary)
        replays[f"{name} ({folder})" if name in replays else name] = labels
    table = rows(replays)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
