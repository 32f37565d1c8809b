"""What a request holds of the cache. Everything here is the index's to change and anyone's to read."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prfaas_ref.cache.entries import PrefixBlock, Root, Snapshot
from prfaas_ref.cache.eviction import Account
from prfaas_ref.cache.keys import Namespace, TokenBlocks

if TYPE_CHECKING:
    from prfaas_ref.cache.transfer import Transfer


@dataclass(slots=True, eq=False)
class Allocation:
    """One request's blocks.

    block_table: the pool block of each block of tokens; the first len(path) are published and must not be written.
    cached_tokens: where computing starts; the KV before it is in the table and its state in `snapshot_blocks`.
    branch_tokens: how deep the KV alone matched: where a snapshot would have let this request start later.
    committed_tokens: how many tokens' KV the caller has declared written.
    """

    namespace: Namespace
    tokens: TokenBlocks
    account: Account
    root: Root
    path: list[PrefixBlock]
    snapshot: Snapshot | None
    block_table: list[int]
    cached_tokens: int
    branch_tokens: int
    committed_tokens: int
    reserved: "list[Checkpoint]" = field(default_factory=list)
    publishes: bool = True  # False once the weights have changed: the rest stays private
    writers: int = 0  # receives in flight: someone outside may still write to the private blocks
    stream: "Transfer | None" = None  # a send in flight that reads these blocks where they lie
    freed: bool = False

    @property
    def has_movers(self) -> bool:
        """Whether a transfer still reads or writes these blocks: they outlive the request then."""
        return bool(self.writers) or self.stream is not None

    @property
    def num_tokens(self) -> int:
        """The tokens known so far: the prompt and what `extend` added."""
        return len(self.tokens)

    @property
    def snapshot_blocks(self) -> tuple[int, ...]:
        """The blocks of the state at `cached_tokens`; empty without a hit."""
        return self.snapshot.ids if self.snapshot else ()

    @property
    def deepest(self) -> Root | PrefixBlock:
        """The last published entry of this request's chain: its one pin holds all the others."""
        return self.path[-1] if self.path else self.root

    @property
    def private_blocks(self) -> list[int]:
        """The blocks that only this request knows, in order of position."""
        return self.block_table[len(self.path) :]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Blocks reserved for a snapshot at `num_tokens`: the caller writes them, then `publish_checkpoint` shows them."""

    alloc: Allocation
    num_tokens: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a prompt is cached, in tokens: the KV alone, and KV with state (what a request could skip)."""

    kv_tokens: int
    usable_tokens: int
