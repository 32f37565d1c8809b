from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prfaas_ref.scheduler.ledger import LoadLedger

WORKERS = ["a", "b"]
STAGES = ["prefill", "egress", "decode"]


class LedgerMachine(RuleBasedStateMachine):
    """The ledger against a plain dictionary of open charges, through aborts, retries and restarts."""

    @initialize()
    def start(self):
        self.ledger = LoadLedger()
        self.open = {}
        self.incarnation = dict.fromkeys(WORKERS, 0)

    @rule(worker=st.sampled_from(WORKERS))
    def restart(self, worker):
        self.incarnation[worker] += 1
        fresh = self.ledger.account(worker, self.incarnation[worker])
        assert (fresh.work_us, fresh.n_bytes, fresh.requests) == (0, 0, 0)

    @rule(
        request=st.sampled_from("xyz"),
        stage=st.sampled_from(STAGES),
        worker=st.sampled_from(WORKERS),
        seconds=st.floats(0, 100),
        n_bytes=st.integers(0, 2**40),
    )
    def charge(self, request, stage, worker, seconds, n_bytes):
        account = self.ledger.account(worker, self.incarnation[worker])
        if (request, stage) in self.open:
            try:
                self.ledger.charge(request, stage, account, seconds, n_bytes)
            except RuntimeError:
                return
            raise AssertionError("charged twice")
        self.ledger.charge(request, stage, account, seconds, n_bytes)
        self.open[request, stage] = ((worker, self.incarnation[worker]), int(seconds * 1e6), n_bytes)

    @rule(request=st.sampled_from("xyz"), stage=st.sampled_from(STAGES))
    def release(self, request, stage):
        assert self.ledger.release(request, stage) == (self.open.pop((request, stage), None) is not None)

    @rule(request=st.sampled_from("xyz"))
    def release_all(self, request):
        held = [key for key in self.open if key[0] == request]
        assert self.ledger.release_all(request) == len(held)
        for key in held:
            del self.open[key]

    @invariant()
    def counters_equal_a_recount(self):
        self.ledger.check_invariants()
        for worker in WORKERS:
            for incarnation in range(self.incarnation[worker] + 1):
                mine = [c for c in self.open.values() if c[0] == (worker, incarnation)]
                account = self.ledger.account(worker, incarnation)
                assert account.work_us == sum(c[1] for c in mine)
                assert account.n_bytes == sum(c[2] for c in mine)
                assert account.requests == len(mine)

    def teardown(self):
        for request in "xyz":
            self.ledger.release_all(request)
        for worker in WORKERS:
            assert self.ledger.account(worker, self.incarnation[worker]).queue_s == 0.0


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
TestLedger = LedgerMachine.TestCase
