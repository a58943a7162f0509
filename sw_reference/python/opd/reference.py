"""What the build makes for Python: the C++ reference (opd._reference, target opd_python), and the simulated devices (opd._device, target
opd_device_python)."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class ReferenceMissing(RuntimeError):
    """A C++ module has not been built for Python."""


@cache
def module():
    """opd._reference from the build folder (OPD_BUILD, default `build` of the repository). Raises ReferenceMissing."""
    return _built("_reference", "the C++ reference is not built for this Python; run scripts/setup")


@cache
def simulated_devices():
    """opd._device from there. Raises ReferenceMissing."""
    return _built("_device", "the SystemC and RTL devices are not built for this Python; run scripts/setup, or `cmake --build build "
                             "--target opd_device_python`")


def _built(name: str, lacking: str):
    build = Path(os.environ.get("OPD_BUILD", ROOT / "build"))
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = build / "python" / "opd" / f"{name}{suffix}"
        if file.exists():
            spec = importlib.util.spec_from_file_location(f"opd.{name}", file)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            return loaded
    raise ReferenceMissing(f"{build}/python/opd/{name}: {lacking}, or name another build folder in OPD_BUILD")
