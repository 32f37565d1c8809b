"""The simulator: requests arrive, are routed, prefilled, handed off and decoded, and every one of them ends once.

Knows nothing of threads or wall time. It wires the stages together around one event queue and drives the very router
and prefix cache index that the live deployment uses. Conservation is asserted at the end of every run:
completed + rejected + failed + in flight = arrived, and every load counter is back at what is in flight.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from prfaas_ref.request import Request, RequestRecord, Route, Status
from prfaas_ref.scheduler.fleet import Costs, LinkView
from prfaas_ref.scheduler.router import Decision, Refusal, Router
from prfaas_ref.scheduler.simulation.attempt import Attempt, SimWorker
from prfaas_ref.scheduler.simulation.caches import ClusterCache
from prfaas_ref.scheduler.simulation.config import Failure, SimulationConfig
from prfaas_ref.scheduler.simulation.control import ControlLoop
from prfaas_ref.scheduler.simulation.decode import DecodeStage
from prfaas_ref.scheduler.simulation.events import ARRIVAL, WORLD, EventQueue
from prfaas_ref.scheduler.simulation.log import EventLog
from prfaas_ref.scheduler.simulation.outcomes import Outcomes
from prfaas_ref.scheduler.simulation.prefill import PrefillStage
from prfaas_ref.scheduler.simulation.roster import Roster
from prfaas_ref.scheduler.simulation.transfers import Transfers


class Parked(NamedTuple):
    """A request that waits for any worker to return. `since_s`: when it arrived, or was lost."""

    number: int
    request: Request
    record: RequestRecord
    since_s: float


@dataclass(frozen=True)
class Result:
    """A finished run: what became of the requests, and what the parts remember."""

    outcomes: Outcomes
    control: ControlLoop
    caches: dict[Route, ClusterCache]
    log: EventLog
    events: int
    in_flight: int
    end_s: float


def simulate(config: SimulationConfig, requests: Iterable[Request]) -> Result:
    """Run `requests`, which must come in order of arrival, through one deployment."""
    return _Engine(config, iter(requests)).run()


class _Engine:
    def __init__(self, config: SimulationConfig, requests: Iterator[Request]) -> None:
        system = config.system
        self.config, self.requests = config, requests
        self.events, self.log, self.outcomes = EventQueue(), EventLog(config.keep_spans), Outcomes()
        costs = Costs(
            {"prfaas": system.prfaas_prefill, "pd": system.pd_prefill},
            system.kv,
            system.decode.step_s / system.decode.batch_max,
        )
        self.router = Router(config.policy, costs, admission=config.admission)
        account = self.router.ledger.account
        egress, ingress = (
            LinkView(system.link_bits_per_s, rtt_s=system.rtt_s, load=account(name)) for name in ("egress", "ingress")
        )
        self.roster = Roster(config.counts, self.router.ledger, egress, ingress)
        self.caches: dict[Route, ClusterCache] = {
            cluster: ClusterCache(config.cache_bytes, system.kv, config.node_tokens) for cluster in costs.prefill
        }
        self.transfers = Transfers(self.events, self.log, system.link_bits_per_s, system.rtt_s)
        self.transfers.on_applied, self.transfers.on_prefix = self._applied, self._prefix_arrived
        self.prefill = PrefillStage(
            self.events, self.log, costs, self.caches, self.transfers, config.layers, self._prefilled
        )
        self.decode = DecodeStage(self.events, self.log, system.decode, system.kv, self._decoded)
        self.control = ControlLoop(config, self.events, self.log, self.router, self.roster, self.transfers, self)
        self.attempts: dict[int, Attempt] = {}
        self.parked: list[Parked] = []
        self.retried: set[int] = set()  # requests in flight that were lost at least once
        self.more_to_come = True

    # ---- the run

    def run(self) -> Result:
        self._schedule_world()
        self._next_arrival()
        self.control.start()
        self.events.run(self.config.until_s)
        if not len(self.events):
            for parked in self._take_parked():
                self._end(parked.number, parked.record, "failed", "no worker")
        in_flight = len(self.attempts) + len(self.parked)
        self.outcomes.check_conservation(in_flight)
        self.router.ledger.check_invariants()
        return Result(
            self.outcomes, self.control, self.caches, self.log, self.events.processed, in_flight, self.events.now_s
        )

    def _schedule_world(self) -> None:
        for at_s, bits_per_s in self.config.link_changes:
            self.events.at(at_s, WORLD, self._change_link, bits_per_s)
        for failure in self.config.failures:
            self.events.at(failure.at_s, WORLD, self._fail_worker, failure)

    def _next_arrival(self) -> None:
        request = next(self.requests, None)
        if request is None:
            self.more_to_come = False
        else:
            self.events.at(request.arrival_s, ARRIVAL, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        number = self.outcomes.arrived
        self.outcomes.arrived += 1
        self.log.add("arrive", request.arrival_s, number)
        self._place(Parked(number, request, RequestRecord(request), request.arrival_s))
        self._next_arrival()

    # ---- one request's way

    def _place(self, waiting: Parked) -> None:
        """Route a request, or park it until a worker returns, or refuse it."""
        number, request, record, _ = waiting
        if not self.decode.fits(request.prompt_tokens + request.max_tokens):
            self._end(number, record, "rejected", "memory")
            return
        self._look_up(request)
        decision = self.router.route(request, self.roster.fleet)
        if isinstance(decision, Refusal):
            if decision.kind == "no worker":
                self.parked.append(waiting)
            else:
                self._end(number, record, "rejected", decision.kind)
            return
        self._begin(waiting, decision)

    def _look_up(self, request: Request) -> None:
        """Ask both clusters' caches, as the global KVCache manager does, and tell the views."""
        fleet = self.roster.fleet
        if not request.hash_ids:
            return
        for cluster, cache in self.caches.items():
            found = cache.match(request)
            for worker in fleet.prefill[cluster]:
                worker.matched_tokens = found.usable_tokens
            if cluster == "pd":
                for worker in fleet.decode:
                    worker.kv_tokens = found.kv_tokens

    def _begin(self, waiting: Parked, decision: Decision) -> None:
        number, request, record, since_s = waiting
        workers = self.roster.by_id
        prefill, decode = workers[decision.prefill_worker], workers[decision.decode_worker]
        attempt = Attempt(number, request, record, decision, prefill, decode, since_s)
        record.attempts += 1
        record.route = decision.route
        self.attempts[number] = attempt
        self.control.charge(decision, request)
        self.log.add("route", self.events.now_s, number, attempt.prefill.number)
        if decision.prefix_bytes:
            attempt.started_s = self.events.now_s
            self.transfers.move_prefix(attempt)
        else:
            self.prefill.enqueue(attempt)

    def _prefix_arrived(self, attempt: Attempt) -> None:
        decision = attempt.decision
        self.router.release(attempt.request.request_id, "prefix")
        self.caches[decision.route].receive(attempt.record.request, decision.prefix_tokens)
        attempt.record.link_bytes += decision.prefix_bytes
        self.prefill.enqueue(attempt)

    def _prefilled(self, attempt: Attempt) -> None:
        self.router.release(attempt.request.request_id, "prefill")
        if attempt.decision.route == "prfaas":
            self.transfers.all_computed(attempt)
        else:
            self._hand_over(attempt)

    def _applied(self, attempt: Attempt) -> None:
        self.router.release(attempt.request.request_id, "egress")
        attempt.record.link_bytes += attempt.decision.link_bytes
        self._hand_over(attempt)

    def _hand_over(self, attempt: Attempt) -> None:
        attempt.handed_over = True
        attempt.prefill.sending.pop(attempt.number, None)
        self.control.settle(attempt.prefill)
        self.decode.enqueue(attempt)

    def _decoded(self, attempt: Attempt) -> None:
        if attempt.decision.route == "prfaas":
            self.caches["pd"].receive(attempt.record.request)
        self._leave(attempt)
        self._end(attempt.number, attempt.record, "completed")
        self.control.settle(attempt.decode)

    def _leave(self, attempt: Attempt) -> None:
        """An attempt is over: nothing of it is charged or scheduled any more."""
        attempt.alive = False
        del self.attempts[attempt.number]
        self.router.release_all(attempt.request.request_id)

    def _end(self, number: int, record: RequestRecord, status: Status, reason: str = "") -> None:
        self.log.add(status, self.events.now_s, number)
        self.retried.discard(number)
        record.end(status, self.events.now_s, reason)
        self.outcomes.add(record)

    # ---- what goes wrong

    def _change_link(self, bits_per_s: float) -> None:
        self.log.add("link", self.events.now_s, int(bits_per_s))
        self.transfers.set_capacity(bits_per_s)
        self.control.link_changed(bits_per_s)

    def _fail_worker(self, failure: Failure) -> None:
        worker = self.roster.by_id[failure.worker_id]
        if worker.phase == "down":
            return
        self.log.add("down", self.events.now_s, worker=worker.number)
        self.roster.take_down(worker)
        self.control.lost(worker)
        if failure.down_s < inf:
            self.events.at(self.events.now_s + failure.down_s, WORLD, self._restore_worker, worker)
        held = (a for a in self.attempts.values() if a.decode is worker or (a.prefill is worker and not a.handed_over))
        for attempt in list(held):
            self.lose(attempt, "worker lost")

    def _restore_worker(self, worker: SimWorker) -> None:
        self.log.add("up", self.events.now_s, worker=worker.number)
        self.roster.activate(worker)
        self.unpark()

    @property
    def busy(self) -> bool:
        """Can anything still happen?"""
        waiting = bool(self.parked) and self.roster.someone_may_return
        return self.more_to_come or bool(self.attempts) or waiting

    def lose(self, attempt: Attempt, why: str) -> None:
        """An attempt lost its worker: try again from prompt and emitted tokens, or fail when the budget is spent."""
        emitted = self.decode.emitted(attempt)
        self._withdraw(attempt)
        record, number = attempt.record, attempt.number
        in_flight = len(self.attempts) + len(self.parked) + 1
        others = len(self.retried - {number})
        if not self.config.retries.allows(record.attempts, others, in_flight):
            self._end(number, record, "failed", why)
            return
        self.retried.add(number)
        self.log.add("retry", self.events.now_s, number)
        old = attempt.request
        again = replace(old, prompt_tokens=old.prompt_tokens + emitted, max_tokens=old.max_tokens - emitted)
        self._place(Parked(number, again, record, self.events.now_s))

    def expire(self, now_s: float) -> None:
        """Fail whatever has waited past its deadline to be handed over, so that no outage keeps a request for ever."""
        oldest_s = now_s - self.config.deadline_s
        for attempt in [a for a in self.attempts.values() if a.since_s < oldest_s and not a.handed_over]:
            self._withdraw(attempt)
            self._end(attempt.number, attempt.record, "failed", "deadline")
        for parked in self._take_parked():
            if parked.since_s < oldest_s:
                self._end(parked.number, parked.record, "failed", "deadline")
            else:
                self.parked.append(parked)

    def _withdraw(self, attempt: Attempt) -> None:
        self._leave(attempt)
        self.transfers.lose(attempt)
        self.prefill.lose(attempt)
        self.decode.lose(attempt)
        self.control.settle(attempt.prefill)
        self.control.settle(attempt.decode)

    def _take_parked(self) -> list[Parked]:
        parked, self.parked = self.parked, []
        return parked

    def unpark(self) -> None:
        """A worker is active again: place what waited for one."""
        for parked in self._take_parked():
            self._place(parked)
