"""The simulator against closed forms: M/M/1, M/M/c, M/D/1, Little's law, and a saturated link."""

from dataclasses import replace
from math import factorial

import numpy as np
import pytest

from prfaas_ref.request import Request
from prfaas_ref.scheduler.profile import DecodeProfile, PrefillProfile
from prfaas_ref.scheduler.router import Fixed
from prfaas_ref.scheduler.simulation import simulate
from tests.scheduler.simulation.deployments import SYSTEM, config, request, rows

N = 40_000
INSTANT = PrefillProfile(1e-9, 0.0)


def arrivals(rate_per_s, prompts, outputs, seed):
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, len(prompts))
    times = np.cumsum(gaps).tolist()
    for i, (time_s, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True)):
        yield Request(f"r{i}", time_s, max(1, round(prompt)), max(1, round(output)))


def mean_ttft_s(result):
    return float(np.mean(result.outcomes.ttft_s))


def test_one_prefill_worker_with_exponential_prompts_is_m_m_1():
    load, service_s = 0.7, 2.0  # a prompt of 1e6 tokens takes 2 s
    rng = np.random.default_rng(1)
    system = replace(SYSTEM, pd_prefill=PrefillProfile(0, service_s / 1e6), decode=DecodeProfile(10_000, 1e-9))
    result = simulate(config((0, 1, 1), system=system), arrivals(load / service_s, rng.exponential(1e6, N), [1] * N, 2))
    assert mean_ttft_s(result) == pytest.approx(service_s / (1 - load), rel=0.06)


def test_one_prefill_worker_with_equal_prompts_is_m_d_1():
    load, service_s = 0.7, 2.0
    system = replace(SYSTEM, decode=DecodeProfile(10_000, 1e-9))
    result = simulate(config((0, 1, 1), system=system), arrivals(load / service_s, [1000] * N, [1] * N, 3))
    assert mean_ttft_s(result) == pytest.approx(service_s + load * service_s / (2 * (1 - load)), rel=0.04)


def test_one_decode_worker_with_c_slots_is_m_m_c():
    slots, load, service_s = 5, 0.8, 10.0
    rng = np.random.default_rng(4)
    system = replace(SYSTEM, pd_prefill=INSTANT, decode=DecodeProfile(slots, service_s / 1e6))
    result = simulate(
        config((0, 1, 1), system=system), arrivals(slots * load / service_s, [1] * N, rng.exponential(1e6, N), 5)
    )
    offered = slots * load
    tail = offered**slots / factorial(slots) / (1 - load)
    erlang_c = tail / (sum(offered**k / factorial(k) for k in range(slots)) + tail)
    assert mean_ttft_s(result) == pytest.approx(erlang_c * service_s / (slots * (1 - load)), rel=0.06)


def test_littles_law_ties_sampled_queues_to_waits():
    load, service_s = 0.8, 2.0
    system = replace(SYSTEM, decode=DecodeProfile(10_000, 1e-9))
    result = simulate(config((0, 1, 1), system=system), arrivals(load / service_s, [1000] * 20_000, [1] * 20_000, 6))
    wait_s = mean_ttft_s(result) - service_s
    rate = result.outcomes.arrived / result.end_s
    assert np.mean(result.control.samples.queue_pd) == pytest.approx(rate * wait_s, rel=0.03)


def test_a_saturated_link_carries_its_rate_and_no_byte_more():
    system = replace(SYSTEM, prfaas_prefill=INSTANT, link_bits_per_s=8e6)  # 2 MB a request: 0.5 requests/s
    many = [request(i, 0.1 * i) for i in range(2000)]
    result = simulate(config((1, 0, 1), Fixed("prfaas"), system, until_s=1000.0), many)
    link = result.control.transfers.egress
    assert link.delivered_bits == pytest.approx(8e6 * 1000.0, rel=1e-3)
    assert result.outcomes.ended["completed"] < 500
    assert result.in_flight == 2000 - result.outcomes.ended["completed"]


def test_bytes_on_the_link_are_the_requests_bytes():
    many = [request(i, 2.0 * i, prompt=500 + 10 * i) for i in range(100)]
    result = simulate(config((2, 0, 2), Fixed("prfaas")), many)
    expected = sum(10**6 + 1000 * r.prompt_tokens for r in many)
    assert result.control.transfers.egress.delivered_bits == pytest.approx(8 * expected)
    assert sum(row.link_bytes for row in rows(result).values()) == expected


def test_layers_are_sent_while_later_ones_are_computed():
    # 2 MB, 1 s of prefill, 57 layers. At 8e8 bit/s the last layer alone takes 2e6 / 57 / 1e8 s after the prompt.
    result = simulate(config((1, 0, 1), Fixed("prfaas")), [request(0, 0.0)])
    assert rows(result)["r0"].ttft_s == pytest.approx(1.0 + 2e6 / 57 / 1e8)
    # At 8e6 bit/s the link is the bottleneck: 2 s from the start, whatever the overlap.
    slow = replace(SYSTEM, link_bits_per_s=8e6, rtt_s=0.2)
    result = simulate(config((1, 0, 1), Fixed("prfaas"), slow), [request(0, 0.0)])
    assert rows(result)["r0"].ttft_s == pytest.approx(2.0 + 0.1)


def test_decode_takes_a_step_per_token_and_memory_bounds_the_batch():
    small = replace(SYSTEM, decode=DecodeProfile(4, 0.01, memory_bytes=2 * (1e6 + 1100 * 1000)))
    result = simulate(config((0, 1, 1), system=small), [request(i, 0.0, output=100) for i in range(4)])
    found = rows(result)
    assert found["r0"].finish_s - found["r0"].ttft_s == pytest.approx(0.99)
    too_big = simulate(config((0, 1, 1), system=small), [request(0, 0.0, prompt=10_000)])
    assert rows(too_big)["r0"].status == "rejected"
    assert rows(too_big)["r0"].reason == "memory"
