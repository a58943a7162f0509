"""What PyTorch needs for the statistic that the tap computes: the yardstick of `opd bench`."""
import time


def torch_abs_max(size: int, repeats: int = 5) -> float:
    """Best time in seconds of `tensor.abs().max()` over `size` bytes of half elements, one thread.

    Returns -1.0 when PyTorch is not installed.
    """
    try:
        import torch
    except ImportError:
        return -1.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        elements = torch.linspace(-100.0, 100.0, size // 2, dtype=torch.float32).to(torch.float16)
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            elements.abs().max()
            best = min(best, time.perf_counter() - start)
        return best
    finally:
        torch.set_num_threads(threads)
