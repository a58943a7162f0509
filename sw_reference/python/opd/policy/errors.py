"""Errors of policies: one line with the policy's file and line, never a traceback."""
from __future__ import annotations

import ast
import os
import sys
from types import CodeType

from opd.texts import printable


class PolicyError(Exception):
    """A policy that cannot be run, or has failed. The text is "FILE:LINE: what is wrong; remedy", without a line where there is none."""

    def __init__(self, where: str, wrong: str):
        super().__init__(printable(f"{where}: {' '.join(wrong.split())}"))


def told(error: BaseException) -> str:
    """"ZeroDivisionError: division by zero", whatever the error's own text does."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(error: BaseException, file: str, otherwise: int) -> int:
    """The line of a file that an error came from: the innermost of its frames that is there, a syntax error's own, or another."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return error.lineno
    line, traceback = otherwise, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def class_line(file: str, name: str) -> int:
    """The line of a class in a file; 1 where it cannot be told."""
    try:
        with open(file, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return 1
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), 1)


def code_of(cls: type, method: str) -> CodeType | None:
    """The code of a method that is written in Python."""
    return getattr(getattr(cls, method, None), "__code__", None)


def file_of(cls: type, methods: tuple[str, ...]) -> str:
    """The file that a class is written in: that of its own methods, else of its module."""
    own = [code_of(cls, name) for name in methods if name in vars(cls)]
    if own and own[0] is not None:
        return own[0].co_filename
    return os.fspath(getattr(sys.modules.get(cls.__module__), "__file__", None) or f"<{cls.__module__}>")
