"""Which operator of the vector unit (docs/vector_unit.md) a module or a function of PyTorch is, and what it computes from.

Two ways to tell, and no guess. While a module without children runs, a torch function mode sees the functions that it calls: its
operator is the one that made its output, with casts and changes of shape behind it left out. A module that is an RMS norm by its
name or its attributes is one when its input, its one parameter and its epsilon explain its output (is_explained); that is the only
place where a value is looked at.

Operands have the types that the operator computed with: those of a matrix product are cast as autocast casts them; where an operand
was widened first, which is exact, it is the narrower tensor. Found operators refer to the tensors of the run: whoever keeps them
has to copy them.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from opd.capture.probes import FORMAT_NAMES
from opd.trace_layout import KERNELS, MASK

PER_COLUMN = ("weight", "gain", "bias")  # operands that every row reads whole
TOLERANCE = 2.0**-4  # of an RMS norm's largest output: a sum in FP16 is no more exact, another formula is not that close

CASTS = {"to", "half", "float", "bfloat16", "type_as"}
MASKS = {"masked_fill", "where", "add"}
_SAME_ELEMENTS = {"contiguous", "view", "reshape", "flatten", "unsqueeze", "squeeze", "clone", "detach"}
_RMS_NORM = re.compile(r"rms_?norm", re.IGNORECASE)
_EPSILONS = ("eps", "epsilon", "variance_epsilon", "norm_eps")


class NotKnown(Exception):
    """Why something has no operands, as the end of a sentence."""


@dataclass(slots=True)
class Operator:
    """One execution. operands: [rows, columns] each, a mask of booleans or bytes; attribute: as Computation::attribute."""
    kernel: str
    rows: int
    columns: int
    operands: dict[str, Tensor]
    attribute: float | None = None
    batch: int = 1
    depth: int = 0

    def description(self) -> dict:
        """As in the trace (docs/formats.md), without the probe. Raises NotKnown for an operand that a trace has no format for."""
        shapes = {}
        for name, tensor in self.operands.items():
            shapes[name] = {"shape": list(tensor.shape)}
            if name != MASK:
                if tensor.dtype not in FORMAT_NAMES:
                    raise NotKnown(f"its operand {name} is {str(tensor.dtype).removeprefix('torch.')}, which no trace holds")
                shapes[name]["format"] = FORMAT_NAMES[tensor.dtype]
        kernel = KERNELS[self.kernel]
        matrix = {"batch": self.batch, "depth": self.depth} if kernel.is_matrix else {}
        attribute = {} if self.attribute is None else {kernel.attribute: float(self.attribute)}
        return {"kernel": self.kernel, "rows": self.rows, "columns": self.columns, **matrix, **attribute, "operands": shapes}


def output_elements(description: dict) -> int:
    rows = description.get("batch", 1) * description["rows"]
    return rows if KERNELS[description["kernel"]].shape == "row_reduction" else rows * description["columns"]


@dataclass(slots=True)
class Call:
    """A call of a PyTorch function. versions: of the tensors among its arguments, before it; version: of its result."""
    name: str
    args: tuple
    kwargs: dict
    result: Tensor
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    version: int = 0

    @property
    def is_intact(self) -> bool:
        """Whether its arguments are what they were."""
        return all(_version(tensor) == version for tensor, version in self.versions)


def _version(tensor: Tensor) -> int:
    """Grows with each change in place; of a tensor of inference mode nothing is known."""
    return 0 if tensor.is_inference() else tensor._version


class CallLog:
    """Calls by what they made."""

    def __init__(self):
        self._calls: dict[int, Call] = {}  # by identity of the result, which the call keeps alive

    def run(self, func: Callable, args: tuple, kwargs: dict):
        """Calls the function and notes it; what it changes in place is copied before."""
        name = getattr(func, "__name__", str(func))
        given = args
        with torch._C.DisableTorchFunction():
            if args and isinstance(args[0], Tensor) and _is_in_place(name, args, kwargs):
                with torch.no_grad():
                    given = (args[0].detach().clone(), *args[1:])
            versions = [(tensor, _version(tensor)) for tensor in (*given, *kwargs.values()) if isinstance(tensor, Tensor)]
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and not (given and result is given[0]):  # a cast to what it is makes nothing
            with torch._C.DisableTorchFunction():
                name = name if name.endswith("__") else name.rstrip("_")
                self._calls[id(result)] = Call(name, given, kwargs, result, versions, _version(result))
        return result

    def made(self, tensor: Tensor) -> Call | None:
        """The call that made a tensor what it is; None when it was there before, or was changed since."""
        call = self._calls.get(id(tensor))
        return call if call is not None and call.result is tensor and _version(tensor) == call.version else None

    def clear(self) -> None:
        self._calls.clear()


class Calls(TorchFunctionMode):
    """The functions that run while the mode is active. It only reads."""

    def __init__(self):
        super().__init__()
        self.log = CallLog()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self.log.run(func, args, kwargs or {})


def _is_in_place(name: str, args: tuple, kwargs: dict) -> bool:
    if name.endswith("_") and not name.endswith("__"):
        return True
    return bool(kwargs.get("inplace")) or (name in ("relu", "silu") and len(args) > 1 and args[1] is True)


def find(output: Tensor, made: Callable[[Tensor], Call | None]) -> Operator:
    """The operator that made a module's output. made: as CallLog.made. Raises NotKnown."""
    call, cast = made(output), None
    while call is not None and call.name in CASTS | _SAME_ELEMENTS and isinstance(call.args[0], Tensor):
        source = call.args[0]
        if call.result.numel() != source.numel() or (call.name == "view" and call.result.dtype != source.dtype):
            break
        cast = call if call.result.dtype != source.dtype else cast
        call = made(source)
    if call is None:
        if cast is not None:
            return Operator("cast", *_extent(cast.result), {"x": _matrix(cast.args[0])})
        raise NotKnown("no PyTorch function can be seen that makes its output")
    return operator_of(call, made)


def operator_of(call: Call, made: Callable[[Tensor], Call | None]) -> Operator:
    """The operator that a call is. Raises NotKnown."""
    build = _BUILDERS.get(call.name)
    if build is None:
        raise NotKnown(f"its output is made by {call.name}, which is no kernel of the vector unit")
    try:
        found = build(call, made)
    except (TypeError, IndexError, AttributeError, RuntimeError):
        raise NotKnown(f"its call of {call.name} has arguments that are not known here") from None
    if not call.is_intact:
        raise NotKnown(f"an operand of {call.name} is changed in place before it can be copied")
    if not call.result.numel():
        raise NotKnown("it has no element")
    return found


def rms_norm_of(module: nn.Module, arguments: tuple, output: Tensor) -> Operator:
    """A hand-written RMS norm by its name, its epsilon and its one parameter. Raises NotKnown; what is returned is still to be
    explained."""
    x = arguments[0] if arguments else None
    if not isinstance(x, Tensor) or x.shape != output.shape:
        raise NotKnown("its input is no positional argument with the shape of its output")
    found = [getattr(part, name, None) for part in module.modules() for name in _EPSILONS]
    epsilons = {value for value in found if isinstance(value, float)}
    parameters = list(module.parameters())
    if len(epsilons) != 1:
        raise NotKnown(f"it has {'no' if not epsilons else 'more than one'} epsilon among its attributes {', '.join(_EPSILONS)}")
    if len(parameters) > 1 or any(parameter.numel() != x.shape[-1] for parameter in parameters):
        raise NotKnown("its parameters are not one gain of its width")
    gain = {"gain": parameter.detach().reshape(1, -1) for parameter in parameters}
    return Operator("rms_norm", *_extent(x), {"x": _matrix(x), **gain}, epsilons.pop())


def is_rms_norm(module: nn.Module) -> bool:
    return bool(_RMS_NORM.search(type(module).__name__)) or hasattr(module, "variance_epsilon")


def is_explained(operator: Operator, output: Tensor) -> bool | None:
    """Whether an RMS norm of these operands gives the output; None where too little of it is finite to tell. Waits for the
    device."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), torch.autocast(output.device.type, enabled=False):
        x, wrote = operator.operands["x"].double(), _matrix(output).double()
        wanted = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + operator.attribute)
        if "gain" in operator.operands:
            wanted = wanted * operator.operands["gain"].double()
        finite = wanted.isfinite() & wrote.isfinite()
        if 2 * int(finite.sum()) < finite.numel():
            return None
        largest = float(wanted[finite].abs().max())
        if largest == 0:
            return None
        return bool((wanted - wrote)[finite].abs().max() <= TOLERANCE * largest)


# --- kernels ---------------------------------------------------------------------------------------------------------------

def _matrix(tensor: Tensor, columns: int | None = None) -> Tensor:
    with torch._C.DisableTorchFunction():
        return tensor.detach().reshape(-1, columns or (tensor.shape[-1] if tensor.dim() else 1))


def _extent(tensor: Tensor) -> tuple[int, int]:
    columns = tensor.shape[-1] if tensor.dim() else 1
    return tensor.numel() // max(1, columns), columns


def _argument(call: Call, position: int, name: str, default=None):
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def _exact(tensor: Tensor, made: Callable[[Tensor], Call | None]) -> Tensor:
    """The tensor before it was widened."""
    call = made(tensor)
    while call is not None and call.name in CASTS and isinstance(call.args[0], Tensor):
        source = call.args[0]
        if source.dtype not in FORMAT_NAMES or torch.promote_types(source.dtype, tensor.dtype) != tensor.dtype or not call.is_intact:
            break
        tensor = source
        call = made(tensor)
    return tensor


def _rows_of(tensor: Tensor, shape: torch.Size) -> Tensor:
    """[rows, columns] of an operand that is broadcast to a shape: as few rows as repeat one after the other."""
    if tensor.shape == shape:
        return _matrix(tensor)
    own = list(tensor.shape)
    while own and own[0] == 1:
        own.pop(0)
    if own and own == list(shape[len(shape) - len(own):]):
        return _matrix(tensor, shape[-1])
    with torch._C.DisableTorchFunction():
        return _matrix(tensor.detach().expand(shape))


def _linear(call: Call, made) -> Operator:
    x, weight, bias = (_argument(call, i, name) for i, name in enumerate(("input", "weight", "bias")))
    operands = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    operands = {name: _as_computed(tensor, call.result.dtype) for name, tensor in operands.items()}
    operands = {name: _matrix(tensor, len(weight) if name == "bias" else None) for name, tensor in operands.items()}
    return Operator("linear", len(operands["x"]), len(weight), operands, depth=weight.shape[1])


def _as_computed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As autocast hands it to a product whose result has the type."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return tensor.detach().to(dtype)


def _matmul(call: Call, made) -> Operator:
    left, right = _argument(call, 0, "input"), _argument(call, 1, "mat2" if call.name == "bmm" else "other")
    if call.name == "__rmatmul__":
        left, right = right, left
    return product(left, right, call.result.dtype)


def _baddbmm(call: Call, made) -> Operator:
    if call.kwargs.get("beta", 1) != 0:
        raise NotKnown("its product adds another tensor (baddbmm with beta other than 0)")
    return product(_argument(call, 1, "batch1"), _argument(call, 2, "batch2"), call.result.dtype, call.kwargs.get("alpha", 1))


def product(left: Tensor, right: Tensor, dtype: torch.dtype | None, factor: float = 1.0) -> Operator:
    """left [..., n, k] times right [..., k, m]. dtype: that the operands are cast to; None: they stay what they are."""
    if left.dim() < 2 or right.dim() < 2:
        raise NotKnown("it multiplies by a vector")
    if dtype is not None:
        left, right = _as_computed(left, dtype), _as_computed(right, dtype)
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        left, right = left.detach(), right.detach().transpose(-1, -2)
        if right.dim() == 2:
            batch, rows = 1, left.numel() // depth
        else:
            outer = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
            left, right = left.expand(*outer, -1, -1), right.expand(*outer, -1, -1)
            batch = math.prod(outer)
        return Operator("matmul", rows, columns, {"a": left.reshape(-1, depth), "b": right.reshape(-1, depth)}, factor, batch, depth)


def _softmax(call: Call, made) -> Operator:
    x = _argument(call, 0, "input")
    dim = _argument(call, 1, "dim")
    if dim not in (-1, x.dim() - 1):
        raise NotKnown("its softmax is not over the last dimension")
    x = _exact(x, made)
    masked, operands = _unmasked(made(x), x), None
    if masked is not None:
        before, visible = masked
        operands = {"x": _matrix(_exact(before, made)), "mask": _rows_of(visible, x.shape)}
    return Operator("softmax", *_extent(x), operands or {"x": _matrix(x)}, 1.0)


def _unmasked(call: Call | None, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """What a call that put -Inf into places of a tensor made x of, and the places that it left; None: it did something else, or
    the mask cannot be told from other numbers without waiting for a device."""
    if call is None or not call.args or not isinstance(call.args[0], Tensor) or not call.is_intact:
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if call.name == "masked_fill":
            before, hidden, value = call.args[0], _argument(call, 1, "mask"), _argument(call, 2, "value")
            if before.shape == x.shape and not isinstance(value, Tensor) and value == -math.inf:
                return before, ~hidden
        elif call.name == "where" and len(call.args) == 3:
            visible, before, value = call.args
            if isinstance(before, Tensor) and before.shape == x.shape and not isinstance(value, Tensor) and value == -math.inf:
                return before, visible
        elif call.name == "add" and len(call.args) == 2 and not call.kwargs and isinstance(call.args[1], Tensor):
            before, mask = call.args
            if before.shape == x.shape and not mask.requires_grad and mask.device.type == "cpu" and bool(
                    ((mask == 0) | (mask == -math.inf)).all()) and before.dtype == x.dtype:
                return before, mask == 0
    return None


def _norm(kernel: str):
    def build(call: Call, made) -> Operator:
        x = _exact(_argument(call, 0, "input"), made)
        columns = math.prod(_argument(call, 1, "normalized_shape"))
        gain = _argument(call, 2, "weight")
        bias = _argument(call, 3, "bias") if kernel == "layer_norm" else None
        epsilon = _argument(call, 4, "eps", 1e-5) if kernel == "layer_norm" else _argument(call, 3, "eps")
        if epsilon is None:
            epsilon = torch.finfo(call.args[0].dtype).eps
        operands = {"x": _matrix(x, columns)}
        operands |= {name: _matrix(_exact(tensor, made), columns) for name, tensor in (("gain", gain), ("bias", bias))
                     if tensor is not None}
        return Operator(kernel, x.numel() // columns, columns, operands, epsilon)
    return build


def _unary(kernel: str):
    def build(call: Call, made) -> Operator:
        x = _exact(_argument(call, 0, "input"), made)
        if x.shape != call.result.shape:
            raise NotKnown(f"its call of {call.name} changes the shape")
        name = "gelu_tanh" if kernel == "gelu" and _argument(call, 1, "approximate", "none") == "tanh" else kernel
        return Operator(name, *_extent(call.result), {"x": _matrix(x)})
    return build


def _power(call: Call, made) -> Operator:
    if _argument(call, 1, "exponent") != 2:
        raise NotKnown("it is a power other than the square")
    return _unary("square")(call, made)


def _binary(kernel: str):
    def build(call: Call, made) -> Operator:
        if call.kwargs.get("alpha", 1) != 1 or call.kwargs.get("rounding_mode"):
            raise NotKnown(f"its call of {call.name} scales or rounds")
        operands = (_argument(call, 0, "input"), _argument(call, 1, "other"))
        if all(isinstance(operand, Tensor) for operand in operands):
            a, b = (_rows_of(_exact(operand, made), call.result.shape) for operand in operands)
            return Operator(kernel, *_extent(call.result), {"a": a, "b": b})
        if kernel == "multiply" and isinstance(operands[0], Tensor):
            return Operator("scale", *_extent(call.result), {"x": _matrix(_exact(operands[0], made))}, float(operands[1]))
        raise NotKnown(f"its call of {call.name} has a number for an operand")
    return build


def _reduction(kernel: str):
    def build(call: Call, made) -> Operator:
        x, dim = _argument(call, 0, "input"), _argument(call, 1, "dim")
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        if type(dim) is not int or dim not in (-1, x.dim() - 1):
            raise NotKnown(f"its {kernel} is not over the last dimension")
        squares = made(x)
        is_square = squares is not None and (
            squares.name == "square" or (squares.name == "pow" and _argument(squares, 1, "exponent") == 2)
            or (squares.name == "mul" and squares.args[0] is squares.args[1]))
        if kernel == "sum" and is_square and squares.is_intact:
            x = squares.args[0]
            return Operator("sum_of_squares", *_extent(x), {"x": _matrix(_exact(x, made))})
        return Operator(kernel, *_extent(x), {"x": _matrix(_exact(x, made))})
    return build


_BUILDERS = {
    "linear": _linear, "matmul": _matmul, "bmm": _matmul, "__matmul__": _matmul, "__rmatmul__": _matmul, "baddbmm": _baddbmm,
    "softmax": _softmax, "layer_norm": _norm("layer_norm"), "rms_norm": _norm("rms_norm"),
    "gelu": _unary("gelu"), "silu": _unary("silu"), "relu": _unary("relu"), "exp": _unary("exp"),
    "reciprocal": _unary("reciprocal"), "rsqrt": _unary("rsqrt"), "square": _unary("square"), "pow": _power,
    "add": _binary("add"), "sub": _binary("subtract"), "mul": _binary("multiply"),
    "sum": _reduction("sum"), "mean": _reduction("mean"), "amax": _reduction("maximum"),
}
