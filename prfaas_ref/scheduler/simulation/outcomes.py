"""What became of the requests: one row each, in columns, so that a million of them stay small.

Knows nothing of how they were served. Rows are in order of ending.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prfaas_ref.request import RequestRecord

STATUSES = ("completed", "rejected", "failed")
ROUTES = ("prfaas", "pd", None)
_STATUS_CODE = {status: code for code, status in enumerate(STATUSES)}
_ROUTE_CODE = {route: code for code, route in enumerate(ROUTES)}


class Row(NamedTuple):
    """One request that ended. NaN where it never got that far."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    route: str
    cached_tokens: int
    link_bytes: int
    attempts: int
    ttft_s: float
    finish_s: float
    status: str
    reason: str


class Outcomes:
    """Counters and columns."""

    def __init__(self) -> None:
        self.arrived = 0
        self.ended: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.ids: list[str] = []
        self.reason: list[str] = []
        self.arrival_s, self.ttft_s, self.finish_s = array("d"), array("d"), array("d")
        self.prompt_tokens, self.output_tokens, self.cached_tokens = array("q"), array("q"), array("q")
        self.link_bytes = array("q")
        self.attempts, self.route, self.status = array("b"), array("b"), array("b")

    def add(self, record: RequestRecord) -> None:
        """Keep a record that has ended."""
        assert record.status is not None and record.finish_s is not None, "only an ended request has an outcome"
        request = record.request
        self.ended[record.status] += 1
        if record.reason:
            self.reasons[f"{record.status}: {record.reason}"] += 1
        self.ids.append(request.request_id)
        self.reason.append(record.reason)
        self.arrival_s.append(request.arrival_s)
        self.ttft_s.append(record.ttft_s if record.ttft_s is not None else float("nan"))
        self.finish_s.append(record.finish_s)
        self.prompt_tokens.append(request.prompt_tokens)
        self.output_tokens.append(request.max_tokens)
        self.cached_tokens.append(record.cached_tokens)
        self.link_bytes.append(record.link_bytes)
        self.attempts.append(record.attempts)
        self.route.append(_ROUTE_CODE[record.route])
        self.status.append(_STATUS_CODE[record.status])

    def check_conservation(self, in_flight: int) -> None:
        """Every request that arrived has ended once or is in flight. Raises AssertionError."""
        ended = sum(self.ended[status] for status in STATUSES)
        assert ended == len(self.ids) == len(set(self.ids)), "a request ended twice"
        assert ended + in_flight == self.arrived, f"{ended} ended + {in_flight} in flight is not {self.arrived} arrived"

    def rows(self) -> Iterator[Row]:
        for i, request_id in enumerate(self.ids):
            yield Row(
                request_id, self.arrival_s[i], self.prompt_tokens[i], self.output_tokens[i],
                ROUTES[self.route[i]] or "", self.cached_tokens[i], self.link_bytes[i], self.attempts[i],
                self.ttft_s[i], self.finish_s[i], STATUSES[self.status[i]], self.reason[i],
            )  # fmt: skip
