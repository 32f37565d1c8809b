"""The bytes: what is written comes back, what is recycled is clean, and a hit is equal to computing again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.cache import BlockPool, HybridCacheIndex, HybridCachePool, LeaseExpired, Namespace

LAYERS, B, WIDTH, STATE_BYTES = 3, 4, 7, 500
NS = Namespace("weights", B)


def make(num_blocks: int = 60, dtype: torch.dtype = torch.bfloat16) -> HybridCachePool:
    blocks = BlockPool(num_blocks, LAYERS, B, WIDTH, dtype)
    index = HybridCacheIndex(num_blocks, B, blocks.blocks_for(STATE_BYTES))
    return HybridCachePool(index, blocks, STATE_BYTES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_aligned_and_pages_are_views_of_them(dtype: torch.dtype) -> None:
    blocks = make(5, dtype).blocks
    assert blocks.block_bytes % 64 == 0 and blocks.storage.data_ptr() % 64 == 0
    assert blocks.pages.shape == (5, LAYERS, B, WIDTH) and blocks.pages.dtype == dtype
    blocks.pages[3, 2, 1, 6] = 1.0
    assert blocks.storage[3].any() and not blocks.storage[[0, 1, 2, 4]].any()


@given(st.permutations(range(6)), st.integers(0, 6 * 192))
def test_a_vector_over_scattered_blocks_comes_back(ids: list[int], size: int) -> None:
    blocks = BlockPool(6, LAYERS, B, WIDTH, torch.bfloat16)
    size = min(size, 6 * blocks.block_bytes)
    data = torch.arange(size).to(torch.uint8)
    blocks.write(ids, data)
    assert torch.equal(blocks.read(ids, size), data)
    views = blocks.segments(ids, size // 3, size)
    assert b"".join(views) == data.numpy().tobytes()[size // 3 :]


def test_bits_survive_whatever_number_they_make() -> None:
    pool = make()
    bits = torch.tensor([0x7F81, 0x8000, 0x0001, 0xFFFF - 2**16], dtype=torch.int32).to(torch.int16)
    ids = [5, 2]
    pool.blocks.write(ids, bits.view(torch.bfloat16))
    assert torch.equal(pool.blocks.read(ids, 8).view(torch.int16), bits)


def test_a_vector_that_does_not_fit_is_refused() -> None:
    blocks = make().blocks
    with pytest.raises(ValueError, match="do not fit 1 blocks"):
        blocks.write([0], torch.zeros(blocks.block_bytes + 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        blocks.segments([0], 0, blocks.block_bytes + 1)


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(0, LAYERS - 1), st.data())
def test_page_segments_are_the_rows_of_the_tokens(ids: list[int], layer: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 4 * B))
    last = data.draw(st.integers(first, 4 * B))
    blocks = BlockPool(4, LAYERS, B, WIDTH, torch.float32)
    blocks.pages.copy_(torch.randn(blocks.pages.shape))
    rows = blocks.pages[list(ids), layer].reshape(4 * B, WIDTH)[first:last]
    assert b"".join(blocks.page_segments(ids, layer, first, last)) == rows.numpy().tobytes()


def test_neighbours_are_joined_into_one_view() -> None:
    blocks = BlockPool(8, 1, B, 16, torch.float32)
    assert [view.nbytes for view in blocks.segments([2, 3, 4, 6], 0, 4 * blocks.block_bytes)] == [768, 256]
    assert [view.nbytes for view in blocks.page_segments([2, 3], 0, 0, 2 * B)] == [512]


def test_a_new_request_never_sees_what_its_blocks_held_before() -> None:
    pool = make(4)
    for block in range(4):
        pool.blocks.pages[block] = float("nan")
    alloc = pool.allocate(NS, range(9))
    assert not pool.blocks.storage[alloc.block_table].any()
    pool.blocks.pages[:] = float("nan")
    taken = pool.extend(alloc, range(4))
    assert taken == [alloc.block_table[-1]] and not pool.blocks.storage[taken].any()
    pool.index.free(alloc)
    pool.blocks.pages[:] = float("nan")
    transfer = pool.open_receive(NS, range(5), 100)
    assert transfer.alloc
    assert not pool.blocks.storage[[*transfer.alloc.block_table, *transfer.live_blocks]].any()


def test_a_published_snapshot_never_changes() -> None:
    pool = make()
    state = torch.randint(0, 255, (STATE_BYTES,), dtype=torch.uint8)
    alloc = pool.allocate(NS, range(9))
    pool.index.commit(alloc, 9)
    assert pool.checkpoint(alloc, 8, state) and not pool.checkpoint(alloc, 8, state)
    kept = state.clone()
    state.zero_()  # the live state moves on
    for _ in range(2):  # hit it, decode a token, hit it again
        hit = pool.allocate(NS, range(9))
        restored = pool.restore(hit)
        assert restored is not None and torch.equal(restored, kept)
        restored.zero_()
        pool.extend(hit, [77])
        pool.index.commit(hit, 10)
        pool.index.free(hit)


def test_a_state_of_another_size_is_refused() -> None:
    pool = make()
    alloc = pool.allocate(NS, range(9))
    pool.index.commit(alloc, 9)
    with pytest.raises(ValueError, match="bytes"):
        pool.checkpoint(alloc, 8, torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="blocks"):
        HybridCachePool(pool.index, pool.blocks, 10_000)


def test_a_hand_off_arrives_byte_for_byte_through_its_views() -> None:
    sender, receiver = make(), make()
    live = torch.randint(0, 255, (777,), dtype=torch.uint8)
    alloc = sender.allocate(NS, range(10))
    sender.blocks.pages[alloc.block_table] = torch.randn(3, LAYERS, B, WIDTH).bfloat16()
    sender.index.commit(alloc, 10)
    sent = sender.begin_transfer(alloc, 10, live, lease_end_s=9.0)
    expected = sender.blocks.pages[alloc.block_table].clone()
    sender.index.free(alloc)  # its tail may be overwritten by others now
    sender.blocks.pages[alloc.block_table[2]] = float("nan")
    got = receiver.open_receive(NS, range(10), 777, lease_end_s=9.0)
    for layer in range(LAYERS):
        copy(sender.page_views(sent, layer, 0, 10, 1.0), receiver.page_views(got, layer, 0, 10, 1.0))
    copy(sender.live_views(sent, 0, 777, 1.0), receiver.live_views(got, 0, 777, 1.0))
    assert got.alloc
    assert torch.equal(receiver.blocks.read(got.live_blocks, 777), live)
    assert torch.equal(receiver.blocks.pages[got.alloc.block_table[:2]], expected[:2])
    assert torch.equal(receiver.blocks.pages[got.alloc.block_table[2], :, :2], expected[2, :, :2])
    for pool, transfer in ((sender, sent), (receiver, got)):
        with pytest.raises(LeaseExpired):
            pool.page_views(transfer, 0, 0, 10, 9.0)
        with pytest.raises(LeaseExpired):
            pool.live_views(transfer, 0, 777, 9.5)


def copy(sources: list[memoryview], targets: list[memoryview]) -> None:
    data = b"".join(sources)
    for target in targets:
        target[:] = data[: target.nbytes]
        data = data[target.nbytes :]
    assert not data


# ---- a toy model: KV and state are functions of the prefix, so cold and warm must agree to the byte


def kv_row(tokens: list[int], position: int) -> torch.Tensor:
    return torch.full((LAYERS, WIDTH), float(hash(tuple(tokens[: position + 1])) % 97))


def state_after(tokens: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return torch.randint(0, 256, (STATE_BYTES,), dtype=torch.uint8, generator=generator)


def run_turn(pool: HybridCachePool, prompt: list[int], answer: list[int]) -> tuple[int, torch.Tensor]:
    """Prefill and decode; returns the hit and all pages of the request as they stand at its end."""
    alloc = pool.allocate(NS, prompt)
    start = alloc.cached_tokens
    restored = pool.restore(alloc)
    assert start == 0 or (restored is not None and torch.equal(restored, state_after(prompt[:start])))
    for position in range(start, len(prompt) + len(answer)):
        if position >= len(prompt):
            pool.extend(alloc, [answer[position - len(prompt)]])
        tokens = prompt + answer[: max(0, position + 1 - len(prompt))]
        pool.blocks.pages[alloc.block_table[position // B], :, position % B] = kv_row(tokens, position).bfloat16()
        pool.index.commit(alloc, position + 1)
        if (position + 1) % B == 0:
            pool.checkpoint(alloc, position + 1, state_after(tokens[: position + 1]))
    pages = pool.blocks.pages[alloc.block_table].clone()
    pool.index.free(alloc)
    pool.index.check_invariants()
    return start, pages


def test_conversations_hit_prompt_and_answer_and_equal_cold_runs() -> None:
    warm = make(200)
    history: list[int] = []
    for turn in range(5):
        prompt = history + [turn] * 5
        answer = [10 + turn] * 6
        hit, pages = run_turn(warm, prompt, answer)
        cold_hit, cold_pages = run_turn(make(200), prompt, answer)
        assert cold_hit == 0 and torch.equal(pages.view(torch.int16), cold_pages.view(torch.int16))
        assert hit == (len(history) // B) * B
        history = prompt + answer
