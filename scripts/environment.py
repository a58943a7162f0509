"""Where the Python scripts beside this file run: in the repository's virtual environment, with the package opd on the path."""
from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
if str(ROOT / "sw_reference" / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "sw_reference" / "python"))


def enter(*packages: str) -> None:
    """Goes on when this Python has the packages; else starts the script again with the one of .venv, from whatever directory it was
    called. Ends it with exit status 2 and the remedy when that has them neither, or is not there."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return
    script = Path(sys.argv[0])
    if script.resolve().parent != SCRIPTS:  # imported, by a test for instance
        raise ModuleNotFoundError(f"{', '.join(missing)}: not installed; scripts/setup --for test installs it")
    if PYTHON.is_file() and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    print(f"{script.name}: needs {', '.join(missing)}; scripts/setup --for test installs what the scripts need", file=sys.stderr)
    sys.exit(2)
