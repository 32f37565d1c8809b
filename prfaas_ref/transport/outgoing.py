"""One transfer as its sender sees it, over all its attempts: the images, what may be sent, what is settled.

Layers enter as they are computed, and inside a layer as far as its bytes are final; the views must stay as they are
until the transfer has ended, because every attempt reads them again.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from prfaas_ref.transport.errors import Refused
from prfaas_ref.transport.image import Image, image_header
from prfaas_ref.transport.ledger import Ledger, from_spans, root_digest
from prfaas_ref.transport.manifest import Manifest
from prfaas_ref.transport.messages import Accept, Offer


class Chunk(NamedTuple):
    layer: int
    number: int
    offset: int
    length: int
    views: list[memoryview]


class Outgoing:
    """Pure bookkeeping: no frames, no time."""

    def __init__(self, offer: Offer, manifest: Manifest, fingerprint: str) -> None:
        self.offer, self.manifest, self._fingerprint = offer, manifest, fingerprint
        self.peer_epoch = ""  # of the process that was offered it: only that one can resume it
        self.increment: Manifest | None = None  # from ACCEPT on
        self.have_tokens = 0
        self.ledgers: list[Ledger] = []
        self.confirmed: set[tuple[int, int]] = set()
        self._images: dict[int, Image] = {}
        self._ready_bytes: dict[int, int] = {}
        self._queued_up_to: dict[int, int] = {}  # chunks of each layer that were queued in this attempt
        self._queue: deque[tuple[int, int]] = deque()
        self.queued_bytes = 0

    def accepted(self, accept: Accept) -> None:
        """The receiver's terms, of this attempt. Raises Refused when they are not what both sides would derive."""
        have = accept.have_tokens
        if self.increment is not None and have != self.have_tokens:
            raise Refused("have_tokens", self.have_tokens, have)
        if not self.offer.available_from <= have <= self.manifest.n_tokens:
            raise Refused("have_tokens", f"{self.offer.available_from}..{self.manifest.n_tokens}", have)
        increment = self.manifest.increment(have)
        if increment.digest() != accept.manifest_sha256:
            raise Refused("manifest_sha256", increment.digest(), accept.manifest_sha256)
        if self.increment is None:
            self.increment, self.have_tokens = increment, have
            sizes = [len(image_header(layer)) + layer.n_bytes for layer in increment.layers]
            self.ledgers = [Ledger(n, self.offer.chunk_bytes) for n in sizes]
        self.confirmed = set(from_spans(accept.have, self.ledgers))
        for layer, chunk in self.confirmed:
            if self.ledgers[layer].digests[chunk] is None:
                raise Refused(f"have[{layer}]", "never sent", f"chunk {chunk}")
        self._queue.clear()
        self._queued_up_to.clear()
        self.queued_bytes = 0
        for layer in self._ready_bytes:
            self._enqueue(layer)

    def add(self, layer: int, views: Sequence[memoryview], ready_bytes: int | None = None) -> None:
        """The bytes of a layer's tensors, in manifest order; the first `ready_bytes` (default: all) are final."""
        assert self.increment is not None
        if layer in self._images or not 0 <= layer < len(self.ledgers):
            raise ValueError(f"layer {layer} was sent already, or is none of the {len(self.ledgers)} of this transfer")
        spec = self.increment.layers[layer]
        body = Image(views)
        if body.n_bytes != spec.n_bytes:
            raise ValueError(f"layer {layer} has {body.n_bytes} bytes; its manifest says {spec.n_bytes}")
        head = image_header(spec)
        self._images[layer] = Image([memoryview(head), *views])
        self._ready_bytes[layer] = 0
        self.advance(layer, spec.n_bytes if ready_bytes is None else ready_bytes)

    def advance(self, layer: int, ready_bytes: int) -> None:
        """The first `ready_bytes` of the layer's tensors are final now."""
        assert self.increment is not None
        spec = self.increment.layers[layer]
        ready_bytes += len(image_header(spec))
        if not self._ready_bytes[layer] <= ready_bytes <= self.ledgers[layer].n_bytes:
            raise ValueError(f"layer {layer}: ready bytes cannot go from {self._ready_bytes[layer]} to {ready_bytes}")
        self._ready_bytes[layer] = ready_bytes
        self._enqueue(layer)

    def _enqueue(self, layer: int) -> None:
        """Queue the chunks that became sendable, except what the receiver holds."""
        ledger = self.ledgers[layer]
        first, ready = self._queued_up_to.get(layer, 0), self._ready_bytes[layer]
        last = len(ledger.digests) if ready == ledger.n_bytes else ready // ledger.chunk_bytes
        for chunk in range(first, last):
            if (layer, chunk) not in self.confirmed:
                self._queue.append((layer, chunk))
                self.queued_bytes += ledger.span(chunk)[1]
        self._queued_up_to[layer] = last

    def unready(self) -> list[int]:
        """The layers that were not wholly handed over yet."""
        return [i for i, ledger in enumerate(self.ledgers) if self._ready_bytes.get(i) != ledger.n_bytes]

    def next_length(self) -> int:
        """Bytes of the chunk that `take` would return; 0 when there is none."""
        return self.ledgers[self._queue[0][0]].span(self._queue[0][1])[1] if self._queue else 0

    def take(self) -> Chunk:
        layer, index = self._queue.popleft()
        offset, length = self.ledgers[layer].span(index)
        self.queued_bytes -= length
        return Chunk(layer, index, offset, length, self._images[layer].views(offset, length))

    def again(self, layer: int, index: int) -> bool:
        """This chunk came damaged, or never: it goes first. False when it is confirmed: its PROGRESS was faster."""
        (pair,) = from_spans([(layer, index, index)], self.ledgers)
        if layer not in self._images:
            raise Refused(f"retry[{layer}]", "not under way", f"chunk {index}")
        if pair in self.confirmed:
            return False
        if pair not in self._queue:
            self._queue.appendleft(pair)
            self.queued_bytes += self.ledgers[layer].span(index)[1]
        return True

    def confirm(self, pair: tuple[int, int]) -> int:
        """This chunk is at the receiver. Returns its bytes, or 0 when that was known."""
        if pair in self.confirmed:
            return 0
        self.confirmed.add(pair)
        return self.ledgers[pair[0]].span(pair[1])[1]

    @property
    def all_sealed(self) -> bool:
        """Every chunk of every layer was sent at least once, and none waits to be sent again."""
        return self.increment is not None and not self._queue and not any(ledger.missing for ledger in self.ledgers)

    def root(self) -> str:
        assert self.increment is not None
        layers = (ledger.digest() for ledger in self.ledgers)
        return root_digest(self.offer.transfer_id, self._fingerprint, self.increment.digest(), layers)
