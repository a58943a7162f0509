"""The numeric kinds A to P, as public bug reports have them, and the run of the corpus that stands for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumericClass:
    """run: of the corpus, None where no small model shows it; words: what of it is not caught, or why there is no run."""
    name: str
    run: str | None
    words: str


CLASSES = (
    NumericClass("A slow growth over steps", "gpt-e4m3-high-lr-1", ""),
    NumericClass("B growth across layers within one pass", "gpt-no-norm-1", "the pass in which it happens gives no warning; the growth over the steps before does"),
    NumericClass("C jump at one operator", "gpt-flip-activation-1", "a jump that stays finite and is followed by a normal value"),
    NumericClass("D overflow inside an accumulator", "gpt-rms-accumulator-1", "only where the accumulator's result is an output of its own; a sum inside a "
                 "fused kernel is not seen"),
    NumericClass("E absorbed or silent", "gpt-e4m3-saturating-1", "a value clipped to the largest one is finite and is never stopped"),
    NumericClass("F single-step jump", "convnet-lr-jump-1", "no warning; the step is stopped, and tried again in other modes"),
    NumericClass("G loss-scale collapse", "recurrent-relu-high-lr-1", ""),
    NumericClass("H loss scale too large", "convnet-loss-scale-search-1", "the scaler's own: it skips the step, no operator is downshifted"),
    NumericClass("I intermittent", "moe-loss-scale-experts-1", "an expert without tokens has no completion in that step"),
    NumericClass("J bit flip", "gpt-flip-weight-1", "a flip that stays finite is a jump at most: downshifted for it, nothing is rolled back"),
    NumericClass("K row hidden as a whole", "gpt-hidden-query-1", ""),
    NumericClass("L zero variance", "gpt-zero-variance-1", "its gradient overflows under the loss scale: the scaler's"),
    NumericClass("M fine in BF16, not in FP16", "recurrent-relu-no-warmup-1", ""),
    NumericClass("N NaN in the input", "convnet-nan-pixel-1", "the batch is given up: no mode mends it"),
    NumericClass("O FP8 scale factors", None, "the casts here have scale 1; a history of scale factors is no part of these models"),
    NumericClass("P repeated or oscillating overflow", "convnet-sensor-gain-1", ""),
)
