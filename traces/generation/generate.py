#!/usr/bin/env python3
"""Generate text with the small model beside this file, in FP16, without and with opd.guard.generation (docs/generation.md).

Usage: generate.py [PROMPT]...     characters of vocabulary.json alone
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "sw_reference" / "python"))

import opd  # noqa: E402

PROMPTS = ("In the beginning God created the heaven", "And God said")
TOKENS = 60


def load(dtype: torch.dtype = torch.float16) -> GPT2LMHeadModel:
    """The model. Its weights are stored in FP16."""
    model = GPT2LMHeadModel(GPT2Config(**json.loads((HERE / "config.json").read_text(encoding="utf-8"))))
    missing, unexpected = model.load_state_dict(load_file(HERE / "model.safetensors"), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)  # tied to the embedding
    return model.to(dtype).eval()


def vocabulary() -> str:
    return json.loads((HERE / "vocabulary.json").read_text(encoding="utf-8"))


def encode(text: str) -> Tensor:
    """int64 [1, characters]. Ends the program for a character that the model does not know."""
    known = vocabulary()
    unknown = [character for character in text if character not in known]
    if unknown or not text:
        sys.exit(f"generate: prompt: {text!r}: {'is empty' if not text else f'{unknown[0]!r} is unknown'}; use characters of {known!r}")
    return torch.tensor([[known.index(character) for character in text]])


def decode(tokens: list[Tensor]) -> str:
    known = vocabulary()
    return "".join(known[int(token)] for token in tokens)


@torch.no_grad()
def unguarded(model: GPT2LMHeadModel, prompt: Tensor, count: int) -> tuple[list[Tensor], int | None]:
    """Greedy tokens, and the number of the first whose logits are not finite."""
    tokens, cache, fresh, bad = [], None, prompt, None
    for number in range(count):
        output = model(input_ids=fresh, cache=cache, use_cache=True, logits_to_keep=1)
        cache = output.cache
        if bad is None and not torch.isfinite(output.logits).all():
            bad = number
        fresh = output.logits[:, -1].argmax(-1)[:, None]
        tokens.append(fresh[:, 0])
    return tokens, bad


def main() -> int:
    torch.set_num_threads(1)
    model = load()
    for text in sys.argv[1:] or PROMPTS:
        prompt = encode(text)
        tokens, bad = unguarded(model, prompt, TOKENS)
        print(f"prompt     {text!r}\nunguarded  {decode(tokens)!r}" + ("" if bad is None else f"   logits are NaN from token {bad} on"))
        with opd.guard.generation(model) as guard:
            print(f"guarded    {decode(list(guard.generate(prompt, TOKENS)))!r}")
        summary = guard.summary()
        print(f"           {summary['tokens']} tokens, {summary['stopped']} not emitted and decoded again, ended by {summary['finish']}")
        for decision in guard.decisions:
            if decision["event"] in ("mode", "stopped", "ended", "detached"):
                print("          ", " ".join(f"{key}={value}" for key, value in decision.items()))
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
