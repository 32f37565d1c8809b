"""How often lost work may be tried again: per request, and as a share of what is in flight.

Knows nothing of why it was lost. The share keeps a worker that always fails from turning the whole load into retries;
the floor lets a full worker be lost at once without failing anyone.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """At most `attempts` tries of one request, and retries in flight at most `share` of all requests, or `floor`."""

    attempts: int = 4
    share: float = 0.2
    floor: int = 64

    def allows(self, attempts_made: int, retries_in_flight: int, in_flight: int) -> bool:
        """May a request that was tried `attempts_made` times be tried once more?"""
        return attempts_made < self.attempts and retries_in_flight < max(self.floor, self.share * in_flight)
