"""Which tensors of a run are probed, and the names they get in the trace.

A selection is a list of expressions, each one a group (`norm`), a pattern of module names (`model.layers.*.mlp`), or both
(`gradient:model.layers.0.*`, the pattern then of module or parameter names). Patterns are those of fnmatch.

Names in the trace: a module's output has the module's name, `name#2` when it is called for the second time in a forward pass,
`name[1]` for the second tensor of an output that holds several; what is derived carries a suffix after a colon, which no module
name holds: `name:logits`, `name:softmax`, `name:grad`, `weight:exp_avg`, `weight:allreduce`. A probe whose type changes during
the run becomes two: `name` and `name:BF16`.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import nn

from opd.capture.errors import CaptureError, PatternError
from opd.capture.journal import ProbeEntry
from opd.trace_layout import MAX_PROBES

# Group -> what it probes. The first five are the key probes, the default.
GROUPS = {
    "logits": "attention logits: the product of queries and keys, before mask and softmax",
    "softmax": "attention probabilities: softmax outputs",
    "norm": "outputs of LayerNorm, RMSNorm and their kin",
    "weight": "trainable parameters after the optimizer's step",
    "allreduce": "results of all-reduce: gradients under DistributedDataParallel, and torch.distributed.all_reduce",
    "output": "outputs of all leaf modules",
    "gradient": "gradients of probed outputs and of parameters, as they leave backward (loss scale included)",
    "moment": "state tensors of the optimizer: first and second moments",
}
KEY = ("logits", "softmax", "norm", "weight", "allreduce")
ALIASES = {"key": KEY, "all": tuple(GROUPS)}

FORMAT_NAMES = {torch.float16: "FP16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2",
                torch.float32: "FP32"}
NORM = re.compile(r"(layer|rms|group|batch|instance)_?norm|norm\d*d?$", re.IGNORECASE)
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


class Selection:
    """A parsed list of probe expressions. Raises CaptureError for text that is neither a group nor can match a name."""

    def __init__(self, expressions: str | Iterable[str] = "key"):
        texts = [part for text in ([expressions] if isinstance(expressions, str) else expressions)
                 for part in str(text).split(",")]
        texts = [text.strip() for text in texts if text.strip()]
        if not texts:
            raise CaptureError("probes: no expression; give groups or patterns of module names, for instance probes=\"key\"")
        self.texts = texts
        self._patterns: dict[str, list[str]] = {}  # group -> patterns
        self.modules: list[str] = []               # patterns of modules whose outputs are probed, leaf or not
        for text in texts:
            head, colon, pattern = text.partition(":")
            if head in ALIASES or head in GROUPS:
                for group in ALIASES.get(head, (head,)):
                    self._patterns.setdefault(group, []).append(pattern if colon else "*")
            elif colon:
                raise CaptureError(f"probes: {head!r} in {text!r} is not a group; use one of {', '.join((*ALIASES, *GROUPS))}")
            else:
                self.modules.append(text)

    def has(self, group: str) -> bool:
        return group in self._patterns

    def whole_groups(self) -> set[str]:
        """Groups that are probed in the whole model."""
        return {group for group, patterns in self._patterns.items() if "*" in patterns}

    def wants(self, group: str, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns.get(group, ()))

    def wants_output(self, name: str, module: nn.Module) -> bool:
        """Whether the output of a module is probed: by pattern, as a norm, or as a leaf."""
        if any(fnmatchcase(name, pattern) for pattern in self.modules):
            return True
        if is_norm(module) and self.wants("norm", name):
            return True
        return not any(module.children()) and self.wants("output", name)

    def check(self, module_names: Iterable[str], parameter_names: Iterable[str]) -> None:
        """Raises PatternError for a pattern that matches no module and no parameter."""
        modules, parameters = list(module_names), list(parameter_names)
        for pattern in self.modules:
            if not any(fnmatchcase(name, pattern) for name in modules):
                raise PatternError(f"probes: no module is called {pattern!r}{_hint(pattern, modules + list(GROUPS))}")
        for group, patterns in self._patterns.items():
            for pattern in patterns:
                if pattern != "*" and group != "allreduce" and not any(fnmatchcase(n, pattern) for n in modules + parameters):
                    raise PatternError(f"probes: no module or parameter is called {pattern!r} (of {group}:{pattern})"
                                       f"{_hint(pattern, modules + parameters)}")


def _hint(pattern: str, names: list[str]) -> str:
    close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    return f"; did you mean {', '.join(close)}?" if close else "; print([n for n, _ in model.named_modules()]) lists them"


def is_norm(module: nn.Module) -> bool:
    return bool(NORM.search(type(module).__name__)) and not any(module.children())


def is_attention(name: str, module: nn.Module) -> bool:
    last = name.rpartition(".")[2]
    return bool(ATTENTION.search(last) or ATTENTION.search(type(module).__name__))


def clean_name(name: str) -> str:
    """A module's or parameter's name without what wrappers put into it: DistributedDataParallel, torch.compile,
    checkpoint_wrapper."""
    wrappers = ("module", "_orig_mod", "_checkpoint_wrapped_module")
    parts = name.split(".")
    if parts[0] == "module":  # DistributedDataParallel stands outside only; a model may well have a child of this name
        parts = parts[1:]
    return ".".join(part for part in parts if part not in wrappers[1:])


class Registry:
    """Probes found so far. The same name with another type is another probe."""

    def __init__(self):
        self._by_key: dict[tuple[str, str, str], ProbeEntry] = {}
        self._names: set[str] = set()
        self.entries: list[ProbeEntry] = []
        self.skipped: dict[str, str] = {}  # name -> why it has no probe

    def format_of(self, name: str, dtype: torch.dtype) -> str | None:
        """The trace format of a tensor's type; None where there is none (noted in `skipped`)."""
        found = FORMAT_NAMES.get(dtype)
        if found is None:
            self.skipped.setdefault(name, f"{str(dtype).removeprefix('torch.')} is not one of {', '.join(FORMAT_NAMES.values())}")
        return found

    def find(self, name: str, kind: str, format_name: str) -> ProbeEntry | None:
        """The probe of that name; None where a trace has no place for another (noted in `skipped`)."""
        entry = self._by_key.get((name, kind, format_name))
        if entry is None:
            if len(self.entries) == MAX_PROBES:
                self.skipped.setdefault(name, f"a trace holds {MAX_PROBES} probes")
                return None
            unique = next(text for text in (name, f"{name}:{format_name}", f"{name}:{format_name}:{kind}")
                          if text not in self._names)
            entry = ProbeEntry(len(self.entries), unique, kind, format_name)
            self._names.add(unique)
            self._by_key[name, kind, format_name] = entry
            self.entries.append(entry)
        return entry
