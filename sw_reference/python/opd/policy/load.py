"""Policies from files."""
from __future__ import annotations

import hashlib
import os
import sys
import types
from pathlib import Path
from typing import NamedTuple

from opd.policy.base import Policy
from opd.policy.errors import PolicyError, class_line, line_of, told
from opd.texts import suggestion


class Source(NamedTuple):
    """A policy's class, the file that it was read from as it was named, and the SHA-256 of the bytes that ran."""
    cls: type[Policy]
    file: str
    sha256: str


def load(where: str | os.PathLike) -> Source:
    """Runs the file of FILE or FILE:CLASS and finds the policy in it. Nothing is written beside the file. Raises PolicyError."""
    file, wanted = _split(os.fspath(where))
    data = _read(file)
    module = types.ModuleType(f"opd_policy_{Path(file).stem}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses look there
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # modules beside it
    try:
        exec(compile(data, file, "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PolicyError(f"{file}:{line_of(error, file, 1)}", told(error)) from None
    found = {name: value for name, value in vars(module).items()
             if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == module.__name__}
    return Source(_chosen(file, found, wanted), file, hashlib.sha256(data).hexdigest())


def _split(where: str) -> tuple[str, str | None]:
    """FILE:CLASS, unless a file has the whole name."""
    file, colon, name = where.rpartition(":")
    if colon and not os.path.exists(where) and name.isidentifier():
        return file, name
    return where, None


def _read(file: str) -> bytes:
    if os.path.isdir(file):
        raise PolicyError(file, "is a folder; name the file of a policy")
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise PolicyError(file, f"cannot be read ({error.strerror}); name the file of a policy") from None
    except ValueError as error:  # a zero byte in the name
        raise PolicyError(file, f"cannot be read ({error}); name the file of a policy") from None


def _chosen(file: str, found: dict[str, type[Policy]], wanted: str | None) -> type[Policy]:
    if wanted is not None:
        if wanted in found:
            return found[wanted]
        known = f"the policies there are {', '.join(found)}" if found else "there is none; write a class of opd.policy.Policy"
        raise PolicyError(file, f"has no policy {wanted}; {suggestion(wanted, found, known)}")
    if not found:
        raise PolicyError(file, "has no class of opd.policy.Policy; write one, see docs/policies.md")
    classes = {id(cls): cls for cls in found.values()}  # a second name of a class is no second policy
    if len(classes) > 1:
        first = next(iter(found))
        raise PolicyError(f"{file}:{class_line(file, first)}", f"has the policies {', '.join(found)}; name one as {file}:{first}")
    return next(iter(classes.values()))
