"""Rules on the largest magnitude so far: Megatron's spike test, TransformerEngine's delayed scaling."""
from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from opd.evaluate.detector import NO_VERDICT, Detector, Samples, spread


class MegatronSpike(Detector):
    """A sample of at least ten times the largest of the first 100, which is never adapted. No verdict on those 100.

    An operator whose first 100 samples are all zero alarms ever after: the rule says "at least"."""
    name = "megatron-10x"
    source = "NVIDIA/Megatron-LM, megatron/core/rerun_state_machine.py, is_unexpectedly_large"
    settings = {"threshold": 10, "num_samples": 100}
    unit = "max / largest of the first 100"
    threshold = 10.0
    sweep = spread(1.1, 10.0, 1000)
    inclusive = True
    samples_needed = 100
    state_bits = 32 + 7
    operations = {"multiply": 1, "compare": 2}

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        number = self.settings["num_samples"]
        count = np.cumsum(samples.finite, axis=0)  # the present sample included
        first = np.where(samples.finite & (count <= number), samples.magnitude, 0)
        largest = np.maximum.accumulate(first, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(largest == 0, np.inf, samples.magnitude / largest)
        return np.where(samples.finite & (count > number), score, NO_VERDICT)


class TransformerEngineAmax(Detector):
    """Delayed scaling: the FP8 scale follows the largest of the last 1024 maxima, so a sample above it saturates: the alarm.

    No verdict while the history holds nothing but zeros: the scale is then 1, of no operator's making."""
    name = "te-amax-history"
    source = "NVIDIA/TransformerEngine, DelayedScaling: amax_history_len 1024, amax_compute_algo max, margin 0"
    settings = {"amax_history_len": 1024, "margin": 0}
    unit = "max / largest of the history"
    threshold = 1.0
    sweep = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
    samples_needed = 1
    state_bits = 1024 * 32 + 32  # history and scale
    operations = {"divide": 1, "compare": 1025}  # the maximum anew at each sample

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        length = self.settings["amax_history_len"]
        score = np.full(samples.magnitude.shape, NO_VERDICT)
        for op in range(score.shape[1]):
            rows = np.flatnonzero(samples.finite[:, op])
            x = samples.magnitude[rows, op]
            largest = np.zeros(len(x))
            if len(x) > length:
                largest[length:] = sliding_window_view(x[:-1], length).max(axis=1)
            largest[1:length] = np.maximum.accumulate(x[:length - 1])[:len(largest[1:length])]
            known = largest > 0
            score[rows[known], op] = x[known] / largest[known]
        return score
