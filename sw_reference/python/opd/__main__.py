"""python -m opd COMMAND ...: the commands of opd that are Python."""
from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable

from opd.texts import suggestion

# Name of the command -> its module, which has main(argv) and is imported only when it is called.
COMMANDS = {
    "calibrate": ("opd.calibrate.command", "register settings for a wanted false-alarm rate"),
    "capture": ("opd.capture.cli", "a trace of any PyTorch training run"),
    "evaluate": ("opd.evaluate.command", "detectors on a corpus of traces: recall, lead, false alarms, cost"),
    "governor": ("opd.governor.command", "loss scales and FP8 scales: what chooses them, compared on recorded runs"),
    "guard": ("opd.guard.cli", "a training script under the device: bad steps are stopped, operators change their modes"),
    "import": ("opd.importers.command", "traces from the telemetry of other tools"),
    "localise": ("opd.localise.command", "the first bad operator of an incident, and why"),
    "triage": ("opd.triage.command", "the incidents of a trace in words"),
}


SIGNALLED = 128    # and the number of the signal: as a shell says it of a program that one ended
PIPE_CLOSED = SIGNALLED + signal.SIGPIPE


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit status, 2 for an unknown one."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        command = importlib.import_module(COMMANDS[arguments[0]][0])
        _Interrupts.loading = False
        return command.main(arguments[1:])
    if arguments and arguments[0] not in ("-h", "--help"):
        known = suggestion(arguments[0], COMMANDS, f"the commands are {', '.join(COMMANDS)}")
        print(f"opd: {arguments[0]}: no such command; {known}", file=sys.stderr)
        return 2
    text = "usage: python -m opd COMMAND ...\n\n" + "\n".join(f"  {name:10} {what}" for name, (_, what) in COMMANDS.items())
    print(text, file=sys.stdout if arguments else sys.stderr)
    return 0 if arguments else 2


def run(command: Callable[[], int] = main) -> int | str | None:
    """The exit status of a command, whatever happens to it.

    A reader of the output that leaves early (`opd evaluate ... | head`) ends it in silence, as it does for others; an output that
    cannot be written is named; so are SIGINT, SIGTERM and SIGHUP, in one line, and what was half written is removed. Status 1 stays a
    command's own: a failure that it did not foresee is 2, with its traceback.
    """
    _occupy_closed_streams()
    for number in _Interrupts.WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # behind nohup for instance
            signal.signal(number, _Interrupts.receive)
    try:
        try:
            status = command()
        except SystemExit as end:  # of argparse, after a help text for instance
            status = end.code
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _interrupted()
    except OSError as error:
        _drop_output()
        if error.filename is not None:  # not of the output: a command names its own files
            traceback.print_exc()
        else:
            print(f"opd: standard output cannot be written ({error.strerror}); check the disk or the pipe behind it", file=sys.stderr)
        return 2
    except Exception as error:
        if _Interrupts.received:  # extension modules turn it into errors of their own
            return _interrupted()
        _drop_output()
        if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != "opd":
            print(f"opd: the Python package {error.name} is not installed; scripts/setup installs it", file=sys.stderr)
        else:
            traceback.print_exc()
        return 2


class _Interrupts:
    """Signals that end a command. While its modules are loaded there is nothing to clean up, and an exception would come out of them
    as somebody else's error, with a traceback."""
    WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
    loading, received = True, 0

    @classmethod
    def receive(cls, number: int, frame) -> None:
        cls.received = number
        if cls.loading:
            os._exit(_interrupted())
        signal.default_int_handler(number, frame)


def _interrupted() -> int:
    _drop_output()
    number = _Interrupts.received or signal.SIGINT
    print(f"opd: {_Interrupts.WORDS[number]}", file=sys.stderr)
    return SIGNALLED + number


class _Forgiving(io.TextIOWrapper):
    """Standard error. What cannot be written there is lost, and changes no exit status."""

    def write(self, text: str) -> int:
        try:
            super().write(text)
            super().flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return len(text)


def _occupy_closed_streams() -> None:
    """A standard stream that is closed would lend its number to the next file that is opened. In its place: an input without a byte,
    an output that cannot be written, an error that goes nowhere."""
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = _Forgiving(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace",
                            line_buffering=True)


def _drop_output() -> None:
    """What is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(run())
