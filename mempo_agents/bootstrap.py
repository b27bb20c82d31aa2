"""Bootstrap intervals of means over tasks."""

from __future__ import annotations

import zlib

import numpy as np

LEVEL = 0.95
RESAMPLES = 2_000


def bootstrap_interval(
    values_P: np.ndarray, *, seed: int, level: float = LEVEL, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of `values_P`, float [P], one value per task.

    Tasks are resampled with replacement, `resamples` times; the bounds are the quantiles (1 - level) / 2 and
    (1 + level) / 2 of the resampled means (Efron & Tibshirani 1993, chapter 13). Trajectories of one task are not
    independent: average them before. None with fewer than two tasks, where the spread is unknown.
    """
    values = np.asarray(values_P, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"values_P: expected shape [P], got {list(values.shape)}.")
    if not np.isfinite(values).all():
        raise ValueError("values_P: expected finite values. Leave tasks out whose value is unknown.")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}.")
    if len(values) < 2:
        return None
    random = np.random.default_rng(seed)
    means = values[random.integers(len(values), size=(resamples, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def seed_of(*names: object) -> int:
    """A seed that depends on the names alone, the same in every process (`hash` is not)."""
    return zlib.crc32("/".join(map(str, names)).encode())
