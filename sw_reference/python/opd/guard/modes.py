"""Modes of the modules of a model: what STABLE and SAFE make of the PyTorch functions that a module calls.

While a module that is not in FAST runs, a torch function mode sees every function it calls:

  STABLE  arithmetic runs in BF16: operands in FP16 are cast to BF16, autocast casts to BF16, a cast to FP16 becomes one to BF16;
          so does a cast to an 8-bit format; PyTorch's BF16 kernels accumulate in FP32. FP32 stays FP32
  SAFE    functions that the vector unit has are computed as it computes them (HANDLERS), other arithmetic in binary64; what a module
          hands out is BF16, FP32 where its own format is FP32
  FAST    while any other module is not in FAST: as written, but a value beyond FP16 is carried on. Where autocast, or a cast of the
          script, would make an Inf of a finite operand (what a downshift has saved would be lost in the consumer's cast), that one call
          runs in BF16. It is the operand's largest magnitude that decides, so a recomputed checkpoint decides alike

With every module in FAST there is neither hook nor mode: the run is what it was. An attention module has levels of its own for the
product before its softmax and for the softmax. A function that fails in our hands is called as it was written, and `failed` is told.
"""
from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from opd.capture.attention import _multi_head_attention
from opd.capture.hooks import IS_OURS
from opd.guard import activations, attention, joins, norms, products, softmax
from opd.guard.arithmetic import output_type
from opd.registers import Mode

LARGEST_FP16 = 65504.0
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

# Names of functions and methods that compute; all others (views, copies, properties) are left alone.
ARITHMETIC = frozenset("""
    add sub subtract mul multiply div divide true_divide pow square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log1p sum mean var std
    var_mean std_mean norm vector_norm linalg_norm linalg_vector_norm prod cumsum logsumexp softmax log_softmax softplus sigmoid logsigmoid
    tanh erf hardtanh hardswish hardsigmoid elu selu celu mish leaky_relu relu6 prelu glu gelu silu relu matmul mm bmm mv dot einsum addmm
    baddbmm addcmul addcdiv lerp conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear bilinear layer_norm
    rms_norm group_norm batch_norm instance_norm normalize scaled_dot_product_attention avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d radd rsub rmul rdiv rtruediv truediv rpow rmatmul neg abs cosine_similarity
    lstm gru rnn_tanh rnn_relu cross_entropy mse_loss nll_loss
""".split())
_PRODUCTS = frozenset("matmul mm bmm mv dot einsum addmm baddbmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
                      "linear bilinear scaled_dot_product_attention rmatmul".split())
_LOGITS = frozenset("matmul bmm einsum baddbmm rmatmul".split())
_CASTS = frozenset("to half type type_as".split())
_JOINS = frozenset("cat concat concatenate".split())  # of FP16 and BF16 they would make FP32


@dataclass(frozen=True)
class Plan:
    """Modes of one module: of everything in it, and, where it is an attention, of the product before its softmax and of the softmax."""
    whole: Mode = Mode.FAST
    logits: Mode = Mode.FAST
    softmax: Mode = Mode.FAST

    @property
    def is_fast(self) -> bool:
        return self == Plan()


@cache
def _name_of(func: Callable) -> str | None:
    """Name of what computes, without underscores; None for what changes its operand in place, and for properties."""
    name = getattr(func, "__name__", "")
    if name.startswith("__") and name.endswith("__"):
        inner = name.strip("_")
        return None if inner in ("get", "set") or (inner.startswith("i") and inner[1:] in ARITHMETIC) else inner
    return None if name.endswith("_") else name


def _tensors(values) -> Iterable[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point())


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _exceeds(tensor: Tensor) -> bool:
    """Whether the largest magnitude is finite and beyond FP16."""
    if not tensor.numel():
        return False
    return LARGEST_FP16 < float(tensor.detach().abs().amax()) < math.inf


# --- SAFE: handlers with the signatures of PyTorch's functions


def _own(x: Tensor, *others: Tensor | None) -> torch.dtype:
    """The output type of a product in SAFE: of what autocast would cast it to, else of its operands."""
    cast = _autocast(x.device.type)
    if cast is not None and x.dtype != torch.float64:
        return output_type(cast)
    dtype = output_type(x.dtype)  # a mode may have left BF16 beside FP16, which would make FP32
    for other in others:
        if other is not None:
            dtype = torch.promote_types(dtype, output_type(other.dtype))
    return dtype


def _kept(x: Tensor, function: Callable[[Tensor], Tensor]) -> torch.dtype:
    """The same of a function of one operand: tried on a single zero, which autocast treats alike."""
    return output_type(function(x.detach().new_zeros((1, 1))).dtype)


def _safe_linear(input, weight, bias=None):
    return products.linear(input, weight, bias, _own(input, weight))


def _safe_matmul(input, other):
    return products.matmul(input, other, _own(input, other))


def _safe_rmatmul(input, other):
    return _safe_matmul(other, input)


def _safe_addmm(input, mat1, mat2, *, beta=1, alpha=1):
    return products.addmm(input, mat1, mat2, _own(mat1, mat2), beta, alpha)


def _convolution(function: Callable) -> Callable:
    def safe(input, weight, bias=None, *arguments, **options):
        names = (("stride", "padding", "output_padding", "groups", "dilation") if "transpose" in function.__name__ else
                 ("stride", "padding", "dilation", "groups"))
        return products.convolution(function, input, weight, bias, _own(input, weight), **dict(zip(names, arguments)), **options)
    return safe


def _safe_attention(query, key, value, *arguments, **options):
    return attention.attention(query, key, value, *arguments, **options, dtype=_own(query, key, value))


def _safe_softmax(input, dim, dtype=None):
    return softmax.softmax(input, dim, output_type(dtype) if dtype is not None else _kept(input, lambda x: torch.softmax(x, -1)))


def _safe_functional_softmax(input, dim=None, _stacklevel=3, dtype=None):
    return NotImplemented if dim is None else _safe_softmax(input, dim, dtype)


def _safe_layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    dtype = _kept(input, lambda x: functional.layer_norm(x, (1,)))
    return norms.layer_norm(input, normalized_shape, weight, bias, eps, dtype)


def _safe_rms_norm(input, normalized_shape, weight=None, eps=None):
    epsilon = torch.finfo(torch.promote_types(input.dtype, torch.float32)).eps if eps is None else eps  # as PyTorch, also of FP16
    return norms.rms_norm(input, normalized_shape, weight, epsilon, _kept(input, lambda x: functional.rms_norm(x, (1,))))


def _safe_batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    return norms.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps, output_type(input.dtype))


def _safe_group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    dtype = _kept(input, lambda x: functional.layer_norm(x, (1,)))  # the same rule
    return norms.group_norm(input, num_groups, weight, bias, eps, dtype)


def _safe_gelu(input, approximate="none"):
    return activations.kernel("gelu" if approximate == "none" else "gelu_tanh", input, output_type(input.dtype))


def _activation(name: str, function: Callable) -> Callable:
    def safe(input, inplace=False):
        return NotImplemented if inplace else activations.kernel(name, input, _kept(input, function))
    return safe


HANDLERS: dict[Callable, Callable] = {
    functional.linear: _safe_linear,
    **dict.fromkeys((torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm), _safe_matmul),
    Tensor.__rmatmul__: _safe_rmatmul,
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _safe_addmm),
    **{function: _convolution(function) for function in
       (functional.conv1d, functional.conv2d, functional.conv3d, functional.conv_transpose1d, functional.conv_transpose2d,
        functional.conv_transpose3d)},
    functional.scaled_dot_product_attention: _safe_attention,
    torch.softmax: _safe_softmax, Tensor.softmax: _safe_softmax, functional.softmax: _safe_functional_softmax,
    functional.layer_norm: _safe_layer_norm, torch.layer_norm: _safe_layer_norm,
    functional.rms_norm: _safe_rms_norm, torch.rms_norm: _safe_rms_norm,
    functional.batch_norm: _safe_batch_norm, functional.group_norm: _safe_group_norm,
    functional.gelu: _safe_gelu,
    functional.silu: _activation("silu", functional.silu),
    functional.relu: _activation("relu", torch.relu), torch.relu: _activation("relu", torch.relu),
    Tensor.relu: _activation("relu", torch.relu),
    torch.exp: _activation("exp", torch.exp), Tensor.exp: _activation("exp", torch.exp),
}


def _safe(func: Callable, args: tuple, kwargs: dict):
    """A function in SAFE; NotImplemented for a form of it that is not known."""
    first = next(_tensors((args, kwargs)), None)
    if first is None or "out" in kwargs:
        return NotImplemented
    with torch._C.DisableTorchFunction():
        if func in HANDLERS and first.dtype in (*_NARROW, torch.float64):
            try:
                return HANDLERS[func](*args, **kwargs)
            except TypeError:  # another signature: in binary64 then
                pass
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.double() if x.dtype in _NARROW else x, (args, kwargs))
        with torch.autocast(first.device.type, enabled=False):
            return func(*args, **kwargs)


# --- STABLE, and values carried on


def _in_bf16(func: Callable, args: tuple, kwargs: dict):
    """A function with BF16 in the place of FP16, by autocast as well."""
    first = next(_tensors((args, kwargs)), None)
    if first is None:
        return func(*args, **kwargs)
    args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.bfloat16() if x.dtype == torch.float16 else x, (args, kwargs))
    if _autocast(first.device.type) == torch.float16:
        with torch.autocast(first.device.type, torch.bfloat16, cache_enabled=False):  # the cache may hold the weight in FP16
            return func(*args, **kwargs)
    return func(*args, **kwargs)


def _target(args: tuple, kwargs: dict, name: str) -> torch.dtype | None:
    """What a cast casts to."""
    if name == "half":
        return torch.float16
    given = (*args[1:], *kwargs.values())
    return next((value if isinstance(value, torch.dtype) else value.dtype for value in given
                 if isinstance(value, (torch.dtype, Tensor))), None)


class Lanes(TorchFunctionMode):
    """Active while one module runs. plan: its modes."""

    def __init__(self, owner: Modes, name: str, plan: Plan):
        super().__init__()
        self._owner, self._name, self._plan = owner, name, plan
        self._has_softmax = False  # the product that comes next is the one with the values

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._owner.is_passive or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:  # a Python function: what it calls is of interest
                return _multi_head_attention(*args, **kwargs)
        name = _name_of(func)
        if name in _CASTS:
            return self._cast(func, args, kwargs, name)
        if name in _JOINS:
            args, kwargs = self._unified(args, kwargs)
        if name not in ARITHMETIC:
            return self._call(func, args, kwargs)
        level = self._level(name)
        try:
            if level == Mode.SAFE:
                result = _safe(func, args, kwargs)
                if result is not NotImplemented:
                    return result
            in_bf16 = level == Mode.STABLE or self._must_carry(name, args, kwargs)
        except Exception as error:
            self._owner.failed(error)
            in_bf16 = False
        if in_bf16:
            return self._call(lambda *operands, **options: _in_bf16(func, operands, options), args, kwargs)
        if level == Mode.FAST:
            args, kwargs = self._unified(args, kwargs)
        return self._call(func, args, kwargs)

    def _call(self, func, args, kwargs):
        """As it was written, or with operands of one type where it takes no others."""
        fits = (lambda x: not _exceeds(x)) if self._plan.whole == Mode.FAST else None
        return joins.call(func, args, kwargs, lambda: _tensors((args, kwargs)), fits)

    def _carried(self) -> None:
        """A call runs in BF16 to keep a value."""
        self._owner.carried[self._name] += 1

    def _level(self, name: str) -> Mode:
        plan = self._plan
        if name == "scaled_dot_product_attention":
            return max(plan.whole, plan.logits, plan.softmax)
        if name == "softmax":
            self._has_softmax = True
            return max(plan.whole, plan.softmax)
        if name in _LOGITS:
            if self._has_softmax:
                self._has_softmax = False
                return plan.whole
            return max(plan.whole, plan.logits)
        return plan.whole

    def _cast(self, func, args, kwargs, name):
        tensor = args[0]
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            target = _target(args, kwargs, name)
            whole = self._plan.whole
            if whole == Mode.SAFE and tensor.dtype == torch.float64 and target in (*_NARROW, *_EIGHT_BITS):
                return tensor  # cast once, at the end of the module
            if whole != Mode.FAST and target in _EIGHT_BITS:
                return tensor.to(torch.bfloat16)
            if target == torch.float16 and tensor.dtype in (torch.bfloat16, torch.float32):
                carries = whole == Mode.FAST and _exceeds(tensor)
                if carries:
                    self._carried()
                if carries or whole != Mode.FAST:
                    return tensor.to(torch.bfloat16)
        return func(*args, **kwargs)

    def _must_carry(self, name: str, args, kwargs) -> bool:
        """Whether autocast would make an Inf of a finite operand of a product. Parameters are not looked at."""
        if name not in _PRODUCTS:
            return False
        operands = [x for x in _tensors((args, kwargs)) if not isinstance(x, nn.Parameter)]
        if not operands or _autocast(operands[0].device.type) != torch.float16:
            return False
        carries = any(_exceeds(x) for x in operands if x.dtype in (torch.bfloat16, torch.float32))
        if carries:
            self._carried()
        return carries

    def _unified(self, args, kwargs):
        """Without autocast FP16 does not mix with BF16: BF16 becomes FP16 where it fits, else FP16 becomes BF16."""
        found = list(_tensors((args, kwargs)))
        kinds = {x.dtype for x in found}
        if not {torch.float16, torch.bfloat16} <= kinds or _autocast(found[0].device.type) is not None:
            return args, kwargs
        source, target = torch.bfloat16, torch.float16
        if any(_exceeds(x) for x in found if x.dtype == torch.bfloat16):
            source, target = target, source
            self._carried()
        return pytree.tree_map_only(Tensor, lambda x: x.to(target) if x.dtype == source else x, (args, kwargs))


class _Active(threading.local):
    lanes = 0  # function modes of a guard that are active in this thread


_active = _Active()


class Modes:
    """Puts the modules of a model into modes.

    modules   by name, in the order of the model
    compiled  those that run inside code of torch.compile: their forward is taken out of it while a mode is in force
    own_type  (name, number of the output) -> type that the module hands out in FAST, None where that is not known
    failed    told an error of ours; must not raise
    """

    def __init__(self, modules: Mapping[str, nn.Module], compiled: set[nn.Module], own_type: Callable[[str, int], torch.dtype | None],
                 failed: Callable[[Exception], None]):
        self._modules, self._compiled, self._own_type = dict(modules), compiled, own_type
        self.failed = failed
        self.is_passive = False  # the guard has failed: what runs is as it was written
        self._handles: list = []
        self._replaced: list[tuple[nn.Module, Callable | None]] = []  # with what of the capture's stood there
        self.plans: dict[str, Plan] = {}
        self.carried: Counter[str] = Counter()  # module -> calls that ran in BF16 to keep a value

    def apply(self, plans: Mapping[str, Plan]) -> None:
        """The modes from now on; a module that is not named is in FAST. Call it between two steps."""
        plans = {name: plan for name, plan in plans.items() if not plan.is_fast}
        if plans == self.plans:
            return
        self.remove()
        self.plans = plans
        if not plans:
            return
        for name, module in self._modules.items():
            plan = plans.get(name, Plan())
            if module in self._compiled:
                if not plan.is_fast:
                    self._replace(name, module, plan)
                continue
            stack: list[Lanes | None] = []
            self._handles.append(module.register_forward_pre_hook(self._enter(name, plan, stack), prepend=True))
            if not plan.is_fast:
                self._handles.append(module.register_forward_hook(self._finish(name), prepend=True))
            self._handles.append(module.register_forward_hook(self._leave(stack), always_call=True))

    def remove(self) -> None:
        """Everything in FAST, as it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module, own in reversed(self._replaced):
            if own is None:
                vars(module).pop("forward", None)
            else:
                module.forward = own
        if self._replaced:
            torch.compiler.reset()
        self._replaced.clear()
        self.plans = {}

    def _enter(self, name: str, plan: Plan, stack: list) -> Callable:
        def enter(module, arguments) -> None:
            if torch.compiler.is_compiling():
                return
            lanes = None
            if _active.lanes == 0 or not plan.is_fast:
                lanes = Lanes(self, name, plan)
                lanes.__enter__()
                _active.lanes += 1
            stack.append(lanes)
        return enter

    @staticmethod
    def _leave(stack: list) -> Callable:
        def leave(module, arguments, output) -> None:
            """Runs after an exception too."""
            if not stack:
                return
            lanes = stack.pop()
            if lanes is not None:
                lanes.__exit__(None, None, None)
                _active.lanes -= 1
        return leave

    def _finish(self, name: str) -> Callable:
        """What is still binary64 becomes the module's output type."""
        def finish(module, arguments, output):
            number = -1

            def cast(tensor: Tensor) -> Tensor:
                nonlocal number
                number += 1
                if tensor.dtype != torch.float64:
                    return tensor
                own = self._own_type(name, number)
                return tensor.to(output_type(torch.float32 if own is None else own))

            with torch._C.DisableTorchFunction():
                return pytree.tree_map_only(Tensor, cast, output)
        return finish

    def _replace(self, name: str, module: nn.Module, plan: Plan) -> None:
        own = vars(module).get("forward")
        if own is not None and not getattr(own, IS_OURS, False):
            return  # somebody else replaced it: it is theirs
        original, finish = module.forward, self._finish(name)

        def forward(*arguments, **options):
            with Lanes(self, name, plan):
                result = original(*arguments, **options)
            return finish(module, arguments, result)

        torch.compiler.reset()  # what was compiled before knows nothing of it
        module.forward = torch.compiler.disable(forward)
        self._replaced.append((module, own))
