"""Step time of one training with and without a look into it, in one process: `opd capture --bench`.

The ways of others are their own code where it is installed (transformers; msprobe is the package mindstudio-probe), else what
it does per tensor:

  HF DebugUnderflowOverflow  forward hook on every module: smallest and largest |x| of parameters, inputs and outputs as text,
                             and two tests for NaN and Inf, each read back at once
  msprobe, statistics        its PrecisionDebugger at level L0 (modules): inputs and outputs, forward and backward, as JSON;
                             only where it is installed
  max, min, mean, norm       what msprobe's monitor takes: hooks on every leaf module's output, its gradient, and every
                             parameter gradient, each value read back at once; the tensors of opd's probes=output,gradient

Every round makes one step of each variant, beginning with another one each time; a variant's overhead is the median over the
rounds of its step time over that of the bare step in the same round, so that a busy machine is busy for all of them. On the
CPU it is processor time that is measured, on a device wall time. opd.guard is there where the reference is built for Python.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from opd.arguments import Parser
from opd.capture.session import Capture
from opd.guard import Guard, GuardError


class Block(nn.Module):
    """Pre-norm transformer block with fused attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Model(nn.Module):
    """A transformer that learns the next of 256 tokens."""

    vocabulary = 256

    def __init__(self, layers: int, width: int, heads: int):
        super().__init__()
        self.text = f"{layers} layers, width {width}, {heads} heads"
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens):
        """Loss of tokens [B, T + 1]."""
        logits = self.head(self.norm(self.blocks(self.embedding(tokens[:, :-1]))))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Pretrained(nn.Module):
    """A model of a folder that Hugging Face's AutoModel reads, pulled towards small outputs."""

    def __init__(self, folder: str):
        from transformers import AutoModel
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, local_files_only=True, hidden_dropout_prob=0.0,
                                               attention_probs_dropout_prob=0.0).train()  # every variant computes the same
        config = self.model.config
        self.vocabulary = config.vocab_size
        self.text = f"pretrained {type(self.model).__name__}, {config.num_hidden_layers} layers, width {config.hidden_size}"

    def forward(self, tokens):
        """Loss of tokens [B, T + 1]."""
        return self.model(input_ids=tokens[:, 1:]).last_hidden_state.float().square().mean()


@dataclass
class Look:
    """Another way to look into a model: what it is, and what it wants called around each step."""
    note: str
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


def debug_underflow_overflow(model: nn.Module, folder: Path) -> Look:
    """The hooks of transformers, or the same work without the package."""
    try:
        from transformers.debug_utils import DebugUnderflowOverflow
    except ImportError:
        lines: list[str] = []

        def look(tensor):
            magnitude = tensor.abs()
            lines.append(f"{magnitude.min():8.2e} {magnitude.max():8.2e}")
            if torch.isnan(tensor).any().item() or torch.isinf(tensor).any().item():
                raise ValueError("NaN or Inf")

        def hook(module, inputs, output):
            lines.clear()
            for tensor in (*module.parameters(recurse=False), *inputs, output):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    look(tensor)

        for module in model.modules():
            module.register_forward_hook(hook)
        return Look("its work, rebuilt")
    import transformers

    DebugUnderflowOverflow(model)
    return Look(f"transformers {transformers.__version__}")


def precision_debugger(model: nn.Module, folder: Path) -> Look:
    """msprobe itself. Raises ImportError where it is not installed."""
    from msprobe.pytorch import PrecisionDebugger

    config = folder / "msprobe.json"
    config.write_text(json.dumps({
        "task": "statistics", "dump_path": str(folder / "msprobe"), "rank": [], "step": [], "level": "L0",
        "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}}))
    debugger = PrecisionDebugger(config_path=str(config))

    def after():
        debugger.stop()
        debugger.step()

    return Look(f"msprobe {metadata.version('mindstudio-probe')}", lambda: debugger.start(model=model), after)


def per_tensor_statistics(model: nn.Module, folder: Path) -> Look:
    """max, min, mean and norm of outputs, their gradients and parameter gradients, read back one by one."""
    results: dict[str, tuple] = {}

    def look(name, tensor):
        tensor = tensor.detach().float()
        results[name] = (tensor.max().item(), tensor.min().item(), tensor.mean().item(), tensor.norm().item())

    def on_output(name, output):
        look(name, output)
        output.register_hook(lambda gradient: look(f"{name}.grad", gradient))

    for name, module in model.named_modules():
        if not any(module.children()):
            module.register_forward_hook(lambda m, i, output, name=name: on_output(name, output))
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: look(name, gradient))
    return Look("as msprobe's monitor, rebuilt")


class Run:
    """One model under one way of looking at it; all runs start from the same weights and see the same data."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path, capture: dict | None = None, guard: dict | None = None,
                 attach=None):
        self.name = name
        torch.manual_seed(0)
        self._device, self._autocast = options.device, getattr(torch, options.dtype)
        model = Pretrained(options.pretrained) if options.pretrained else Model(options.layers, options.width, options.heads)
        self.model = model.to(options.device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._tokens = torch.randint(model.vocabulary, (options.batch, options.length + 1), device=options.device)
        self._look = attach(self.model, folder) if attach else Look("")
        self.note = self._look.note
        self.capture, self.guard, self.probes = None, None, ""
        if capture is not None:
            path = folder / f"{len(list(folder.iterdir()))}.safetensors"
            self.capture = Capture(self.model, path, optimizer=self._optimizer, **capture)
        if guard is not None:
            self.guard = Guard(self.model, self._optimizer, ring="1GiB", **guard).__enter__()
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def step(self, count: bool) -> None:
        clock = time.process_time if self._device == "cpu" else time.perf_counter
        start = clock()
        self._look.before()
        self._optimizer.zero_grad()
        autocast = torch.autocast(self._device, self._autocast) if self._autocast != torch.float32 else contextlib.nullcontext()
        with autocast:
            loss = self.model(self._tokens)
        if self.guard is not None:
            self.guard.step(loss)
        else:
            loss.backward()
            self._optimizer.step()
        self._look.after()
        if self.capture is not None:
            self.capture.step(loss=loss)
        if self._device == "cuda":
            torch.cuda.synchronize()
        elapsed = clock() - start
        if count:
            self.seconds.append(elapsed)
        self.losses.append(loss.item())


VARIANTS = {
    "nothing": dict(),
    "opd, key probes": dict(capture={}),
    "opd, a step that is not sampled": dict(capture={"every": 1 << 30}),
    "opd, key probes, sideband off": dict(capture={"sideband": "off"}),
    "opd, probes=output,gradient": dict(capture={"probes": "output,gradient"}),
    "opd, all probes": dict(capture={"probes": "all"}),
    "opd, all probes, full statistics": dict(capture={"probes": "all", "statistics": "full"}),
    "opd.guard, key probes": dict(guard={"probes": "key"}),
    "opd.guard, key, product of logits": dict(guard={"probes": "key", "sideband": "logits"}),
    "opd.guard, key, sideband off": dict(guard={"probes": "key", "sideband": "off"}),
    "HF DebugUnderflowOverflow": dict(attach=debug_underflow_overflow),
    "msprobe, statistics": dict(attach=precision_debugger),
    "max, min, mean, norm by item()": dict(attach=per_tensor_statistics),
}


def measure(options: argparse.Namespace) -> list[Run]:
    """Runs every variant options.steps steps, after two to warm up. Raises RuntimeError when opd
    changes a loss; of others the note says so."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for name, arguments in VARIANTS.items():
            with contextlib.suppress(ImportError, GuardError):  # the guard needs the reference
                runs.append(Run(name, options, Path(folder), **arguments))
        for step in range(options.steps + 2):
            first = step % len(runs)
            for run in runs[first:] + runs[:first]:
                run.step(count=step >= 2)
        for run in runs:
            if run.capture is not None:
                run.probes = len(run.capture._registry.entries)
                run.capture.close()
            if run.guard is not None:
                run.probes = run.guard.summary()["operators"]
                run.guard.close()
            if run.losses != runs[0].losses:
                if run.capture is not None or run.guard is not None:
                    raise RuntimeError(f"{run.name}: losses differ from those of the run without it")
                run.note += ", changes the losses"
    return runs


def main(argv: list[str] | None = None) -> None:
    """Prints the table."""
    parser = Parser(prog="opd capture --bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--pretrained", metavar="FOLDER",
                        help="a model that Hugging Face's AutoModel reads, instead of one of the following size")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="rounds that count, at least 2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of autocast")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    runs = measure(options)
    print(f"torch {torch.__version__}, {options.device}, threads {options.threads}, {options.dtype}; {runs[0].model.text}, "
          f"{options.batch} x {options.length} tokens; {options.steps} rounds; losses bit-identical unless noted")
    print(f"{'':34}{'ms a step':>10}{'overhead':>10}{'quartiles':>16}{'probes':>8}")
    for run in runs:
        overhead = [100 * (own / bare - 1) for own, bare in zip(run.seconds, runs[0].seconds)]
        low, middle, high = statistics.quantiles(overhead, n=4)
        print(f"{run.name:34}{1e3 * statistics.median(run.seconds):10.2f}{middle:9.1f}%{low:7.1f} ..{high:5.1f}%{run.probes:>8}"
              f"  {run.note}")


if __name__ == "__main__":
    main()
