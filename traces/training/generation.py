#!/usr/bin/env python3
"""Train the small language model of traces/generation, that overflows in FP16 when it generates (docs/generation.md).

A character-level GPT-2 of Hugging Face learns the King James Bible in FP32. It has no 1/sqrt(d) on Q K^T, and queries and keys learn
with ATTENTION_RATE times the learning rate of the rest until their product reaches LARGEST in a batch; then they stand still and the
rest goes on. In FP32 and BF16 nothing overflows; in FP16, in which weights are stored, the product of some contexts does.

Writes model.safetensors, config.json, vocabulary.json and MANIFEST.json into --out. One thread, less than a minute.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workloads.text import DataError, read_text  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SEED, RATE, ATTENTION_RATE, WARM_UP, LARGEST, REST, MOST = 1, 1e-2, 8, 50, 80_000.0, 600, 2000
BATCH, LENGTH = 8, 64


def configuration(vocabulary: int) -> GPT2Config:
    return GPT2Config(vocab_size=vocabulary, n_positions=128, n_embd=64, n_layer=2, n_head=2, initializer_range=0.0693,
                      scale_attn_weights=False, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager",
                      bos_token_id=0, eos_token_id=0)


def largest_product(qkv: list[Tensor], heads: int) -> float:
    """Largest magnitude in Q K^T over all layers. qkv [B, T, 3 * width] of each."""
    found = 0.0
    for output in qkv:
        query, key = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in output.chunk(3, dim=-1)[:2])
        found = max(found, float((query @ key.transpose(-1, -2)).abs().amax()))
    return found


def train(characters: Tensor, vocabulary: int) -> tuple[GPT2LMHeadModel, dict]:
    """The model, and what its manifest says of the training."""
    torch.manual_seed(SEED)
    model = GPT2LMHeadModel(configuration(vocabulary))
    qkv: list[Tensor] = []
    hooks = [block.attn.c_attn.register_forward_hook(lambda module, arguments, output: qkv.append(output.detach()))
             for block in model.transformer.h]
    attention = [parameter for name, parameter in model.named_parameters() if "c_attn" in name]
    others = [parameter for name, parameter in model.named_parameters() if "c_attn" not in name]
    optimizer = torch.optim.AdamW([{"params": attention}, {"params": others}], lr=RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(SEED)
    reached, step = None, 0
    while step < MOST and (reached is None or step < reached + REST):
        factor = min(1.0, (step + 1) / WARM_UP) if reached is None else 0.3 * (1 - (step - reached) / REST)
        optimizer.param_groups[0]["lr"] = RATE * factor * ATTENTION_RATE if reached is None else 0.0
        optimizer.param_groups[1]["lr"] = RATE * factor
        first = torch.randint(len(characters) - LENGTH - 1, (BATCH,), generator=generator)
        batch = torch.stack([characters[place:place + LENGTH] for place in first])
        qkv.clear()
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        largest = largest_product(qkv, model.config.n_head)
        if reached is None and largest > LARGEST:
            reached = step
        step += 1
    for hook in hooks:
        hook.remove()
    return model.eval(), {"steps": step, "largest_product_reached_at": reached, "largest_product": largest, "loss": loss.item()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "traces" / "generation", metavar="DIR")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        text = read_text()
    except DataError as error:
        print(f"generation: {error}", file=sys.stderr)
        return 2
    vocabulary = sorted(set(text.content))
    index = {character: number for number, character in enumerate(vocabulary)}
    model, told = train(torch.tensor([index[character] for character in text.content]), len(vocabulary))
    out.mkdir(parents=True, exist_ok=True)
    # The head is the embedding: it is stored once.
    save_file({name: tensor.half().contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"},
              out / "model.safetensors")
    config = {key: value for key, value in model.config.to_diff_dict().items() if not key.startswith("_") and key != "transformers_version"}
    (out / "config.json").write_text(json.dumps(config | {"attn_implementation": "eager"}, indent=1) + "\n", encoding="utf-8")
    (out / "vocabulary.json").write_text(json.dumps("".join(vocabulary)) + "\n", encoding="utf-8")
    files = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("model.safetensors", "config.json", "vocabulary.json")}
    manifest = {"command": "traces/training/generation.py", "seed": SEED, "data": text.source, "training": told, "sha256": files,
                "settings": {"learning_rate": RATE, "attention_rate": ATTENTION_RATE, "warmup": WARM_UP, "largest": LARGEST, "rest": REST,
                             "batch": BATCH, "length": LENGTH},
                "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}}
    (out / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
