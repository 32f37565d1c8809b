"""Files that outlive the pool: equal bytes come back, anything else is a miss."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from prfaas_ref.cache import BlockPool, HybridCacheIndex, HybridCachePool, Namespace
from prfaas_ref.cache.host_tier import KV, STATE, HostTier, Spill, promote

B, STATE_BYTES = 4, 300
NS = Namespace("weights", B)


def make(directory: Path, num_blocks: int = 12, capacity_bytes: int = 10**6) -> tuple[HybridCachePool, HostTier]:
    tier = HostTier(directory, capacity_bytes)
    spill = Spill(tier)
    blocks = BlockPool(num_blocks, 2, B, 8, torch.float32)
    index = HybridCacheIndex(num_blocks, B, blocks.blocks_for(STATE_BYTES), listener=spill)
    pool = spill.pool = HybridCachePool(index, blocks, STATE_BYTES)
    return pool, tier


def serve(pool: HybridCachePool, tokens: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill a request with random bytes. Returns its full pages and its state at the last block end."""
    generator = torch.Generator().manual_seed(seed)
    alloc = pool.allocate(NS, tokens)
    pages = torch.randn(len(alloc.block_table), 2, B, 8, generator=generator)
    pool.blocks.pages[alloc.block_table] = pages
    state = torch.randint(0, 256, (STATE_BYTES,), dtype=torch.uint8, generator=generator)
    pool.index.commit(alloc, len(tokens))
    assert pool.checkpoint(alloc, len(tokens) // B * B, state)
    pool.index.free(alloc)
    return pages[: len(tokens) // B], state


def assert_hit(pool: HybridCachePool, tokens: list[int], pages: torch.Tensor, state: torch.Tensor) -> None:
    alloc = pool.allocate(NS, tokens)
    assert alloc.cached_tokens == len(pages) * B
    assert torch.equal(pool.blocks.pages[alloc.block_table[: len(pages)]], pages)
    restored = pool.restore(alloc)
    assert restored is not None and torch.equal(restored, state)
    pool.index.free(alloc)
    pool.index.check_invariants()


def test_what_was_evicted_comes_back_even_after_a_restart(tmp_path: Path) -> None:
    pool, tier = make(tmp_path)
    pages, state = serve(pool, list(range(9)), seed=1)
    serve(pool, list(range(100, 125)), seed=2)  # pushes it out
    assert pool.index.match_prefix(NS, range(9)).usable_tokens == 0
    assert promote(pool, tier, NS, list(range(9))) == 8
    assert_hit(pool, list(range(9)), pages, state)
    reborn, tier = make(tmp_path)
    pool.index.tree.evict_all()
    assert promote(reborn, tier, NS, list(range(9))) == 8
    assert_hit(reborn, list(range(9)), pages, state)
    assert promote(reborn, tier, NS, list(range(9))) == 8  # nothing to do any more


def test_only_what_the_pool_lacks_is_brought_back(tmp_path: Path) -> None:
    pool, tier = make(tmp_path, num_blocks=40)
    pages, state = serve(pool, list(range(13)), seed=1)
    account = pool.index.tree.shared
    pool.index.tree._evict(account, 4)  # the snapshot (2 blocks) and the last two blocks of the chain
    assert pool.index.match_prefix(NS, range(13)).kv_tokens == 4
    free = pool.index.tree.ids.num_free
    assert promote(pool, tier, NS, list(range(13))) == 12
    assert free - pool.index.tree.ids.num_free == 4
    assert_hit(pool, list(range(13)), pages, state)


def test_kv_without_state_is_not_worth_bringing_back(tmp_path: Path) -> None:
    pool, tier = make(tmp_path)
    serve(pool, list(range(9)), seed=1)
    pool.index.tree.evict_all()
    for path in tmp_path.glob(f"*.{STATE}.safetensors"):
        path.unlink()
    assert promote(pool, tier, NS, list(range(9))) == 0
    assert pool.index.tree.ids.num_free == 12


@pytest.mark.parametrize("harm", ["torn", "empty", "gone", "foreign", "of other numbers", "flipped", "other tokens"])
def test_a_file_that_is_not_what_it_should_be_is_a_miss_and_is_written_anew(tmp_path: Path, harm: str) -> None:
    pool, tier = make(tmp_path)
    pages, state = serve(pool, list(range(9)), seed=1)
    pool.index.tree.evict_all()
    for path in tmp_path.glob(f"*.{KV}.safetensors"):
        content = path.read_bytes()
        if harm == "gone":
            path.unlink()
        elif harm == "foreign":
            save_file({"bytes": torch.zeros(256, dtype=torch.uint8)}, path)
        elif harm == "of other numbers":
            save_file({"bytes": torch.zeros(256, dtype=torch.bfloat16)}, path)
        elif harm == "other tokens":
            path.write_bytes(
                content.replace(b'"tokens":"00', b'"tokens":"09').replace(b'"tokens":"04', b'"tokens":"09')
            )
        else:
            cut = {"torn": content[:-7], "empty": b"", "flipped": content[:-1] + bytes([content[-1] ^ 1])}
            path.write_bytes(cut[harm])
    assert promote(pool, tier, NS, list(range(9))) == 0
    pool.index.check_invariants()
    for found in (0, 8):  # both blocks' files were harmed, and a chain is read up to its first gap
        serve(pool, list(range(9)), seed=1)
        pool.index.tree.evict_all()
        assert promote(pool, tier, NS, list(range(9))) == found
    assert_hit(pool, list(range(9)), pages, state)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == tier.held_bytes


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "abc.part").write_bytes(b"half")
    make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_stays_within_its_size_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    data = torch.zeros(500, dtype=torch.uint8)
    HostTier(tmp_path, 10_000).put(KV, bytes([0]), b"", data)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    tier = HostTier(tmp_path, 3 * size)
    for number in range(3):
        tier.put(KV, bytes([number]), b"", data)
    assert tier.get(KV, bytes([0]), b"") is not None
    tier.put(KV, bytes([3]), b"", data)
    tier.put(KV, bytes([4]), b"", torch.zeros(4_000, dtype=torch.uint8))  # larger than all of it
    assert tier.held_bytes == 3 * size
    held = [tier.get(KV, bytes([number]), b"") is not None for number in range(5)]
    assert held == [True, False, True, True, False]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == tier.held_bytes
    assert HostTier(tmp_path, size).held_bytes == size


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = HostTier(tmp_path, 10_000)

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        tier.put(KV, b"k", b"", torch.zeros(10, dtype=torch.uint8))
    assert list(tmp_path.iterdir()) == [] and tier.get(KV, b"k", b"") is None
    pool, _ = make(tmp_path / "spilled")
    serve(pool, list(range(9)), seed=1)
    pool.index.tree.evict_all()  # nothing can be kept, and nothing is harmed
    pool.index.check_invariants()
    assert pool.index.tree.ids.num_free == 12


def test_a_pool_without_room_promotes_nothing(tmp_path: Path) -> None:
    pool, tier = make(tmp_path)
    serve(pool, list(range(9)), seed=1)
    pool.index.tree.evict_all()
    held = pool.allocate(NS, range(200, 244))
    assert promote(pool, tier, NS, list(range(9))) == 0
    pool.index.free(held)
