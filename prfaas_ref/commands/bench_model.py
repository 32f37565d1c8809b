"""How fast the model is, and what exactness costs: medians of CPU time on one thread, all in one run.

  kda               KDA alone, prefill of 2048 tokens (4 heads, K = V = 64, float32)
  prefill, decode   a whole model (7 KDA : 1 MLA, hidden 256), 2048 tokens, and one token of 8 requests at a time
  canonical ratio   exact prefill against the same weights computed the usual way: one call, a library's triangular
                    solve, SDPA, built-in activations
  decode cost       exact decode against the same slabs and attention with a plain recurrence as KDA's core

With --peers also transformers' kimi_linear on the same weights, and its KDA functions (extra `oracle`). The contenders
take turns, so that a busy machine slows all of them; read ratios, not rates.

  prfaas bench model
  prfaas bench model --peers --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

from prfaas_ref.commands.options import positive

Contender = Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", action="store_true", help="run transformers' code too")
    parser.add_argument("--repeats", type=positive(int), default=7, metavar="N", help="turns of every contender (7)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from prfaas_ref.commands import bench_model_cases as cases
    from prfaas_ref.model.runtime import start

    start(threads=1)
    with tqdm(total=7, unit="case", disable=args.json, leave=False) as bar:

        def measure(contenders: dict[str, Contender]) -> dict[str, float]:
            bar.update()
            return medians(contenders, args.repeats)

        result = cases.measure_all(measure, args.peers)
    print(json.dumps(result) if args.json else as_text(result))
    return 0


def medians(contenders: dict[str, Contender], repeats: int) -> dict[str, float]:
    """CPU seconds of each contender: the median of `repeats` turns, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            before = time.process_time()
            contender()
            if turn:
                times[name].append(time.process_time() - before)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def as_text(result: dict) -> str:
    kda, model = result["kda"], result["model"]
    lines = [f"{'':34}{'ours tok/s':>12}{'peer tok/s':>12}{'ratio':>8}"]
    lines.append(f"{'KDA prefill':34}{kda['ours_tok_s']:>12,.0f}")
    for name, rate in kda["peers"].items():
        lines.append(f"{'  against ' + name:34}{'':12}{rate:>12,.0f}{kda['ratio'][name]:>8.2f}")
    for name, row in model.items():
        peer = f"{row['hf_tok_s']:>12,.0f}{row['ratio']:>8.2f}" if "hf_tok_s" in row else ""
        lines.append(f"{'whole model, ' + name:34}{row['ours_tok_s']:>12,.0f}{peer}")
    lines.append(f"{'exact prefill / unconstrained':54}{result['canonical_ratio']:>12.2f}")
    for batch, cost in result["exact_decode_cost"].items():
        lines.append(f"{f'exact decode cost, batch {batch}':54}{cost:>12.2f}")
    return "\n".join(lines)
