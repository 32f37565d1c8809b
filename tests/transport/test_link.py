"""The emulated link under a clock that is a number, and what pipelining hides behind compute."""

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.transport import Client, EmulatedLink, LayerSpec, Limits, Manifest, Options, TensorSpec
from prfaas_ref.transport.connection import Connection
from prfaas_ref.transport.testing import ConnectionPair, Landing, terms
from prfaas_ref.units import MIB


def test_frames_queue_at_the_rate_and_arrive_a_round_trip_later() -> None:
    link = EmulatedLink(bits_per_s=8000, rtt_s=0.5, burst_s=0.0)
    assert [link.reserve(1000, now) for now in (10.0, 10.0, 10.5, 20.0)] == [11.5, 12.5, 13.5, 21.5]
    assert link.free_at == 21.0


def test_an_idle_link_saves_up_no_more_than_its_burst() -> None:
    link = EmulatedLink(bits_per_s=8000, burst_s=0.25)
    assert link.reserve(1000, 0.0) == 0.75  # it was idle before
    assert link.reserve(1000, 0.9) == 1.75  # a wake-up that was 0.15 s late costs nothing
    assert link.reserve(1000, 50.0) == 50.75  # an idle hour gives a quarter of a second


def test_no_rate_is_no_queue() -> None:
    link = EmulatedLink(rtt_s=0.1)
    assert link.reserve(10**9, 5.0) == 5.1 and link.free_at < 0


@pytest.mark.parametrize(("bits_per_s", "rtt_s"), [(0, 0), (-1, 0), (1, -1)])
def test_a_link_needs_a_rate(bits_per_s: float, rtt_s: float) -> None:
    with pytest.raises(ValueError, match="a link of"):
        EmulatedLink(bits_per_s, rtt_s)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 0.5)), min_size=2, max_size=40))
def test_whatever_is_asked_the_rate_is_kept(asked: list[tuple[int, float]]) -> None:
    link, now, total = EmulatedLink(bits_per_s=80_000, burst_s=0.01), 0.0, 0
    arrived = 0.0
    for n_bytes, pause_s in asked:
        now += pause_s
        total += n_bytes
        arrived = link.reserve(n_bytes, now)
        assert arrived >= now
    assert total * 8 <= 80_000 * (arrived + 0.01) * (1 + 1e-9)


@pytest.mark.parametrize("bits_per_s", [1.0, 1e3, 1e5, 1e6, 1e9, 1e308, None])
@pytest.mark.parametrize("asked", [100, 4096, 16 * MIB])
def test_a_chunk_occupies_a_slow_link_for_a_second_at_most(bits_per_s: float | None, asked: int) -> None:
    """A PING waits for the chunk before it, and a peer that is silent for 5 s is given up. 256 bytes are the least."""
    with Client(("", 0), terms("s"), Options(chunk_bytes=asked), EmulatedLink(bits_per_s)) as client:
        n_bytes = client.chunk_bytes
    assert n_bytes <= asked
    if bits_per_s and n_bytes > 256:
        assert n_bytes * 8 <= bits_per_s
    if not bits_per_s or asked * 8 <= bits_per_s:
        assert n_bytes == asked


def test_a_layer_outlasts_the_patience_on_a_slow_link() -> None:
    """In one chunk it would be on the wire for twice as long as either end waits for a silent peer."""
    spec, limits = flat(1, 200_000), Limits(idle_s=0.8)
    with ConnectionPair(Landing(lambda _: spec), Options(2), limits, EmulatedLink(1e6)) as pair:
        transfer = pair.client.offer("x", spec, deadline_s=20)
        transfer.send_layer(0, [memoryview(bytes(200_000))])
        assert transfer.finish().attempts == 1


def flat(layers: int, n_bytes: int) -> Manifest:
    return Manifest(0, tuple(LayerSpec((TensorSpec("x", "U8", (n_bytes,), "flat"),)) for _ in range(layers)))


def test_compute_hides_all_but_one_layer_of_the_transfer() -> None:
    """Link time equals compute time; in series all eight layers would be exposed. The benchmark tells it finely."""
    layers, layer_s, n_bytes = 8, 0.05, 100_000
    spec, link = flat(layers, n_bytes), EmulatedLink(bits_per_s=n_bytes * 8 / layer_s)
    exposed_s = []
    with ConnectionPair(Landing(lambda _: spec), Options(2, chunk_bytes=16384), link=link) as pair:
        for attempt in range(3):  # a busy machine may spoil one
            transfer = pair.client.offer(f"x{attempt}", spec, deadline_s=10)
            began = time.perf_counter()
            for layer in range(layers):
                time.sleep(layer_s)  # compute
                transfer.send_layer(layer, [memoryview(bytes(n_bytes))])
            transfer.finish()
            exposed_s.append(time.perf_counter() - began - layers * layer_s)
    assert 0 < min(exposed_s) < 3 * layer_s


def test_a_full_queue_pushes_back_on_compute() -> None:
    n_bytes = 200_000
    spec, link = flat(4, n_bytes), EmulatedLink(bits_per_s=n_bytes * 8 / 0.1)
    options = Options(chunk_bytes=16384, queue_bytes=n_bytes // 2)
    with ConnectionPair(Landing(lambda _: spec), options, link=link) as pair:
        transfer = pair.client.offer("x", spec, deadline_s=10)
        began, ready_at = time.perf_counter(), []
        for layer in range(4):
            transfer.send_layer(layer, [memoryview(bytes(n_bytes))])
            ready_at.append(time.perf_counter() - began)
        transfer.finish()
    assert ready_at[0] < 0.05 and ready_at[3] > 0.2


def test_credit_bounds_what_is_sent_and_not_confirmed() -> None:
    spec = flat(2, 3 * MIB)
    limits = Limits(credit_bytes=256 * 1024)
    with ConnectionPair(Landing(lambda _: spec), Options(2, chunk_bytes=64 * 1024), limits=limits) as pair:
        transfer = pair.client.offer("x", spec, deadline_s=20)
        most, core = 0, transfer._core
        take = core.take

        def watched(connection: Connection) -> object:
            nonlocal most
            parcel = take(connection)
            most = max(most, core.in_flight_bytes)
            return parcel

        core.take = watched  # type: ignore[method-assign,assignment]
        for layer in range(2):
            transfer.send_layer(layer, [memoryview(bytes(3 * MIB))])
        transfer.finish()
    assert 64 * 1024 < most <= 256 * 1024


def test_no_copy_of_the_cache_is_made_at_either_end() -> None:
    """Both ends are in this process: what they allocate together stays below two chunks per stripe."""
    spec, chunk_bytes, stripes = flat(4, 8 * MIB), 512 * 1024, 2
    pages = Landing(lambda _: spec)
    source = memoryview(bytes(8 * MIB))
    with ConnectionPair(pages, Options(stripes, chunk_bytes=chunk_bytes)) as pair:
        transfer = pair.client.offer("x", spec, deadline_s=20)
        tracemalloc.start()
        try:
            for layer in range(4):
                transfer.send_layer(layer, [source])
            transfer.finish()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 2 * chunk_bytes * stripes
    assert pages.completed == ["x"]
