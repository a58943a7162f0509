"""The guard of a generation loop: statistics of every token to the device, modes back, and the way back to the last clean token when a
value turns non-finite (docs/generation.md)."""
from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from opd.capture.attention import SIDEBANDS
from opd.capture.hooks import COMPILED
from opd.device_config import DeviceConfig
from opd.guard.attached import Attached
from opd.guard.caches import CausalLM, Own, cache_name
from opd.guard.deciding import Decider
from opd.guard.decisions import DecisionLog
from opd.guard.device import factory
from opd.guard.errors import GuardError
from opd.guard.modes import Modes
from opd.guard.monitor import FORWARD, Monitor, Operator, Seen
from opd.guard.ring import Random
from opd.guard.sampling import Choice
from opd.registers import Mode

log = logging.getLogger("opd.guard")

ATTEMPTS = 4  # of one token with its cache: as it is, the first operator in SAFE, all that are non-finite, everything


class GenerationGuard(Attached):
    """Guards generation; a context manager. opd.guard.generation(...) makes one.

    model     a causal language model of Hugging Face, or any module, with step and truncate
    step      (tokens int64 [B, T], cache or None) -> (logits [B, vocabulary] of the last position, cache)
    truncate  (cache, positions) -> the cache with its first so many positions; None: a cache that cannot be cut is built anew
    device, probes, modes, config, log, sideband, compiled: as of opd.guard.Guard

    Raises GuardError, or CaptureError for probes, for arguments that cannot work. Once tokens are on their way nothing is raised into
    the loop: a guard that fails detaches, says so once, and generation goes on without it.
    """

    _UNIT, _GUARDED = "token", "generation"

    def __init__(self, model: nn.Module, *, step: Callable | None = None, truncate: Callable | None = None, device: str | Callable = "cpu",
                 probes: str | Iterable[str] = "key,output", modes: bool = True, config: Mapping[str, float] | DeviceConfig | None = None,
                 log: str | os.PathLike | None = None, sideband: str = "logits", compiled: str = "skip"):
        if not isinstance(model, nn.Module):
            raise GuardError(f"model: {type(model).__name__} is not a torch.nn.Module; pass the model")
        for name, value, choices in (("compiled", compiled, COMPILED), ("sideband", sideband, SIDEBANDS)):
            if value not in choices:
                raise GuardError(f"{name}: {value!r} is unknown; use one of {', '.join(choices)}")
        if step is None and cache_name(model) is None:
            raise GuardError(f"model: {type(model).__name__} takes no cache; give step=(tokens, cache) -> (logits, cache), and "
                             "truncate=(cache, positions) -> cache")
        if step is None and truncate is not None:
            raise GuardError("truncate: is given without step; give both, or none for a model of Hugging Face")
        make_device = factory(device, config)
        self._loop = CausalLM(model) if step is None else Own(step, truncate)
        self._log = DecisionLog(log)
        self._counts: Counter[str] = Counter()
        self._monitor = Monitor(model, [], probes, sideband, compiled, self._fail, inference=True)
        self._modes = Modes(self._monitor.modules, self._monitor.compiled, self._monitor.own_type, self._fail)
        self._decider = Decider(make_device, self._monitor, self._modes, self._log, self._counts, modes)
        self._step = 0
        self.finish: str | None = None  # why the last generation ended
        self.logits: Tensor | None = None  # that the last token was chosen from

    # --- what the user calls

    def close(self) -> None:
        """Takes the guard off. A second call does nothing."""
        if not self._is_open:
            return
        self._guarded(self._decider.note_carried, self._step)
        self._is_open = False
        self._take_off()
        self._log.close()

    def generate(self, input_ids: Tensor, max_new_tokens: int, *, attention_mask: Tensor | None = None, do_sample: bool = False,
                 temperature: float = 1.0, top_k: int = 0, generator: torch.Generator | None = None,
                 eos_token_id: int | None = None, pad_token_id: int | None = None) -> Iterator[Tensor]:
        """Tokens int64 [B], one after the other, behind the prompts input_ids int64 [B, T]. `finish` says afterwards why it ended:
        "length", "eos" (every sequence), or "not finite": no mode gave a finite token, and the one that was not is not among them.

        attention_mask int64 [B, T]: 0 where a prompt is padded on the left; models of Hugging Face only. do_sample, temperature, top_k:
        as there; generator: of the draws. Raises GuardError for arguments that cannot work."""
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or not input_ids.numel() or input_ids.is_floating_point():
            raise GuardError("input_ids: are no whole numbers [sequences, tokens]; give the prompts as such a tensor, one token at least")
        if type(max_new_tokens) is not int or max_new_tokens < 0:
            raise GuardError(f"max_new_tokens: {max_new_tokens!r} is no whole number from 0 on; correct it")
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise GuardError(f"attention_mask: is {list(attention_mask.shape)}, input_ids are {list(input_ids.shape)}; give one of that shape")
        if attention_mask is not None and not isinstance(self._loop, CausalLM):
            raise GuardError("attention_mask: a step of your own takes tokens and cache alone; leave the mask to it")
        choice = Choice(do_sample, temperature, top_k, generator)
        return self._tokens(input_ids, max_new_tokens, attention_mask, choice, eos_token_id, pad_token_id)

    def summary(self) -> dict:
        """Counts so far."""
        executions = self._counts["executions"]
        return {"tokens": self._counts["tokens"], "stopped": self._counts["stopped"], "rebuilt": self._counts["rebuilt"],
                "mode_changes": self._counts["mode_changes"], "operators": len(self._monitor.operators),
                "outside_fast": self._counts["outside_fast"] / executions if executions else 0.0,
                "carried": sum(self._modes.carried.values()) + self._counts["carried"], "finish": self.finish, "detached": self._why}

    # --- failing

    def _guarded(self, function: Callable, *arguments):
        if self._why is not None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        if self._why is None:
            self._detach(f"{type(error).__name__}: {error}", error)

    def _take_off(self) -> None:
        self._monitor.listening = False
        self._remove(self._modes.remove, self._monitor.remove, self._decider.close)

    # --- tokens

    @torch.no_grad()
    def _tokens(self, prompt: Tensor, count: int, mask: Tensor | None, choice: Choice, eos: int | None, pad: int | None) -> Iterator[Tensor]:
        self.finish = None
        self._loop.begin(mask)
        pieces, cache, held = [prompt], None, 0
        ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
        for _ in range(count):
            result = self._clean_step(pieces, cache, held)
            if result is None:
                self.finish = "not finite"
                return
            self.logits, cache = result
            held = sum(piece.shape[1] for piece in pieces)
            token = choice.of(self.logits)
            if eos is not None:
                token = torch.where(ended, eos if pad is None else pad, token)
                ended |= token == eos
            pieces.append(token[:, None])
            self._step += 1
            self._counts["tokens"] += 1
            yield token
            if eos is not None and bool(ended.all()):
                self.finish = "eos"
                return
        self.finish = "length"

    def _clean_step(self, pieces: list[Tensor], cache, held: int) -> tuple[Tensor, object] | None:
        """Logits of the token that comes, and the cache behind it; None where no mode gives finite ones. pieces: prompt and tokens so
        far; held: positions of them that are in the cache."""
        random = self._guarded(Random.now)
        tokens = pieces[-1] if cache is not None else torch.cat(pieces, dim=1)
        attempt, rebuilt = 0, False
        while True:
            if not self.is_attached:
                self._take_off()
                return self._loop.step(tokens, cache)
            self._monitor.listening = True
            try:
                logits, after = self._loop.step(tokens, cache)
            except Exception as error:
                if not self._modes.plans:  # not ours
                    raise
                self._fail(RuntimeError(f"a step in other modes: {type(error).__name__}: {error}"))
                cache, tokens = None, torch.cat(pieces, dim=1)  # some layers may have the new positions, others not
                continue
            finally:
                self._monitor.listening = False
            verdict = self._guarded(self._judge, logits)
            if verdict is None or not verdict[0] and not verdict[2]:
                if verdict is not None:
                    self._guarded(self._end_step, verdict[1], after)
                return logits, after
            attempt += 1
            goes_on = self._guarded(self._recover, attempt, *verdict)
            if goes_on is False and cache is not None and not rebuilt and self._decider.follows:
                attempt, rebuilt, goes_on = ATTEMPTS - 1, True, True
                cache, tokens = None, torch.cat(pieces, dim=1)
                self._counts["rebuilt"] += 1
            elif goes_on is False:
                self._guarded(self._end, verdict[2])
                return None
            else:
                cache, tokens = self._back(pieces, after, held)
            if random is not None:
                random.restore()
            self._guarded(self._note_again, 0 if cache is None else held)

    def _back(self, pieces: list[Tensor], cache, held: int) -> tuple[object, Tensor]:
        """The cache as it was before the step, and the tokens that are not in it."""
        cut = self._loop.truncate(cache, held) if held else None
        if cut is None:
            return None, torch.cat(pieces, dim=1)
        return cut, pieces[-1]

    def _judge(self, logits: Tensor) -> tuple[list[Operator], Seen, list[int]]:
        """Operators that are not finite and should be, the first one first; what was seen; sequences whose logits say nothing: NaN, Inf,
        or -Inf everywhere (of some tokens alone it is a mask)."""
        rows = (torch.isnan(logits) | (logits == math.inf)).any(dim=1) | (logits == -math.inf).all(dim=1)
        rows = rows.nonzero().flatten().tolist()
        seen = self._monitor.take()
        bad = [seen.operators[i] for i in seen.bad((FORWARD,))]
        if bad and not rows:  # what is non-finite in SAFE as well and hurts nothing is made that way: a mask
            made = [operator for operator in bad if self._decider.mode_of(operator) == Mode.SAFE]
            if made:
                self._decider.excuse(self._step, made)
                bad = [operator for operator in bad if operator not in made]
        return bad, seen, rows

    def _recover(self, attempt: int, bad: list[Operator], seen: Seen, rows: list[int]) -> bool:
        """Tells the device, and puts operators into SAFE. Returns whether another attempt makes sense."""
        self._counts["stopped"] += 1
        stop = seen.operators.index(bad[0]) + 1 if bad else len(seen.operators)  # what came after says nothing of itself
        outcome = self._decider.feed(self._step, seen, self._taken(seen, stop))
        what, first = "output" if bad else "logits", bad[0].name if bad else None
        self._log.note("stopped", self._step, what=what, operator=first, attempt=attempt,
                       escalate=outcome is not None and bool(outcome.escalate), ranks=[0])
        if attempt == 1:
            log.warning("token %d: %s%s is not finite; the token is not emitted", self._step, what, "" if first is None else f" of {first}")
        if not self._decider.follows or attempt >= ATTEMPTS:
            return False
        return self._decider.to_safe(self._step, bad, attempt, ATTEMPTS)[1]

    @staticmethod
    def _taken(seen: Seen, stop: int) -> list[int]:
        return [i for i in range(stop) if not (seen.nonfinite[i] and seen.operators[i].is_ordinary)]

    def _note_again(self, cached: int) -> None:
        self._monitor.drop()
        self._log.note("again", self._step, cached=cached, safe=sorted(name for name, mode in self.modes().items() if mode == Mode.SAFE.name))

    def _end(self, rows: list[int]) -> None:
        in_any = " in any mode" if self._decider.follows else ""
        self._log.note("ended", self._step, why=f"the token is not finite{in_any}", sequences=rows)
        log.warning("token %d: not finite%s; generation ends with the token before it", self._step, in_any)

    def _end_step(self, seen: Seen, cache) -> None:
        was_fast = not self._modes.plans
        self._decider.feed(self._step, seen, self._taken(seen, len(seen.operators)))
        if not was_fast and not self._loop.settle(cache) and self._decider.follows:
            # The cache holds a value beyond FP16: whatever reads it has to stay out of FAST.
            self._decider.put(self._step, [operator for operator in self._monitor.operators
                                           if operator.module and self._decider.mode_of(operator) == Mode.FAST], Mode.STABLE)


def generation(model: nn.Module, **options) -> GenerationGuard:
    """A GenerationGuard of these arguments."""
    return GenerationGuard(model, **options)
