"""What the commands that start a deployment share: its options, and an end that leaves no worker behind."""

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from prfaas_ref.commands.options import add_model_options, add_tokens_option, not_negative, positive
from prfaas_ref.transport.limits import Limits

if TYPE_CHECKING:
    from prfaas_ref.serving.demo import DemoOptions

T = TypeVar("T")


def add_deployment_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_tokens_option(parser)
    parser.add_argument(
        "--threshold", type=not_negative(int), default=1000, metavar="T", help="uncached tokens that stay local (1000)"
    )
    parser.add_argument(
        "--link-mbps", type=positive(float), default=100.0, metavar="R", help="rate of the link between clusters (100)"
    )
    parser.add_argument(
        "--rtt-ms", type=not_negative(float), default=10.0, metavar="MS", help="its round-trip time (10)"
    )
    parser.add_argument(
        "--deadline-s",
        type=positive(float, Limits().deadline_s),
        default=300.0,
        metavar="S",
        help="a request ends within (300)",
    )


def deployment_options(args: argparse.Namespace) -> "DemoOptions":
    from prfaas_ref.serving.demo import DemoOptions

    return DemoOptions(
        model=args.model,
        dtype=args.dtype,
        seed=args.seed,
        tokens=args.tokens,
        threshold_tokens=args.threshold,
        link_mbps=args.link_mbps,
        rtt_ms=args.rtt_ms,
        deadline_s=args.deadline_s,
        threads=args.threads,
    )


def run_deployment(serving: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. SIGTERM and SIGHUP end it as Ctrl-C does: KeyboardInterrupt, and no process is left.

    A signal that was ignored when we were started (nohup) stays so.
    """

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None
        for name in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(name) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(name, task.cancel)
        return await serving

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
