"""The index by small stories, most of them faults that other caches have shipped."""

import subprocess
import sys

import pytest

from prfaas_ref.cache.allocation import Allocation, PrefixMatch
from prfaas_ref.cache.index import HybridCacheIndex, OutOfBlocks
from prfaas_ref.cache.keys import Namespace

B = 4
NS = Namespace("weights", B)


def make(num_blocks: int | None = 100, state_blocks: int = 2, **options: object) -> HybridCacheIndex:
    return HybridCacheIndex(num_blocks, B, state_blocks, **options)  # type: ignore[arg-type]


def snapshot(index: HybridCacheIndex, alloc: Allocation, num_tokens: int) -> bool:
    ticket = index.reserve_checkpoint(alloc, num_tokens)
    return ticket is not None and index.publish_checkpoint(ticket)


def serve(index: HybridCacheIndex, tokens: list[int], *at: int, namespace: Namespace = NS) -> Allocation:
    """Run a request to its end, with snapshots at the given lengths."""
    alloc = index.allocate(namespace, tokens)
    index.commit(alloc, len(tokens))
    for num_tokens in at:
        assert snapshot(index, alloc, num_tokens)
    index.free(alloc)
    index.check_invariants()
    return alloc


def usable(index: HybridCacheIndex, tokens: list[int], namespace: Namespace = NS) -> int:
    return index.match_prefix(namespace, tokens).usable_tokens


@pytest.mark.parametrize(("extra", "hit"), [(-1, 8), (0, 8), (1, 12), (4, 12)])
def test_a_hit_is_a_block_multiple_below_the_last_token(extra: int, hit: int) -> None:
    index = make()
    serve(index, list(range(20)), 4, 8, 12)
    assert usable(index, list(range(12 + extra))) == hit


def test_kv_without_its_state_is_no_hit_but_the_branch_point() -> None:
    index = make()
    serve(index, list(range(12)))
    alloc = index.allocate(NS, list(range(13)))
    assert (alloc.cached_tokens, alloc.branch_tokens, alloc.snapshot_blocks) == (0, 12, ())
    assert index.match_prefix(NS, range(13)) == PrefixMatch(kv_tokens=12, usable_tokens=0)


def test_the_hit_is_the_longest_length_that_all_can_serve_not_the_least_of_their_hits() -> None:
    index = make()
    serve(index, list(range(16)), 4, 16)  # KV to 4 blocks, states at 1 and 4
    assert usable(index, list(range(17))) == 16
    other = make()
    serve(other, list(range(20)), 4, 20)  # states at 1 and 5, and a prompt that shares 4 blocks
    assert usable(other, [*range(16), 99, 99, 99, 99, 99]) == 4


def test_lengths_have_one_unit_whatever_a_state_takes() -> None:
    index = make(state_blocks=3)
    serve(index, list(range(24)), 24)
    alloc = index.allocate(NS, list(range(25)))
    assert alloc.cached_tokens == 24 and len(alloc.snapshot_blocks) == 3 and len(alloc.block_table) == 7


def test_a_small_prefix_hits_however_large_the_state_is() -> None:
    index = HybridCacheIndex(500, 64, 85)  # 85 blocks: the state of Kimi-Linear-48B beside its KV
    namespace = Namespace("weights", 64)
    serve(index, list(range(130)), 128, namespace=namespace)
    assert usable(index, [*range(130), 7], namespace) == 128


def test_a_second_turn_hits_prompt_and_answer() -> None:
    index = make()
    prompt, answer = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]
    alloc = index.allocate(NS, prompt)
    index.commit(alloc, len(prompt))
    for token in answer:
        index.extend(alloc, [token])
        index.commit(alloc, alloc.num_tokens)
        if alloc.num_tokens % B == 0:
            assert snapshot(index, alloc, alloc.num_tokens)
    index.free(alloc)
    assert usable(index, [*prompt, *answer, 12, 13]) == 8


def test_a_block_published_first_by_another_is_adopted() -> None:
    index = make()
    first, second = index.allocate(NS, range(9)), index.allocate(NS, range(9))
    own = list(second.block_table)
    assert index.commit(first, 9) == []
    free = index.tree.ids.num_free
    assert index.commit(second, 9) == [0, 1]
    assert second.block_table == [*first.block_table[:2], own[2]]
    assert index.tree.ids.num_free == free + 2
    index.check_invariants()


def test_a_snapshot_is_not_seen_before_it_is_published_and_only_one_is() -> None:
    index = make()
    first, second = index.allocate(NS, range(9)), index.allocate(NS, range(9))
    index.commit(first, 9)
    index.commit(second, 9)
    tickets = [index.reserve_checkpoint(alloc, 8) for alloc in (first, second)]
    assert usable(index, list(range(9))) == 0
    assert [ticket is not None and index.publish_checkpoint(ticket) for ticket in tickets] == [True, False]
    assert usable(index, list(range(9))) == 8
    assert index.reserve_checkpoint(first, 8) is None
    index.check_invariants()


def test_a_checkpoint_may_be_reserved_ahead_of_the_commit_but_not_published() -> None:
    index = make()
    alloc = index.allocate(NS, range(9))
    ticket = index.reserve_checkpoint(alloc, 8)
    assert ticket is not None
    with pytest.raises(ValueError, match="not committed"):
        index.publish_checkpoint(ticket)
    index.commit(alloc, 8)
    assert index.publish_checkpoint(ticket)
    with pytest.raises(ValueError, match="already"):
        index.publish_checkpoint(ticket)


def test_reserved_blocks_come_back_when_cancelled_or_when_the_request_ends() -> None:
    index = make(10)
    alloc = index.allocate(NS, range(9))
    ticket = index.reserve_checkpoint(alloc, 4)
    assert ticket is not None and index.reserve_checkpoint(alloc, 8) is not None
    index.cancel_checkpoint(ticket)
    assert index.tree.ids.num_free == 10 - 3 - 2
    index.free(alloc)
    assert index.tree.ids.num_free == 10
    with pytest.raises(ValueError, match="freed"):
        index.publish_checkpoint(ticket)


def test_a_checkpoint_without_room_is_none() -> None:
    index = make(4)
    alloc = index.allocate(NS, range(9))
    assert index.reserve_checkpoint(alloc, 8) is None
    index.check_invariants()


@pytest.mark.parametrize("num_tokens", [0, 3, 12])
def test_a_snapshot_stands_at_a_block_end_within_the_tokens(num_tokens: int) -> None:
    index = make()
    alloc = index.allocate(NS, range(9))
    with pytest.raises(ValueError, match="a snapshot ends on a block"):
        index.reserve_checkpoint(alloc, num_tokens)


def test_refused_means_nothing_happened() -> None:
    index = make(6)
    serve(index, list(range(8)), 8)  # 2 blocks and a snapshot of 2
    held = index.allocate(NS, [50, 51])
    with pytest.raises(OutOfBlocks):
        index.allocate(NS, [*range(8), *range(60, 76)])  # hits 8, wants 4 more, has 1
    index.check_invariants()
    assert usable(index, list(range(9))) == 8 and index.tree.evictions == 0
    with pytest.raises(OutOfBlocks):
        index.extend(held, range(100))
    assert held.num_tokens == 2 and len(held.block_table) == 1


def test_blocks_beyond_the_need_are_given_back_to_the_last() -> None:
    index = make(20)
    serve(index, list(range(12)), 12)
    alloc = index.allocate(NS, range(13), extra_tokens=20)
    assert len(alloc.block_table) == 9
    index.free(alloc)
    index.check_invariants()
    assert index.tree.ids.num_free + index.tree.num_evictable == 20


def test_a_recycled_block_is_not_found_under_its_old_name() -> None:
    index = make(4)
    serve(index, list(range(8)), 8)
    serve(index, list(range(100, 114)))
    assert index.match_prefix(NS, range(9)) == PrefixMatch(0, 0)


def test_abort_at_any_time_leaks_nothing() -> None:
    index = make(30)
    serve(index, list(range(12)), 8)
    for written in (8, 9, 13):
        alloc = index.allocate(NS, [*range(12), written])
        index.commit(alloc, written)
        index.free(alloc)
        index.check_invariants()
    assert index.tree.ids.num_free + index.tree.num_evictable == 30
    with pytest.raises(ValueError, match="freed"):
        index.free(alloc)


def test_namespaces_never_share() -> None:
    index = make()
    serve(index, list(range(9)), 8)
    for other in (Namespace("other weights", B), Namespace("weights", B, "a"), Namespace("weights", B, "", "a")):
        assert index.match_prefix(other, range(9)) == PrefixMatch(0, 0)
    with pytest.raises(ValueError, match="blocks of 8"):
        index.allocate(Namespace("weights", 8), range(9))
    with pytest.raises(ValueError, match="empty prompt"):
        index.allocate(NS, [])


def test_digests_may_all_be_equal_and_hits_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prfaas_ref.cache.tree.next_key", lambda *_: b"same")
    index = make()
    alloc = index.allocate(NS, [1] * 9)
    index.commit(alloc, 9)
    assert index.match_prefix(NS, [1] * 9).kv_tokens == 8
    assert index.match_prefix(NS, [2] * 9).kv_tokens == 0
    assert index.match_prefix(Namespace("weights", B, "b"), [1] * 9).kv_tokens == 0


def test_new_weights_empty_the_cache_and_old_requests_run_on() -> None:
    index = make(fingerprint="weights")
    serve(index, list(range(9)), 8)
    running = index.allocate(NS, range(50, 59))
    index.commit(running, 4)
    index.reset("new weights")
    with pytest.raises(ValueError, match="of weights"):
        index.allocate(NS, range(9))
    index.commit(running, 9)
    assert len(running.path) == 1  # nothing more is published
    new = Namespace("new weights", B)
    assert index.match_prefix(new, range(9)) == PrefixMatch(0, 0)
    index.free(running)
    index.check_invariants()
    serve(index, list(range(9)), 8, namespace=new)
    assert usable(index, list(range(9)), new) == 8


def test_a_tenant_at_its_quota_evicts_its_own() -> None:
    index = make(40, quotas={"small": 6})
    small = Namespace("weights", B, "small")
    serve(index, list(range(9)), 8)
    for start in range(0, 400, 100):
        serve(index, list(range(start, start + 9)), 8 if start else 4, namespace=small)
    assert usable(index, list(range(9))) == 8  # the others lost nothing
    assert index.tree.tenants["small"].held_blocks <= 6
    with pytest.raises(OutOfBlocks, match="quota"):
        index.allocate(small, range(29))


def test_a_model_without_state_hits_on_kv_alone() -> None:
    index = make(state_blocks=0)
    serve(index, list(range(12)))
    alloc = index.allocate(NS, range(13))
    assert alloc.cached_tokens == 12 and index.reserve_checkpoint(alloc, 12) is None


def test_a_pool_without_limit_never_refuses() -> None:
    index = make(None)
    for start in range(0, 1000, 10):
        serve(index, list(range(start, start + 9)), 8)
    assert index.tree.evictions == 0 and usable(index, list(range(9))) == 8


@pytest.mark.parametrize("sizes", [(0, 4, 1), (4, 0, 1), (4, 4, -1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="block"):
        HybridCacheIndex(*sizes)


def test_commit_goes_forward_and_not_past_the_tokens() -> None:
    index = make()
    alloc = index.allocate(NS, range(9))
    index.commit(alloc, 5)
    for num_tokens in (4, 10):
        with pytest.raises(ValueError, match="commit of"):
            index.commit(alloc, num_tokens)


def test_the_index_is_free_of_torch() -> None:
    program = "import sys, prfaas_ref.cache.index; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
