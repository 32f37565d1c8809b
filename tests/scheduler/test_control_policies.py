"""The pure control policies: admission, retries, the threshold loop, the re-allocator."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.admission import Admission
from prfaas_ref.scheduler.lengths import ObservedLengths
from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.planner import Slo, threshold_grid
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, PrefillProfile
from prfaas_ref.scheduler.reallocator import Loads, Rules, State, Window, moved, observe
from prfaas_ref.scheduler.retry import RetryBudget
from prfaas_ref.scheduler.threshold import (
    PlannedThresholds,
    Signals,
    ThresholdState,
    Tuning,
    adjust,
    plan_thresholds,
)
from prfaas_ref.scheduler.throughput import Counts, System, TtftModel, throughput


def test_admission_names_the_bound():
    bounds = Admission(max_ttft_s=5.0, max_link_bytes=100)
    assert bounds.exceeded(5.0, 100) is None
    assert bounds.exceeded(5.1, 0) == "predicted ttft"
    assert bounds.exceeded(0.0, 101) == "bytes in flight"
    assert Admission().exceeded(1e9, 1e18) is None


def test_retries_are_bounded_per_request_and_in_total():
    budget = RetryBudget(attempts=3, share=0.1, floor=2)
    assert budget.allows(1, 0, 5)
    assert not budget.allows(3, 0, 5)
    assert not budget.allows(1, 2, 5)
    assert budget.allows(1, 9, 100)
    assert not budget.allows(1, 10, 100)


PLANNED = PlannedThresholds((1e9, 5e9, 1e11), (60_000.0, 30_000.0, 20_000.0))
CALM = Signals(1e11, 0.1, 1.0, 1.0)
TUNING = Tuning(high_utilization=0.9, surge_s=4.0, step=0.1, clamp=0.3, dead_band=0.05, dwell_s=10.0)


def test_planned_thresholds_are_those_of_the_bandwidth_at_hand():
    assert [PLANNED.at(b) for b in (0.0, 1e9, 4.9e9, 5e9, 1e12)] == [60_000, 60_000, 60_000, 30_000, 20_000]


def test_a_narrower_link_plans_a_higher_threshold():
    planned = plan_thresholds(case_study(), Counts(4, 3, 5), points=14)
    assert planned.tokens[-1] == 19_400
    assert list(planned.tokens) == sorted(planned.tokens, reverse=True)
    assert planned.tokens[0] > 30_000


# Remote prefill is four times as fast; 1 MB and 1 kB a token take a while on a slow link.
SMALL = System(
    PrefillProfile(0.1, 1e-3), PrefillProfile(0.2, 4e-3), DecodeProfile(64, 0.01), KvSize(1000, 1e6), 1e8,
    ObservedLengths([500, 900, 1500, 2500, 4000]), output_tokens=10,
)  # fmt: skip


@given(st.floats(0.05, 1.0))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_planned_thresholds_keep_an_slo_wherever_one_can_be_kept(share):
    """Where the link is too slow for every threshold, t is the best one without the SLO. Against a plain loop."""
    grid, counts = threshold_grid(SMALL.lengths, 500), Counts(2, 2, 4)
    models = TtftModel(SMALL, 101)
    fastest, slowest = (end(models.at(t).mean_s for t in grid) for end in (min, max))
    bound_s = fastest + share * (slowest - fastest)
    planned = plan_thresholds(SMALL, counts, Slo(mean_ttft_s=bound_s * 1.001), points=12, step_tokens=500)
    for bits_per_s, tokens in zip(planned.bits_per_s, planned.tokens, strict=True):
        system = replace(SMALL, link_bits_per_s=bits_per_s)
        kept = [t for t in grid if TtftModel(system).at(t).mean_s <= bound_s * 1.001]
        best = max(throughput(system, counts, t).lambda_max for t in kept or grid)
        assert tokens in (kept or grid)
        assert throughput(system, counts, tokens).lambda_max == pytest.approx(best)


def test_calm_keeps_the_centre_and_pressure_moves_one_step_within_the_clamp():
    state = ThresholdState(20_000)
    assert adjust(state, CALM, PLANNED, TUNING, 0.0) is state
    busy = replace(CALM, egress_utilization=0.95)
    up = adjust(state, busy, PLANNED, TUNING, 0.0)
    assert up.tokens == pytest.approx(22_000)
    now_s, high = 0.0, up
    for _ in range(10):
        now_s += TUNING.dwell_s
        high = adjust(high, busy, PLANNED, TUNING, now_s)
    assert high.tokens == pytest.approx(26_000, rel=TUNING.dead_band)
    down = adjust(state, replace(CALM, pd_queue_s=9.0), PLANNED, TUNING, 0.0)
    assert down.tokens == pytest.approx(18_000)


def test_dwell_dead_band_and_reversals():
    busy, idle = replace(CALM, prfaas_queue_s=9.0), replace(CALM, pd_queue_s=9.0)
    up = adjust(ThresholdState(20_000), busy, PLANNED, TUNING, 100.0)
    assert adjust(up, idle, PLANNED, TUNING, 100.0 + TUNING.dwell_s - 0.1) is up
    down = adjust(up, idle, PLANNED, TUNING, 100.0 + TUNING.dwell_s)
    assert (down.direction, down.reversals) == (-1, 1)
    near = ThresholdState(20_500)
    assert adjust(near, CALM, PLANNED, TUNING, 0.0) is near


@given(
    st.lists(st.builds(Signals, st.floats(0, 1e11), st.floats(0, 2), st.floats(0, 50), st.floats(0, 50)), max_size=40)
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_threshold_never_leaves_the_clamp_and_never_moves_twice_in_a_dwell(signals):
    state, changes = ThresholdState(20_000), []
    for second, seen in enumerate(signals):
        new = adjust(state, seen, PLANNED, TUNING, float(second))
        if new is not state:
            centre = PLANNED.at(seen.bits_per_s)
            assert abs(new.tokens - centre) <= TUNING.clamp * centre * (1 + 1e-9)
            assert new.changed_s == second
            changes.append(second)
        state = new
    assert all(b - a >= TUNING.dwell_s for a, b in pairwise(changes))


def test_a_plan_that_offloads_all_or_nothing_is_followed():
    nothing = PlannedThresholds((1e9,), (inf,))
    assert adjust(ThresholdState(20_000), CALM, nothing, TUNING, 0.0).tokens == inf


TOKENS = st.one_of(st.sampled_from([0.0, inf]), st.floats(100, 200_000))


@given(start=TOKENS, centre=TOKENS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_from_anywhere_calm_leads_to_the_centre(start, centre):
    planned, state = PlannedThresholds((1e9,), (centre,)), ThresholdState(start)
    for period in range(20):
        state = adjust(state, CALM, planned, TUNING, period * TUNING.dwell_s)
    assert state.tokens == centre or abs(state.tokens - centre) <= TUNING.dead_band * state.tokens < inf


RULES = Rules(windows=2, dwell_s=100.0)


def run(windows, state=None, step_s=60.0):
    """The role asked for after each window."""
    state, asked = state or State(), []
    for i, window in enumerate(windows):
        state, role = observe(state, window, RULES, i * step_s)
        asked.append(role)
    return state, asked


def model(n_prefill, n_decode, prefill, decode):
    """A window of a deployment whose stages carry 1 per worker, offered `prefill` and `decode` work."""

    def loads(n_p, n_d):
        return Loads(prefill / n_p, decode / n_d) if n_p and n_d else None

    moved_to_prefill, moved_to_decode = loads(n_prefill + 1, n_decode - 1), loads(n_prefill - 1, n_decode + 1)
    return Window(loads(n_prefill, n_decode), moved_to_prefill, moved_to_decode)


HEAVY_PREFILL, CALM_WINDOW, HEAVY_DECODE = model(2, 6, 2.8, 3.0), model(2, 6, 1.0, 3.0), model(6, 2, 3.0, 2.8)


def test_a_bottleneck_seen_twice_moves_one_worker_and_only_one():
    state, asked = run([HEAVY_PREFILL] * 6)
    assert asked == [None, "prefill", None, None, None, None]
    assert state.moving == "prefill"
    state = moved(state, 400.0)
    assert (state.moving, state.conversions) == (None, 1)
    ready = replace(state, wanted="prefill", votes=5)
    assert observe(ready, HEAVY_PREFILL, RULES, 450.0)[1] is None  # dwell
    assert observe(ready, HEAVY_PREFILL, RULES, 500.0)[1] == "prefill"
    assert run([HEAVY_DECODE] * 2)[1] == [None, "decode"]


def test_a_worker_lost_on_the_way_is_no_conversion():
    state, _ = run([HEAVY_PREFILL] * 2)
    assert moved(state, 200.0, done=False).conversions == 0


@pytest.mark.parametrize(
    "window",
    [
        model(2, 2, 1.4, 1.4),  # utilisation 0.7, constant and carried
        model(2, 2, 1.8, 1.2),  # the survivor could not carry 1.2
        model(2, 4, 4.0, 3.0),  # it would help, but leave the survivors without room
        model(3, 1, 6.0, 0.1),  # the last of its role stays
        model(3, 3, 3.0, 2.97),  # no gain
        Window(None, Loads(0.1, 0.1), Loads(0.1, 0.1)),  # a metric is missing
        Window(Loads(1.5, 0.5), None, Loads(0.1, 0.1)),
        model(2, 6, 1.0, 0.6),  # no bottleneck
    ],
)
def test_reasons_to_hold(window):
    assert set(run([window] * 10)[1]) == {None}


def test_one_window_that_disagrees_starts_the_count_anew():
    assert run([HEAVY_PREFILL, CALM_WINDOW] * 2 + [HEAVY_PREFILL])[1] == [None] * 5
    assert run([HEAVY_PREFILL, HEAVY_DECODE, HEAVY_PREFILL])[1] == [None] * 3


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=60), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_workers_are_conserved_and_each_role_keeps_one(work, n_prefill, n_decode):
    """A model deployment that carries each move out after two windows."""
    state, total, due = State(), n_prefill + n_decode, None
    for i, (prefill, decode) in enumerate(work):
        if due is not None and i >= due[0]:
            n_prefill, n_decode = n_prefill + (due[1] == "prefill"), n_decode + (due[1] == "decode")
            state, due = moved(state, 60.0 * i), None
        state, role = observe(state, model(n_prefill, n_decode, prefill, decode), RULES, 60.0 * i)
        if role is not None:
            assert due is None
            n_prefill, n_decode = n_prefill - (role == "decode"), n_decode - (role == "prefill")
            due = (i + 2, role)
        assert n_prefill + n_decode + (due is not None) == total
        assert min(n_prefill, n_decode) >= 1
