"""Plan a deployment: can prefill leave the datacenter, how much traffic would it carry, and what limits it?

Reads a scenario (clusters, link, model, workload, SLO) and searches the threshold t and the split N_p / N_d that serve
the most requests per second, as section 3.2 of the paper does; with [search] also how many instances to buy. Compares
the result with a homogeneous cluster and with all prefill remote, at equal instances and at equal cost, names the
binding term, and says what a tenth more of each resource would bring. Modelled, and without queueing; for that, see
`prfaas simulate`.

  prfaas plan --example > my.toml     a commented scenario, the paper's case study
  prfaas plan my.toml                 plan it

Exit status 2 and one line naming the constraint when no plan exists.
"""

import argparse
import json
from collections.abc import Callable
from math import inf
from pathlib import Path

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.planner import (
    Infeasible,
    Plan,
    Prices,
    Search,
    cheapest_for,
    homogeneous,
    naive,
    next_ten_percent,
    within_budget,
)
from prfaas_ref.scheduler.report import table
from prfaas_ref.scheduler.scenario import EXAMPLE, Scenario, load_scenario
from prfaas_ref.scheduler.throughput import Counts
from prfaas_ref.units import G


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", type=Path, metavar="SCENARIO.toml", help="what to plan")
    parser.add_argument("--example", action="store_true", help="print a commented scenario and stop")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    if args.example:
        print(EXAMPLE, end="")
        return 0
    if args.scenario is None:
        raise UserError("which scenario? `prfaas plan --example > my.toml` writes one to start from")
    scenario = load_scenario(args.scenario)
    search = Search(scenario.system, scenario.slo)
    best = find_plan(scenario, search)
    rivals = compare(scenario, best)
    gains = next_ten_percent(search, best)
    if args.json:
        print(json.dumps(as_json(scenario.prices, best, rivals, gains), indent=1))
    else:
        print(as_text(scenario.prices, best, rivals, gains))
    return 0


def find_plan(scenario: Scenario, search: Search) -> Plan:
    """The plan that the scenario asks for. Raises Infeasible."""
    at_most = Counts(scenario.n_prfaas, 0, scenario.n_pd)
    if scenario.budget_per_hour is not None:
        plan = within_budget(search, scenario.prices, scenario.budget_per_hour, at_most)
    elif scenario.demand_per_s is not None:
        return cheapest_for(search, scenario.prices, scenario.demand_per_s, at_most)
    else:
        plan = search.best(scenario.n_prfaas, scenario.n_pd)
    if scenario.demand_per_s is not None and plan.predicted.lambda_max < scenario.demand_per_s:
        most = plan.predicted.lambda_max
        raise Infeasible("demand", f"{scenario.demand_per_s:g} requests/s asked, the budget carries {most:.3g}")
    return plan


def compare(scenario: Scenario, best: Plan) -> dict[str, Plan]:
    """The rivals that exist: an SLO or a lack of instances may rule one out."""
    system, slo, prices = scenario.system, scenario.slo, scenario.prices
    n_prfaas, n_pd = int(best.counts.prfaas), int(best.counts.pd_prefill + best.counts.pd_decode)
    equal_cost = prices.pd_instances_for(prices.of(best.counts)) if prices.pd else n_pd
    rivals: dict[str, Callable[[], Plan]] = {
        "homogeneous, equal count": lambda: homogeneous(system, n_prfaas + n_pd, slo),
        "homogeneous, equal cost": lambda: homogeneous(system, equal_cost, slo),
        "naive, same instances": lambda: naive(system, n_prfaas, n_pd, slo),
    }
    found = {}
    for name, rival in rivals.items():
        try:
            found[name] = rival()
        except Infeasible:
            continue
    return {name: plan for name, plan in found.items() if plan.predicted.lambda_max > 0}


def as_json(prices: Prices, best: Plan, rivals: dict[str, Plan], gains: dict[str, float]) -> dict[str, object]:
    compared = {name: {**_numbers(prices, plan), "gain": _gain(best, plan)} for name, plan in rivals.items()}
    return {**_numbers(prices, best), "next_10_percent": gains, "compared_with": compared}


def _numbers(prices: Prices, plan: Plan) -> dict[str, object]:
    p, t = plan.predicted, plan.threshold_tokens
    return {
        "n_prfaas": int(plan.counts.prfaas),
        "n_pd_prefill": int(plan.counts.pd_prefill),
        "n_pd_decode": int(plan.counts.pd_decode),
        "threshold_tokens": _finite(t),
        "lambda_max": p.lambda_max,
        "binding": p.binding,
        "theta_prfaas": _finite(p.theta_prfaas),
        "theta_pd_prefill": _finite(p.theta_pd_prefill),
        "theta_pd_decode": p.theta_pd_decode,
        "offloaded_share": p.p_long,
        "mean_ttft_s": plan.ttft.mean_s,
        "p90_ttft_s": plan.ttft.p90_s,
        "egress_gbps_mean": plan.egress_bits_per_s / G,
        "cost_per_hour": prices.of(plan.counts),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < inf else None


def _gain(best: Plan, rival: Plan) -> float:
    return best.predicted.lambda_max / rival.predicted.lambda_max - 1.0


def as_text(prices: Prices, best: Plan, rivals: dict[str, Plan], gains: dict[str, float]) -> str:
    header = ("", "PrfaaS/N_p/N_d", "t, tokens", "requests/s", "mean TTFT, s", "P90 TTFT, s", "Gbps", "cost/h", "gain")
    rows = [_row("this plan", prices, best, "")]
    for name, rival in rivals.items():
        rows.append(_row(name, prices, rival, f"{100 * _gain(best, rival):+.1f} %"))
    offloaded = f"{100 * best.predicted.p_long:.1f} % offloaded"
    bound = f"Binding: {best.predicted.binding}. {offloaded}."
    lines = [table(header, rows), "", f"Gain: of this plan over the row. {bound}"]
    lines += [f"10 % more {name}: {100 * gain:+.1f} % requests/s" for name, gain in gains.items()]
    return "\n".join([*lines, "", "Modelled, without queueing."])


def _row(name: str, prices: Prices, plan: Plan, gain: str) -> tuple[object, ...]:
    c, t = plan.counts, plan.threshold_tokens
    threshold = {1.0: "all remote", 0.0: "all local"}.get(plan.predicted.p_long, f"{t:,.0f}")
    return (
        name, f"{c.prfaas:g}/{c.pd_prefill:g}/{c.pd_decode:g}", threshold, plan.predicted.lambda_max, plan.ttft.mean_s,
        plan.ttft.p90_s, plan.egress_bits_per_s / G, float(prices.of(c)), gain,
    )  # fmt: skip
