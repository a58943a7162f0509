"""The folder of a corpus: MANIFEST.json says where each trace comes from, labels.toml what it is (docs/evaluation.md)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tomllib
from pathlib import Path

from labels import Class
from opd.trace import Trace
from scenario import InputError

MANIFEST = "MANIFEST.json"
LABELS = "labels.toml"
HEADING = """\
# Written by traces/training/train.py. Classes are computed from the traces (traces/training/labels.py) or follow from what was
# done to the run; the split is that of its scenario. docs/evaluation.md says what the fields mean.
"""


def check(folder: Path) -> None:
    """Raises InputError when the files of a folder cannot be added to."""
    _read(folder / MANIFEST, json.loads)
    _read(folder / LABELS, _labels)


def record(folder: Path, file: str, trace: Trace, found: Class, split: str) -> None:
    """Enters one trace into both files. Each is replaced as a whole; several processes may record at once.

    Raises InputError, OSError."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = _read(folder / MANIFEST, json.loads)
        manifest[file] = _manifest_entry(folder / file, trace)
        _write(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        runs = _read(folder / LABELS, _labels)
        runs[trace.name] = {"class": found.name, "split": split, "first_bad_step": found.first_bad_step,
                            "first_bad_op": found.first_bad_op, "event_step": found.event_step, "decided": found.decided}
        _write(folder / LABELS, HEADING + "".join(_table(name, runs[name]) for name in sorted(runs)))
    finally:
        os.close(lock)


def _manifest_entry(path: Path, trace: Trace) -> dict:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "label": trace.label, "steps": len(trace.step),
            "probes": len(trace.probes), "raw_steps": [int(trace.raw_step[0]), int(trace.raw_step[-1])] if trace.raw else [],
            **trace.manifest}


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


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _table(name: str, label: dict) -> str:
    """One entry of labels.toml; a JSON string is a TOML basic string."""
    return f"\n[runs.{json.dumps(name)}]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in label.items() if value is not None)
