"""Files that are there as a whole or not at all. Twin of traces/src/whole_file.cpp."""
from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


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
    """The same of several files: none is replaced before all are on the disk."""
    targets = {target_of(file): data for file, data in files.items()}
    temporaries = {}
    try:
        for path, data in targets.items():
            descriptor, temporaries[path] = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(stream.fileno(), 0o666 & ~mask)  # mkstemp gives 0600; this is what open() would have given it
                os.fsync(stream.fileno())
        for path in targets:
            os.replace(temporaries[path], path)
            del temporaries[path]
    finally:
        for temporary in temporaries.values():
            os.unlink(temporary)
