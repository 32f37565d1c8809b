"""How a deployment ends: by SIGTERM and SIGHUP as by Ctrl-C, unless they were ignored when it started (nohup)."""

import asyncio
import signal

import pytest

from prfaas_ref.commands.deployment import run_deployment

SIGNALS = pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP])


async def signalled(name: signal.Signals) -> str:
    signal.raise_signal(name)
    for _ in range(20):  # the loop's turns until a handler, if there is one, has cancelled us
        await asyncio.sleep(0)
    return "goes on"


def outcome(name: signal.Signals) -> str:
    try:
        return run_deployment(signalled(name))
    except KeyboardInterrupt:
        return "is interrupted"


@SIGNALS
def test_a_signal_ends_it(name: signal.Signals) -> None:
    assert outcome(name) == "is interrupted"


@SIGNALS
def test_a_signal_that_was_ignored_stays_so(name: signal.Signals) -> None:
    before = signal.signal(name, signal.SIG_IGN)
    try:
        assert outcome(name) == "goes on"
        assert signal.getsignal(name) is signal.SIG_IGN
    finally:
        signal.signal(name, before)
