"""State dictionaries as JSON and tensors: what an optimizer or a scaler holds, without pickle.

A tensor becomes {"tensor": NAME}, a dictionary {"dict": [[key, value], ...]}, a list or tuple {"list": [...]}, a number that JSON has not
{"float": "inf"}; all else is itself.
"""
from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from opd.localise.errors import LocaliseError


def flattened(value, name: str, tensors: dict[str, Tensor]):
    """JSON of a value; its tensors are added under NAME/0, NAME/1, ... Raises LocaliseError for what is neither."""
    if isinstance(value, Tensor):
        key = f"{name}/{len(tensors)}"
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"dict": [[key, flattened(item, name, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [flattened(item, name, tensors) for item in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise LocaliseError(f"{name}: its state holds a {type(value).__name__}, which a bundle cannot; leave it out")


def rebuilt(content, tensors: Mapping[str, Tensor]):
    """The value. Raises KeyError, TypeError or ValueError for what flattened() never makes."""
    if not isinstance(content, dict):
        if isinstance(content, list):
            raise ValueError("a bare list")
        return content
    (kind, inner), = content.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: rebuilt(item, tensors) for key, item in inner}
    if kind == "list":
        return [rebuilt(item, tensors) for item in inner]
    if kind == "float":
        return float(inner)
    raise ValueError(f"{kind} is no kind of value")
