"""One transfer as its receiver sees it, over all its attempts: the pages, what is settled, what is claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prfaas_ref.transport.errors import Corrupt, TransportError
from prfaas_ref.transport.image import Image, image_header
from prfaas_ref.transport.ledger import Ledger, root_digest
from prfaas_ref.transport.manifest import Manifest
from prfaas_ref.transport.messages import Offer
from prfaas_ref.transport.transitions import R
from prfaas_ref.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from prfaas_ref.transport.session import Line, Session


@dataclass(frozen=True)
class Destination:
    """What a receiver answers to an offer it takes.

    `manifest` is derived from the receiver's own config for all n_tokens. The receiver holds the rows of the first
    `have_tokens` already. `layers[i]` are writable, contiguous views for the tensors of layer i of
    `manifest.increment(have_tokens)`, in that order; a tensor may be spread over several.
    """

    manifest: Manifest
    layers: Sequence[Sequence[memoryview]]
    have_tokens: int = 0


class Incoming:
    """A transfer under way. Handlers read the public fields; the rest belongs to the Receiver."""

    def __init__(self, offer: Offer, manifest: Manifest, peer_epoch: str, exact: bool, deadline: float) -> None:
        self.transfer_id, self.metadata = offer.transfer_id, offer.metadata
        self.manifest = manifest  # as the sender declares it
        self.n_tokens, self.available_from = manifest.n_tokens, offer.available_from
        self.peer_epoch, self.exact = peer_epoch, exact
        self.deadline = deadline  # on the receiver's clock
        self.received_bytes = self.first_chunk_bytes = 0  # of intact chunks
        self.first_chunk_at = self.last_chunk_at = 0.0

        self.offer = offer
        self.state: R = R.OFFERED
        self.deciding = True  # the handler has not answered yet
        self.abort_wanted = False
        self.session: Session | None = None
        self.attempt = 0
        self.detached_at = 0.0
        self.reserved_bytes = manifest.n_bytes
        self.error: TransportError | None = None
        self.have_tokens: int | None = None  # set with the destination
        self.increment: Manifest | None = None
        self.ledgers: list[Ledger] = []
        self.images: list[Image] = []
        self._heads: list[bytearray] = []
        self.landing: dict[tuple[int, int], Line] = {}  # chunks whose pages are lent to a connection
        self.asked_again: dict[tuple[int, int], int] = {}
        self.retries_said = 0  # in this attempt
        self.fenced: set[int] = set()  # stripes whose PING answers all of these: nothing is on its way there
        self.claimed: dict[int, str] = {}
        self.root = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.peer_epoch, self.transfer_id

    def place(self, destination: Destination) -> None:
        """Raises ValueError when the destination does not fit its own manifest: the receiver's own mistake."""
        increment = destination.manifest.increment(destination.have_tokens)
        if len(destination.layers) != len(increment.layers):
            raise ValueError(f"{len(destination.layers)} layers of views for {len(increment.layers)} layers")
        for i, (spec, views) in enumerate(zip(increment.layers, destination.layers, strict=True)):
            head = bytearray(len(image_header(spec)))
            image = Image([memoryview(head), *views])
            if image.n_bytes != len(head) + spec.n_bytes or any(view.readonly for view in views):
                raise ValueError(f"layer {i} needs {spec.n_bytes} writable bytes")
            self._heads.append(head)
            self.images.append(image)
            self.ledgers.append(Ledger(image.n_bytes, self.offer.chunk_bytes))
        self.increment, self.have_tokens = increment, destination.have_tokens
        self.reserved_bytes = increment.n_bytes

    def count(self, n_bytes: int, now: float) -> None:
        """An intact chunk is in place."""
        if not self.received_bytes:
            self.first_chunk_bytes, self.first_chunk_at = n_bytes, now
        self.received_bytes += n_bytes
        self.last_chunk_at = now

    @property
    def bits_per_s(self) -> float | None:
        """The rate at which it came, from its first chunk to its last; None when it came in one."""
        elapsed_s = self.last_chunk_at - self.first_chunk_at
        return (self.received_bytes - self.first_chunk_bytes) * BITS_PER_BYTE / elapsed_s if elapsed_s > 0 else None

    def settled(self) -> list[tuple[int, int]]:
        """The chunks that need not be sent again."""
        return [(i, c) for i, ledger in enumerate(self.ledgers) for c, d in enumerate(ledger.digests) if d is not None]

    def holes(self) -> int:
        return sum(ledger.missing for ledger in self.ledgers)

    def missing(self) -> list[tuple[int, int]]:
        return [(i, c) for i, ledger in enumerate(self.ledgers) for c, d in enumerate(ledger.digests) if d is None]

    def prove(self, fingerprint: str) -> None:
        """Everything is in: is it what the sender says it sent? Raises Corrupt where the two differ."""
        assert self.increment is not None
        digests = [ledger.digest() for ledger in self.ledgers]
        for i, spec in enumerate(self.increment.layers):
            if digests[i] != self.claimed.get(i):
                raise Corrupt(f"layer {i}: the digest of what arrived is not the one that was sent")
            if self._heads[i] != image_header(spec):
                raise Corrupt(f"layer {i}: its image opens with another header than its manifest gives")
        if root_digest(self.transfer_id, fingerprint, self.increment.digest(), digests) != self.root:
            raise Corrupt("the root digest of what arrived is not the one that was sent")
