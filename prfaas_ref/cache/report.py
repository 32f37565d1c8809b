"""What a worker tells the global manager: a numbered log of what it stored and removed, or all that it has.

`CacheReporter` is a CacheListener of the worker's index. Its numbers begin at 0 with each incarnation of the worker, so
a receiver sees at once whether it missed something.
"""

from dataclasses import dataclass

from prfaas_ref.cache.entries import Leaf, PrefixBlock, Snapshot
from prfaas_ref.cache.tree import CacheTree

CacheEvent = tuple[bool, bool, bytes]  # stored (or removed), state (or KV), key of the prefix


@dataclass(frozen=True, order=True)
class WorkerName:
    cluster: str
    worker: str


@dataclass(frozen=True)
class CacheReport:
    """`events` end at `end_sequence` of the worker's log. full: they are all that it has, as stored; else they begin at
    first_sequence. incarnation is larger for a later start of the worker, such as its start time."""

    worker: WorkerName
    incarnation: int
    has_state: bool
    first_sequence: int
    end_sequence: int
    full: bool
    events: tuple[CacheEvent, ...]


class CacheReporter:
    """Collects events between reports."""

    def __init__(self, worker: WorkerName, incarnation: int, has_state: bool) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.has_state = has_state
        self._next_sequence = 0
        self._events: list[CacheEvent] = []

    def stored(self, entry: Leaf) -> None:
        self._events.append((True, *_named(entry)))

    def removed(self, entry: Leaf) -> None:
        self._events.append((False, *_named(entry)))

    def take_report(self) -> CacheReport:
        """What happened since the last report. An empty one still tells that nothing is missing."""
        events = tuple(self._events)
        return self._report(self._next_sequence, False, events)

    def take_full_report(self, tree: CacheTree) -> CacheReport:
        """All that is cached now: the answer when the manager has missed something."""
        return self._report(0, True, tuple((True, *_named(entry)) for entry in tree.entries()))

    def _report(self, first: int, full: bool, events: tuple[CacheEvent, ...]) -> CacheReport:
        self._next_sequence += len(self._events)
        self._events.clear()
        return CacheReport(self.worker, self.incarnation, self.has_state, first, self._next_sequence, full, events)


def _named(entry: Leaf) -> tuple[bool, bytes]:
    block: PrefixBlock = entry.block if isinstance(entry, Snapshot) else entry
    return isinstance(entry, Snapshot), block.key
