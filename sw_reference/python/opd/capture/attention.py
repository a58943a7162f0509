"""Attention logits and probabilities, wherever the model computes them.

While an attention module runs, a torch function mode sees every PyTorch function it calls, as function, method or operator:

  product, then softmax   the product of queries and keys is measured when it is made, before scaling and mask, and recorded
                          once a softmax over as many elements follows; the softmax is recorded too
  fused kernel            scaled_dot_product_attention never hands out its logits. They are computed a second time beside it
                          (`sideband`): query @ key^T * scale in FP32, as the fused kernels accumulate it, over all positions,
                          before the mask; a slice at a time, so that no more than SLICE_ELEMENTS of them exist at once.
                          Cost: one more product of queries and keys. "full" adds the softmax of the masked slice. "bound" makes the
                          product only where the longest query times the longest key does not show that it is finite; else that
                          number, which no logit exceeds, stands for the largest one

A logits probe of a fused kernel therefore has format FP32 whatever the inputs are, and has no raw rows. Where operands are captured
they are those of the product (query, key, factor) and of the softmax: its input before the mask, and the mask.
Attention modules are those whose class or own name contains `attn` or `attention`; of nested ones the outermost gives the
name. A model that has none is watched as a whole.
"""
from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from opd.capture.operators import CASTS, MASKS, Call, CallLog, NotKnown, Operator, operator_of, product

SIDEBANDS = ("off", "logits", "full")
BOUNDED_SIDEBANDS = ("off", "bound", "logits", "full")  # where statistics are acted upon
SLICE_ELEMENTS = 1 << 22      # 16 MiB of FP32
CPU_SLICE_ELEMENTS = 1 << 20  # 4 MiB, which stays in its cache

_PRODUCTS = {torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.baddbmm,
             Tensor.__matmul__, Tensor.__rmatmul__}
_SOFTMAXES = {torch.softmax, functional.softmax, Tensor.softmax}


def _transparent(function: Callable) -> Callable:
    """A copy of a Python function of torch.nn.functional that runs its body under a mode instead of handing itself to it."""
    copy = types.FunctionType(function.__code__, {**function.__globals__, "has_torch_function": lambda _: False},
                              function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_multi_head_attention = _transparent(functional.multi_head_attention_forward)


class AttentionMode(TorchFunctionMode):
    """Active while one attention module runs; records the probes NAME:logits and NAME:softmax. session: as of
    opd.capture.hooks.ModelHooks; sideband: one of SIDEBANDS; logits, softmax: whether they are wanted; training: whether the
    model is in training mode."""

    def __init__(self, session, name: str, sideband: str, logits: bool, softmax: bool, training: bool):
        super().__init__()
        self._session, self._name = session, name
        self._training, self._gradients = training, torch.is_grad_enabled()
        self._sideband, self._logits, self._softmax = sideband, logits, softmax
        self._product = None  # number of elements and observation of the last product, until a softmax takes it
        self._finds = session.operands is not None
        self._log = CallLog()  # what was done to the last product

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # traced into a graph: nothing must stay of this
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:  # a Python function: what it calls is of interest
                return _multi_head_attention(*args, **kwargs)
        if self._finds and self._follows_product(func, args):
            result = self._log.run(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if func in _PRODUCTS:
            self._session.guarded(self._on_product, result, Call(func.__name__, args, kwargs, result))
        elif func in _SOFTMAXES:
            self._session.guarded(self._on_softmax, result, Call(func.__name__, args, kwargs, result))
        elif func is functional.scaled_dot_product_attention and self._sideband != "off":
            self._session.guarded(lambda: self._on_fused(*args, **kwargs))
        return result

    def _follows_product(self, func: Callable, args: tuple) -> bool:
        """Whether a call may cast or mask the product that a softmax takes."""
        return (self._product is not None and getattr(func, "__name__", "").rstrip("_") in CASTS | MASKS
                and any(isinstance(tensor, Tensor) and tensor.numel() == self._product[0] for tensor in args))

    def _observe(self, suffix: str, tensor: Tensor, raw: bool = True):
        return self._session.observe(self._name, "activation", tensor, f":{suffix}", raw)

    def _find(self, observation, find: Callable[[], Operator], output: Tensor | None) -> None:
        if self._finds and observation is not None:
            self._session.see_operator(observation, find, output)

    def _keep(self, observations: list, shape: tuple[int, ...] | None = None) -> None:
        self._session.keep(observations, shape, self._training, self._gradients)

    def _on_product(self, result, call: Call) -> None:
        if self._logits and _is_matrix_batch(result):
            observation = self._observe("logits", result)
            self._find(observation, lambda: operator_of(call, lambda tensor: None), result)
            self._product = (result.numel(), observation)
        elif self._finds and _is_matrix_batch(result):
            self._product = (result.numel(), None)

    def _on_softmax(self, result, call: Call) -> None:
        if not _is_matrix_batch(result):
            return
        if self._product is not None and self._product[0] == result.numel():
            self._keep([self._product[1]])
        if self._softmax:
            observation = self._observe("softmax", result)
            self._find(observation, lambda: operator_of(call, self._log.made), result)
            self._keep([observation])
        self._product = None
        self._log.clear()

    def _on_fused(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> None:
        probabilities = self._softmax and self._sideband == "full"
        if not (_is_matrix_batch(query) and _is_matrix_batch(key)) or not (self._logits or probabilities):
            return
        logits, softmax = [], []
        shape = (*query.shape[:-1], key.shape[-2])
        if self._sideband == "bound":
            bound = logits_bound(query.detach(), key.detach(), scale)
            if bound is not None:
                self._keep([self._observe("logits", bound, raw=False)], shape)
                return
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            for part, mask in recompute_logits(query.detach(), key.detach(), attn_mask, is_causal, scale, probabilities):
                if self._logits:
                    logits.append(self._observe("logits", part, raw=False))
                if probabilities:
                    masked = part if mask is None else part + mask
                    softmax.append(self._observe("softmax", torch.softmax(masked, dim=-1), raw=False))
        if logits:
            self._find(logits[0], lambda: fused_product(query, key, scale), None)
        if softmax:
            self._find(softmax[0], _in_fused_kernel, None)
        for slices in (logits, softmax):
            if slices:
                self._keep(slices, shape)


def _in_fused_kernel() -> Operator:
    raise NotKnown("its input never leaves the fused kernel")


def fused_product(query: Tensor, key: Tensor, scale: float | None) -> Operator:
    """The product inside a fused kernel, whose result is FP32: query and key as they are, heads of keys repeated, and the scale."""
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    return product(query, _repeated(query, key).transpose(-1, -2), None, scale)


def _repeated(query: Tensor, key: Tensor) -> Tensor:
    """Fewer key heads than query heads are repeated (grouped-query attention)."""
    if key.dim() >= 3 and key.shape[-3] != query.shape[-3]:
        return key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    return key


def _is_matrix_batch(result) -> bool:
    return isinstance(result, Tensor) and result.dim() >= 3 and result.is_floating_point() and result.numel() > 0


def logits_bound(query: Tensor, key: Tensor, scale: float | None) -> Tensor | None:
    """[1] in FP32: the longest query times the longest key times the scale, which no logit exceeds (Cauchy and Schwarz). None where it does
    not show that every logit is finite, or where to look at it would mean to wait for a device."""
    if query.device.type != "cpu":
        return None
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        longest = [float(torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax()) for x in (query, key)]
    bound = longest[0] * longest[1] * abs(scale)
    return torch.tensor([bound], dtype=torch.float32) if bound <= torch.finfo(torch.float32).max / 2 else None  # not NaN either


def recompute_logits(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool,
                     scale: float | None, is_masked: bool = True) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Slices of query @ key^T * scale in FP32 with the additive mask of each, or None. query [..., T, d], key [..., S, d]; is_masked: whether
    masks are wanted."""
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    key = _repeated(query, key)
    rows, columns = query.shape[-2], key.shape[-2]
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    mask = None
    if not is_masked:
        pass
    elif is_causal:
        mask = torch.full((rows, columns), -math.inf, device=query.device).triu(1)
    elif attn_mask is not None:
        mask = attn_mask.detach()
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)
        mask = mask.float()
    if mask is not None:
        mask = mask.expand(*batch, rows, columns).reshape(-1, rows, columns) if mask.dim() > 2 else mask
    flat_query = query.expand(*batch, -1, -1).reshape(-1, rows, query.shape[-1])
    flat_key = key.expand(*batch, -1, -1).reshape(-1, columns, key.shape[-1])
    elements = min(SLICE_ELEMENTS, CPU_SLICE_ELEMENTS) if query.device.type == "cpu" else SLICE_ELEMENTS
    heads = max(1, elements // (rows * columns))
    step = rows if heads > 1 else max(1, elements // columns)
    for head in range(0, len(flat_query), heads):
        transposed = flat_key[head:head + heads].float().transpose(-1, -2)
        for row in range(0, rows, step):
            part = slice(row, row + step)
            logits = torch.matmul(flat_query[head:head + heads, part].float() * scale, transposed)
            chosen = mask
            if mask is not None:
                chosen = mask[part] if mask.dim() == 2 else mask[head:head + heads, part]
            yield logits, chosen
