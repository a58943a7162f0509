"""What becomes of the journals of runs that have ended."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opd.capture.errors import CaptureError, NoStepError
from opd.capture.journal import NOT_A_JOURNAL, SUFFIX, lock


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """While nobody writes the journal. Raises BusyError, or CaptureError for a file that cannot be read."""
    if path.exists() and not path.is_file():
        raise CaptureError(f"{path}: is no regular file; give the path of a capture's journal")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read ({error.strerror}); give the path of a capture's journal") from None
    try:
        lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def make_trace(path: Path, out: Path) -> None:
    """Turns a journal that the caller has locked into a trace and removes it. Raises CaptureError, TraceError, and ImportError
    where a library that traces need is not installed."""
    from opd.capture.reader import read_journal  # needs what a user's environment may lack
    read_journal(path).write(out)
    path.unlink()


def recover(path: str | os.PathLike, out: str | os.PathLike | None = None) -> Path:
    """Turns the journal of a killed run into a trace and removes it. out: path of the trace; by default the journal's own
    name without `.journal`. Returns the path of the trace. Raises BusyError when a running capture writes it, CaptureError, or
    TraceError when the trace cannot be written; then the journal stays as it is."""
    path = Path(path)
    if out is None:
        if path.suffix != SUFFIX:
            raise CaptureError(f"{path}: {NOT_A_JOURNAL}")
        out = path.with_suffix("")
    with _held(path):
        make_trace(path, Path(out))
    return Path(out)


def set_aside(path: Path) -> Path | None:
    """Recovers the journal a killed run left at `path`, if there is one, to a free name `STEM.killed-N.safetensors`, so that a
    restarted run loses nothing and may use its own path again. One that cannot be read is kept under that name with
    `.journal`. Returns the name; None when there is nothing to save. Raises BusyError when a running capture writes it."""
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise CaptureError(f"{path}: is no file; remove it, or give another path")
    trace = path.with_suffix("")
    number = 1
    while True:
        target = trace.with_name(f"{trace.stem}.killed-{number}{trace.suffix}")
        kept = Path(f"{target}{SUFFIX}")
        if not (os.path.lexists(target) or os.path.lexists(kept)):
            break
        number += 1
    with _held(path):
        try:
            make_trace(path, target)
            return target
        except NoStepError:
            path.unlink()
            return None
        except (CaptureError, ImportError, ValueError):  # a TraceError is a ValueError
            path.rename(kept)
            return kept
