"""What must hold of an index after every call, recounted from nothing but who holds what."""

from collections import Counter
from typing import TYPE_CHECKING

from prfaas_ref.cache.entries import Entry, PrefixBlock, Root, Snapshot

if TYPE_CHECKING:
    from prfaas_ref.cache.index import HybridCacheIndex


def check_invariants(index: "HybridCacheIndex") -> None:
    """Raises AssertionError that names what does not add up. Changes nothing."""
    entries = _entries(index)
    _check_bijection(index)
    _check_counts(index, entries)
    _check_partition(index, entries)


def _entries(index: "HybridCacheIndex") -> list[PrefixBlock | Snapshot]:
    blocks = list(index.tree.blocks.values())
    return [*blocks, *(block.snapshot for block in blocks if block.snapshot)]


def _check_bijection(index: "HybridCacheIndex") -> None:
    """Keys and blocks, blocks and snapshots, namespaces and roots name each other; parents are cached."""
    for key, block in index.tree.blocks.items():
        assert block.key == key, "a block is filed under another key"
        parent = block.parent
        cached = index.tree.blocks.get(parent.key) is parent if isinstance(parent, PrefixBlock) else parent is not None
        assert cached, "a cached block's parent is not cached"
        assert parent is not None and block.depth == parent.depth + 1, "a block is not one deeper than its parent"
        if block.snapshot:
            assert block.snapshot.parent is block, "a snapshot hangs on another block"
            assert block.snapshot.size == index.state_blocks, "a snapshot has another size than the state"
    for namespace, root in index.tree.roots.items():
        assert root.namespace == namespace, "a root is filed under another namespace"
        assert root.pins or root.children, "an empty root is kept"


def _check_counts(index: "HybridCacheIndex", entries: list[PrefixBlock | Snapshot]) -> None:
    """Children and pins equal a recount. A pinned entry pins its parent once, so entries are visited deepest first."""
    children: Counter[Entry | None] = Counter(entry.parent for entry in entries)
    pins: Counter[Entry | None] = Counter()
    for alloc in index.allocations:
        pins[alloc.deepest] += 1
        if alloc.snapshot:
            pins[alloc.snapshot] += 1
    for transfer in index.transfers.in_flight:
        if transfer.pinned:
            pins[transfer.pinned] += 1
    for entry in sorted(entries, key=lambda entry: (entry.depth, isinstance(entry, Snapshot)), reverse=True):
        if pins[entry]:
            pins[entry.parent] += 1
    nodes: list[Entry] = [*entries, *index.tree.roots.values()]
    for node in nodes:
        assert node.children == children[node], f"{type(node).__name__} counts {node.children} children"
        assert node.pins == pins[node], f"{type(node).__name__} counts {node.pins} pins, not {pins[node]}"
        assert not node.queued or not isinstance(node, Root), "a root waits for eviction"


def _check_partition(index: "HybridCacheIndex", entries: list[PrefixBlock | Snapshot]) -> None:
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
    for alloc in index.allocations:
        table = alloc.block_table[: len(alloc.path)]
        assert table == [block.block_id for block in alloc.path], "a block table disagrees with its published path"
