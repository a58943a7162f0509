"""Rules on a moving average of the magnitude: ZClip, OLMo's skipped steps, msprobe's turbulence."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from opd.evaluate.detector import NO_VERDICT, Detector, Samples, Verdict, ratio, spread


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
    samples_needed = 25
    state_bits = 25 * 32 + 5  # the samples of the warm-up, whose place mean and variance take, and their number
    operations = {"add": 6, "multiply": 6, "divide": 3, "root": 1, "compare": 1}  # with a clipped sample

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        return np.array([z[0] for z in self._walk(samples, (threshold,))]).reshape(samples.magnitude.shape)

    def judge_sweep(self, samples: Samples) -> Iterator[Verdict]:
        """All thresholds in one walk over the steps: each has a mean and a variance of its own."""
        alarms = np.empty((len(self.sweep), *samples.magnitude.shape), bool)
        limits = np.array(self.sweep)[:, None]
        for s, z in enumerate(self._walk(samples, self.sweep)):
            alarms[:, s] = z > limits
        return (Verdict(samples.step, raised) for raised in alarms)

    def _walk(self, samples: Samples, thresholds: Sequence[float]) -> Iterator[np.ndarray]:
        """z of each step for T thresholds: float64 [T, P]; NO_VERDICT where there is none."""
        alpha, eps, warmup = (self.settings[key] for key in ("alpha", "eps", "warmup_steps"))
        probes = samples.magnitude.shape[1]
        limit = np.array(thresholds)[:, None]
        count = np.zeros(probes, int)
        buffer = np.zeros((warmup, probes))
        mean, variance = np.zeros((len(limit), probes)), np.zeros((len(limit), probes))
        for x, finite in zip(samples.magnitude, samples.finite):
            warm = finite & (count >= warmup)
            new = finite & ~warm
            if new.any():
                buffer[count[new], new] = x[new]
                count[new] += 1
                seeded = new & (count == warmup)
                if seeded.any():
                    mean[:, seeded] = buffer[:, seeded].mean(axis=0)
                    variance[:, seeded] = buffer[:, seeded].var(axis=0)
            deviation = np.sqrt(variance)
            z = (x - mean) / (deviation + eps)
            yield np.where(warm, z, NO_VERDICT)
            with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is clipped
                clipped = mean + limit * deviation / (z / limit)
            taken = np.where(z > limit, clipped, x)
            moved = alpha * mean + (1 - alpha) * taken
            variance = np.where(warm, alpha * variance + (1 - alpha) * (taken - moved) ** 2, variance)
            mean = np.where(warm, moved, mean)


class OlmoSkipStep(Detector):
    """z against mean and standard deviation of the last 128 samples, the present one excluded; only a sample above counts.

    No verdict before 128 / 2 samples, the present one included. Where neither the window nor the sample moves there is no
    alarm; above a window that does not move any sample is one."""
    name = "olmo-6-sigma"
    source = "allenai/OLMo-core, src/olmo_core/optim/skip_step_optimizer.py"
    settings = {"rolling_interval_length": 128, "sigma_factor": 6}
    unit = "z"
    threshold = 6.0
    sweep = spread(1.5, 6.0, 60)
    samples_needed = 63
    state_bits = 128 * 32 + 8  # window and number of samples
    operations = {"add": 383, "multiply": 128, "divide": 3, "root": 1, "compare": 1}  # mean and deviation anew at each sample

    def score(self, samples: Samples, threshold: float) -> np.ndarray:
        score = np.full(samples.magnitude.shape, NO_VERDICT)
        patterns, group = np.unique(samples.finite, axis=1, return_inverse=True)
        for index, finite in enumerate(patterns.T):  # operators whose finite samples are of the same steps, together
            ops, rows = np.flatnonzero(group.reshape(-1) == index), np.flatnonzero(finite)
            score[np.ix_(rows, ops)] = self._score(np.ascontiguousarray(samples.magnitude[np.ix_(rows, ops)].T)).T
        return score

    def _score(self, x: np.ndarray) -> np.ndarray:
        """Scores of operators without a non-finite sample: float64 [P, S] -> [P, S]."""
        length = self.settings["rolling_interval_length"]
        steps = x.shape[1]
        least = length // 2 - 1  # samples before the present one
        mean, deviation = np.empty(x.shape), np.empty(x.shape)
        for position in range(least, min(length, steps)):  # a window that is not yet full
            window = x[:, :position]
            mean[:, position], deviation[:, position] = window.mean(axis=1), window.std(axis=1, ddof=1)
        if steps > length:
            for row, series in enumerate(x):
                windows = sliding_window_view(series[:-1], length)
                mean[row, length:], deviation[row, length:] = windows.mean(axis=1), windows.std(axis=1, ddof=1)
        score = np.full(x.shape, NO_VERDICT)
        above = x[:, least:] - mean[:, least:]
        score[:, least:] = np.where(above > 0, ratio(np.abs(above), deviation[:, least:]), NO_VERDICT)
        return score


class MsprobeTurbulence(Detector):
    """A sample more than 50 % above the exponential average of those before it."""
    name = "msprobe-turbulence"
    source = "Ascend/msprobe monitor, AnomalyTurbulence with the threshold 0.5 of its documentation, average with beta 0.99"
    settings = {"threshold": 0.5, "beta": 0.99}
    unit = "max / average"
    threshold = 1.5
    sweep = spread(1.05, 1.5, 100)
    samples_needed = 1
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
