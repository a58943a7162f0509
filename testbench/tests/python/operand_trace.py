"""A small trace whose operators can be computed: attention scores that grow until FP16 overflows."""
from math import erf
from pathlib import Path

import numpy as np
from opd.trace import Probe, TraceWriter, element_statistics

BATCH, LENGTH, DEPTH = 2, 16, 24
WINDOW = range(14, 20)  # steps with operands
GROWTH = 2.0 ** 0.5
OPERATORS = [
    {"probe": "qk", "kernel": "matmul", "batch": BATCH, "rows": LENGTH, "columns": LENGTH, "depth": DEPTH, "factor": 0.5,
     "operands": {"a": {"format": "FP16", "shape": [BATCH * LENGTH, DEPTH]}, "b": {"format": "FP16", "shape": [BATCH * LENGTH, DEPTH]}}},
    {"probe": "softmax", "kernel": "softmax", "rows": BATCH * LENGTH, "columns": LENGTH,
     "operands": {"x": {"format": "FP16", "shape": [BATCH * LENGTH, LENGTH]}, "mask": {"shape": [LENGTH, LENGTH]}}},
    {"probe": "gelu", "kernel": "gelu", "rows": BATCH * LENGTH, "columns": 40,
     "operands": {"x": {"format": "FP16", "shape": [BATCH * LENGTH, 40]}}},
    {"probe": "fc", "kernel": "linear", "rows": BATCH * LENGTH, "columns": 96, "depth": DEPTH,
     "operands": {"x": {"format": "FP16", "shape": [BATCH * LENGTH, DEPTH]}, "weight": {"format": "FP16", "shape": [96, DEPTH]}}},
]


def attention(path: Path, operators=tuple(OPERATORS), name: str = "attention", window=WINDOW, steps: int = 24) -> Path:
    """Scores that grow by half a bit a step and pass FP16's limit inside the window, a masked softmax of them, a GELU, and a
    linear layer of which only the shape is told. Outputs are numpy's, rounded once."""
    probes = [Probe("qk", "activation", "FP16", (BATCH, LENGTH, LENGTH)), Probe("softmax", "activation", "FP16", (BATCH, LENGTH, LENGTH)),
              Probe("gelu", "activation", "FP16", (BATCH * LENGTH, 40)), Probe("fc", "activation", "FP16", (BATCH * LENGTH, 96)),
              Probe("grad", "gradient", "FP16", (7,))]
    writer = TraceWriter(name, "gradual", probes, operators=list(operators))
    rng = np.random.default_rng(11)
    mask = np.tril(np.ones((LENGTH, LENGTH), np.uint8))
    with_elements = {item["probe"] for item in operators} - {"fc"}
    for step in range(steps):
        base = rng.uniform(1.0, 2.0, (2, BATCH * LENGTH, DEPTH))
        a, b = (base * GROWTH ** ((step + 7) / 2)).astype(np.float16)
        x = rng.normal(size=(BATCH * LENGTH, LENGTH)).astype(np.float16)
        y = rng.normal(size=(BATCH * LENGTH, 40)).astype(np.float16)
        with np.errstate(over="ignore"):
            scores = np.einsum("bid,bjd->bij", *(v.astype(np.float64).reshape(BATCH, LENGTH, DEPTH) for v in (a, b))) * 0.5
            exponentials = np.exp(np.where(np.tile(mask, (BATCH, 1)), x.astype(np.float64), -np.inf))
            outputs = {"qk": scores.astype(np.float16), "softmax": (exponentials / exponentials.sum(1, keepdims=True)).astype(np.float16),
                       "gelu": (y * 0.5 * (1 + np.vectorize(erf)(y.astype(np.float64) / 2 ** 0.5))).astype(np.float16)}
        rows = {**outputs, "fc": np.full(96 * BATCH * LENGTH, 0.5, np.float16), "grad": np.full(7, 0.25, np.float16)}
        statistics = [element_statistics(rows[p.name]) for p in probes]
        members = {key: np.array([s[key] for s in statistics], np.float32 if key == "max_abs" else np.int64)
                   for key in ("max_abs", "nonfinite", "saturated", "subnormal", "zero")}
        operands = {"qk": {"a": a, "b": b}, "softmax": {"x": x, "mask": mask}, "gelu": {"x": y}}
        extra = {}
        if step in window and with_elements:
            extra = {"operands": {p: operands[p] for p in operands if p in with_elements},
                     "outputs": {p: outputs[p] for p in outputs if p in with_elements}}
        writer.add_step(step, loss=np.float32(1.0), **members, **extra)
    writer.write(path)
    return path
