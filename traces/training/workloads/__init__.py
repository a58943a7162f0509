"""The kinds of model that a run may train. Each has a settings class and a workload class; new ones are entered here."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple


class Kind(NamedTuple):
    """Where a kind of model is: its module, imported when a run needs it."""
    module: str
    workload: str

    @property
    def settings(self) -> type:
        """Its settings, a frozen dataclass whose fields may stand in a scenario."""
        return import_module(self.module).Settings

    def build(self, settings, precision: str, batch: int, text):
        """The workload. Raises ValueError for settings that do not fit, DataError for data that is not there."""
        return getattr(import_module(self.module), self.workload)(settings, precision, batch, text)


KINDS = {
    "gpt": Kind("workloads.gpt", "GptWorkload"),
    "moe": Kind("workloads.moe", "MoeWorkload"),
    "recurrent": Kind("workloads.recurrent", "RecurrentWorkload"),
    "convnet": Kind("workloads.convnet", "ConvnetWorkload"),
    "minilm": Kind("workloads.minilm", "MiniLmWorkload"),
    "vit": Kind("workloads.vit", "VitWorkload"),
    "t5": Kind("workloads.t5", "T5Workload"),
}
