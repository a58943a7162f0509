"""One replay of a step, with its operators in order and a check at chosen ones.

Operators are the calls of PyTorch's own modules without children, by their names, and the functions that all others call and that make a
floating-point tensor: NAME:FUNCTION, NAME that of the module around, `step` outside of the model. So a norm by hand is several operators:
what overflows inside may not show in its output. A module whose output no function that can be seen has made (an extension, an
autograd.Function) is one. Then those of backward: OPERATOR:grad, the gradient at that output, and PARAMETER:grad. A name that comes again
has #2, #3, ... Views, copies and factories are no operators.

-Inf that code put there as a mask (a number -inf among the arguments; buffers and batches of 0 and -Inf) is followed through casts, sums,
products and views, and not counted. A replay keeps one flag on the device and reads it at its end, or where it stops.
"""
from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from opd.capture.amp import in_backward
from opd.capture.attention import _multi_head_attention
from opd.capture.observation import bytes_of
from opd.capture.operators import CASTS, Call, CallLog
from opd.capture.probes import clean_name
from opd.localise.errors import LocaliseError
from opd.localise.random_state import RandomStates, random_states

FORWARD, BACKWARD = "forward", "backward"
OUTSIDE = "step"  # the module around a function that no module calls
LOSS_SCALE = f"{OUTSIDE}:loss_scale"

_COPIES = {"contiguous", "clone", "reshape", "flatten", "expand", "repeat", "detach", "tensor", "cat", "stack", "getitem"}
_FACTORIES = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_full", "new_empty",
              "new_ones"}
_KEEP_MASK = _COPIES | CASTS | {"add", "baddbmm", "sub", "mul", "div", "radd", "rsub", "rmul", "iadd", "where", "masked_fill", "triu",
                                "tril", "maximum", "minimum",
                                "unsqueeze", "squeeze", "view", "transpose", "permute"}


class _Enough(BaseException):
    """Ends a replay behind the last operator that is checked."""


@dataclass(frozen=True)
class Entry:
    """An operator of the step. made: number of the forward operator whose output a gradient is of, or name of the parameter."""
    name: str
    kind: str
    made: int | str | None = None


@dataclass(frozen=True)
class Statistic:
    """Of an operator's output: what two replays have to agree in."""
    largest: float  # finite magnitude
    nonfinite: int
    checksum: int   # CRC-32 of its bytes


@dataclass
class Kept:
    """What is kept of an operator. calls: of the functions inside a module; gradients: at its outputs."""
    entry: Entry
    outputs: list[Tensor]
    function: Callable | None = None  # the module, or the function
    module_name: str = ""
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    log: CallLog | None = None
    masked: bool = False
    gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None


@dataclass
class Run:
    """bad: by kind, whether one of the checked operators held something non-finite. last: statistic of the last checked one by kind.
    consumers: of an operator or parameter, the forward operators that read it. ended: what the step raised."""
    entries: list[Entry]
    bad: dict[str, bool]
    last: dict[str, Statistic]
    consumers: dict[int | str, list[int]]
    kept: dict[int, Kept]
    ended: str | None


def floats(value) -> list[Tensor]:
    """Floating-point tensors with elements, in a result or among arguments."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()]


def bad_elements(tensor: Tensor, masked: bool) -> Tensor:
    """Booleans: what is non-finite, -Inf of a mask left out."""
    tensor = tensor.detach()
    if tensor.element_size() == 1:
        tensor = tensor.half()
    return tensor.isnan() | (tensor == math.inf) if masked else ~tensor.isfinite()


def statistic(tensors: Iterable[Tensor], masked: bool = False) -> Statistic:
    largest, count, checksum = 0.0, 0, 0
    for tensor in tensors:
        tensor = tensor.detach()
        count += int(bad_elements(tensor, masked).sum())
        finite = tensor.double().abs()
        largest = max(largest, float(finite.masked_fill(~finite.isfinite(), 0).max()))
        raw = bytes_of(tensor) if tensor.element_size() <= 4 else tensor.contiguous().cpu().numpy().tobytes()
        checksum = zlib.crc32(raw, checksum)
    return Statistic(largest, count, checksum)


def holds_minus_infinity(value) -> bool:
    """Whether a number -inf is among arguments."""
    return any(isinstance(leaf, float) and leaf == -math.inf for leaf in pytree.tree_leaves(value))


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor is an additive mask: 0 and -Inf, some of each or of the latter."""
    return bool(((tensor == 0) | (tensor == -math.inf)).all()) and bool((tensor == -math.inf).any())


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, check: range | None, watch: frozenset[int], backward: bool, masks: Iterable[Tensor]):
        super().__init__()
        self.entries: list[Entry] = []
        self.flags: dict[str, list[Tensor]] = {FORWARD: [], BACKWARD: []}
        self.latest: dict[str, tuple[list[Tensor], bool]] = {}
        self.consumers: dict[int | str, list[int]] = {}
        self.kept: dict[int, Kept] = {}
        self._check, self._watch, self._backward = check, watch, backward
        self._names: Counter[str] = Counter()
        self._around: list[str] = []
        self._leaf: nn.Module | None = None
        self._inner: _Inner | None = None
        self._arguments: tuple = ((), {})
        self._origin = WeakTensorKeyDictionary()  # tensor -> the operators or parameters that it is made of
        self._masked = WeakTensorKeyDictionary()
        self._log = CallLog() if watch else None
        for mask in masks:
            self._masked[mask] = True
        self._handles = []
        for name, module in model.named_modules():
            name = clean_name(name) or "model"
            if any(module.children()) or not type(module).__module__.startswith("torch."):
                self._handles += [module.register_forward_pre_hook(partial(self._enter, name)),
                                  module.register_forward_hook(partial(self._leave, name), always_call=True, with_kwargs=True)]
            else:
                self._handles += [module.register_forward_pre_hook(self._enter_leaf, with_kwargs=True),
                                  module.register_forward_hook(partial(self._leave_leaf, name), always_call=True)]
        for name, parameter in model.named_parameters():
            name = clean_name(name)
            self._origin[parameter] = frozenset((name,))
            if backward and parameter.requires_grad:
                self._handles.append(parameter.register_hook(partial(self._on_gradient, name, None)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    # --- modules -----------------------------------------------------------------------------------------------------------

    def _enter(self, name: str, module: nn.Module, arguments) -> None:
        if not in_backward():
            self._around.append(name)

    def _leave(self, name: str, module: nn.Module, args, kwargs, output) -> None:
        if not self._around or in_backward():
            return
        self._around.pop()
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        storages = {tensor.untyped_storage().data_ptr() for tensor in given}
        outputs = [t for t in floats(output) if t not in self._origin and t not in self._masked
                   and t.untyped_storage().data_ptr() not in storages]
        if outputs and given and self._leaf is None:
            kept = Kept(None, outputs, module, name, args, kwargs) if len(self.entries) in self._watch else None
            self._add(name, outputs, (*given, *module.parameters()), False, kept)

    def _enter_leaf(self, module: nn.Module, args, kwargs) -> None:
        if in_backward() or self._leaf is not None:
            return
        self._leaf, self._arguments = module, (args, kwargs)
        if len(self.entries) in self._watch:
            self._arguments = pytree.tree_map_only(Tensor, _copy, (args, kwargs))
            self._inner = _Inner()
            self._inner.__enter__()

    def _leave_leaf(self, name: str, module: nn.Module, arguments, output) -> None:
        if self._leaf is not module or in_backward():
            return
        inner, self._inner, self._leaf = self._inner, None, None
        if inner is not None:
            inner.__exit__(None, None, None)
        outputs = floats(output)
        if outputs:
            args, kwargs = self._arguments
            kept = None if inner is None else Kept(None, outputs, module, name, args, kwargs, inner.calls, inner.log)
            self._add(name, outputs, (*floats((args, kwargs)), *module.parameters()), False, kept)

    # --- functions ---------------------------------------------------------------------------------------------------------

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._leaf is not None or in_backward():
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:  # a Python function: what it calls are the operators
                return _multi_head_attention(*args, **kwargs)
        result = self._log.run(func, args, kwargs) if self._log is not None else func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._on_function(func, args, kwargs, result)
        return result

    def _on_function(self, func: Callable, args: tuple, kwargs: dict, result) -> None:
        outputs = floats(result)
        if not outputs:
            return
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = getattr(func, "__name__", str(func))
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.strip("_")
        masked = holds_minus_infinity((args, kwargs)) or (name in _KEEP_MASK and any(tensor in self._masked for tensor in given))
        storages = {tensor.untyped_storage().data_ptr() for tensor in given}
        is_view = not in_place and all(tensor.untyped_storage().data_ptr() in storages for tensor in outputs)
        masked = masked or (is_view and any(tensor in self._masked for tensor in given))
        if masked:
            for tensor in outputs:
                self._masked[tensor] = True
        if not given or is_view or name in _COPIES or name in _FACTORIES:
            origin = frozenset().union(*(self._origin.get(tensor, ()) for tensor in given))
            for tensor in outputs:
                if origin and tensor not in self._origin:
                    self._origin[tensor] = origin
            return
        kept = None
        if len(self.entries) in self._watch:
            call = self._log.made(result) if isinstance(result, Tensor) else None
            call = call or Call(name, args, kwargs, result)
            kept = Kept(None, outputs, func, "", call.args, call.kwargs, [call], self._log)
        around = self._around[-1] if self._around else OUTSIDE
        self._add(f"{around}:{name}", outputs, given, masked, kept)

    # --- operators ---------------------------------------------------------------------------------------------------------

    def add_scaled(self, scaled: Tensor, loss: Tensor, scale: float) -> None:
        """The product of the loss and the loss scale, which is no function of the step."""
        number = len(self.entries)
        kept = Kept(None, [scaled], torch.mul, "", (loss.detach(), torch.tensor(scale)), {}) if number in self._watch else None
        self._add(LOSS_SCALE, [scaled], [loss], False, kept)

    def _add(self, name: str, outputs: list[Tensor], inputs: Iterable[Tensor], masked: bool, kept: Kept | None) -> None:
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}#{self._names[name]}"
        number = len(self.entries)
        for origin in frozenset().union(*(self._origin.get(tensor, ()) for tensor in inputs)):
            self.consumers.setdefault(origin, []).append(number)
        entry = Entry(name, FORWARD, number)
        if kept is not None:
            kept.entry, kept.masked = entry, masked
            self.kept[number] = kept
        for i, tensor in enumerate(outputs):
            self._origin[tensor] = frozenset((number,))
            if self._backward and tensor.requires_grad:
                tensor.register_hook(partial(self._on_gradient, f"{name}[{i}]" if i else name, (number, i)))
        self._append(entry, outputs, masked)

    def _on_gradient(self, name: str, output: tuple[int, int] | None, gradient: Tensor) -> None:
        number = len(self.entries)
        made, i = output or (name, 0)
        entry = Entry(f"{name}:grad", BACKWARD, made)
        if made in self.kept:
            self.kept[made].gradients[i] = gradient.detach().clone()
        if number in self._watch:
            self.kept[number] = Kept(entry, [gradient.detach().clone()])
        self._append(entry, [gradient], False)

    def _append(self, entry: Entry, tensors: list[Tensor], masked: bool) -> None:
        number = len(self.entries)
        self.entries.append(entry)
        if self._check is None or number in self._check:
            self.flags[entry.kind] = [_either(self.flags[entry.kind], [bad_elements(t, masked).any() for t in tensors])]
            self.latest[entry.kind] = (tensors, masked)
        if self._check is not None and number == self._check.stop - 1:
            raise _Enough


class _Inner(TorchFunctionMode):
    """The functions inside a module, in order, with their arguments as they were."""

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []
        self.log = CallLog()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = self.log.run(func, args, kwargs or {})
        call = self.log.made(result) if isinstance(result, Tensor) else None
        if call is not None and (not self.calls or self.calls[-1] is not call):
            self.calls.append(call)
        return result


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _either(before: list[Tensor], new: list[Tensor]) -> Tensor:
    flag = new[0]
    for other in (*before, *new[1:]):
        flag = flag | other.to(flag.device, non_blocking=True)
    return flag


class Replayer:
    """Replays a step any number of times from the same state. step computes the loss and changes nothing but buffers, gradients and
    random states; all of these are as before when `restored` is left. runs: replays so far."""

    def __init__(self, step: Callable[[], Tensor], model: nn.Module, loss_scale: float, autocast: Mapping | None, states: RandomStates,
                 batch):
        self.step, self.model, self.loss_scale, self.autocast, self.states = step, model, loss_scale, autocast, states
        self.runs = 0
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        self._masks = [tensor for tensor in (*model.buffers(), *floats(batch)) if tensor.is_floating_point() and tensor.numel()
                       and is_mask(tensor)]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Deterministic kernels, no compiled code; gradients, buffers and random states as before at the end."""
        own = random_states()
        gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        deterministic = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
        benchmark, fill = torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # it fills with NaN
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
            torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory = benchmark, fill
            for parameter, gradient in gradients:
                parameter.grad = gradient
            self._rewind()
            own.set()

    def context(self) -> ExitStack:
        """Autocast as the step had it."""
        stack = ExitStack()
        if self.autocast:
            stack.enter_context(torch.autocast(self.autocast["device"], dtype=self.autocast["dtype"]))
        return stack

    def run(self, check: range | None = None, watch: Iterable[int] = (), backward: bool = True) -> Run:
        """check: numbers of the operators to look at, None: all; the replay ends behind its last one. watch: those of which everything is
        kept."""
        self.runs += 1
        self._rewind()
        for parameter in self.model.parameters():
            parameter.grad = None
        recorder = _Recorder(self.model, check, frozenset(watch), backward, self._masks)
        ended = None
        try:
            with torch.enable_grad(), suppress(_Enough):
                try:
                    with recorder, self.context():
                        loss = self.step()
                    loss = _scalar(loss)
                    scaled = loss
                    if self.loss_scale != 1:
                        scaled = loss * self.loss_scale
                        recorder.add_scaled(scaled, loss, self.loss_scale)
                    if backward and scaled.requires_grad:
                        scaled.backward()
                except LocaliseError:
                    raise
                except Exception as error:  # a script that stops at a loss of NaN: what ran until then is what there is
                    ended = f"{type(error).__name__}: {error}"
        finally:
            recorder.remove()
        bad = {kind: any(bool(flag) for flag in flags) for kind, flags in recorder.flags.items()}
        last = {kind: statistic(*latest) for kind, latest in recorder.latest.items()}
        return Run(recorder.entries, bad, last, recorder.consumers, recorder.kept, ended)

    def _rewind(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        self.states.set()


def _scalar(loss) -> Tensor:
    loss = getattr(loss, "loss", loss)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise LocaliseError("step: returns no loss, a tensor of one element; return it, or an object with it as .loss")
    return loss
