"""opd.guard.generation: a healthy loop is left alone, a token that is not finite is decoded again, and nothing ends the loop but its end.

Testplan: GEN-01.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
import sys
from inspect import signature

import numpy as np
import pytest
from pages import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: scripts/setup installs it")

import opd  # noqa: E402
from opd.device import Device  # noqa: E402
from opd.guard import GenerationGuard, GuardError  # noqa: E402
from opd.guard.caches import CausalLM  # noqa: E402
from opd.guard.decisions import GENERATION_EVENTS  # noqa: E402
from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.registers import Mode  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM  # noqa: E402

try:
    module()
except ReferenceMissing:
    pytest.skip("opd._reference is not built (target opd_python)", allow_module_level=True)

torch.set_num_threads(1)
SHIPPED = ROOT / "traces" / "generation"
sys.path.insert(0, str(SHIPPED))

import generate as shipped  # noqa: E402

OVERFLOWS_LATER, OVERFLOWS_AT_ONCE = "great king, t", " unto Pharaoh, and bring me out of thi"  # the logits, without a guard
COMMON = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


def gpt2(dtype=torch.float32, **options) -> GPT2LMHeadModel:
    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **COMMON, **options)).to(dtype).eval()


def llama(dtype=torch.float32, **options) -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                        max_position_embeddings=64, **COMMON, **options)).to(dtype).eval()


def prompt(sequences: int = 1, length: int = 5) -> Tensor:
    return torch.randint(2, 40, (sequences, length), generator=torch.Generator().manual_seed(7))


def collect(guard, *arguments, **options) -> tuple[list[list[int]], list[Tensor]]:
    """Tokens, and the logits that each was chosen from."""
    tokens, logits = [], []
    for token in guard.generate(*arguments, **options):
        tokens.append(token.tolist())
        logits.append(guard.logits.clone())
    return tokens, logits


@torch.no_grad()
def plain(model, tokens: Tensor, count: int) -> tuple[list[list[int]], list[Tensor]]:
    """The same greedy loop without a guard."""
    cache, made, logits = None, [], []
    for _ in range(count):
        output = model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
        cache = output.cache
        logits.append(output.logits[:, -1].clone())
        tokens = logits[-1].argmax(-1)[:, None]
        made.append(tokens[:, 0].tolist())
    return made, logits


# --- a healthy loop -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make, dtype", [(gpt2, torch.float32), (gpt2, torch.float16), (llama, torch.bfloat16), (llama, torch.float16)])
def test_a_healthy_generation_is_the_one_without_a_guard_bit_for_bit(make, dtype, attention):
    model = make(dtype, attn_implementation=attention)
    wanted, wanted_logits = plain(model, prompt(3), 12)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with opd.guard.generation(model) as guard:
        tokens, logits = collect(guard, prompt(3), 12)
    assert tokens == wanted and all(torch.equal(a, b) for a, b in zip(logits, wanted_logits))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    summary = guard.summary()
    assert summary["tokens"] == 12 and summary["stopped"] == 0 and summary["outside_fast"] == 0 and summary["finish"] == "length"
    assert summary["operators"] > 10 and summary["detached"] is None and not guard.decisions
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("sample", [False, True])
def test_tokens_are_those_of_generate(sample):
    """Of Hugging Face: greedy and drawn, with prompts padded on the left, and sequences that end before others."""
    model = gpt2()
    tokens, mask = prompt(4, 6), torch.ones(4, 6, dtype=torch.long)
    mask[1, :3], mask[2, :1] = 0, 0
    eos = int(plain(model, tokens[:1], 4)[0][3][0]) if not sample else 1
    torch.manual_seed(5)
    theirs = model.generate(tokens, attention_mask=mask, max_new_tokens=15, do_sample=sample, top_k=10 if sample else None, temperature=0.7 if sample else None,
                            eos_token_id=eos, pad_token_id=0)
    torch.manual_seed(5)
    options = {"do_sample": True, "top_k": 10, "temperature": 0.7} if sample else {}
    with opd.guard.generation(model) as guard:
        ours = torch.tensor(collect(guard, tokens, 15, attention_mask=mask, eos_token_id=eos, pad_token_id=0, **options)[0]).T
    assert ours.tolist() == theirs[:, 6:].tolist()
    assert guard.finish == ("eos" if ours.shape[1] < 15 else "length")


def test_a_generator_of_ones_own_draws():
    model = gpt2()

    def drawn(guarded: bool) -> list:
        generator = torch.Generator().manual_seed(11)
        with opd.guard.generation(model, probes="output" if guarded else "lm_head") as guard:
            return collect(guard, prompt(2), 8, do_sample=True, generator=generator)[0]

    assert drawn(True) == drawn(False) and len({tuple(map(tuple, drawn(True)))}) == 1


def test_two_generations_under_one_guard():
    model = gpt2()
    with opd.guard.generation(model) as guard:
        first, second = collect(guard, prompt(), 4)[0], collect(guard, prompt(2), 4)[0]
    assert first == plain(model, prompt(), 4)[0] and second == plain(model, prompt(2), 4)[0] and guard.summary()["tokens"] == 8


# --- the shipped model, in FP16 -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, from_token", [(OVERFLOWS_LATER, 34), (OVERFLOWS_AT_ONCE, 0)])
def test_what_overflows_is_decoded_again(text, from_token):
    model = shipped.load()
    start = shipped.encode(text)
    wanted, bad = shipped.unguarded(model, start, 50)
    assert bad == from_token  # the trouble is there
    with opd.guard.generation(model) as guard:
        tokens, logits = collect(guard, start, 50)
    assert len(tokens) == 50 and all(torch.isfinite(part).all() for part in logits) and guard.finish == "length"
    summary = guard.summary()
    assert summary["stopped"] >= 1 and summary["detached"] is None
    stopped = [decision for decision in guard.decisions if decision["event"] == "stopped"]
    assert all(decision["operator"].endswith("attn:logits") for decision in stopped)
    again = [decision for decision in guard.decisions if decision["event"] == "again"]
    assert len(again) == len(stopped) and all(decision["safe"] for decision in again)
    first = stopped[0]["step"]
    assert tokens[:first] == [[int(token)] for token in wanted[:first]]  # what was clean stays as it was
    modes = [(decision["operator"], decision["old"], decision["new"]) for decision in guard.decisions if decision["event"] == "mode"]
    assert any(new == "SAFE" for _, _, new in modes) and any((old, new) == ("SAFE", "STABLE") for _, old, new in modes)


@pytest.mark.parametrize("text", [OVERFLOWS_LATER, OVERFLOWS_AT_ONCE])
def test_the_tokens_are_those_that_the_model_makes_in_fp32(text):
    """Where FP16 alone goes astray with the first NaN."""
    start = shipped.encode(text)
    wanted = plain(shipped.load(torch.float32), start, 50)[0]
    with opd.guard.generation(shipped.load()) as guard:
        tokens = collect(guard, start, 50)[0]
    unguarded = [[int(token)] for token in shipped.unguarded(shipped.load(), start, 50)[0]]
    assert tokens == wanted != unguarded


def test_in_fp32_the_same_prompts_stop_nothing():
    model = shipped.load(torch.float32)
    with opd.guard.generation(model) as guard:
        assert collect(guard, shipped.encode(OVERFLOWS_LATER), 20)[0] == plain(model, shipped.encode(OVERFLOWS_LATER), 20)[0]
    assert guard.summary()["stopped"] == 0


def test_a_batch_in_which_one_sequence_overflows():
    model = shipped.load()
    texts = [text[:12].ljust(12) for text in ("great king, t", "And God said")]
    start = torch.cat([shipped.encode(text) for text in texts])
    with opd.guard.generation(model) as guard:
        tokens, logits = collect(guard, start, 40)
    assert len(tokens) == 40 and all(torch.isfinite(part).all() for part in logits) and guard.summary()["stopped"] >= 1


def test_the_example_runs():
    done = subprocess.run([sys.executable, SHIPPED / "generate.py", OVERFLOWS_LATER], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "sw_reference" / "python")}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "logits are NaN from token 34 on" in done.stdout and "60 tokens, " in done.stdout and "ended by length" in done.stdout
    done = subprocess.run([sys.executable, SHIPPED / "generate.py", "\u00e4"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "is unknown; use characters of" in done.stderr and "Traceback" not in done.stderr


def test_the_shipped_model_is_the_one_of_its_manifest():
    manifest = json.loads((SHIPPED / "MANIFEST.json").read_text())
    assert set(manifest["sha256"]) == {"model.safetensors", "config.json", "vocabulary.json"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() == digest, name
    assert (SHIPPED / "model.safetensors").stat().st_size < 1 << 20
    assert manifest["training"]["largest_product"] > 65504 and {"torch", "transformers"} <= set(manifest["versions"]) and manifest["seed"] == 1


# --- a loop of one's own --------------------------------------------------------------------------------------------------------

class Product(nn.Module):
    """A matrix product [1, 2] @ [2, 1] whose terms are `terms` and cancel: FP16 sums of it overflow, in SAFE it is small."""

    def forward(self, x: Tensor, terms: Tensor) -> Tensor:
        return torch.matmul(x, terms)


class Loop(nn.Module):
    """A decoder with a cache that is a list of tokens. Its logits are those of the next number; at the steps in `bad` (positions in the
    cache) `trouble` is what a module of it makes: "overflow" (FP16 beyond its limit), "nan" (in every mode)."""

    def __init__(self, bad=(), trouble: str = "overflow", noise: bool = False):
        super().__init__()
        self.product, self.bad, self.trouble, self.noise = Product(), set(bad), trouble, noise
        self.inner = nn.Identity()
        self.calls: list[tuple[int, int]] = []  # tokens given, positions in the cache before
        self.drawn: list[float] = []

    def forward(self, tokens: Tensor, cache: list | None):
        held = cache or []
        self.calls.append((tokens.shape[1], len(held)))
        whole = held + tokens[0].tolist()
        is_bad = len(whole) - 1 in self.bad
        if self.noise:
            self.drawn.append(torch.rand(1).item())
        factor = 300.0 if is_bad and self.trouble == "overflow" else 1.0
        value = self.product(torch.full((1, 2), factor, dtype=torch.float16), torch.full((2, 1), factor, dtype=torch.float16))
        value = self.inner(value.masked_fill(value > -1, math.nan) if is_bad and self.trouble == "nan" else value)
        logits = torch.zeros(1, 50)
        logits[0, (whole[-1] + 1) % 50] = 10
        return logits + 0 * value.float(), whole


def own(model: Loop, **options):
    return opd.guard.generation(model, step=model, truncate=lambda cache, positions: cache[:positions], **options)


START = torch.tensor([[3, 4, 5]])


def test_the_cache_is_cut_to_the_last_clean_token():
    model = Loop(bad={5})
    with own(model) as guard:
        tokens, _ = collect(guard, START, 6)
    assert [token for token, in tokens] == [6, 7, 8, 9, 10, 11]
    assert model.calls == [(3, 0), (1, 3), (1, 4), (1, 5), (1, 5), (1, 6), (1, 7)]  # the fourth token twice, from five positions
    assert [decision["event"] for decision in guard.decisions if decision["event"] != "mode"] == ["stopped", "again"]
    stopped, again = (decision for decision in guard.decisions if decision["event"] != "mode")
    assert (stopped["step"], stopped["operator"], stopped["what"]) == (3, "product", "output")
    assert (again["step"], again["cached"], again["safe"]) == (3, 5, ["product"])


def test_a_cache_that_cannot_be_cut_is_built_anew():
    model = Loop(bad={5})
    with opd.guard.generation(model, step=model) as guard:
        tokens, _ = collect(guard, START, 4)
    assert [token for token, in tokens] == [6, 7, 8, 9]
    assert model.calls == [(3, 0), (1, 3), (1, 4), (1, 5), (6, 0)]


def test_a_prompt_whose_prefill_overflows():
    model = Loop(bad={2})
    with own(model) as guard:
        assert [token for token, in collect(guard, START, 3)[0]] == [6, 7, 8]
    assert model.calls[:2] == [(3, 0), (3, 0)]


def test_modes_come_back_on_the_controllers_timers():
    """8 tokens in SAFE, 64 quiet ones in STABLE, as steps of a training run."""
    model = Loop(bad={5})
    with own(model, config={"safe_steps": 8, "quiet_steps": 64}) as guard:
        collect(guard, START, 90)
        assert guard.modes() == {}
    changes = [(decision["step"], decision["new"]) for decision in guard.decisions if decision["event"] == "mode"]
    assert changes == [(3, "STABLE"), (3, "SAFE"), (11, "STABLE"), (75, "FAST")]


def test_what_is_not_finite_in_any_mode_ends_generation_with_a_clear_result():
    model = Loop(bad={5}, trouble="nan")
    model.inner = nn.Identity()
    with own(model) as guard:
        tokens, _ = collect(guard, START, 6)
    assert [token for token, in tokens] == [6, 7, 8] and guard.finish == "not finite" == guard.summary()["finish"]
    ended = guard.decisions[-1]
    assert ended["event"] == "ended" and ended["step"] == 3 and ended["sequences"] == [0] and "in any mode" in ended["why"]
    assert model.calls[-1] == (6, 0)  # the last attempt built the cache anew
    assert guard.summary()["rebuilt"] == 1 and guard.is_attached is False and guard.summary()["detached"] is None


def test_without_modes_the_token_is_not_emitted_either():
    model = Loop(bad={5})
    with own(model, modes=False) as guard:
        assert [token for token, in collect(guard, START, 6)[0]] == [6, 7, 8]
    assert guard.finish == "not finite" and len(model.calls) == 4


def test_random_numbers_are_set_back():
    torch.manual_seed(1)
    clean = Loop(noise=True)
    with own(clean) as guard:
        collect(guard, START, 6)
    torch.manual_seed(1)
    model = Loop(bad={5}, noise=True)
    with own(model) as guard:
        collect(guard, START, 6)
    assert model.drawn[:4] == clean.drawn[:4] and model.drawn[4] == model.drawn[3] and model.drawn[5:] == clean.drawn[4:]


def test_logits_that_are_minus_infinity_by_design_stop_nothing():
    class Masked(Loop):
        def forward(self, tokens, cache):
            logits, cache = super().forward(tokens, cache)
            logits[0, 40:] = -math.inf
            return logits, cache

    with own(Masked()) as guard:
        assert [token for token, in collect(guard, START, 4)[0]] == [6, 7, 8, 9]
    assert guard.summary()["stopped"] == 0


def test_an_operator_that_holds_infinity_by_design_is_excused():
    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.tensor(True), -math.inf)

    class WithMask(Loop):
        def __init__(self):
            super().__init__()
            self.mask = Mask()

        def forward(self, tokens, cache):
            self.mask(torch.ones(2, dtype=torch.float16))
            return super().forward(tokens, cache)

    with own(WithMask()) as guard:
        assert [token for token, in collect(guard, START, 12)[0]] == list(range(6, 18))
        assert guard.modes() == {}
    assert [decision["operators"] for decision in guard.decisions if decision["event"] == "ordinary"] == [["mask"]]
    assert {decision["step"] for decision in guard.decisions if decision["event"] == "stopped"} == {0}


# --- the cache's types ----------------------------------------------------------------------------------------------------------

def test_keys_that_a_mode_left_in_bf16_get_their_type_again():
    model = gpt2(torch.float16)
    loop = CausalLM(model)
    with torch.no_grad():
        _, cache = loop.step(prompt(), None)
    layer = cache.layers[1]
    layer.keys = layer.keys.bfloat16()
    assert loop.settle(cache) and layer.keys.dtype == torch.float16
    layer.values = layer.values.bfloat16() * 0 + 70000
    assert not loop.settle(cache) and layer.values.dtype == torch.bfloat16
    assert [part.keys.shape[-2] for part in loop.truncate(cache, 3).layers] == [3, 3]


@pytest.mark.parametrize("make", [gpt2, llama])
def test_every_operator_in_safe_or_stable_and_back(make):
    """The mixture of FP16 and BF16 in a cache ends no generation."""
    model = make(torch.float16, attn_implementation="eager")
    with opd.guard.generation(model) as guard:
        for number, _ in enumerate(guard.generate(prompt(2), 30)):
            if number == 3:
                operators = [operator for operator in guard._monitor.operators if operator.module]
                from opd.registers import Mode
                guard._decider.put(guard._step, operators[::2], Mode.SAFE)
            if number == 20:
                for operator in operators:
                    guard._decider.device.set_operator(operator.op, mode=0)
                guard._decider.in_force[:] = 0
                guard._decider.apply(guard._step)
    assert guard.finish == "length" and guard.summary()["detached"] is None and guard.summary()["stopped"] == 0


# --- failing ----------------------------------------------------------------------------------------------------------------------

class Failing(Device):
    def __init__(self, places: int, at: int):
        super().__init__("cpu", places)
        self.left = at

    def step(self, *arguments):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the device is gone")
        return super().step(*arguments)


@pytest.mark.parametrize("at", [0, 3])
def test_a_guard_that_fails_ends_nothing(at, caplog):
    model = gpt2()
    with opd.guard.generation(model, device=lambda places: Failing(places, at)) as guard:
        tokens, _ = collect(guard, prompt(), 8)
        assert not guard.is_attached
    assert tokens == plain(model, prompt(), 8)[0] and guard.finish == "length"
    assert guard.summary()["detached"] == f"token {at}: RuntimeError: the device is gone"
    assert caplog.text.count("generation goes on without it") == 1
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_step_that_fails_in_another_mode_runs_as_it_was_written():
    class Picky(Loop):
        def forward(self, tokens, cache):
            logits, cache = super().forward(tokens, cache)
            if self.product(torch.ones(1, 2, dtype=torch.float16), torch.ones(2, 1, dtype=torch.float16)).dtype != torch.float16:
                raise TypeError("FP16 is all I know")
            return logits, cache

    model = Picky(bad={5})
    with own(model) as guard:
        tokens, _ = collect(guard, START, 6)
    assert len(tokens) == 6 and [token for token, in tokens[:3]] == [6, 7, 8] and "FP16 is all I know" in guard.summary()["detached"]


def test_an_exception_of_the_model_passes_through():
    class Breaks(Loop):
        def forward(self, tokens, cache):
            if cache and len(cache) == 5:
                raise KeyError("mine")
            return super().forward(tokens, cache)

    model = Breaks()
    with own(model) as guard, pytest.raises(KeyError, match="mine"):
        for _ in guard.generate(START, 6):
            pass
    assert guard.summary()["tokens"] == 3 and guard.summary()["detached"] is None


def test_decisions_are_written(tmp_path):
    model = Loop(bad={5})
    with own(model, log=tmp_path / "d.jsonl") as guard:
        collect(guard, START, 6)
    assert [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()] == guard.decisions


def test_the_page_names_every_argument_event_and_count():
    """docs/generation.md: arguments of opd.guard.generation and generate, events of its own with their keys, counts of summary()."""
    page = (ROOT / "docs" / "generation.md").read_text(encoding="utf-8")
    options, decisions = page[page.index("## Options"):page.index("## Decisions")], page[page.index("## Decisions"):page.index("## Example")]
    for method in (GenerationGuard.__init__, GenerationGuard.generate):
        for name in signature(method).parameters:
            assert name in ("self", "model") or f"`{name}`" in (page if name in ("step", "truncate") else options) or f"{name}," in options, name
    rows = {line.split("`")[1]: line for line in decisions.splitlines() if line.startswith("| `")}
    assert set(rows) == set(GENERATION_EVENTS)
    assert all(f"`{key}`" in rows[event] for event, keys in GENERATION_EVENTS.items() for key in keys)
    with own(Loop()) as guard:
        assert all(f"`{name}`" in decisions for name in guard.summary())


@pytest.mark.parametrize("options, told", [
    ({"model": 3}, "model: int is not a torch.nn.Module"), ({"model": Loop()}, "model: Loop takes no cache; give step="), ({"sideband": "x"}, "sideband: 'x' is unknown"),
    ({"device": "gpu"}, "device: 'gpu' is unknown"), ({"config": {"nonsense": 1}}, "config: nonsense"), ({"compiled": "x"}, "compiled: 'x' is unknown")])
def test_wrong_options(options, told):
    model = options.get("model", Loop())
    options = {key: value for key, value in options.items() if key != "model"}
    if options:
        options["step"] = model
    with pytest.raises(GuardError, match=told):
        opd.guard.generation(model, **options)


@pytest.mark.parametrize("arguments, told", [
    ((torch.zeros(3), 4), "input_ids: are no whole numbers"), ((torch.zeros(1, 0, dtype=torch.long), 4), "input_ids"), ((START, -1), "max_new_tokens: -1"),
    ((START, 2.5), "max_new_tokens"), ((START, 4, {"temperature": 0}), "temperature: 0 is not above 0"), ((START, 4, {"top_k": -1}), "top_k: -1"),
    ((START, 4, {"attention_mask": torch.ones(1, 2)}), "attention_mask: is"), ((START, 4, {"attention_mask": torch.ones(1, 3)}), "a step of your own")])
def test_wrong_arguments_end_before_the_first_token(arguments, told):
    model = Loop()
    with own(model) as guard, pytest.raises(GuardError, match=told):
        guard.generate(*arguments[:2], **(arguments[2] if len(arguments) > 2 else {}))
    assert not model.calls
