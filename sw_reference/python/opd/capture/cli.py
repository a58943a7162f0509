"""`opd capture`: captures a training command, or works on what captures wrote.

  opd capture [options] -- python train.py ...   without editing the script
  opd capture --recover run.safetensors.journal  the trace of a run that was killed
  opd capture --info run.safetensors.journal     what a journal holds, also while it grows
  opd capture --merge run.rank*.safetensors --out run.safetensors
  opd capture --bench [-- --help]                step time beside other ways to look into a model

Exit status: that of the command; else 0, or 2 for bad arguments or files and for a pattern that matches nothing in the model.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opd.arguments import Parser
from opd.capture import launcher
from opd.capture.errors import CaptureError
from opd.capture.recovery import recover
from opd.trace import TraceError


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(prog="opd capture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", "-o", metavar="FILE", help="the trace (default: capture.safetensors); with ranks FILE.rankN")
    parser.add_argument("--probes", default="key", metavar="LIST",
                        help="groups and patterns: key, all, logits, softmax, norm, weight, allreduce, output, gradient, moment, "
                             "module names with *, group:pattern (default: key)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="record every n-th step only")
    parser.add_argument("--statistics", default="core", choices=("core", "full"), help="full: all statistics of the format")
    parser.add_argument("--raw", default="", metavar="LIST", help="patterns of probe names whose elements are kept ...")
    parser.add_argument("--raw-steps", metavar="FIRST:LAST",
                        help="... in these steps; default: in a ring of 20 steps, written when a value turns non-finite")
    parser.add_argument("--operands", metavar="LIST",
                        help="patterns of probe names whose operators' inputs are kept (docs/capture.md), in a ring of 8 steps that is "
                             "written when a value turns non-finite ...")
    parser.add_argument("--operand-steps", metavar="FIRST:LAST|STEP,...|last",
                        help="... in these steps; last: the ring is written at the end of the run even without an incident")
    parser.add_argument("--operand-ring", type=int, metavar="N", help="... steps of the ring (default: 8, with --operand-steps 0)")
    parser.add_argument("--sideband", default="logits", choices=("off", "logits", "full"), help="logits of fused attention")
    parser.add_argument("--compiled", default="skip", choices=("skip", "split"), help="code of torch.compile")
    parser.add_argument("--bundle", metavar="FOLDER", help="an incident bundle of the first step that is not finite (opd localise); each backward "
                        "then waits for the statistics")
    parser.add_argument("--model", metavar="CLASS", help="class of the model (default: the first module called in training)")
    parser.add_argument("--inference", action="store_true", help="record every call of the model as a step, trained or not")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--recover", metavar="JOURNAL", help="turn the journal of a killed run into a trace")
    action.add_argument("--info", nargs="+", metavar="JOURNAL", help="say what journals hold")
    action.add_argument("--merge", nargs="+", metavar="TRACE", help="one trace of those of several ranks")
    action.add_argument("--bench", action="store_true", help="measure the overhead on this machine")
    argv = list(sys.argv[1:] if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    arguments, command = parser.parse_args(argv[:split]), argv[split + 1:]
    _refuse_what_is_not_meant(parser, arguments, command)
    try:
        if arguments.recover:
            print(recover(arguments.recover, arguments.out))
        elif arguments.info:
            from opd.capture.info import journal_text
            for journal in arguments.info:
                print(journal_text(journal), end="")
        elif arguments.merge:
            from opd.capture.ranks import merge
            out = arguments.out or parser.error("--merge: give the file to write with --out")
            merge(arguments.merge).write(out)
            print(out)
        elif arguments.bench:
            from opd.capture.benchmark import main as bench
            bench(command)
        elif not command:
            parser.error("no command; for instance: opd capture -- python train.py")
        else:
            return _run(arguments, command)
    except (CaptureError, TraceError) as error:
        print(f"opd capture: {error}", file=sys.stderr)
        return 2
    return 0


def _refuse_what_is_not_meant(parser: Parser, arguments: argparse.Namespace, command: list[str]) -> None:
    """Options of a capture beside an action on files, and actions that contradict each other."""
    actions = [name for name in ("recover", "info", "merge", "bench") if getattr(arguments, name)]
    if not actions:
        return
    action = f"--{actions[0]}"
    if command and action != "--bench":
        parser.error(f"{action}: runs no command, but there is one after --; drop one of the two")
    taken = {*actions, *(["out"] if action in ("--recover", "--merge") else [])}
    for name, value in vars(arguments).items():
        if name not in taken and value != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')}: says how a command is captured, and {action} captures none; drop one of the two")


def _run(arguments: argparse.Namespace, command: list[str]) -> int:
    path = Path(arguments.out or "capture.safetensors")
    if not path.parent.is_dir():
        raise CaptureError(f"{path}: its folder does not exist; create {path.parent}, or give another file")
    options = {"probes": arguments.probes, "every": arguments.every, "statistics": arguments.statistics,
               "sideband": arguments.sideband, "compiled": arguments.compiled}
    if arguments.bundle is not None:
        options["bundle"] = str(Path(arguments.bundle).absolute())
    if arguments.raw:
        options["raw"] = arguments.raw.split(",")
        if arguments.raw_steps:
            options["raw_steps"] = list(_steps("--raw-steps", arguments.raw_steps))
    elif arguments.raw_steps:
        raise CaptureError("--raw-steps: no probe keeps its elements; name some with --raw")
    options |= _operand_options(arguments)
    try:
        return launcher.run(command, path, options, arguments.model, arguments.inference)
    except OSError as error:
        raise CaptureError(f"{command[0]}: cannot be run ({error.strerror}); give the command as in a shell") from None


def _operand_options(arguments: argparse.Namespace) -> dict:
    """Checked here: a process of the command that finds them wrong would go on without a capture."""
    steps, ring = arguments.operand_steps, arguments.operand_ring
    if arguments.operands is None:
        if steps is not None or ring is not None:
            raise CaptureError(f"--operand-{'steps' if steps is not None else 'ring'}: no operator's operands are kept; name some with "
                               "--operands")
        return {}
    patterns = [text.strip() for text in arguments.operands.split(",") if text.strip()]
    if not patterns:
        raise CaptureError("--operands: no pattern; give names of probes, for instance '*.attn:logits'")
    if ring is not None and ring < 0:
        raise CaptureError(f"--operand-ring: {ring} is negative; give 0 or more steps")
    if ring == 0 and steps in (None, "last"):
        raise CaptureError("--operand-ring: 0 steps, and no others are chosen; give --operand-steps, or a ring of at least 1")
    options = {"operands": patterns, "operand_ring": ring}
    if steps == "last":
        options["operand_steps"] = steps
    elif steps is not None:
        options["operand_steps"] = [step for part in steps.split(",") for step in _steps("--operand-steps", part)]
    return options


def _steps(option: str, text: str) -> range:
    """FIRST:LAST, or for --operand-steps a step as well."""
    first, colon, last = text.partition(":")
    if option == "--operand-steps" and not colon:
        last = first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < int(first) + (1 << 20)):
        form = "FIRST:LAST; for instance 100:120" if option == "--raw-steps" else "FIRST:LAST or a list of steps; for instance 100:120,150"
        raise CaptureError(f"{option}: {text!r} is not {form}")
    return range(int(first), int(last) + 1)


if __name__ == "__main__":
    sys.exit(main())
