"""Capture of any PyTorch training run into a trace (docs/capture.md, docs/formats.md).

    import opd
    with opd.capture(model, optimizer=optimizer, path="run.safetensors") as c:
        for batch in batches:
            ...
            optimizer.step()
            c.step(loss=loss)

The module itself is callable, so that `opd.capture(...)` and `from opd.capture import Capture` both work. PyTorch is imported
when the first name is used that needs it: reading and recovering journals does without.
"""
import importlib
import sys
import types

_HOMES = {"Capture": "session", "CaptureError": "errors", "read_journal": "reader", "recover": "recovery", "merge": "ranks"}
__all__ = list(_HOMES)


class _CallableModule(types.ModuleType):
    def __call__(self, *arguments, **options):
        """A Capture of these arguments."""
        return self.Capture(*arguments, **options)

    def __getattr__(self, name: str):
        if name in _HOMES:
            return getattr(importlib.import_module(f"opd.capture.{_HOMES[name]}"), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableModule
