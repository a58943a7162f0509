"""Hooks on a model: outputs, their gradients, parameter gradients, and the scope of attention modules.

Hooks read and return nothing, so the run computes what it computes without them. What a checkpointed segment computes a
second time, inside backward, is not recorded again. Code that torch.compile has taken is left alone (`compiled="skip"`): its
hooks vanish while it is traced; with "split" they cut it at every probe, and attention modules run as they are written.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from opd.capture.amp import in_backward
from opd.capture.attention import AttentionMode
from opd.capture.operators import Calls, NotKnown, Operator, find, is_explained, is_rms_norm, rms_norm_of
from opd.capture.probes import Selection, clean_name, is_attention

COMPILED = ("skip", "split")
IS_OURS = "_is_opd"  # attribute of a forward that was put in a module's own place


def is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def compiled_parts(model: nn.Module) -> set[nn.Module]:
    """Modules that run inside code of torch.compile, hooks and all: everything below a wrapper of torch.compile, and a module
    that was compiled in place with everything below it."""
    inside = set()
    for module in model.modules():
        if is_compiled(module) and module not in inside:
            inside.update(part for part in module.modules() if part is not module or not hasattr(module, "_orig_mod"))
    return inside


def tensors_of(output) -> Iterator[tuple[str, Tensor]]:
    """Suffix and tensor of each tensor in a module's output: the first has no suffix, the others `[1]`, `[2]`, ..."""
    if isinstance(output, Tensor):
        yield "", output
        return
    found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    for number, tensor in enumerate(found):
        yield f"[{number}]" if number else "", tensor


class ModelHooks:
    """Everything hooked into one model, without keeping it alive.

    session: has `listening` (this step is recorded), `inference` (all passes are) and `operands` (None: no operator is looked for),
    `begin_pass`, `observe`, `keep` and `record` of opd.capture.session.Capture, and `guard(function)` and `guarded(function, ...)`,
    which never raise into the run.
    """

    def __init__(self, session, prefix: str, model: nn.Module, selection: Selection, sideband: str, compiled: str):
        self._session, self._selection, self._sideband = session, selection, sideband
        self._model = weakref.ref(model)
        self._handles = []
        self._scopes: list[tuple[nn.Module, AttentionMode | None]] = []  # attention modules being run; the outermost has a mode
        self._split = compiled == "split"
        self._calls: list[tuple[nn.Module, Calls]] = []  # modules being run whose functions are watched
        self._explained: dict[str, bool] = {}            # hand-written norms by name: whether their output is explained
        within = compiled_parts(model)
        inside = set() if self._split else within
        if self._split:
            torch.compiler.reset()  # what was compiled before knows of no hook
        self._prefix = prefix
        names = {module: self._name(prefix, name) for name, module in model.named_modules()}
        self.skipped_names = [names[module] for module in names if module in inside]
        self.names = list(names.values())

        outside = [(module, name) for module, name in names.items() if module not in inside]
        if model not in inside:
            self._hook(model.register_forward_pre_hook, self._on_call)
        for module, name in outside:
            if selection.wants_output(name, module):
                watched = session.operands is not None and not any(module.children()) and module not in within
                if watched:
                    self._hook(module.register_forward_pre_hook, self._watch_calls)
                self._hook(module.register_forward_hook, partial(self._on_output, name, module in within))
                if watched:
                    self._hook(module.register_forward_hook, self._leave_calls, always_call=True)
        self._forwards: list[weakref.ref[nn.Module]] = []  # attention modules whose forward is replaced
        if selection.has("logits") or selection.has("softmax"):
            scopes = [(module, name) for module, name in outside if _is_scope(name, module)] or [(model, names[model])]
            for module, name in scopes:
                if not (selection.wants("logits", name) or selection.wants("softmax", name)):
                    continue
                if module in within:
                    if self._split:
                        self._run_uncompiled(name, module)
                elif not any(map(is_compiled, module.modules())):
                    self._hook(module.register_forward_pre_hook, partial(self._enter_attention, name))
                    self._hook(module.register_forward_hook, self._leave_attention, always_call=True)
        for name, parameter in self.parameters().items():
            if parameter.requires_grad and selection.wants("gradient", name):
                hook = session.guard(partial(self._on_gradient, name, "", 1))
                self._handles.append(parameter.register_hook(hook))

    @property
    def training(self) -> bool:
        """Whether a forward pass now is one of training: validation in eval mode without gradients is not."""
        return self._is_training() or torch.is_grad_enabled() or self._session.inference

    def parameters(self) -> dict[str, nn.Parameter]:
        """By clean name."""
        model = self._model()
        return {} if model is None else {self._name(self._prefix, name): p for name, p in model.named_parameters()}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module in filter(None, (reference() for reference in self._forwards)):
            del module.forward  # the class's own appears again
        self._forwards.clear()

    @staticmethod
    def _name(prefix: str, name: str) -> str:
        return ".".join(part for part in (prefix, clean_name(name)) if part) or "model"

    def _hook(self, register: Callable, function: Callable, **options) -> None:
        body = self._session.guard(function)
        if self._split:
            hook = torch.compiler.disable(body)
        else:
            def hook(*arguments):
                if not torch.compiler.is_compiling():
                    body(*arguments)
        self._handles.append(register(hook, **options))

    def _run_uncompiled(self, name: str, module: nn.Module) -> None:
        """Takes an attention module out of the compiled code around it, with the mode inside."""
        if "forward" in vars(module):
            return  # somebody else replaced it: it is theirs
        original = module.forward

        def forward(*arguments, **options):
            self._session.guarded(self._enter_attention, name, module, arguments)
            try:
                return original(*arguments, **options)
            finally:
                self._leave_attention(module, arguments, None)

        module.forward = torch.compiler.disable(forward)
        setattr(module.forward, IS_OURS, True)
        self._forwards.append(weakref.ref(module))

    def _is_training(self) -> bool:
        model = self._model()
        return model is not None and model.training

    def _on_call(self, module: nn.Module, arguments) -> None:
        if self._session.listening and self.training and not in_backward():
            self._session.begin_pass(self._is_training(), torch.is_grad_enabled())

    def _watch_calls(self, module: nn.Module, arguments) -> None:
        if self._session.listening and self.training and not in_backward():
            calls = Calls()
            calls.__enter__()
            self._calls.append((module, calls))

    def _leave_calls(self, module: nn.Module, arguments, output) -> Calls | None:
        """What the module called; runs after an exception too."""
        if not self._calls or self._calls[-1][0] is not module:
            return None
        _, calls = self._calls.pop()
        calls.__exit__(None, None, None)
        return calls

    def _operator(self, name: str, is_compiled: bool, module: nn.Module, arguments, output: Tensor, calls: Calls | None) -> Operator:
        """The operator that made the output of a module. Raises NotKnown."""
        if is_compiled:
            raise NotKnown("it runs as code of torch.compile, whose functions cannot be seen")
        is_whole = any(module.children())
        try:
            if is_whole:
                raise NotKnown("it is made of other modules; name one of them")
            operator = find(output, (lambda tensor: None) if calls is None else calls.log.made)
        except NotKnown:
            if not is_rms_norm(module):
                raise
            operator = None
        if operator is not None and (operator.kernel == "rms_norm" or not is_rms_norm(module)):
            return operator
        norm = rms_norm_of(module, arguments, output)
        if name not in self._explained:
            explained = is_explained(norm, output)
            if explained is not None:
                self._explained[name] = explained
        if not self._explained.get(name, True):
            raise NotKnown("its output is not that of an RMS norm of its input, its parameter and its epsilon")
        return norm

    def _on_output(self, name: str, is_compiled: bool, module: nn.Module, arguments, output) -> None:
        calls = self._leave_calls(module, arguments, output)
        if not self._session.listening:
            return
        training, gradients = self._is_training(), torch.is_grad_enabled()
        if not (training or gradients or self._session.inference):
            return  # validation
        recomputed = in_backward()
        for suffix, tensor in tensors_of(output):
            call = 1
            if not recomputed:
                look = None
                if self._session.operands is not None and not suffix:
                    look = partial(self._operator, name, is_compiled, module, arguments, tensor, calls)
                call = self._session.see_output(name, suffix, tensor, training, gradients, look)
            # A reentrant checkpoint builds the graph only when it computes again.
            if tensor.requires_grad and tensor.is_floating_point() and self._selection.wants("gradient", name):
                tensor.register_hook(self._session.guard(partial(self._on_gradient, name, suffix, call)))

    def _on_gradient(self, name: str, suffix: str, call: int, gradient: Tensor) -> None:
        if self._session.listening:
            self._session.record(name, "gradient", gradient, f"{suffix}:grad", call)

    def _enter_attention(self, name: str, module: nn.Module, arguments) -> None:
        mode = None
        if not self._scopes and self._session.listening and self.training and not in_backward():
            mode = AttentionMode(self._session, name, self._sideband, self._selection.wants("logits", name),
                                 self._selection.wants("softmax", name), self._is_training())
            mode.__enter__()
        self._scopes.append((module, mode))

    def _leave_attention(self, module: nn.Module, arguments, output) -> None:
        """Runs after an exception too."""
        if self._scopes and self._scopes[-1][0] is module:
            _, mode = self._scopes.pop()
            if mode is not None:
                mode.__exit__(None, None, None)


def _is_scope(name: str, module: nn.Module) -> bool:
    """Whether a module is one attention, not a model of several: at most one module below it is an attention with parts."""
    below = [part for child, part in module.named_modules() if part is not module and any(part.children())
             and is_attention(child, part)]
    return is_attention(name, module) and len(below) <= 1
