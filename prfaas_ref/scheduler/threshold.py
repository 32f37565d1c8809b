"""The short timescale: the threshold follows bandwidth and queues, but never strays far from the plan. Section 3.4.

Knows nothing of requests. The paper says to watch egress utilisation and queue depth and to search t anew when the
bandwidth changes; it gives no periods or trigger values. Ours: the plan's t*(B) for the estimated bandwidth is the
centre, triggers move t by steps around it, a clamp bounds how far, and a dead band and a dwell time keep it from
oscillating. A threshold driven by the triggers alone overloads PD prefill and collapses.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf

from prfaas_ref.scheduler.planner import Infeasible, Search, Slo, threshold_grid
from prfaas_ref.scheduler.throughput import Counts, System


@dataclass(frozen=True, slots=True)
class PlannedThresholds:
    """t*(B): the best threshold at each of some bandwidths, in rising order of bits/s."""

    bits_per_s: tuple[float, ...]
    tokens: tuple[float, ...]

    def at(self, bits_per_s: float) -> float:
        """The threshold planned for the nearest bandwidth that is not above; below all of them, the lowest one's."""
        return self.tokens[max(0, bisect_right(self.bits_per_s, bits_per_s) - 1)]


def plan_thresholds(
    system: System, counts: Counts, slo: Slo | None = None, points: int = 24, step_tokens: int = 100
) -> PlannedThresholds:
    """Search t, in steps of `step_tokens`, for `points` bandwidths down from the nominal one in steps of a quarter."""
    rates = [system.link_bits_per_s * 0.75**i for i in reversed(range(points))]
    search = Search(system, grid=threshold_grid(system.lengths, step_tokens))
    found = (best_within(search.with_link(rate), counts, slo or Slo()) for rate in rates)
    return PlannedThresholds(tuple(rates), tuple(found))


def best_within(search: Search, counts: Counts, slo: Slo) -> float:
    """The best t of a system that runs as it is: within the SLO, or regardless of it where no threshold keeps it."""
    try:
        kept = search.within(slo)
    except Infeasible:
        kept = search
    return kept.best_threshold(counts).threshold_tokens


@dataclass(frozen=True, slots=True)
class Signals:
    """What was seen in the last period: estimates, lagged and noisy as they may be."""

    bits_per_s: float  # smoothed over `Tuning.smoothing_s`
    egress_utilization: float
    prfaas_queue_s: float  # what a request waits on that side: work per PrfaaS worker, or bytes before the link
    pd_queue_s: float  # work per PD prefill worker


@dataclass(frozen=True, slots=True)
class Tuning:
    """Trigger values; none of them is the paper's."""

    smoothing_s: float = 60.0  # time constant of the bandwidth average: a short dip is ridden out
    high_utilization: float = 0.98
    surge_s: float = 4.0  # a queue this much longer than the other side's is a surge
    step: float = 0.1
    clamp: float = 0.1
    dead_band: float = 0.05
    dwell_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ThresholdState:
    """The threshold in force, and enough of its past to damp it."""

    tokens: float
    changed_s: float = -inf
    direction: int = 0
    reversals: int = 0


def adjust(
    state: ThresholdState, seen: Signals, planned: PlannedThresholds, tuning: Tuning, now_s: float
) -> ThresholdState:
    """The next threshold; the same state when nothing should move."""
    if now_s - state.changed_s < tuning.dwell_s:
        return state
    centre = planned.at(seen.bits_per_s)
    if centre in (0.0, inf):
        wanted = centre
    else:
        low, high = centre * (1 - tuning.clamp), centre * (1 + tuning.clamp)
        wanted = min(max(_triggered(state.tokens, centre, seen, tuning), low), high)
    near = state.tokens < inf and abs(wanted - state.tokens) <= tuning.dead_band * state.tokens
    if near or wanted == state.tokens:
        return state
    direction = 1 if wanted > state.tokens else -1
    return ThresholdState(wanted, now_s, direction, state.reversals + (direction == -state.direction))


def smoothed(average: float, seen: float, period_s: float, time_constant_s: float) -> float:
    """The exponential average after one more sample."""
    weight = 1.0 if time_constant_s <= 0 else min(1.0, period_s / time_constant_s)
    return average + weight * (seen - average)


def _triggered(tokens: float, centre: float, seen: Signals, tuning: Tuning) -> float:
    """One step away from the side that surges, or one step back to the centre when neither does."""
    if seen.egress_utilization > tuning.high_utilization or seen.prfaas_queue_s > seen.pd_queue_s + tuning.surge_s:
        return tokens * (1 + tuning.step)
    if seen.pd_queue_s > seen.prfaas_queue_s + tuning.surge_s:
        return tokens * (1 - tuning.step)
    if tokens < centre:
        return min(centre, tokens * (1 + tuning.step))
    return max(centre, tokens * (1 - tuning.step))
