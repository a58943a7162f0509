"""Names and limits of a trace file (docs/formats.md "Trace"), for code that must do without the libraries that opd.trace reads
and writes it with: a capture in a user's environment."""
from __future__ import annotations

from typing import NamedTuple

LABELS = ("healthy", "stressed", "near-limit", "gradual", "sudden", "saturating", "injected", "data", "unknown")
KINDS = ("activation", "weight", "gradient", "optimizer", "collective")
MAX_PROBES = 65536  # op ids are 16 bits

COUNTS = ("nonfinite", "saturated", "subnormal", "zero")   # I64 [S, P]
VALUES = ("max_abs", "min_abs", "mean", "var")             # F32 [S, P]
SERIES = ("loss", "grad_norm", "lr", "loss_scale")         # F32 [S]

MASK = "mask"  # the operand that has no format: bytes of 0 and 1


class Kernel(NamedTuple):
    """What a kernel reads, as the table in docs/vector_unit.md says."""
    shape: str                 # elementwise, row_reduction, row or matrix
    operands: tuple[str, ...]  # the first `required` of them must be there
    required: int
    attribute: str | None = None
    default: float = 0.0       # of the attribute

    @property
    def is_matrix(self) -> bool:
        return self.shape == "matrix"


KERNELS = {
    "add": Kernel("elementwise", ("a", "b"), 2),
    "subtract": Kernel("elementwise", ("a", "b"), 2),
    "multiply": Kernel("elementwise", ("a", "b"), 2),
    "multiply_add": Kernel("elementwise", ("a", "b", "c"), 3),
    "scale": Kernel("elementwise", ("x",), 1, "factor", 1.0),
    **{name: Kernel("elementwise", ("x",), 1)
       for name in ("cast", "relu", "gelu", "gelu_tanh", "silu", "exp", "reciprocal", "rsqrt", "square")},
    **{name: Kernel("row_reduction", ("x",), 1) for name in ("sum", "sum_of_squares", "maximum", "mean")},
    "variance": Kernel("row_reduction", ("x",), 1, "correction", 0.0),
    "softmax": Kernel("row", ("x", MASK), 1, "factor", 1.0),
    "layer_norm": Kernel("row", ("x", "gain", "bias"), 1, "epsilon", 1e-5),
    "rms_norm": Kernel("row", ("x", "gain"), 1, "epsilon", 1e-6),
    "matmul": Kernel("matrix", ("a", "b"), 2, "factor", 1.0),
    "linear": Kernel("matrix", ("x", "weight", "bias"), 2),
}
