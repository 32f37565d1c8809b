"""What must hold of an index after every call, recounted from nothing but who holds what."""

from collections import Counter
from typing import TYPE_CHECKING

from prfaas_ref.cache.entries import Entry, Leaf, PrefixBlock, Snapshot
from prfaas_ref.cache.keys import next_key

if TYPE_CHECKING:
    from prfaas_ref.cache.index import HybridCacheIndex


def check_invariants(index: "HybridCacheIndex") -> None:
    """Raises AssertionError that names what does not add up. Changes nothing."""
    entries = list(index.tree.entries())
    _check_links(index, entries)
    _check_pins(index, entries)
    _check_partition(index, entries)


def _check_links(index: "HybridCacheIndex", entries: list[Leaf]) -> None:
    """Parents and children name each other, keys name prefixes, and every entry that could go is queued."""
    for namespace, root in index.tree.roots.items():
        assert root.namespace == namespace and root.key == namespace.root, "a root is filed under another namespace"
        assert root.pins or root.children, "an empty root is kept"
    for entry in entries:
        parent = entry.parent
        assert parent is not None, "a cached entry has no parent"
        if isinstance(entry, PrefixBlock):
            assert parent.children.get(entry.tokens) is entry, "a block is filed under other tokens, or another parent"
            assert entry.key == next_key(parent.key, entry.tokens), "a block has the key of another prefix"
            assert entry.depth == parent.depth + 1, "a block is not one deeper than its parent"
        else:
            assert entry.block.snapshot is entry, "a snapshot hangs on another block"
            assert entry.depth == parent.depth and entry.size == index.state_blocks, (
                "a snapshot of another place or size"
            )
        assert entry.queued or entry.pins or not entry.is_leaf, "an entry that could go is not queued for eviction"
    queued = [entry for account in index.tree.accounts for entry in account.queued()]
    assert len(queued) == len(set(queued)), "an entry is queued for eviction twice"
    assert set(queued) == {entry for entry in entries if entry.queued}, "the queue for eviction holds other entries"
    keys = {entry.key for entry in entries if isinstance(entry, PrefixBlock)}
    assert len(keys) == sum(isinstance(entry, PrefixBlock) for entry in entries), "two blocks have one key"


def _check_pins(index: "HybridCacheIndex", entries: list[Leaf]) -> None:
    """Pins equal a recount: one for each request and transfer, and one for each pinned child."""
    pins: Counter[Entry | None] = Counter(alloc.deepest for alloc in index.allocations)
    pins.update(alloc.snapshot for alloc in index.allocations if alloc.snapshot)
    pins.update(transfer.pinned for transfer in index.transfers.in_flight if transfer.pinned)
    for entry in sorted(entries, key=lambda entry: (entry.depth, isinstance(entry, Snapshot)), reverse=True):
        if pins[entry]:
            pins[entry.parent] += 1
    nodes: list[Entry] = [*entries, *index.tree.roots.values()]
    for node in nodes:
        assert node.pins == pins[node], f"{type(node).__name__} counts {node.pins} pins, not {pins[node]}"


def _check_partition(index: "HybridCacheIndex", entries: list[Leaf]) -> None:
    """Free, private, transfer and cached blocks share no number and together are all of them; accounts agree."""
    held: dict[int, str] = dict.fromkeys(index.tree.ids.returned, "free")
    assert len(held) == len(index.tree.ids.returned), "a block is free twice"
    owners = [("allocation", tuple(alloc.private_blocks)) for alloc in index.allocations]
    owners += [("checkpoint", ticket.block_ids) for alloc in index.allocations for ticket in alloc.reserved]
    owners += [("transfer", transfer.own_blocks) for transfer in index.transfers.in_flight]
    owners += [(type(entry).__name__, entry.block_ids) for entry in entries]
    for owner, ids in owners:
        for block_id in ids:
            assert block_id not in held, f"block {block_id} is of {owner} and of {held[block_id]}"
            held[block_id] = owner
    assert sorted(held) == list(range(index.tree.ids.minted)), "a block is lost"
    used = len(held) - len(index.tree.ids.returned)
    assert sum(account.held_blocks for account in index.tree.accounts) == used, "the accounts hold another number"
    assert all(0 <= account.held_blocks <= account.quota_blocks for account in index.tree.accounts), "over quota"
    evictable = sum(entry.size for entry in entries if not entry.pins)
    assert index.tree.num_evictable == evictable, "the accounts count another number of evictable blocks"
    landing = Counter(transfer.alloc for transfer in index.transfers.in_flight)
    for alloc in index.allocations:
        movers = alloc.writers + (alloc.stream is not None)
        assert movers == landing[alloc], f"a request counts {movers} movers, not {landing[alloc]}"
        table = alloc.block_table[: len(alloc.path)]
        assert table == [block.block_id for block in alloc.path], "a block table disagrees with its published path"
