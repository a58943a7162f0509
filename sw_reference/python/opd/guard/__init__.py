"""A guard on a PyTorch training run: it acts on what the device says, and takes the run back when a value turns non-finite
(docs/guard.md).

    import opd
    with opd.guard(model, optimizer, scaler=scaler) as g:
        for batch in g.batches(loader):
            optimizer.zero_grad()
            g.step(loss_of(model, batch))

and on a generation loop (docs/generation.md):

    with opd.guard.generation(model) as g:
        for token in g.generate(input_ids, max_new_tokens=100):
            ...

The module itself is callable. PyTorch is imported when the first name is used.
"""
import importlib
import sys
import types

_HOMES = {"Guard": "session", "GuardError": "errors", "GenerationGuard": "generating", "generation": "generating"}
__all__ = list(_HOMES)


class _CallableModule(types.ModuleType):
    def __call__(self, *arguments, **options):
        """A Guard of these arguments."""
        return self.Guard(*arguments, **options)

    def __getattr__(self, name: str):
        if name in _HOMES:
            return getattr(importlib.import_module(f"opd.guard.{_HOMES[name]}"), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableModule
