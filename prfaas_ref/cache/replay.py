"""A trace of prompts through the real index, with nothing in the blocks: which share of the tokens would have been
cached.

Requests come one after the other; each is admitted, committed, leaves its snapshots and ends. What decode would append
is not in such traces, so answers are never hit. Knows nothing of files.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.index import HybridCacheIndex, OutOfBlocks
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.snapshot_policy import SnapshotPolicy
from prfaas_ref.request import Request


@dataclass
class ReplayCount:
    """What happened, in requests, tokens and snapshots."""

    requests: int = 0
    tokens: int = 0
    refused_requests: int = 0
    matched_tokens: int = 0  # KV was there
    hit_tokens: int = 0  # KV and state were there
    snapshots: int = 0
    refused_snapshots: int = 0


def prompt_of(request: Request, hash_block_tokens: int) -> Sequence[int]:
    """Tokens that agree where the trace's prefix hashes agree: each block's hash, once for each of its tokens."""
    if request.token_ids is not None:
        return request.token_ids
    prompt = array("I")
    for hash_id in request.hash_ids:
        prompt += array("I", (hash_id,)) * hash_block_tokens
    return prompt[: request.prompt_tokens]


def replay(
    prompts: Iterable[Sequence[int]], index: HybridCacheIndex, namespace: Namespace, policy: SnapshotPolicy
) -> ReplayCount:
    """Run all prompts through `index`. A prompt larger than the pool is refused and counted."""
    count = ReplayCount()
    for prompt in prompts:
        count.requests += 1
        count.tokens += len(prompt)
        try:
            alloc = index.allocate(namespace, prompt)
        except OutOfBlocks:
            count.refused_requests += 1
            continue
        count.matched_tokens += alloc.branch_tokens
        count.hit_tokens += alloc.cached_tokens
        index.commit(alloc, len(prompt))
        if index.state_blocks:
            _leave_snapshots(index, alloc, policy, count)
        index.free(alloc)
    return count


def _leave_snapshots(index: HybridCacheIndex, alloc: Allocation, policy: SnapshotPolicy, count: ReplayCount) -> None:
    for num_tokens in policy.in_prefill(index.block_size, alloc.num_tokens, alloc.cached_tokens, alloc.branch_tokens):
        ticket = index.reserve_checkpoint(alloc, num_tokens)
        if ticket:
            count.snapshots += index.publish_checkpoint(ticket)
        elif alloc.path[num_tokens // index.block_size - 1].snapshot is None:
            count.refused_snapshots += 1
