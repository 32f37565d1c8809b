"""Transfer-cache blocks: what a hand-off in flight holds, and when it may let go.

A sent prefix is pinned where it lies; the part that is no published block (the partial page) and the live state get
blocks of their own, of any length, never keyed. On the receiving side the pages land in the request's own blocks, so
the request cannot give them back while a write may still come. Whatever ends a transfer, its blocks are freed exactly
once:

             ack: the peer applied it
    ACTIVE ----------------------------> DONE   freed here
      |  abort, or the lease ends                 ^
      +-----------> ABORTED / EXPIRED ------------+  settle: the mover says that no read or write can land any more

Late and second calls return False and change nothing. Time is an argument. Paper section 6, transfer-cache blocks.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.entries import PrefixBlock, Root
from prfaas_ref.cache.eviction import Account
from prfaas_ref.cache.tree import CacheTree, OutOfBlocks


class LeaseExpired(RuntimeError):
    """The transfer is over: its blocks may belong to someone else by now, so nothing is read or written through it."""


class TransferState(enum.Enum):
    ACTIVE = "active"
    ABORTED = "aborted"
    EXPIRED = "expired"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Transfer:
    """One hand-off at one of its ends.

    kv_blocks: published blocks, pinned and only read. tail_blocks: copies (at the sender) of the unpublished rest of
    the KV; for a stream, blocks that its request has given up. live_blocks: the live state. alloc: the request whose
    own blocks the pages land in (a receive) or are read from (a stream).
    """

    account: Account
    root: Root
    pinned: Root | PrefixBlock | None
    kv_blocks: tuple[int, ...]
    tail_blocks: tuple[int, ...]
    live_blocks: tuple[int, ...]
    alloc: Allocation | None
    lease_end_s: float
    state: TransferState = TransferState.ACTIVE
    mover_is_done: bool = False

    @property
    def own_blocks(self) -> tuple[int, ...]:
        return self.tail_blocks + self.live_blocks

    @property
    def is_active(self) -> bool:
        """Whether its bytes still count: it was neither stopped nor done."""
        return self.state is TransferState.ACTIVE

    def require_lease(self, now_s: float) -> None:
        """Call before each read or write through this transfer. Raises LeaseExpired, never serves recycled bytes."""
        if self.state is not TransferState.ACTIVE or now_s >= self.lease_end_s:
            raise LeaseExpired(f"transfer {self.state.value}, lease until {self.lease_end_s:g} s, now {now_s:g} s")


class TransferLedger:
    """Every transfer in flight at this pool. `release` ends an allocation whose request was freed meanwhile."""

    def __init__(self, tree: CacheTree, block_size: int, release: Callable[[Allocation], None]) -> None:
        self.tree = tree
        self.block_size = block_size
        self.release = release
        self.in_flight: set[Transfer] = set()

    def send(self, alloc: Allocation, num_tokens: int, live_blocks: int, lease_end_s: float) -> Transfer:
        """Pin the published blocks of the first `num_tokens` tokens, take blocks for the rest and the live state.

        The caller copies the unpublished KV, alloc.block_table[len(kv_blocks):], into tail_blocks; the request may then
        end while the transfer goes on. Raises OutOfBlocks, and ValueError when so many tokens are not committed.
        """
        if alloc.freed or not 0 < num_tokens <= alloc.committed_tokens:
            raise ValueError(f"only committed tokens of an open request can be sent, not {num_tokens}")
        full = min(len(alloc.path), num_tokens // self.block_size)
        tail = -(-num_tokens // self.block_size) - full
        pinned = alloc.path[full - 1] if full else alloc.root
        alloc.account.pin(pinned)
        try:
            own = self.tree.take(alloc.account, tail + live_blocks)
        except OutOfBlocks:
            alloc.account.unpin(pinned, None)
            raise
        kv = tuple(alloc.block_table[:full])
        transfer = Transfer(
            alloc.account, alloc.root, pinned, kv, tuple(own[:tail]), tuple(own[tail:]), None, lease_end_s
        )
        self.in_flight.add(transfer)
        return transfer

    def stream(self, alloc: Allocation, live_blocks: int, lease_end_s: float) -> Transfer:
        """Send a request's blocks where they lie, while it still computes them, and so many blocks of live state.

        Layer-wise pipelining: nothing is committed yet, so nothing is pinned apart from the request. It may commit (own
        copies that it gives up then stay until the end) and be freed while this goes on. Raises OutOfBlocks, and
        ValueError for a request that was freed or streams already.
        """
        if alloc.freed or alloc.stream:
            raise ValueError("one stream of an open request at a time")
        live = self.tree.take(alloc.account, live_blocks)
        alloc.stream = Transfer(alloc.account, alloc.root, None, (), (), tuple(live), alloc, lease_end_s)
        self.in_flight.add(alloc.stream)
        return alloc.stream

    def receive(self, alloc: Allocation, live_blocks: list[int], lease_end_s: float) -> Transfer:
        """Pages will land in the private blocks of `alloc` and live state in `live_blocks`, both taken already."""
        kv = tuple(alloc.block_table[: len(alloc.path)])
        transfer = Transfer(alloc.account, alloc.root, None, kv, (), tuple(live_blocks), alloc, lease_end_s)
        alloc.writers += 1
        self.in_flight.add(transfer)
        return transfer

    def ack(self, transfer: Transfer) -> bool:
        """The peer applied it (at the receiver: all landed, and the live state is copied out). Frees what it held."""
        if transfer.state is not TransferState.ACTIVE:
            return False
        self._finish(transfer)
        return True

    def abort(self, transfer: Transfer) -> bool:
        """Give it up. Its blocks stay until the mover has settled."""
        return self._stop(transfer, TransferState.ABORTED)

    def expire(self, now_s: float) -> list[Transfer]:
        """Stop every transfer whose lease has ended, and return them, so that the owner can stop their movers."""
        overdue = [transfer for transfer in self.in_flight if now_s >= transfer.lease_end_s]
        return [transfer for transfer in overdue if self._stop(transfer, TransferState.EXPIRED)]

    def settle(self, transfer: Transfer) -> bool:
        """The mover's word that none of its reads or writes can land any more. True if that freed the blocks."""
        transfer.mover_is_done = True
        if transfer.state not in (TransferState.ABORTED, TransferState.EXPIRED):
            return False
        self._finish(transfer)
        return True

    def _stop(self, transfer: Transfer, state: TransferState) -> bool:
        if transfer.state is not TransferState.ACTIVE:
            return False
        transfer.state = state
        if transfer.mover_is_done:
            self._finish(transfer)
        return True

    def _finish(self, transfer: Transfer) -> None:
        transfer.state = TransferState.DONE
        self.in_flight.remove(transfer)
        self.tree.give_back(transfer.account, transfer.own_blocks)
        if transfer.pinned:
            self.tree.unpin(transfer.account, transfer.pinned, transfer.root)
        if alloc := transfer.alloc:
            if alloc.stream is transfer:
                alloc.stream = None
            else:
                alloc.writers -= 1
            if alloc.freed and not alloc.has_movers:
                self.release(alloc)
