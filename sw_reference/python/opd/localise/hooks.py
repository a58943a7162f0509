"""Hooks that opd has put on modules: a bundle is written, and a step replayed, without them."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FLAGS = {"_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
          "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",)}


def without_our_hooks(state: dict) -> dict:
    """The dictionary of a module without the hooks of opd; others are kept."""
    state = dict(state)
    for name in _HOOKS:
        hooks = state.get(name) or {}
        ours = [key for key, hook in hooks.items() if str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("opd.")]
        for part in (name, *_FLAGS.get(name, ())):
            if ours and part in state:
                state[part] = type(state[part])((key, hook) for key, hook in state[part].items() if key not in ours)
    return state


@contextmanager
def lifted(model: nn.Module) -> Iterator[None]:
    """The hooks of opd are off the modules of a model, and in force again afterwards. Hooks that are put on meanwhile are lost."""
    parts = [name for name in (*_HOOKS, *(flag for flags in _FLAGS.values() for flag in flags))]
    kept = []
    for module in model.modules():
        bare = without_our_hooks(vars(module))
        for part in parts:
            if part in bare and bare[part] is not vars(module)[part]:
                kept.append((vars(module)[part], type(bare[part])(vars(module)[part])))
                vars(module)[part].clear()
                vars(module)[part].update(bare[part])
    try:
        yield
    finally:
        for hooks, content in kept:
            hooks.clear()
            hooks.update(content)
