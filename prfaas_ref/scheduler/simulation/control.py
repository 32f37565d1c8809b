"""The control loops of a simulated deployment: measure, estimate, adjust the threshold, convert workers. Section 3.4.

Knows nothing of single requests beyond their charges. The decisions are `threshold.adjust` and `reallocator.observe`,
pure functions that the live deployment may drive with its own measurements; this file measures and carries out.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

import numpy as np

from prfaas_ref.request import Request
from prfaas_ref.scheduler import reallocator
from prfaas_ref.scheduler.fleet import WorkerView
from prfaas_ref.scheduler.lengths import ObservedLengths
from prfaas_ref.scheduler.planner import Search, threshold_grid
from prfaas_ref.scheduler.router import Decision, Router, Threshold
from prfaas_ref.scheduler.simulation.attempt import SimWorker
from prfaas_ref.scheduler.simulation.config import SimulationConfig
from prfaas_ref.scheduler.simulation.events import WORLD, EventQueue
from prfaas_ref.scheduler.simulation.log import EventLog
from prfaas_ref.scheduler.simulation.roster import Roster
from prfaas_ref.scheduler.simulation.transfers import Transfers
from prfaas_ref.scheduler.threshold import (
    PlannedThresholds,
    Signals,
    ThresholdState,
    adjust,
    best_within,
    plan_thresholds,
    smoothed,
)
from prfaas_ref.scheduler.throughput import Counts, System

EXPIRY_PERIOD_S = 10.0
LONGEST_S = 3600.0  # a link that is down looks like an hour of queue
GRID_TOKENS = 400  # step of the thresholds tried in a running system
RECENT = 2000  # uncached lengths remembered for searching the threshold anew
ENOUGH = 100  # of them, before a window searches


class Served(Protocol):
    """What the loop asks of the simulation it controls."""

    @property
    def busy(self) -> bool: ...

    def unpark(self) -> None: ...

    def expire(self, now_s: float) -> None: ...


class Samples:
    """One row per control period. The egress is what was delivered within it."""

    def __init__(self) -> None:
        self.egress_gbps, self.threshold = array("d"), array("d")
        self.queue_prfaas, self.queue_pd, self.queue_decode = array("l"), array("l"), array("l")
        self.at_s = array("d")


class ControlLoop:
    """Ticks every `period_s` while there is work."""

    def __init__(
        self,
        config: SimulationConfig,
        events: EventQueue,
        log: EventLog,
        router: Router,
        roster: Roster,
        transfers: Transfers,
        served: Served,
    ) -> None:
        self.config, self.settings, self.events, self.log = config, config.control, events, log
        self.router, self.roster, self.transfers, self.served = router, roster, transfers, served
        self.rng = np.random.default_rng(config.seed)
        self.samples = Samples()
        self.moves = reallocator.State()
        self.threshold: ThresholdState | None = None
        self.converted: list[tuple[float, str, str]] = []  # (seconds, worker, new role)
        self._planned: PlannedThresholds | None = None
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._capacities = deque([(0.0, config.system.link_bits_per_s)])
        self._bits_per_s = config.system.link_bits_per_s
        self._delivered_bits = 0.0
        self._placed, self._decode_work_s = 0, 0.0
        self._window_start_s = self._next_expiry_s = 0.0

    # ---- called by the simulation

    def start(self) -> None:
        if self.settings.tuning is not None:
            self._set_planned(plan_thresholds(self.config.system, self.config.counts, self.config.slo))
        self.events.at(self.settings.period_s, WORLD, self._tick)

    def charge(self, decision: Decision, request: Request) -> None:
        """A request was placed: its work counts toward this window's offered load."""
        self._placed += 1
        self._decode_work_s += request.max_tokens * self.router.costs.decode_s_per_token
        self._recent.append(decision.uncached_tokens)

    def link_changed(self, bits_per_s: float) -> None:
        self._capacities.append((self.events.now_s, bits_per_s))

    def settle(self, worker: SimWorker) -> None:
        """A worker finished something: if it was draining and is empty, it starts to convert."""
        if worker.phase == "draining" and worker.idle and not worker.load.requests:
            self.roster.convert(worker)
            self.log.add("convert", self.events.now_s, worker=worker.number)
            self.events.at(self.events.now_s + self.settings.convert_s, WORLD, self._converted, worker)

    def lost(self, worker: SimWorker) -> None:
        """A worker went down; if it was changing role it comes back in its old one."""
        if worker.next_role is not None:
            worker.next_role = None
            self.moves = reallocator.moved(self.moves, self.events.now_s, done=False)

    # ---- the loops

    def _tick(self, _: object) -> None:
        now_s = self.events.now_s
        utilization = self._measure(now_s)
        if self.threshold is not None and self._planned is not None and self.settings.tuning is not None:
            seen = self._signals(utilization)
            self._use(adjust(self.threshold, seen, self._planned, self.settings.tuning, now_s))
        if now_s - self._window_start_s >= self.settings.window_s:
            self._close_window(now_s)
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + EXPIRY_PERIOD_S
            self.served.expire(now_s)
        if self.served.busy:
            self.events.at(now_s + self.settings.period_s, WORLD, self._tick)

    def _measure(self, now_s: float) -> float:
        """Sample queues and egress; update what the router believes of the link. Returns the utilisation seen."""
        link, period_s = self.transfers.egress, self.settings.period_s
        link.advance(now_s)
        bits, self._delivered_bits = link.delivered_bits - self._delivered_bits, link.delivered_bits
        samples, queued = self.samples, self.roster.queue_depths()
        samples.at_s.append(now_s)
        samples.egress_gbps.append(bits / period_s / 1e9)
        samples.queue_prfaas.append(queued["prfaas"])
        samples.queue_pd.append(queued["pd"])
        samples.queue_decode.append(queued["decode"])
        samples.threshold.append(self.threshold.tokens if self.threshold else -1.0)
        estimate = self._estimate(now_s)
        utilization = bits / period_s / estimate if estimate > 0 else 1.0
        if self.settings.tuning is not None:
            time_constant_s = self.settings.tuning.smoothing_s
            self._bits_per_s = smoothed(self._bits_per_s, estimate, period_s, time_constant_s)
        for view in (self.roster.egress, self.roster.ingress):
            view.bits_per_s, view.utilization = estimate, utilization
        return utilization

    def _estimate(self, now_s: float) -> float:
        """The capacity as it was `lag_s` ago, times the noise."""
        estimates, seen = self.settings.estimates, self._capacities
        while len(seen) > 1 and seen[1][0] <= now_s - estimates.lag_s:
            seen.popleft()
        factor = float(np.exp(self.rng.normal(0.0, estimates.noise))) if estimates.noise else 1.0
        return seen[0][1] * factor

    def _signals(self, utilization: float) -> Signals:
        fleet = self.roster.fleet
        remote_s = max(_mean_queue_s(fleet.prefill["prfaas"]), min(fleet.egress.seconds(0), LONGEST_S))
        return Signals(self._bits_per_s, utilization, remote_s, _mean_queue_s(fleet.prefill["pd"]))

    def _use(self, state: ThresholdState) -> None:
        if state is not self.threshold:
            self.threshold = state
            self.log.add("threshold", self.events.now_s, int(min(state.tokens, 1e18)))
            self.router.policy = Threshold(state.tokens, self.settings.cache_rule)

    def _set_planned(self, planned: PlannedThresholds) -> None:
        """Follow t*(B) from now on, and start from its centre."""
        self._planned = planned
        tokens = planned.at(self._bits_per_s)
        reversals = self.threshold.reversals if self.threshold else 0
        self._use(ThresholdState(tokens, self.events.now_s, reversals=reversals))

    # ---- conversions

    def _close_window(self, now_s: float) -> None:
        window_s, self._window_start_s = now_s - self._window_start_s, now_s
        placed, self._placed = self._placed, 0
        decode_work_s, self._decode_work_s = self._decode_work_s, 0.0
        if not placed or (self.settings.rules is None and not self.settings.replan):
            return
        search = Search(self._recent_system(), grid=threshold_grid(ObservedLengths(self._recent), GRID_TOKENS))
        n_prfaas, n_prefill, n_decode = self._counts()

        def loads(n_p: float, n_d: float) -> reallocator.Loads | None:
            bound = search.best_threshold(Counts(n_prfaas, n_p, n_d)).prefill_bound
            if n_p < 1 or n_d < 1 or bound <= 0.0:
                return None
            return reallocator.Loads(placed / window_s / bound, decode_work_s / (n_d * window_s))

        if self.settings.replan and len(self._recent) >= ENOUGH and isinstance(self.router.policy, Threshold):
            self._replan()
        seen = reallocator.Window(
            loads(n_prefill, n_decode), loads(n_prefill + 1, n_decode - 1), loads(n_prefill - 1, n_decode + 1)
        )
        self._observe(seen, now_s)

    def _observe(self, seen: reallocator.Window, now_s: float) -> None:
        """Let the re-allocator see a window, and start what it asks for."""
        if self.settings.rules is None:
            return
        self.moves, role = reallocator.observe(self.moves, seen, self.settings.rules, now_s)
        if role is None:
            return
        worker = self.roster.to_give(role)
        if worker is None:
            self.moves = reallocator.moved(self.moves, now_s, done=False)
            return
        self.log.add("drain", now_s, worker=worker.number)
        self.roster.drain(worker, role)
        self.settle(worker)

    def _converted(self, worker: SimWorker) -> None:
        if worker.phase != "converting" or worker.next_role is None:
            return
        now_s, role = self.events.now_s, worker.next_role
        self.converted.append((now_s, worker.worker_id, role))
        self.roster.activate(worker, role)
        self.moves = reallocator.moved(self.moves, now_s)
        self.log.add("up", now_s, worker=worker.number)
        if isinstance(self.router.policy, Threshold) and self._recent:
            self._replan()
        self.served.unpark()

    def _replan(self) -> None:
        """Search t anew for the lengths seen lately and the workers at hand."""
        if self.settings.tuning is not None:
            slo, system = self.config.slo, self._recent_system()
            self._set_planned(plan_thresholds(system, self._counts(), slo, step_tokens=GRID_TOKENS))
            return
        system = replace(self._recent_system(), link_bits_per_s=max(self.roster.egress.bits_per_s, 1.0))
        search = Search(system, grid=threshold_grid(system.lengths, GRID_TOKENS))
        tokens = best_within(search, self._counts(), self.config.slo)
        self.log.add("threshold", self.events.now_s, int(min(tokens, 1e18)))
        self.router.policy = Threshold(tokens, self.settings.cache_rule)

    def _recent_system(self) -> System:
        """The system under the prefill lengths seen lately, which say nothing of contexts and so of decode memory."""
        system = self.config.system
        decode = replace(system.decode, memory_bytes=inf)
        return replace(system, lengths=ObservedLengths(self._recent), decode=decode)

    def _counts(self) -> Counts:
        """The workers that are active now."""
        return Counts(
            len(self.roster.fleet.prefill["prfaas"]), self.roster.count("prefill"), self.roster.count("decode")
        )


def _mean_queue_s(workers: Sequence[WorkerView]) -> float:
    return sum(worker.load.queue_s for worker in workers) / len(workers) if workers else 0.0
