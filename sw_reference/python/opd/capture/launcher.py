"""`opd capture -- COMMAND`: runs a command with capture switched on in every Python process that it starts.

A folder with a sitecustomize.py stands first on PYTHONPATH; it waits until the process imports torch and then starts an
AutoCapture, with the options from the environment. So `python train.py`, `python -m package`, `torchrun ...` and shell scripts
work alike. Interpreters that ignore the environment (python -I, -E, -S) are not captured. The command keeps its standard
streams, signals and exit status; journals of killed processes become traces when it has ended.
"""
from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from opd.capture.errors import CaptureError
from opd.capture.journal import SUFFIX, recover
from opd.trace import TraceError

ENVIRONMENT = "OPD_CAPTURE"
SITE = Path(__file__).parent / "site"


def run(command: Sequence[str], path: Path, options: dict, model_class: str | None) -> int:
    """Runs the command; returns its exit status as a shell gives it (128 + n for signal n)."""
    command = list(command)
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    before = _traces(path)
    environment = dict(os.environ)
    environment[ENVIRONMENT] = json.dumps({"path": str(path.absolute()), "options": options, "model_class": model_class})
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
    for journal in _glob(path, SUFFIX):
        try:
            recover(journal)
        except (CaptureError, TraceError, OSError) as error:
            print(f"opd capture: {error}", file=sys.stderr)
    found = sorted(name for name, _ in _traces(path) - before)
    for trace in found:
        print(f"opd capture: {trace}", file=sys.stderr)
    if not found:
        print("opd capture: no trace: no process of the command trained a torch module with a torch optimizer", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _glob(path: Path, suffix: str = "") -> list[str]:
    """The files that captures of this path may have written: of one process, and of ranks."""
    stem = glob.escape(str(path.with_suffix("")))
    return [name for pattern in ("", ".rank*", ".killed-*") for name in glob.glob(f"{stem}{pattern}{path.suffix}{suffix}")]


def _traces(path: Path) -> set[tuple[str, int]]:
    return {(name, os.stat(name).st_mtime_ns) for name in _glob(path)}
