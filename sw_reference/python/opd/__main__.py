"""python -m opd COMMAND ...: the commands of opd that are Python."""
from __future__ import annotations

import importlib
import os
import sys

# Name of the command -> its module, which has main(argv) and is imported only when it is called.
COMMANDS = {
    "calibrate": ("opd.calibrate.command", "register settings for a wanted false-alarm rate"),
    "capture": ("opd.capture.cli", "a trace of any PyTorch training run"),
    "evaluate": ("opd.evaluate.command", "detectors on a corpus of traces: recall, lead, false alarms, cost"),
    "import": ("opd.importers.command", "traces from the telemetry of other tools"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit status, 2 for an unknown one."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        return importlib.import_module(COMMANDS[arguments[0]][0]).main(arguments[1:])
    asked = arguments[:1] in (["-h"], ["--help"])
    text = "usage: python -m opd COMMAND ...\n\n" + "\n".join(f"  {name:10} {what}" for name, (_, what) in COMMANDS.items())
    wrong = "" if asked or not arguments else f"python -m opd: unknown command '{arguments[0]}'\n\n"
    print(wrong + text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def run() -> int | str | None:
    """`main`, but a reader of the output that leaves early (`opd evaluate ... | head`) ends it in silence, as it does for others,
    and an output that cannot be written is named."""
    try:
        try:
            status = main()
        except SystemExit as end:  # of argparse, after a help text for instance
            status = end.code
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.filename is not None:
            raise  # not of the output: a command names its own files
        _drop_output()
        print(f"opd: standard output cannot be written ({error.strerror}); check the disk or the pipe behind it", file=sys.stderr)
        return 2


def _drop_output() -> None:
    """What is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(run())
