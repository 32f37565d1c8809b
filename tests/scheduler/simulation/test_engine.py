from dataclasses import replace
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.lengths import ObservedLengths
from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize
from prfaas_ref.scheduler.reallocator import Rules
from prfaas_ref.scheduler.retry import RetryBudget
from prfaas_ref.scheduler.router import Cheapest, Fixed, Threshold
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import Control, Failure, simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import configure, with_trace
from prfaas_ref.scheduler.simulation.workload import drawn
from prfaas_ref.scheduler.threshold import Tuning, plan_thresholds
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


@given(st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_request_without_ids_is_not_credited_with_what_others_have_cached(told):
    many = [
        request(i, 50.0 * i, tokens, 5, tuple(range(ceil(tokens / 512))) if hashed else ())
        for i, (tokens, hashed) in enumerate(told)
    ]
    found = rows(simulate(config((1, 1, 1), Threshold(1500), cache_bytes=1e9), many))
    for one in [one for one in many if not one.hash_ids]:
        row, remote = found[one.request_id], one.prompt_tokens > 1500
        assert (row.route, row.cached_tokens) == ("prfaas" if remote else "pd", 0)
        assert row.link_bytes == (1000 * one.prompt_tokens + 1_000_000 if remote else 0)


LATE = st.lists(st.floats(0, 1e6), max_size=3)


@given(link_changes=LATE, failures=LATE, until_s=st.one_of(st.just(inf), st.floats(0, 60)))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rates_are_over_the_time_to_the_last_end_or_to_the_cut(link_changes, failures, until_s):
    """Five local requests, 10 s apart, of 2 s of prefill and 0.99 s of decode; nothing else touches them."""
    told = config(
        (1, 1, 1), link_changes=tuple((at_s, 1e6) for at_s in link_changes), until_s=until_s,
        failures=tuple(Failure(at_s, "prfaas-0", 1.0) for at_s in failures),
    )  # fmt: skip
    found = summarise(simulate(told, [request(i, 10.0 * i) for i in range(5)]), 10.0)
    ends = [10.0 * i + 2.99 for i in range(5)]
    done = [end_s for end_s in ends if end_s <= until_s + 1e-9]
    cut = any(end_s - 2.99 <= until_s < end_s - 1e-9 for end_s in ends)
    span_s = until_s if cut else done[-1]
    assert found["duration_s"] == pytest.approx(span_s)
    if span_s > 0:
        assert found["request_throughput"] == found["request_goodput"] == pytest.approx(len(done) / span_s)
        assert found["output_throughput"] == pytest.approx(100 * len(done) / span_s)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_answers_of_one_token_have_no_time_per_output_token(outputs):
    found = summarise(simulate(config(), [request(i, 10.0 * i, output=n) for i, n in enumerate(outputs)]), 10.0)
    assert found["mean_tpot_ms"] == (None if max(outputs) == 1 else pytest.approx(10.0))


@given(st.integers(0, 9))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_decode_work_is_priced_by_the_batch_that_memory_allows(contexts):
    """A context of mean length is 1100 tokens of 1000 B and 1 MB; the profile's own batch is 4, a step 10 ms."""
    decode = DecodeProfile(4, 0.01, memory_bytes=(contexts + 0.5) * 2.1e6)
    result = simulate(config(system=replace(SYSTEM, decode=decode)), [])
    batch = {0: 1, 1: 1, 2: 2, 3: 3}.get(contexts, 4)
    assert result.control.router.costs.decode_s_per_token == pytest.approx(0.01 / batch)


@given(
    kv=st.builds(KvSize, st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from([0.0, 1.0, 8.0, 1e6])),
    layers=st.integers(1, 60),
    rtt_s=st.sampled_from([0.0, 0.5, 5.0]),
    prompts=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_no_hand_off_is_so_small_that_it_comes_before_its_prompt_is_computed(kv, layers, rtt_s, prompts):
    """1 ms a token: the prompt, half a round trip, and then the first token. What is not sent yet may add to it."""
    system = replace(SYSTEM, kv=kv, rtt_s=rtt_s)
    many = [request(i, 100.0 * i, tokens) for i, tokens in enumerate(prompts)]
    found = rows(simulate(config((1, 0, 1), Fixed("prfaas"), system, layers=layers), many))
    for one in many:
        least_s = one.prompt_tokens * 1e-3
        wire_s = kv.bytes(one.prompt_tokens) * 8 / 8e8
        assert found[one.request_id].ttft_s >= least_s - 1e-9
        assert found[one.request_id].ttft_s <= least_s + rtt_s / 2 + wire_s + 1e-9


@pytest.mark.parametrize("slo", ["", "mean_ttft_s = 2.0", "mean_ttft_s = 1.9\np90_ttft_s = 4.0"])
def test_the_paper_policy_starts_from_the_plan_and_its_slo(slo):
    scenario = parse_scenario(EXAMPLE.replace("# mean_ttft_s = 3.0", slo), Path())
    setup = configure(scenario, "prfaas-pd", "paper", rate_per_s=0.3)
    result = simulate(setup.config, setup.arrivals(20, 0, 1.0))
    assert set(result.control.samples.threshold) == {setup.plan.threshold_tokens}


def shared_prefix_requests(n):
    """Prompts of the case study's lengths on top of 40 blocks that all share, 2.6 a second."""
    many, free = [], 100
    for drawn_one in case_study_requests(n):
        blocks = ceil(drawn_one.prompt_tokens / 512)
        ids = (*range(40), *range(free, free + blocks))
        many.append(replace(drawn_one, prompt_tokens=40 * 512 + drawn_one.prompt_tokens, hash_ids=ids))
        free += blocks
    return many


@pytest.mark.parametrize("policy", ["paper", "static", "30000"])
def test_the_paper_policy_and_no_other_learns_uncached_lengths_from_a_trace(policy):
    many = shared_prefix_requests(600)
    setup = configure(with_trace(parse_scenario(EXAMPLE, Path()), tuple(many)), "prfaas-pd", policy, rate_per_s=2.6)
    result = simulate(setup.config, setup.arrivals(600, 0, 1.0))
    in_force = result.control.router.policy.threshold_tokens
    if policy != "paper":
        assert in_force == {"static": setup.plan.threshold_tokens, "30000": 30_000}[policy]
        return
    private = ObservedLengths(one.prompt_tokens - 40 * 512 for one in many)
    best = plan_thresholds(replace(setup.config.system, lengths=private), setup.plan.counts, points=1).tokens[0]
    assert best * 1.2 < setup.plan.threshold_tokens
    assert in_force == pytest.approx(best, rel=0.15)


def test_lengths_seen_lately_do_not_stop_a_run_for_want_of_decode_memory():
    """Every prompt fits beside its own short answer, but would not beside the mean answer that was planned for."""
    tight = replace(SYSTEM, decode=DecodeProfile(4, 0.01, memory_bytes=12e6))
    many = [request(i, 1.0 * i, 10_950, output=5) for i in range(140)]
    control = Control(tuning=Tuning(), replan=True, rules=Rules(), window_s=20.0)
    result = simulate(config((1, 1, 2), Threshold(2000), tight, control=control), many)
    assert result.outcomes.ended["completed"] == 140


def test_a_clusters_prefix_cache_survives_the_loss_of_a_worker():
    four = (1, 2, 3, 4)
    many = [request(0, 0.0, 4 * 512, hash_ids=four), request(1, 100.0, 5 * 512, hash_ids=(*four, 5))]
    told = config((1, 0, 1), Fixed("prfaas"), failures=(Failure(50.0, "prfaas-0", 10.0),), cache_bytes=1e9)
    assert rows(simulate(told, many))["r1"].cached_tokens == 4 * 512
