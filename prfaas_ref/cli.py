"""The `prfaas` command: finds the subcommand's module, parses its options, turns errors into one line.

A subcommand is a module in `prfaas_ref.commands` with `add_arguments(parser)` and `run(args) -> exit status`. Only the
chosen one is imported, so that `prfaas plan --help` never pays for torch.
"""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from prfaas_ref import __version__
from prfaas_ref.errors import UserError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = {
    "demo": "serve prompts on two clusters of processes and prove every answer equal to a single process",
    "ask": "ask about a document that only the prefill cluster has read",
    "recall": "how many facts of a document the toy tells across a hand-off, and with parts of the cache blanked",
    "generate": "the single-process reference: continue a prompt and print the digest of its logits",
    "worker": "one worker process (the demo starts these; you may too)",
    "verify": "try to falsify the exactness contract on this machine, with random schedules in several processes",
    "kv": "how large a model's cache is, layer by layer, and whether its prefill can leave the datacenter",
    "paper": "the paper's tables and figures beside what its model gives here, cell by cell",
    "plan": "the best threshold and worker counts for clusters of your own, and what limits them",
    "simulate": "a deployment under load, request by request: queues, caches, the link, failures",
    "experiment": "the experiments of docs/experiments.md, with fixed seeds",
    "send": "hand .safetensors files over to `prfaas receive`, in another terminal",
    "receive": "take a hand-off in and keep it as .safetensors files",
    "cache replay": "hit ratios of a request trace on the real cache index",
    "bench model": "prefill and decode against an unconstrained form, and against other implementations",
    "bench cache": "the cache index against the bare hash chain",
    "bench transport": "the hand-off against raw sockets",
    "bench simulator": "the simulator against a bare event heap",
}
HELP = ("-h", "--help")


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line, like every other error of this program."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` explains the options")

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """As argparse does, which says nothing where it cannot be written."""
        print(self.format_help(), end="", file=file)


def overview() -> str:
    return (
        "usage: prfaas COMMAND [options]\n\n"
        "Prefill-as-a-Service, the reference implementation in pure PyTorch (arXiv 2604.15039).\n\n"
        f"commands:\n{rows(COMMANDS)}\n\n`prfaas COMMAND --help` explains one. Start with `prfaas demo`."
    )


def rows(names: Iterable[str]) -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:<{width}}  {COMMANDS[name]}" for name in names)


def group(word: str) -> list[str]:
    """The commands of two words that begin with this one."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split a command line into the command's name (of one or two words) and its arguments."""
    for n in (2, 1):
        name = " ".join(words[:n])
        if len(words) >= n and name in COMMANDS:
            return name, list(words[n:])
    if names := group(words[0]):
        raise UserError(f"`prfaas {words[0]}` needs one of: " + ", ".join(name.split()[1] for name in names))
    raise UserError(f"no command {words[0]!r}; `prfaas --help` lists them")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit status: 0 good, 1 a check failed, 2 a mistake of the user's, 130
    Ctrl-C.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of torch that wait do not keep a core busy
    try:
        status = run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout:
            sys.stdout.flush()
        return status
    except UserError as error:
        print(f"prfaas: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prfaas: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away (`prfaas ... | head`)
        drop_output()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        drop_output()
        print(f"prfaas: cannot write: {error.strerror}; make room, or write elsewhere", file=sys.stderr)
        return 2


def run(words: list[str]) -> int:
    """Show what was asked for, or run the command. Returns its exit status."""
    if not words or words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"prfaas {__version__}")
        return 0
    if words[1:2] and words[1] in HELP and (names := group(words[0])):
        print(f"usage: prfaas {words[0]} COMMAND [options]\n\ncommands:\n{rows(names)}")
        return 0
    name, rest = find(words)
    module = importlib.import_module("prfaas_ref.commands." + name.replace(" ", "_"))
    parser = Parser(
        prog=f"prfaas {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    try:
        args = parser.parse_args(rest)
    except SystemExit:  # the help is printed
        return 0
    return int(module.run(args))


def drop_output() -> None:
    """What is still in the buffer goes nowhere, so that Python does not fail on it at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
