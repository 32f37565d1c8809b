"""How much of a text's facts survives the hand-off: a model that has read, and another process that answers.

Documents of several lengths are made up, with facts scattered in them ("the code of the blue lamp is 48."). One worker
process reads each; its cache crosses a TCP link to a second one, which draws the digits of every answer. An answer is
right when all its digits are. The same is computed in this process alone, and every served answer must be equal to that
to the byte. Controls follow, with a part of the cache blanked at the hand-off: what is lost tells what it carried.

  accuracy        share of the facts told right
  state zeroed    the same without the recurrent state of the KDA layers
  pages zeroed    the same without the attention pages of the MLA layer
  state bfloat16  the same with the state rounded to bfloat16, half its bytes; the hand-off never does that

Exit status 1 when any served answer differs from the single process.

  prfaas recall
  prfaas recall --contexts 512,8192 --facts 16 --samples 20
  prfaas recall --text README.md
  prfaas recall --json | jq '.contexts["2048"]'
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prfaas_ref.commands.deployment import run_deployment
from prfaas_ref.commands.options import (
    MAX_PROMPT_TOKENS,
    add_model_options,
    open_model,
    positive,
    read_prompt,
    start_runtime,
)
from prfaas_ref.model.facts import quoting, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from prfaas_ref.model.hybrid import HybridModel
    from prfaas_ref.serving.front_end import Served
    from prfaas_ref.serving.recall import Sample


def contexts(text: str) -> list[int]:
    """An argparse type: distinct document lengths in tokens, comma separated."""
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 64 or max(lengths) > MAX_PROMPT_TOKENS // 2 or len(set(lengths)) < len(lengths):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of different lengths from 64 to {MAX_PROMPT_TOKENS // 2}, like 512,2048"
        )
    return lengths


def facts(text: str) -> int:
    """An argparse type: how many facts a document holds."""
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 64")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = "512,1024,2048,4096,8192"
    parser.add_argument(
        "--contexts", type=contexts, default=default, metavar="N,N,..", help=f"document lengths ({default})"
    )
    parser.add_argument("--facts", type=facts, default=8, metavar="N", help="facts in each document, all asked (8)")
    parser.add_argument("--samples", type=positive(int), default=8, metavar="N", help="documents of each length (8)")
    parser.add_argument("--text", metavar="FILE", help="hide the facts among the words of this file")
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")


def run(args: argparse.Namespace) -> int:
    filler = quoting(read_prompt(args.text).decode("utf-8", "replace")) if args.text else sentence
    start_runtime(args)
    from tqdm import tqdm

    from prfaas_ref.serving import recall

    samples = recall.draw_samples(args.contexts, args.samples, args.facts, args.seed, filler)
    model = open_model(args)
    n_questions = sum(len(sample.document.facts) for sample in samples)
    bar = tqdm(total=2 * n_questions, desc="ask, then check", leave=False, disable=not sys.stderr.isatty())
    with bar, tempfile.TemporaryDirectory(prefix="prfaas-") as logs:
        served = run_deployment(serve(model, samples, args, Path(logs), bar.update))
        alone = []
        for sample in samples:
            alone.append(recall.ask_alone(model, sample.document))
            bar.update(len(sample.document.facts))
    result = {"contexts": recall.report(samples, served, alone), "facts": args.facts, "samples": args.samples}
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if all(row["exact"] for row in result["contexts"].values()) else 1


async def serve(
    model: "HybridModel",
    samples: "list[Sample]",
    args: argparse.Namespace,
    logs: Path,
    on_done: "Callable[[int], object]",
) -> "list[list[Served]]":
    """All questions through two worker processes: one reads in the PrfaaS cluster, one answers in the PD cluster."""
    from prfaas_ref.model.sizes import bytes_per_token, fixed_bytes
    from prfaas_ref.scheduler.fleet import Costs, LinkView
    from prfaas_ref.scheduler.profile import KvSize, PrefillProfile
    from prfaas_ref.scheduler.router import Fixed, Router
    from prfaas_ref.serving import recall
    from prfaas_ref.serving.front_end import FrontEnd
    from prfaas_ref.serving.supervisor import WorkerSpec

    options = (
        "--model", args.model, "--dtype", args.dtype, "--seed", str(args.seed), "--threads", str(args.threads),
    )  # fmt: skip
    specs = [
        WorkerSpec("prfaas-prefill-0", "prfaas", "prefill", options),
        WorkerSpec("pd-decode-0", "pd", "decode", options),
    ]
    kv = KvSize(bytes_per_token(model.config, args.dtype), fixed_bytes(model.config, args.dtype))
    profile = PrefillProfile(0.02, 2e-4)  # ranks workers, of which there is one of a kind
    router = Router(Fixed("prfaas"), Costs({"prfaas": profile, "pd": profile}, kv))
    async with FrontEnd(specs, router, LinkView(), logs) as front:
        return await recall.serve(front, samples, deadline_s=300.0, on_done=on_done)


def show(result: dict[str, Any]) -> None:
    columns = ("accuracy", "state_zeroed", "pages_zeroed", "state_bfloat16")
    print(f"{'context':>8}", *(f"{name.replace('_', ' '):>14}" for name in columns), "  two processes and one")
    for context, row in result["contexts"].items():
        print(f"{context:>8}", *(f"{row[name]:>14.1%}" for name in columns), end="   ")
        print("byte-equal" if row["exact"] else "DIFFER")
    print(f"\n{result['samples']} documents of each length, {result['facts']} facts each, all asked")
