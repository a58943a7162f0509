"""Finds the package opd in the source tree, from any working directory, and holds every test to leaving PyTorch as it was."""
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[3] / "sw_reference" / "python"
sys.path.insert(0, str(PACKAGES))


def watched() -> list[str]:
    """The functions of PyTorch in whose place one of the package opd stands now; none while PyTorch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return []
    places = [(torch.autograd, "backward"), (torch.nn.utils, "clip_grad_norm_"),
              *((torch.amp.GradScaler, name) for name in ("scale", "step", "update"))]
    return [f"{owner.__name__}.{name}" for owner, name in places
            if getattr(owner, name).__code__.co_filename.startswith(str(PACKAGES))]


@pytest.fixture(autouse=True)
def nothing_stays_watched():
    """A test that leaves PyTorch watched is the one that is blamed, and not a later one."""
    yield
    left = watched()
    assert not left, f"still watched after the test: {', '.join(left)}"
