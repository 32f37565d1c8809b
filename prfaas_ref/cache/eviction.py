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
                return
            if now is not None:
                node.last_use = now
            self.evictable_blocks += node.size
            if node.is_leaf:
                self._offer(node)
            node = node.parent

    def add(self, leaf: Leaf) -> None:
        """A new leaf that nobody holds yet."""
        self.evictable_blocks += leaf.size
        self._offer(leaf)

    def lowest_score(self) -> float:
        """The score of the leaf that goes next; infinity when there is none."""
        while self._leaves:
            ticket = heapq.heappop(self._leaves)
            if self._is_true(ticket):
                ticket[2].queued = True
                heapq.heappush(self._leaves, ticket)
                return ticket[0]
        return math.inf

    def evict(self, num_blocks: float) -> list[Leaf]:
        """Cut leaves off the tree, lowest score first, until they have `num_blocks` or just more. The caller has made
        sure that so many are evictable, and frees the blocks."""
        cut: list[Leaf] = []
        ticket = None
        while num_blocks > 0:
            assert ticket or self._leaves, "evictable blocks were counted, but no leaf is left"
            ticket = ticket or heapq.heappop(self._leaves)
            leaf, valid, ticket = ticket[2], self._is_true(ticket), None
            if not valid:
                continue
            cut.append(leaf)
            num_blocks -= leaf.size
            self.evictable_blocks -= leaf.size
            parent = leaf.parent
            assert parent is not None, "a root was offered"
            if isinstance(leaf, PrefixBlock):
                unlinked = parent.children.pop(leaf.tokens, None)
                assert unlinked is leaf, "a block was evicted that was not in the tree"
            else:
                leaf.block.snapshot = None
            if parent.is_leaf and not parent.pins and not parent.queued and isinstance(parent, PrefixBlock):
                parent.queued = True  # offered and, as a chain goes from its end, often taken at once
                ticket = heapq.heappushpop(self._leaves, self._ticket(parent))
        if ticket:
            ticket[2].queued = True
            heapq.heappush(self._leaves, ticket)
        return cut

    def _is_true(self, ticket: Ticket) -> bool:
        """Whether a ticket taken from the heap still says how things are. If not, its leaf is offered again: now if it
        was used since, and when it is released if it is in use."""
        offered, _, leaf = ticket
        leaf.queued = False
        if leaf.pins or not leaf.is_leaf:
            return False
        if self.score(leaf) > offered:
            self._offer(leaf)
            return False
        return True

    def queued(self) -> list[Leaf]:
        """The leaves that wait, each once."""
        return [ticket[2] for ticket in self._leaves]

    def _offer(self, entry: Entry) -> None:
        if not entry.queued and not isinstance(entry, Root):
            entry.queued = True
            heapq.heappush(self._leaves, self._ticket(entry))

    def _ticket(self, leaf: Leaf) -> Ticket:
        self._offers += 1
        return self.score(leaf), self._offers, leaf
