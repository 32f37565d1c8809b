"""The prefill stage: each worker computes one prompt at a time, in order of arrival, and sends layers as it goes.

Knows nothing of routing or decoding: a prefilled attempt is handed to `on_prefilled`. An attempt for the PrfaaS cluster
opens its flow when it starts, capped at the rate at which its layers come into being, so that all but the last layer
has left when the prompt is computed and the network allows it.
"""

from collections.abc import Callable, Mapping

from prfaas_ref.request import Route
from prfaas_ref.scheduler.fleet import Costs
from prfaas_ref.scheduler.simulation.attempt import Attempt, SimWorker
from prfaas_ref.scheduler.simulation.caches import ClusterCache
from prfaas_ref.scheduler.simulation.events import ENDING, EventQueue
from prfaas_ref.scheduler.simulation.log import EventLog
from prfaas_ref.scheduler.simulation.transfers import Transfers


class PrefillStage:
    """Queues and running prompts of every prefill worker."""

    def __init__(
        self,
        events: EventQueue,
        log: EventLog,
        costs: Costs,
        caches: Mapping[Route, ClusterCache],
        transfers: Transfers,
        layers: int,
        on_prefilled: Callable[[Attempt], None],
    ) -> None:
        self.events, self.log, self.costs, self.caches = events, log, costs, caches
        self.transfers, self.layers, self.on_prefilled = transfers, layers, on_prefilled

    def enqueue(self, attempt: Attempt) -> None:
        worker = attempt.prefill
        worker.queue.append(attempt)
        if not worker.running:
            self._start_next(worker)

    def _start_next(self, worker: SimWorker) -> None:
        if not worker.queue:
            return
        attempt = worker.queue.popleft()
        worker.running[attempt.number] = attempt
        attempt.started_s = self.events.now_s
        request, route = attempt.request, attempt.decision.route
        lease = attempt.lease = self.caches[route].hold(request)
        cached = attempt.record.cached_tokens = lease.cached_tokens if lease else 0
        seconds = self.costs.prefill[route].seconds(request.prompt_tokens - cached, cached)
        self.log.add("prefill start", attempt.started_s, attempt.number, worker.number)
        self.events.at(attempt.started_s + seconds, ENDING, self._finish, attempt)
        if route == "prfaas":
            self._open_flow(attempt, seconds)

    def _open_flow(self, attempt: Attempt, seconds: float) -> None:
        attempt.prefill.sending[attempt.number] = attempt
        n_bytes = attempt.decision.link_bytes
        cap = 8.0 * n_bytes * (self.layers - 1) / (self.layers * seconds)
        self.transfers.open(attempt, n_bytes, cap)

    def _finish(self, attempt: Attempt) -> None:
        if not attempt.alive:
            return
        worker, now_s = attempt.prefill, self.events.now_s
        del worker.running[attempt.number]
        self.log.add("prefill end", now_s, attempt.number, worker.number)
        self.log.span("prefill", attempt.number, worker.worker_id, attempt.started_s, now_s)
        if attempt.lease is not None:
            self.caches[attempt.decision.route].publish(attempt.request, attempt.lease)
            attempt.lease = None
        self._start_next(worker)
        self.on_prefilled(attempt)

    def lose(self, attempt: Attempt) -> None:
        """Forget an attempt that is queued, running or being sent; its worker goes on with the next."""
        worker = attempt.prefill
        if attempt.number in worker.running:
            del worker.running[attempt.number]
            if attempt.lease is not None:
                self.caches[attempt.decision.route].drop(attempt.lease)
                attempt.lease = None
            if worker.phase != "down":
                self._start_next(worker)
        elif attempt in worker.queue:
            worker.queue.remove(attempt)
        worker.sending.pop(attempt.number, None)
