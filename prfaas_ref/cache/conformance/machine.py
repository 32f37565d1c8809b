"""Random life for a manager: hypothesis picks the moves, the examiner checks them, and a failure is cut to a short
story.

examine(MyAdapter)                          # raises Violation (or what the manager raised) with the story
TestMine = machine(MyAdapter).TestCase      # the same, in a test file
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from prfaas_ref.cache.conformance.adapter import CacheAdapter, CacheConfig
from prfaas_ref.cache.conformance.books import Flight, Live, require
from prfaas_ref.cache.conformance.examiner import Examiner

AdapterFactory = Callable[[CacheConfig], CacheAdapter]
Item = TypeVar("Item", Live, Flight)

ROOMY_BLOCKS = 5_000  # more than any story uses: then nothing may ever be lost
CONFIGS = st.builds(
    CacheConfig,
    num_blocks=st.sampled_from([6, 10, 16, ROOMY_BLOCKS]),
    block_size=st.integers(1, 3),
    state_blocks=st.integers(0, 2),
    weak_hash=st.sampled_from([False, False, True]),
    favour_long=st.booleans(),
    quotas=st.just((("limited", 5),)),
)
TENANTS = st.sampled_from(["", "a", "limited"])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
PICK = st.integers(0, 5)  # one of the requests or transfers, modulo how many there are
LENGTH = st.integers(0, 14)
FLAGS = [name for name in dir(CacheAdapter) if name.startswith(("has_", "can_"))]


def pick(items: list[Item], number: int) -> Item:
    return items[number % len(items)]


@dataclass
class Examined:
    """What all lives together came to: moves made, prompts that hit, and the calls that there were."""

    moves: int = 0
    hits: int = 0
    calls: str = ""


class ManagerMachine(RuleBasedStateMachine):
    """The moves. `machine` makes the subclass that knows which manager to build.

    Lengths and tokens are drawn small, and `stretched` to the manager's block_unit.
    """

    factory: AdapterFactory
    examined: Examined
    examiner: Examiner

    @initialize(config=CONFIGS)
    def build(self, config: CacheConfig) -> None:
        factory, examined = type(self).factory, type(self).examined
        self.unit = getattr(factory, "block_unit", 1)
        if getattr(factory, "has_state", False):
            config = replace(config, state_blocks=max(1, config.state_blocks))
        self.examiner = Examiner(factory(replace(config, block_size=config.block_size * self.unit)))
        parts = [name.partition("_")[2] for name in FLAGS if getattr(self.examiner.adapter, name)]
        examined.calls = max(examined.calls, ", ".join(["allocate", "commit", "free", *parts]), key=len)

    @invariant()
    def verify(self) -> None:
        type(self).examined.moves += 1
        self.examiner.verify()

    def stretched(self, tokens: list[int]) -> list[int]:
        """Each token `unit` times, a few fewer at the end, so that blocks are left partly filled too."""
        return [token for token in tokens for _ in range(self.unit)][: self.length(len(tokens))]

    def length(self, number: int) -> int:
        return number * self.unit - 5 * number % self.unit

    @rule(tenant=TENANTS, tokens=TOKENS)
    def allocate(self, tenant: str, tokens: list[int]) -> None:
        self.examiner.allocate(tenant, self.stretched(tokens))

    @rule(tenant=TENANTS, tokens=TOKENS, stop=LENGTH, snapshots=st.booleans(), cancelled=st.booleans())
    def serve(self, tenant: str, tokens: list[int], stop: int, snapshots: bool, cancelled: bool) -> None:
        """A whole request: written in two parts, perhaps a snapshot at the end of each, then gone. Perhaps it was
        cancelled after the first part, and is tried again. Fills the pool fast."""
        tokens, stop = self.stretched(tokens), self.length(stop)
        if cancelled:
            self.run(tenant, tokens, [stop], snapshots)
        self.run(tenant, tokens, [stop, len(tokens)], snapshots)

    def run(self, tenant: str, tokens: list[int], ends: list[int], snapshots: bool) -> None:
        live = self.examiner.allocate(tenant, tokens)
        if live is None:
            return
        for num_tokens in ends:
            self.examiner.advance(live, num_tokens)
            if snapshots:
                self.snapshot(live)
        self.examiner.free(live)

    @precondition(lambda self: self.examiner.recent)
    @rule(number=PICK, more=st.lists(st.integers(0, 1), max_size=2), snapshots=st.booleans())
    def serve_again(self, number: int, more: list[int], snapshots: bool) -> None:
        """A prompt seen lately comes back, as it was or a little longer."""
        tenant, tokens = self.examiner.recent[number % len(self.examiner.recent)]
        tokens = [*tokens, *self.stretched(more)]
        self.run(tenant, tokens, [len(tokens)], snapshots)

    @precondition(lambda self: self.examiner.adapter.has_state)
    @rule(tenant=TENANTS, tokens=TOKENS, stream=st.booleans())
    def race(self, tenant: str, tokens: list[int], stream: bool) -> None:
        """Two equal requests at once: both compute, both have room for the snapshot, one is first, both are read."""
        tokens = self.stretched(tokens)
        lives = [live for live in (self.examiner.allocate(tenant, tokens) for _ in range(2)) if live]
        for live in lives if stream and self.examiner.adapter.can_stream else ():
            self.examiner.stream(live, live_blocks=0, lease_s=3)
        for live in lives:
            self.examiner.advance(live, len(tokens))
            self.examiner.reserve(live, len(tokens) // self.examiner.config.block_size)
        for live in lives:
            self.examiner.publish(live)

    @precondition(lambda self: self.examiner.live)
    @rule(number=PICK, num_tokens=LENGTH, snapshot=st.booleans())
    def advance(self, number: int, num_tokens: int, snapshot: bool) -> None:
        live = pick(self.examiner.live, number)
        self.examiner.advance(live, self.length(num_tokens))
        if snapshot:
            self.snapshot(live)

    def snapshot(self, live: Live) -> None:
        if self.examiner.adapter.has_state and not live.landing:
            self.examiner.reserve(live, live.committed // self.examiner.config.block_size)
            self.examiner.publish(live)

    @precondition(lambda self: self.examiner.adapter.has_state and self.examiner.live)
    @rule(number=PICK, depth=st.integers(1, 4))
    def reserve(self, number: int, depth: int) -> None:
        self.examiner.reserve(pick(self.examiner.live, number), depth)

    @precondition(lambda self: self.examiner.adapter.has_state and self.examiner.live)
    @rule(number=PICK)
    def publish(self, number: int) -> None:
        self.examiner.publish(pick(self.examiner.live, number))

    @precondition(lambda self: self.examiner.adapter.can_extend and self.examiner.live)
    @rule(number=PICK, tokens=TOKENS)
    def extend(self, number: int, tokens: list[int]) -> None:
        self.examiner.extend(pick(self.examiner.live, number), self.stretched(tokens[:3]))

    @precondition(lambda self: self.examiner.live)
    @rule(number=PICK)
    def free(self, number: int) -> None:
        self.examiner.free(pick(self.examiner.live, number))

    @precondition(lambda self: self.examiner.adapter.has_transfers and self.examiner.live)
    @rule(number=PICK, num_tokens=LENGTH, live_blocks=st.integers(0, 2), lease_s=st.integers(1, 5))
    def send(self, number: int, num_tokens: int, live_blocks: int, lease_s: int) -> None:
        self.examiner.send(pick(self.examiner.live, number), self.length(num_tokens), live_blocks, lease_s)

    @precondition(lambda self: self.examiner.adapter.can_stream and self.examiner.live)
    @rule(number=PICK, live_blocks=st.integers(0, 2), lease_s=st.integers(1, 5))
    def stream(self, number: int, live_blocks: int, lease_s: int) -> None:
        self.examiner.stream(pick(self.examiner.live, number), live_blocks, lease_s)

    @precondition(lambda self: self.examiner.adapter.has_transfers)
    @rule(tenant=TENANTS, tokens=TOKENS, live_blocks=st.integers(0, 2), lease_s=st.integers(1, 5))
    def receive(self, tenant: str, tokens: list[int], live_blocks: int, lease_s: int) -> None:
        self.examiner.receive(tenant, self.stretched(tokens), live_blocks, lease_s)

    @precondition(lambda self: self.examiner.flights)
    @rule(number=PICK)
    def land(self, number: int) -> None:
        self.examiner.land(pick(self.examiner.flights, number))

    @precondition(lambda self: self.examiner.flights)
    @rule(number=PICK, settle=st.booleans())
    def abort(self, number: int, settle: bool) -> None:
        flight = pick(self.examiner.flights, number)
        self.examiner.abort(flight)
        if settle:
            self.examiner.settle(flight)

    @precondition(lambda self: self.examiner.over)
    @rule(number=PICK)
    def hear_of_it_again(self, number: int) -> None:
        flight = pick(self.examiner.over, number)
        self.examiner.land(flight)
        self.examiner.abort(flight)
        self.examiner.settle(flight)

    @precondition(lambda self: any(flight.stopped for flight in self.examiner.flights))
    @rule(number=PICK)
    def settle(self, number: int) -> None:
        self.examiner.settle(pick([flight for flight in self.examiner.flights if flight.stopped], number))

    @precondition(lambda self: self.examiner.adapter.has_transfers)
    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.examiner.pass_time(seconds)

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:  # a story that failed already has its ending
            self.examiner.drain()
            type(self).examined.hits += self.examiner.hits


def machine(factory: AdapterFactory) -> type[ManagerMachine]:
    """The state machine over managers that `factory` builds."""
    return type("UnderExamination", (ManagerMachine,), {"factory": staticmethod(factory), "examined": Examined()})


def examine(factory: AdapterFactory, stories: int = 200, moves: int = 50, shrink: bool = True) -> Examined:
    """Try `stories` random lives of up to `moves` moves, the same ones every time. Returns what they came to.

    Raises on the first life that fails: Violation for a broken promise, or whatever the manager raised. A manager that
    never hit anything fails too: it would keep every other promise.
    """
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    under_test = machine(factory)
    run_state_machine_as_test(
        under_test,
        settings=settings(
            max_examples=stories,
            stateful_step_count=moves,
            phases=phases,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    require(under_test.examined.hits > 0, "no prompt was ever hit")
    return under_test.examined
