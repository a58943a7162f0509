"""Policies: firmware of the host that sees what the device records and commands it, once a training step (docs/policies.md).

    class Halve(opd.policy.Policy):
        def on_event(self, event, device):
            device.set_operator(event.op, mode=Mode.SAFE, locked=True)

`opd replay --policy FILE[:CLASS]` runs one in a replay, `opd.guard(..., policy=Halve())` in a training run.
"""
import importlib

_HOMES = {"Policy": "base", "Operator": "base", "Record": "base", "Step": "base", "Event": "base",
          "Hints": "base", "Device": "device", "PolicyError": "errors",
          "StaticHeadroom": "static_headroom", "LossScaleOnly": "loss_scale_only"}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"opd.policy.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
