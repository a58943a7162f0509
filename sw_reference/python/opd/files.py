"""Files that are there as a whole or not at all. Twin of traces/src/whole_file.cpp."""
from __future__ import annotations

import errno
import fcntl
import os
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")
LOCK_SECONDS = 5.0  # for which another writer of the folder is waited for


class NotRegular(OSError):
    """A target that is a device, a pipe or a socket: a file would take its place."""

    def __init__(self, path: str):
        super().__init__(errno.EINVAL, "is not a regular file", path, None, path)


def target_of(file: str | os.PathLike) -> Path:
    """The file that a path stands for, behind its symbolic links; it need not be there. Raises NotRegular."""
    try:
        mode = os.stat(file).st_mode
    except OSError:
        pass  # not there, or out of reach: writing will tell
    else:
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise NotRegular(os.fspath(file))
    return Path(os.path.realpath(file))


def write_whole(file: str | os.PathLike, data: bytes) -> None:
    """Replaces the file by these bytes once they are on the disk; a failure leaves what was there. A symbolic link stays, what it
    leads to is replaced. Raises OSError, NotRegular for a device, a pipe or a socket."""
    write_all_whole({file: data})


def write_all_whole(files: Mapping[str | os.PathLike, bytes]) -> None:
    """The same of several files: none is replaced before all are on the disk, and those of two writers do not mix."""
    targets = {target_of(file): data for file, data in files.items()}
    for path in targets:
        if path.is_dir():
            raise _error(path, errno.EISDIR)
    # Named before they are made: whatever ends this, and when, all of them are removed.
    temporaries = {path: path.with_name(f"{path.name}.{secrets.token_hex(4)}") for path in targets}
    try:
        for path, data in targets.items():
            with _named(path, lambda: open(temporaries[path], "xb")) as stream:
                _named(path, lambda: _fill(stream, data))
        with _alone(list(targets)):
            for path in targets:
                _named(path, lambda: os.replace(temporaries[path], path))
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def _error(path: Path, number: int, words: str | None = None) -> OSError:
    """Of the kind that Python has for the number, in the system's words unless others are given."""
    return OSError(number, words or os.strerror(number), os.fspath(path), None, os.fspath(path))


def _fill(stream: IO[bytes], data: bytes) -> None:
    stream.write(data)
    stream.flush()
    os.fsync(stream.fileno())


def _named(path: Path, action: Callable[[], T]) -> T:
    """An error of a temporary file is one of the file that it becomes."""
    try:
        return action()
    except OSError as error:
        raise _error(path, error.errno, error.strerror) from None


@contextmanager
def _alone(targets: Sequence[Path]) -> Iterator[None]:
    """No signal comes between two of several files, and no other writer of the same folder. Raises OSError when another one has
    the folder for longer than the renaming of files takes: a replay has it for the whole of its run."""
    if len(targets) == 1:
        yield
        return
    folder = os.open(targets[0].parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder, targets[0].parent)
        with _signals_later():
            yield
    finally:
        os.close(folder)


def _lock(folder: int, path: Path) -> None:
    """May be ended by a signal."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise _error(path, errno.EBUSY, "another command is writing there") from None
        except OSError:  # a file system without locks has none to give
            return
        time.sleep(0.02)


@contextmanager
def _signals_later() -> Iterator[None]:
    """TERM, INT and HUP act when this has ended. Python runs handlers on the main thread, whichever thread was given the signal,
    so a mask would not do; on another thread they interrupt nothing here."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not None:  # one that C has put cannot be put back
                before[number] = signal.signal(number, lambda received, _: came.append(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
