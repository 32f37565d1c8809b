"""The paper's case study with queues: TTFT against load, and the load each deployment carries within an SLO."""

from pathlib import Path
from typing import Any

from prfaas_ref.scheduler.experiments.case import Case, Row, latencies
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import DEPLOYMENTS, Deployment, configure

TITLE = "The case study with queueing"
NOTES = """\
Poisson arrivals of the paper's workload, 12 instances per deployment, 100 Gbps, seed 1. "carried" is the highest rate
(to 2 %) at which 90 % of requests have their first token within 10 s, or within 20 s: SLOs of ours, not the paper's.
An H20 alone takes 9.7 s for the 90th percentile prompt, so the first of them leaves the homogeneous deployment no room
to queue. "planned" is Lambda_max of the throughput model, which knows no queues."""
SEED, SLOS_S = 1, (10.0, 20.0)
RATES = (1.0, 1.5, 2.0, 2.5, 3.0)
POLICIES: dict[Deployment, tuple[str, ...]] = {
    "prfaas-pd": ("static", "paper", "cost"),
    "homogeneous": ("never",),
    "naive": ("always",),
}


def cases(n: int) -> list[Case]:
    """`n` requests a run. A rate above the plan is shown only as far as the first such one."""
    scenario = parse_scenario(EXAMPLE, Path())
    rows = []
    for deployment in DEPLOYMENTS:
        planned = configure(scenario, deployment).plan.predicted.lambda_max
        for policy in POLICIES[deployment]:
            labels = {"deployment": deployment, "policy": policy}
            rates = [rate for rate in RATES if rate < 1.05 * planned]
            rows += [Case({**labels, "requests/s": rate}, _at(deployment, policy, rate, n)) for rate in rates]
            rows += [
                Case({**labels, "requests/s": f"carried, {slo_s:g} s"}, _carried(deployment, policy, planned, n, slo_s))
                for slo_s in SLOS_S
            ]
    return rows


def _run(deployment: Deployment, policy: str, rate: float, n: int, slo_s: float) -> dict[str, Any]:
    setup = configure(parse_scenario(EXAMPLE, Path()), deployment, policy, rate_per_s=rate, seed=SEED)
    return summarise(simulate(setup.config, setup.arrivals(n, SEED, burstiness=1.0)), slo_s)


def _columns(found: dict[str, Any], rate: float, planned: float | None) -> Row:
    gbps = {"egress, Gbps": found["egress_gbps_mean"], "P99 egress": found["egress_gbps_p99"]}
    return {"rate": rate, "planned": planned, **latencies(found), **gbps}


def _at(deployment: Deployment, policy: str, rate: float, n: int) -> Any:
    return lambda: _columns(_run(deployment, policy, rate, n, SLOS_S[0]), rate, None)


def _carried(deployment: Deployment, policy: str, planned: float, n: int, slo_s: float) -> Any:
    def search() -> Row:
        low, high = 0.2 * planned, 1.2 * planned
        found = _run(deployment, policy, low, n, slo_s)
        while high / low > 1.02:
            rate = (low + high) / 2
            tried = _run(deployment, policy, rate, n, slo_s)
            if tried["slo_attainment"] >= 0.9:
                low, found = rate, tried
            else:
                high = rate
        return _columns(found, low, planned)

    return search
