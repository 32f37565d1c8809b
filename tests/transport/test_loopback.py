"""The two drivers over real sockets: what a serving layer sees. Each test ends with no page lent and no thread left."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from prfaas_ref.transport import (
    Client,
    EmulatedLink,
    LayerSpec,
    Manifest,
    Options,
    Report,
    Server,
    TensorSpec,
    Transfer,
)
from prfaas_ref.transport.errors import Aborted, ApplyFailed, DeadlineExceeded, Expired, Refused
from prfaas_ref.transport.testing import ConnectionPair, Landing, terms

LAYERS = 3


def manifest(n_tokens: int, **changed: object) -> Manifest:
    """Two per-token tensors and a state per layer; K != V, nothing divides a chunk."""
    kv = TensorSpec("kv", "BF16", (n_tokens, 37), "token,latent+rope", per_token=True)
    state = TensorSpec("state", **({"dtype": "F32", "shape": (3, 5, 7), "layout": "head,k,v"} | changed))
    return Manifest(n_tokens, tuple(LayerSpec((kv, state)) for _ in range(LAYERS)))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while left := [t.name for t in threading.enumerate() if t.name.startswith("prfaas-")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def random_layers(tensors: Manifest) -> list[list[bytes]]:
    return [[os.urandom(t.n_bytes) for t in layer.tensors] for layer in tensors.layers]


def views(tensors: list[bytes]) -> list[memoryview]:
    return [memoryview(t) for t in tensors]


def send(client: Client, name: str, n_tokens: int = 100, deadline_s: float = 10.0) -> tuple[Report, list[list[bytes]]]:
    """Offer, send everything, finish. Returns the report and the bytes."""
    with client.offer(name, manifest(n_tokens), deadline_s=deadline_s) as transfer:
        layers = random_layers(transfer.increment)
        for i, tensors in enumerate(layers):
            transfer.send_layer(i, views(tensors))
        return transfer.finish(), layers


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("have_tokens", [0, 64])
def test_what_arrives_is_what_was_sent(stripes: int, have_tokens: int) -> None:
    pages = Landing(manifest, have_tokens)
    with ConnectionPair(pages, Options(stripes, chunk_bytes=512)) as pair:
        for name in ("first", "second"):
            report, layers = send(pair.client, name)
            assert pages.layers == layers
            assert report.exact and report.attempts == 1 and report.have_tokens == have_tokens
        assert not pair.server.core.transfers.under_way
    assert pages.completed == ["first", "second"] and not pages.closed


def test_only_the_increment_of_a_prefix_travels_and_state_travels_whole() -> None:
    sizes = []
    for have_tokens in (0, 64):
        with ConnectionPair(pages := Landing(manifest, have_tokens)) as pair:
            sizes.append(send(pair.client, "x")[0].bytes_sent)
    assert sizes[0] - sizes[1] == pytest.approx(LAYERS * 64 * 37 * 2, abs=LAYERS * 16)  # headers differ by digits
    assert len(pages.layers[0][1]) == 3 * 5 * 7 * 4


def test_success_means_applied() -> None:
    with ConnectionPair(pages := Landing(manifest, apply=lambda _: time.sleep(0.2))) as pair:
        report, _ = send(pair.client, "x")
        assert pages.completed == ["x"] and report.seconds >= 0.2


def test_a_receiver_that_cannot_apply_is_an_error_at_the_sender() -> None:
    def fail(_: object) -> None:
        raise KeyError("no slot")

    with ConnectionPair(pages := Landing(manifest, apply=fail)) as pair, pytest.raises(ApplyFailed, match="no slot"):
        send(pair.client, "x")
    assert [(name, type(error)) for name, error in pages.closed] == [("x", ApplyFailed)]
    assert not pages.completed


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"dtype": "BF16"}, "dtype"),
        ({"layout": "head,v,k"}, "layout"),
        ({"shape": (3, 7, 5)}, "shape"),
    ],
)
def test_another_tensor_is_refused_by_name(changed: dict[str, object], field: str) -> None:
    pages = Landing(lambda n_tokens: manifest(n_tokens, **changed))
    with ConnectionPair(pages) as pair, pytest.raises(Refused) as refusal:
        send(pair.client, "x")
    assert refusal.value.field == f"layers[0].state.{field}"
    assert refusal.value.theirs == str(changed[field]) != refusal.value.ours
    assert len(pages.closed) == 1  # the destination was given back


def test_a_layer_that_is_left_out_is_refused_by_name() -> None:
    short = Manifest(100, tuple(LayerSpec(layer.tensors[:1]) for layer in manifest(100).layers))
    with ConnectionPair(Landing(manifest)) as pair, pytest.raises(Refused) as refusal:
        pair.client.offer("x", short, deadline_s=10)
    assert (refusal.value.field, refusal.value.ours, refusal.value.theirs) == ("layers[0].state", "absent", "present")


def test_a_numeric_fingerprint_that_differs_is_refused_unless_both_sides_allow_it() -> None:
    with ConnectionPair(
        Landing(manifest),
        receiver=terms("receiver", numeric={"cpu": "zen4"}, allow_inexact=True),
        sender=terms("sender", numeric={"cpu": "hopper"}),
    ) as pair:
        with pytest.raises(Refused) as refusal:
            send(pair.client, "x")
        assert (refusal.value.field, refusal.value.ours, refusal.value.theirs) == ("numeric.cpu", "hopper", "zen4")
        willing = terms("sender", numeric={"cpu": "hopper"}, allow_inexact=True)
        with Client(pair.server.address, willing) as client:
            assert not send(client, "x")[0].exact


def test_a_layout_fingerprint_that_differs_is_always_refused() -> None:
    ours, theirs = (terms(f"{n}", layout={"block": str(n)}, allow_inexact=True) for n in (64, 32))
    refusal = pytest.raises(Refused, match=r"layout.block: ours is 64, theirs is 32")
    with ConnectionPair(Landing(manifest), sender=ours, receiver=theirs) as pair, refusal:
        send(pair.client, "x")


@pytest.mark.parametrize("deadline_s", [600.5, 1e8])
def test_a_deadline_beyond_the_receivers_limit_is_refused_by_name(deadline_s: float) -> None:
    with ConnectionPair(pages := Landing(manifest)) as pair:
        with pytest.raises(Refused) as refusal:
            pair.client.offer("x", manifest(100), deadline_s=deadline_s)
        assert (refusal.value.field, refusal.value.theirs) == ("deadline_s", "at most 600")
        send(pair.client, "y", deadline_s=600.0)
    assert pages.completed == ["y"]


def test_as_many_stripes_as_a_session_may_have_can_greet_at_once() -> None:
    with ConnectionPair(pages := Landing(manifest), Options(32)) as pair:
        send(pair.client, "x")
        for stripes in (0, 33, 64):
            with pytest.raises(ValueError, match="1 to 32"):
                Client(pair.server.address, terms("s"), Options(stripes))
    assert pages.completed == ["x"]


def test_an_ipv6_address_can_be_listened_on() -> None:
    pages = Landing(manifest)
    with Server(terms("r"), pages, host="::1") as server, Client(server.address, terms("s")) as client:
        send(client, "x")
    assert server.address[0] == "::1" and pages.completed == ["x"]


def test_a_sender_that_fails_says_so() -> None:
    def engine(transfer: Transfer) -> None:
        with transfer:
            transfer.send_layer(0, views(random_layers(transfer.increment)[0]))
            raise RuntimeError("the engine died at layer 1")

    with ConnectionPair(pages := Landing(manifest)) as pair:
        with pytest.raises(RuntimeError):
            engine(pair.client.offer("x", manifest(100), deadline_s=10))
        assert [type(error) for _, error in pages.closed] == [Aborted]
        assert "the engine died" in str(pages.closed[0][1])
        send(pair.client, "y")  # the client is as good as new
    assert pages.completed == ["y"]


def test_a_sender_that_stops_with_its_socket_open_is_bounded_at_both_ends() -> None:
    with ConnectionPair(pages := Landing(manifest)) as pair:
        transfer = pair.client.offer("x", manifest(100), deadline_s=0.3)
        layers = random_layers(transfer.increment)
        transfer.send_layer(0, views(layers[0]))
        give_up = time.monotonic() + 5
        while not pages.closed and time.monotonic() < give_up:
            time.sleep(0.01)
        assert [type(error) for _, error in pages.closed] == [Expired]
        with pytest.raises((DeadlineExceeded, Expired)):
            transfer.send_layer(1, views(layers[1]))
        stripes = [thread for thread in threading.enumerate() if thread.name == "prfaas-client-stripe"]
        assert not stripes  # nobody reads the pages once the error is out


def test_layers_can_be_sent_as_their_bytes_become_final() -> None:
    with ConnectionPair(pages := Landing(manifest), Options(chunk_bytes=512)) as pair:
        transfer = pair.client.offer("x", manifest(100), deadline_s=10)
        layers = [[bytearray(t.n_bytes) for t in layer.tensors] for layer in transfer.increment.layers]
        wanted = random_layers(transfer.increment)
        for i, tensors in enumerate(layers):
            transfer.send_layer(i, [memoryview(t) for t in tensors], ready_bytes=0)
        for rows in (30, 77, 100):  # chunk-major: every layer's pages, as far as they go
            for i, (kv, _) in enumerate(layers):
                kv[: rows * 74] = wanted[i][0][: rows * 74]
                transfer.advance_layer(i, rows * 74)
        with pytest.raises(ValueError, match="never wholly sent"):
            transfer.finish()
        for i, (kv, state) in enumerate(layers):
            state[:] = wanted[i][1]
            transfer.advance_layer(i, len(kv) + len(state))
        transfer.finish()
    assert pages.layers == wanted


def test_views_that_are_not_contiguous_are_refused_before_a_byte_is_sent() -> None:
    with ConnectionPair(Landing(manifest)) as pair, pair.client.offer("x", manifest(100), deadline_s=10) as transfer:
        kv, state = views(random_layers(transfer.increment)[0])
        with pytest.raises(ValueError, match="not contiguous"):
            transfer.send_layer(0, [memoryview(bytes(2 * len(kv)))[::2], state])
        with pytest.raises(ValueError, match="its manifest says"):
            transfer.send_layer(0, [kv])


def test_the_emulated_link_takes_its_time() -> None:
    link = EmulatedLink(bits_per_s=8e6, rtt_s=0.05)
    with ConnectionPair(Landing(manifest), Options(2, chunk_bytes=2048), link=link) as pair:
        report, _ = send(pair.client, "x", n_tokens=1500)
    on_wire_s = report.bytes_sent * 8 / 8e6
    assert on_wire_s + 0.1 <= report.seconds < 1.5 * on_wire_s + 0.6
