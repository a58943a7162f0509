"""Whether a localisation found the operator that FirstBad saw (localisation.py). Needs no PyTorch."""

from __future__ import annotations

import re


def verdict(row: dict) -> str:
    """"same" module as FirstBad saw; "inside": a function that the module that holds it, or the step, calls itself; "none" where neither found anything; else "other"."""
    expected, operator = row["expected"], row["operator"] or ""
    if expected is None:
        return "none" if row["kind"] == "none" else "other"
    names = {_plain(operator), _plain(row["where"] or "")}
    if _plain(expected) in names:
        return "same"
    module, separator, _ = _plain(operator).partition(":")
    if separator and (module == _plain(expected) or _plain(expected).startswith(f"{module}.") or module == "step"):
        return "inside" if module != _plain(expected) else "same"
    return "other"


def _plain(name: str) -> str:
    """Without the number of the call, and of a gradient the operator's name."""
    return re.sub(r"#\d+", "", re.sub(r":grad$", "", name))
