"""The folder of a corpus: MANIFEST.json says where each trace comes from, labels.toml what it is (docs/evaluation.md)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tomllib
from pathlib import Path

from labels import Class
from opd.evaluate.corpus import FAULTS, LABELS_FILE, label_table
from opd.files import write_whole
from opd.trace import Trace
from scenario import InputError

MANIFEST = "MANIFEST.json"
HEADING = """\
# Written by traces/training/train.py. Classes are computed from the traces (traces/training/labels.py) or follow from what was
# done to the run; the split is that of its scenario. docs/evaluation.md says what the fields mean.
"""


def check(folder: Path) -> None:
    """Raises InputError when the files of a folder cannot be added to."""
    _read(folder / MANIFEST, json.loads)
    _read(folder / LABELS_FILE, _labels)


def record(folder: Path, file: str, trace: Trace, found: Class, split: str) -> None:
    """Enters one trace into both files. Each is replaced as a whole; several processes may record at once.

    Raises InputError, OSError."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = _read(folder / MANIFEST, json.loads)
        manifest[file] = _manifest_entry(folder / file, trace)
        write_whole(folder / MANIFEST, _manifest_text(manifest).encode())
        runs = _read(folder / LABELS_FILE, _labels)
        runs[trace.name] = label_fields(found, split)
        tables = [label_table(name, runs[name]) for name in sorted(runs)]
        write_whole(folder / LABELS_FILE, "\n".join([HEADING, *tables]).encode())
    finally:
        os.close(lock)


def label_fields(found: Class, split: str) -> dict[str, str | int | None]:
    """Fields of a run's table in labels.toml. A fault that nothing went wrong by is said to be without an incident."""
    none = found.name in FAULTS and found.first_bad_op is None
    return {"class": found.name, "split": split, "incident": "none" if none else None, "first_bad_step": found.first_bad_step,
            "first_bad_op": found.first_bad_op, "event_step": found.event_step, "decided": found.decided}


def manifest_of(trace: Trace) -> dict:
    """The trace's own manifest, without its longest lists: expressions of probes, and the steps in which some were absent."""
    kept = {key: value for key, value in trace.manifest.items() if key != "absent"}
    if "capture" in kept:
        kept["capture"] = {key: value for key, value in kept["capture"].items() if key != "probes"}
    return kept


def _manifest_entry(path: Path, trace: Trace) -> dict:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "label": trace.label, "steps": len(trace.step),
            "probes": len(trace.probes), "raw_steps": [int(trace.raw_step[0]), int(trace.raw_step[-1])] if trace.raw else [],
            **({} if trace.operand_step is None else {"operand_steps": trace.operand_step.tolist()}), **manifest_of(trace)}


def _manifest_text(manifest: dict[str, dict]) -> str:
    """JSON with one line for each field of a run."""
    runs = []
    for file, entry in sorted(manifest.items()):
        fields = [f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(entry.items())]
        runs.append(f" {json.dumps(file)}: {{\n" + ",\n".join(fields) + "\n }")
    return "{\n" + ",\n".join(runs) + "\n}\n"


def _read(path: Path, parse) -> dict:
    try:
        content = parse(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{path}: is damaged; correct or remove it, and run again")
    return content


def _labels(text: str) -> dict:
    """The tables [runs.NAME]. Raises ValueError."""
    runs = tomllib.loads(text).get("runs", {})
    if not isinstance(runs, dict) or not all(isinstance(entry, dict) for entry in runs.values()):
        raise ValueError("runs holds something that is no table")
    return runs
