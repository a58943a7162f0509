"""The script that a bundle takes along, where something in its pickle is defined in it."""
from __future__ import annotations

import ast
import os
import sys

DEFINITIONS_NOTE = ("The script has no `if __name__ == \"__main__\"`: main.py holds its imports, functions, classes and constants alone, because to run the "
                    "whole of it would be to train.")


_known: list[str] = []


def main_script() -> str | None:
    """The file of __main__, None without one. Python forgets it when the script has run: whoever may write a bundle after that asks before."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is not None and os.path.isfile(file):
        _known[:] = [os.path.abspath(file)]
    return _known[0] if _known else None


def has_guard(tree: ast.Module) -> bool:
    """Whether something at its top level stands behind a look at __name__."""
    return any(isinstance(node, ast.If) and any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test))
               for node in tree.body)


def definitions(source: bytes) -> tuple[bytes, str]:
    """What main.py is to hold, and a sentence about it: the script itself and "", or what defines without training and DEFINITIONS_NOTE."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source, ""
    if has_guard(tree):
        return source, ""
    kept = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            or _is_constant(node)]
    return (ast.unparse(ast.Module(kept, [])) + "\n").encode(), DEFINITIONS_NOTE


def _is_constant(node: ast.stmt) -> bool:
    """NAME = a literal."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return all(isinstance(name, (ast.Name, ast.Tuple)) for name in targets)
