"""An example to read: a plain attention-only manager, as many engines have it, and its adapter.

The manager is the usual one: full blocks filed by a digest of their prefix, reference counts, and one queue of blocks
that nobody uses, oldest first, cached or not. The adapter below it is all that the examination needs.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from prfaas_ref.cache.conformance.adapter import Admission, CacheAdapter, CacheConfig

Prefix = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Request:
    tenant: str
    tokens: list[int]
    table: list[int]


class PlainManager:
    """Blocks of `block_size` tokens, found by digest; `digest_bytes` makes it weak."""

    def __init__(self, num_blocks: int, block_size: int, digest_bytes: int) -> None:
        self.block_size = block_size
        self.digest_bytes = digest_bytes
        self.unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.users = [0] * num_blocks
        self.by_key: dict[bytes, int] = {}
        self.cached: dict[int, tuple[bytes, Prefix]] = {}  # block -> its key, and the prefix that it ends

    def prefixes(self, tenant: str, tokens: list[int]) -> list[tuple[bytes, Prefix]]:
        """Key and prefix of every full block of `tokens`."""
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        found = [(tenant, tuple(tokens[:end])) for end in ends]
        return [(hashlib.sha256(repr(prefix).encode()).digest()[: self.digest_bytes], prefix) for prefix in found]

    def match(self, tenant: str, tokens: list[int]) -> list[int]:
        table = []
        for key, prefix in self.prefixes(tenant, tokens[:-1]):
            block = self.by_key.get(key)
            if block is None or self.cached[block][1] != prefix:  # a colliding digest is a miss
                break
            table.append(block)
        return table

    def admit(self, tenant: str, tokens: list[int]) -> tuple[Request, int] | None:
        table = self.match(tenant, tokens)
        fresh = -(-len(tokens) // self.block_size) - len(table)
        if fresh > len(self.unused) - sum(self.users[block] == 0 for block in table):
            return None
        for block in table:
            self.use(block)
        request = Request(tenant, list(tokens), table + [self.take() for _ in range(fresh)])
        return request, (len(request.table) - fresh) * self.block_size

    def publish(self, request: Request, num_tokens: int) -> None:
        for position, (key, prefix) in enumerate(self.prefixes(request.tenant, request.tokens[:num_tokens])):
            block = request.table[position]
            if key not in self.by_key and block not in self.cached:
                self.by_key[key] = block
                self.cached[block] = (key, prefix)

    def take(self) -> int:
        block, _ = self.unused.popitem(last=False)
        if block in self.cached:
            del self.by_key[self.cached.pop(block)[0]]
        self.users[block] = 1
        return block

    def use(self, block: int) -> None:
        self.users[block] += 1
        self.unused.pop(block, None)

    def release(self, request: Request) -> None:
        for block in reversed(request.table):  # the end of a chain becomes the older
            self.users[block] -= 1
            if not self.users[block]:
                self.unused[block] = None


class AttentionOnlyAdapter(CacheAdapter):
    """PlainManager under examination: the five calls that every manager has, and `match`."""

    can_match = True

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.manager = PlainManager(config.num_blocks, config.block_size, 1 if config.weak_hash else 32)

    def allocate(self, tenant: str, tokens: list[int]) -> Admission | None:
        admitted = self.manager.admit(tenant, tokens)
        return admitted and Admission(admitted[0], admitted[0].table, admitted[1])

    def commit(self, request: Any, num_tokens: int) -> list[int]:
        self.manager.publish(request, num_tokens)
        return list(request.table)

    def free(self, request: Any) -> None:
        self.manager.release(request)

    def num_reclaimable(self) -> int:
        return len(self.manager.unused)

    def evict_all(self) -> None:
        for block in self.manager.unused:
            if block in self.manager.cached:
                del self.manager.by_key[self.manager.cached.pop(block)[0]]

    def match(self, tenant: str, tokens: list[int]) -> int:
        return len(self.manager.match(tenant, tokens)) * self.config.block_size
