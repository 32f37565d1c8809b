"""Try to falsify the exactness contract on this machine: random schedules, every result compared byte by byte.

The contract (docs/exactness.md): the logits after a token prefix are one sequence of bytes, however the prefix came to
be processed. Parts of it rest on measured behaviour of torch's matrix products, so run this on new hardware. Several
processes draw prompts, splits, orders, prefix hits, batch neighbours (NaN among them), threads, dirty pages, hand-offs
and resumed requests, in float32 and bfloat16, until the time is up. They also compare one generation across processes.
On --device cuda the contract is whatever this command shows.

As a control, the usual way of computing (a plain recurrent decode) is run too, and must be seen to differ: a campaign
that cannot find a difference proves nothing.

  prfaas verify --seconds 60
  prfaas verify --model toy_moe --seed 1234      repeat what a seed found

Exit status 1 when anything differs, or when the control does not.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from prfaas_ref.commands.options import positive
from prfaas_ref.errors import UserError

MODELS = ("toy", "toy_moe")
DTYPES = ("float32", "bfloat16")


@dataclass
class Report:
    """What all walks together have found."""

    checked: Counter[str] = field(default_factory=Counter)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    walks: int = 0
    digests: set[tuple[str, str, str]] = field(default_factory=set)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=positive(float), default=60.0, metavar="S", help="how long to try (60)")
    parser.add_argument("--model", action="append", metavar="NAME|DIR", help="may be repeated (toy and toy_moe)")
    parser.add_argument("--processes", type=positive(int), default=2, metavar="N", help="(2)")
    parser.add_argument("--seed", type=int, metavar="N", help="one walk for each model and dtype from this seed only")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or cuda where torch has it (cpu)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the processes share the cores: a waiting thread must sleep
    require_device(args.device)
    models = args.model or list(MODELS)
    cases = [(model, dtype) for model in models for dtype in DTYPES]
    seeds = [args.seed] if args.seed is not None else None
    report = campaign(cases, args.seconds, args.processes, seeds, args.device, quiet=args.json)
    control = plain_decode_differs(models[0], args.device)
    processes_agree = len({(model, dtype) for model, dtype, _ in report.digests}) == len(report.digests)
    passed = not report.mismatches and processes_agree and control > 0
    result = {
        "passed": passed,
        "walks": report.walks,
        "checked": dict(report.checked),
        "mismatches": report.mismatches,
        "processes_agree": processes_agree,
        "control_differs_at": control,
    }
    print(json.dumps(result) if args.json else as_text(result))
    return 0 if passed else 1


def campaign(
    cases: list[tuple[str, str]], seconds: float, processes: int, seeds: list[int] | None, device: str, quiet: bool
) -> Report:
    """Keep `processes` walks going, each in a process of its own, for `seconds`; or one walk of each case and seed.

    One walk at least. Raises UserError when something kills a process, which is no verdict.
    """
    from tqdm import tqdm

    start, report = time.monotonic(), Report()
    first = seeds[0] if seeds else int(time.time()) % 10**6
    context = multiprocessing.get_context("spawn")
    bar = tqdm(total=round(seconds), unit="s", disable=quiet or not sys.stderr.isatty(), leave=False)

    def more() -> bool:
        return number < len(cases) if seeds else not number or time.monotonic() - start < seconds

    with bar, ProcessPoolExecutor(processes, context, ignore_interrupt) as pool, ended_in_time():
        running: set[Future[dict[str, Any]]] = set()
        number = 0
        while running or more():
            while len(running) < processes and more():
                model, dtype = cases[number % len(cases)]
                seed = first if seeds else first + number
                running.add(pool.submit(one_walk, model, dtype, seed, device, number < 2 * len(cases)))
                number += 1
            done, running = wait(running, 0.2, FIRST_COMPLETED)
            for result in done:
                add(report, result.result())
            bar.update(min(bar.total, round(time.monotonic() - start)) - bar.n)
    return report


@contextmanager
def ended_in_time() -> Iterator[None]:
    """Whatever ends the block early ends the walks too, which would be waited for."""
    try:
        yield
    except BaseException as error:
        for process in multiprocessing.active_children():
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise UserError("a walk's process was killed, perhaps for its memory; try --processes 1") from None
        raise


def require_device(name: str) -> None:
    """Raises UserError when this torch cannot compute there."""
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"--device {name}: {why}; take cpu, or install a torch that has this device") from None


def ignore_interrupt() -> None:
    """Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def one_walk(model_name: str, dtype: str, seed: int, device: str, generate_too: bool) -> dict[str, Any]:
    """In a process of its own: one walk, and the digest of a generation that every process must agree on."""
    import torch

    from prfaas_ref.model.campaign import Walk
    from prfaas_ref.model.checkpoint import load_model
    from prfaas_ref.model.generation import generate
    from prfaas_ref.model.runtime import start

    start(threads=1 + seed % 2)
    model = load_model(model_name, dtype=dtype, device=device)
    digest = generate(model, list(range(100)), 4).logits_sha256 if generate_too else ""
    tally = Walk(model, seed, n_requests=1 + seed % 4, max_tokens=(100, 200, 400)[seed % 3]).run()
    torch.set_num_threads(1)
    found = [{**asdict(m), "model": model_name, "dtype": dtype, "seed": seed} for m in tally.mismatches]
    return {"checked": tally.checked, "mismatches": found, "digest": (model_name, dtype, digest) if digest else None}


def add(report: Report, walk: dict[str, Any]) -> None:
    report.walks += 1
    report.checked += walk["checked"]
    report.mismatches += walk["mismatches"]
    if walk["digest"]:
        report.digests.add(walk["digest"])
        report.checked["the same generation in every process"] += 1


def plain_decode_differs(model_name: str, device: str) -> int:
    """The control: at how many of 64 positions a plain recurrent decode gives other bytes than prefill, in float32."""
    import torch

    from prfaas_ref.model.checkpoint import load_model
    from prfaas_ref.model.fingerprint import one_request
    from prfaas_ref.model.generation import logits_bytes
    from prfaas_ref.model.unconstrained import with_recurrent_decode

    model = load_model(model_name, device=device)
    tokens = torch.arange(64, device=device)[None]
    with torch.inference_mode():
        expected = model.forward(tokens, *one_request(model), rows=range(64))[0]
        decoder, (state, pages) = with_recurrent_decode(model), one_request(model)
        decoded = [decoder.forward(tokens[:, t : t + 1], state, pages)[0, 0] for t in range(64)]
    return sum(logits_bytes(a) != logits_bytes(b) for a, b in zip(expected, decoded, strict=True))


def as_text(result: dict[str, Any]) -> str:
    lines = [f"{'property':<44}{'checked':>10}"]
    lines += [f"{name:<44}{count:>10,}" for name, count in sorted(result["checked"].items())]
    lines += [f"control: a plain recurrent decode differs at {result['control_differs_at']} of 64 positions"]
    for m in result["mismatches"][:10]:
        again = f"prfaas verify --model {m['model']} --seed {m['seed']}"
        lines.append(
            f"DIFFERS: {m['name']}, {m['dtype']}, position {m['position']} by {m['size']:.1e}; repeat: {again}"
        )
    if not result["processes_agree"]:
        lines.append("DIFFERS: the same generation gave different logits in different processes")
    if not result["control_differs_at"]:
        lines.append("the control did not differ: this campaign would not have noticed anything")
    total = sum(result["checked"].values())
    verdict = "0 differ" if result["passed"] else "the contract does NOT hold here"
    return "\n".join([*lines, f"{total:,} comparisons in {result['walks']} walks: {verdict}"])
