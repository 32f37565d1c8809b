"""How fast the hybrid pool's index is, against the least that any prefix cache with sha256 keys must do: hash the
blocks.

10,000 requests: one of 256 shared prefixes of 256 to 2048 tokens (Zipf 1) and a suffix of 32 to 512 of its own, 32 in
flight, in a pool of 600,000 tokens, so that it evicts all the time. Each request is admitted, committed, leaves its
snapshots (policy branch) and is freed; namespace and tokens are compared on every hit. The ceiling packs the same
prompts and hashes the same chains of blocks with hashlib.sha256, and does nothing else; both are timed in turn in this
process, in seconds of CPU, and the medians compared, so a busy machine slows both. A hit here walks the tokens and
hashes nothing, which is why the ratio may come near one.

growth_ratio says what one request costs in a full pool of 1,000,000 blocks over one of 10,000 (--no-growth leaves it
out: it takes a minute and 1 GB), and metadata_bytes what one cached block of 64 tokens takes, tokens and key included.
"""

import argparse
import gc
import hashlib
import json
import random
import tracemalloc
from array import array
from collections import deque
from itertools import accumulate
from statistics import median
from time import process_time

from tqdm import tqdm

from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.snapshot_policy import SnapshotPolicy
from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.report import table

PREFIXES, IN_FLIGHT, POOL_TOKENS, VOCABULARY = 256, 32, 600_000, 150_000
POLICY = SnapshotPolicy()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="(10000)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="pairs of runs; medians are reported (3)")
    parser.add_argument(
        "--state-tokens", type=int, default=256, metavar="N", help="a snapshot's size in tokens of KV (256)"
    )
    parser.add_argument("--no-growth", action="store_true", help="leave out the pool of a million blocks")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    if args.requests < 1 or args.repeats < 1 or args.state_tokens < 0:
        raise UserError("--requests and --repeats must be at least 1, --state-tokens not negative")
    prompts = workload(args.requests)
    gc.freeze()  # the prompts are not the cache's: collections need not walk them
    by_block = {}
    for block in (16, 64):
        rounds = tqdm(range(args.repeats), desc=f"blocks of {block}", unit="round", disable=args.json)
        by_block[str(block)] = compare(prompts, block, args.state_tokens, [*rounds])
    report: dict[str, object] = {"block": by_block, "metadata_bytes": metadata_bytes()}
    if not args.no_growth:
        report["growth_ratio"] = growth_ratio(args.json)
    show(report, args.json)
    return 0


def workload(requests: int) -> list[list[int]]:
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(VOCABULARY), k=count)

    prefixes = [tokens(rng.randint(256, 2048)) for _ in range(PREFIXES)]
    zipf = list(accumulate(1 / rank for rank in range(1, PREFIXES + 1)))
    return [prefix + tokens(rng.randint(32, 512)) for prefix in rng.choices(prefixes, cum_weights=zipf, k=requests)]


def compare(prompts: list[list[int]], block: int, state_tokens: int, rounds: list[int]) -> dict[str, float]:
    """Medians of the index and the ceiling, run in turn, in prompt tokens per second of CPU."""
    total = sum(map(len, prompts))
    ceiling_s, index_s, hit = [], [], 0
    for _ in rounds:
        ceiling_s.append(time_ceiling(prompts, block))
        index = HybridCacheIndex(POOL_TOKENS // block, block, -(-state_tokens // block))
        seconds, hit = time_index(prompts, index)
        index_s.append(seconds)
    tokens_s, ceiling_tokens_s = total / median(index_s), total / median(ceiling_s)
    return {
        "tokens_s": tokens_s,
        "ceiling_tokens_s": ceiling_tokens_s,
        "ratio": tokens_s / ceiling_tokens_s,
        "hit_ratio": hit / total,
    }


def time_ceiling(prompts: list[list[int]], block: int) -> float:
    sha256, root, step = hashlib.sha256, Namespace("bench", block).root, 4 * block
    start = process_time()
    for prompt in prompts:
        packed, key = array("I", prompt).tobytes(), root
        for at in range(0, len(packed) - step + 1, step):
            key = sha256(key + packed[at : at + step]).digest()
    return process_time() - start


def time_index(prompts: list[list[int]], index: HybridCacheIndex) -> tuple[float, int]:
    """Seconds of CPU, and the tokens that were hit."""
    namespace = Namespace("bench", index.block_size)
    in_flight: deque = deque()
    hit = 0
    start = process_time()
    for prompt in prompts:
        if len(in_flight) == IN_FLIGHT:
            index.free(in_flight.popleft())
        alloc = index.allocate(namespace, prompt)
        index.commit(alloc, len(prompt))
        for point in POLICY.in_prefill(index.block_size, len(prompt), alloc.cached_tokens, alloc.branch_tokens):
            ticket = index.reserve_checkpoint(alloc, point)
            if ticket:
                index.publish_checkpoint(ticket)
        hit += alloc.cached_tokens
        in_flight.append(alloc)
    for alloc in in_flight:
        index.free(alloc)
    return process_time() - start, hit


def filled(num_blocks: int, block: int, chain: int, quiet: bool = True) -> HybridCacheIndex:
    """An index whose pool is full of cached blocks, in prompts of `chain` blocks that share nothing."""
    index = HybridCacheIndex(num_blocks, block, 1)
    namespace = Namespace("bench", block)
    for number in tqdm(range(num_blocks // chain), desc=f"filling {num_blocks} blocks", disable=quiet):
        alloc = index.allocate(namespace, range(number, number + chain * block))
        index.commit(alloc, chain * block)
        index.free(alloc)
    return index


def metadata_bytes() -> float:
    """What Python holds for one cached block of 64 tokens: entry, tokens, key and its place in the tree."""
    filled(1_000, 64, 20)
    gc.collect()
    tracemalloc.start()
    index = filled(20_000, 64, 20)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / index.tree.num_evictable


def growth_ratio(quiet: bool) -> float:
    """Cost of a request in a full pool of a million blocks over that in one of ten thousand, sliced and in turn."""
    small, large = filled(10_000, 16, 32), filled(1_000_000, 16, 32, quiet)
    prompts = [[10**6 + number + i for i in range(512)] for number in range(3_000)]
    cost: dict[int, list[float]] = {id(small): [], id(large): []}
    for first in range(0, len(prompts), 100):
        for index in (small, large):
            seconds, _ = time_index(prompts[first : first + 100], index)
            cost[id(index)].append(seconds)
    return median(cost[id(large)]) / median(cost[id(small)])


def show(report: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=1))
        return
    by_block = report.pop("block")
    assert isinstance(by_block, dict)
    rows = [(size, *(f"{value:,.3f}" for value in found.values())) for size, found in by_block.items()]
    print(table(("block", "tokens/s", "ceiling tokens/s", "ratio", "hit ratio"), rows))
    print(table(("cache", "value"), list(report.items())))
