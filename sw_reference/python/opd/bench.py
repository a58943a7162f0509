"""What PyTorch needs for the work that opd does as well: the yardsticks of `opd bench`."""
from __future__ import annotations

import time
from collections.abc import Callable


def torch_abs_max(size: int) -> float:
    """Best time in seconds of `tensor.abs().max()` over `size` bytes of half elements, one thread.

    Returns -1.0 when PyTorch is not installed.
    """
    def prepare(torch) -> Callable[[], object]:
        elements = torch.linspace(-100.0, 100.0, size // 2, dtype=torch.float32).to(torch.float16)
        return lambda: elements.abs().max()

    return _best(prepare)


def torch_row_kernel(kernel: str, rows: int, columns: int) -> float:
    """Best time in seconds of PyTorch's softmax, layer_norm (with gain and bias) or rms_norm (with gain) on half elements, one
    thread. Returns -1.0 when PyTorch is not installed."""
    def prepare(torch) -> Callable[[], object]:
        functional = torch.nn.functional
        generator = torch.Generator().manual_seed(1)
        x, gain, bias = (torch.rand(shape, generator=generator).mul(4).sub(2).to(torch.float16)
                         for shape in ((rows, columns), (columns,), (columns,)))
        return {"softmax": lambda: torch.softmax(x, -1),
                "layer_norm": lambda: functional.layer_norm(x, (columns,), gain, bias, 1e-5),
                "rms_norm": lambda: functional.rms_norm(x, (columns,), gain, 1e-6)}[kernel]

    return _best(prepare)


def _best(prepare: Callable, repeats: int = 5) -> float:
    """Best time of what prepare(torch) returns, one thread; -1.0 without PyTorch."""
    try:
        import torch
    except ImportError:
        return -1.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            work = prepare(torch)
            best = float("inf")
            for _ in range(repeats):
                start = time.perf_counter()
                work()
                best = min(best, time.perf_counter() - start)
        return best
    finally:
        torch.set_num_threads(threads)
