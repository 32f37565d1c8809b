"""How fast the simulator is, against the least that any event simulator does in Python: a heap.

The paper's workload on 16 instances (4 PrfaaS, 12 PD) at 0.8 of the planned maximum, prefix caches and metrics on. The
bare loop pushes as many events into heapq as the simulation processed, in random order, then pops them all and does
nothing else; both are timed in turn in this process, in seconds of CPU, and the medians compared, so a busy machine
slows both. The same without prefix caches says what these cost: the index is the workers' own, and here every prompt is
a node that nobody shares, to be published and evicted. `--large N` also says what one request costs in a run of N
requests, over what it costs in the short run.
"""

import argparse
import heapq
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.report import table
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import Setup, configure

SIXTEEN = EXAMPLE.replace("instances = 8", "instances = 12")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=20_000, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="pairs of runs; medians are reported")
    parser.add_argument("--large", type=int, metavar="N", help="also time one run of N requests, say 1000000")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    if args.requests < 1 or args.repeats < 1 or (args.large is not None and args.large < 1):
        raise UserError("--requests, --repeats and --large must be at least 1")
    setup = configure(parse_scenario(SIXTEEN, Path()), "prfaas-pd")
    found = measure(setup, args.requests, args.repeats)
    bare = measure(replace(setup, config=replace(setup.config, cache_bytes=0.0)), args.requests, args.repeats)
    found |= {f"{name}_without_caches": bare[name] for name in ("requests_s", "ratio")}
    if args.large:
        seconds, _ = time_simulation(setup, args.large)
        per_request_s = seconds / args.large
        found |= {"large_requests": args.large, "large_cost_ratio": per_request_s * found["requests_s"]}
    print(json.dumps(found, indent=1) if args.json else table(("simulator", "value"), list(found.items())))
    return 0


def measure(setup: Setup, n: int, repeats: int) -> dict[str, float]:
    """Medians of `repeats` runs of the simulator and of the bare heap, taken in turn."""
    simulated_s, bare_s, events = [], [], 0
    for _ in range(repeats):
        seconds, events = time_simulation(setup, n)
        simulated_s.append(seconds)
        bare_s.append(time_bare_heap(events))
    events_s, bare_heap_events_s = events / median(simulated_s), events / median(bare_s)
    return {
        "requests_s": n / median(simulated_s),
        "events_s": events_s,
        "bare_heap_events_s": bare_heap_events_s,
        "ratio": events_s / bare_heap_events_s,
        "events_per_request": events / n,
    }


def time_simulation(setup: Setup, n: int) -> tuple[float, int]:
    """Seconds for drawing, simulating and summarising `n` requests, and the events processed."""
    start = process_time()
    result = simulate(setup.config, setup.arrivals(n, seed=0, burstiness=1.0))
    summarise(result, slo_ttft_s=10.0)
    return process_time() - start, result.events


def time_bare_heap(events: int) -> float:
    """Seconds to push and pop `events` entries of the simulator's shape, in random order of time."""
    rng = random.Random(0)
    times = [rng.random() for _ in range(events)]
    heap: list[tuple[float, int, int, None, None]] = []
    start = process_time()
    for sequence, time_s in enumerate(times):
        heapq.heappush(heap, (time_s, 0, sequence, None, None))
    while heap:
        heapq.heappop(heap)
    return process_time() - start
