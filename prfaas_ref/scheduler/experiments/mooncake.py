"""A Mooncake trace end to end with caches: what offload and cross-cluster prefix transfer bring at each link speed."""

from pathlib import Path
from typing import Any

from prfaas_ref.request import Request
from prfaas_ref.scheduler.experiments.case import Case, Row, latencies
from prfaas_ref.scheduler.router import CacheRule
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import Deployment, configure, with_trace

TITLE = "Mooncake traces with prefix caches"
NOTES = """\
The case study's instances and model under the trace's prompts, answers and hash ids, sped up to 0.85 of what the
homogeneous plan carries without caches (the trace's stamps come in ticks of about 3 s: bursts are part of it). 512 GiB
of prefix cache per cluster. SLO: TTFT within 10 s. Nothing was tuned on these runs."""
SLO_TTFT_S, LOAD = 10.0, 0.85
LINKS_GBPS = (100, 25, 10, 3, 1)
WAYS: tuple[tuple[str, str, CacheRule], ...] = (
    ("offload, own caches", "static", "scarce"),
    ("offload, prefix transfer", "static", "abundant"),
    ("lowest estimated TTFT", "cost", "scarce"),
)


def cases(requests: tuple[Request, ...]) -> list[Case]:
    """The homogeneous baseline, then each way at each link speed."""
    rate = LOAD * configure(_scenario(requests, 100), "homogeneous").plan.predicted.lambda_max
    homogeneous = _run(requests, 100, "homogeneous", "never", "scarce", rate)
    return [Case({"link, Gbps": None, "way": "homogeneous"}, homogeneous)] + [
        Case({"link, Gbps": link, "way": name}, _run(requests, link, "prfaas-pd", policy, rule, rate))
        for link in LINKS_GBPS
        for name, policy, rule in WAYS
    ]


def _scenario(requests: tuple[Request, ...], link_gbps: float) -> Any:
    return with_trace(parse_scenario(EXAMPLE.replace("gbps = 100", f"gbps = {link_gbps}"), Path()), requests)


def _run(
    requests: tuple[Request, ...], link: float, deployment: Deployment, policy: str, rule: CacheRule, rate: float
) -> Any:
    def run() -> Row:
        setup = configure(_scenario(requests, link), deployment, policy, rule, rate)
        result = simulate(setup.config, setup.arrivals(len(requests), 0, 1.0))
        found = summarise(result, SLO_TTFT_S)
        back = result.control.transfers.ingress.delivered_bits / 8e9
        hits = sum(cache.hit_tokens for cache in result.caches.values())
        prompts = sum(cache.prompt_tokens for cache in result.caches.values())
        return {
            "requests/s": rate,
            "t, tokens": setup.plan.threshold_tokens if deployment == "prfaas-pd" else None,
            "N_p/N_d": f"{setup.plan.counts.pd_prefill:g}/{setup.plan.counts.pd_decode:g}",
            **latencies(found),
            "offloaded, %": 100 * (found["offloaded_share"] or 0.0),
            "hit, %": 100 * hits / prompts if prompts else 0.0,
            "egress, Gbps": found["egress_gbps_mean"],
            "prefix GB back": back,
        }

    return run
