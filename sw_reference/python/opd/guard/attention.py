"""SAFE attention in place of a fused kernel: scores, softmax and value product, each as the vector unit computes it."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from opd.guard.arithmetic import output
from opd.guard.products import matmul
from opd.guard.softmax import probabilities


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, dtype: torch.dtype) -> Tensor:
    """The arguments of scaled_dot_product_attention. Scores and probabilities are FP32, as inside the fused kernels; a row with
    everything hidden gives zeros. dtype: of the output."""
    if enable_gqa:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], dim=-3) for tensor in (key, value))
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    scores = matmul(query, key.transpose(-1, -2), torch.float32, float(torch.tensor(scale, dtype=torch.float32)))
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    elif attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = output(probabilities(scores), torch.float32)
    return matmul(torch.dropout(weights, dropout_p, dropout_p > 0), value, dtype)
