"""Hand-offs: what they hold, when it is free again, and that nothing is freed twice or under a mover."""

import pytest

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.index import HybridCacheIndex, OutOfBlocks
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.transfer import LeaseExpired, Transfer

NS = Namespace("weights", 4)


@pytest.fixture
def index() -> HybridCacheIndex:
    return HybridCacheIndex(30, 4, 2)


def prefilled(index: HybridCacheIndex, num_tokens: int = 10) -> Allocation:
    alloc = index.allocate(NS, range(num_tokens))
    index.commit(alloc, num_tokens)
    return alloc


def free_after(index: HybridCacheIndex) -> int:
    index.check_invariants()
    return index.tree.ids.num_free


def test_a_sent_prefix_outlives_its_request(index: HybridCacheIndex) -> None:
    alloc = prefilled(index)
    transfer = index.begin_transfer(alloc, 10, live_blocks=3)
    assert transfer.kv_blocks == tuple(alloc.block_table[:2])
    assert (len(transfer.tail_blocks), len(transfer.live_blocks)) == (1, 3)
    index.free(alloc)
    index.tree.evict_all()
    assert free_after(index) == 30 - 2 - 4  # the two blocks are held, and nobody can evict them
    assert index.transfers.ack(transfer)
    assert free_after(index) == 28 and index.tree.num_evictable == 2


def test_only_committed_tokens_of_an_open_request_are_sent(index: HybridCacheIndex) -> None:
    alloc = index.allocate(NS, range(10))
    index.commit(alloc, 9)
    for num_tokens in (0, 10):
        with pytest.raises(ValueError, match="committed"):
            index.begin_transfer(alloc, num_tokens, 1)
    index.free(alloc)
    with pytest.raises(ValueError, match="open request"):
        index.begin_transfer(alloc, 9, 1)


def test_no_room_for_the_live_state_changes_nothing(index: HybridCacheIndex) -> None:
    alloc = prefilled(index)
    with pytest.raises(OutOfBlocks):
        index.begin_transfer(alloc, 10, live_blocks=100)
    with pytest.raises(OutOfBlocks):
        index.open_receive(NS, range(50, 60), live_blocks=100)
    assert free_after(index) == 27
    index.free(alloc)


def opened(index: HybridCacheIndex, side: str) -> Transfer:
    if side == "receive":
        transfer = index.open_receive(NS, range(50, 60), 2, lease_end_s=5.0)
        assert transfer.alloc
        index.free(transfer.alloc)  # the request is given up at once; the transfer is not
        return transfer
    alloc = prefilled(index)
    transfer = index.begin_transfer(alloc, 10, 2, lease_end_s=5.0)
    index.free(alloc)
    return transfer


@pytest.mark.parametrize("side", ["send", "receive"])
@pytest.mark.parametrize("ending", ["abort", "lease"])
def test_a_stopped_transfer_is_freed_once_and_when_its_mover_is_done(
    index: HybridCacheIndex, side: str, ending: str
) -> None:
    transfer = opened(index, side)
    held = free_after(index)
    if ending == "abort":
        assert index.transfers.abort(transfer)
    else:
        assert index.transfers.expire(4.9) == []
        assert index.transfers.expire(5.0) == [transfer]
    assert free_after(index) == held  # a write may still land
    assert not index.transfers.ack(transfer) and not index.transfers.abort(transfer)
    assert index.transfers.expire(9.0) == []
    assert free_after(index) == held
    assert index.transfers.settle(transfer)
    assert free_after(index) + index.tree.num_evictable == 30
    again = (index.transfers.settle, index.transfers.ack, index.transfers.abort)
    assert not any(call(transfer) for call in again)
    assert free_after(index) + index.tree.num_evictable == 30


@pytest.mark.parametrize("side", ["send", "receive"])
def test_a_mover_that_is_done_already_leaves_nothing_to_wait_for(index: HybridCacheIndex, side: str) -> None:
    transfer = opened(index, side)
    assert not index.transfers.settle(transfer)
    assert index.transfers.abort(transfer)
    assert free_after(index) + index.tree.num_evictable == 30


def test_a_second_acknowledgement_frees_nothing(index: HybridCacheIndex) -> None:
    transfer = opened(index, "send")
    assert index.transfers.ack(transfer)
    free = free_after(index)
    assert not index.transfers.ack(transfer) and free_after(index) == free


def test_received_blocks_are_published_after_the_acknowledgement_and_not_before(index: HybridCacheIndex) -> None:
    transfer = index.open_receive(NS, range(10), 2)
    alloc = transfer.alloc
    assert alloc and alloc.cached_tokens == 0
    with pytest.raises(ValueError, match="may still write"):
        index.commit(alloc, 10)
    assert index.transfers.ack(transfer)
    index.commit(alloc, 10)
    assert index.match_prefix(NS, range(11)).kv_tokens == 8
    index.free(alloc)
    assert free_after(index) == 28


def test_a_receiver_keeps_kv_it_has_up_to_the_last_token(index: HybridCacheIndex) -> None:
    index.free(prefilled(index, 8))
    transfer = index.open_receive(NS, range(8), 1)
    assert transfer.alloc and transfer.alloc.cached_tokens == 8 and not transfer.alloc.private_blocks
    assert transfer.kv_blocks == tuple(transfer.alloc.block_table)


def test_transfer_blocks_are_never_found(index: HybridCacheIndex) -> None:
    alloc = prefilled(index)
    transfer = index.begin_transfer(alloc, 10, 1)
    index.extend(alloc, [10, 11])
    index.commit(alloc, 12)  # the tail fills up and is published: the request's own block, not the transfer's
    assert set(transfer.own_blocks).isdisjoint(block.block_id for block in alloc.path)
    index.check_invariants()


def test_a_lease_that_has_ended_answers_expired(index: HybridCacheIndex) -> None:
    transfer = opened(index, "send")
    transfer.require_lease(4.9)
    with pytest.raises(LeaseExpired):
        transfer.require_lease(5.0)  # even before anyone has called expire
    index.transfers.abort(transfer)
    with pytest.raises(LeaseExpired):
        transfer.require_lease(0.0)
