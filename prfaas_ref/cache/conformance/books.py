"""The examiner's own books of a manager: who holds which block, and what was written where.

A value in memory says what the bytes would be the image of: ("kv", tenant, the whole prefix up to the block's last
written token), so that a hit on a wrong block, however it came about, shows. What the manager believes is never
consulted; only its counts are compared. A broken promise raises Violation.
"""

from dataclasses import dataclass, field
from typing import Any

from prfaas_ref.cache.conformance.adapter import Admission, CacheAdapter, Hold
from prfaas_ref.cache.conformance.oracle import Oracle


class Violation(AssertionError):
    """The manager broke a promise."""


def require(condition: bool, promise: str) -> None:
    if not condition:
        raise Violation(promise)


@dataclass(eq=False)
class Live:
    """A request that the manager has admitted."""

    tenant: str
    tokens: list[int]
    request: Any
    table: list[int]
    cached: int
    committed: int
    state_blocks: tuple[int, ...]
    tickets: list[tuple[Hold, int]] = field(default_factory=list)
    landing: "Flight | None" = None
    stream: "Flight | None" = None
    freed: bool = False


@dataclass(eq=False)
class Flight:
    """A transfer in flight: what its reader must go on seeing, for a receive the request that it fills, and for a
    stream the request that it reads, whose blocks it keeps."""

    hold: Hold
    lease_end_s: float
    sees: dict[int, object]
    live: Live | None = None
    source: Live | None = None
    keeps: set[int] = field(default_factory=set)
    stopped: bool = False


class Books:
    """Requests and transfers as the outside knows them, with the memory that they write to."""

    def __init__(self, adapter: CacheAdapter) -> None:
        self.adapter = adapter
        self.config = adapter.config
        self.quotas = dict(adapter.config.quotas) if adapter.has_quotas else {}
        self.oracle = Oracle(self.config.block_size, adapter.has_state)
        self.memory: dict[int, object] = {}
        self.live: list[Live] = []
        self.flights: list[Flight] = []
        self.over: list[Flight] = []
        self.handed_out = 0  # upper bound of blocks ever taken: while it fits the pool, nothing may be lost
        self.now_s = 0.0
        self.hits = 0
        self.recent: list[tuple[str, list[int]]] = []  # prompts served lately

    def verify(self) -> None:
        """All that is held has kept its content, nothing is held twice, and the counts add up."""
        owned: list[int] = []
        shared: set[int] = set()
        for live in {*self.live, *(f.live for f in self.flights if f.live)}:
            first = live.cached // self._B if live.landing else live.committed // self._B
            owned += live.table[first:]
            shared.update(live.table[:first], live.state_blocks)
            owned += [block for hold, _ in live.tickets for block in hold.blocks]
            self._verify_content(live)
        for flight in self.flights:
            owned += flight.hold.blocks
            shared.update(flight.hold.read_blocks)
            require(all(self.memory[b] == v for b, v in flight.sees.items()), "blocks changed under a transfer")
        require(len(owned) == len(set(owned)), "two hold the same block as their own")
        require(not shared & set(owned), "a cached block was handed out for writing")
        held = self.config.num_blocks - self.adapter.num_reclaimable()
        parting = {b for f in self.flights if f.live and f.live.freed for b in f.live.table + list(f.live.state_blocks)}
        most = shared | set(owned) | {block for flight in self.flights for block in flight.keeps}
        least = len(most - parting)
        expected = f"{least}" if least == len(most) else f"{least} to {len(most)}"
        require(least <= held <= len(most), f"the manager counts {held} held blocks, the outside {expected}")
        for tenant, quota in self.quotas.items():
            mine = {block for live in self.live if live.tenant == tenant for block in live.table}
            require(len(mine) <= quota, "a tenant holds more than its quota")
        self.adapter.check()

    def _verify_content(self, live: Live) -> None:
        if not live.freed:
            for position in range(self._blocks_for(live.committed)):
                value = self._kv(live, min(live.committed, (position + 1) * self._B))
                require(self.memory.get(live.table[position]) == value, "the KV of a request is not what was written")
        state = ("state", live.tenant, tuple(live.tokens[: live.cached]))
        require(all(self.memory.get(b) == state for b in live.state_blocks), "the state of a hit is not the one stored")

    @property
    def _B(self) -> int:
        return self.config.block_size

    @property
    def _state_blocks(self) -> int:
        return self.config.state_blocks if self.adapter.has_state else 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._B)

    def _kv(self, live: Live, end: int) -> object:
        return ("kv", live.tenant, tuple(live.tokens[:end]))

    def _sight(self) -> list[int | None]:
        """What of the last few prompts is cached."""
        return [self._match(tenant, tokens) for tenant, tokens in self.recent]

    def _match(self, tenant: str, tokens: list[int]) -> int | None:
        return self.adapter.match(tenant, list(tokens)) if self.adapter.can_match else None

    def _nothing_lost(self, tenant: str, more: int = 0) -> bool:
        """True while no eviction, quota or collision can be an excuse, `more` blocks from now included."""
        return (
            self.handed_out + more <= self.config.num_blocks and tenant not in self.quotas and not self.config.weak_hash
        )

    def _check_refusal(self, before: int, needed: int, tenant: str) -> None:
        require(self.adapter.num_reclaimable() == before, "a refused request changed the pool")
        require(needed > before or tenant in self.quotas, "a request was refused although there is room")

    def _admit(self, tenant: str, tokens: list[int], admission: Admission) -> Live:
        cached, table = admission.cached_tokens, list(admission.block_table)
        require(len(table) == self._blocks_for(len(tokens)), "the block table does not cover the tokens")
        require(cached % self._B == 0, "a hit ends inside a block")
        self._expect_unused(table[cached // self._B :])
        self.memory.update(dict.fromkeys(table[cached // self._B :], "stale"))
        self.hits += cached > 0
        live = Live(tenant, list(tokens), admission.request, table, cached, cached, admission.state_blocks)
        self._verify_content(live)
        self.live.append(live)
        return live

    def _write_kv(self, live: Live, num_tokens: int) -> None:
        for position in range(live.committed // self._B, self._blocks_for(num_tokens)):
            self.memory[live.table[position]] = self._kv(live, min(num_tokens, (position + 1) * self._B))

    def _expect_unused(self, blocks: Any) -> None:
        """New blocks belong to nobody else."""
        new = set(blocks)
        require(len(new) == len(blocks), "the same block was handed out twice")
        for live in {*self.live, *(f.live for f in self.flights if f.live)}:
            require(new.isdisjoint(live.table) and new.isdisjoint(live.state_blocks), "a block of a request was reused")
            require(all(new.isdisjoint(hold.blocks) for hold, _ in live.tickets), "a reserved block was handed out")
        for flight in self.flights:
            held = (*flight.hold.blocks, *flight.hold.read_blocks, *flight.keeps)
            require(new.isdisjoint(held), "a block of a transfer was handed out")

    def _finish(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self.over = [*self.over[-3:], flight]
        if flight.live:
            flight.live.landing = None
        if flight.source:
            flight.source.stream = None
