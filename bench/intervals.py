"""How sure a median is: a bootstrap interval, over the runs and over the samples of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

RESAMPLES = 1000
MAX_SAMPLES = 100
"""Of one run in one resample: more of them cost time, and the runs differ by more than their samples."""


def median_interval(runs: Sequence[Sequence[float]], seed: int = 1) -> tuple[float, float]:
    """Within which the median of all samples lies in 95 of 100 resamples.

    Runs are drawn first, then samples of each: many samples of one run say nothing about how much runs differ.
    """
    draw = random.Random(seed)
    runs = [run for run in runs if run]
    found = []
    for _ in range(RESAMPLES):
        drawn: list[float] = []
        for run in draw.choices(runs, k=len(runs)):
            drawn += draw.choices(run, k=min(len(run), MAX_SAMPLES))
        found.append(median(drawn))
    found.sort()
    return found[int(RESAMPLES * 0.025)], found[int(RESAMPLES * 0.975) - 1]
