"""`opd guard`: guards a training script that knows nothing of it.

  opd guard [options] -- python train.py ...     also python -m package, and shell scripts that start one

The script runs as it is written. Its model is watched, its operators follow the modes that the device asks for, and a step whose loss,
outputs or gradients are not finite does not reach the parameters. A stopped step comes again where the script iterates over a DataLoader
or gives its optimizer a closure; elsewhere it is dropped, and the modes act on the next one. docs/guard.md says the rest.

The last line says what happened. Exit status: that of the script; 2 for bad arguments, and for probes that match nothing in the model.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from opd.arguments import Parser
from opd.guard.errors import GuardError
from opd.unedited import launch

NEEDED = ("numpy", "ml_dtypes")  # beside torch, in the environment of the command
_LAUNCHERS = ("torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = Parser(prog="opd guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", metavar="KIND", help="the device that is asked (default: cpu, its reference)")
    parser.add_argument("--config", metavar="FILE", help="configuration of the device, as opd calibrate writes it")
    parser.add_argument("--probes", default="key,output", metavar="LIST", help="groups and patterns that are watched (default: key,output)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at every n-th step only; losses and gradients at each")
    parser.add_argument("--sideband", default="bound", choices=("off", "bound", "logits", "full"), help="logits of fused attention")
    parser.add_argument("--compiled", default="skip", choices=("skip", "split"), help="code of torch.compile")
    parser.add_argument("--ring", default="256MiB", metavar="SIZE", help="budget of the states to go back to; 0: none (default: 256MiB)")
    parser.add_argument("--ring-every", type=int, default=16, metavar="N", help="steps between two states (default: 16)")
    parser.add_argument("--path", metavar="FOLDER", help="where the states are written as well")
    parser.add_argument("--log", metavar="FILE", help="file of the decisions, one JSON object a line")
    parser.add_argument("--no-modes", action="store_true", help="stop bad steps, but leave every operator in FAST")
    parser.add_argument("--hints", action="store_true", help="loss scale, clipping and learning rate follow the device as well")
    parser.add_argument("--model", metavar="CLASS", help="class of the model (default: the outermost module that an optimizer trains)")
    argv = list(sys.argv[1:] if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    arguments, command = parser.parse_args(argv[:split]), argv[split + 1:]
    if not command:
        parser.error("no command; for instance: opd guard -- python train.py")
    try:
        _refuse_ranks(command)
        options = _options(arguments)
        status, heard = launch.run("guard", command, {"options": options, "model_class": arguments.model}, NEEDED)
    except GuardError as error:
        print(f"opd guard: {error}", file=sys.stderr)
        return launch.BAD_INPUT
    except OSError as error:
        print(f"opd guard: {command[0]}: cannot be run ({error.strerror}); give the command as in a shell", file=sys.stderr)
        return launch.BAD_INPUT
    launch.say("guard", _report(heard, arguments.log))
    return launch.BAD_INPUT if any(event["event"] == "refused" for event in heard) else status


def _refuse_ranks(command: Sequence[str]) -> None:
    name = Path(command[0]).name
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    found = name if name in _LAUNCHERS or (name == "accelerate" and "launch" in command) else module if module in _MODULES else None
    if found:
        raise GuardError(f"{found}: starts several processes, whose modes would differ; guard the command of one process")


def _options(arguments: argparse.Namespace) -> dict:
    """Of StepGuard. What is wrong with them is said here, before the script runs. Raises GuardError."""
    from opd.device_config import ConfigFileError, read
    from opd.guard.device import factory
    try:
        config = None if arguments.config is None else read(arguments.config)
    except ConfigFileError as error:
        raise GuardError(str(error)) from None
    factory(arguments.device, config)
    for name, value in (("--every", arguments.every), ("--ring-every", arguments.ring_every)):
        if value < 1:
            raise GuardError(f"{name}: {value} is not a whole number from 1 on; correct it")
    try:
        from opd.guard.ring import bytes_of_budget
        bytes_of_budget(arguments.ring)
    except ImportError:  # no torch here: the environment of the command has it
        pass
    if arguments.log is not None and not Path(arguments.log).absolute().parent.is_dir():
        raise GuardError(f"--log: the folder of {arguments.log} does not exist; create it, or give another file")
    return {"device": arguments.device, "config": arguments.config and os.path.abspath(arguments.config), "probes": arguments.probes,
            "every": arguments.every, "sideband": arguments.sideband, "compiled": arguments.compiled, "ring": arguments.ring,
            "ring_every": arguments.ring_every, "path": arguments.path and os.path.abspath(arguments.path),
            "log": arguments.log and os.path.abspath(arguments.log), "modes": not arguments.no_modes, "hints": arguments.hints}


def _report(heard: Sequence[Mapping], log: str | None) -> list[str]:
    """What became of each guard; of none, why there was none."""
    begun = [event for event in heard if event["event"] == "begin"]
    ended = [event for event in heard if event["event"] == "end"]
    lines = [describe(event["model"], end["summary"], end["alone"], log) for event, end in zip(begun, ended)]
    lines += [f"{event['model']}: the process was killed, or left without its end" + (f"; its decisions are in {log}" if log else "")
              for event in begun[len(ended):]]
    for kind, text in (("refused", "the command was ended before it trained: "), ("failed", "a process ran without a guard: ")):
        lines += [text + event["text"] for event in heard if event["event"] == kind]
    if not lines:
        idle = sorted({event["text"] for event in heard if event["event"] == "idle"})
        lines = [f"nothing was guarded: {text}" for text in idle or ["no process imported torch, or it was killed before it could train"]]
    return list(dict.fromkeys(lines))


def describe(model: str, summary: Mapping, alone: Sequence[str], log: str | None) -> str:
    """A guard's summary in one sentence."""
    def count(number: int, what: str) -> str:
        return f"{number:,} {what}{'' if number == 1 else 's'}"

    parts = [f"{model}: {count(summary['steps'], 'step')} went through"
             + (f" ({summary['skipped_by_scaler']:,} skipped by the scaler)" if summary["skipped_by_scaler"] else "")]
    parts.append(f"{summary['stopped']:,} stopped" + (f" ({summary['retries']:,} tried again, {summary['dropped']:,} dropped)"
                                                      if summary["stopped"] else ""))
    if summary["roll_backs"]:
        parts.append(f"{count(summary['roll_backs'], 'roll-back')} over {count(summary['steps_rolled_back'], 'step')}")
    parts.append(f"{count(summary['mode_changes'], 'mode change')}, {100 * summary['outside_fast']:.1f} % of {summary['operators']:,} "
                 "operators' executions outside of FAST")
    text = ", ".join(parts)
    if summary["detached"]:
        text += f"; the guard ended before the run did: {summary['detached']}"
    if alone:
        text += f"; left alone: {', '.join(alone)}, with optimizers of their own"
    return text + (f"; decisions in {log}" if log and (summary["stopped"] or summary["mode_changes"]) else "")


if __name__ == "__main__":
    sys.exit(main())
