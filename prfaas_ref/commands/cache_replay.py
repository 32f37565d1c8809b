"""Replay a trace of prompts through the real hybrid pool, with empty blocks, and print what would have been cached.

The trace is Mooncake's JSON lines: `input_length`, and `hash_ids` with one prefix hash per 512 tokens. Two pools of the
same capacity see it: one as if the model had attention only, where KV alone is a hit, and the hybrid one, where a hit
also needs the state at exactly its end. What the second loses to the first is the price of fixed-size state; the
snapshot policy decides how much of it:

  last      a snapshot at the prompt's last block end (and at the last that a repeat can hit)
  branch    the same, and where the prompt left those before it (default)
  every:N   the same, and one at every N tokens

Without --capacity-gb nothing is ever evicted. Ratios are in tokens. Sizes are those of published models (bf16 KV, fp32
state): modelled, like the sequence of requests, which come one after the other; answers are not in such traces.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from prfaas_ref.cache.eviction import FlopAware, recency
from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.replay import ReplayCount, prompt_of, replay
from prfaas_ref.cache.snapshot_policy import SnapshotPolicy
from prfaas_ref.errors import UserError
from prfaas_ref.request import Request
from prfaas_ref.scheduler.paper_data import MODEL_BYTES
from prfaas_ref.scheduler.report import table
from prfaas_ref.scheduler.traces import HASH_BLOCK_TOKENS, read_trace
from prfaas_ref.units import G, M

MODELS = {name.lower().replace("kimi linear", "kimi-linear-48b"): size for name, size in MODEL_BYTES.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a Mooncake trace, JSON lines")
    parser.add_argument("--block", type=int, choices=(64, 512), default=512, help="tokens in a block (512)")
    parser.add_argument("--capacity-gb", type=float, metavar="F", help="decimal gigabytes of pool; default: no limit")
    parser.add_argument("--policy", default="branch", metavar="P", help="last, branch or every:N (branch)")
    parser.add_argument("--evict", choices=("lru", "flop"), default="lru", help="what goes first (lru)")
    parser.add_argument("--model", choices=MODELS, default="kimi-linear-48b", help="sizes (kimi-linear-48b)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    try:
        policy = SnapshotPolicy.parse(args.policy)
    except ValueError as error:
        raise UserError(f"--policy: {error}") from error
    if args.capacity_gb is not None and not 0 < args.capacity_gb < math.inf:
        raise UserError(f"--capacity-gb must be above 0, not {args.capacity_gb:g}")
    requests = read_trace(args.trace, "mooncake")
    if not requests:
        raise UserError(f"trace {args.trace} has no requests")
    if bare := sum(not request.hash_ids for request in requests):
        raise UserError(f"{bare} of {len(requests)} rows of {args.trace} have no hash_ids; a replay needs them in all")
    size = MODELS[args.model]
    block_bytes = args.block * size.bytes_per_token
    state_blocks = math.ceil(size.fixed_bytes / block_bytes)
    hybrid, attention = (make_pool(args, block_bytes, blocks) for blocks in (state_blocks, 0))
    namespace = Namespace(args.model, args.block)
    counts = [
        replay(prompts(requests, title, args.json), index, namespace, policy)
        for title, index in (("hybrid", hybrid), ("attention-only", attention))
    ]
    report = summary(*counts) | {"evictions": hybrid.tree.evictions, "attention_evictions": attention.tree.evictions}
    print(json.dumps(report) if args.json else table(("replay", "value"), list(report.items())))
    return 0


def make_pool(args: argparse.Namespace, block_bytes: float, state_blocks: int) -> HybridCacheIndex:
    """A pool of the wanted capacity. Raises UserError when not even one block fits."""
    num_blocks = None if args.capacity_gb is None else int(args.capacity_gb * G / block_bytes)
    if num_blocks == 0:
        raise UserError(f"--capacity-gb {args.capacity_gb:g} is less than one block of {block_bytes / M:.2f} MB")
    score = FlopAware(args.block) if args.evict == "flop" else recency
    return HybridCacheIndex(num_blocks, args.block, state_blocks, score=score)


def prompts(requests: list[Request], title: str, quiet: bool) -> Iterator[Sequence[int]]:
    for request in tqdm(requests, desc=title, unit="request", disable=quiet):
        yield prompt_of(request, HASH_BLOCK_TOKENS)


def summary(hybrid: ReplayCount, attention: ReplayCount) -> dict[str, float]:
    """Ratios in tokens. admission_loss: KV was there in the hybrid pool, and no snapshot to start from."""
    return {
        "requests": hybrid.requests,
        "tokens": hybrid.tokens,
        "attention_hit_ratio": attention.hit_tokens / hybrid.tokens,
        "hybrid_hit_ratio": hybrid.hit_tokens / hybrid.tokens,
        "admission_loss": (hybrid.matched_tokens - hybrid.hit_tokens) / hybrid.tokens,
        "snapshots": hybrid.snapshots,
        "refused_snapshots": hybrid.refused_snapshots,
        "refused_requests": hybrid.refused_requests,
    }
