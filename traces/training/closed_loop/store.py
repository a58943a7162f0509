"""The rows of live runs, one JSON object a line, keyed by what a row depends on: a killed table goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from functools import cache
from pathlib import Path

import torch
from closed_loop.runs import TRACES, TRAINING, Run
from scenario import InputError

GUARD = TRACES.parent / "sw_reference" / "python" / "opd"


def _digest(files) -> str:
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


@cache
def sources(arm: str) -> str:
    """Hash of the sources that a row of an arm depends on: those of the workloads and of the arms; of guard and capture as well."""
    own = TRAINING / "closed_loop"
    files = [*TRAINING.glob("*.py"), *(TRAINING / "workloads").glob("*.py"), *(own / f"{name}.py" for name in ("arms", "live", "subject", "zclip"))]
    if arm == "localise":
        files += [own / "localisation.py", *(GUARD / "localise").glob("*.py")]
    if arm == "guard":
        files += [own / "guarded.py", *(file for part in ("guard", "capture") for file in (GUARD / part).glob("*.py"))]
    return _digest(files)[:24]


def key_of(run: Run, arm: str, device: str | None) -> str:
    """Of a run, an arm and their settings."""
    text = repr((run.name, arm, device, run.batches, dataclasses.asdict(run.scenario), torch.__version__))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


KEPT = ("run", "label", "split", "arm", "incident", "batches", "finished", "why", "at", "first_bad_loss", "lost", "tried", "start_loss", "final_loss", "ms")
OF_GUARD = ("outside_fast", "beyond_format", "stopped", "retries", "dropped", "roll_backs", "skipped_by_scaler", "mode_changes", "carried", "detached",
            "first_stop", "first_downshift", "stopped_by")


def read_rows(path: Path) -> list[dict]:
    """Of a file of rows, the last of each key; none where there is no file. Raises InputError."""
    return list(Store(path).rows.values()) if path.exists() else []


def write_rows(path: Path, rows: list[dict]) -> None:
    """What the tables need of each row, in order of run and arm."""
    kept = [{**{key: row[key] for key in KEPT}, **({"guard": {key: row["guard"].get(key) for key in OF_GUARD}} if "guard" in row else {})}
            for row in sorted(rows, key=lambda row: (row["run"], row["arm"]))]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")


class Store:
    """A file of rows, of which the last one of a key counts. A last line that was cut off is dropped; any other damage raises
    InputError."""

    def __init__(self, path: Path):
        self._path = path
        self.rows: dict[str, dict] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                self.rows[row["key"]] = row
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path}: line {number}: is no row; remove the line, or the file") from None
        if lines[-1]:
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size - len(lines[-1]))

    def has(self, key: str, arm: str, any_sources: bool) -> bool:
        """Whether the row is there, made by the sources as they are."""
        return key in self.rows and (any_sources or self.rows[key]["sources"] == sources(arm))

    def add(self, key: str, row: dict) -> None:
        row = {"key": key, "sources": sources(row["arm"]), **row}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[key] = row
