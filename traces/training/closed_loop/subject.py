"""What is trained in an arm: workload, optimizer and scaler of a scenario in the arm's precision, and its loss in FP32."""

from __future__ import annotations

import dataclasses
import math

import torch
from closed_loop.runs import Run
from faults import Injector
from loop import make_optimizer
from torch import Tensor
from workloads import KINDS
from workloads.text import Text
from workloads.workload import Batch, Workload, half_of

HELD_OUT_SEED = 1 << 20   # added to the seed of a run: of the batches that losses are taken on
HELD_OUT_BATCHES = 16
TWIN_NOISE = 2.0**-20     # relative change of every weight of the twin: a rounding error of FP32 or two


def precision_of(run: Run, wide: str | None) -> tuple[str, object]:
    """Precision and model settings of an arm. wide: "BF16" or "FP32" in the place of the scenario's own formats; casts to 8 bits
    are left out then."""
    settings = run.scenario.model_settings
    if wide is None:
        return run.scenario.training.precision, settings
    return wide, dataclasses.replace(settings, store="half") if hasattr(settings, "store") else settings


def build(run: Run, precision: str, settings, text: Text) -> Workload:
    torch.manual_seed(run.seed)
    return KINDS[run.scenario.model].build(settings, precision, run.scenario.training.batch, text)


class Subject:
    """Weights, data and their order depend on the run alone, not on the arm."""

    def __init__(self, run: Run, text: Text, wide: str | None = None, scaled: bool = True, perturbed: bool = False):
        """scaled: with a GradScaler where the scenario is in FP16; perturbed: weights start with a relative error of TWIN_NOISE."""
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self.run, self.settings = run, run.scenario.training
        self.precision, model_settings = precision_of(run, wide)
        self.workload = build(run, self.precision, model_settings, text)
        self.model = self.workload.model
        if perturbed:
            noise = torch.Generator().manual_seed(run.seed)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(1 + TWIN_NOISE * torch.randn(parameter.shape, generator=noise))
        self.injector = Injector(run.scenario.fault, self.workload, run.seed)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.settings.init_loss_scale,
                                           growth_interval=self.settings.loss_scale_growth,
                                           enabled=scaled and self.precision == "FP16")
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._hit: set[int] = set()

    def batches(self):
        """(index, batch), with what the scenario does to its data."""
        draw = torch.Generator().manual_seed(self.run.seed)
        for index in range(self.run.batches):
            yield index, self.injector.batch(index, self.workload.batch(draw))

    def begin(self, index: int) -> None:
        """Before the forward pass of a batch: learning rate, and what the scenario does to the model. A flipped bit is flipped
        once, however often the batch is tried."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(index)
        fault = self.run.scenario.fault
        again = fault is not None and fault.kind.startswith("flip-") and index in self._hit
        self._hit.add(index)
        self.injector.model(-1 if again else index)

    def loss(self, batch: Batch) -> Tensor:
        if self.precision == "FP32":
            return self.workload.loss(batch)
        with torch.autocast("cpu", half_of(self.precision)):
            return self.workload.loss(batch)

    def clip(self) -> Tensor:
        """Clips the gradients as the scenario does; their norm before."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or torch.inf)

    def is_finite(self) -> bool:
        """Parameters and buffers."""
        return all(bool(tensor.isfinite().all()) for tensor in (*self.model.parameters(), *self.model.buffers())
                   if tensor.is_floating_point())


class Judge:
    """Losses of an arm's weights in FP32, without its casts and faults in the model, on batches that no arm trains on."""

    def __init__(self, run: Run, text: Text):
        precision, settings = precision_of(run, "FP32")
        self._workload = build(run, precision, settings, text)
        self._injector = Injector(run.scenario.fault, self._workload, run.seed)
        self._drifts = run.scenario.fault is not None and run.scenario.fault.kind == "input-drift"
        draw = torch.Generator().manual_seed(HELD_OUT_SEED + run.seed)
        self._batches = [self._workload.batch(draw) for _ in range(HELD_OUT_BATCHES)]

    def loss(self, model: torch.nn.Module, index: int) -> float:
        """Mean over the held-out batches, data drifted as at that index; NaN when it is not finite. Random numbers of the run are
        left alone."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            own = self._workload.model
            own.load_state_dict(model.state_dict())
            own.eval()
            losses = [float(self._workload.loss(self._injector.batch(index, batch) if self._drifts else batch))
                      for batch in self._batches]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else math.nan
