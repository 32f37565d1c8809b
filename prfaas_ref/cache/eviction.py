"""What goes first when the pool is full: the unpinned leaf with the lowest score.

A score may rise while an entry waits (it was used again) but never falls, so one heap with one place per entry is
enough: a leaf whose score has risen is put back when it comes up, and one that is in use again is dropped and offered
anew when it is released. The plain score is recency (LRU); the second policy adds what a hit would save per byte held.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from prfaas_ref.cache.entries import Entry, Leaf, PrefixBlock, Root, Snapshot

Score = Callable[[Leaf], float]
Ticket = tuple[float, int, Leaf]  # a leaf, its score when it was offered, and the order of offers to break ties


recency: Score = attrgetter("last_use")  # least recently used goes first


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
    alpha: float = 3.0
    quadratic_tokens: float = 32_768.0

    def __call__(self, leaf: Leaf) -> float:
        end = leaf.depth * self.block_size
        start = 0 if isinstance(leaf, Snapshot) else end - self.block_size
        saved_tokens = (end - start) + (end * end - start * start) / (2 * self.quadratic_tokens)
        return leaf.last_use + self.alpha * saved_tokens / (leaf.size * self.block_size)


class Account:
    """The blocks of one tenant, or of all that have no quota: how many are held, how many eviction could free, and in
    what order. Blocks in use count as held like cached ones."""

    def __init__(self, score: Score, quota_blocks: float = math.inf) -> None:
        self.score = score
        self.quota_blocks = quota_blocks
        self.held_blocks = 0
        self.evictable_blocks = 0
        self._leaves: list[Ticket] = []
        self._offers = 0

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
                break
            if now is not None:
                node.last_use = now
            self.evictable_blocks += node.size
            node = node.parent
        if not entry.pins and entry.is_leaf:  # its ancestors are no leaves: they have it
            self._offer(entry)

    def add(self, leaf: Leaf) -> None:
        """A new leaf that nobody holds yet."""
        self.evictable_blocks += leaf.size
        self._offer(leaf)

    def lowest_score(self) -> float:
        """The score of the leaf that goes next; infinity when there is none."""
        if not self.evictable_blocks:
            return math.inf
        leaf = self._pop()
        self._offer(leaf)
        return self.score(leaf)

    def evict(self, num_blocks: float) -> list[Leaf]:
        """Cut leaves off the tree, lowest score first, until they have `num_blocks` or just more. The caller has made
        sure that so many are evictable, and frees the blocks.
        """
        cut: list[Leaf] = []
        leaf: Leaf | None = None
        while num_blocks > 0:
            leaf = leaf or self._pop()
            cut.append(leaf)
            num_blocks -= leaf.size
            self.evictable_blocks -= leaf.size
            parent, leaf = self._unlink(leaf), None
            if isinstance(parent, PrefixBlock) and parent.is_leaf and not parent.pins and not parent.queued:
                if not self._leaves or self.score(parent) <= self._leaves[0][0]:
                    leaf = parent  # a chain goes from its end
                else:
                    self._offer(parent)
        if leaf:
            self._offer(leaf)
        return cut

    def _pop(self) -> Leaf:
        """Take out the leaf with the lowest score."""
        while True:
            assert self._leaves, "evictable blocks were counted, but no leaf is left"
            offered, _, leaf = heapq.heappop(self._leaves)
            leaf.queued = False
            if leaf.pins or not leaf.is_leaf:
                continue  # it will be offered again when it is released
            if self.score(leaf) <= offered:
                return leaf
            self._offer(leaf)  # used since, and released

    def _unlink(self, leaf: Leaf) -> Root | PrefixBlock:
        """Make `leaf` unreachable. Returns its parent."""
        parent = leaf.parent
        assert parent is not None, "a root was offered"
        if isinstance(leaf, PrefixBlock):
            unlinked = parent.children.pop(leaf.tokens, None)
            assert unlinked is leaf, "a block was evicted that was not in the tree"
        else:
            leaf.block.snapshot = None
        return parent

    def queued(self) -> list[Leaf]:
        """The leaves that wait, each once."""
        return [ticket[2] for ticket in self._leaves]

    def _offer(self, entry: Entry) -> None:
        if not entry.queued and not isinstance(entry, Root):
            entry.queued = True
            self._offers += 1
            heapq.heappush(self._leaves, (self.score(entry), self._offers, entry))
