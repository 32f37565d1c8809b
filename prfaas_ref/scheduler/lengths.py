"""How long prompts are: a distribution, and what a threshold cuts it into. Paper sections 3.2 and 4.1.

Knows nothing of time or hardware. Symbols: L input length, t threshold, p = P(L > t), l_long = E[L | L > t],
l_short = E[L | L <= t]. A class that holds nothing is given the length at its edge, so every answer is finite.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import exp, inf, log
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_STANDARD = NormalDist()
MAX_TOKENS = 2**31
MAX_SIGMA = 5.0
LEAST_SHARE = 1e-6  # of prompts and of their tokens that truncation must leave, or the closed forms lose their digits


class Split(NamedTuple):
    """What a threshold makes of the lengths: p, l_long and l_short, the last two in tokens."""

    p_long: float
    l_long: float
    l_short: float


@dataclass(frozen=True)
class LogNormalLengths:
    """exp(N(mu, sigma^2)) truncated to [low, high] tokens; the moments are closed forms."""

    mu: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.sigma <= MAX_SIGMA and 0 < self.low < self.high < MAX_TOKENS):
            raise ValueError(f"a log-normal needs 0 < sigma <= 5 and 0 < low < high < 2**31, got {self}")
        mass, mean = self._between(self.low, self.high)
        if not (mass >= LEAST_SHARE and mass * mean >= LEAST_SHARE * self._whole_mean):
            raise ValueError(f"a log-normal needs some mass between low and high (mu is a logarithm), got {self}")

    def _cdf(self, tokens: float) -> float:
        """P(exp N <= tokens), before truncation."""
        return _STANDARD.cdf((log(tokens) - self.mu) / self.sigma)

    @property
    def _whole_mean(self) -> float:
        """E[exp N], before truncation."""
        return exp(self.mu + self.sigma**2 / 2)

    def _partial_mean(self, tokens: float) -> float:
        """E[exp N; exp N <= tokens], before truncation: the mean times the same law shifted by sigma^2."""
        return self._whole_mean * _STANDARD.cdf((log(tokens) - self.mu) / self.sigma - self.sigma)

    def _between(self, low: float, high: float) -> tuple[float, float]:
        """The mass between two lengths, and the mean length there."""
        mass = self._cdf(high) - self._cdf(low)
        if mass <= 0.0:
            return 0.0, low
        return mass, (self._partial_mean(high) - self._partial_mean(low)) / mass

    @cached_property
    def mean(self) -> float:
        return self._between(self.low, self.high)[1]

    def split(self, t: float) -> Split:
        cut = min(max(t, self.low), self.high)
        above, l_long = self._between(cut, self.high)
        below, l_short = self._between(self.low, cut)
        return Split(above / (above + below), l_long, l_short)

    def quantiles(self, n: int) -> NDArray[np.float64]:
        """`n` lengths in rising order, each standing for 1/n of the prompts (the midpoints of the quantile strata)."""
        floor, ceiling = self._cdf(self.low), self._cdf(self.high)
        shares = floor + (np.arange(n) + 0.5) / n * (ceiling - floor)
        return np.array([exp(self.mu + self.sigma * _STANDARD.inv_cdf(share)) for share in shares])

    def sample(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` random lengths in whole tokens, by inverting a table of quantiles."""
        table = self._table
        at = rng.random(n) * len(table) - 0.5
        return np.rint(np.interp(at, np.arange(len(table)), table)).astype(np.int64)

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        return self.quantiles(32768)


class ObservedLengths:
    """The lengths of a trace. An empty one is legal: no prompt is long, and every length is 0."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self._sorted = sorted(lengths)
        self._sums = [0, *accumulate(self._sorted)]

    @property
    def low(self) -> float:
        return self._sorted[0] if self._sorted else 0.0

    @property
    def high(self) -> float:
        return self._sorted[-1] if self._sorted else 0.0

    @property
    def mean(self) -> float:
        return self._sums[-1] / len(self._sorted) if self._sorted else 0.0

    def split(self, t: float) -> Split:
        n, below = len(self._sorted), bisect_right(self._sorted, t)
        l_short = self._sums[below] / below if below else self.low
        l_long = (self._sums[n] - self._sums[below]) / (n - below) if n > below else self.high
        return Split((n - below) / n if n else 0.0, l_long, l_short)

    def quantiles(self, n: int) -> NDArray[np.float64]:
        if not self._sorted:
            return np.zeros(n)
        shares = (np.arange(n) + 0.5) / n
        return np.asarray(np.quantile(np.array(self._sorted, float), shares), np.float64)


Lengths = LogNormalLengths | ObservedLengths

OFFLOAD_ALL, OFFLOAD_NONE = 0.0, inf
