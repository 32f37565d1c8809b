"""What one instance and one model cost: prefill seconds, KV bytes, decode speed. The inputs of every estimate.

Knows nothing of queues or clusters. Paper section 3 calls these T_prefill(l), S_kv(l), BS_max and T_decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf


@dataclass(frozen=True, slots=True)
class PrefillProfile:
    """T_prefill(l) = base_s + per_token_s * l + per_token2_s * l**2, the last term being attention's."""

    base_s: float
    per_token_s: float
    per_token2_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.base_s, self.per_token_s, self.per_token2_s) < 0 or self.base_s + self.per_token_s <= 0:
            raise ValueError(f"a prefill profile needs non-negative coefficients and some cost, got {self}")

    def seconds(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Seconds to prefill `tokens` behind `cached_tokens` that are already there (attention still reads those)."""
        return self.base_s + tokens * (self.per_token_s + self.per_token2_s * (tokens + 2.0 * cached_tokens))


@dataclass(frozen=True)
class MeasuredProfile:
    """T_prefill(l) by straight lines through measured (tokens, seconds) points; the outer lines go on beyond them.

    The fixed cost is where the first line meets 0 tokens, but at least one token's share of the first point: T_prefill
    is convex, so the line through two long prompts may pass 0 seconds well above 0 tokens.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise ValueError("a measured profile needs at least two points")
        for (l0, s0), (l1, s1) in pairwise(self.points):
            if not (0 <= l0 < l1 and 0 < s0 <= s1):
                raise ValueError(f"points must rise in tokens and not fall in seconds: {(l0, s0)} then {(l1, s1)}")

    @cached_property
    def _line(self) -> tuple[tuple[float, float], ...]:
        """The points, from 0 tokens on."""
        (l0, s0), (l1, s1) = self.points[:2]
        if l0 == 0:
            return self.points
        base_s = max(s0 - l0 * (s1 - s0) / (l1 - l0), s0 / max(1.0, l0))
        return (0.0, base_s), *self.points

    def _at(self, tokens: float) -> float:
        line = self._line
        last = len(line) - 2
        i = next((i for i in range(last) if tokens < line[i + 1][0]), last)
        (l0, s0), (l1, s1) = line[i], line[i + 1]
        return s0 + (s1 - s0) * (tokens - l0) / (l1 - l0)

    def seconds(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Seconds to prefill `tokens` behind `cached_tokens`: the difference of two prompts, plus the fixed cost."""
        return self._at(cached_tokens + tokens) - self._at(cached_tokens) + self._at(0.0)


Profile = PrefillProfile | MeasuredProfile


def fit_quadratic(points: Sequence[tuple[float, float]]) -> PrefillProfile:
    """Least-squares quadratic through measured (tokens, seconds) points. Needs at least three."""
    import numpy as np

    tokens, seconds = zip(*points, strict=True)
    c2, c1, c0 = np.polyfit(tokens, seconds, 2)
    return PrefillProfile(float(c0), float(c1), float(c2))


@dataclass(frozen=True, slots=True)
class KvSize:
    """S_kv(l) = fixed_bytes + bytes_per_token * l: recurrent state and windows, then the full-attention KV."""

    bytes_per_token: float
    fixed_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.fixed_bytes < 0:
            raise ValueError(f"KV sizes cannot be negative, got {self}")

    def bytes(self, tokens: float, held_tokens: float = 0.0) -> float:
        """Bytes of `tokens` of context when the receiver holds the KV of `held_tokens`; the fixed part goes whole."""
        return self.fixed_bytes + self.bytes_per_token * max(0.0, tokens - held_tokens)


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    """One decode instance: up to `batch_max` requests gain a token every `step_s`, within `memory_bytes` of cache."""

    batch_max: int
    step_s: float
    memory_bytes: float = inf

    def __post_init__(self) -> None:
        if self.batch_max < 1 or self.step_s <= 0 or self.memory_bytes <= 0:
            raise ValueError(f"a decode profile needs positive numbers, got {self}")
