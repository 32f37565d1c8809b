"""Continue a prompt in this process alone: the reference that every other way of serving is held against.

The prompt is a file's bytes, or standard input. `logits_sha256` is the digest over the logits (float32,
little-endian, in order) that the generated tokens were drawn from; `prfaas demo` prints the same digest for the same
prompt, served by several processes in two clusters.

  prfaas generate README.md --tokens 16
  echo hello | prfaas generate --json
"""

import argparse
import json
import sys

from prfaas_ref.commands.options import (
    add_model_options,
    add_tokens_option,
    open_model,
    read_prompt,
    show_text,
    start_runtime,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="the prompt; standard input if not given")
    add_model_options(parser)
    add_tokens_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")


def run(args: argparse.Namespace) -> int:
    start_runtime(args)
    from tqdm import tqdm

    from prfaas_ref.model.fingerprint import fingerprint
    from prfaas_ref.model.generation import generate

    prompt = read_prompt(args.file)
    model = open_model(args)
    with tqdm(total=args.tokens, unit="tok", disable=args.json or not sys.stderr.isatty(), leave=False) as bar:
        result = generate(model, prompt, args.tokens, on_token=lambda _: bar.update())
    answer = {
        "prompt_tokens": len(prompt),
        "tokens": result.tokens,
        "logits_sha256": result.logits_sha256,
        "fingerprint": fingerprint(model).digest,
    }
    if args.json:
        print(json.dumps(answer))
    else:
        print(f"prompt         {len(prompt)} tokens")
        print(f"answer         {show_text(result.tokens)}")
        print(f"logits_sha256  {result.logits_sha256}")
        print(f"fingerprint    {answer['fingerprint']}")
    return 0
