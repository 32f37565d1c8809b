"""The cached entries of a pool and the block numbers they stand on: find, publish, hold, evict.

Every block number is in one of four places: free, private to a request or a transfer, a published prefix block, or part
of a snapshot. This file moves them between these places and keeps the counts; what a request is, it does not know.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from prfaas_ref.cache.block_ids import BlockIds
from prfaas_ref.cache.entries import Entry, PrefixBlock, Root, Snapshot
from prfaas_ref.cache.eviction import Account, Score
from prfaas_ref.cache.keys import Namespace, TokenChain


class OutOfBlocks(RuntimeError):
    """The pool or the tenant's quota cannot give so many blocks, with everything evictable gone. Nothing changed."""


class CacheListener(Protocol):
    """Told of every entry that becomes findable, and of every one that goes while its blocks still hold its bytes."""

    def stored(self, entry: PrefixBlock | Snapshot) -> None: ...

    def removed(self, entry: PrefixBlock | Snapshot) -> None: ...


class CacheTree:
    """Chains of prefix blocks under one root per namespace, snapshots at their block ends, and an account per quota."""

    def __init__(
        self, num_blocks: int | None, score: Score, quotas: Mapping[str, int], listener: CacheListener | None
    ) -> None:
        self.ids = BlockIds(num_blocks)
        self.blocks: dict[bytes, PrefixBlock] = {}
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
        return sum(account.evictable_blocks for account in self.accounts)

    def account(self, namespace: Namespace) -> Account:
        return self.tenants.get(namespace.tenant, self.shared)

    # ---- find and publish

    def find(self, chain: TokenChain, limit: int) -> list[PrefixBlock]:
        """The cached blocks of `chain` in order, `limit` at most. Parent and tokens must agree: a collision misses."""
        path: list[PrefixBlock] = []
        parent: Entry | None = self.roots.get(chain.namespace)
        for key, tokens in zip(chain.keys[:limit], chain.chunks, strict=False):
            block = self.blocks.get(key)
            if block is None or block.parent is not parent or block.tokens != tokens:
                break
            path.append(block)
            parent = block
        return path

    def root(self, namespace: Namespace) -> Root:
        """Where the namespace's chains begin; a new root lasts if something holds it."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(None, 0, 0, namespace=namespace)
        return root

    def add_block(self, parent: Root | PrefixBlock, block_id: int, key: bytes, tokens: bytes) -> PrefixBlock:
        """Publish a written block. The caller's pin on the parent becomes the child's; the caller holds the child."""
        block = PrefixBlock(parent, parent.depth + 1, 1, 1, 0, 0, False, block_id, key, tokens)
        parent.children += 1
        self.blocks[key] = block
        if self.listener:
            self.listener.stored(block)
        return block

    def add_snapshot(self, account: Account, block: PrefixBlock, ids: tuple[int, ...]) -> None:
        """Publish written state at the end of `block`, which the caller holds. Nobody holds the snapshot."""
        snapshot = block.snapshot = Snapshot(block, block.depth, len(ids), last_use=self.releases, ids=ids)
        block.children += 1
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
            del self.roots[root.namespace]

    # ---- block numbers

    def take(self, account: Account, count: int) -> list[int]:
        """`count` blocks, evicting as needed. Raises OutOfBlocks, with nothing evicted, if that cannot be enough."""
        if count <= 0:
            return []
        if account.held_blocks + count - account.quota_blocks > account.evictable_blocks:
            raise OutOfBlocks(f"{count} blocks wanted, the tenant's quota is {account.quota_blocks}")
        if count > self.ids.num_free + self.num_evictable:
            raise OutOfBlocks(f"{count} blocks wanted, {self.ids.num_free} free and {self.num_evictable} evictable")
        while account.held_blocks + count > account.quota_blocks:
            self.evict(account)
        while self.ids.num_free < count:
            self.evict(min(self.accounts, key=Account.lowest_score))
        account.held_blocks += count
        return self.ids.take(count)

    def give_back(self, account: Account, ids: Iterable[int]) -> None:
        """Free blocks that nothing refers to any more."""
        ids = tuple(ids)
        account.held_blocks -= len(ids)
        self.ids.give_back(ids)

    def evict(self, account: Account) -> None:
        """Forget the account's least valuable leaf."""
        entry = account.evict()
        self.evictions += 1
        if self.listener:
            self.listener.removed(entry)
        if isinstance(entry, Snapshot):
            entry.block.snapshot = None
        else:
            del self.blocks[entry.key]
            if isinstance(entry.parent, Root):
                self.forget_if_empty(entry.parent)
        self.give_back(account, entry.block_ids)

    def evict_all(self) -> None:
        """Forget everything that nobody holds."""
        for account in self.accounts:
            while account.evictable_blocks:
                self.evict(account)
