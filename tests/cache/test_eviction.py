"""Who goes first, against a list that is searched from end to end."""

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.entries import Leaf, PrefixBlock, Snapshot
from prfaas_ref.cache.eviction import FlopAware
from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace

NS = Namespace("weights", 1)
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


class Log:
    """A listener that keeps the order of what went."""

    def __init__(self) -> None:
        self.gone: list[Leaf] = []

    def stored(self, entry: Leaf) -> None: ...

    def removed(self, entry: Leaf) -> None:
        self.gone.append(entry)


Name = tuple[str, tuple[int, ...]]  # kind and the tokens up to there


def name(entry: Leaf) -> Name:
    tokens: list[int] = []
    node = entry.parent if isinstance(entry, Snapshot) else entry
    while isinstance(node, PrefixBlock):
        tokens.insert(0, int.from_bytes(node.tokens, "little"))
        node = node.parent
    return ("state" if isinstance(entry, Snapshot) else "kv"), tuple(tokens)


def leaves(cached: Iterable[Name]) -> set[Name]:
    """What nothing hangs on: no longer block, and no state at the same place."""
    inner = {("kv", tokens if kind == "state" else tokens[:-1]) for kind, tokens in cached}
    return set(cached) - inner


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=25))
def test_the_least_recently_used_leaf_goes_first(requests: list[tuple[list[int], bool]]) -> None:
    log, clock = Log(), count(1)
    index = HybridCacheIndex(None, 1, 1, listener=log)
    last_use: dict[Name, int] = {}
    for tokens, with_state in requests:
        alloc = index.allocate(NS, tokens)
        index.commit(alloc, len(tokens))
        ticket = index.reserve_checkpoint(alloc, len(tokens)) if with_state else None
        if ticket:
            index.publish_checkpoint(ticket)
            last_use["state", tuple(tokens)] = 0 if not last_use else max(last_use.values())
        now = next(clock)
        last_use |= {("kv", tuple(tokens[:end])): now for end in range(1, len(tokens) + 1)}
        if alloc.cached_tokens:
            last_use["state", tuple(tokens[: alloc.cached_tokens])] = now
        index.free(alloc)
    index.tree.evict_all()
    for gone in map(name, log.gone):
        candidates = leaves(last_use)
        assert gone in candidates and last_use[gone] == min(last_use[leaf] for leaf in candidates)
        del last_use[gone]
    assert not last_use


def fill(index: HybridCacheIndex, tokens: range, at: int) -> None:
    alloc = index.allocate(NS, tokens)
    index.commit(alloc, len(tokens))
    ticket = index.reserve_checkpoint(alloc, at)
    assert ticket and index.publish_checkpoint(ticket)
    index.free(alloc)


@pytest.mark.parametrize(("alpha", "survivor"), [(0.0, "short"), (1.0, "long")])
def test_a_flop_aware_score_keeps_long_prefixes_longer(alpha: float, survivor: str) -> None:
    log = Log()
    index = HybridCacheIndex(None, 1, 1, score=FlopAware(1, alpha), listener=log)
    fill(index, range(100, 140), 39)  # the older, and the longer
    fill(index, range(5), 4)
    index.tree._evict(index.tree.shared, 42)
    states = [name(entry)[1] for entry in log.gone if isinstance(entry, Snapshot)]
    assert (len(states[0]) == 39) == (survivor == "short")


def test_the_heap_has_at_most_one_place_for_each_entry() -> None:
    index = HybridCacheIndex(50, 1, 1)
    for start in range(7):
        fill(index, range(start, start + 5), 4)
    for turn in range(400):
        index.free(index.allocate(NS, range(turn % 7, turn % 7 + 5)))
    assert len(index.tree.shared.queued()) <= 50
    index.check_invariants()


def test_a_block_that_waits_and_loses_its_only_child_is_evicted_once() -> None:
    index = HybridCacheIndex(6, 1, 2, score=lambda leaf: not isinstance(leaf, Snapshot))
    index.free(_committed(index, [0]))  # the block waits as a leaf
    fill(index, range(1), 1)  # now its snapshot hangs on it, and goes before it
    for tokens in ([1] * 6, [2] * 6):
        index.free(_committed(index, tokens))
        index.check_invariants()


def _committed(index: HybridCacheIndex, tokens: list[int]) -> Allocation:
    alloc = index.allocate(NS, tokens)
    index.commit(alloc, len(tokens))
    return alloc
