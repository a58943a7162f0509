#!/usr/bin/env python3
"""What opd.guard.generation costs per token, with the small model beside this file and a larger one with random weights, in FP32.

Every round generates the same tokens in every way, one after the other; each round's time is compared with that of its own run without
a guard. Prints a table, with --json the figures.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).resolve().parent))

import generate  # noqa: E402  finds the package opd
import opd  # noqa: E402

TOKENS, ROUNDS = 48, 7
WAYS = {"no guard": None, "key and output probes": {}, "key and output probes, sideband off": {"sideband": "off"},
        "outputs of attention and MLP": {"probes": "*.attn,*.mlp,lm_head"}}


def models() -> dict[str, nn.Module]:
    torch.manual_seed(1)
    larger = GPT2Config(vocab_size=63, n_positions=128, n_embd=512, n_layer=8, n_head=8, bos_token_id=0, eos_token_id=0)
    return {"shipped (2 layers, width 64)": generate.load(torch.float32), "random weights (8 layers, width 512)": GPT2LMHeadModel(larger).eval()}


def measure(model: nn.Module, prompt: torch.Tensor) -> dict[str, tuple[float, float, int]]:
    """Milliseconds per token, overhead in percent and number of operators, of each way: medians over the rounds."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens, operators = {}, {}
    for number in range(ROUNDS + 1):
        for way, options in WAYS.items():
            if options is None:
                start = time.perf_counter()
                made = generate.unguarded(model, prompt, TOKENS)[0]
                spent = time.perf_counter() - start
            else:
                with opd.guard.generation(model, **options) as guard:
                    start = time.perf_counter()
                    made = list(guard.generate(prompt, TOKENS))
                    spent = time.perf_counter() - start
                operators[way] = guard.summary()["operators"]
            tokens.setdefault(way, [int(token) for token in made])
            if number:  # the first round warms up
                times[way].append(1000 * spent / TOKENS)
    if len({tuple(found) for found in tokens.values()}) != 1:
        sys.exit("cost: the tokens differ")
    base = times["no guard"]
    return {way: (statistics.median(found), statistics.median(100 * (own / other - 1) for own, other in zip(found, base)),
                  operators.get(way, 0)) for way, found in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as a JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prompt = generate.encode(generate.PROMPTS[0])
    rows = []
    for name, model in models().items():
        for way, (spent, overhead, operators) in measure(model, prompt).items():
            rows.append({"what": f"{name}: {way}", "ms_per_token": round(spent, 3),
                         "overhead_percent": None if way == "no guard" else round(overhead, 1), "probes": operators})
    told = f"{TOKENS} tokens behind {prompt.shape[1]}, one sequence, FP32, one thread; medians of {ROUNDS} rounds; tokens alike in all ways."
    if arguments.json:
        print(json.dumps({"told": told, "rows": rows}))
    else:
        print(told, *(f"{row['what']:60} {row['ms_per_token']:8.2f} ms" for row in rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
