"""Capture of any PyTorch training run into a trace (docs/capture.md, docs/formats.md).

    import opd
    with opd.capture(model, optimizer=optimizer, path="run.safetensors") as c:
        for batch in batches:
            ...
            optimizer.step()
            c.step(loss=loss)

The module itself is callable, so that `opd.capture(...)` and `from opd.capture import Capture` both work.
"""
import sys
import types

from opd.capture.errors import CaptureError
from opd.capture.journal import read_journal, recover
from opd.capture.session import Capture

__all__ = ["Capture", "CaptureError", "read_journal", "recover"]


class _CallableModule(types.ModuleType):
    def __call__(self, *arguments, **options) -> Capture:
        return Capture(*arguments, **options)


_CallableModule.__call__.__doc__ = Capture.__doc__
sys.modules[__name__].__class__ = _CallableModule
