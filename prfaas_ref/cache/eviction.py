"""What goes first when the pool is full: the unpinned leaf with the lowest score.

A score may rise while an entry waits (it was used again) but never falls, so one heap with one place per entry is
enough: a leaf whose score has risen is put back when it comes up, and one that is in use again is dropped and offered
anew when it is released. The plain score is recency (LRU); the second policy adds what a hit would save per byte held.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from prfaas_ref.cache.entries import Entry, PrefixBlock, Snapshot

Score = Callable[[Entry], float]


def recency(entry: Entry) -> float:
    """Least recently used goes first."""
    return entry.last_use


@dataclass(frozen=True)
class FlopAware:
    """recency + alpha · FLOPs saved / bytes held, both in units of one token.

    FLOPs are counted in linear-layer FLOPs of one token: a prefix of d tokens costs d + d² / (2 · quadratic_tokens),
    where quadratic_tokens is the context length at which attention costs as much as all that is linear. A snapshot
    saves its whole prefix, a block of KV only its own tokens, so long prefixes' snapshots outlive short ones of the
    same age. alpha is in releases (the unit of recency) per token saved per block held. The idea is Marconi's (arXiv
    2411.19379).
    """

    block_size: int
    alpha: float = 0.25
    quadratic_tokens: float = 32_768.0

    def __call__(self, entry: Entry) -> float:
        end = entry.depth * self.block_size
        start = 0 if isinstance(entry, Snapshot) else end - self.block_size
        saved_tokens = (end - start) + (end * end - start * start) / (2 * self.quadratic_tokens)
        return entry.last_use + self.alpha * saved_tokens / (entry.size * self.block_size)


class Account:
    """The blocks of one tenant, or of all that have no quota: how many are held, how many eviction could free, and in
    what order. Blocks in use count as held like cached ones."""

    def __init__(self, score: Score, quota_blocks: float = math.inf) -> None:
        self.score = score
        self.quota_blocks = quota_blocks
        self.held_blocks = 0
        self.evictable_blocks = 0
        self._leaves: list[tuple[float, int, PrefixBlock | Snapshot]] = []  # (score when offered, tie break, leaf)

    def pin(self, entry: Entry) -> None:
        """Keep `entry`, and by it all its ancestors, from eviction."""
        node: Entry | None = entry
        while node is not None:
            node.pins += 1
            if node.pins > 1:
                return
            self.evictable_blocks -= node.size
            node = node.parent

    def unpin(self, entry: Entry, now: int | None) -> None:
        """Take back one pin. What nobody holds any more was last used at `now`; with None, as if never pinned."""
        node: Entry | None = entry
        while node is not None:
            node.pins -= 1
            if node.pins:
                return
            if now is not None:
                node.last_use = now
            self.evictable_blocks += node.size
            if not node.children:
                self._offer(node)
            node = node.parent

    def add(self, leaf: PrefixBlock | Snapshot) -> None:
        """A new leaf that nobody holds yet."""
        self.evictable_blocks += leaf.size
        self._offer(leaf)

    def lowest_score(self) -> float:
        """The score of the leaf that goes next, infinity when there is none."""
        leaves = self._leaves
        while leaves:
            offered, order, entry = leaves[0]
            if entry.pins or entry.children:
                heapq.heappop(leaves)
                entry.queued = False
                continue
            score = self.score(entry)
            if score <= offered:
                return offered
            heapq.heapreplace(leaves, (score, order, entry))
        return math.inf

    def evict(self) -> PrefixBlock | Snapshot:
        """Cut the leaf with the lowest score off the tree. Its blocks are then the caller's to give back."""
        self.lowest_score()
        entry = heapq.heappop(self._leaves)[2]
        entry.queued = False
        self.evictable_blocks -= entry.size
        parent = entry.parent
        assert parent is not None
        parent.children -= 1
        if not parent.children and not parent.pins:
            self._offer(parent)
        return entry

    def _offer(self, leaf: Entry) -> None:
        if not leaf.queued and isinstance(leaf, PrefixBlock | Snapshot):  # a root has nothing to give
            leaf.queued = True
            heapq.heappush(self._leaves, (self.score(leaf), leaf.block_ids[0], leaf))
