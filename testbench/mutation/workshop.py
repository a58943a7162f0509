"""A private copy of a component, in which one mutant after the other is built and tested."""
from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import plan, python_source
from .mutant import Mutant

PREFIX = "opd-mutate-"
KILLED, TIMEOUT, SURVIVED, INVALID, EQUIVALENT = "killed", "timeout", "survived", "invalid", "equivalent"
BUILD_SECONDS = 600
YOUNG = 60  # seconds


class WorkshopError(Exception):
    """The sources as they are do not build, or fail their tests."""


@dataclass(frozen=True)
class Verdict:
    status: str
    by: str  # the command that told, or the proof
    seconds: float


class Workshop:
    """Context manager: a folder that is gone afterwards. One that a killed run left goes when the next one begins."""

    def __init__(self, root: Path, component: plan.Component):
        self.root, self.component = root, component

    def __enter__(self) -> Workshop:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = open(self.folder / ".lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.copy = self.folder / "copy"
        for file in plan.files_of(self.root, [*self.component.sources, *self.component.needs], f"component.{self.component.name}"):
            (self.copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / file, self.copy / file)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()

    def run(self, command: list[str], seconds: float) -> int | None:
        """Exit status; None when it ran past its time. All that it started ends with it."""
        words = [word.replace("{root}", str(self.root)) for word in command]
        extra = {name: value.replace("{root}", str(self.root)) for name, value in self.component.environment.items()}
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CCACHE_BASEDIR": str(self.copy), "CCACHE_NOHASHDIR": "1"} | extra
        process = subprocess.Popen(words, cwd=self.copy, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def tell(self) -> tuple[str, str]:
        """Builds and tests the copy as it is now: status and the command that told."""
        for command in self.component.build:
            if self.run(command, BUILD_SECONDS) != 0:
                return INVALID, command[0]
        for command in self.component.tests:
            status = self.run(command, self.component.seconds)
            if status is None:
                return TIMEOUT, " ".join(command)
            if status != 0:
                return KILLED, " ".join(command)
        return SURVIVED, ""

    def baseline(self) -> float:
        """Seconds of the sources as they are. Raises WorkshopError when they do not pass."""
        start = time.monotonic()
        status, by = self.tell()
        if status != SURVIVED:
            raise WorkshopError(f"component.{self.component.name}: the sources as they are do not pass: {by} ({status}); "
                                "mend them, or the commands in testbench/mutation.toml, first")
        return time.monotonic() - start

    def judge(self, mutant: Mutant) -> Verdict:
        start = time.monotonic()
        place = self.copy / mutant.file
        original = place.read_text(encoding="utf-8")
        mutated = mutant.applied(original)
        try:
            if mutant.file.endswith(".py"):
                try:
                    if python_source.same_bytecode(original, mutated):
                        return Verdict(EQUIVALENT, "identical bytecode", time.monotonic() - start)
                except SyntaxError:
                    return Verdict(INVALID, "compile", time.monotonic() - start)
            before = self.object_of(mutant.file) if self.component.object and mutant.file.endswith(".cpp") else None
            place.write_text(mutated, encoding="utf-8")
            if before is not None and self.object_of(mutant.file) == before:
                return Verdict(EQUIVALENT, "identical object code", time.monotonic() - start)
            status, by = self.tell()
            return Verdict(status, by, time.monotonic() - start)
        finally:
            place.write_text(original, encoding="utf-8")

    def object_of(self, file: str) -> bytes | None:
        """The optimised object code of a file of the copy; None when it does not compile."""
        out = self.copy / "proof.o"
        out.unlink(missing_ok=True)
        command = [word.replace("{file}", file).replace("{out}", out.name) for word in self.component.object]
        return out.read_bytes() if self.run(command, BUILD_SECONDS) == 0 else None


def sweep() -> None:
    """Takes away what killed runs left: folders of ours whose lock nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            if time.time() - folder.stat().st_mtime < YOUNG:  # may not have locked it yet
                continue
            with open(folder / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # held, or another user's
