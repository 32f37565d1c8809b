"""Options that several subcommands share, with one meaning and one default for all of them."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prfaas_ref.errors import UserError
from prfaas_ref.model.config import as_bytes

if TYPE_CHECKING:
    from prfaas_ref.model.hybrid import HybridModel

MAX_PROMPT_TOKENS, MAX_ANSWER_TOKENS = 2**18, 2**16


def positive(kind: type, most: float = math.inf) -> Callable[[str], float]:
    """An argparse type: a finite number above zero, and at most `most`."""
    bounded = f"from 1 to {most}" if kind is int else f"above 0, and at most {most:g}"
    return _number(kind, lambda x: 0 < x <= most, "above 0" if most == math.inf else bounded)


def not_negative(kind: type, most: float = math.inf) -> Callable[[str], float]:
    """An argparse type: a finite number that is not negative, and at most `most`."""
    return _number(kind, lambda x: 0 <= x <= most, "of 0 or more" if most == math.inf else f"from 0 to {most}")


def _number(kind: type, good: Callable[[float], bool], which: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = math.nan
        if not good(value) or value == math.inf:
            noun = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is not a {noun} {which}")
        return value

    return parse


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="toy", metavar="NAME|DIR", help="toy, toy-random, toy_moe or a directory")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="(float32)")
    parser.add_argument(
        "--seed", type=not_negative(int, 2**63 - 1), default=0, help="seed of random weights (0); toy is trained"
    )
    parser.add_argument(
        "--threads",
        type=positive(int, 1024),
        default=1,
        metavar="N",
        help="threads per process (1); the bits are tested equal for 1 and 2",
    )


def add_tokens_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=positive(int, MAX_ANSWER_TOKENS), default=16, metavar="N", help="tokens to generate (16)"
    )


def start_runtime(args: argparse.Namespace) -> None:
    from prfaas_ref.model.runtime import start

    start(args.threads)


def open_model(args: argparse.Namespace) -> "HybridModel":
    from prfaas_ref.model.checkpoint import load_model

    return load_model(args.model, dtype=args.dtype, seed=args.seed)


def read_prompt(file: str | None) -> bytes:
    """A prompt's bytes. Raises UserError for a missing, empty, unreadable or over-long file."""
    name = file or "standard input"
    try:
        prompt = Path(file).read_bytes() if file else sys.stdin.buffer.read() if sys.stdin else b""
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    if not prompt:
        raise UserError(f"{name} is empty; a prompt needs at least one byte")
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise UserError(f"{name} has {len(prompt)} bytes; at most {MAX_PROMPT_TOKENS} can be served")
    return prompt


def show_text(tokens: Sequence[int], width: int = 60) -> str:
    """Byte tokens as printable text, cut to a width."""
    text = as_bytes(tokens).decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "·" for c in text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"
