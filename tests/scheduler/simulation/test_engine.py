from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.reallocator import Rules
from prfaas_ref.scheduler.retry import RetryBudget
from prfaas_ref.scheduler.router import Cheapest, Fixed, Threshold
from prfaas_ref.scheduler.simulation import Control, Failure, simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.workload import drawn
from prfaas_ref.scheduler.threshold import Tuning
from tests.scheduler.simulation.deployments import SYSTEM, config, request, rows


def case_study_requests(n, rate=2.6, seed=0, burstiness=1.0):
    return drawn(n, rate, case_study().lengths, 1024, np.random.default_rng(seed), burstiness)


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from([Threshold(700), Threshold(700, "abundant"), Cheapest(), Fixed("prfaas"), Fixed("pd")]),
    failures=st.lists(
        st.builds(
            Failure,
            st.floats(0, 60),
            st.sampled_from(["prfaas-0", "prfaas-1", "pd-0", "pd-1", "pd-2", "pd-3"]),
            st.one_of(st.floats(0, 30), st.just(inf)),
        ),
        max_size=5,
    ),
    link_changes=st.lists(st.tuples(st.floats(0, 60), st.sampled_from([0.0, 1e6, 8e8])), max_size=3),
    admission=st.sampled_from([None, Admission(max_ttft_s=5.0), Admission(max_link_bytes=4e6)]),
    control=st.sampled_from(
        [
            Control(),
            Control(tuning=Tuning(dwell_s=2.0)),
            Control(rules=Rules(windows=1, dwell_s=0.0, min_load=0.1), window_s=5.0, convert_s=2.0),
        ]
    ),
    until_s=st.sampled_from([inf, 20.0]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_whatever_happens_every_request_ends_once(seed, policy, failures, link_changes, admission, control, until_s):
    rng = np.random.default_rng(seed)
    many = [
        request(i, 0.4 * i, int(rng.integers(1, 3000)), int(rng.integers(1, 300)), tuple(range(rng.integers(0, 6))))
        for i in range(80)
    ]
    many = [replace(r, prompt_tokens=max(r.prompt_tokens, 512 * len(r.hash_ids))) for r in many]
    told = config(
        (2, 2, 2), policy, failures=tuple(failures), link_changes=tuple(link_changes), admission=admission,
        control=control, until_s=until_s, deadline_s=200.0, cache_bytes=4e7, seed=seed,
    )  # fmt: skip
    result = simulate(told, many)
    ended = result.outcomes.ended
    assert sum(ended.values()) + result.in_flight == result.outcomes.arrived
    assert len(rows(result)) == sum(ended.values())
    ledger = result.control.router.ledger
    ledger.check_invariants()
    for cache in result.caches.values():
        cache.index.check_invariants()
    if until_s == inf:
        assert (result.outcomes.arrived, result.in_flight) == (80, 0)
        for account in ledger._accounts.values():
            assert (account.work_us, account.n_bytes, account.requests) == (0, 0, 0)
        for cache in result.caches.values():
            assert not cache.index.allocations
    pd = [worker for worker in result.control.roster.workers if worker.cluster == "pd"]
    assert len(pd) == 4
    assert simulate(told, many).log.hexdigest() == result.log.hexdigest()


def test_ten_thousand_requests_are_conserved_and_a_seed_is_a_log():
    told = config((4, 3, 5), Threshold(19_400), case_study(), node_tokens=27_000)
    results = [simulate(told, case_study_requests(10_000, seed=seed)) for seed in (0, 0, 1)]
    assert [r.outcomes.ended["completed"] for r in results] == [10_000] * 3
    first, again, other = (r.log.hexdigest() for r in results)
    assert first == again != other


def test_no_requests_and_no_workers():
    result = simulate(config(), [])
    found = summarise(result, 1.0)
    assert (found["arrived"], found["in_flight"], found["mean_ttft_ms"], found["slo_attainment"]) == (0, 0, None, None)
    stranded = simulate(config((0, 0, 1)), [request(0, 0.0)])
    assert (rows(stranded)["r0"].status, rows(stranded)["r0"].reason) == ("failed", "no worker")


@pytest.mark.parametrize(("t", "share"), [(0.0, 1.0), (inf, 0.0)])
def test_thresholds_at_their_limits(t, share):
    result = simulate(config((1, 1, 1), Threshold(t)), [request(i, 10.0 * i) for i in range(20)])
    assert summarise(result, 1.0)["offloaded_share"] == share


def test_a_prefill_worker_killed_in_mid_transfer():
    slow = replace(SYSTEM, link_bits_per_s=1.6e6)  # 2 MB take 10 s
    failure = Failure(5.0, "prfaas-0", 1.0)
    result = simulate(config((1, 0, 1), Fixed("prfaas"), slow, failures=(failure,)), [request(0, 0.0)])
    row = rows(result)["r0"]
    assert (row.status, row.attempts) == ("completed", 2)
    assert row.ttft_s == pytest.approx(6.0 + 10.0)
    assert result.control.transfers.egress.delivered_bits == pytest.approx(1.6e6 * (5 + 10))
    assert result.control.roster.by_id["prfaas-0"].incarnation == 1


def test_a_decode_worker_lost_in_mid_answer_is_continued_from_what_was_emitted():
    failure = Failure(2.5, "pd-1", 100.0)
    result = simulate(config((0, 1, 2), failures=(failure,)), [request(0, 0.0, output=100)])
    row = rows(result)["r0"]
    assert (row.status, row.attempts, row.ttft_s) == ("completed", 2, 2.0)  # 51 of 100 tokens were out at 2.5 s
    assert row.finish_s == pytest.approx(2.5 + 1051 * 2e-3 + 48 * 0.01)


def test_nothing_runs_on_a_worker_while_it_is_down():
    failures = tuple(Failure(at_s, "prfaas-0", 10.0) for at_s in (10.0, 40.0, 70.0))
    told = config((2, 1, 2), Fixed("prfaas"), failures=failures, keep_spans=True)
    result = simulate(told, [request(i, 0.7 * i) for i in range(140)])
    spans = [span for span in result.log.spans if span.where == "prfaas-0"]
    assert len(spans) > 20
    for failure in failures:
        assert not [s for s in spans if s.start_s < failure.at_s + 10.0 and s.end_s > failure.at_s]
    assert result.outcomes.ended["completed"] == 140


def test_a_worker_that_always_fails_does_not_turn_the_load_into_retries():
    failures = tuple(Failure(0.5 * i, "prfaas-0", 0.01) for i in range(1, 400))
    told = config((1, 0, 4), Fixed("prfaas"), failures=failures, retries=RetryBudget(3, 0.2, 4))
    result = simulate(told, [request(i, 0.05 * i) for i in range(300)])
    attempts = [row.attempts for row in rows(result).values()]
    assert max(attempts) <= 3
    assert result.outcomes.reasons["failed: worker lost"] > 0
    assert sum(attempts) < 300 * 1.5  # without the budget: 300 * 3
    assert sum(result.outcomes.ended.values()) == 300


def test_a_link_that_stays_down_fails_requests_at_their_deadline():
    told = config((1, 0, 1), Fixed("prfaas"), link_changes=((0.5, 0.0),), deadline_s=60.0)
    result = simulate(told, [request(0, 0.0), request(1, 1.0)])
    assert {row.reason for row in rows(result).values()} == {"deadline"}
    assert 60 <= max(row.finish_s for row in rows(result).values()) <= 75


def test_admission_refuses_by_name_and_counts_against_goodput():
    burst = [request(i, 0.0) for i in range(20)]
    bounded = simulate(config((0, 1, 5), admission=Admission(max_ttft_s=10.0)), burst)
    assert bounded.outcomes.reasons == {"rejected: predicted ttft": 15}
    assert max(row.ttft_s for row in rows(bounded).values() if row.status == "completed") <= 10.0
    assert summarise(bounded, 10.0)["slo_attainment"] == 0.25
    light = simulate(config((1, 0, 5), Fixed("prfaas"), admission=Admission(max_link_bytes=5e6)), burst)
    assert light.outcomes.reasons == {"rejected: bytes in flight": 18}


def test_caches_hit_at_snapshots_and_branch_points():
    three = (1, 2, 3)
    told = config((0, 1, 1), cache_bytes=1e9)
    many = [
        request(0, 0.0, 3 * 512 + 9, hash_ids=(*three, 4)),
        request(1, 100.0, 4 * 512, hash_ids=(*three, 5)),  # hits the snapshot at three blocks
        request(2, 200.0, 4 * 512 + 9, hash_ids=(1, 2, 6, 7, 8)),  # KV for two, no state: a snapshot is left there
        request(3, 300.0, 2 * 512 + 9, hash_ids=(1, 2, 9)),
        request(4, 400.0, 4 * 512, hash_ids=(*three, 5)),  # the same again: its last block is never a hit
    ]
    found = rows(simulate(told, many))
    assert [found[f"r{i}"].cached_tokens for i in range(5)] == [0, 3 * 512, 0, 2 * 512, 3 * 512]


def test_a_prefix_moves_under_the_abundant_rule_and_only_its_increment_is_counted():
    told = config((1, 1, 1), Threshold(3000, "abundant"), cache_bytes=1e9)
    eight = tuple(range(1, 9))
    first = request(0, 0.0, 8 * 512 + 100, hash_ids=(*eight, 50))  # offloaded: both clusters learn it
    second = request(1, 100.0, 8 * 512 + 200, hash_ids=(*eight, 60))  # short where it is cached: the PD cluster
    found = rows(simulate(told, [first, second]))
    assert (found["r0"].route, found["r1"].route) == ("prfaas", "pd")
    assert found["r1"].cached_tokens == 8 * 512
    # The PD cluster computes a prompt of 2500 tokens; a longer one on top of it is offloaded, and its prefix moves.
    local = request(0, 0.0, 5 * 512, hash_ids=(1, 2, 3, 4, 5))
    longer = request(1, 100.0, 12 * 512, hash_ids=tuple(range(1, 13)))
    result = simulate(told, [local, longer])
    found = rows(result)
    assert (found["r0"].route, found["r1"].route, found["r1"].cached_tokens) == ("pd", "prfaas", 5 * 512)
    assert result.control.transfers.ingress.delivered_bits == pytest.approx(8 * (5 * 512 * 1000 + 1e6))
    assert result.control.transfers.egress.delivered_bits == pytest.approx(8 * (7 * 512 * 1000 + 1e6))


def test_a_draining_worker_loses_nothing_and_comes_back_in_a_new_epoch():
    rules = Rules(windows=1, dwell_s=0.0, min_load=0.5, max_load_after=10.0)
    told = config((0, 1, 3), control=Control(rules=rules, window_s=20.0, convert_s=5.0), keep_spans=True)
    many = [request(i, 1.0 * i, output=400) for i in range(120)]  # 2 s of prefill each second: prefill needs more
    result = simulate(told, many)
    assert result.outcomes.ended["completed"] == 120
    assert {row.attempts for row in rows(result).values()} == {1}
    moved_s, worker_id, role = result.control.converted[0]
    assert role == "prefill"
    worker = result.control.roster.by_id[worker_id]
    assert worker.epoch >= 1
    assert worker.incarnation >= 1
    spans = [s for s in result.log.spans if s.where == worker_id]
    last_decode = max(s.end_s for s in spans if s.name == "decode" and s.start_s < moved_s)
    first_prefill = min(s.start_s for s in spans if s.name == "prefill")
    assert last_decode + 5.0 <= moved_s + 1e-9
    assert moved_s <= first_prefill
    assert result.control.roster.count("prefill") + result.control.roster.count("decode") == 4


def test_the_paper_policy_follows_the_bandwidth():
    system = case_study()
    narrow = ((300.0, 5e9),)
    told = config((4, 3, 5), Threshold(19_400), system, control=Control(tuning=Tuning()), link_changes=narrow)
    result = simulate(told, case_study_requests(1500, rate=2.0))
    thresholds = np.array(result.control.samples.threshold)
    assert 13_000 < np.median(thresholds[100:300]) < 26_000
    assert np.median(thresholds[400:]) > 28_000
