"""How a generation loop runs one step and goes back: a causal language model of Hugging Face with its cache, or functions of the user."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

LARGEST_FP16 = 65504.0


class Own:
    """Functions of the user; opd.guard.generating.GenerationGuard says what they take."""

    def __init__(self, step: Callable, truncate: Callable | None):
        self._step, self._truncate = step, truncate

    def begin(self, mask: None) -> None:
        pass

    def step(self, tokens: Tensor, cache) -> tuple[Tensor, object]:
        logits, cache = self._step(tokens, cache)
        return (logits[:, -1] if logits.dim() == 3 else logits), cache

    def truncate(self, cache, positions: int):
        return None if self._truncate is None else self._truncate(cache, positions)

    def settle(self, cache) -> bool:
        return True


_NAMES = ("cache", "past_key_values")  # of the argument, and of what is returned: the present one of transformers, and the older one


def cache_name(model: nn.Module) -> str | None:
    """What a model calls its cache; None where it takes none."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in known), None) if "input_ids" in known else None


class CausalLM:
    """A model that takes input_ids, a cache and use_cache, and returns logits and the cache."""

    def __init__(self, model: nn.Module):
        self._model = model
        known = inspect.signature(model.forward).parameters
        self._name = cache_name(model)
        self._options = {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in known else {})
        self._has_positions = "position_ids" in known
        self._mask: Tensor | None = None

    def begin(self, mask: Tensor | None) -> None:
        """Another generation. mask: of its prompts."""
        self._mask = mask

    def step(self, tokens: Tensor, cache) -> tuple[Tensor, object]:
        """tokens [B, T] behind what is in the cache -> logits [B, vocabulary] of the last one, and the cache, which may be the same
        object with more in it."""
        inputs = {}
        if self._mask is not None:
            length = tokens.shape[1] + (0 if cache is None else cache.get_seq_length())
            behind = self._mask.new_ones(len(tokens), max(0, length - self._mask.shape[1]))
            mask = torch.cat((self._mask, behind), dim=1)[:, :length]
            inputs["attention_mask"] = mask
            if self._has_positions:
                inputs["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, length - tokens.shape[1]:]
        output = self._model(input_ids=tokens, **{self._name: cache}, **inputs, **self._options)
        return output.logits[:, -1], getattr(output, self._name)

    def truncate(self, cache, positions: int):
        """None for a cache that cannot be cut: the sequence has to be computed again. A negative number is one to remove, in every
        version of transformers."""
        if not hasattr(cache, "crop") or not getattr(cache, "is_croppable", True):
            return None
        length = cache.get_seq_length()
        if length > positions:
            cache.crop(positions - length)
        return cache if cache.get_seq_length() == positions else None

    def settle(self, cache) -> bool:
        """Gives keys and values that a mode has left in BF16 the model's own type again. Returns whether all of them fit."""
        own = next((parameter.dtype for parameter in self._model.parameters() if parameter.is_floating_point()), torch.float32)
        fits = True
        for layer, name in _tensors(cache):
            tensor = getattr(layer, name)
            if tensor.dtype == own or own == torch.float32 or torch.is_autocast_enabled(tensor.device.type):
                continue
            if own == torch.float16 and float(tensor.abs().amax()) > LARGEST_FP16:
                fits = False
            else:
                setattr(layer, name, tensor.to(own))
        return fits


def _tensors(cache) -> Iterator[tuple[object, str]]:
    """Layer and attribute of all keys and values."""
    for layer in getattr(cache, "layers", ()):
        for name in ("keys", "values"):
            if isinstance(getattr(layer, name, None), Tensor) and getattr(layer, name).numel():
                yield layer, name
