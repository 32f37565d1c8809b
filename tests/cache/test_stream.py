"""A stream reads a request's blocks where they lie, from before they are written until they are applied."""

import pytest

from prfaas_ref.cache.index import HybridCacheIndex
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.tree import OutOfBlocks

NS = Namespace("m", 4)


@pytest.fixture
def index() -> HybridCacheIndex:
    return HybridCacheIndex(12, 4, state_blocks=2)


def test_the_request_may_commit_and_end_while_its_stream_goes_on(index: HybridCacheIndex) -> None:
    alloc = index.allocate(NS, range(10))
    stream = index.begin_stream(alloc, live_blocks=2)
    table = list(alloc.block_table)
    index.commit(alloc, 10)
    index.free(alloc)
    index.check_invariants()
    others = index.allocate(NS, range(100, 128))  # seven blocks: all that is not held
    assert not set(others.block_table) & {*table, *stream.live_blocks}
    with pytest.raises(OutOfBlocks):
        index.allocate(NS, range(200, 204))
    assert index.transfers.ack(stream)
    index.check_invariants()
    assert index.match_prefix(NS, range(10)).kv_tokens == 8
    index.allocate(NS, range(200, 204))


def test_a_block_given_up_for_another_requests_is_not_reused_before_the_stream_has_ended(
    index: HybridCacheIndex,
) -> None:
    first, second = index.allocate(NS, range(8)), index.allocate(NS, range(8))
    stream = index.begin_stream(second, live_blocks=1)
    own = list(second.block_table)
    index.commit(first, 8)
    assert index.commit(second, 8) == [0, 1]  # both of its blocks name the first request's now
    assert second.block_table == first.block_table
    index.check_invariants()
    others = index.allocate(NS, range(100, 128))
    assert not set(others.block_table) & set(own)
    index.free(second)
    assert index.transfers.abort(stream)
    index.check_invariants()
    with pytest.raises(OutOfBlocks):
        index.allocate(NS, range(200, 212))
    assert index.transfers.settle(stream)  # the mover reads no more
    index.check_invariants()
    assert set(own) <= set(index.allocate(NS, range(200, 212)).block_table)


def test_one_stream_at_a_time_and_none_of_a_freed_request(index: HybridCacheIndex) -> None:
    alloc = index.allocate(NS, range(4))
    stream = index.begin_stream(alloc, 1)
    with pytest.raises(ValueError, match="one stream"):
        index.begin_stream(alloc, 1)
    index.transfers.ack(stream)
    with pytest.raises(OutOfBlocks):
        index.begin_stream(alloc, 100)
    index.check_invariants()
    index.transfers.ack(index.begin_stream(alloc, 1))
    index.free(alloc)
    with pytest.raises(ValueError, match="open request"):
        index.begin_stream(alloc, 1)
    index.check_invariants()
