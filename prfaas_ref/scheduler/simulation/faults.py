"""What goes wrong in a simulation: the link changes, workers are lost and return, requests run out of time.

Knows nothing of how a request is served, only how to take it back: a lost one is tried again from its prompt and the
tokens that it emitted, within the retry budget; one that waits past its deadline fails, so that no outage keeps it for
ever.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from prfaas_ref.scheduler.router import Router
from prfaas_ref.scheduler.simulation.attempt import Attempt, SimWorker
from prfaas_ref.scheduler.simulation.config import Failure, SimulationConfig
from prfaas_ref.scheduler.simulation.control import ControlLoop
from prfaas_ref.scheduler.simulation.decode import DecodeStage
from prfaas_ref.scheduler.simulation.events import WORLD
from prfaas_ref.scheduler.simulation.in_flight import InFlight, Waiting
from prfaas_ref.scheduler.simulation.prefill import PrefillStage
from prfaas_ref.scheduler.simulation.transfers import Transfers


class Faults:
    """Carries out the scenario's failures and link changes. `place` routes a request that was taken back."""

    def __init__(
        self,
        config: SimulationConfig,
        in_flight: InFlight,
        router: Router,
        control: ControlLoop,
        prefill: PrefillStage,
        transfers: Transfers,
        decode: DecodeStage,
        place: Callable[[Waiting], None],
    ) -> None:
        self.config, self.in_flight, self.router, self.control = config, in_flight, router, control
        self.prefill, self.transfers, self.decode, self.place = prefill, transfers, decode, place
        self.events, self.log, self.roster = in_flight.events, in_flight.log, control.roster

    def schedule(self) -> None:
        """Everything that the scenario announces."""
        for at_s, bits_per_s in self.config.link_changes:
            self.events.at(at_s, WORLD, self._change_link, bits_per_s)
        for failure in self.config.failures:
            self.events.at(failure.at_s, WORLD, self._fail_worker, failure)

    def _change_link(self, bits_per_s: float) -> None:
        self.log.add("link", self.events.now_s, int(bits_per_s))
        self.transfers.set_capacity(bits_per_s)
        self.control.link_changed(bits_per_s)

    def _fail_worker(self, failure: Failure) -> None:
        worker, now_s = self.roster.by_id[failure.worker_id], self.events.now_s
        if worker.phase == "down":
            return
        self.log.add("down", now_s, worker=worker.number)
        self.roster.take_down(worker)
        self.control.lost(worker)
        if failure.down_s < inf:
            self.events.at(now_s + failure.down_s, WORLD, self._restore_worker, worker)
        for attempt in list(self.in_flight.attempts.values()):
            if attempt.decode is worker or (attempt.prefill is worker and not attempt.handed_over):
                self._try_again(attempt)

    def _restore_worker(self, worker: SimWorker) -> None:
        self.log.add("up", self.events.now_s, worker=worker.number)
        self.roster.activate(worker)
        self.unpark()

    def unpark(self) -> None:
        """A worker is active again: place what waited for one."""
        for waiting in self.in_flight.take_parked():
            self.place(waiting)

    def _try_again(self, attempt: Attempt) -> None:
        """An attempt lost its worker: place the request anew, or fail it when the budget is spent."""
        emitted = self.decode.emitted(attempt)
        self._withdraw(attempt)
        record, number, retried = attempt.record, attempt.number, self.in_flight.retried
        others = len(retried - {number})
        if not self.config.retries.allows(record.attempts, others, len(self.in_flight) + 1):
            self.in_flight.end(number, record, "failed", "worker lost")
            return
        retried.add(number)
        self.log.add("retry", self.events.now_s, number)
        old = attempt.request
        rest = replace(old, prompt_tokens=old.prompt_tokens + emitted, max_tokens=old.max_tokens - emitted)
        self.place(Waiting(number, rest, record, self.events.now_s))

    def expire(self, now_s: float) -> None:
        """Fail whatever has waited past its deadline to be handed over."""
        oldest_s, flight = now_s - self.config.deadline_s, self.in_flight
        for attempt in [a for a in flight.attempts.values() if a.since_s < oldest_s and not a.handed_over]:
            self._withdraw(attempt)
            flight.end(attempt.number, attempt.record, "failed", "deadline")
        for waiting in flight.take_parked():
            if waiting.since_s < oldest_s:
                flight.end(waiting.number, waiting.record, "failed", "deadline")
            else:
                flight.parked.append(waiting)

    def _withdraw(self, attempt: Attempt) -> None:
        """Take an attempt out of whatever stage it is in."""
        attempt.alive = False
        del self.in_flight.attempts[attempt.number]
        self.router.release_all(attempt.request.request_id)
        self.transfers.lose(attempt)
        self.prefill.lose(attempt)
        self.decode.lose(attempt)
        self.control.settle(attempt.prefill)
        self.control.settle(attempt.decode)
