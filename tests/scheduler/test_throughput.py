from dataclasses import replace
from math import inf, isfinite

import pytest

from prfaas_ref.scheduler.lengths import ObservedLengths
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, PrefillProfile
from prfaas_ref.scheduler.throughput import (
    Counts,
    System,
    TtftModel,
    egress_at,
    egress_bits_per_s,
    kv_rate_bits_per_s,
    throughput,
)

# Four prompts of 1000 and one of 9000 tokens; remote prefill takes 1 ms a token, local 2 ms.
SYSTEM = System(
    PrefillProfile(0, 1e-3), PrefillProfile(0, 2e-3), DecodeProfile(10, 0.02), KvSize(1000, 1e6), 8e8,
    ObservedLengths([1000] * 4 + [9000]), output_tokens=100,
)  # fmt: skip


def test_every_stage_by_hand():
    found = throughput(SYSTEM, Counts(2, 3, 1), t=5000)
    assert (found.p_long, found.l_long, found.l_short) == (0.2, 9000, 1000)
    assert found.theta_prfaas == pytest.approx(2 / 9)  # 9 s each; the link would carry 1e8 / 1e7 = 10 a second
    assert found.theta_pd_prefill == pytest.approx(3 / 2)
    assert found.theta_pd_decode == pytest.approx(10 / (0.02 * 100))
    assert (found.lambda_max, found.binding) == (pytest.approx(2 / 9 / 0.2), "prfaas compute")


@pytest.mark.parametrize(
    ("counts", "bits_per_s", "binding", "rate"),
    [
        (Counts(100, 100, 100), 8e6, "link", 1e6 / 1e7 / 0.2),
        (Counts(100, 1, 100), 8e8, "pd prefill", 0.5 / 0.8),
        (Counts(100, 100, 1), 8e9, "pd decode", 5.0),
    ],
)
def test_the_binding_term_is_named(counts, bits_per_s, binding, rate):
    found = throughput(replace(SYSTEM, link_bits_per_s=bits_per_s), counts, 5000)
    assert (found.binding, found.lambda_max) == (binding, pytest.approx(rate))


def test_a_stage_without_traffic_needs_no_instance():
    all_remote = throughput(SYSTEM, Counts(5, 0, 1), 0.0)
    assert (all_remote.p_long, all_remote.lambda_max) == (1.0, pytest.approx(5 / 2.6))
    all_local = throughput(SYSTEM, Counts(0, 5, 1), inf)
    assert (all_local.p_long, all_local.lambda_max) == (0.0, pytest.approx(5 / 5.2))


@pytest.mark.parametrize("t", [0.0, 500.0, 5000.0, inf])
@pytest.mark.parametrize("counts", [Counts(0, 0, 0), Counts(0, 1, 1), Counts(1, 0, 1), Counts(1, 1, 0)])
@pytest.mark.parametrize("lengths", [[], [1], [1000] * 4 + [9000]])
def test_limits_are_finite(t, counts, lengths):
    system = replace(SYSTEM, pd_prefill=PrefillProfile(0.1, 1e-3), lengths=ObservedLengths(lengths))
    found = throughput(replace(system, prfaas_prefill=PrefillProfile(0.1, 1e-3)), counts, t)
    assert isfinite(found.lambda_max)
    assert isfinite(found.theta_prfaas)
    assert isfinite(found.theta_pd_prefill)


@pytest.mark.parametrize("counts", [Counts(1, 1, 1), Counts(0, 1, 1), Counts(1, 0, 1)])
def test_prompts_that_take_no_time_bind_nothing(counts):
    """An empty trace, and profiles without a fixed cost."""
    for t in (0.0, 500.0, inf):
        found = throughput(replace(SYSTEM, lengths=ObservedLengths([])), counts, t)
        bound = 10 / (0.02 * 100) if counts.pd_prefill else 0.0
        assert (found.lambda_max, found.p_long) == (pytest.approx(bound), 0.0)


def test_memory_bounds_the_decode_batch():
    context = 1000 * (2600 + 100) + 1e6
    half = replace(SYSTEM, decode=DecodeProfile(10, 0.02, memory_bytes=4.5 * context))
    assert half.decode_batch == 4
    assert throughput(half, Counts(9, 9, 1), 5000).theta_pd_decode == pytest.approx(2.0)


def test_rates_of_kv():
    assert kv_rate_bits_per_s(KvSize(1000, 1e6), PrefillProfile(0, 1e-3), 1000) == pytest.approx(16e6)
    assert egress_bits_per_s(16, 8, 1e6, 2.0) == pytest.approx(8e6)
    assert egress_at(SYSTEM, 2.0, SYSTEM.lengths.split(5000)) == pytest.approx(2.0 * 0.2 * 1e7 * 8)


def test_ttft_adds_the_wire_in_series_to_what_is_offloaded():
    system = replace(SYSTEM, lengths=ObservedLengths([1000, 9000]), rtt_s=0.5)
    model = TtftModel(system, strata=2)
    low, high = system.lengths.quantiles(2)
    remote = high * 1e-3 + (high * 1000 + 1e6) / 1e8 + 0.5
    assert model.at(5000).mean_s == pytest.approx((low * 2e-3 + remote) / 2)
    assert model.at(inf).mean_s == pytest.approx((low + high) * 1e-3)


@pytest.mark.parametrize("change", [{"link_bits_per_s": 0}, {"output_tokens": 0}, {"rtt_s": -1}])
def test_a_system_that_is_none(change):
    with pytest.raises(ValueError, match="system"):
        replace(SYSTEM, **change)
