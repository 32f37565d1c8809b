"""The sending driver as its users see it: one Client per receiver, which offers one Transfer after another."""

import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

from prfaas_ref.transport.congestion import LinkReport
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import DeadlineExceeded, TransportError
from prfaas_ref.transport.limits import MOST_STRIPES
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.manifest import Manifest
from prfaas_ref.transport.messages import Offer
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.stream import Clock
from prfaas_ref.transport.stripes import Stripes
from prfaas_ref.transport.transfer import Transfer
from prfaas_ref.units import BITS_PER_BYTE, MIB


@dataclass(frozen=True)
class Options:
    """How a Client sends. `queue_bytes` bounds the layers that wait, which is what pushes back on compute."""

    stripes: int = 1  # at most MOST_STRIPES
    chunk_bytes: int = MIB  # less on a slow emulated link: see `Client.chunk_bytes`
    queue_bytes: int = 64 * MIB
    attempts: int = 4
    backoff_s: float = 0.05  # doubles with each attempt
    abort_s: float = 2.0  # how long an abort waits for the receiver's word that no write can land


class Client:
    """Connects at the first offer, and again when a session ended. One transfer at a time; any thread."""

    def __init__(
        self, address: tuple[str, int], terms: Terms, options: Options | None = None, link: EmulatedLink | None = None,
        tls: ssl.SSLContext | None = None, clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self.address, self.terms, self.options = address, terms, options or Options()
        if not 1 <= self.options.stripes <= MOST_STRIPES:
            raise ValueError(f"{self.options.stripes} stripes; a session has 1 to {MOST_STRIPES}")
        self.link, self.tls, self.clock = link or EmulatedLink(), tls, clock
        self.changed = threading.Condition()
        self.session: Stripes | None = None
        self.link_report: LinkReport | None = None  # the latest sample, every 100 ms of a transfer

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. A transfer that is under way fails."""
        if self.session:
            self.session.end(TransportError("the client was closed"))
            self.session.join()
            self.session = None

    def connect(self, within_s: float) -> Stripes:
        """The live session, or a new one. Raises what the greeting met: Refused, AuthenticationFailed, PeerGone, ..."""
        if self.session and self.session.core.lost is None:
            return self.session
        self.close()
        session = self.session = Stripes(
            self.address, self.terms, self.options.stripes, self.options.queue_bytes, self.link, self.changed,
            self.tls, self.clock,
        )  # fmt: skip
        core, deadline = session.core, self.clock() + min(within_s, self.terms.limits.handshake_s)
        with self.changed:
            while not core.ready and core.lost is None and self.clock() < deadline:
                self.changed.wait(deadline - self.clock())
        if not core.ready or core.lost:
            error = core.lost or DeadlineExceeded("the greeting took too long")
            self.close()
            raise error
        return session

    @property
    def chunk_bytes(self) -> int:
        """What a chunk has: at most what the emulated link carries in a fifth of the patience with a silent peer (1 s
        of 5), since a PING waits for the chunk before it.
        """
        asked, limits, rate = self.options.chunk_bytes, self.terms.limits, self.link.bits_per_s
        if rate is None:
            return asked
        carried_bytes = rate * limits.idle_s / 5 / BITS_PER_BYTE
        return int(min(asked, max(carried_bytes, limits.smallest_chunk_bytes)))

    def offer(
        self, transfer_id: str, manifest: Manifest, *, deadline_s: float, available_from: int = 0,
        metadata: dict[str, Any] | None = None,
    ) -> Transfer:  # fmt: skip
        """Offer tokens `available_from`..n_tokens-1 of `manifest`, to be applied within `deadline_s` of now.

        Returns when the receiver has accepted; its `have_tokens` and `increment` say what travels. Raises Refused
        (field, ours, theirs), Busy, or how the connection failed; ValueError while another transfer of this client is
        under way. `metadata` is small JSON for the receiver's handler.
        """
        offer = Offer(transfer_id, available_from, deadline_s, self.chunk_bytes, manifest.to_json(), metadata or {})
        return Transfer(self, Outgoing(offer, manifest, self.terms.identity.fingerprint()))
