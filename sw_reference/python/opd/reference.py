"""The C++ reference, built for Python (module opd._reference, target opd_python)."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class ReferenceMissing(RuntimeError):
    """The C++ reference has not been built for Python."""


@cache
def module():
    """opd._reference from the build folder (OPD_BUILD, default `build` of the repository). Raises ReferenceMissing."""
    build = Path(os.environ.get("OPD_BUILD", ROOT / "build"))
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = build / "python" / "opd" / f"_reference{suffix}"
        if file.exists():
            spec = importlib.util.spec_from_file_location("opd._reference", file)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            return loaded
    raise ReferenceMissing(f"{build}/python/opd/_reference: the C++ reference is not built for this Python; run scripts/setup, "
                           "or name another build folder in OPD_BUILD")
