"""Where simulated requests come from: drawn lengths and gaps, or a trace sped up or slowed down.

Knows nothing of deployments. Randomness is a passed generator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from prfaas_ref.request import Request
from prfaas_ref.scheduler.lengths import LogNormalLengths

CHUNK = 4096  # requests drawn at once, so that a million of them need no million-element lists


def drawn(
    n: int,
    rate_per_s: float,
    lengths: LogNormalLengths,
    output_tokens: int,
    rng: np.random.Generator,
    burstiness: float = 1.0,
) -> Iterator[Request]:
    """`n` requests at `rate_per_s`. `burstiness` is the squared coefficient of variation of the gaps: 1 is Poisson."""
    now_s, number = 0.0, 0
    while number < n:
        size = min(CHUNK, n - number)
        prompts = lengths.sample(size, rng).tolist()
        for gap_s, prompt in zip(gaps(size, rate_per_s, burstiness, rng), prompts, strict=True):
            now_s += gap_s
            yield Request(f"r{number}", now_s, prompt, output_tokens)
            number += 1


def gaps(n: int, rate_per_s: float, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Gamma-distributed gaps of mean 1 / rate; all equal when the burstiness is 0."""
    if burstiness == 0.0:
        return [1.0 / rate_per_s] * n
    drawn_gaps: list[float] = rng.gamma(1.0 / burstiness, burstiness / rate_per_s, n).tolist()
    return drawn_gaps


def replayed(requests: Sequence[Request], speed: float = 1.0) -> Iterator[Request]:
    """A trace's requests, arriving `speed` times as fast."""
    return (replace(request, arrival_s=request.arrival_s / speed) for request in requests)


def replayed_at(requests: Sequence[Request], rate_per_s: float) -> Iterator[Request]:
    """A trace sped up or slowed down to a mean rate; its own pace when it spans no time."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    return replayed(requests, rate_per_s * span_s / len(requests) if span_s else 1.0)
