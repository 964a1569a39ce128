"""What repeated measurements come to: medians, percentiles, and a ratio with its interval."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A figure and where 95 of 100 repetitions of the measurement would put it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of all values do not exceed, interpolated between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Median over the pairs of theirs / ours, with a bootstrap interval.

    Of pairs, since what disturbs the machine disturbs both halves of one; the median, since it
    disturbs few of them.
    """
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return Interval(median(ratios), percentile(medians, 2.5), percentile(medians, 97.5))
