"""The planner: the threshold, the prefill/decode split and, if asked, the instance counts that serve the most traffic.

Knows nothing of files or queues. The paper searches (t, N_p, N_d) exhaustively and so does this, with one array
operation per N_p in place of a loop over t; the tests hold it against the plain triple loop. Section 3.2, equations
7 and 8.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.lengths import OFFLOAD_ALL, OFFLOAD_NONE, Lengths
from prfaas_ref.scheduler.throughput import (
    Counts,
    System,
    Throughput,
    Ttft,
    TtftModel,
    egress_at,
    throughput,
)
from prfaas_ref.units import BITS_PER_BYTE

ROUNDING = 1 + 1e-9  # what float arithmetic may add to a sum of prices


class Infeasible(UserError):
    """No plan meets a constraint; `constraint` names it (`memory`, `decode slo`, `ttft slo`, `demand`, ...)."""

    def __init__(self, constraint: str, message: str) -> None:
        super().__init__(f"infeasible ({constraint}): {message}")
        self.constraint = constraint


@dataclass(frozen=True)
class Slo:
    """What a plan must keep, queueing aside. None: no bound."""

    mean_ttft_s: float | None = None
    p90_ttft_s: float | None = None
    decode_tokens_per_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """One operating point: instances, threshold, and what the model predicts there."""

    counts: Counts
    threshold_tokens: float
    predicted: Throughput
    ttft: Ttft
    egress_bits_per_s: float


def threshold_grid(lengths: Lengths, step_tokens: int = 100) -> list[float]:
    """Thresholds to try: all offloaded, every multiple of `step_tokens` among the lengths, none offloaded."""
    first = max(1, int(lengths.low // step_tokens))
    inner = range(first * step_tokens, int(lengths.high) + step_tokens, step_tokens)
    return [OFFLOAD_ALL, *map(float, inner), OFFLOAD_NONE]


class Best(NamedTuple):
    """The best threshold for given counts; `prefill_bound` is what both prefill stages could carry together."""

    lambda_max: float
    prefill_bound: float
    counts: Counts
    threshold_tokens: float


class Search:
    """Exhaustive search over thresholds and prefill/decode splits for one system.

    Ties in Lambda_max (a decode-bound system has many) go to the point with the most prefill in reserve, then to the
    fewer prefill instances and the lower threshold.
    """

    def __init__(self, system: System, slo: Slo | None = None, grid: Sequence[float] | None = None) -> None:
        self.system, self.slo = system, slo or Slo()
        self.grid = list(grid) if grid is not None else threshold_grid(system.lengths)
        self._ttft: TtftModel | None = None
        self._check_decode()
        splits = [system.lengths.split(t) for t in self.grid]
        p = np.array([s.p_long for s in splits])
        bits = np.array([system.kv.bytes(s.l_long) for s in splits]) * BITS_PER_BYTE
        with np.errstate(divide="ignore"):
            # Per instance, how much total traffic each stage lets through at each threshold.
            self._prfaas = 1.0 / (p * np.array([system.prfaas_prefill.seconds(s.l_long) for s in splits]))
            self._link = system.link_bits_per_s / (p * bits)
            self._pd = 1.0 / ((1.0 - p) * np.array([system.pd_prefill.seconds(s.l_short) for s in splits]))
        self._nothing_long, self._nothing_short = p == 0.0, p == 1.0
        self._allowed = self._within_slo()

    def with_link(self, bits_per_s: float) -> "Search":
        """The same search over another link; only what depends on it is computed anew."""
        other = copy(self)
        other.system = replace(self.system, link_bits_per_s=bits_per_s)
        other._link = self._link * (bits_per_s / self.system.link_bits_per_s)
        other._ttft = None
        other._allowed = other._within_slo()
        return other

    def within(self, slo: Slo) -> "Search":
        """The same search under an SLO. Raises Infeasible."""
        other = copy(self)
        other.slo = slo
        other._check_decode()
        other._allowed = other._within_slo()
        return other

    def best(self, n_prfaas: float, n_pd: int) -> Plan:
        """The best split and threshold for fixed instances. Raises Infeasible."""
        _check_pd(n_pd)
        best = max(self._splits(n_prfaas, n_pd), key=lambda b: b[:2])
        if best.lambda_max <= 0.0:
            raise Infeasible("instances", f"{n_prfaas:g} PrfaaS and {n_pd} PD instances leave nothing to prefill with")
        return self.plan_at(best.counts, best.threshold_tokens)

    def best_threshold(self, counts: Counts) -> Best:
        """The best threshold for a fixed split."""
        bound = self._prefill_bound(counts.prfaas, counts.pd_prefill)
        i = int(np.argmax(bound))
        decode = throughput(self.system, counts, self.grid[i]).theta_pd_decode
        return Best(min(float(bound[i]), decode), float(bound[i]), counts, self.grid[i])

    def plan_at(self, counts: Counts, t: float) -> Plan:
        """What the model predicts at one point, searched or not."""
        predicted = throughput(self.system, counts, t)
        egress = egress_at(self.system, predicted.lambda_max, self.system.lengths.split(t))
        return Plan(counts, t, predicted, self._ttft_model().at(t), egress)

    def _splits(self, n_prfaas: float, n_pd: int) -> Iterator[Best]:
        return (self.best_threshold(Counts(n_prfaas, n_p, n_pd - n_p)) for n_p in range(n_pd))

    def _prefill_bound(self, n_prfaas: float, n_p: float) -> NDArray[np.float64]:
        """min(Theta_prfaas / p, Theta_pd_p / (1 - p)) at every threshold; 0 where an SLO is missed."""
        remote = np.minimum(n_prfaas * self._prfaas, self._link) if n_prfaas else np.zeros(len(self.grid))
        local = n_p * self._pd if n_p else np.zeros(len(self.grid))
        remote = np.where(self._nothing_long, inf, remote)
        local = np.where(self._nothing_short, inf, local)
        return np.where(self._allowed, np.minimum(remote, local), 0.0)

    def _check_decode(self) -> None:
        decode, wanted = self.system.decode, self.slo.decode_tokens_per_s
        if wanted is not None and 1.0 / decode.step_s < wanted:
            raise Infeasible("decode slo", f"one step takes {decode.step_s * 1e3:g} ms, {wanted:g} tokens/s were asked")
        if self.system.decode_batch < 1:
            raise Infeasible("memory", "a decode instance does not hold one context of mean length")

    def _within_slo(self) -> NDArray[np.bool_]:
        slo = self.slo
        if slo.mean_ttft_s is None and slo.p90_ttft_s is None:
            return np.ones(len(self.grid), bool)
        mean_s, p90_s = (inf if bound is None else bound for bound in (slo.mean_ttft_s, slo.p90_ttft_s))
        ttfts = [self._ttft_model().at(t) for t in self.grid]
        allowed = np.array([ttft.mean_s <= mean_s and ttft.p90_s <= p90_s for ttft in ttfts])
        if not allowed.any():
            nearest = min(ttfts)
            raise Infeasible(
                "ttft slo", f"no threshold gets below mean {nearest.mean_s:.2f} s and P90 {nearest.p90_s:.2f} s at once"
            )
        return allowed

    def _ttft_model(self) -> TtftModel:
        if self._ttft is None:
            self._ttft = TtftModel(self.system)
        return self._ttft


def _check_pd(n_pd: int) -> None:
    if n_pd < 1:
        raise Infeasible("instances", "the PD cluster needs at least one instance to decode")


def homogeneous(system: System, n_pd: int, slo: Slo | None = None) -> Plan:
    """The best split of `n_pd` PD instances that prefill everything themselves."""
    return Search(system, slo, [OFFLOAD_NONE]).best(0, n_pd)


def naive(system: System, n_prfaas: float, n_pd: int, slo: Slo | None = None) -> Plan:
    """All prefill remote, all PD instances decode. Raises Infeasible."""
    _check_pd(n_pd)
    return Search(system, slo, [OFFLOAD_ALL]).plan_at(Counts(n_prfaas, 0, n_pd), OFFLOAD_ALL)


@dataclass(frozen=True)
class Prices:
    """Cost of one instance, in any one currency per hour."""

    prfaas: float
    pd: float

    def of(self, counts: Counts) -> float:
        return counts.prfaas * self.prfaas + (counts.pd_prefill + counts.pd_decode) * self.pd

    def pd_instances_for(self, budget: float) -> int:
        """How many PD instances a budget buys. They must cost something."""
        return int(budget / self.pd * ROUNDING)


def within_budget(search: Search, prices: Prices, budget: float, at_most: Counts) -> Plan:
    """The most traffic for a budget, of at most so many instances. Raises Infeasible."""
    affordable = [b for b in _purchases(search, at_most) if prices.of(b.counts) <= budget * ROUNDING]
    if not any(b.lambda_max > 0 for b in affordable):
        raise Infeasible("budget", f"{budget:g} per hour does not buy a deployment that serves anything")
    best = max(affordable, key=lambda b: (b.lambda_max, -prices.of(b.counts)))
    return search.plan_at(best.counts, best.threshold_tokens)


def cheapest_for(search: Search, prices: Prices, demand_per_s: float, at_most: Counts) -> Plan:
    """The cheapest deployment that serves a demand above 0, of at most so many instances. Raises Infeasible."""
    if not demand_per_s > 0:
        raise ValueError(f"a demand is requests per second, above 0, not {demand_per_s:g}")
    purchases = list(_purchases(search, at_most))
    enough = [b for b in purchases if b.lambda_max >= demand_per_s]
    if not enough:
        most = max(b.lambda_max for b in purchases)
        raise Infeasible("demand", f"{demand_per_s:g} requests/s asked, at most {most:.3g} from the instances allowed")
    best = min(enough, key=lambda b: (prices.of(b.counts), -b.lambda_max))
    return search.plan_at(best.counts, best.threshold_tokens)


def _purchases(search: Search, at_most: Counts) -> Iterator[Best]:
    """Every purchase of at most so many PrfaaS and PD instances, each at its best threshold. Raises Infeasible."""
    n_pd = int(at_most.pd_prefill + at_most.pd_decode)
    _check_pd(n_pd)
    decode_each = throughput(search.system, Counts(0, 0, 1), OFFLOAD_NONE).theta_pd_decode
    for n_prfaas in range(int(at_most.prfaas) + 1):
        for n_p in range(n_pd):
            best = search.best_threshold(Counts(n_prfaas, n_p, 1))
            for n_d in range(1, n_pd - n_p + 1):
                rate = min(best.prefill_bound, n_d * decode_each)
                yield best._replace(lambda_max=rate, counts=Counts(n_prfaas, n_p, n_d))


def next_ten_percent(search: Search, plan: Plan) -> dict[str, float]:
    """By which fraction Lambda_max rises when one resource grows by a tenth and the threshold is searched again."""
    n_prfaas, n_p, n_d = plan.counts
    wider = search.with_link(search.system.link_bits_per_s * 1.1)
    grown = {
        "prfaas instances": (search, Counts(n_prfaas * 1.1, n_p, n_d)),
        "pd prefill instances": (search, Counts(n_prfaas, n_p * 1.1, n_d)),
        "pd decode instances": (search, Counts(n_prfaas, n_p, n_d * 1.1)),
        "link": (wider, plan.counts),
    }
    now = plan.predicted.lambda_max
    return {name: max(0.0, s.best_threshold(counts).lambda_max / now - 1.0) for name, (s, counts) in grown.items()}
