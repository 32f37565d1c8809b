"""The metadata of the hybrid prefix cache: which prefix lives in which blocks, and who holds it.

Block numbers only: no tensor is known here, so the scheduler's simulator runs this very code. The life of a request is

    alloc = index.allocate(namespace, prompt)    # holds the longest usable prefix, takes blocks for the rest
    ...                                          # compute from alloc.cached_tokens on, into alloc.block_table
    index.commit(alloc, n)                       # the KV of n tokens is written: its full blocks are published
    ticket = index.reserve_checkpoint(alloc, n)  # room for the state at n; the caller copies it there
    index.publish_checkpoint(ticket)             # from here on others may start at n
    index.extend(alloc, [token])                 # decode grows, and commits like prefill
    index.free(alloc)                            # at any time, once

A hit needs the KV of every block *and* a snapshot at its end. Every call does all it says, or raises and changes
nothing. Not thread safe: the owner holds one lock around each call. Paper section 6, prefix-cache blocks.
"""

import math
from collections.abc import Iterable, Mapping

from prfaas_ref.cache.allocation import Allocation, Checkpoint, PrefixMatch
from prfaas_ref.cache.entries import PrefixBlock, Snapshot
from prfaas_ref.cache.eviction import FlopAware, Score, recency
from prfaas_ref.cache.invariants import check_invariants
from prfaas_ref.cache.keys import Namespace, TokenBlocks, as_u32
from prfaas_ref.cache.transfer import Transfer, TransferLedger
from prfaas_ref.cache.tree import CacheListener, CacheTree, OutOfBlocks

__all__ = ["FlopAware", "HybridCacheIndex", "Namespace", "OutOfBlocks", "recency"]


class HybridCacheIndex:
    """Prefix blocks and snapshots over one set of block numbers, and the requests and transfers that hold them.

    num_blocks: size of the pool, None for no limit. block_size: tokens in a block. state_blocks: blocks of a snapshot;
    0 says that the model has no fixed-size state, and then KV alone is a hit. score: what eviction keeps. quotas:
    blocks that a tenant may hold, in use or cached; at its quota it evicts its own. fingerprint: the weights served,
    None for any.
    """

    def __init__(
        self,
        num_blocks: int | None,
        block_size: int,
        state_blocks: int,
        *,
        score: Score = recency,
        quotas: Mapping[str, int] | None = None,
        fingerprint: str | None = None,
        listener: CacheListener | None = None,
    ) -> None:
        if block_size < 1 or state_blocks < 0:
            raise ValueError(f"block_size must be positive and state_blocks not negative: {block_size}, {state_blocks}")
        self.block_size = block_size
        self.state_blocks = state_blocks
        self.fingerprint = fingerprint
        self.tree = CacheTree(num_blocks, score, quotas or {}, listener)
        self.transfers = TransferLedger(self.tree, block_size, self._release)
        self.allocations: set[Allocation] = set()

    # ---- matching

    def match_prefix(self, namespace: Namespace, tokens: Iterable[int]) -> PrefixMatch:
        """What `allocate` would find, without holding it: a report for routing, true until the next call."""
        path = self.tree.find(namespace, self._below_last(self._split(namespace, tokens)))
        return PrefixMatch(len(path) * self.block_size, self._usable(path) * self.block_size)

    def _split(self, namespace: Namespace, tokens: Iterable[int]) -> TokenBlocks:
        if namespace.block_size != self.block_size:
            raise ValueError(f"namespace has blocks of {namespace.block_size} tokens, this cache {self.block_size}")
        if self.fingerprint not in (None, namespace.fingerprint):
            raise ValueError(f"namespace is of weights {namespace.fingerprint!r}, this cache of {self.fingerprint!r}")
        split = TokenBlocks(self.block_size, tokens)
        if not len(split):
            raise ValueError("an empty prompt has nothing to cache")
        return split

    def _below_last(self, tokens: TokenBlocks) -> list[bytes]:
        """The full blocks that leave at least the last token to be computed."""
        return tokens.full[: (len(tokens) - 1) // self.block_size]

    def _usable(self, path: list[PrefixBlock]) -> int:
        """The longest part of `path`, in blocks, that has its state too."""
        usable = len(path)
        while self.state_blocks and usable and path[usable - 1].snapshot is None:
            usable -= 1
        return usable

    # ---- a request's life

    def allocate(self, namespace: Namespace, tokens: Iterable[int], extra_tokens: int = 0) -> Allocation:
        """Hold the longest usable prefix of `tokens` and take blocks for the rest and for `extra_tokens` to come.

        A hit ends on the block grid below the last token, so at least one token is computed. Raises OutOfBlocks, and
        ValueError for an empty prompt, a token that is none, or a namespace that this cache does not serve.
        """
        split = self._split(namespace, tokens)
        path = self.tree.find(namespace, self._below_last(split))
        branch_tokens = len(path) * self.block_size
        del path[self._usable(path) :]
        snapshot = path[-1].snapshot if path else None
        return self._open(namespace, split, path, snapshot, branch_tokens, extra_tokens)[0]

    def _open(
        self,
        namespace: Namespace,
        tokens: TokenBlocks,
        path: list[PrefixBlock],
        snapshot: Snapshot | None,
        branch_tokens: int,
        extra_tokens: int,
        live_blocks: int = 0,
    ) -> tuple[Allocation, list[int]]:
        """Hold `path` and `snapshot` and take all other blocks at once. Returns the blocks of live state apart."""
        account, root = self.tree.account(namespace), self.tree.root(namespace)
        cached = len(path) * self.block_size
        table = [block.block_id for block in path]
        alloc = Allocation(namespace, tokens, account, root, path, snapshot, table, cached, branch_tokens, cached)
        account.pin(alloc.deepest)
        if snapshot:
            account.pin(snapshot)
        pages = self._blocks_for(len(tokens) + extra_tokens) - len(path)
        try:
            taken = self.tree.take(account, pages + live_blocks)
        except OutOfBlocks:
            self._unpin(alloc, None)
            raise
        table += taken[:pages]
        self.allocations.add(alloc)
        return alloc, taken[pages:]

    def extend(self, alloc: Allocation, tokens: Iterable[int]) -> list[int]:
        """Add decoded tokens. Returns the blocks taken for them, already in the block table. Raises OutOfBlocks."""
        self._check_open(alloc)
        new = as_u32(tokens)
        taken = self.tree.take(alloc.account, self._blocks_for(alloc.num_tokens + len(new)) - len(alloc.block_table))
        alloc.block_table += taken
        alloc.tokens.extend(new)
        return taken

    def commit(self, alloc: Allocation, num_tokens: int) -> list[int]:
        """The KV of the first `num_tokens` tokens is written: publish the full blocks among them.

        A block that another request published first is adopted and our copy given back: the returned positions of the
        block table now name other blocks, of the same content.
        """
        self._check_open(alloc)
        if alloc.writers:
            raise ValueError("a transfer may still write to these blocks: commit when it has settled")
        if not alloc.committed_tokens <= num_tokens <= alloc.num_tokens:
            raise ValueError(
                f"commit of {num_tokens} tokens, with {alloc.committed_tokens} to {alloc.num_tokens} possible"
            )
        alloc.committed_tokens = num_tokens
        alloc.publishes &= self.fingerprint in (None, alloc.namespace.fingerprint)
        adopted: list[int] = []
        parent, path, full = alloc.deepest, alloc.path, alloc.tokens.full
        for position in range(len(path), num_tokens // self.block_size if alloc.publishes else 0):
            block = parent.children.get(full[position])
            if block is None:
                block = self.tree.add_block(parent, alloc.block_table[position], full[position])
            else:
                self._adopt(alloc, position, block)
                adopted.append(position)
            path.append(block)
            parent = block
        return adopted

    def _adopt(self, alloc: Allocation, position: int, block: PrefixBlock) -> None:
        """Use the block that another request published first. Ours goes back, once no stream reads it; the pin moves on
        as in `add_block`.
        """
        alloc.account.pin(block)
        alloc.account.unpin(alloc.deepest, None)
        if alloc.stream:
            alloc.stream.tail_blocks += (alloc.block_table[position],)
        else:
            self.tree.give_back(alloc.account, (alloc.block_table[position],))
        alloc.block_table[position] = block.block_id

    def free(self, alloc: Allocation) -> None:
        """The request ends: what it published stays cached, the rest is free. A second call raises ValueError.

        Blocks that a transfer still reads or writes are kept until it is over.
        """
        self._check_open(alloc)
        alloc.freed = True
        for ticket in alloc.reserved:
            self.tree.give_back(alloc.account, ticket.block_ids)
        alloc.reserved.clear()
        if not alloc.has_movers:
            self._release(alloc)

    # ---- transfers (what ends them is in `transfers`)

    def begin_transfer(
        self, alloc: Allocation, num_tokens: int, live_blocks: int, lease_end_s: float = math.inf
    ) -> Transfer:
        """Send the first `num_tokens` of `alloc`, and `live_blocks` blocks of live state: see TransferLedger.send.

        lease_end_s: on the clock that the caller gives `transfers.expire`.
        """
        return self.transfers.send(alloc, num_tokens, live_blocks, lease_end_s)

    def begin_stream(self, alloc: Allocation, live_blocks: int, lease_end_s: float = math.inf) -> Transfer:
        """Send `alloc` where it lies, from before its KV is written: see TransferLedger.stream."""
        return self.transfers.stream(alloc, live_blocks, lease_end_s)

    def open_receive(
        self,
        namespace: Namespace,
        tokens: Iterable[int],
        live_blocks: int,
        extra_tokens: int = 0,
        lease_end_s: float = math.inf,
    ) -> Transfer:
        """Room for a prefix that arrives with its live state. Its request is `transfer.alloc`; commit it after the ack.

        All KV that matches is held, to the last token: alloc.cached_tokens need not be sent. Raises as `allocate`.
        """
        split = self._split(namespace, tokens)
        path = self.tree.find(namespace, split.full)
        matched = len(path) * self.block_size
        alloc, live = self._open(namespace, split, path, None, matched, extra_tokens, live_blocks)
        return self.transfers.receive(alloc, live, lease_end_s)

    # ---- snapshots

    def reserve_checkpoint(self, alloc: Allocation, num_tokens: int) -> Checkpoint | None:
        """Blocks for the state after `num_tokens`, a block end. None when there is no room, no need or no use.

        `num_tokens` may lie ahead of what is committed; publishing then waits for the commit.
        """
        self._check_open(alloc)
        if num_tokens % self.block_size or not 0 < num_tokens <= alloc.num_tokens:
            raise ValueError(f"a snapshot ends on a block of {self.block_size} within the tokens, not at {num_tokens}")
        depth = num_tokens // self.block_size
        published = depth <= len(alloc.path)
        if not self.state_blocks or (alloc.path[depth - 1].snapshot if published else not alloc.publishes):
            return None
        try:
            ticket = Checkpoint(alloc, num_tokens, tuple(self.tree.take(alloc.account, self.state_blocks)))
        except OutOfBlocks:
            return None
        alloc.reserved.append(ticket)
        return ticket

    def publish_checkpoint(self, ticket: Checkpoint) -> bool:
        """The reserved blocks are written: show them.

        False, and the blocks are free, if another snapshot came first or the block was never published. Raises
        ValueError before the commit of its tokens, after `free` and the second time.
        """
        alloc, depth = ticket.alloc, ticket.num_tokens // self.block_size
        self._check_ticket(ticket)
        if ticket.num_tokens > alloc.committed_tokens:
            raise ValueError(f"the KV of {ticket.num_tokens} tokens is not committed, only {alloc.committed_tokens}")
        alloc.reserved.remove(ticket)
        block = alloc.path[depth - 1] if depth <= len(alloc.path) else None
        if block is None or block.snapshot is not None:
            self.tree.give_back(alloc.account, ticket.block_ids)
            return False
        self.tree.add_snapshot(alloc.account, block, ticket.block_ids)
        return True

    def cancel_checkpoint(self, ticket: Checkpoint) -> None:
        """Give the reserved blocks back unused. Raises ValueError after `free` and the second time."""
        self._check_ticket(ticket)
        ticket.alloc.reserved.remove(ticket)
        self.tree.give_back(ticket.alloc.account, ticket.block_ids)

    # ---- the whole cache

    def reset(self, fingerprint: str) -> None:
        """The weights changed: drop all that nobody holds, and serve and publish under the new fingerprint only.

        Requests in flight keep what they hold and run on; once released it is never found, and leaves by age.
        """
        self.fingerprint = fingerprint
        self.tree.evict_all()

    def check_invariants(self) -> None:
        """Recount everything. Raises AssertionError that names what does not add up."""
        check_invariants(self)

    # ---- helpers

    def _release(self, alloc: Allocation) -> None:
        assert alloc in self.allocations, "a request is released twice"
        self.allocations.remove(alloc)
        self.tree.give_back(alloc.account, alloc.private_blocks)
        self.tree.releases += 1
        self._unpin(alloc, self.tree.releases)

    def _unpin(self, alloc: Allocation, now: int | None) -> None:
        if alloc.snapshot:
            alloc.account.unpin(alloc.snapshot, now)
        alloc.account.unpin(alloc.deepest, now)
        self.tree.forget_if_empty(alloc.root)

    def _check_ticket(self, ticket: Checkpoint) -> None:
        self._check_open(ticket.alloc)
        if ticket not in ticket.alloc.reserved:
            raise ValueError("this checkpoint was published or cancelled already")

    def _check_open(self, alloc: Allocation) -> None:
        if alloc.freed:
            raise ValueError("this allocation was freed")

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
