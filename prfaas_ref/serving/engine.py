"""A model, the pool that holds its caches, and one lock: what both roles of a worker compute with.

    begin     hold the longest cached prefix of a prompt and the blocks for the rest; the state to continue from
    prefill   compute the rest, publish its full blocks and the snapshots worth keeping
    publish   the same for blocks that decode has filled

Knows nothing of sockets, roles or clusters. The pool's calls take the lock; computing does not, so a hand-off may land
while a step runs.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.blocks import BlockPool
from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.pool import HybridCachePool
from prfaas_ref.cache.report import CacheReporter, WorkerName
from prfaas_ref.cache.snapshot_policy import SnapshotPolicy
from prfaas_ref.errors import UserError
from prfaas_ref.model.generation import PIECE, greedy, prefill
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.state import HybridState
from prfaas_ref.serving.state_bytes import StateBytes


@dataclass(frozen=True)
class Prefilled:
    """A prompt, computed: how much of it was cached, the logits after its last token, and the token they give."""

    cached_tokens: int
    logits: Tensor
    token: int


class Engine:
    """fingerprint: the digest that names what may be reused (see model.fingerprint)."""

    def __init__(self, model: HybridModel, fingerprint: str, cache_bytes: int) -> None:
        self.model, config = model, model.config
        self.lock, self.policy = threading.Lock(), SnapshotPolicy()
        self.namespace = Namespace(fingerprint, config.grid.block)
        self.snapshot = StateBytes.after(0, config, model.dtype)
        page_shape = (len(config.full_layers), config.grid.block, config.page_width)
        probe = BlockPool(0, *page_shape, model.dtype)
        n_blocks, state_blocks = cache_bytes // probe.block_bytes, probe.blocks_for(self.snapshot.n_bytes)
        if n_blocks < 2 * state_blocks:
            raise UserError(f"a cache of {cache_bytes} bytes holds no request; raise --cache-mb")
        try:
            blocks = BlockPool(n_blocks, *page_shape, model.dtype)
        except RuntimeError as error:
            raise UserError(f"a cache of {cache_bytes} bytes cannot be had; lower --cache-mb") from error
        self.reporter = CacheReporter(WorkerName("", ""), 0, has_state=state_blocks > 0)  # the front end names it
        index = HybridCacheIndex(n_blocks, config.grid.block, state_blocks, listener=self.reporter)
        self.pool = HybridCachePool(index, blocks, self.snapshot.n_bytes)

    def begin(self, tokens: list[int], extra_tokens: int = 0) -> tuple[Allocation, HybridState]:
        """Hold the prompt's longest cached prefix and room for the rest and for `extra_tokens` more; the state to go on
        from. The caller frees the allocation. Raises OutOfBlocks.
        """
        with self.lock:
            alloc = self.pool.allocate(self.namespace, tokens, extra_tokens)
            cached = self.pool.restore(alloc)
        state = self.model.new_state() if cached is None else self.snapshot.unpack(cached, self.model)
        state.positions, state.tables = [alloc.cached_tokens], [alloc.block_table]
        return alloc, state

    def prefill(
        self,
        tokens: list[int],
        alloc: Allocation,
        state: HybridState,
        on_cell: Callable[[int, int], None] | None = None,
    ) -> Prefilled:
        """Compute the rest of a prompt that `begin` has opened, and publish it.

        The policy says where snapshots are kept: at the deepest block end that a repeat can start from, at the prompt's
        own last one, and where other prompts branched off. on_cell(layer, position): see `HybridModel.forward`; raising
        there ends the computation. Raises FloatingPointError when the logits are not finite. Nothing is published then.
        """
        n_tokens = len(tokens)
        block = self.model.config.grid.block
        keep = self.policy.in_prefill(block, n_tokens, alloc.cached_tokens, alloc.branch_tokens) if state.layers else []
        parts: dict[int, list[Tensor]] = {position: [] for position in keep}

        def keep_parts(layer: int, position: int) -> None:
            if position in parts and layer in state.layers:
                parts[position].append(self.snapshot.pack(layer, state.layers[layer]))
            if on_cell:
                on_cell(layer, position)

        cuts, new = [*keep, *range(0, n_tokens, PIECE)], tokens[alloc.cached_tokens :]
        with torch.inference_mode():
            logits = prefill(self.model, new, state, self.pool.blocks.pages, cuts=cuts, on_cell=keep_parts)
        token = greedy(logits)
        self.publish(alloc, n_tokens, {p: torch.cat(layers) for p, layers in parts.items()})
        return Prefilled(alloc.cached_tokens, logits, token)

    def publish(self, alloc: Allocation, n_tokens: int, snapshots: dict[int, Tensor]) -> None:
        """The first n_tokens are written: publish their full blocks, and states by the position they are of."""
        with self.lock:
            self.pool.index.commit(alloc, n_tokens)
            for position, state in sorted(snapshots.items()):
                self.pool.checkpoint(alloc, position, state)

    def free(self, alloc: Allocation) -> None:
        with self.lock:
            self.pool.index.free(alloc)
