"""What a cache manager shows to be examined: a few calls, block numbers in and out.

The manager only hands out block numbers; the examiner writes to them in its own memory and compares what a later hit
finds there. So no tensor and no device is needed, and a manager that serves the wrong block is caught by the bytes.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CacheConfig:
    """What the manager is built for.

    weak_hash asks for a digest of few bits, so that collisions happen; a manager whose digest cannot be replaced, or
    that trusts none, ignores it. favour_long asks to evict short prefixes first, of a manager that can. quotas: blocks
    that a tenant may hold, of a manager that has_quotas.
    """

    num_blocks: int
    block_size: int
    state_blocks: int = 0
    weak_hash: bool = False
    favour_long: bool = False
    quotas: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Admission:
    """A request was admitted.

    request: the manager's own handle. The front of the block table holds the KV of cached_tokens, and state_blocks the
    state after exactly them (none at 0, or without state); both stay until the request is freed.
    """

    request: Any
    block_table: list[int]
    cached_tokens: int
    state_blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hold:
    """Blocks that the manager keeps under a handle of its own: of a checkpoint, or a transfer's, some only to read."""

    handle: Any
    blocks: tuple[int, ...]
    read_blocks: tuple[int, ...] = ()


class CacheAdapter:
    """Implement the first part; implement another and set its flag to have it examined too.

    block_unit: a manager that takes only multiples of it as block sizes says so here. has_state on the class is for a
    manager that always keeps snapshots; one that may do without sets it on itself, from config.state_blocks.

    "No room" is None, and must leave everything as it was. Anything that raises counts as a crash of the manager.
    """

    block_unit = 1
    has_state = False
    has_transfers = False
    can_stream = False
    can_extend = False
    can_match = False
    has_quotas = False

    def __init__(self, config: CacheConfig) -> None:
        self.config = config

    # ---- required

    def allocate(self, tenant: str, tokens: list[int]) -> Admission | None:
        """Match the longest cached prefix below the last token and give blocks for all of `tokens`."""
        raise NotImplementedError

    def commit(self, request: Any, num_tokens: int) -> list[int]:
        """KV of the first `num_tokens` is written; full blocks may be found by others. Returns the block table now."""
        raise NotImplementedError

    def free(self, request: Any) -> None:
        """The request ends, finished or not. Checkpoints reserved and not published are given back too."""
        raise NotImplementedError

    def num_reclaimable(self) -> int:
        """Blocks that nobody holds: free ones, and cached ones that may be evicted."""
        raise NotImplementedError

    def evict_all(self) -> None:
        """Forget every cached block that nobody holds."""
        raise NotImplementedError

    def check(self) -> None:
        """The manager's own invariants, if it has any; AssertionError when one is broken."""

    # ---- can_extend, can_match

    def extend(self, request: Any, tokens: list[int]) -> list[int] | None:
        """Decoded tokens are added. Returns the block table now."""
        raise NotImplementedError

    def match(self, tenant: str, tokens: list[int]) -> int:
        """How many tokens `allocate` would find cached now. Holds and changes nothing."""
        raise NotImplementedError

    # ---- has_state

    def reserve_checkpoint(self, request: Any, num_tokens: int) -> Hold | None:
        """Blocks for a snapshot at `num_tokens`. None only when there is no room, or one exists already."""
        raise NotImplementedError

    def publish_checkpoint(self, handle: Any) -> bool:
        """The snapshot is written: from now on it is cached. False if there was one: the blocks are then free."""
        raise NotImplementedError

    # ---- has_transfers

    def send(self, request: Any, num_tokens: int, live_blocks: int, lease_end_s: float) -> Hold | None:
        """Hold committed KV while it is read, with own blocks for what is no full cached block, and for live state."""
        raise NotImplementedError

    def receive(
        self, tenant: str, tokens: list[int], live_blocks: int, lease_end_s: float
    ) -> tuple[Admission, Hold] | None:
        """A request whose KV will be written from outside, and that writer's hold: blocks for live state."""
        raise NotImplementedError

    def stream(self, request: Any, live_blocks: int, lease_end_s: float) -> Hold | None:
        """Send the request's own blocks where they lie, while it computes them (can_stream; one at a time)."""
        raise NotImplementedError

    def ack(self, handle: Any) -> bool:
        """The transfer is applied: let go. False, and nothing, if it is over already."""
        raise NotImplementedError

    def abort(self, handle: Any) -> bool:
        """The transfer is given up; its blocks wait for `settle`. False if it is over already."""
        raise NotImplementedError

    def expire(self, now_s: float) -> list[Any]:
        """The leases that have ended: like abort. Returns the handles."""
        raise NotImplementedError

    def settle(self, handle: Any) -> bool:
        """No read or write of the transfer can land any more. True if that freed its blocks."""
        raise NotImplementedError
