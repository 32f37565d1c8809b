"""The adapter of our own index: the shortest way to see how the protocol maps to a real manager."""

from types import ModuleType
from typing import Any

import prfaas_ref.cache.index as index_module
from prfaas_ref.cache.conformance.adapter import Admission, CacheAdapter, CacheConfig, Hold
from prfaas_ref.cache.keys import Namespace


class OurAdapter(CacheAdapter):
    """HybridCacheIndex under examination. `module` holds the index, ours or a mutant's."""

    has_transfers = True
    can_stream = True
    can_extend = True
    can_match = True
    has_quotas = True

    def __init__(self, config: CacheConfig, module: ModuleType = index_module) -> None:
        super().__init__(config)
        score = module.FlopAware(config.block_size, alpha=30.0) if config.favour_long else module.recency
        self.has_state = config.state_blocks > 0
        self.module = module
        self.index = module.HybridCacheIndex(
            config.num_blocks, config.block_size, config.state_blocks, quotas=dict(config.quotas), score=score
        )

    def namespace(self, tenant: str) -> Namespace:
        namespace: Namespace = self.module.Namespace("examined", self.config.block_size, tenant)
        return namespace

    def allocate(self, tenant: str, tokens: list[int]) -> Admission | None:
        try:
            alloc = self.index.allocate(self.namespace(tenant), tokens)
        except self.module.OutOfBlocks:
            return None
        return self._admission(alloc)

    def _admission(self, alloc: Any) -> Admission:
        return Admission(alloc, list(alloc.block_table), alloc.cached_tokens, alloc.snapshot_blocks)

    def commit(self, request: Any, num_tokens: int) -> list[int]:
        self.index.commit(request, num_tokens)
        return list(request.block_table)

    def free(self, request: Any) -> None:
        self.index.free(request)

    def num_reclaimable(self) -> int:
        return int(self.index.tree.ids.num_free + self.index.tree.num_evictable)

    def evict_all(self) -> None:
        self.index.tree.evict_all()

    def check(self) -> None:
        self.index.check_invariants()

    def extend(self, request: Any, tokens: list[int]) -> list[int] | None:
        try:
            self.index.extend(request, tokens)
        except self.module.OutOfBlocks:
            return None
        return list(request.block_table)

    def match(self, tenant: str, tokens: list[int]) -> int:
        return int(self.index.match_prefix(self.namespace(tenant), tokens).usable_tokens)

    def reserve_checkpoint(self, request: Any, num_tokens: int) -> Hold | None:
        ticket = self.index.reserve_checkpoint(request, num_tokens)
        return ticket and Hold(ticket, ticket.block_ids)

    def publish_checkpoint(self, handle: Any) -> bool:
        return bool(self.index.publish_checkpoint(handle))

    def send(self, request: Any, num_tokens: int, live_blocks: int, lease_end_s: float) -> Hold | None:
        try:
            transfer = self.index.begin_transfer(request, num_tokens, live_blocks, lease_end_s)
        except self.module.OutOfBlocks:
            return None
        return Hold(transfer, transfer.own_blocks, transfer.kv_blocks)

    def receive(
        self, tenant: str, tokens: list[int], live_blocks: int, lease_end_s: float
    ) -> tuple[Admission, Hold] | None:
        try:
            transfer = self.index.open_receive(self.namespace(tenant), tokens, live_blocks, 0, lease_end_s)
        except self.module.OutOfBlocks:
            return None
        return self._admission(transfer.alloc), Hold(transfer, transfer.live_blocks)

    def stream(self, request: Any, live_blocks: int, lease_end_s: float) -> Hold | None:
        try:
            transfer = self.index.begin_stream(request, live_blocks, lease_end_s)
        except self.module.OutOfBlocks:
            return None
        return Hold(transfer, transfer.live_blocks)

    def ack(self, handle: Any) -> bool:
        return bool(self.index.transfers.ack(handle))

    def abort(self, handle: Any) -> bool:
        return bool(self.index.transfers.abort(handle))

    def expire(self, now_s: float) -> list[Any]:
        return list(self.index.transfers.expire(now_s))

    def settle(self, handle: Any) -> bool:
        return bool(self.index.transfers.settle(handle))
