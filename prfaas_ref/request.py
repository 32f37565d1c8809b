"""A request and what became of it: the two nouns that the simulator and the live deployment share.

Knows nothing of models, caches or sockets. Times are seconds on the caller's clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Route = Literal["prfaas", "pd"]  # the cluster that prefilled
Status = Literal["completed", "rejected", "failed"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. A live deployment serves `token_ids`; a public trace tells `hash_ids` instead."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    token_ids: Sequence[int] | None = None
    hash_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.max_tokens < 1:
            raise ValueError(f"request {self.request_id}: prompt_tokens and max_tokens must be at least 1")
        if self.token_ids is not None and len(self.token_ids) != self.prompt_tokens:
            raise ValueError(f"request {self.request_id}: {len(self.token_ids)} tokens, not {self.prompt_tokens}")


@dataclass(slots=True)
class RequestRecord:
    """How a request went. It is in flight until `end` is called, and it ends exactly once."""

    request: Request
    route: Route | None = None
    cached_tokens: int = 0
    link_bytes: int = 0
    attempts: int = 0
    ttft_s: float | None = None
    finish_s: float | None = None
    status: Status | None = None
    reason: str = ""

    @property
    def in_flight(self) -> bool:
        return self.status is None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None unless completed with at least two tokens."""
        if self.status != "completed" or self.finish_s is None or self.ttft_s is None or self.request.max_tokens < 2:
            return None
        return (self.finish_s - self.request.arrival_s - self.ttft_s) / (self.request.max_tokens - 1)

    def end(self, status: Status, now_s: float, reason: str = "") -> None:
        """Close the record. Raises RuntimeError when the request has already ended."""
        if self.status is not None:
            raise RuntimeError(f"request {self.request.request_id} is already {self.status}; it cannot become {status}")
        self.status, self.finish_s, self.reason = status, now_s, reason
