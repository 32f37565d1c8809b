"""The figures of a run, under the names that vLLM's benchmarks use where it has one.

Knows nothing of how the run was made. Percentiles are over completed requests that arrived after the warm-up; goodput
counts those that met the TTFT bound, against every request that ended, refused ones included. Rates are over the time
from the warm-up to the last end. An answer of one token has no time per output token, as in vLLM.
"""

from typing import Any

import numpy as np

from prfaas_ref.scheduler.simulation.engine import Result
from prfaas_ref.scheduler.simulation.outcomes import ROUTES, STATUSES

COMPLETED, PRFAAS = STATUSES.index("completed"), ROUTES.index("prfaas")


def summarise(result: Result, slo_ttft_s: float, warmup_s: float = 0.0) -> dict[str, Any]:
    """All metrics of one run as JSON-able numbers; None where there is nothing to measure."""
    done = result.outcomes
    return {
        "arrived": done.arrived,
        **{status: done.ended[status] for status in STATUSES},
        "in_flight": result.in_flight,
        **_latencies(result, slo_ttft_s, warmup_s),
        **_link(result),
        **_queues(result),
        **{f"hit_ratio_{cluster}": cache.hit_ratio for cluster, cache in result.caches.items()},
        "reasons": dict(done.reasons),
        "threshold_tokens": result.control.threshold.tokens if result.control.threshold else None,
        "threshold_reversals": result.control.threshold.reversals if result.control.threshold else 0,
        "role_conversions": result.control.moves.conversions,
        "duration_s": result.end_s,
        "events": result.events,
        "event_log_sha256": result.log.hexdigest(),
    }


def _latencies(result: Result, slo_ttft_s: float, warmup_s: float) -> dict[str, Any]:
    done = result.outcomes
    arrival, ttft, finish = (np.asarray(column) for column in (done.arrival_s, done.ttft_s, done.finish_s))
    status, output = np.asarray(done.status), np.asarray(done.output_tokens)
    counted = arrival >= warmup_s
    completed = counted & (status == COMPLETED)
    good = completed & (ttft <= slo_ttft_s)
    span_s = max(result.end_s - warmup_s, 1e-9)
    ttft_ms, e2e_ms = 1e3 * ttft[completed], 1e3 * (finish - arrival)[completed]
    steps = output[completed] - 1
    tpot_ms = (e2e_ms - ttft_ms)[steps > 0] / steps[steps > 0]
    offloaded = np.asarray(done.route)[completed] == PRFAAS
    return {
        "mean_ttft_ms": _mean(ttft_ms),
        **{f"p{q}_ttft_ms": _quantile(ttft_ms, q / 100) for q in (50, 90, 99)},
        "mean_tpot_ms": _mean(tpot_ms),
        "mean_e2el_ms": _mean(e2e_ms),
        "request_throughput": float(completed.sum() / span_s),
        "request_goodput": float(good.sum() / span_s),
        "slo_ttft_s": slo_ttft_s,
        "slo_attainment": float(good.sum() / counted.sum()) if counted.any() else None,
        "output_throughput": float(output[completed].sum() / span_s),
        "offloaded_share": _mean(offloaded),
    }


def _link(result: Result) -> dict[str, Any]:
    gbps = np.asarray(result.control.samples.egress_gbps)
    settings = result.control.settings
    nominal = result.control.config.system.link_bits_per_s / 1e9
    return {
        "egress_gbps_mean": _mean(gbps),
        "egress_gbps_p99": _quantile(gbps, 0.99),
        "egress_window_s": settings.period_s,
        "link_utilization": _mean(gbps / nominal),
        "link_bytes": int(sum(result.outcomes.link_bytes)),
    }


def _queues(result: Result) -> dict[str, Any]:
    samples = result.control.samples
    columns = {"prfaas": samples.queue_prfaas, "pd_prefill": samples.queue_pd, "pd_decode": samples.queue_decode}
    return {f"queue_depth_{stage}": _mean(np.asarray(column)) for stage, column in columns.items()}


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _quantile(values: Any, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None
