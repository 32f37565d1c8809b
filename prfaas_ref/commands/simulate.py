"""Simulate a deployment request by request, with the queues, transfers, caches and failures that a plan leaves out.

Without a scenario: the paper's case study (4 PrfaaS and 8 PD instances, 100 Gbps). The deployment is planned first; by
default requests arrive at 0.8 of what its own plan can carry. One deployment a run:

  prfaas-pd     long uncached prompts are prefilled in the PrfaaS cluster, short ones in the PD cluster
  homogeneous   as many instances, all of the PD kind, prefill and decode everything
  naive         the PrfaaS cluster prefills everything, all PD instances decode

Policies: paper (the planned threshold, moved by bandwidth and queues), static (the planned threshold), cost (lowest
estimated TTFT), always, never, or a number of tokens. A plan reckons with whole prompts; under a trace with hash ids,
paper searches its threshold anew every minute, on the uncached lengths of the last 2000 requests. The split stays.
The same seed gives the same event log, whose hash is printed.
Modelled: prefill by the scenario's profile, a decode step of constant time, a link that flows share max-min fairly.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prfaas_ref.errors import UserError
from prfaas_ref.request import Request
from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.reallocator import Rules
from prfaas_ref.scheduler.report import table, write_atomically
from prfaas_ref.scheduler.scenario import EXAMPLE, Scenario, load_scenario, parse_scenario
from prfaas_ref.scheduler.simulation import Result, SimulationConfig, simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.outcomes import Row
from prfaas_ref.scheduler.simulation.setup import DEFAULT_POLICY, DEPLOYMENTS, configure, with_trace
from prfaas_ref.scheduler.simulation.timeline import chrome_trace
from prfaas_ref.scheduler.traces import read_trace
from prfaas_ref.units import GIB

CACHE_RULE_HELP = (
    "which cache is judged: scarce, the PD cluster's own (default), or abundant, the longer one, moved if that pays"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", type=Path, metavar="SCENARIO.toml", help="see `prfaas plan --example`")
    parser.add_argument("--deployment", choices=DEPLOYMENTS, default="prfaas-pd")
    parser.add_argument("--policy", metavar="NAME|TOKENS", help="default: paper, never and always, by deployment")
    parser.add_argument("--cache-rule", choices=("scarce", "abundant"), default="scarce", help=CACHE_RULE_HELP)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="replay a trace instead of drawing requests")
    parser.add_argument("--trace-format", choices=("mooncake", "azure"), default="mooncake")
    parser.add_argument("--requests", type=int, metavar="N", help="how many (default 10000, or the whole trace)")
    parser.add_argument("--rate", type=float, metavar="PER_S", help="arrivals per second; a trace is sped up to it")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals and lengths (default 0)")
    parser.add_argument("--slo-ttft-s", type=float, default=10.0, metavar="S", help="what goodput asks (default 10)")
    parser.add_argument("--max-ttft-s", type=float, metavar="S", help="refuse requests predicted to take longer")
    parser.add_argument("--max-link-gib", type=float, metavar="GIB", help="refuse requests beyond so much on the link")
    parser.add_argument("--reallocate", action="store_true", help="let PD workers change role")
    parser.add_argument("--until-s", type=float, metavar="S", help="stop at this virtual time, with requests in flight")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--requests-csv", type=Path, metavar="FILE", help="one line per request")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="a Chrome trace of every worker")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="queue depths and egress over time, as PNG")


def run(args: argparse.Namespace) -> int:
    check(args)
    scenario = read_scenario(args)
    setup = configure(scenario, args.deployment, args.policy, args.cache_rule, args.rate, args.seed)
    n = args.requests or len(setup.requests) or 10_000
    arrivals = setup.arrivals(n, args.seed, scenario.simulation.burstiness)
    config = with_options(setup.config, args)
    result = simulate(config, progress(arrivals, min(n, len(setup.requests) or n)))
    found = {
        "deployment": args.deployment,
        "policy": args.policy or DEFAULT_POLICY[args.deployment],
        "rate_per_s": setup.rate_per_s,
        "n_prfaas": int(setup.plan.counts.prfaas),
        "n_pd_prefill": int(setup.plan.counts.pd_prefill),
        "n_pd_decode": int(setup.plan.counts.pd_decode),
        "planned_lambda_max": setup.plan.predicted.lambda_max,
        **summarise(result, args.slo_ttft_s),
    }
    write_files(args, result)
    print(json.dumps(found, indent=1) if args.json else as_text(found))
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing. Raises UserError."""
    for name in ("requests", "rate", "slo_ttft_s", "max_ttft_s", "max_link_gib", "until_s"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UserError(f"--{name.replace('_', '-')} must be positive, not {value:g}")
    if args.seed < 0:
        raise UserError(f"--seed must be 0 or more, not {args.seed}")


def read_scenario(args: argparse.Namespace) -> Scenario:
    scenario = load_scenario(args.scenario) if args.scenario else parse_scenario(EXAMPLE, Path())
    if args.trace:
        requests = read_trace(args.trace, args.trace_format, args.requests)
        if not requests:
            raise UserError(f"trace {args.trace} holds no requests")
        scenario = with_trace(scenario, tuple(requests))
    return scenario


def with_options(config: SimulationConfig, args: argparse.Namespace) -> SimulationConfig:
    """The command line's own wishes on top of the scenario's."""
    if args.max_ttft_s or args.max_link_gib:
        bounds = Admission(args.max_ttft_s or float("inf"), (args.max_link_gib or float("inf")) * GIB)
        config = replace(config, admission=bounds)
    if args.reallocate:
        config = replace(config, control=replace(config.control, rules=Rules()))
    return replace(config, until_s=args.until_s or float("inf"), keep_spans=args.timeline is not None)


def progress(arrivals: Iterator[Request], n: int) -> Iterator[Request]:
    """The arrivals, with a bar on stderr once two seconds have passed."""
    return iter(tqdm(arrivals, total=n, unit=" requests", delay=2, leave=False, file=sys.stderr))


def write_files(args: argparse.Namespace, result: Result) -> None:
    if args.requests_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(result.outcomes.rows())
        write_atomically(args.requests_csv, text.getvalue())
    if args.timeline:
        write_atomically(args.timeline, chrome_trace(result.log.spans or []))
    if args.plot:
        from prfaas_ref.scheduler.plots import Series, plot_lines

        samples = result.control.samples
        series: Series = {
            "egress, Gbps": (samples.at_s, samples.egress_gbps),
            "PrfaaS queue": (samples.at_s, samples.queue_prfaas),
            "PD prefill queue": (samples.at_s, samples.queue_pd),
            "PD decode queue": (samples.at_s, samples.queue_decode),
        }
        plot_lines(args.plot, f"Simulated: {args.deployment}", "seconds", "requests, Gbps", series)


def as_text(found: dict[str, Any]) -> str:
    def cell(value: Any) -> object:
        return json.dumps(value) if isinstance(value, dict) else value

    rows = [(name, cell(value)) for name, value in found.items()]
    return table(("simulated", "value"), rows)
