"""The cached entries of a pool and the block numbers they stand on: find, publish, hold, evict.

Every block number is in one of four places: free, private to a request or a transfer, a published prefix block, or part
of a snapshot. This file moves them between these places and keeps the counts; what a request is, it does not know.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prfaas_ref.cache.block_ids import BlockIds
from prfaas_ref.cache.entries import Entry, Leaf, PrefixBlock, Root, Snapshot
from prfaas_ref.cache.eviction import Account, Score
from prfaas_ref.cache.keys import Namespace, next_key


class OutOfBlocks(RuntimeError):
    """The pool or the tenant's quota cannot give so many blocks, with everything evictable gone. Nothing changed."""


class CacheListener(Protocol):
    """Told of every entry that becomes findable, and of every one that goes while its blocks still hold its bytes."""

    def stored(self, entry: Leaf) -> None: ...

    def removed(self, entry: Leaf) -> None: ...


class CacheTree:
    """Chains of prefix blocks under one root per namespace, snapshots at their block ends, and an account per quota."""

    def __init__(
        self, num_blocks: int | None, score: Score, quotas: Mapping[str, int], listener: CacheListener | None
    ) -> None:
        self.ids = BlockIds(num_blocks)
        self.roots: dict[Namespace, Root] = {}
        self.listener = listener
        self.evictions = 0
        self.releases = 0  # the clock of recency
        self.shared = Account(score, math.inf)
        self.tenants = {tenant: Account(score, blocks) for tenant, blocks in quotas.items()}
        self.accounts = (self.shared, *self.tenants.values())

    @property
    def num_evictable(self) -> int:
        """Blocks that nobody holds and that a hit would still find."""
        return sum([account.evictable_blocks for account in self.accounts])

    def account(self, namespace: Namespace) -> Account:
        return self.tenants.get(namespace.tenant, self.shared)

    def entries(self) -> Iterator[Leaf]:
        """Everything that is cached, blocks before what hangs on them."""
        waiting = [block for root in self.roots.values() for block in root.children.values()]
        while waiting:
            block = waiting.pop()
            waiting += block.children.values()
            yield block
            if block.snapshot:
                yield block.snapshot

    # ---- find and publish

    def find(self, namespace: Namespace, blocks: Sequence[bytes]) -> list[PrefixBlock]:
        """The longest cached chain of blocks with these tokens, in order."""
        path: list[PrefixBlock] = []
        root = self.roots.get(namespace)
        children = root.children if root else {}
        for tokens in blocks:
            block = children.get(tokens)
            if block is None:
                break
            path.append(block)
            children = block.children
        return path

    def root(self, namespace: Namespace) -> Root:
        """Where the namespace's chains begin; a new root lasts if something holds it."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(None, 0, 0, namespace=namespace, key=namespace.root)
        return root

    def add_block(self, parent: Root | PrefixBlock, block_id: int, tokens: bytes) -> PrefixBlock:
        """Publish a written block. The caller's pin on the parent becomes the child's; the caller holds the child."""
        key = next_key(parent.key, tokens)
        block = PrefixBlock(parent, parent.depth + 1, 1, 1, 0, False, block_id, key, tokens, {})
        parent.children[tokens] = block
        if self.listener:
            self.listener.stored(block)
        return block

    def add_snapshot(self, account: Account, block: PrefixBlock, ids: tuple[int, ...]) -> None:
        """Publish written state at the end of `block`, which the caller holds. Nobody holds the snapshot."""
        snapshot = block.snapshot = Snapshot(block, block.depth, len(ids), 0, self.releases, False, ids)
        account.add(snapshot)
        if self.listener:
            self.listener.stored(snapshot)

    # ---- hold and let go

    def unpin(self, account: Account, entry: Entry, root: Root) -> None:
        """Take back a pin, now; `root` is where the entry's chain begins."""
        self.releases += 1
        account.unpin(entry, self.releases)
        self.forget_if_empty(root)

    def forget_if_empty(self, root: Root) -> None:
        if not root.pins and not root.children and root.namespace:
            self.roots.pop(root.namespace, None)

    # ---- block numbers

    def take(self, account: Account, count: int) -> list[int]:
        """`count` blocks, evicting as needed. Raises OutOfBlocks, with nothing evicted, if that cannot be enough."""
        if count <= 0:
            return []
        over_quota = account.held_blocks + count - account.quota_blocks
        if over_quota > account.evictable_blocks:
            raise OutOfBlocks(f"{count} blocks wanted, the tenant's quota is {account.quota_blocks}")
        short = count - self.ids.num_free
        if short > 0 and short > self.num_evictable:
            raise OutOfBlocks(f"{count} blocks wanted, {self.ids.num_free} free and {self.num_evictable} evictable")
        if over_quota > 0:
            self._evict(account, over_quota)
            short = count - self.ids.num_free
        if short > 0:
            self._evict_from_any(short)
        account.held_blocks += count
        return self.ids.take(count)

    def give_back(self, account: Account, ids: Sequence[int]) -> None:
        """Free blocks that nothing refers to any more."""
        account.held_blocks -= len(ids)
        self.ids.give_back(ids)

    def evict_all(self) -> None:
        """Forget everything that nobody holds."""
        for account in self.accounts:
            self._evict(account, account.evictable_blocks)

    def _evict_from_any(self, num_blocks: int) -> None:
        if len(self.accounts) == 1:
            self._evict(self.shared, num_blocks)
            return
        enough = self.ids.num_free + num_blocks
        while self.ids.num_free < enough:
            self._evict(min(self.accounts, key=Account.lowest_score), 1)

    def _evict(self, account: Account, num_blocks: float) -> None:
        """Forget the account's least valuable leaves."""
        gone = account.evict(num_blocks)
        self.evictions += len(gone)
        for entry in gone:
            if self.listener:
                self.listener.removed(entry)
            if isinstance(entry.parent, Root):
                self.forget_if_empty(entry.parent)
        self.give_back(account, [block_id for entry in gone for block_id in entry.block_ids])
