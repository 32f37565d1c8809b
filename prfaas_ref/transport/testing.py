"""Test doubles that ship with the package, so that its users test their own handlers without a network of machines.

`Landing` is a handler that records what happened to it; `ConnectionPair` a real server and client on the loopback.
`MemoryLink` (in `memory`) needs no socket, thread or clock; `FaultProxy` (in `faults`) stands between two real ends.
"""

from collections.abc import Callable
from typing import Any

from prfaas_ref.transport.checks import Check
from prfaas_ref.transport.client import Client, Options
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.identity import Identity
from prfaas_ref.transport.incoming import Destination, Incoming
from prfaas_ref.transport.limits import Limits
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.manifest import Manifest
from prfaas_ref.transport.server import Server

POISON = b"\xff"  # NaN in every float format, so that a tensor that never came cannot pass for zeros


class Landing:
    """A handler: holds the first `have_tokens` tokens, lands the rest in fresh poisoned buffers, keeps a diary.

    `manifest(n_tokens)` is the receiver's own idea of what a hand-off consists of. `apply` runs before a transfer
    counts as completed, and may raise.
    """

    def __init__(
        self, manifest: Callable[[int], Manifest], have_tokens: int = 0, apply: Callable[[Incoming], None] | None = None
    ) -> None:
        self._manifest, self._have_tokens, self._apply = manifest, have_tokens, apply
        self.layers: list[list[bytearray]] = []  # of the latest offer
        self.completed: list[str] = []
        self.closed: list[tuple[str, TransportError]] = []

    def on_offer(self, incoming: Incoming) -> Destination:
        ours = self._manifest(incoming.n_tokens)
        increment = ours.increment(self._have_tokens)
        self.layers = [[bytearray(POISON * t.n_bytes) for t in layer.tensors] for layer in increment.layers]
        return Destination(ours, [[memoryview(b) for b in layer] for layer in self.layers], self._have_tokens)

    def on_complete(self, incoming: Incoming) -> None:
        if self._apply:
            self._apply(incoming)
        self.completed.append(incoming.transfer_id)

    def on_closed(self, incoming: Incoming, error: TransportError) -> None:
        assert not incoming.landing, "closed while a write could still land"
        self.closed.append((incoming.transfer_id, error))


def terms(name: str, limits: Limits | None = None, secret: bytes | None = None, **identity: Any) -> Terms:
    """Terms of a process whose boot epoch is derived from `name`; crc32, whatever extras are installed."""
    epoch = name.encode().hex()[:16].zfill(16)
    return Terms(Identity(epoch, **identity), limits or Limits(), (Check.CRC32,), secret)


class ConnectionPair:
    """A server with this handler, and a client connected to it: a context manager."""

    def __init__(
        self, handler: Landing, options: Options | None = None, limits: Limits | None = None,
        link: EmulatedLink | None = None, sender: Terms | None = None, receiver: Terms | None = None,
    ) -> None:  # fmt: skip
        self.server = Server(receiver or terms("receiver", limits), handler)
        self.client = Client(self.server.address, sender or terms("sender", limits), options, link)

    def __enter__(self) -> "ConnectionPair":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.client.close()
        finally:
            self.server.close()
        core = self.server.core
        assert not core.transfers.under_way and not core.lines, "something was not given back"
