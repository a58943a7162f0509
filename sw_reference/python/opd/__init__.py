"""opd: on-chip overflow-precursor detector, Python side.

opd.capture(model, ...) records a PyTorch training run (docs/capture.md), opd.guard(model, optimizer, ...) keeps it from running into
NaN (docs/guard.md); PyTorch is imported when one of them is first used.
"""


def __getattr__(name: str):
    if name in ("capture", "guard"):
        import importlib

        return importlib.import_module(f"opd.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
