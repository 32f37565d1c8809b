"""Each cluster's hybrid prefix cache, on the pool's own index: the simulator runs the code that the workers run.

Knows nothing of tensors or time. A trace's `hash_ids` enter as one node per id, a node standing for the id's block of
512 tokens; a request without ids enters as one node of its own, standing for a run of tokens nobody else has. Hits
need KV and a snapshot at the same length; snapshots are taken at the prompt's last full block and at the branch point.
"""

from collections.abc import Iterator
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from prfaas_ref.cache.index import HybridCacheIndex, OutOfBlocks
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.request import Request
from prfaas_ref.scheduler.profile import KvSize
from prfaas_ref.scheduler.traces import HASH_BLOCK_TOKENS, ID_LIMIT

if TYPE_CHECKING:
    from prfaas_ref.cache.allocation import Allocation

_NAMESPACE = Namespace("simulated", block_size=1)


class Match(NamedTuple):
    """Cached prefix of one prompt in one cluster, in tokens: the KV alone, and with the state that makes it usable."""

    kv_tokens: int
    usable_tokens: int


class Lease(NamedTuple):
    """What a running prefill holds: blocks, and how many tokens it found."""

    allocation: "Allocation"
    cached_tokens: int


class ClusterCache:
    """One cluster's cache of `capacity_bytes`, in nodes of `node_tokens` tokens; none when not one node fits."""

    def __init__(self, capacity_bytes: float, kv: KvSize, node_tokens: int = HASH_BLOCK_TOKENS) -> None:
        node_bytes = max(1.0, kv.bytes_per_token * node_tokens)
        self.node_tokens = node_tokens
        blocks = int(capacity_bytes / node_bytes)
        self.index = HybridCacheIndex(blocks, 1, ceil(kv.fixed_bytes / node_bytes)) if blocks else None
        self.prompt_tokens = self.hit_tokens = 0
        self._private: Iterator[int] = count(ID_LIMIT)  # ids that no trace uses: runs of tokens that nobody shares

    def match(self, request: Request) -> Match:
        """What the cache holds of a prompt now; nothing is held or counted."""
        if self.index is None or not request.hash_ids:
            return _NOTHING
        found = self.index.match_prefix(_NAMESPACE, request.hash_ids)
        return Match(found.kv_tokens * self.node_tokens, found.usable_tokens * self.node_tokens)

    def hold(self, request: Request) -> Lease | None:
        """Hold the usable prefix and take room for the rest. None when there is no room: the prompt runs uncached."""
        self.prompt_tokens += request.prompt_tokens
        allocation = self._allocate(request)
        if allocation is None:
            return None
        cached = min(allocation.cached_tokens * self.node_tokens, request.prompt_tokens - 1)
        self.hit_tokens += cached
        return Lease(allocation, cached)

    def publish(self, request: Request, lease: Lease) -> None:
        """The prompt is computed: its full blocks are found from now on, and the lease is over."""
        index, allocation = self.index, lease.allocation
        assert index is not None, "a lease is held in an index"
        full = request.prompt_tokens // self.node_tokens if request.hash_ids else 1
        full = min(full, allocation.num_tokens)
        branch = allocation.branch_tokens
        index.commit(allocation, full)
        for end in {branch, full} if branch > allocation.cached_tokens else {full}:
            ticket = index.reserve_checkpoint(allocation, end) if end else None
            if ticket is not None:
                index.publish_checkpoint(ticket)
        index.free(allocation)

    def drop(self, lease: Lease) -> None:
        """The prompt was not computed to its end."""
        assert self.index is not None, "a lease is held in an index"
        self.index.free(lease.allocation)

    def receive(self, request: Request, tokens: int | None = None) -> None:
        """A prompt's cache (or the prefix of `tokens`) arrived from the other cluster and is found from now on.

        Only what has ids can be found, so a run of tokens that nobody shares leaves no second copy here.
        The snapshot at its last full block stands for the one that decode takes at its next block end: a trace has no
        name for that block.
        """
        if not request.hash_ids:
            return
        if tokens is not None:
            request = _shortened(request, tokens, self.node_tokens)
        allocation = self._allocate(request)
        if allocation is not None:
            self.publish(request, Lease(allocation, 0))

    @property
    def hit_ratio(self) -> float:
        """Cached over prompt tokens of everything prefilled here."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def _allocate(self, request: Request) -> "Allocation | None":
        if self.index is None:
            return None
        try:
            return self.index.allocate(_NAMESPACE, request.hash_ids or (next(self._private),))
        except OutOfBlocks:
            return None


_NOTHING = Match(0, 0)


def _shortened(request: Request, tokens: int, node_tokens: int) -> Request:
    ids = request.hash_ids[: tokens // node_tokens]
    return Request(request.request_id, request.arrival_s, len(ids) * node_tokens, 1, hash_ids=ids)
