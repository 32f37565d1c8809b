"""Serve prompts on two clusters of processes, and prove every answer equal to a single process.

Three worker processes start: a prefill worker in the PrfaaS cluster, and a prefill and a decode worker in the PD
cluster. Prompts whose uncached part is longer than the threshold are prefilled in the PrfaaS cluster, and their
caches cross a rate-limited TCP link; the others stay. Then each prompt is computed again in one process, and the
digests over all logits are compared. Exit status 1 when any differs.

  prfaas demo                        documents with facts in them, and a question about each
  prfaas demo README.md LICENSE      each file is one prompt, whole
  prfaas demo --threshold 500 --link-mbps 20 --rtt-ms 40
  prfaas demo --json | jq .exact
"""

import argparse
import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prfaas_ref.commands.deployment import add_deployment_options, deployment_options, run_deployment
from prfaas_ref.commands.options import open_model, positive, read_prompt, show_text, start_runtime
from prfaas_ref.errors import UserError

if TYPE_CHECKING:
    from prfaas_ref.serving.demo import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="prompts; made-up documents if none is given")
    parser.add_argument("--requests", type=positive(int), metavar="N", help="requests (12, or the number of files)")
    add_deployment_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--keep-logs", metavar="DIR", help="leave the workers' logs in this directory")


def run(args: argparse.Namespace) -> int:
    texts = [read_prompt(file) for file in args.files]
    if args.requests and args.requests < len(texts):
        raise UserError(f"--requests {args.requests} leaves out some of the {len(texts)} files; name fewer files")
    start_runtime(args)
    from tqdm import tqdm

    from prfaas_ref.serving import demo, prompts

    if texts:
        chosen = prompts.from_files(texts, args.requests or len(texts))
    else:
        write = prompts.documents(args.seed) if args.model == "toy" else prompts.own_source()
        chosen = prompts.mixture(write, args.requests or 12)
    model = open_model(args)
    options = deployment_options(args)
    bar = tqdm(total=2 * len(chosen), desc="serve, then check", leave=False, disable=not sys.stderr.isatty())
    with bar, log_directory(args.keep_logs) as logs:
        served, workers = run_deployment(demo.serve(model, chosen, options, Path(logs), bar.update))
        verdicts = demo.check(model, chosen, served, bar.update)
    report = {
        "total": len(verdicts),
        "exact": sum(verdict.exact for verdict in verdicts),
        "threshold_tokens": args.threshold,
        "fingerprint": workers[0].hello["fingerprint"],
        "workers": [
            {"pid": w.hello["pid"], "cluster": w.spec.cluster, "role": w.spec.role, "name": w.spec.name}
            for w in workers
        ],
        "link": {
            "mbps": args.link_mbps,
            "rtt_ms": args.rtt_ms,
            "bytes": sum(verdict.served.record.link_bytes for verdict in verdicts),
        },
        "requests": [verdict.to_json() for verdict in verdicts],
    }
    if args.json:
        print(json.dumps(report))
    else:
        show(report, verdicts)
    return 0 if report["exact"] == report["total"] else 1


def log_directory(keep: str | None) -> Any:
    """A context manager that gives the directory for the workers' logs."""
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="prfaas-")
    try:
        Path(keep).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=keep).close()
    except OSError as error:
        raise UserError(f"cannot write logs to {keep}: {error.strerror}") from error
    return nullcontext(keep)


def show(report: dict[str, Any], verdicts: "list[Verdict]") -> None:
    asked = any(verdict.prompt.asked for verdict in verdicts)
    head = f"{'':4} {'prompt':>6} {'cached':>6}  {'route':6} {'over link':>9} {'TTFT':>7}  {'verdict':10}"
    print(f"{head}  {'asked for':14} {'told':4}  {'answer':8}  what it is" if asked else f"{head}  what it is")
    for verdict in verdicts:
        record, fact = verdict.served.record, verdict.prompt.asked
        ttft = "-" if record.ttft_s is None else f"{record.ttft_s * 1000:.0f} ms"
        sent = f"{record.link_bytes:,}" if record.link_bytes else "-"
        word = "byte-equal" if verdict.exact else "DIFFERS" if record.status == "completed" else "FAILED"
        recalled = ""
        if asked:
            answer = show_text(verdict.served.tokens, 8).strip()
            recalled = f"  {fact.thing if fact else '':14} {fact.code if fact else '':4}  {answer:8}"
        print(
            f"{verdict.prompt.request_id:4} {record.request.prompt_tokens:6} {record.cached_tokens:6}  "
            f"{record.route or '-':6} {sent:>9} {ttft:>7}  {word:10}{recalled}  {verdict.prompt.kind}"
        )
        if record.status != "completed":
            print(f"     {record.reason}")
    link = report["link"]
    print(
        f"\n{len(report['workers'])} worker processes; {link['bytes']:,} bytes crossed the link "
        f"({link['mbps']:g} Mbit/s, {link['rtt_ms']:g} ms); offload above {report['threshold_tokens']} uncached tokens"
    )
    if asked:
        facts = [v for v in verdicts if v.prompt.asked]
        right = sum(v.answer.strip() == v.prompt.asked.answer.strip() for v in facts if v.prompt.asked)
        print(f"{right}/{len(facts)} answers tell what the document says")
    print(f"{report['exact']}/{report['total']} byte-equal to a single process")
