from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.request import Request
from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.fleet import Costs, LinkView, WorkerView, muster
from prfaas_ref.scheduler.placement import choose_prefill, prefix_transfer_pays
from prfaas_ref.scheduler.profile import KvSize, PrefillProfile
from prfaas_ref.scheduler.router import Cheapest, Decision, Fixed, Refusal, Router, Threshold, policy_for

FAST, SLOW = PrefillProfile(0.1, 1e-4), PrefillProfile(0.2, 3e-4)
KV = KvSize(1000.0, 1e6)
COSTS = Costs({"prfaas": FAST, "pd": SLOW}, KV, 0.01)


def request(tokens=1000, name="r"):
    return Request(name, 0.0, tokens, 10)


def views(in_prfaas=0, in_pd=0, kv_at_decode=0):
    return [
        WorkerView("remote", "prfaas", "prefill", matched_tokens=in_prfaas),
        WorkerView("local", "pd", "prefill", matched_tokens=in_pd),
        WorkerView("decode", "pd", "decode", kv_tokens=kv_at_decode),
    ]


def route(policy, tokens, workers, link=None):
    return Router(policy, COSTS).route(request(tokens), muster(workers, link or LinkView(1e9)))


@pytest.mark.parametrize(("tokens", "cached", "expected"), [(100, 0, "pd"), (101, 0, "prfaas"), (101, 1, "pd")])
def test_the_threshold_is_on_the_uncached_length_and_equality_is_local(tokens, cached, expected):
    assert route(Threshold(100), tokens, views(in_pd=cached)).route == expected


def test_a_long_prompt_that_is_mostly_cached_is_short():
    decision = route(Threshold(19_400), 101_000, views(in_pd=100_000))
    assert (decision.route, decision.uncached_tokens, decision.cached_tokens) == ("pd", 1000, 100_000)


def test_always_never_and_zero_are_three_settings():
    wholly_cached = views(in_pd=500, in_prfaas=0)
    assert route(policy_for("always"), 500, wholly_cached).route == "prfaas"
    assert route(policy_for("0"), 500, wholly_cached).route == "pd"
    assert route(policy_for("never"), 10**6, views()).route == "pd"
    assert route(policy_for(0), 1, views()).route == "prfaas"
    assert route(policy_for("inf"), 10**6, views()).route == "pd"


@pytest.mark.parametrize("setting", ["sometimes", "-1", "nan", ""])
def test_a_policy_that_is_no_policy(setting):
    with pytest.raises(ValueError, match=r"threshold|policy"):
        policy_for(setting)


def test_a_wholly_cached_prompt_still_computes_its_last_token():
    assert route(Threshold(10), 500, views(in_pd=500)).uncached_tokens == 1
    assert choose_prefill(views(in_pd=500)[1:2], 500, SLOW)[1] == pytest.approx(SLOW.seconds(1, 499))


def test_scarce_judges_the_local_cache_alone_and_offload_uses_its_own():
    decision = route(Threshold(1000, "scarce"), 5000, views(in_prfaas=4500, in_pd=100))
    assert decision.route == "prfaas"
    assert decision.cached_tokens == 4500
    assert decision.prefix_tokens == 0


def test_abundant_judges_the_longer_cache_and_moves_the_increment():
    decision = route(Threshold(1000, "abundant"), 50_000, views(in_prfaas=49_500, in_pd=10_000))
    assert (decision.route, decision.prefix_tokens) == ("pd", 49_500)
    assert decision.prefix_bytes == 39_500 * 1000 + 10**6  # the recurrent state goes whole
    assert decision.uncached_tokens == 500
    remote = route(Threshold(1000, "abundant"), 50_000, views(in_prfaas=10_000, in_pd=40_000))
    assert (remote.route, remote.prefix_tokens, remote.uncached_tokens) == ("prfaas", 40_000, 10_000)


def test_equal_caches_move_nothing():
    decision = route(Threshold(1000, "abundant"), 50_000, views(in_prfaas=20_000, in_pd=20_000))
    assert (decision.route, decision.prefix_bytes) == ("prfaas", 0)


@pytest.mark.parametrize(
    ("here", "there", "pays"), [(0, 900, True), (500, 500, False), (900, 500, False), (0, 1, False)]
)
def test_a_transfer_must_save_more_than_it_costs(here, there, pays):
    free, dear = LinkView(), LinkView(1e9, rtt_s=0.05)  # a token takes 0.3 ms, 50 ms are 167 tokens
    assert prefix_transfer_pays(1000, here, there, SLOW, KvSize(0.0), free) == (there > here)
    assert prefix_transfer_pays(1000, here, there, SLOW, KV, dear) == pays


def test_a_prefix_that_is_dearer_to_move_than_to_compute_stays_and_is_judged_as_scarce():
    slow = LinkView(1e6)
    decision = route(Threshold(1000, "abundant"), 50_000, views(in_prfaas=49_500, in_pd=10_000), slow)
    assert (decision.route, decision.prefix_bytes, decision.cached_tokens) == ("prfaas", 0, 49_500)


def test_the_hand_off_sends_only_what_the_decode_worker_lacks():
    decision = route(Fixed("prfaas"), 5000, views(kv_at_decode=2000))
    assert decision.link_bytes == 3000 * 1000 + 10**6
    assert route(Fixed("pd"), 5000, views()).link_bytes == 0


def test_cost_weighs_queues_and_the_link():
    workers = views()
    assert route(Cheapest(), 10_000, workers).route == "prfaas"
    assert route(Cheapest(), 10_000, workers, LinkView(1e6)).route == "pd"
    assert route(Cheapest(), 10_000, workers, LinkView(0.0)).route == "pd"
    workers[0].load.work_us = 10**8
    assert route(Cheapest(), 10_000, workers).route == "pd"


def test_cost_keeps_a_request_unless_the_gain_passes_the_margin():
    stay_s, go_s = SLOW.seconds(10_000), FAST.seconds(10_000)
    gain = 1 - go_s / stay_s
    assert route(Cheapest(gain - 0.01), 10_000, views()).route == "prfaas"
    assert route(Cheapest(gain + 0.01), 10_000, views()).route == "pd"


@pytest.mark.parametrize(
    ("dead", "policy", "expected"),
    [("remote", Fixed("prfaas"), "pd"), ("local", Fixed("pd"), "prfaas"), ("remote", Threshold(0), "pd")],
)
def test_an_inactive_worker_gets_nothing(dead, policy, expected):
    workers = views()
    next(w for w in workers if w.worker_id == dead).active = False
    decision = route(policy, 5000, workers)
    assert decision.route == expected
    assert decision.prefill_worker != dead


def test_no_worker_is_a_typed_refusal_that_charges_nothing():
    workers = views()
    router = Router(Threshold(10), COSTS)
    for w in workers:
        w.active = w.role == "decode"
    assert router.route(request(), muster(workers, LinkView())) == Refusal("no worker", "no active prefill worker")
    for w in workers:
        w.active = w.role == "prefill"
    assert router.route(request(), muster(workers, LinkView())) == Refusal("no worker", "no active decode worker")
    assert router.release_all("r") == 0


def test_a_worker_is_named_with_its_incarnation():
    workers = views()
    workers[1].incarnation, workers[2].incarnation = 3, 7
    decision = route(Fixed("pd"), 100, workers)
    assert (decision.prefill_incarnation, decision.decode_incarnation) == (3, 7)


def test_affinity_holds_until_the_queue_costs_more_than_the_prefix_saves():
    router = Router(Fixed("pd"), COSTS)
    workers = [
        WorkerView("hot", "pd", "prefill", matched_tokens=9000, load=router.ledger.account("hot")),
        WorkerView("cold", "pd", "prefill", load=router.ledger.account("cold")),
        WorkerView("decode", "pd", "decode", load=router.ledger.account("decode")),
    ]
    chosen = [router.route(request(10_000, f"r{i}"), muster(workers, LinkView())).prefill_worker for i in range(8)]
    saved, queued = 9000 * SLOW.per_token_s, SLOW.seconds(1000)
    stays = int(saved / queued) + 1
    assert chosen[:stays] == ["hot"] * stays
    assert chosen[stays] == "cold"


@given(
    st.lists(st.tuples(st.integers(1, 60_000), st.booleans(), st.booleans()), max_size=40),
    st.sampled_from(["always", "never", "cost", "5000"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_charge_is_released_once_and_counters_end_at_zero(steps, policy):
    router = Router(policy_for(policy, "abundant"), COSTS)
    egress, ingress = (LinkView(1e9, load=router.ledger.account(name)) for name in ("egress", "ingress"))
    workers = views(in_prfaas=3000, in_pd=1000)
    for w in workers:
        w.load = router.ledger.account(w.worker_id, w.incarnation)
    for i, (tokens, abort, twice) in enumerate(steps):
        decision = router.route(request(tokens, f"r{i}"), muster(workers, egress, ingress))
        assert isinstance(decision, Decision)
        router.ledger.check_invariants()
        if not abort:
            assert router.release(f"r{i}", "prefill")
            assert not router.release(f"r{i}", "prefill")
        if twice:
            router.release_all(f"r{i}")
            assert router.release_all(f"r{i}") == 0
    for i in range(len(steps)):
        router.release_all(f"r{i}")
    router.ledger.check_invariants()
    for account in [egress.load, ingress.load, *(w.load for w in workers)]:
        assert (account.work_us, account.n_bytes, account.requests) == (0, 0, 0)


def test_admission_counts_the_queue_and_the_link_and_charges_nothing():
    workers = views()
    router = Router(Fixed("prfaas"), COSTS, admission=Admission(max_ttft_s=2.0))
    assert isinstance(router.route(request(10_000, "a"), muster(workers, LinkView(1e9))), Decision)
    router.release_all("a")
    slow = muster(workers, LinkView(8e6))  # 11 MB take 11 s
    assert router.route(request(10_000, "b"), slow) == Refusal("predicted ttft", "admission: predicted ttft")
    workers[0].load.work_us = 3 * 10**6
    assert isinstance(router.route(request(10_000, "c"), muster(workers, LinkView(1e9))), Refusal)
    assert router.release_all("b") == router.release_all("c") == 0


def test_the_router_in_the_document_runs_as_pasted(capsys):
    text = (Path(__file__).parents[2] / "docs" / "scheduler.md").read_text()
    exec(text.split("```python")[1].split("```")[0], {})
    assert capsys.readouterr().out == "prfaas-0: uncached > t\n"
