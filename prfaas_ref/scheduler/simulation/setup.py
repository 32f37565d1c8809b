"""From a scenario and a few words to a simulation: which deployment, which policy, which requests.

Knows nothing of files beyond the scenario. A deployment is planned first, so that its split and its threshold are the
planner's, and the arrival rate is a share of what the plan can carry. A plan knows whole lengths only; where a trace's
hash ids tell what is cached, the paper's policy searches t anew on the uncached lengths that it sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from prfaas_ref.errors import UserError
from prfaas_ref.request import Request
from prfaas_ref.scheduler.lengths import LogNormalLengths, ObservedLengths
from prfaas_ref.scheduler.planner import Plan, Search, homogeneous, naive
from prfaas_ref.scheduler.router import CacheRule, Policy, Threshold, policy_for
from prfaas_ref.scheduler.scenario import Scenario
from prfaas_ref.scheduler.simulation.config import Control, Failure, SimulationConfig
from prfaas_ref.scheduler.simulation.workload import drawn, replayed, replayed_at
from prfaas_ref.scheduler.threshold import Tuning
from prfaas_ref.scheduler.traces import HASH_BLOCK_TOKENS
from prfaas_ref.units import GIB, gbps

Deployment = Literal["prfaas-pd", "homogeneous", "naive"]
DEPLOYMENTS: tuple[Deployment, ...] = ("prfaas-pd", "homogeneous", "naive")
DEFAULT_POLICY: dict[Deployment, str] = {"prfaas-pd": "paper", "homogeneous": "never", "naive": "always"}


@dataclass(frozen=True)
class Setup:
    """A simulation that is ready to run, and the plan behind it."""

    config: SimulationConfig
    plan: Plan
    rate_per_s: float | None  # None: the trace's own pace
    requests: tuple[Request, ...]

    def arrivals(self, n: int, seed: int, burstiness: float) -> Iterator[Request]:
        """The first `n` requests, drawn with `seed` or replayed from the trace."""
        if self.requests:
            kept = self.requests[:n]
            return replayed(kept) if self.rate_per_s is None else replayed_at(kept, self.rate_per_s)
        system = self.config.system
        if not isinstance(system.lengths, LogNormalLengths):
            return iter(())  # an empty trace
        assert self.rate_per_s is not None
        rng = np.random.default_rng(seed)
        return drawn(n, self.rate_per_s, system.lengths, round(system.output_tokens), rng, burstiness)


def with_trace(scenario: Scenario, requests: tuple[Request, ...]) -> Scenario:
    """The scenario under a trace's lengths and outputs."""
    if not requests:
        return replace(scenario, requests=())
    output = sum(request.max_tokens for request in requests) / len(requests)
    lengths = ObservedLengths(request.prompt_tokens for request in requests)
    return replace(scenario, requests=requests, system=replace(scenario.system, lengths=lengths, output_tokens=output))


def plan_deployment(scenario: Scenario, deployment: Deployment) -> Plan:
    """The best plan of one kind with the scenario's instances; a homogeneous one has as many of the PD kind."""
    if deployment == "homogeneous":
        return homogeneous(scenario.system, scenario.n_prfaas + scenario.n_pd, scenario.slo)
    if deployment == "naive":
        if not scenario.n_prfaas:
            raise UserError("a naive deployment needs PrfaaS instances; the scenario has none")
        return naive(scenario.system, scenario.n_prfaas, scenario.n_pd, scenario.slo)
    return Search(scenario.system, scenario.slo).best(scenario.n_prfaas, scenario.n_pd)


def configure(
    scenario: Scenario,
    deployment: Deployment,
    policy: str | None = None,
    cache_rule: CacheRule = "scarce",
    rate_per_s: float | None = None,
    seed: int = 0,
) -> Setup:
    """Plan a deployment and make it ready to run. `policy`: paper, static, cost, always, never or a threshold."""
    plan, options = plan_deployment(scenario, deployment), scenario.simulation
    chosen = policy or DEFAULT_POLICY[deployment]
    rate = rate_per_s or options.rate_per_s
    if rate is None and not scenario.requests:
        rate = options.load * plan.predicted.lambda_max
    hashed = any(request.hash_ids for request in scenario.requests)
    config = SimulationConfig(
        scenario.system,
        plan.counts,
        make_policy(chosen, plan.threshold_tokens, cache_rule),
        scenario.slo,
        cache_bytes=options.cache_gib * GIB,
        node_tokens=HASH_BLOCK_TOKENS if hashed else max(1, int(scenario.system.lengths.mean)),
        control=Control(
            tuning=Tuning() if chosen == "paper" else None, cache_rule=cache_rule, replan=chosen == "paper" and hashed
        ),
        link_changes=tuple((at_s, gbps(rate)) for at_s, rate in options.link_changes),
        failures=tuple(Failure(*failure) for failure in options.failures),
        seed=seed,
    )
    check_failures(config)
    return Setup(config, plan, rate, scenario.requests)


def make_policy(name: str, planned_tokens: float, cache_rule: CacheRule) -> Policy:
    """The policy of a name. `paper` and `static` start from the planned threshold. Raises UserError."""
    if name in ("paper", "static"):
        return Threshold(planned_tokens, cache_rule)
    try:
        return policy_for(name, cache_rule)
    except ValueError as error:
        raise UserError(f"{error}; `paper` and `static` take the planned threshold") from None


def check_failures(config: SimulationConfig) -> None:
    """Failures must name workers that exist. Raises UserError."""
    n_pd = int(config.counts.pd_prefill + config.counts.pd_decode)
    known = {f"prfaas-{i}" for i in range(int(config.counts.prfaas))} | {f"pd-{i}" for i in range(n_pd)}
    for failure in config.failures:
        if failure.worker_id not in known:
            raise UserError(f"failures: no worker {failure.worker_id!r}; there are {', '.join(sorted(known))}")
