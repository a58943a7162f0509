"""Measurements that are committed: docs/measurements/NAME.json. scripts/measure takes them, scripts/measured_tables writes them
into the pages. Each has "date" (YYYY-MM-DD), "machine", "software" and "commands", beside the figures of its kind."""
from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "measurements"
PYTHON = str(environment.PYTHON if environment.PYTHON.is_file() else sys.executable)  # has the packages that are measured


def load(name: str, folder: Path = FOLDER) -> dict:
    """A committed measurement. Ends the program when it is missing or no measurement."""
    file = folder / f"{name}.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{file}: cannot be read ({error}); run scripts/measure {name}")
    lacking = [key for key in ("date", "machine", "software", "commands") if not content.get(key)]
    if lacking:
        sys.exit(f"{file}: {', '.join(lacking)}: missing; run scripts/measure {name}")
    return content


def save(name: str, commands: list[str], figures: dict, folder: Path = FOLDER) -> Path:
    """Writes a measurement of today, on this machine. Returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    content = {"date": datetime.date.today().isoformat(), "machine": machine(), "software": software(), "commands": commands, **figures}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def computed(trace: dict) -> dict:
    """Of a trace of summary.json, replayed with --compute, what the pages tell."""
    operators = [{"probe": o["probe"], "kernel": o["kernel"], "format": o["format"], "steps": len(o["steps"]),
                  "overflows": {mode: figures["overflows"] for mode, figures in o["modes"].items()}, "overflows_as_issued": o["overflows"],
                  "first_overflow_step": o["modes"]["FAST"]["first_overflow_step"], "lead_steps": o["lead_steps"],
                  "different": o["framework"]["different"], "different_wide": o["framework"]["different_wide"],
                  "elements": o["framework"]["elements"]} for o in trace["compute"]["operators"] if o["steps"]]
    return {"name": trace["name"], "operators": operators, "cost": trace["compute"]["cost"],
            "executions_compared": trace["compute"]["executions_compared"], "elements_compared": trace["compute"]["elements_compared"],
            "mismatches": trace["mismatches"]}


def overflows(summary: dict) -> dict:
    """Of a replay with --compute: by trace, at how many executions with operands an operator overflowed in FAST, STABLE and SAFE, and
    in the mode that it ran in."""
    found = {}
    for trace in summary["traces"]:
        operators = [o for o in trace["compute"]["operators"] if o["steps"]]
        in_mode = {mode: sum(o["modes"][mode]["overflows"] for o in operators) for mode in ("FAST", "STABLE", "SAFE")}
        issued = next(p for p in trace["compute"]["cost"]["policies"] if p["policy"] == "as issued")
        found[trace["name"]] = {"executions": sum(len(o["steps"]) for o in operators), "in_mode": in_mode,
                                "as_issued": sum(o["overflows"] for o in operators),
                                "throughput_lost_percent": issued["throughput_lost_percent"], "mismatches": trace["mismatches"]}
    return found


def machine() -> str:
    """Processor, cores and the widest vector instructions."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in words), "no AVX2")
    virtual = ", virtual machine" if "hypervisor" in words else ""
    return f"{model[1].strip() if model else 'unknown processor'}, {os.cpu_count()} cores, {vectors}{virtual}"


def software() -> str:
    """Versions that figures depend on."""
    system = re.search(r'^PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE)
    found = [system[1] if system else "unknown system"]
    for command, name in ((["g++", "-dumpfullversion"], "g++"), (["verilator", "--version"], "Verilator"),
                          ([PYTHON, "-c", "from importlib.metadata import version; print(version('torch'))"], "torch")):
        try:
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        found.append(f"{name} {re.search(r'[0-9][0-9.]*', told)[0]}")
    return ", ".join(found)


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over names below the repository and contents of SystemVerilog or C++ files, in order of name; what `//` begins is
    left out, as no figure depends on it."""
    total = hashlib.sha256()
    for file in sorted(files):
        lines = [line.partition("//")[0].rstrip() for line in file.read_text().splitlines()]
        total.update("\0".join([str(file.relative_to(ROOT)), str(len(lines)), *lines, ""]).encode())
    return total.hexdigest()
