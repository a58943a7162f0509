"""Runs a command with a part of opd switched on in every Python process that it starts.

A folder with a sitecustomize.py stands first on PYTHONPATH; it waits until the process imports torch and then calls `start` of
`opd.COMMAND.auto`, with what was asked for from the environment. So `python train.py`, `python -m package`, `torchrun ...` and shell
scripts work alike. Interpreters that ignore the environment (python -I, -E, -S) are left out. The command keeps its standard streams,
signals and exit status. Its processes tell what became of them (opd.unedited.events).
"""
from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from opd.texts import printable
from opd.unedited import events

SITE = Path(__file__).parent / "site"
BAD_INPUT = 2


def run(name: str, command: Sequence[str], asked: Mapping, needed: Sequence[str]) -> tuple[int, list[dict]]:
    """Runs the command; returns its exit status as a shell gives it (128 + n for signal n), and what its processes told. name: of the
    command of opd; asked: what its `start` gets; needed: packages that it takes in the environment of the command. Raises OSError
    when the command cannot be run."""
    command = list(command)
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    _check_interpreter(name, command, needed)
    folder = Path(tempfile.mkdtemp(prefix=f"opd-{name}-"))
    try:
        settings = {**asked, "command": name, "folder": str(folder), "launch": uuid.uuid4().hex}
        status = _run(command, {events.ENVIRONMENT: json.dumps(settings)})
        return status, events.told(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def say(name: str, lines: Sequence[str]) -> None:
    """The last lines of a command, on standard error."""
    for line in lines:
        print(printable(f"opd {name}: {line}"), file=sys.stderr)


def _check_interpreter(name: str, command: Sequence[str], needed: Sequence[str]) -> None:
    """Says before the run what the interpreter of the command lacks; where that is not a Python, each process says it itself."""
    program = shutil.which(command[0])
    if program is None or not Path(program).name.startswith("python"):
        return
    script = f"from importlib.util import find_spec; print(*(name for name in {tuple(needed)} if find_spec(name) is None))"
    found = subprocess.run([program, "-c", script], capture_output=True, text=True, check=False)
    missing = found.stdout.split()
    if found.returncode == 0 and missing:
        print(f"opd {name}: {program} lacks {', '.join(missing)}: the command runs without a {name}; to have one: {program} -m pip "
              f"install {' '.join(missing)}", file=sys.stderr)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    environment = {**os.environ, **variables}
    paths = [str(SITE), str(Path(__file__).resolve().parents[2])]  # sitecustomize.py, and the package opd
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    process = subprocess.Popen(command, env=environment)
    handlers = {number: signal.signal(number, lambda received, _: process.send_signal(received))
                for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both
    try:
        status = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
