from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.lengths import LogNormalLengths, ObservedLengths
from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.planner import (
    Infeasible,
    Prices,
    Search,
    Slo,
    cheapest_for,
    homogeneous,
    naive,
    next_ten_percent,
    threshold_grid,
    within_budget,
)
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, PrefillProfile
from prfaas_ref.scheduler.throughput import Counts, System, throughput

systems = st.builds(
    System,
    st.builds(PrefillProfile, st.floats(0.01, 1), st.floats(1e-6, 1e-4), st.floats(0, 1e-9)),
    st.builds(PrefillProfile, st.floats(0.01, 1), st.floats(1e-6, 1e-3), st.floats(0, 1e-9)),
    st.builds(DecodeProfile, st.integers(1, 64), st.floats(0.005, 0.1)),
    st.builds(KvSize, st.floats(1e3, 1e5), st.floats(0, 1e8)),
    st.floats(1e8, 1e11),
    st.one_of(
        st.builds(LogNormalLengths, st.floats(6, 11), st.floats(0.3, 1.5), st.just(64), st.just(40_000)),
        st.lists(st.integers(1, 40_000), min_size=1, max_size=30).map(ObservedLengths),
    ),
    st.floats(1, 4000),
)


def brute_force(system, n_prfaas, n_pd, grid):
    """The plain triple loop over splits and thresholds: the best Lambda_max."""
    return max(throughput(system, Counts(n_prfaas, n_p, n_pd - n_p), t).lambda_max for n_p in range(n_pd) for t in grid)


@given(systems, st.integers(0, 5), st.integers(1, 6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_search_equals_brute_force(system, n_prfaas, n_pd):
    grid = threshold_grid(system.lengths, 2000)
    best = brute_force(system, n_prfaas, n_pd, grid)
    if best == 0:
        with pytest.raises(Infeasible, match="instances"):
            Search(system, grid=grid).best(n_prfaas, n_pd)
        return
    plan = Search(system, grid=grid).best(n_prfaas, n_pd)
    assert plan.predicted.lambda_max == pytest.approx(best)
    assert plan.threshold_tokens in grid
    assert sum(plan.counts) == n_prfaas + n_pd


@given(systems, st.floats(0.01, 3))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_another_link_is_searched_as_a_search_of_its_own(system, factor):
    grid, rate = threshold_grid(system.lengths, 2000), system.link_bits_per_s * factor
    ours = Search(system, grid=grid).with_link(rate).best_threshold(Counts(3, 2, 2))
    theirs = Search(replace(system, link_bits_per_s=rate), grid=grid).best_threshold(Counts(3, 2, 2))
    assert ours.lambda_max == pytest.approx(theirs.lambda_max)
    assert ours.threshold_tokens == theirs.threshold_tokens


@given(systems, st.floats(1, 30))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_purchases_equal_brute_force(system, budget):
    grid, prices, most = threshold_grid(system.lengths, 5000), Prices(2.5, 1.0), Counts(4, 0, 5)
    search = Search(system, grid=grid)
    options = [
        (throughput(system, Counts(a, b, d), t).lambda_max, a * 2.5 + b + d)
        for a in range(5)
        for b in range(5)
        for d in range(1, 6 - b)
        for t in grid
    ]
    best = max((rate for rate, cost in options if cost <= budget), default=0.0)
    if best == 0:
        with pytest.raises(Infeasible, match="budget"):
            within_budget(search, prices, budget, most)
        return
    plan = within_budget(search, prices, budget, most)
    assert plan.predicted.lambda_max == pytest.approx(best)
    assert prices.of(plan.counts) <= budget * (1 + 1e-9)
    demand = best * 0.9
    cheapest = min(cost for rate, cost in options if rate >= demand)
    found = cheapest_for(search, prices, demand, most)
    assert prices.of(found.counts) == pytest.approx(cheapest)
    assert found.predicted.lambda_max >= demand * (1 - 1e-9)


def test_a_plan_is_feasible_or_the_constraint_is_named():
    system = case_study()
    with pytest.raises(Infeasible, match="50 requests/s") as demand:
        cheapest_for(Search(system), Prices(2, 1), 50, Counts(4, 0, 8))
    with pytest.raises(Infeasible, match="40 tokens/s") as slo:
        Search(replace(system, decode=DecodeProfile(20, 0.05)), Slo(decode_tokens_per_s=40))
    with pytest.raises(Infeasible, match="one context") as memory:
        Search(replace(system, decode=DecodeProfile(20, 0.02, memory_bytes=1e6)))
    with pytest.raises(Infeasible, match="no threshold") as ttft:
        Search(system, Slo(p90_ttft_s=0.1))
    with pytest.raises(Infeasible) as instances:
        Search(system).best(0, 1)
    with pytest.raises(Infeasible):
        Search(system).best(4, 0)
    named = [e.value.constraint for e in (demand, slo, memory, ttft, instances)]
    assert named == ["demand", "decode slo", "memory", "ttft slo", "instances"]


@pytest.mark.parametrize(
    "plan",
    [
        lambda system: Search(system).best(4, 0),
        lambda system: naive(system, 4, 0),
        lambda system: homogeneous(system, 0),
        lambda system: cheapest_for(Search(system), Prices(2, 1), 3.0, Counts(4, 0, 0)),
        lambda system: within_budget(Search(system), Prices(2, 1), 100.0, Counts(4, 0, 0)),
    ],
)
def test_nothing_decodes_without_a_pd_instance(plan):
    with pytest.raises(Infeasible, match="at least one instance to decode"):
        plan(case_study())


@pytest.mark.parametrize("demand_per_s", [0.0, -1.0, float("nan")])
def test_a_demand_for_nothing_is_refused(demand_per_s):
    with pytest.raises(ValueError, match="above 0"):
        cheapest_for(Search(case_study()), Prices(2, 1), demand_per_s, Counts(4, 0, 8))


@given(st.integers(1, 10_000), st.integers(0, 20), st.integers(0, 40), st.integers(1, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_cost_in_whole_instances_buys_them_all(cents, ratio, n_prfaas, n_pd):
    prices = Prices(ratio * (cents / 100), cents / 100)
    assert prices.pd_instances_for(prices.of(Counts(n_prfaas, 0, n_pd))) == ratio * n_prfaas + n_pd
    assert prices.pd_instances_for(0.99 * cents / 100) == 0


def test_a_ttft_bound_moves_the_threshold_and_is_kept():
    free = Search(case_study()).best(4, 8)
    bound = Search(case_study(), Slo(mean_ttft_s=2.0)).best(4, 8)
    assert free.ttft.mean_s > 2.0 >= bound.ttft.mean_s
    assert bound.threshold_tokens < free.threshold_tokens
    assert bound.predicted.lambda_max < free.predicted.lambda_max


def test_the_limits_of_the_threshold_are_the_two_rivals():
    system = case_study()
    assert naive(system, 4, 8) == Search(system, grid=[0.0]).plan_at(Counts(4, 0, 8), 0.0)
    assert homogeneous(system, 12).threshold_tokens == inf
    at_zero = throughput(system, Counts(4, 3, 5), 0.0)
    assert at_zero.lambda_max == pytest.approx(naive(system, 4, 8).predicted.lambda_max)


def test_an_empty_trace_and_no_remote_cluster_have_plans():
    system = case_study()
    plan = Search(replace(system, lengths=ObservedLengths([]))).best(4, 8)
    assert 0 < plan.predicted.lambda_max < inf
    alone = Search(system).best(0, 12)
    assert alone.predicted.lambda_max == pytest.approx(homogeneous(system, 12).predicted.lambda_max)


def test_a_tenth_more_of_what_binds_helps_and_of_what_does_not_does_not():
    search = Search(case_study())
    gains = next_ten_percent(search, search.best(4, 8))
    assert gains["prfaas instances"] > 0.05
    assert gains["link"] == gains["pd decode instances"] == 0.0
    narrow = Search(replace(case_study(), link_bits_per_s=5e9))
    assert next_ten_percent(narrow, narrow.best(4, 8))["link"] > 0.02
