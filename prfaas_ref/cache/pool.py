"""The hybrid pool of a worker: the index says which blocks, the pool holds their bytes.

Each method here is an index call together with the bytes that belong to it: blocks are cleared when they are allocated,
a snapshot is a copy made before it is shown, a hand-off's partial page is copied into its transfer blocks. Not thread
safe: the owner holds one lock around each call. Paper section 6.
"""

import math
from collections.abc import Iterable

import torch

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.blocks import BlockPool
from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.transfer import Transfer


class HybridCachePool:
    """`index` and `blocks` of one worker, and the size of the fixed state that a snapshot holds.

    snapshot_bytes: all fixed-size state of one request at a block end. The index must reserve as many blocks for it.
    """

    def __init__(self, index: HybridCacheIndex, blocks: BlockPool, snapshot_bytes: int) -> None:
        if index.state_blocks != blocks.blocks_for(snapshot_bytes):
            raise ValueError(f"a state of {snapshot_bytes} bytes takes {blocks.blocks_for(snapshot_bytes)} blocks")
        self.index = index
        self.blocks = blocks
        self.snapshot_bytes = snapshot_bytes

    def allocate(self, namespace: Namespace, tokens: Iterable[int], extra_tokens: int = 0) -> Allocation:
        """`index.allocate`, with the new blocks cleared."""
        alloc = self.index.allocate(namespace, tokens, extra_tokens)
        self.blocks.zero(alloc.private_blocks)
        return alloc

    def extend(self, alloc: Allocation, tokens: Iterable[int]) -> list[int]:
        """`index.extend`, with the new blocks cleared."""
        taken = self.index.extend(alloc, tokens)
        if taken:
            self.blocks.zero(taken)
        return taken

    def restore(self, alloc: Allocation) -> torch.Tensor | None:
        """A copy of the state at alloc.cached_tokens, uint8 [snapshot_bytes]; None when computing starts from none."""
        return self.blocks.read(alloc.snapshot_blocks, self.snapshot_bytes) if alloc.snapshot else None

    def checkpoint(self, alloc: Allocation, num_tokens: int, state: torch.Tensor) -> bool:
        """Copy `state` (snapshot_bytes, any dtype), the one after exactly `num_tokens` committed tokens, and publish
        it.

        Best effort: False when there is no room or such a snapshot exists.
        """
        if state.nbytes != self.snapshot_bytes:
            raise ValueError(f"the state has {state.nbytes} bytes, a snapshot {self.snapshot_bytes}")
        ticket = self.index.reserve_checkpoint(alloc, num_tokens)
        if ticket is None:
            return False
        self.blocks.write(ticket.block_ids, state)
        return self.index.publish_checkpoint(ticket)

    def begin_transfer(
        self, alloc: Allocation, num_tokens: int, live_state: torch.Tensor, lease_end_s: float = math.inf
    ) -> Transfer:
        """`index.begin_transfer`, with the unpublished KV and `live_state` (bytes, any length) copied into its own
        blocks.
        """
        live_blocks = self.blocks.blocks_for(live_state.nbytes)
        transfer = self.index.begin_transfer(alloc, num_tokens, live_blocks, lease_end_s)
        first = len(transfer.kv_blocks)
        self.blocks.copy(alloc.block_table[first : first + len(transfer.tail_blocks)], transfer.tail_blocks)
        self.blocks.write(transfer.live_blocks, live_state)
        return transfer

    def begin_stream(self, alloc: Allocation, live_state_bytes: int, lease_end_s: float = math.inf) -> Transfer:
        """`index.begin_stream`; the caller fills the live state through `write_live`, layer by layer."""
        return self.index.begin_stream(alloc, self.blocks.blocks_for(live_state_bytes), lease_end_s)

    def write_live(self, transfer: Transfer, start: int, data: torch.Tensor) -> None:
        """Put bytes `data` (uint8) at `start` of a transfer's live state."""
        for view in self.blocks.segments(transfer.live_blocks, start, start + data.numel()):
            view[:] = data[: len(view)].numpy().data
            data = data[len(view) :]

    def open_receive(
        self,
        namespace: Namespace,
        tokens: Iterable[int],
        live_state_bytes: int,
        extra_tokens: int = 0,
        lease_end_s: float = math.inf,
    ) -> Transfer:
        """`index.open_receive`, with all blocks that will be written cleared."""
        live_blocks = self.blocks.blocks_for(live_state_bytes)
        transfer = self.index.open_receive(namespace, tokens, live_blocks, extra_tokens, lease_end_s)
        assert transfer.alloc is not None
        self.blocks.zero([*transfer.alloc.private_blocks, *transfer.live_blocks])
        return transfer

    def page_views(self, transfer: Transfer, layer: int, first: int, last: int, now_s: float) -> list[memoryview]:
        """One layer's KV rows of tokens [first, last) of a transfer, at either end. Raises LeaseExpired when it is
        over.
        """
        transfer.require_lease(now_s)
        table = transfer.alloc.block_table if transfer.alloc else (*transfer.kv_blocks, *transfer.tail_blocks)
        return self.blocks.page_segments(table, layer, first, last)

    def live_views(self, transfer: Transfer, start: int, stop: int, now_s: float) -> list[memoryview]:
        """Bytes start..stop of a transfer's live state, at either end. Raises LeaseExpired when it is over."""
        transfer.require_lease(now_s)
        return self.blocks.segments(transfer.live_blocks, start, stop)
