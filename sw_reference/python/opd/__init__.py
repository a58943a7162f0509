"""opd: on-chip overflow-precursor detector, Python side.

opd.capture(model, ...) records a PyTorch training run (docs/capture.md); PyTorch is imported when it is first used.
"""


def __getattr__(name: str):
    if name == "capture":
        import importlib

        return importlib.import_module("opd.capture")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
