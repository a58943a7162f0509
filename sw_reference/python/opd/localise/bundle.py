"""An incident bundle: a folder with what it takes to replay one step (docs/localise.md "Bundle").

    bundle.json          version, versions of the writer, step, loss scale, autocast, what was seen, learning rates, SHA-256 of the other
                         files
    tensors.safetensors  parameters and buffers from before the step, the tensors of the batch, random states
    module.pickle        the module, the batch's nesting and the function of the step, without tensors: pickle, which executes code when
                         it is loaded
    main.py              the script that was run, where something in the pickle is defined in it
    state.safetensors    tensors of the optimizers' and the scaler's state, which bundle.json has the rest of
    history.safetensors  a trace of the last steps of the run

Reading checks everything before the pickle is touched, and touches it only when told that the bundle is trusted.
"""
from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import platform
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from opd.localise.bundle_info import DTYPES, HISTORY, INFO, MAIN, MODULE, STATE, TENSORS, VERSION, read_bytes, read_info
from opd.localise.errors import LocaliseError
from opd.localise.finding import Finding, Seen
from opd.localise.hooks import without_our_hooks
from opd.localise.nested import flattened, rebuilt
from opd.localise.random_state import RandomStates, random_states
from opd.localise.script import definitions, main_script
from opd.texts import quoted
from opd.trace import Trace, TraceError

MAIN_MODULE = "__opd_main__"  # name under which the script of a bundle runs, as __mp_main__ is that of multiprocessing
DTYPES_OF = dict(zip(DTYPES, (torch.float16, torch.bfloat16)))


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and rebuilt. optimizers: state_dict() of each, scaler: that of the GradScaler; history: the last steps of the
    run, the incident included. missing: the device that its tensors were on, where that is not here: they are on the CPU then."""
    path: Path
    info: dict
    model: nn.Module
    batch: object
    step: Callable[[], Tensor]
    states: RandomStates
    optimizers: tuple[dict, ...] = ()
    scaler: dict | None = None
    history: Trace | None = None
    missing: str | None = None

    def localise(self) -> Finding:
        from opd.localise.search import localise

        info, autocast, seen = self.info, self.info["autocast"], self.info["seen"]
        if autocast is not None:
            autocast = {"device": "cpu" if self.missing else autocast["device"], "dtype": DTYPES_OF[autocast["dtype"]]}
        finding = localise(self.step, self.model, batch=self.batch, number=info["step"], loss_scale=info["loss_scale"], autocast=autocast,
                        rates=info["rates"],
                        seen=None if seen is None else Seen(**seen), states=self.states)
        return replace(finding, evidence=(*finding.evidence, info["note"])) if info["note"] else finding


def write_bundle(path: str | os.PathLike, model: nn.Module, batch, step: Callable | nn.Module | None = None, *, number: int = 0,
                 loss_scale: float = 1.0,
                 autocast: Mapping | None = None, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
                 seen: Seen | None = None, state: Mapping[str, Tensor] | None = None, states: RandomStates | None = None, scaler=None,
                 history: Trace | None = None, note: str = "") -> Path:
    """Writes a bundle as a folder that is there as a whole or not at all, and returns its path.

    step    a function of (model, batch) that returns the loss, importable or defined in the script; a loss module, then the batch is
            (inputs, targets); None: the model
            itself returns it, called with the batch (a mapping as keywords, a tuple or list as arguments)
    state   state_dict() from before the step, states: random_states() from before it; by default those of now: right where neither was
            changed since
    optimizer, scaler: their states are written as well, as they are now
    history a trace of the last steps
    note    a sentence about what the bundle does not hold
    Other arguments as of localise. Raises LocaliseError for what cannot be written.
    """
    from opd.localise.search import _check, optimizers_of, rates_of

    path = Path(path)
    _check(model, loss_scale, autocast)
    if autocast is not None and autocast["dtype"] not in DTYPES_OF.values():
        raise LocaliseError(f"autocast: {autocast['dtype']} is neither torch.float16 nor torch.bfloat16")
    if path.exists():
        raise LocaliseError(f"{path}: is there already; give another path")
    if isinstance(model, DistributedDataParallel):
        model = model.module
    tensors, keys = {}, {}
    data = _pickled({"model": model, "batch": batch, "step": step}, tensors, keys)
    for name, tensor in (state or {}).items():
        own = dict(model.state_dict(keep_vars=True)).get(name)
        if own is None or own.shape != tensor.shape:
            raise LocaliseError(f"state: {quoted(name)} is no tensor of the model with that shape; give the model's own state_dict()")
        tensors[keys[id(own)]] = tensor
    states = states or random_states()
    tensors |= {"random/cpu": states.cpu, **{f"random/cuda.{i}": s for i, s in enumerate(states.cuda)},
                "random/numpy": torch.from_numpy(np.asarray(states.numpy[1], np.int64)),
                "random/python": torch.tensor(states.python[1], dtype=torch.int64)}
    optimizers = optimizers_of(optimizer)
    held: dict[str, Tensor] = {}
    states_of = [{"class": type(item).__name__, "state": flattened(item.state_dict(), "optimizer", held)} for item in optimizers]
    scaler_state = None if scaler is None else flattened(scaler.state_dict(), "scaler", held)
    files = {MODULE: data, TENSORS: _saved(tensors)}
    if held:
        files[STATE] = _saved(held)
    if history is not None:
        files[HISTORY] = _history_bytes(history)
    script = main_script()
    if b"__main__" in data:
        if script is None:
            raise LocaliseError("model: it, or the step, is defined in __main__, which is no file here; define it in a module that can "
                                "be imported")
        files[MAIN], of_script = definitions(Path(script).read_bytes())
        note = " ".join(filter(None, (note, of_script)))
    info = {
        "bundle": VERSION, "step": number, "loss_scale": float(loss_scale), "seen": None if seen is None else asdict(seen),
        "autocast": None if autocast is None else {"device": autocast["device"], "dtype": str(autocast["dtype"]).removeprefix("torch.")},
        "rates": rates_of(model, optimizers), "optimizers": states_of, "scaler": scaler_state,
        "note": note, "training": model.training,
        "random": {"python_version": states.python[0], "python_gauss": states.python[2],
                   "numpy": [states.numpy[0], *(float(x) if i == 2 else int(x) for i, x in enumerate(states.numpy[2:]))]},
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "search_path": [os.path.abspath(entry or ".") for entry in sys.path if os.path.isdir(entry or ".")],
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    files[INFO] = (json.dumps(info, indent=1, allow_nan=False) + "\n").encode()
    try:
        folder = Path(tempfile.mkdtemp(prefix=path.name + ".", dir=path.parent))
        try:
            for name, content in files.items():
                with open(folder / name, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
            os.rename(folder, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise LocaliseError(f"{path}: cannot be written ({error.strerror}); give a path in a folder that is there and has room") from None
    return path


def free_path(path: Path) -> Path:
    """The path, or with .2, .3, ... behind it where it is taken."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def _saved(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def _history_bytes(history: Trace) -> bytes:
    try:
        return history.to_bytes("history")
    except TraceError as error:
        raise LocaliseError(f"history: {error}") from None


# --- pickle without tensors ------------------------------------------------------------------------------------------------

class _Pickler(pickle.Pickler):
    """Tensors go into a table and are named by it: one that is used twice stays one. Hooks of opd stay behind."""

    def __init__(self, stream, tensors: dict[str, Tensor], keys: dict[int, str]):
        super().__init__(stream, protocol=5)
        self._tensors, self._keys = tensors, keys

    def persistent_id(self, value):
        if not isinstance(value, Tensor):
            return None
        key = self._keys.get(id(value))
        if key is None:
            key = self._keys[id(value)] = f"tensor/{len(self._keys)}"
            self._tensors[key] = value
        return key, isinstance(value, nn.Parameter), value.requires_grad, str(value.device)

    def reducer_override(self, value):
        if not isinstance(value, nn.Module):
            return NotImplemented
        reduced = list(value.__reduce_ex__(2))
        if isinstance(reduced[2], dict):
            reduced[2] = without_our_hooks(reduced[2])
        return tuple(reduced)


def _pickled(content: dict, tensors: dict[str, Tensor], keys: dict[int, str]) -> bytes:
    stream = io.BytesIO()
    for name, value in content.items():
        try:
            _Pickler(stream, tensors, keys).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            what = "define it at the top level of a module or script, without lambdas" if name != "batch" else "give tensors, lists, mappings"
            raise LocaliseError(f"{name}: cannot be pickled ({str(error).splitlines()[0]}); {what}, or call localise() in the process "
                                "itself") from None
    return stream.getvalue()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, tensors: dict[str, Tensor], main: types.ModuleType | None):
        super().__init__(stream)
        self._tensors, self._main = tensors, main
        self.missing: str | None = None  # a device that is not here

    def persistent_load(self, value):
        key, is_parameter, gradient, device = value
        if not _is_here(device):
            self.missing, device = device, "cpu"
        tensor = self._tensors[key]
        if tensor.device != torch.device(device):
            tensor = self._tensors[key] = tensor.to(device)
        if not is_parameter:
            return tensor.requires_grad_(gradient) if tensor.is_floating_point() else tensor
        if not isinstance(tensor, nn.Parameter):
            tensor = self._tensors[key] = nn.Parameter(tensor, gradient)
        return tensor

    def find_class(self, module: str, name: str):
        if module == "__main__":
            value = self._main
            for part in name.split("."):
                value = getattr(value, part)
            return value
        return super().find_class(module, name)


def _is_here(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # AssertionError: PyTorch without CUDA
        return False
    return True


def _main_of(file: Path) -> types.ModuleType | None:
    """Runs the script under another name, as multiprocessing does: what stands behind `if __name__ == "__main__"` does not run."""
    if not file.exists():
        return None
    module = types.ModuleType(MAIN_MODULE)
    module.__file__ = str(file)
    sys.modules[MAIN_MODULE] = module
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module


# --- reading ---------------------------------------------------------------------------------------------------------------

def read_bundle(path: str | os.PathLike, *, trust: bool = False) -> Bundle:
    """Reads and rebuilds a bundle. trust: whether the code in it may run. Raises LocaliseError, which names file, field and remedy;
    nothing of the bundle's code has run then, but for errors in that code itself."""
    path = Path(path)
    info = read_info(path)
    contents = {}
    for name, digest in info["sha256"].items():
        contents[name] = read_bytes(path / name)
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise LocaliseError(f"{path / name}: its SHA-256 is not the one that sha256.{name} of {INFO} says: it was changed or "
                                "damaged; copy the bundle again from where it "
                                "was written")
    for name in (MAIN, STATE, HISTORY):
        if name not in info["sha256"] and (path / name).exists():
            raise LocaliseError(f"{path / name}: is not listed in sha256 of {INFO}: it was put there later; remove it")
    try:
        tensors = safetensors.torch.load(contents[TENSORS])
        states = _states(tensors, info["random"])
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise LocaliseError(f"{path / TENSORS}: random states or tensors cannot be read ({str(error).splitlines()[0]}); write the "
                            "bundle again") from None
    optimizers, scaler = _optimizer_states(path, info, contents.get(STATE))
    try:
        history = None if HISTORY not in contents else Trace.parse(contents[HISTORY], str(path / HISTORY))
    except TraceError as error:
        raise LocaliseError(str(error)) from None
    if not trust:
        raise LocaliseError(f"{path / MODULE}: rebuilding the model executes code of the bundle; where it comes from a source that you "
                            "trust, give --trust (trust=True)")
    sys.path += [folder for folder in info["search_path"] if folder not in sys.path]
    try:
        stream = io.BytesIO(contents[MODULE])
        main = _main_of(path / MAIN)
        unpickled = [_Unpickler(stream, tensors, main) for _ in range(3)]
        model, batch, step = (unpickler.load() for unpickler in unpickled)
        missing = next((unpickler.missing for unpickler in unpickled if unpickler.missing), None)
    except (Exception, SystemExit) as error:  # whatever that code raises, a script that parses a command line included
        versions = ", ".join(f"{name} {version}" for name, version in info["versions"].items())
        raise LocaliseError(f"{path / MODULE}: the model cannot be rebuilt ({type(error).__name__}: "
                            f"{str(error).partition(chr(10))[0]}); run it in the environment of the training "
                            f"({versions}), with its modules on PYTHONPATH") from None
    return Bundle(path, info, model, batch, _step_of(model, batch, step), states, optimizers, scaler, history, missing)


def _step_of(model: nn.Module, batch, step) -> Callable[[], Tensor]:
    if isinstance(step, nn.Module):
        return lambda: step(model(batch[0]), batch[1])
    if step is not None:
        return lambda: step(model, batch)
    if isinstance(batch, Mapping):
        return lambda: model(**batch)
    return (lambda: model(*batch)) if isinstance(batch, (list, tuple)) else lambda: model(batch)


def _optimizer_states(path: Path, info: dict, content: bytes | None) -> tuple[tuple[dict, ...], dict | None]:
    try:
        tensors = {} if content is None else safetensors.torch.load(content)
        return tuple(rebuilt(entry["state"], tensors) for entry in info["optimizers"]), rebuilt(info["scaler"], tensors)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise LocaliseError(f"{path / STATE}: states of the optimizers cannot be read ({str(error).splitlines()[0]}); write the bundle "
                            "again") from None


def _states(tensors: dict[str, Tensor], info: dict) -> RandomStates:
    cuda = sorted((name for name in tensors if name.startswith("random/cuda.")), key=lambda name: int(name.rpartition(".")[2]))
    kind, position, has_gauss, cached = info["numpy"]
    numpy = (kind, tensors["random/numpy"].numpy().astype(np.uint32), position, has_gauss, cached)
    python = (info["python_version"], tuple(tensors["random/python"].tolist()), info["python_gauss"])
    return RandomStates(tensors["random/cpu"], tuple(tensors[name] for name in cuda), python, numpy)
