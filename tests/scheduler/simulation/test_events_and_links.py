from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.scheduler.simulation.events import ARRIVAL, ENDING, WORLD, EventQueue
from prfaas_ref.scheduler.simulation.links import EPSILON_BITS, FluidLink


def test_events_run_by_time_then_priority_then_sequence():
    events, ran = EventQueue(), []
    script = [(2, WORLD, "e"), (1, ARRIVAL, "c"), (1, ARRIVAL, "d"), (1, ENDING, "b"), (1, WORLD, "a")]
    for time_s, priority, name in script:
        events.at(time_s, priority, ran.append, name)
    events.run(1.5)
    assert "".join(ran) == "abcd"
    assert (events.now_s, events.processed, len(events)) == (1, 4, 1)
    with pytest.raises(ValueError, match="already"):
        events.at(0.5, WORLD, ran.append, "late")
    events.run(inf)
    assert ran[-1] == "e"


def finish_times(link):
    """Run a link to its end; (tag, seconds) in order."""
    ended = []
    while link.flows:
        now_s = link.next_finish_s()
        ended += [(flow.tag, now_s) for flow in link.take_finished(now_s)]
    return ended


def test_flows_share_and_take_over_what_others_leave():
    link = FluidLink(100.0)
    link.start(0.0, 100, tag="long")  # 800 bits
    link.start(0.0, 25, tag="short")  # 200 bits
    assert finish_times(link) == [("short", pytest.approx(4.0)), ("long", pytest.approx(10.0))]


def test_a_capped_flow_leaves_the_rest_to_others_until_its_cap_is_lifted():
    link = FluidLink(1000.0)
    slow = link.start(0.0, 250, cap_bits_per_s=100.0, tag="slow")  # 2000 bits
    link.start(0.0, 450, tag="fast")  # 3600 bits at 900
    assert link.next_finish_s() == pytest.approx(4.0)
    link.lift_cap(2.0, slow)  # 1800 bits each are left, at 500 each
    assert finish_times(link) == [("slow", pytest.approx(5.6)), ("fast", pytest.approx(5.6))]


def test_an_outage_stops_flows_and_they_go_on_after_it():
    link = FluidLink(800.0)
    link.start(0.0, 200, tag="a")  # 2 s
    link.set_capacity(1.0, 0.0)
    assert link.next_finish_s() == inf
    link.set_capacity(5.0, 400.0)
    assert finish_times(link) == [("a", pytest.approx(7.0))]


def test_an_empty_flow_ends_at_once():
    link = FluidLink(0.0)
    link.start(3.0, 0, tag="nothing")
    assert finish_times(link) == [("nothing", 3.0)]


steps = st.lists(
    st.tuples(
        st.floats(0, 10),
        st.one_of(
            st.tuples(st.just("start"), st.floats(0, 1e5), st.one_of(st.just(inf), st.floats(0, 1e5))),
            st.tuples(st.just("abort"), st.integers(0, 9), st.none()),
            st.tuples(st.just("lift"), st.integers(0, 9), st.none()),
            st.tuples(st.just("capacity"), st.floats(0, 1e6), st.none()),
            st.tuples(st.just("finish"), st.none(), st.none()),
        ),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_bits_are_conserved_and_rates_are_max_min_fair(script):
    link, now_s, started, gone = FluidLink(1e5), 0.0, 0.0, 0.0
    for passed_s, (what, x, cap) in script:
        now_s += passed_s
        if what == "start":
            started += 8 * x
            link.start(now_s, x, cap)
        elif what == "capacity":
            link.set_capacity(now_s, x)
        elif what == "finish":
            link.take_finished(now_s)
        elif link.flows:
            flow = link.flows[x % len(link.flows)]
            if what == "lift":
                link.lift_cap(now_s, flow)
            else:
                link.advance(now_s)
                gone += flow.remaining_bits
                link.abort(now_s, flow)
        left = sum(flow.remaining_bits for flow in link.flows)
        slack = EPSILON_BITS * (len(script) + 1)
        assert link.delivered_bits + left + gone == pytest.approx(started, abs=slack, rel=1e-9)
        rates = [flow.rate_bits_per_s for flow in link.flows]
        total = sum(rates)
        assert total <= link.capacity_bits_per_s * (1 + 1e-9)
        at_cap = [flow.rate_bits_per_s == flow.cap_bits_per_s for flow in link.flows]
        if not all(at_cap):
            assert total == pytest.approx(link.capacity_bits_per_s)
            shared = [rate for rate, capped in zip(rates, at_cap, strict=True) if not capped]
            assert min(shared) == pytest.approx(max(rates))


@given(
    st.floats(0, 1e9),
    st.floats(1e3, 1e14),
    st.lists(st.tuples(st.floats(0, 1e12), st.one_of(st.just(inf), st.floats(1e3, 1e14))), min_size=1, max_size=6),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_flow_ends_at_every_finish_time_however_late_and_fast(start_s, bits_per_s, flows):
    """Days into a run a second has few digits left, and one step of the clock is worth many bits on a fast link."""
    link = FluidLink(bits_per_s)
    for n_bytes, cap in flows:
        link.start(start_s, n_bytes, cap)
    for _ in flows:
        if link.flows:
            assert link.take_finished(link.next_finish_s())
    assert not link.flows
    assert link.delivered_bits == pytest.approx(8 * sum(n_bytes for n_bytes, _ in flows))
