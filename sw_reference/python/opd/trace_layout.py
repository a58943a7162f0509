"""Names and limits of a trace file (docs/formats.md "Trace"), for code that must do without the libraries that opd.trace reads
and writes it with: a capture in a user's environment."""
from __future__ import annotations

LABELS = ("healthy", "stressed", "near-limit", "gradual", "sudden", "saturating", "injected", "data", "unknown")
KINDS = ("activation", "weight", "gradient", "optimizer", "collective")
MAX_PROBES = 65536  # op ids are 16 bits

COUNTS = ("nonfinite", "saturated", "subnormal", "zero")   # I64 [S, P]
VALUES = ("max_abs", "min_abs", "mean", "var")             # F32 [S, P]
SERIES = ("loss", "grad_norm", "lr", "loss_scale")         # F32 [S]
