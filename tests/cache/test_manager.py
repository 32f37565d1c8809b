"""The global view: the union of the local indexes when all is delivered, and only ever a hint when it is not."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prfaas_ref.cache.allocation import PrefixMatch
from prfaas_ref.cache.index import HybridCacheIndex, OutOfBlocks
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.manager import GlobalKVCacheManager
from prfaas_ref.cache.report import CacheReport, CacheReporter, WorkerName

B = 2
NS = Namespace("weights", B)
WORKERS = (WorkerName("prfaas", "w0"), WorkerName("pd", "w0"), WorkerName("pd", "w1"))


class Worker:
    def __init__(self, name: WorkerName, incarnation: int = 1, num_blocks: int | None = None) -> None:
        self.reporter = CacheReporter(name, incarnation, has_state=True)
        self.index = HybridCacheIndex(num_blocks, B, 1, listener=self.reporter)

    def serve(self, tokens: list[int], state: bool = True, namespace: Namespace = NS) -> None:
        try:
            alloc = self.index.allocate(namespace, tokens)
        except OutOfBlocks:
            return
        self.index.commit(alloc, len(tokens))
        ticket = self.index.reserve_checkpoint(alloc, len(tokens) // B * B) if state and len(tokens) >= B else None
        if ticket:
            self.index.publish_checkpoint(ticket)
        self.index.free(alloc)


def test_the_answer_has_kv_and_usable_tokens_for_each_worker() -> None:
    manager, workers = GlobalKVCacheManager(), [Worker(name) for name in WORKERS]
    workers[0].serve(list(range(8)))
    workers[1].serve(list(range(6)), state=False)
    workers[2].serve(list(range(4)))
    for worker in workers:
        assert manager.apply(worker.reporter.take_report())
    prompt = list(range(9))
    assert manager.lookup(NS, prompt) == {
        WORKERS[0]: PrefixMatch(8, 8),
        WORKERS[1]: PrefixMatch(6, 0),
        WORKERS[2]: PrefixMatch(4, 4),
    }
    assert manager.lookup_clusters(NS, prompt) == {"prfaas": PrefixMatch(8, 8), "pd": PrefixMatch(4, 4)}
    assert manager.lookup(Namespace("weights", B, "tenant"), prompt)[WORKERS[0]] == PrefixMatch(0, 0)


def test_a_gap_is_noticed_and_a_full_report_mends_it() -> None:
    manager, worker = GlobalKVCacheManager(), Worker(WORKERS[0])
    worker.serve([1, 2, 3])
    worker.reporter.take_report()  # lost
    worker.serve([5, 6, 7])
    assert not manager.apply(worker.reporter.take_report())
    assert manager.lookup(NS, [5, 6, 7]) == {}
    assert manager.apply(worker.reporter.take_full_report(worker.index.tree))
    assert manager.lookup(NS, [5, 6, 7])[WORKERS[0]] == worker.index.match_prefix(NS, [5, 6, 7]) == PrefixMatch(2, 2)


def test_a_restart_empties_the_view_and_reports_of_the_dead_are_ignored() -> None:
    manager, worker = GlobalKVCacheManager(), Worker(WORKERS[0], incarnation=1)
    worker.serve([1, 2, 3])
    assert manager.apply(worker.reporter.take_report())
    worker.serve([4, 5, 6])
    late = worker.reporter.take_report()
    reborn = Worker(WORKERS[0], incarnation=2)
    assert manager.apply(reborn.reporter.take_report())
    assert manager.lookup(NS, [1, 2, 3])[WORKERS[0]] == PrefixMatch(0, 0)
    assert manager.apply(late)
    assert manager.lookup(NS, [4, 5, 6])[WORKERS[0]] == PrefixMatch(0, 0)


def test_a_worker_that_is_gone_is_not_answered_for() -> None:
    manager, worker = GlobalKVCacheManager(), Worker(WORKERS[0])
    worker.serve([1, 2, 3])
    manager.apply(worker.reporter.take_report())
    manager.forget(WORKERS[0])
    assert manager.lookup(NS, [1, 2, 3]) == {}
    assert not manager.apply(worker.reporter.take_report())


def test_hot_spots_are_what_is_asked_of_workers_that_lack_it() -> None:
    manager, workers = GlobalKVCacheManager(), [Worker(name) for name in WORKERS]
    workers[0].serve(list(range(8)))
    workers[1].serve([50, 51, 52])
    for worker in workers:
        manager.apply(worker.reporter.take_report())
    for _ in range(4):
        manager.asked(WORKERS[2], NS, range(9))
        manager.asked(WORKERS[0], NS, range(9))  # has it: no hot spot
    manager.asked(WORKERS[2], NS, [50, 51, 52])
    first, second = manager.hot_spots(10)
    assert (first.holder, first.asked, first.tokens, first.times) == (WORKERS[0], WORKERS[2], 8, 4)
    assert (second.holder, second.tokens, second.times) == (WORKERS[1], 2, 1)
    assert [spot.times for spot in manager.hot_spots(10)] == [2]


class GlobalView(RuleBasedStateMachine):
    """Workers live, reports get lost, repeated and reordered; a refused report is answered by a full one."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = GlobalKVCacheManager()
        self.workers = {name: Worker(name, num_blocks=8) for name in WORKERS}
        self.sent: list[CacheReport] = []
        self.clean = set(WORKERS)  # all they said was delivered in order

    @rule(
        name=st.sampled_from(WORKERS), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), state=st.booleans()
    )
    def serve(self, name: WorkerName, tokens: list[int], state: bool) -> None:
        self.workers[name].serve(tokens, state)
        self.clean.discard(name)

    @rule(name=st.sampled_from(WORKERS))
    def report(self, name: WorkerName) -> None:
        report = self.workers[name].reporter.take_report()
        self.sent.append(report)
        if not self.manager.apply(report):
            assert self.manager.apply(self.workers[name].reporter.take_full_report(self.workers[name].index.tree))
        self.clean.add(name)

    @rule(name=st.sampled_from(WORKERS))
    def lose(self, name: WorkerName) -> None:
        self.sent.append(self.workers[name].reporter.take_report())
        self.clean.discard(name)

    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 20))
    def deliver_again(self, number: int) -> None:
        """Something old, or long lost, comes out of order."""
        report = self.sent[number % len(self.sent)]
        if not self.manager.apply(report):
            self.clean.discard(report.worker)

    @rule(name=st.sampled_from(WORKERS))
    def restart(self, name: WorkerName) -> None:
        self.workers[name] = Worker(name, self.workers[name].reporter.incarnation + 1, num_blocks=8)
        self.clean.discard(name)

    @invariant()
    def the_view_of_a_worker_that_was_heard_is_its_index(self) -> None:
        for tokens in ([0] * 9, [1] * 9, [0, 1] * 4, [0, 0, 1, 1, 0, 1, 1]):
            seen = self.manager.lookup(NS, tokens)
            for name in self.clean & seen.keys():
                assert seen[name] == self.workers[name].index.match_prefix(NS, tokens)


TestGlobalView = GlobalView.TestCase
TestGlobalView.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
