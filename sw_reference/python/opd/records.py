"""Records of the device as arrays (docs/formats.md "OpRecord")."""
from __future__ import annotations

import numpy as np

from opd.registers import Format
from opd.trace import FORMATS

RECORD = np.dtype([("seq", "<u4"), ("step", "<u4"), ("op", "<u2"), ("format", "u1"), ("mode", "u1"), ("max_mag", "<u4"),
                   ("nonfinite_count", "<u4"), ("first_nonfinite", "<u4"), ("saturated_count", "<u4"), ("flags", "<u2"),
                   ("risk", "u1"), ("cause", "u1")])


def magnitudes(max_mag: np.ndarray, format_code: np.ndarray) -> np.ndarray:
    """Values of magnitudes given as bits: uint32 [N] and format codes [N] -> float32 [N], exact for every format."""
    values = np.full(max_mag.shape, np.nan, np.float32)
    for code in np.flatnonzero(np.bincount(format_code)):
        chosen = format_code == code
        dtype = FORMATS[Format(code).name].numpy
        bits = max_mag[chosen].astype(f"<u{dtype.itemsize}")
        values[chosen] = bits.view(dtype).astype(np.float32)
    return values
