"""What a file is that is no trace. Twin of traces/src/file_kind.cpp: the same kinds, in the same words."""
from __future__ import annotations

from typing import NamedTuple

LOOKED = 512  # bytes that are looked at
_HEADER = 8   # where the header of a safetensors file begins

_GIVE = "give a trace (docs/formats.md); opd import makes traces of what other tools write"
_UNPACK = "unpack it, and give the trace that is in it"
_CONVERT = "capture a trace (docs/capture.md); opd import reads tensors of .npz and .safetensors files"


class FileKind(NamedTuple):
    """What a file is, and what to do with it, as error messages say it."""
    what: str  # "gzip data"; empty when nothing is recognised
    remedy: str


_SIGNATURES = (  # offset, bytes, kind
    (0, b"\x1f\x8b", FileKind("gzip data", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", FileKind("Zstandard data", _UNPACK)),
    (0, b"\xfd7zXZ\0", FileKind("xz data", _UNPACK)),
    (0, b"BZh", FileKind("bzip2 data", _UNPACK)),
    (257, b"ustar", FileKind("a tar archive", _UNPACK)),
    (0, b"opdj", FileKind("the journal of a capture", "opd capture --recover makes a trace of it")),
    (0, b"\x93NUMPY", FileKind("a NumPy array (.npy)", _CONVERT)),
    (0, b"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file", _CONVERT)),
    *((0, bytes((0x80, protocol)), FileKind("a Python pickle", _CONVERT)) for protocol in (2, 3, 4, 5)),
    (0, b"PAR1", FileKind("a Parquet file", _GIVE)),
    (0, b"SQLite format 3\0", FileKind("an SQLite database", _GIVE)),
    (0, b"\xff\xfe", FileKind("UTF-16 text", _GIVE)),
    (0, b"\xfe\xff", FileKind("UTF-16 text", _GIVE)),
)
# Control characters but those of texts (tab, the line ends, form feed, escape for colours), and bytes that UTF-8 never has.
_NO_TEXT = frozenset({*range(0x20), 0x7F, 0xC0, 0xC1, *range(0xF5, 0x100)} - {*range(0x09, 0x0E), 0x1B})


def _is_text(data: bytes) -> bool:
    return bool(data) and _NO_TEXT.isdisjoint(data)


def _zip_kind(head: bytes) -> FileKind:
    """An archive of the kind that its first member's name tells."""
    if len(head) > 30:
        name = head[30:30 + int.from_bytes(head[26:28], "little")]
        if name.endswith(b".npy"):
            return FileKind("a NumPy archive (.npz)", _CONVERT)
        if name.endswith(b"data.pkl"):
            return FileKind("a PyTorch checkpoint", _CONVERT)
    return FileKind("a zip archive", _UNPACK)


def _text_kind(head: bytes) -> FileKind:
    small = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\f\v")[:32].lower()
    if small.startswith((b"<!doctype html", b"<html")):
        return FileKind("an HTML page", "download the file itself")
    if small.startswith(b"version https://git-lfs"):
        return FileKind("a Git LFS pointer", "fetch the file itself with git lfs pull")
    return FileKind("JSON text" if small.startswith((b"{", b"[")) else "text", _GIVE)


def file_kind(data) -> FileKind:
    """The kind of a file of another format by its first bytes. data: bytes or a view of them."""
    head = bytes(data[:LOOKED])
    for offset, signature, kind in _SIGNATURES:
        if head[offset:].startswith(signature):
            return kind
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(head)
    if b"brain.Event:" in head[:64]:
        return FileKind("a TensorBoard event file", _GIVE)
    return _text_kind(head) if _is_text(head) else FileKind("", _GIVE)


def is_foreign(data) -> bool:
    """Whether the bytes can be no safetensors file, not even a damaged one: their header does not begin with "{", or what should
    be its length is text."""
    return _is_text(bytes(data[:_HEADER])) or bytes(data[_HEADER:_HEADER + 1]) not in (b"", b"{")
