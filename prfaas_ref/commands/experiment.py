"""Run one of the experiments of docs/experiments.md and print its table.

  case-study   the paper's three deployments with queues: TTFT against load, and what each carries within an SLO
  policies     paper, cost and static routing under narrow, dipping, misjudged links and bursts
  day          traffic that swings from long inputs to long outputs: re-allocation on and off
  mooncake     a Mooncake trace with prefix caches, at five link speeds (needs --trace)

Seeds are fixed: the same command prints the same table. All figures are simulated.
"""

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.experiments import case_study, day, mooncake, policies
from prfaas_ref.scheduler.experiments.case import Case, Row
from prfaas_ref.scheduler.report import markdown
from prfaas_ref.scheduler.traces import read_trace

REQUESTS = {"case-study": 10_000, "policies": 10_000, "day": 100_000}
MODULES = {"case-study": case_study, "policies": policies, "day": day, "mooncake": mooncake}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=MODULES, metavar="NAME", help="case-study, policies, day or mooncake")
    parser.add_argument("--requests", type=int, metavar="N", help="requests a run (default: what the document uses)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a Mooncake trace, for `mooncake`")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    if args.requests is not None and args.requests < 1:
        raise UserError(f"--requests must be positive, not {args.requests}")
    module = MODULES[args.name]
    rows = [case.row() for case in tqdm(cases(args), unit="run", leave=False, delay=2, file=sys.stderr)]
    if args.json:
        print(json.dumps({"experiment": args.name, "rows": rows}, indent=1))
    else:
        print(as_markdown(module.TITLE, module.NOTES, rows))
    return 0


def cases(args: argparse.Namespace) -> list[Case]:
    """The rows to run. Raises UserError."""
    if args.name == "mooncake":
        if args.trace is None:
            raise UserError("`prfaas experiment mooncake` needs --trace FILE, a Mooncake trace in JSON lines")
        requests = tuple(read_trace(args.trace, "mooncake", args.requests))
        if not requests:
            raise UserError(f"trace {args.trace} holds no requests")
        return mooncake.cases(requests)
    n: int = args.requests or REQUESTS[args.name]
    return {"case-study": case_study.cases, "policies": policies.cases, "day": day.cases}[str(args.name)](n)


def as_markdown(title: str, notes: str, rows: list[Row]) -> str:
    header = list(dict.fromkeys(name for row in rows for name in row))
    return f"## {title}\n\n{notes}\n\n" + markdown(header, [[row.get(name) for name in header] for row in rows])
