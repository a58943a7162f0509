"""Files that are there as a whole or not at all."""
from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(file: str | os.PathLike, data: bytes) -> None:
    """Replaces the file by these bytes once they are on the disk; a failure leaves what was there. Raises OSError."""
    path, temporary = Path(file), None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(stream.fileno(), 0o666 & ~mask)  # mkstemp gives 0600; this is what open() would have given it
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        temporary = None
    finally:
        if temporary is not None:
            os.unlink(temporary)
