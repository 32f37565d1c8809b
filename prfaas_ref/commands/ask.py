"""Ask a question about a document that only the prefill cluster has read.

Document and question go through the demo's clusters as one prompt: above the threshold the PrfaaS cluster reads it,
its cache crosses the link, and the answer is drawn token by token in the PD cluster. Then the same prompt is computed
in this process alone; exit status 1 when the two differ in a single bit.

The toy was trained on one kind of question, "what is the code of the blue lamp?", about documents that say it somewhere
in these words: "the code of the blue lamp is 48." Other questions are answered too, but the answer means nothing, and a
note says so.

  prfaas ask notes.txt "what is the code of the blue lamp?"
  prfaas ask notes.txt "what is the code of the red door?" --threshold 0 --link-mbps 10 --json
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from prfaas_ref.commands.deployment import add_deployment_options, deployment_options, run_deployment
from prfaas_ref.commands.options import open_model, read_prompt, show_text, start_runtime
from prfaas_ref.errors import UserError
from prfaas_ref.model.facts import asked_thing, told_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the document")
    parser.add_argument("question", metavar="QUESTION", help='like "what is the code of the blue lamp?"')
    add_deployment_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")


def run(args: argparse.Namespace) -> int:
    document = read_prompt(args.file)
    if not args.question.strip():
        raise UserError('the question is empty; try "what is the code of the blue lamp?"')
    start_runtime(args)
    from tqdm import tqdm

    from prfaas_ref.serving import demo
    from prfaas_ref.serving.prompts import Prompt

    question = args.question.strip().encode(errors="surrogateescape")
    prompts = [Prompt("question", document.rstrip() + b"\n" + question, "question")]
    model = open_model(args)
    options = deployment_options(args)
    bar = tqdm(total=2, desc="serve, then check", leave=False, disable=not sys.stderr.isatty())
    with bar, tempfile.TemporaryDirectory(prefix="prfaas-") as logs:
        served, _ = run_deployment(demo.serve(model, prompts, options, Path(logs), bar.update))
        verdict = demo.check(model, prompts, served, bar.update)[0]
    result = {
        **verdict.to_json(),
        "question": args.question,
        "answer": show_text(verdict.served.tokens).strip(),
        "note": note(args.question, document),
    }
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if verdict.exact else 1


def note(question: str, document: bytes) -> str:
    """What a reader should know before believing the answer; empty where the toy was trained for the question."""
    thing = asked_thing(question)
    if thing is None:
        return 'not a question the toy was trained for ("what is the code of the blue lamp?"); the answer means nothing'
    if told_code(thing, document.decode("utf-8", "replace")) is None:
        return f'the document never says "the code of the {thing} is ..."; the answer is a guess'
    return ""


def show(result: dict[str, Any]) -> None:
    if result["status"] != "completed":
        print(f"failed: {result['reason']}")
        return
    reader = "PrfaaS" if result["route"] == "prfaas" else "PD"
    print(result["answer"])
    print(f"\nroute    read in the {reader} cluster, answered in the PD cluster")
    print(f"prompt   {result['prompt_tokens']:,} tokens, {result['bytes_sent']:,} bytes over the link")
    print(f"verdict  {'byte-equal to' if result['exact'] else 'DIFFERS from'} a single process")
    if result["note"]:
        print(f"note     {result['note']}")
