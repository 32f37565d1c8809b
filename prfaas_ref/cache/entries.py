"""What the cache remembers: a tree of prefix blocks, with a snapshot as one more child of the block that it ends at.

    Root (a namespace) <- PrefixBlock <- PrefixBlock <- PrefixBlock
                                     <- Snapshot     <- PrefixBlock

A block is reached from its parent by its tokens, so a walk from the root compares namespace, chain and tokens, and no
digest is ever trusted. Two things decide an entry's fate. Only leaves are evicted, and a snapshot counts as a child, so
whatever is cached has its whole chain. `pins` counts who holds an entry: a request, a transfer, and each pinned child,
which holds its parent once. So one pin at the deepest block keeps the chain, and costs nothing per block when a busy
prefix is held already.
"""

from dataclasses import dataclass, field

from prfaas_ref.cache.keys import Namespace


@dataclass(slots=True, eq=False)
class Node:
    """What all entries have. `depth` is in blocks from the root, `size` in blocks owned, `last_use` counts releases."""

    parent: "Root | PrefixBlock | None"
    depth: int
    size: int
    pins: int = 0
    last_use: int = 0
    queued: bool = False  # waits in the heap of its account

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The pool blocks that this entry owns."""
        return ()

    @property
    def is_leaf(self) -> bool:
        """Whether it could be evicted without taking anything else along."""
        return False


@dataclass(slots=True, eq=False)
class Root(Node):
    """Where the chains of one namespace begin. Owns no blocks."""

    namespace: Namespace | None = None
    key: bytes = b""
    children: "dict[bytes, PrefixBlock]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class PrefixBlock(Node):
    """A full, published block of full-attention KV, after its parent's tokens."""

    block_id: int = -1
    key: bytes = b""
    tokens: bytes = b""
    children: "dict[bytes, PrefixBlock]" = field(default_factory=dict)
    snapshot: "Snapshot | None" = None

    @property
    def block_ids(self) -> tuple[int, ...]:
        return (self.block_id,)

    @property
    def is_leaf(self) -> bool:
        return not self.children and self.snapshot is None


@dataclass(slots=True, eq=False)
class Snapshot(Node):
    """All fixed-size state (recurrent, conv windows, sliding-window pages) after exactly its block's last token."""

    ids: tuple[int, ...] = ()

    @property
    def block_ids(self) -> tuple[int, ...]:
        return self.ids

    @property
    def is_leaf(self) -> bool:
        return True

    @property
    def block(self) -> PrefixBlock:
        """The prefix block whose end this is the state at."""
        assert isinstance(self.parent, PrefixBlock)
        return self.parent


Leaf = PrefixBlock | Snapshot  # what can be evicted, once nothing hangs on it
Entry = Root | Leaf
