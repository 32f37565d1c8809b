"""The requests in the system: what runs, what waits for a worker, what was lost before; and how each of them ends.

Knows nothing of stages or routing. Every request is in exactly one of `attempts` and `parked` until `end` moves it to
the outcomes, once.
"""

from typing import NamedTuple

from prfaas_ref.request import Request, RequestRecord, Status
from prfaas_ref.scheduler.simulation.attempt import Attempt
from prfaas_ref.scheduler.simulation.events import EventQueue
from prfaas_ref.scheduler.simulation.log import EventLog
from prfaas_ref.scheduler.simulation.outcomes import Outcomes


class Waiting(NamedTuple):
    """A request to be placed. `since_s`: when it arrived, or was last lost."""

    number: int  # in order of arrival
    request: Request
    record: RequestRecord
    since_s: float


class InFlight:
    """Requests that have arrived and not ended."""

    def __init__(self, events: EventQueue, log: EventLog) -> None:
        self.events, self.log, self.outcomes = events, log, Outcomes()
        self.attempts: dict[int, Attempt] = {}
        self.parked: list[Waiting] = []
        self.retried: set[int] = set()  # those that were lost at least once

    def __len__(self) -> int:
        return len(self.attempts) + len(self.parked)

    def arrive(self, request: Request) -> Waiting:
        """A request enters."""
        number = self.outcomes.arrived
        self.outcomes.arrived += 1
        self.log.add("arrive", request.arrival_s, number)
        return Waiting(number, request, RequestRecord(request), request.arrival_s)

    def end(self, number: int, record: RequestRecord, status: Status, reason: str = "") -> None:
        """A request leaves for good."""
        self.log.add(status, self.events.now_s, number)
        self.retried.discard(number)
        record.end(status, self.events.now_s, reason)
        self.outcomes.add(record)

    def take_parked(self) -> list[Waiting]:
        """Everything parked, which is no longer."""
        parked, self.parked = self.parked, []
        return parked
