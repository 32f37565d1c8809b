"""What the cache remembers: a tree of prefix blocks, with a snapshot as one more child of the block that it ends at.

    Root (a namespace) <- PrefixBlock <- PrefixBlock <- PrefixBlock
                                     <- Snapshot     <- PrefixBlock

Two counts decide an entry's fate. `children` counts the entries below it, a snapshot included; only leaves are evicted,
so whatever is cached has its whole chain. `pins` counts who holds it: a request, a transfer, and each pinned child,
which holds its parent once. So one pin at the deepest block keeps the whole chain, and costs nothing per block when a
busy prefix is held already.
"""

from dataclasses import dataclass

from prfaas_ref.cache.keys import Namespace


@dataclass(slots=True, eq=False)
class Entry:
    """One node of the tree. `size` is in blocks, `depth` in blocks from the root, `last_use` counts releases."""

    parent: "Entry | None"
    depth: int
    size: int
    pins: int = 0
    children: int = 0
    last_use: int = 0
    queued: bool = False

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The pool blocks that this entry owns."""
        return ()


@dataclass(slots=True, eq=False)
class Root(Entry):
    """Where the chains of one namespace begin. Owns no blocks."""

    namespace: Namespace | None = None


@dataclass(slots=True, eq=False)
class PrefixBlock(Entry):
    """A full, published block of full-attention KV: found by `key`, a hit only when parent and tokens agree."""

    block_id: int = -1
    key: bytes = b""
    tokens: bytes = b""
    snapshot: "Snapshot | None" = None

    @property
    def block_ids(self) -> tuple[int, ...]:
        return (self.block_id,)


@dataclass(slots=True, eq=False)
class Snapshot(Entry):
    """All fixed-size state (recurrent, conv windows, sliding-window pages) after exactly its block's last token."""

    ids: tuple[int, ...] = ()

    @property
    def block_ids(self) -> tuple[int, ...]:
        return self.ids

    @property
    def block(self) -> PrefixBlock:
        """The prefix block whose end this is the state at."""
        assert isinstance(self.parent, PrefixBlock)
        return self.parent
