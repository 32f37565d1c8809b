"""The event log: a running hash that two runs of one seed must share, and spans for a timeline if asked for.

Knows nothing of what happened, only that it did.
"""

import hashlib
import struct
from itertools import starmap
from typing import NamedTuple

KINDS = (
    "arrive", "route", "prefill start", "prefill end", "transfer end", "decode start",
    "completed", "rejected", "failed", "retry", "down", "up", "drain", "convert", "link", "threshold",
)  # fmt: skip
_CODE = {kind: code for code, kind in enumerate(KINDS)}
_ENTRY = struct.Struct("<Bdqi")
_FLUSH_ENTRIES = 4096


class Span(NamedTuple):
    """Something that took time, on one worker or the link. `request` is the request's number."""

    name: str
    request: int
    where: str
    start_s: float
    end_s: float


class EventLog:
    """Everything that happened, in order."""

    def __init__(self, keep_spans: bool = False) -> None:
        self.spans: list[Span] | None = [] if keep_spans else None
        self._hash = hashlib.sha256()
        self._pending: list[tuple[int, float, int, int]] = []

    def add(self, kind: str, now_s: float, request: int = -1, worker: int = -1) -> None:
        """Log one event; numbers of requests and workers, -1 for none."""
        self._pending.append((_CODE[kind], now_s, request, worker))
        if len(self._pending) == _FLUSH_ENTRIES:
            self._flush()

    def span(self, name: str, request: int, where: str, start_s: float, end_s: float) -> None:
        if self.spans is not None:
            self.spans.append(Span(name, request, where, start_s, end_s))

    def hexdigest(self) -> str:
        """sha256 over everything logged so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(b"".join(starmap(_ENTRY.pack, self._pending)))
        self._pending.clear()
