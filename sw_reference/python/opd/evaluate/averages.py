"""Rules on a moving average of the magnitude: ZClip, OLMo's skipped steps, msprobe's turbulence."""
from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from opd.evaluate.detector import NO_VERDICT, Detector, Samples, ratio, spread


class ZClip(Detector):
    """z against exponential averages of mean and variance; an outlier enters them clipped, z > z_thresh raises an alarm.

    The first 25 samples give mean and variance and no verdict. The variance is updated with the mean that was just updated."""
    name = "zclip"
    source = "bluorion-com/ZClip, zclip/zclip.py, mode zscore, clip_option adaptive_scaling"
    settings = {"alpha": 0.97, "z_thresh": 2.5, "warmup_steps": 25, "eps": 1e-6}
    unit = "z"
    threshold = 2.5
    sweep = spread(1, 2.5, 40)
    adaptive = True  # the threshold sets what an outlier is clipped to
    state_bits = 25 * 32 + 5  # the samples of the warm-up, whose place mean and variance take, and their number
    operations = {"add": 6, "multiply": 6, "divide": 3, "root": 1, "compare": 1}  # with a clipped sample

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        alpha, eps, warmup = (self.settings[key] for key in ("alpha", "eps", "warmup_steps"))
        steps, probes = samples.magnitude.shape
        score = np.full((steps, probes), NO_VERDICT)
        count = np.zeros(probes, int)
        buffer = np.zeros((warmup, probes))
        mean, variance = np.zeros(probes), np.zeros(probes)
        for s in range(steps):
            x, finite = samples.magnitude[s], samples.finite[s]
            warm = finite & (count >= warmup)
            new = finite & ~warm
            buffer[count[new], new] = x[new]
            count[new] += 1
            seeded = new & (count == warmup)
            mean[seeded] = buffer[:, seeded].mean(axis=0)
            variance[seeded] = buffer[:, seeded].var(axis=0)
            deviation = np.sqrt(variance)
            z = (x - mean) / (deviation + eps)
            score[s, warm] = z[warm]
            clipped = warm & (z > threshold)
            taken = x.copy()
            taken[clipped] = mean[clipped] + threshold * deviation[clipped] / (z[clipped] / threshold)
            mean[warm] = alpha * mean[warm] + (1 - alpha) * taken[warm]
            variance[warm] = alpha * variance[warm] + (1 - alpha) * (taken[warm] - mean[warm]) ** 2
        return score


class OlmoSkipStep(Detector):
    """|z| against mean and standard deviation of the last 128 samples, the present one excluded; both sides count.

    No verdict before max(20, 128 / 2) samples, the present one included. Where neither the window nor the sample moves (0 / 0)
    there is no alarm; the source would skip that step."""
    name = "olmo-6-sigma"
    source = "allenai/OLMo-core, src/olmo_core/optim/skip_step_optimizer.py"
    settings = {"rolling_interval_length": 128, "sigma_factor": 6}
    unit = "|z|"
    threshold = 6.0
    sweep = spread(1.5, 6.0, 60)
    state_bits = 128 * 32 + 8  # window and number of samples
    operations = {"add": 383, "multiply": 128, "divide": 3, "root": 1, "compare": 1}  # mean and deviation anew at each sample

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        length = self.settings["rolling_interval_length"]
        least = max(20, length // 2) - 1  # samples before the present one
        score = np.full(samples.magnitude.shape, NO_VERDICT)
        for op in range(score.shape[1]):
            rows = np.flatnonzero(samples.finite[:, op])
            x = samples.magnitude[rows, op]
            mean, deviation = np.empty(len(x)), np.empty(len(x))
            for position in range(least, min(length, len(x))):  # a window that is not yet full
                mean[position], deviation[position] = x[:position].mean(), x[:position].std(ddof=1)
            if len(x) > length:
                windows = sliding_window_view(x[:-1], length)
                mean[length:], deviation[length:] = windows.mean(axis=1), windows.std(axis=1, ddof=1)
            score[rows[least:], op] = ratio(np.abs(x - mean)[least:], deviation[least:])
        return score


class MsprobeTurbulence(Detector):
    """A sample more than 50 % above the exponential average of those before it."""
    name = "msprobe-turbulence"
    source = "Ascend/msprobe monitor, AnomalyTurbulence with the threshold 0.5 of its documentation, average with beta 0.99"
    settings = {"threshold": 0.5, "beta": 0.99}
    unit = "max / average"
    threshold = 1.5
    sweep = spread(1.05, 1.5, 100)
    state_bits = 32 + 1  # average, and whether there is one
    operations = {"add": 1, "multiply": 3, "compare": 1}

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        beta = self.settings["beta"]
        score = np.full(samples.magnitude.shape, NO_VERDICT)
        average = np.full(score.shape[1], np.nan)
        for s, (x, finite) in enumerate(zip(samples.magnitude, samples.finite)):
            average = np.where(finite & np.isnan(average), x, average)
            score[s, finite] = ratio(x, average)[finite]
            average = np.where(finite, beta * average + (1 - beta) * x, average)
        return score
