"""Which chunks of a layer's image are settled, and their digests: completeness is coverage, never a count.

A layer is cut on a fixed grid, so a chunk is the same chunk in every attempt, on every stripe and at both ends. Its
digest is the checksum its bytes had on the wire; a layer's digest is taken over its ordered chunk digests and the root
over the layers', so no byte is read twice.
"""

import hashlib
from collections.abc import Iterable, Iterator

from prfaas_ref.transport.errors import ProtocolError
from prfaas_ref.transport.messages import Span


class Ledger:
    """The chunks of one layer of `n_bytes`. Every layer has bytes: its image opens with a header."""

    def __init__(self, n_bytes: int, chunk_bytes: int) -> None:
        self.n_bytes, self.chunk_bytes = n_bytes, chunk_bytes
        self.digests: list[int | None] = [None] * -(-n_bytes // chunk_bytes)
        self.missing = len(self.digests)

    def span(self, chunk: int) -> tuple[int, int]:
        """Offset and length of a chunk."""
        offset = chunk * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.n_bytes - offset)

    def chunk_at(self, offset: int, length: int) -> int:
        """The chunk that is these bytes. Raises ProtocolError when none is."""
        chunk, off_grid = divmod(offset, self.chunk_bytes)
        if off_grid or chunk >= len(self.digests) or self.span(chunk)[1] != length:
            raise ProtocolError(f"bytes {offset}..{offset + length} are not a chunk of a layer of {self.n_bytes}")
        return chunk

    def settle(self, chunk: int, digest: int) -> None:
        """This chunk is there, with this digest. A chunk settles once; saying so again changes nothing."""
        if self.digests[chunk] is None:
            self.digests[chunk] = digest
            self.missing -= 1

    def digest(self) -> str:
        """Of a layer with no chunk missing."""
        assert not self.missing
        ordered = b"".join((digest or 0).to_bytes(4, "big") for digest in self.digests)
        grid = self.n_bytes.to_bytes(8, "big") + self.chunk_bytes.to_bytes(8, "big")
        return hashlib.sha256(grid + ordered).hexdigest()

    def check_invariants(self) -> None:
        assert self.missing == self.digests.count(None)
        assert sum(self.span(i)[1] for i in range(len(self.digests))) == self.n_bytes


def root_digest(transfer_id: str, fingerprint: str, manifest: str, layers: Iterable[str]) -> str:
    """What both ends must agree on before a transfer can be applied."""
    return hashlib.sha256("\n".join([transfer_id, fingerprint, manifest, *layers]).encode()).hexdigest()


def to_spans(chunks: Iterable[tuple[int, int]]) -> list[Span]:
    """(layer, chunk) pairs as runs."""
    spans: list[Span] = []
    for layer, chunk in sorted(chunks):
        if spans and spans[-1][0] == layer and spans[-1][2] == chunk - 1:
            spans[-1] = (layer, spans[-1][1], chunk)
        else:
            spans.append((layer, chunk, chunk))
    return spans


def from_spans(spans: Iterable[Span], ledgers: list[Ledger]) -> Iterator[tuple[int, int]]:
    """The (layer, chunk) pairs in these runs. Raises ProtocolError when one does not exist."""
    for layer, first, last in spans:
        if layer >= len(ledgers) or not first <= last < len(ledgers[layer].digests):
            raise ProtocolError(f"chunks {first}..{last} of layer {layer} do not exist")
        for chunk in range(first, last + 1):
            yield layer, chunk
