"""The first bad operator of a step, which of its parts, and why (docs/localise.md).

    from opd.localise import localise, write_bundle
    finding = localise(lambda: loss_of(model, batch), model, batch=batch)
    print(finding.text())

PyTorch is imported when the first name is used that needs it.
"""
import importlib

_HOMES = {"localise": "search", "Finding": "finding", "LocaliseError": "errors", "Seen": "finding", "write_bundle": "bundle",
          "read_bundle": "bundle",
          "Bundle": "bundle", "random_states": "random_state"}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"opd.localise.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
