"""The search: replays of a step until its first bad operator is known, then what that operator's numbers say (docs/localise.md)."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from opd.capture.operators import CASTS, Call, NotKnown, Operator, is_rms_norm, operator_of
from opd.capture.probes import FORMAT_NAMES, NORM as NORM_NAME, clean_name
from opd.localise import advice as words
from opd.localise import evidence as look
from opd.localise import substeps
from opd.localise.errors import LocaliseError
from opd.localise.finding import DATA, HARDWARE, NONE, NUMERIC, Finding, Seen
from opd.localise.random_state import RandomStates, random_states
from opd.localise.replay import (_KEEP_MASK, BACKWARD, FORWARD, LOSS_SCALE, OUTSIDE, Entry, Kept, Replayer, Run, bad_elements, floats,
                                 holds_minus_infinity)
from opd.trace_layout import KERNELS, MASK

_LOSSES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")


def localise(step: Callable[[], Tensor], model: nn.Module, *, batch=None, number: int | None = None, loss_scale: float = 1.0,
             autocast: Mapping | None = None, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None, rates: Sequence[dict] | None = None,
             seen: Seen | None = None, states: RandomStates | None = None) -> Finding:
    """Replays `step` at most ceil(log2 operators) + 2 times.

    step        computes the loss of the step from the model as it was before it, and changes nothing but buffers, gradients and random
                states; backward is
                called here, on the loss times loss_scale
    batch       the tensors that the step reads, in any nesting: without them nothing is said of the data
    autocast    {"device": "cuda", "dtype": torch.float16} where the step does not enter it itself
    optimizer   one or several, or rates [{"lr": 1e-3, "parameters": [names]}]: for the words about learning rates
    seen        what was seen when it happened: names the operator where no replay shows it
    states      random_states() from before the step, by default those of now
    Raises LocaliseError for a step without operators or loss.
    """
    _check(model, loss_scale, autocast)
    if rates is None:
        rates = rates_of(model, optimizer)
    replayer = Replayer(step, model, loss_scale, autocast, states or random_states(), batch)
    with replayer.restored():
        return _Search(replayer, batch, number, rates, seen).run()


def optimizers_of(optimizer) -> list[torch.optim.Optimizer]:
    """Of one, several or None."""
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)


def rates_of(model: nn.Module, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None) -> list[dict]:
    """Learning rates of the parameter groups, with the names of their parameters."""
    names = {parameter: clean_name(name) for name, parameter in model.named_parameters()}
    return [{"lr": float(group["lr"]), "parameters": [names[p] for p in group["params"] if p in names]}
            for item in optimizers_of(optimizer) for group in item.param_groups if "lr" in group]


def _check(model, loss_scale, autocast) -> None:
    if not isinstance(model, nn.Module):
        raise LocaliseError(f"model: {type(model).__name__} is no torch.nn.Module; give the one that the step calls")
    if not (isinstance(loss_scale, (int, float)) and math.isfinite(loss_scale) and loss_scale > 0):
        raise LocaliseError(f"loss_scale: {loss_scale!r} is no finite number above 0; give what the loss is multiplied by, 1 for nothing")
    if autocast is not None and (not isinstance(autocast, Mapping) or set(autocast) != {"device", "dtype"}):
        raise LocaliseError('autocast: give {"device": "cuda", "dtype": torch.float16}, or None where the step enters it itself')


class _Search:
    def __init__(self, replayer: Replayer, batch, number: int | None, rates: Sequence[dict], seen: Seen | None):
        self.replayer, self.batch, self.number, self.rates, self.seen = replayer, batch, number, rates, seen
        self.model = replayer.model
        self.modules = {clean_name(name) or "model": part for name, part in self.model.named_modules()}

    def run(self) -> Finding:
        first = self.replayer.run()
        self.entries = first.entries
        self.listing = first
        if not self.entries:
            why = f" ({first.ended})" if first.ended else ""
            raise LocaliseError(f"step: no operator of the model or of the loss runs in it{why}; give the function that computes the "
                                "loss of one step")
        forward = sum(entry.kind == FORWARD for entry in self.entries)
        if first.bad[FORWARD]:
            low, high, kind = -1, forward - 1, FORWARD
        elif first.bad[BACKWARD]:
            low, high, kind = forward - 1, len(self.entries) - 1, BACKWARD
        else:
            return self._clean(first)
        suspect = first.last[kind]
        while high - low > 1:
            middle = (low + high) // 2
            run = self.replayer.run(range(low + 1, middle + 1), backward=kind == BACKWARD)
            if not self._follows(run):
                return self._unsteady("a replay runs other operators than the one before")
            if run.bad[kind]:
                high, suspect = middle, run.last[kind]
            else:
                low = middle
        entry = self.entries[high]
        watch = {high} if kind == FORWARD else {high, *first.consumers.get(entry.made, ()),
                                                *({entry.made} if isinstance(entry.made, int) else ())}
        detail = self.replayer.run(range(high, high + 1), watch, kind == BACKWARD)
        if not self._follows(detail) or high not in detail.kept:
            return self._unsteady("a replay runs other operators than the one before")
        now = detail.last.get(kind)
        if now != suspect or now.nonfinite == 0:
            return self._unsteady(f"{entry.name} has {_said(suspect)} in one replay and {_said(now)} in another", entry)
        return self._forward(entry, detail.kept[high], high) if kind == FORWARD else self._backward(entry, detail, high)

    def _follows(self, run: Run) -> bool:
        return run.entries == self.entries[:len(run.entries)]

    # --- what does not repeat ------------------------------------------------------------------------------------------------

    def _clean(self, first: Run) -> Finding:
        second = self.replayer.run()
        if second.bad[FORWARD] or second.bad[BACKWARD] or second.entries != first.entries or second.last != first.last:
            return self._unsteady("two replays of the step differ")
        if self.seen is None:
            return self._finding(NONE, ("Two replays agree, and every operator of forward and backward is finite in both.",))
        count = f"{self.seen.nonfinite} non-finite elements" if self.seen.nonfinite else "something non-finite"
        return self._finding(HARDWARE, (f"{self.seen.operator} held {count} when it happened; two replays from the same state and batch "
                                        "agree, and are finite everywhere.",
                                        "So neither the batch nor the weights nor the format makes it: a bit was wrong once."),
                             operator=self.seen.operator)

    def _unsteady(self, why: str, entry: Entry | None = None) -> Finding:
        where = entry.name if entry is not None else None
        name = self.seen.operator if self.seen is not None else where
        return self._finding(HARDWARE, (f"{why[0].upper()}{why[1:]}; deterministic kernels were asked for.",
                                        "What differs between two runs of the same step is no property of the data or the format."),
                             operator=name, where=where, agree=False)

    # --- forward -------------------------------------------------------------------------------------------------------------

    def _forward(self, entry: Entry, kept: Kept, number: int) -> Finding:
        output = next(t for t in kept.outputs if bool(bad_elements(t, kept.masked).any()))
        elements = look.elements_of(output, _axis(kept), kept.masked)
        call = _bad_call(kept)
        function = call.name if call is not None else _function_name(kept)
        role = self._role(entry, kept, number)
        pieces, modes, substep, told, operator = [], {}, function, [], None
        if call is not None and isinstance(call.result, Tensor):
            bad = bad_elements(call.result, False)
            index = int(bad.flatten().to(torch.uint8).argmax()) if bool(bad.any()) else 0
            operator = _operator(call, kept)
            if call.name == "scaled_dot_product_attention":
                pieces = substeps.fused_pieces(call.result, index, *call.args, **call.kwargs)
                substep = substeps.first_bad(pieces) or function
                told += [_told(pieces, call.result.dtype)] if pieces else []
            elif operator is not None:
                pieces = substeps.pieces_of(operator, call.result, index)
                substep = substeps.first_bad(pieces) or function
                if KERNELS[operator.kernel].shape in ("elementwise", "row_reduction"):
                    substep = operator.kernel
                modes = substeps.modes_of(operator, call.result, index)
                cast = _cast_operand(call, operator)
                if cast is not None:
                    substep, modes = "cast", {}
                    told.append(f"Its operand {cast[0]} is finite, up to {cast[1]:.4g}, and becomes Inf in the cast to "
                                f"{look.format_of(call.result.dtype)} that autocast makes.")
                elif pieces:
                    told.append(_told(pieces, call.result.dtype))
        inputs = _inputs(kept)
        hidden = _hidden_row(operator, substep, call)
        parameters = self._parameters(number)
        common = dict(operator=entry.name, where=entry.name, direction=FORWARD, function=role if role != words.OTHER else function,
                      elements=elements,
                      format=look.format_of(output.dtype), pieces=substeps.shown(pieces), modes=modes)
        if entry.name == LOSS_SCALE:
            return self._finding(NUMERIC, (f"The loss is {float(inputs[0]):.4g}; times the loss scale of {self.replayer.loss_scale:g} "
                                           f"it is beyond {common['format']}'s limit.",),
                                 substep="loss scale", role=role, parameters=parameters, **common)
        is_bad = any(bool(bad_elements(t, kept.masked).any()) for t in inputs)
        source = look.bad_in_batch(self.batch) if is_bad else None  # one that nothing reads is no cause
        if source is not None:
            value = f"{source['tensor']} holds {source['count']} non-finite elements, the first {source['value']} at {list(source['index'])}"
            return self._finding(DATA, (f"{value}; {entry.name} is the first operator that shows it.", *told), substep="input",
                                 source=source, role=role, parameters=parameters,
                                 **common)
        weight = look.bad_weight(self.model, self._read_before(number), self._read_by(number))
        if weight is not None:
            return self._weight(weight, entry, told, role, parameters, common)
        if hidden:
            return self._finding(DATA, ("The row of the first bad element is hidden as a whole by its mask: its maximum is -Inf, and "
                                        "-Inf - (-Inf) is NaN.",
                                        *self._modes_told(modes)), substep=substep, role=role, parameters=parameters, masked_row=True,
                                 **common)
        if is_bad:
            return self._finding(NUMERIC, ("An operand holds non-finite values that no operator, weight or batch tensor brought: a "
                                           "constant of the code, or what is read from "
                                           "outside of the batch.", *told), substep="input", role=role, parameters=parameters, **common)
        wide = look.largest_in_batch(self.batch)
        limit = torch.finfo(output.dtype).max
        if wide is not None and abs(wide["value"]) > limit and any(float(t.double().abs().max()) >= abs(wide["value"]) for t in inputs):
            return self._finding(DATA, (f"{wide['tensor']} holds {wide['value']:.4g} at {list(wide['index'])}, beyond "
                                        f"{common['format']}'s limit {limit:.4g}.", *told),
                                 substep=substep, source=wide, role=role, parameters=parameters, **common)
        return self._finding(NUMERIC, (f"{'Weights' if self.batch is None else 'Batch, weights'} and operands are finite.", *told,
                                       *self._modes_told(modes)), substep=substep, role=role, parameters=parameters, **common)

    def _weight(self, weight: dict, entry: Entry, told: list[str], role: str, parameters: list[str], common: dict) -> Finding:
        name = f"{weight['tensor']}{list(weight['index'])}"
        if weight["flip"] is None:
            return self._finding(NUMERIC, (f"{weight['tensor']} holds {weight['count']} non-finite elements before the step, the first "
                                           f"at {list(weight['index'])}: an update before this "
                                           "step made them.", *told), substep="weight", source=weight, role=role,
                                 parameters=[weight["tensor"]], **common)
        return self._finding(HARDWARE, (f"{name} is {weight['value']:.4g}; the next largest of {weight['tensor']} is "
                                        f"{weight['next']:.4g}.",
                                        f"With bit {weight['flip']}, one of its exponent, the other way round it is in range: a flipped "
                                        "bit in memory. It repeats, as the weight stays.", *told),
                             substep="weight", source=weight, role=role, parameters=parameters, **common)

    @staticmethod
    def _modes_told(modes: dict[str, bool]) -> tuple[str, ...]:
        helping = [mode for mode in ("STABLE", "SAFE") if modes.get(mode)]
        if not modes:
            return ()
        if not helping:
            return ("Neither STABLE nor SAFE gives a finite row: more range does not help.",)
        return (f"{' and '.join(helping)} would have been finite on this row.",)

    # --- backward ------------------------------------------------------------------------------------------------------------

    def _backward(self, entry: Entry, detail: Run, number: int) -> Finding:
        gradient = detail.kept[number].outputs[0]
        readers = [detail.kept[i] for i in self.listing.consumers.get(entry.made, ()) if i in detail.kept]
        scale = self.replayer.loss_scale
        found, exact = None, None
        for kept in (reader for reader in readers if reader.gradients):  # those of a checkpoint are not known
            own = self._derivative(kept, gradient, None)
            if own is not None and not bool(own.isfinite().all()):
                found, exact = kept, self._derivative(kept, gradient, torch.float64)
                break
        kept = found or (readers[0] if len(readers) == 1 else None)
        name = kept.entry.name if kept is not None else entry.name.removesuffix(":grad")
        limit = torch.finfo(gradient.dtype).max
        told, pieces, substep = [], [], "sum of gradients" if found is None and len(readers) > 1 else "cast"
        if kept is not None:
            incoming = [g for g in kept.gradients.values() if g.numel()]
            if any(not bool(g.isfinite().all()) for g in incoming):
                told.append("The gradient that it gets holds it already.")
            elif incoming:
                largest = max(float(g.double().abs().max()) for g in incoming)
                told.append(f"The gradient that {name} gets is finite, up to {largest:.4g}.")
        if exact is not None:
            pieces = [("gradient", gradient, exact)]
            top = float(exact.abs().max())
            if not bool(exact.isfinite().all()):
                substep = "derivative"
                told.append("In FP64 the derivative is not finite either: it does not exist at this argument.")
            elif top > limit:
                told.append(f"In FP64 the largest element is {top:.4g}, {math.log2(top / limit):.1f} bits beyond "
                            f"{look.format_of(gradient.dtype)}'s limit {limit:.4g}.")
                if scale > 1 and top / scale <= limit:
                    substep = "loss scale"
                    told.append(f"Without the loss scale of {scale:g} it is {top / scale:.4g} and fits.")
            else:
                substep = "intermediate"
                told.append(f"In FP64 the largest element is {top:.4g}, which fits: a value inside of this backward is beyond its range.")
        elements = look.elements_of(gradient, _axis(detail.kept[entry.made]) if entry.made in detail.kept else -1)
        parameters = self._parameters(kept_number(self.entries, kept)) if kept is not None else []
        role = self._role(kept.entry, kept, kept_number(self.entries, kept)) if kept is not None else words.OTHER
        common = dict(operator=name, where=entry.name, direction=BACKWARD, function=role if role != words.OTHER else _function_name(kept)
                      if kept else None, elements=elements,
                      format=look.format_of(gradient.dtype), pieces=substeps.shown(pieces), modes={})
        weight = look.bad_weight(self.model, self._read_before(len(self.entries)), ())
        if weight is not None:
            return self._weight(weight, entry, told, role, parameters, common)
        return self._finding(NUMERIC, ("The forward pass and the loss are finite.", *told), substep=substep, role=role,
                             parameters=parameters, **common)

    def _derivative(self, kept: Kept, like: Tensor, dtype: torch.dtype | None) -> Tensor | None:
        """The gradient that an operator hands on, to the operand or parameter of the size of `like`; as the step computes it, or in a
        wider type. None where it cannot be computed on its own."""
        function = kept.function
        try:
            if kept.module is not None:
                function = copy.deepcopy(kept.module)
                function = function.to(dtype) if dtype is not None else function

            def own(tensor: Tensor) -> Tensor:
                if not tensor.is_floating_point():
                    return tensor
                tensor = tensor.detach().to(dtype or tensor.dtype)
                return tensor.clone().requires_grad_(True)

            args, kwargs = pytree.tree_map_only(Tensor, own, (kept.args, kept.kwargs))
            leaves = [t for t in floats((args, kwargs)) if t.requires_grad]
            if kept.module is not None:
                leaves += [p for p in function.parameters() if p.requires_grad]
            with torch.enable_grad(), self.replayer.context() if dtype is None else nullcontext():
                results = floats(function(*args, **kwargs))
            pairs = [(results[i], gradient.to(results[i].dtype)) for i, gradient in kept.gradients.items() if i < len(results)]
            gradients = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return None
        fitting = [g for g in gradients if g is not None and g.numel() == like.numel()]
        return next((g for g in fitting if not bool(g.isfinite().all())), max(fitting, key=lambda g: float(g.double().abs().max()),
                                                                              default=None))

    # --- words ---------------------------------------------------------------------------------------------------------------

    def _role(self, entry: Entry, kept: Kept, number: int) -> str:
        function = _function_name(kept)
        if function == "scaled_dot_product_attention":
            return words.ATTENTION
        if function in _LOSSES or entry.name == LOSS_SCALE:
            return words.LOSS
        if function in ("matmul", "bmm", "baddbmm", "einsum", "rmatmul"):
            around = entry.name.rpartition(":")[0]
            for later in self.entries[number + 1:]:
                kind = later.name.rpartition(":")[2].partition("#")[0]
                if later.kind != FORWARD or (later.name.startswith(f"{around}:") and kind in ("matmul", "bmm")):
                    break
                if later.name.startswith(f"{around}:") and kind == "softmax":
                    return words.LOGITS
            return words.OTHER
        if function in ("softmax", "log_softmax") or type(kept.module).__name__ == "Softmax":
            return words.SOFTMAX
        if entry.name.startswith(f"{OUTSIDE}:"):
            return words.LOSS
        around = kept.module or self.modules.get(entry.name.rpartition(":")[0])
        if around is not None and (NORM_NAME.search(type(around).__name__) or is_rms_norm(around)):
            return words.NORM
        if function in ("layer_norm", "rms_norm", "group_norm", "batch_norm"):
            return words.NORM
        readers = {self.entries[i].name.rpartition(":")[2].partition("#")[0] for i in self.listing.consumers.get(number, ())}
        if readers & set(_LOSSES):
            return words.HEAD
        return words.LINEAR if isinstance(kept.module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) else words.OTHER

    def _read_before(self, number: int) -> list[str]:
        """Parameters that operators up to that one read."""
        return [name for name, readers in self.listing.consumers.items() if isinstance(name, str) and min(readers) <= number]

    def _read_by(self, number: int) -> list[str]:
        """Parameters that the operator reads."""
        return [name for name, readers in self.listing.consumers.items() if isinstance(name, str) and number in readers]

    def _parameters(self, number: int) -> list[str]:
        """Parameters of the operator, else of the nearest operators that feed it."""
        made, wanted, seen = self.listing.consumers, {number}, set()
        while wanted:
            own = [name for name, readers in made.items() if isinstance(name, str) and wanted & set(readers)]
            if own:
                return sorted(own, key=lambda name: not name.endswith("weight"))
            seen |= wanted
            wanted = {i for i, readers in made.items() if isinstance(i, int) and wanted & set(readers)} - seen
        return []

    def _finding(self, kind: str, told: Sequence[str], *, operator: str | None = None, where: str | None = None,
                 direction: str | None = None, function: str | None = None, substep: str | None = None, elements=None,
                 format: str | None = None, pieces=(), modes: dict | None = None, agree: bool = True, source: dict | None = None,
                 role: str = words.OTHER, parameters: Sequence[str] = (), masked_row: bool = False) -> Finding:
        if self.listing.ended:
            told = (*told, f"The step itself ends with {self.listing.ended}.")
        does = words.advice(kind, role, substep, self.rates, parameters, self.replayer.loss_scale, masked_row)
        return Finding(kind, operator, where, direction, self.number, function, substep, elements, format, tuple(pieces), modes or {},
                       agree, len(self.entries), self.replayer.runs,
                       tuple(told), does, self.seen, source or {})


def kept_number(entries: Sequence[Entry], kept: Kept) -> int:
    return entries.index(kept.entry)


def _said(value) -> str:
    return "nothing" if value is None else f"{value.nonfinite} non-finite elements, largest finite {value.largest:.6g}, checksum {value.checksum:08x}"


def _axis(kept: Kept) -> int:
    """Where the channels are: behind the batch in convolutions and batch norms, else last."""
    name = type(kept.module).__name__ if kept.module is not None else _function_name(kept) if kept.function is not None else ""
    return 1 if name.lower().startswith(("conv", "batchnorm", "groupnorm", "batch_norm", "group_norm")) else -1


def _function_name(kept: Kept) -> str:
    if kept.module is not None:
        return kept.calls[-1].name if len(kept.calls) == 1 else type(kept.module).__name__
    return getattr(kept.function, "__name__", "").strip("_")


def _bad_call(kept: Kept) -> Call | None:
    """The function that made it first."""
    masked: set[int] = set()
    for call in kept.calls:
        tensors = [t for t in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(t, Tensor)]
        if holds_minus_infinity((call.args, call.kwargs)) or (call.name in _KEEP_MASK and any(id(t) in masked for t in tensors)):
            masked.add(id(call.result))
        if any(bool(bad_elements(t, id(call.result) in masked or kept.masked).any()) for t in floats(call.result)):
            return call
    return kept.calls[-1] if kept.calls else None


def _operator(call: Call, kept: Kept) -> Operator | None:
    """The vector unit's operator of a call, None where it is none."""
    try:
        if call.name in CASTS and isinstance(call.args[0], Tensor) and call.result.numel() == call.args[0].numel():
            x = call.args[0].detach()
            operator = Operator("cast", x.numel() // x.shape[-1] if x.dim() else 1, x.shape[-1] if x.dim() else 1,
                                {"x": x.reshape(-1, x.shape[-1] if x.dim() else 1)})
        else:
            operator = operator_of(call, kept.log.made)
    except NotKnown:
        return None
    fits = all(t.dtype in FORMAT_NAMES or t.dtype == torch.float64 for name, t in operator.operands.items() if name != MASK)
    return operator if fits else None


def _cast_operand(call: Call, operator: Operator) -> tuple[str, float] | None:
    """An operand that was finite before autocast cast it: its name, its largest magnitude."""
    given = [t for t in floats((call.args, call.kwargs)) if bool(t.isfinite().all())]
    for name, tensor in operator.operands.items():
        if name != MASK and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            source = next((t for t in given if t.numel() == tensor.numel()), None)
            if source is not None:
                return name, float(source.detach().double().abs().max())
    return None


def _inputs(kept: Kept) -> list[Tensor]:
    return floats((kept.args, kept.kwargs))


def _hidden_row(operator: Operator | None, substep: str | None, call: Call | None) -> bool:
    """Whether the row of a softmax has nothing left."""
    if operator is None or operator.kernel != "softmax" or substep != "max-subtraction":
        return False
    return bool((floats(call.args)[0].detach() == -math.inf).all(-1).any())


def _told(pieces, dtype: torch.dtype) -> str:
    bad = substeps.first_bad(pieces)
    if bad is None:
        return "Computed again in pieces, its row is finite: the kernel that ran sums in another order or in a narrower type."
    exact = next(exact for name, _, exact in pieces if name == bad)
    if not bool(exact.isfinite().all()):
        return f"Computed again in pieces, {bad} is the first that is not finite, and it is not in FP64 either."
    top, limit = float(exact.abs().max()), torch.finfo(dtype).max
    beyond = f", {math.log2(top / limit):.2f} bits beyond {look.format_of(dtype)}'s limit {limit:.4g}" if top > limit else ""
    return f"Computed again in pieces, {bad} is the first that is not finite; in FP64 it is {top:.4g}{beyond}."
