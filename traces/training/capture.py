"""Capture of a PyTorch run into a trace (docs/formats.md): every operator's output and gradient, step by step.

Probes are the model's leaf modules, in the order in which the first step executes them: first the forward outputs
(`block.0.attn.qk`, kind activation), then the gradients in the order in which backward produces them: those of the same
outputs (`block.0.attn.qk.grad`) and of the linear weights (`block.0.attn.qkv.weight.grad`), as they leave backward,
with the loss scale in them. A later step that runs other operators, or in another order, is an error.

Statistics of all probes are kept for every step. Elements of the forward probes are kept for a window of steps only;
the window may be placed by the first non-finite forward value, so the last `before` steps are always at hand.

Cost: one pass over every probed tensor on the CPU, about 0.1 ms each; memory: the raw window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from opd.trace import COUNTS, FORMATS, VALUES, Probe, Trace, TraceWriter, element_statistics
from torch import Tensor, nn

FORMAT_NAMES = {
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "E4M3",
    torch.float8_e5m2: "E5M2",
    torch.float32: "FP32",
}
STORAGE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # bytes per element -> a type that numpy has

NEAR_LIMIT_BITS = 4.0  # a run whose smallest headroom is below this is not healthy
GRADUAL_STEPS = 10  # steps below NEAR_LIMIT_BITS before the first non-finite value that make it gradual


@dataclass(frozen=True)
class RawWindow:
    """Steps whose elements are kept: the `before` steps ahead of the trigger and `after` steps from the trigger on.

    trigger: a step, or None for the first step with a non-finite forward value. When it never comes, the last `before`
    steps of the run are kept.
    """

    before: int
    after: int
    trigger: int | None = None

    def __post_init__(self):
        if self.before < 0 or self.after < 0:
            raise ValueError("raw window: before and after must not be negative")


def elements_of(tensor: Tensor) -> np.ndarray:
    """The elements of a CPU tensor, bit by bit, as numpy type of its format. Raises TypeError for a type that is no format."""
    if tensor.dtype not in FORMAT_NAMES:
        raise TypeError(f"a tensor of {tensor.dtype} has no trace format; give the operators to probe, without this one")
    bits = tensor.detach().contiguous().view(STORAGE[tensor.element_size()]).numpy()
    return bits.view(FORMATS[FORMAT_NAMES[tensor.dtype]].numpy)


class Capture:
    """Hooks on a model; `begin(step)`, forward and backward, `end(...)` for every step, then `finish(...)`.

    operators: modules to probe, by probe name; by default every leaf module of `model` under its own name.
    """

    def __init__(self, model: nn.Module, window: RawWindow, operators: Mapping[str, nn.Module] | None = None):
        if operators is None:
            operators = {name: module for name, module in model.named_modules() if not any(module.children())}
        self._window = window
        self._trigger = window.trigger
        self._probes: list[Probe] = []
        self._steps: list[dict] = []  # arguments of TraceWriter.add_step
        self._handles = []
        for name, module in operators.items():
            self._handles.append(module.register_forward_hook(partial(self._on_output, name)))
            if isinstance(module, nn.Linear):
                self._handles.append(module.weight.register_hook(partial(self._on_weight_gradient, name)))
        self.begin(0)

    @property
    def probes(self) -> list[Probe]:
        """The probes found in the first step; position = op id."""
        return self._probes

    def begin(self, step: int) -> None:
        self._step = step
        self._executed: dict[str, Probe] = {}
        self._statistics: dict[str, dict] = {}
        self._raw: dict[str, np.ndarray] = {}
        self._compute_type: dict[str, torch.dtype] = {}

    def end(self, **series: float) -> dict[str, dict]:
        """Closes the step. series: loss, grad_norm, lr, loss_scale. Returns the statistics by probe name.

        Raises RuntimeError when the step did not execute the operators of the first one, in that order.
        """
        probes = list(self._executed.values())
        if not self._steps:
            self._probes = probes
        elif probes != self._probes:
            changed = sorted({p.name for p in set(probes) ^ set(self._probes)}) or ["their order"]
            raise RuntimeError(f"step {self._step}: operators changed since the first step: {', '.join(changed)}")
        if self._trigger is None and any(self._statistics[name]["nonfinite"] for name in self._raw):
            self._trigger = self._step
        members = {key: [row[key] for row in self._statistics.values()] for key in (*COUNTS, *VALUES)}
        self._steps.append(dict(step=self._step, raw=self._raw, **series, **members))
        self._drop_raw()
        return self._statistics

    def finish(self, name: str, **texts) -> Trace:
        """The trace of the steps so far, labelled by `classify`; removes the hooks. texts: model, framework, seed, manifest."""
        for handle in self._handles:
            handle.remove()
        writer = TraceWriter(name, "data", self._probes, **texts)
        for members in self._steps:
            writer.add_step(**members)
        trace = writer.finish()
        trace.label, trace.manifest["label_reason"] = classify(trace)
        return trace

    def _drop_raw(self) -> None:
        """Drops the elements of steps that cannot be in the window any more, or are past it."""
        for members in self._steps:
            step = members["step"]
            if self._trigger is None or self._trigger > self._step:
                keep = step > self._step - self._window.before
            else:
                keep = self._trigger - self._window.before <= step < self._trigger + self._window.after
            if not keep:
                members["raw"] = None

    def _on_output(self, name: str, module: nn.Module, arguments, output: Tensor) -> None:
        if not isinstance(output, Tensor):
            raise TypeError(f"{name}: its output is not a tensor; give the operators to probe, without this one")
        self._record(name, "activation", output)
        self._raw[name] = elements_of(output).copy()
        self._compute_type[name] = output.dtype
        if output.requires_grad:
            output.register_hook(partial(self._record, f"{name}.grad", "gradient"))

    def _on_weight_gradient(self, name: str, gradient: Tensor) -> None:
        # Autocast runs the product, forward and backward, in the type of its output and widens the gradient for the FP32
        # parameter; narrowing it undoes just that.
        self._record(f"{name}.weight.grad", "gradient", gradient.to(self._compute_type[name]))

    def _record(self, name: str, kind: str, tensor: Tensor) -> None:
        """Takes the statistics now: what follows may work in place."""
        if name in self._executed:
            raise RuntimeError(f"step {self._step}: {name} ran twice: a probe is one execution per step")
        elements = elements_of(tensor)
        self._executed[name] = Probe(name, kind, FORMAT_NAMES[tensor.dtype], tuple(tensor.shape))
        self._statistics[name] = element_statistics(elements)


def headroom(trace: Trace) -> np.ndarray:
    """[S, P]: bits from the largest finite magnitude up to the format's limit; Inf where it is 0."""
    limit = np.array([FORMATS[probe.format].max_value for probe in trace.probes], np.float64)
    with np.errstate(divide="ignore"):
        return np.log2(limit) - np.log2(trace.max_abs.astype(np.float64))


def classify(trace: Trace) -> tuple[str, str]:
    """Label and reason, from the forward probes alone: a gradient overflow is ordinary under loss scaling.

    gradual: a forward value became non-finite, and its operator had less than 4 bits of headroom in each of the 10 steps
    before; sudden: it had not. near-limit: never non-finite, but less than 4 bits somewhere; healthy: never that.
    """
    forward = [op for op, probe in enumerate(trace.probes) if probe.kind == "activation"]
    bits = headroom(trace)
    if trace.first_bad_op is not None:
        op = [probe.name for probe in trace.probes].index(trace.first_bad_op)
        bad = int(np.searchsorted(trace.step, trace.first_bad_step))
        below = bits[:bad, op] < NEAR_LIMIT_BITS
        run = int(bad if below.all() else np.argmin(below[::-1]))
        return ("gradual" if run >= GRADUAL_STEPS else "sudden",
                f"{trace.first_bad_op} is non-finite at step {trace.first_bad_step}, "
                f"after {run} steps in a row with less than {NEAR_LIMIT_BITS:g} bits of headroom")
    lowest = bits[:, forward].min(axis=1)
    close = int((lowest < NEAR_LIMIT_BITS).sum())
    smallest = float(lowest.min())
    text = f"no forward value is non-finite; smallest headroom {smallest:.2f} bits"
    if close:
        return "near-limit", f"{text}, less than {NEAR_LIMIT_BITS:g} bits in {close} of {len(lowest)} steps"
    return "healthy", text
