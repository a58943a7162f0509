"""bundle.json: what has to be in it, checked before anything else of a bundle is read."""
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from opd.localise.errors import LocaliseError
from opd.strict_json import JsonFault, parse_json
from opd.texts import quoted

VERSION = 2
VERSIONS = (1, VERSION)  # that are read; 1 has neither optimizers, nor a scaler, a history or a note
INFO, TENSORS, MODULE, MAIN, STATE, HISTORY = ("bundle.json", "tensors.safetensors", "module.pickle", "main.py", "state.safetensors",
                                               "history.safetensors")
DTYPES = ("float16", "bfloat16")


def read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise LocaliseError(f"{file}: cannot be read ({error.strerror}); a bundle is the whole folder that write_bundle wrote") from None


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_rates(value) -> bool:
    return isinstance(value, list) and all(isinstance(g, dict) and set(g) == {"lr", "parameters"} and _is_number(g["lr"])
                                           and isinstance(g["parameters"], list)
                                           and all(isinstance(name, str) for name in g["parameters"]) for g in value)


def _is_seen(value) -> bool:
    return value is None or (isinstance(value, dict) and set(value) == {"operator", "nonfinite", "largest"}
                             and isinstance(value["operator"], str)
                             and type(value["nonfinite"]) is int and (value["largest"] is None or _is_number(value["largest"])))


def _is_random(value) -> bool:
    return (isinstance(value, dict) and set(value) == {"python_version", "python_gauss", "numpy"} and isinstance(value["numpy"], list)
            and len(value["numpy"]) == 4
            and value["numpy"][0] == "MT19937")


# Field -> what it has to be, and whether a value is.
_FIELDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "step": ("a whole number", lambda v: type(v) is int),
    "loss_scale": ("a number above 0", lambda v: _is_number(v) and v > 0),
    "autocast": ('null or {"device", "dtype"}, dtype float16 or bfloat16',
                 lambda v: v is None or (isinstance(v, dict) and set(v) == {"device", "dtype"} and isinstance(v["device"], str) and v["dtype"] in DTYPES)),
    "seen": ('null or {"operator", "nonfinite", "largest"}', _is_seen),
    "rates": ('a list of {"lr", "parameters"}', _is_rates),
    "training": ("true or false", lambda v: isinstance(v, bool)),
    "random": ("the random states", _is_random),
    "versions": ("an object of texts", lambda v: isinstance(v, dict) and all(isinstance(text, str) for text in v.values())),
    "search_path": ("a list of folders", lambda v: isinstance(v, list) and all(isinstance(text, str) for text in v)),
    "optimizers": ('a list of {"class", "state"}', lambda v: isinstance(v, list) and all(
        isinstance(entry, dict) and set(entry) == {"class", "state"} and isinstance(entry["class"], str) for entry in v)),
    "scaler": ("null or a state", lambda v: v is None or isinstance(v, dict)),
    "note": ("a text", lambda v: isinstance(v, str)),
    "sha256": (f"the digests of {TENSORS}, {MODULE} and, where there are any, {MAIN}, {STATE} and {HISTORY}",
               lambda v: isinstance(v, dict) and {TENSORS, MODULE} <= set(v) <= {TENSORS, MODULE, MAIN, STATE, HISTORY}
               and all(isinstance(text, str) for text in v.values())),
}


def read_info(path: Path) -> dict:
    file = path / INFO
    try:
        info = parse_json(read_bytes(file).decode())
    except (JsonFault, UnicodeDecodeError) as fault:
        raise LocaliseError(f"{file}: {fault if isinstance(fault, JsonFault) else 'not UTF-8'}; write the bundle again") from None
    if not isinstance(info, dict) or "bundle" not in info:
        raise LocaliseError(f"{file}: bundle, its version, is missing: this is no incident bundle; give the folder that write_bundle "
                            "wrote")
    if info["bundle"] not in VERSIONS or type(info["bundle"]) is not int:
        raise LocaliseError(f"{file}: bundle is {quoted(str(info['bundle']))}, this opd reads versions {' and '.join(map(str, VERSIONS))}; use the "
                            "opd that wrote it")
    if info["bundle"] == 1:
        info |= {"optimizers": [], "scaler": None, "note": ""}
    for name, (what, is_right) in _FIELDS.items():
        if name not in info:
            raise LocaliseError(f"{file}: {name} is missing; write the bundle again")
        if not is_right(info[name]):
            raise LocaliseError(f"{file}: {name} is not {what}; write the bundle again")
    return info
