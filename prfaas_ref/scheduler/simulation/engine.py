"""The simulator: requests arrive, are routed, prefilled, handed off and decoded, and every one of them ends once.

Knows nothing of threads or wall time. It wires the stages together around one event queue and drives the very router
and prefix cache index that the live deployment uses. Conservation is asserted at the end of every run:
completed + rejected + failed + in flight = arrived, and every load counter is back at what is in flight.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prfaas_ref.request import Request, Route
from prfaas_ref.scheduler.fleet import Costs, LinkView
from prfaas_ref.scheduler.router import Decision, Refusal, Router
from prfaas_ref.scheduler.simulation.attempt import Attempt
from prfaas_ref.scheduler.simulation.caches import ClusterCache
from prfaas_ref.scheduler.simulation.config import SimulationConfig
from prfaas_ref.scheduler.simulation.control import ControlLoop
from prfaas_ref.scheduler.simulation.decode import DecodeStage
from prfaas_ref.scheduler.simulation.events import ARRIVAL, EventQueue
from prfaas_ref.scheduler.simulation.faults import Faults
from prfaas_ref.scheduler.simulation.in_flight import InFlight, Waiting
from prfaas_ref.scheduler.simulation.log import EventLog
from prfaas_ref.scheduler.simulation.outcomes import Outcomes
from prfaas_ref.scheduler.simulation.prefill import PrefillStage
from prfaas_ref.scheduler.simulation.roster import Roster
from prfaas_ref.scheduler.simulation.transfers import Transfers


@dataclass(frozen=True)
class Result:
    """A finished run: what became of the requests, and what the parts remember.

    `end_s` is when the last request ended, whatever the world did after it; or when the run was cut off with requests
    in flight.
    """

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
        self.events, self.log = EventQueue(), EventLog(config.keep_spans)
        costs = Costs(
            {"prfaas": system.prfaas_prefill, "pd": system.pd_prefill},
            system.kv,
            system.decode.step_s / max(1, system.decode_batch),
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
        self.in_flight = InFlight(self.events, self.log)
        self.control = ControlLoop(config, self.events, self.log, self.router, self.roster, self.transfers, self)
        self.faults = Faults(
            config, self.in_flight, self.router, self.control, self.prefill, self.transfers, self.decode, self._place
        )
        self.more_to_come = True

    # ---- the run

    def run(self) -> Result:
        self.faults.schedule()
        self._next_arrival()
        self.control.start()
        self.events.run(self.config.until_s)
        if not len(self.events):
            for waiting in self.in_flight.take_parked():
                self.in_flight.end(waiting.number, waiting.record, "failed", "no worker")
        outcomes, in_flight = self.in_flight.outcomes, len(self.in_flight)
        outcomes.check_conservation(in_flight)
        self.router.ledger.check_invariants()
        end_s = self.config.until_s if in_flight else max(outcomes.finish_s, default=0.0)
        return Result(outcomes, self.control, self.caches, self.log, self.events.processed, in_flight, end_s)

    def _next_arrival(self) -> None:
        request = next(self.requests, None)
        if request is None:
            self.more_to_come = False
        else:
            self.events.at(request.arrival_s, ARRIVAL, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._place(self.in_flight.arrive(request))
        self._next_arrival()

    @property
    def busy(self) -> bool:
        """Can anything still happen?"""
        waiting = bool(self.in_flight.parked) and self.roster.someone_may_return
        return self.more_to_come or bool(self.in_flight.attempts) or waiting

    def unpark(self) -> None:
        self.faults.unpark()

    def expire(self, now_s: float) -> None:
        self.faults.expire(now_s)

    # ---- one request's way

    def _place(self, waiting: Waiting) -> None:
        """Route a request, or park it until a worker returns, or refuse it."""
        number, request, record, _ = waiting
        if not self.decode.fits(request.prompt_tokens + request.max_tokens):
            self.in_flight.end(number, record, "rejected", "memory")
            return
        self._look_up(request)
        decision = self.router.route(request, self.roster.fleet)
        if isinstance(decision, Refusal):
            if decision.kind == "no worker":
                self.in_flight.parked.append(waiting)
            else:
                self.in_flight.end(number, record, "rejected", decision.kind)
            return
        self._begin(waiting, decision)

    def _look_up(self, request: Request) -> None:
        """Ask both clusters' caches, as the global KVCache manager does, and tell the views."""
        fleet = self.roster.fleet
        for cluster, cache in self.caches.items():
            found = cache.match(request)
            for worker in fleet.prefill[cluster]:
                worker.matched_tokens = found.usable_tokens
            if cluster == "pd":
                for worker in fleet.decode:
                    worker.kv_tokens = found.kv_tokens

    def _begin(self, waiting: Waiting, decision: Decision) -> None:
        number, request, record, since_s = waiting
        workers = self.roster.by_id
        prefill, decode = workers[decision.prefill_worker], workers[decision.decode_worker]
        attempt = Attempt(number, request, record, decision, prefill, decode, since_s)
        record.attempts += 1
        record.route = decision.route
        self.in_flight.attempts[number] = attempt
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
        attempt.alive = False
        del self.in_flight.attempts[attempt.number]
        self.router.release_all(attempt.request.request_id)
        self.in_flight.end(attempt.number, attempt.record, "completed")
        self.control.settle(attempt.decode)
