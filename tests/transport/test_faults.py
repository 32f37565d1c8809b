"""What goes wrong between two real drivers: cut lines, lost chunks, late chunks, silent and slow peers.

The rows of the project's list of faults that others shipped are named in the docstrings.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from prfaas_ref.transport import (
    Client,
    Destination,
    Incoming,
    LayerSpec,
    Limits,
    Manifest,
    Options,
    Report,
    Server,
    TensorSpec,
    Transfer,
)
from prfaas_ref.transport.checks import Check
from prfaas_ref.transport.errors import (
    ApplyFailed,
    Busy,
    DeadlineExceeded,
    Expired,
    Incomplete,
    PeerGone,
    PeerRestarted,
    Stalled,
    TransportError,
)
from prfaas_ref.transport.faults import FaultProxy, Script
from prfaas_ref.transport.frames import HEADER_BYTES, FrameType, Header, pack, unpack
from prfaas_ref.transport.stream import TcpStream
from prfaas_ref.transport.testing import ConnectionPair, Landing, terms

PATIENT = Limits(resume_s=5.0)
LAYERS = 3


def manifest(n_tokens: int) -> Manifest:
    kv = TensorSpec("kv", "BF16", (n_tokens, 37), "token,latent+rope", per_token=True)
    state = TensorSpec("state", "F32", (3, 5, 7), "head,k,v")
    return Manifest(n_tokens, tuple(LayerSpec((kv, state)) for _ in range(LAYERS)))


def send(client: Client, name: str = "x", n_tokens: int = 150) -> tuple[Report, list[list[bytes]]]:
    with client.offer(name, manifest(n_tokens), deadline_s=20.0) as transfer:
        layers = [[os.urandom(t.n_bytes) for t in layer.tensors] for layer in transfer.increment.layers]
        for i, tensors in enumerate(layers):
            transfer.send_layer(i, [memoryview(t) for t in tensors])
        return transfer.finish(), layers


@contextmanager
def proxied(
    pages: Landing, script: Script, options: Options | None = None, limits: Limits = PATIENT
) -> Iterator[tuple[Server, Client]]:
    """A server, a client, and the script between them."""
    with (
        Server(terms("r", limits), pages) as server,
        FaultProxy(server.address, script) as proxy,
        Client(proxy.address, terms("s", limits), options) as client,
    ):
        yield server, client


def finish(transfer: Transfer, layers: list[list[memoryview]]) -> Report:
    for i, views in enumerate(layers):
        transfer.send_layer(i, views)
    return transfer.finish()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("prfaas-")])


@pytest.mark.parametrize("stripes", [1, 2])
def test_random_cuts_are_resumed_to_the_same_bytes(stripes: int) -> None:
    """25 transfers each, every one cut once, in the middle of whichever frame the dice choose."""
    dice = random.Random(stripes)
    budget = 0

    def script(_: int, frame: bytes) -> bytes | None:
        nonlocal budget
        budget -= len(frame)
        if budget > 0 or budget < -(1 << 30):
            return frame
        budget = -(1 << 40)
        return None

    pages = Landing(manifest)
    with Server(terms("r", PATIENT), pages) as server, FaultProxy(server.address, script) as proxy:
        for i in range(25):
            budget = dice.randrange(1000, 33_000)
            options = Options(stripes, chunk_bytes=1024, backoff_s=0.002)
            with Client(proxy.address, terms("s", PATIENT), options) as client:
                report, layers = send(client, f"t{i}")
            assert pages.layers == layers and report.attempts <= 2
        assert len(pages.completed) == 25 and not pages.closed
        assert not server.core.transfers.under_way


@pytest.mark.parametrize(("at", "attempts", "retries"), [(HEADER_BYTES + 5, 1, 1), (13, 2, 0)])
def test_a_flipped_payload_bit_costs_a_chunk_a_flipped_header_bit_an_attempt(
    at: int, attempts: int, retries: int
) -> None:
    """Dynamo PR 7879: corruption is told, mended, and never delivered."""
    flipped: list[bytes] = []

    def script(_: int, frame: bytes) -> bytes:
        if unpack(frame[:HEADER_BYTES]).type is FrameType.DATA and not flipped:
            flipped.append(frame)
            return frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]
        return frame

    pages, options = Landing(manifest), Options(chunk_bytes=1024)
    with proxied(pages, script, options) as (_, client):
        report, layers = send(client)
    assert pages.layers == layers and (report.attempts, report.retries) == (attempts, retries)


@pytest.mark.parametrize("times", [1, 3, 100])
def test_done_means_the_manifest_is_covered(times: int) -> None:
    """vllm-ascend #8810: a chunk is lost without a trace, DONE arrives. It is asked for again; at last it is told."""
    lost: list[bytes] = []

    def script(_: int, frame: bytes) -> bytes:
        header = unpack(frame[:HEADER_BYTES])
        if header.type is FrameType.DATA and (header.layer, header.offset) == (2, 1024) and len(lost) < times:
            lost.append(frame)
            return b""
        return frame

    pages = Landing(manifest)
    with proxied(pages, script, Options(2, chunk_bytes=512)) as (_, client):
        if times <= PATIENT.chunk_retries:
            report, layers = send(client)
            assert pages.layers == layers and report.retries == times == len(lost)
        else:
            with pytest.raises(Incomplete, match="chunk 2 of layer 2"):
                send(client)
            assert not pages.completed and len(pages.closed) == 1


def test_a_stripe_that_carries_nothing_does_no_harm() -> None:
    """vllm-ascend #8810, the other half: one chunk per layer, four stripes."""
    with ConnectionPair(pages := Landing(manifest), Options(4)) as pair:
        _, layers = send(pair.client, n_tokens=3)
    assert pages.layers == layers


def test_a_slow_stripe_takes_less() -> None:
    taken = [0, 0]

    def script(number: int, frame: bytes) -> bytes:
        if unpack(frame[:HEADER_BYTES]).type is FrameType.DATA:
            taken[number] += 1
            time.sleep(0.01 * number)
        return frame

    pages, limits = Landing(manifest), Limits(credit_bytes=2048)  # four chunks: a queue in the proxy hides nothing
    with proxied(pages, script, Options(2, chunk_bytes=512), limits) as (_, client):
        _, layers = send(client, n_tokens=600)
    assert pages.layers == layers
    assert 0 < taken[1] < taken[0] / 2


def test_a_restarted_peer_is_a_new_peer() -> None:
    """vLLM #49238, smg #2382: restart on the same port, resume the old session."""
    pages = Landing(manifest)
    server = Server(terms("r", PATIENT), pages)
    with Client(server.address, terms("s", PATIENT), Options(chunk_bytes=512)) as client:
        transfer = client.offer("x", manifest(150), deadline_s=10)
        server.close()
        assert [type(error) for _, error in pages.closed] == [PeerGone]
        layers = [[memoryview(bytes(t.n_bytes)) for t in layer.tensors] for layer in transfer.increment.layers]
        with Server(terms("again", PATIENT), Landing(manifest), port=server.address[1]):
            with pytest.raises(PeerRestarted):
                finish(transfer, layers)
            send(client, "y")  # and a new transfer goes to the new peer


def test_pages_of_an_aborted_transfer_are_not_free_while_a_chunk_can_land() -> None:
    """SGLang PR 35049, vLLM #46283: half a chunk has arrived when the abort comes; its rest arrives late."""
    holding, go_on = threading.Event(), threading.Event()

    def script(number: int, frame: bytes) -> bytes:
        if number == 1 and unpack(frame[:HEADER_BYTES]).type is FrameType.DATA and not holding.is_set():
            proxy._sockets[3].sendall(frame[: len(frame) // 2])
            holding.set()
            go_on.wait(5)
            return frame[len(frame) // 2 :]
        return frame

    pages = Landing(manifest)
    limits = Limits(grace_s=5.0, credit_bytes=4096)  # so that both stripes have their turn
    with Server(terms("r", limits), pages) as server, FaultProxy(server.address, script) as proxy:
        with Client(proxy.address, terms("s", limits), Options(2, chunk_bytes=512, abort_s=0.3)) as client:
            transfer = client.offer("x", manifest(5000), deadline_s=10)
            for i, layer in enumerate(transfer.increment.layers):
                transfer.send_layer(i, [memoryview(bytes(t.n_bytes)) for t in layer.tensors])
            assert holding.wait(5)
            (incoming,) = server.core.transfers.under_way.values()
            eventually(lambda: incoming.landing)
            aborting = threading.Thread(target=transfer.abort, args=("changed my mind",))
            aborting.start()
            eventually(lambda: incoming.error)
            assert incoming.landing and not pages.closed  # quarantine
            go_on.set()
            aborting.join()
        eventually(lambda: pages.closed)
        assert not incoming.landing
    assert [name for name, _ in pages.closed] == ["x"]


def test_a_lease_that_is_over_answers_expired_never_bytes() -> None:
    """vLLM #21570: the sender's clock stands still, the receiver's does not; then it resumes."""
    clock = [0.0]
    pages = Landing(manifest)
    server = Server(terms("r", PATIENT), pages, clock=lambda: time.monotonic() + clock[0])
    with server, Client(server.address, terms("s", PATIENT)) as client:
        transfer = client.offer("x", manifest(150), deadline_s=30)
        clock[0] = 100.0
        eventually(lambda: pages.closed)
        assert isinstance(pages.closed[0][1], Expired)
        layers = [[memoryview(bytes(t.n_bytes)) for t in layer.tensors] for layer in transfer.increment.layers]
        with pytest.raises((Expired, PeerGone)):
            finish(transfer, layers)
    assert not pages.completed and len(pages.closed) == 1


def test_200_half_open_connections_and_a_transfer_that_does_not_mind() -> None:
    limits = Limits(handshake_s=1.0, unready_connections=16)
    with ConnectionPair(pages := Landing(manifest), limits=limits) as pair:
        send(pair.client, "before")
        sockets = [socket.create_connection(pair.server.address) for _ in range(200)]
        try:
            eventually(lambda: len(pair.server.core.lines) <= 1 + 16)
            assert threading.active_count() < 60
            _, layers = send(pair.client, "during")
            assert pages.layers == layers
            eventually(lambda: len(pair.server.core.lines) == 1)  # the half-open ones have had their time
        finally:
            for sock in sockets:
                sock.close()
        send(pair.client, "after")
    assert pages.completed == ["before", "during", "after"]


def test_an_absurd_length_is_refused_before_anything_is_allocated() -> None:
    with ConnectionPair(Landing(manifest)) as pair, socket.create_connection(pair.server.address) as sock:
        sock.sendall(pack(Header(FrameType.HELLO, 0, 0, 0, Check.CRC32, 0, 0, 2**32 - 1, 0)))
        reply = sock.recv(1000)
        assert b"4294967295 bytes; the cap is" in reply
        send(pair.client)


def test_a_peer_that_writes_one_byte_per_second_is_dropped_and_harms_nobody() -> None:
    limits = Limits(grace_s=0.3, handshake_s=0.5)
    pair = ConnectionPair(pages := Landing(manifest), limits=limits)
    with pair, socket.create_connection(pair.server.address) as slow:
        began = time.monotonic()
        slow.sendall(b"P")
        send(pair.client)
        slow.settimeout(5)
        while slow.recv(4096):  # what it was told, then the end
            pass
        assert time.monotonic() - began < 3
    assert pages.completed == ["x"]


def test_a_receiver_that_reads_one_byte_per_second_is_a_stalled_peer() -> None:
    limits = Limits(grace_s=0.3, bytes_per_s=1 << 24, resume_s=0.2)
    release = threading.Event()

    def script(_: int, frame: bytes) -> bytes:
        if unpack(frame[:HEADER_BYTES]).type is FrameType.DATA:
            release.wait(10)
        return frame

    pages = Landing(lambda n: Manifest(n, (LayerSpec((TensorSpec("big", "U8", (64 << 20,), "x"),)),)))
    with proxied(pages, script, limits=limits) as (_, client):
        transfer = client.offer("x", pages._manifest(1), deadline_s=20)
        transfer.send_layer(0, [memoryview(bytes(64 << 20))])
        with pytest.raises(Stalled):
            transfer.finish()
        release.set()
        eventually(lambda: pages.closed)


def test_memory_is_reserved_from_a_budget_at_the_offer() -> None:
    need = manifest(150).n_bytes
    with ConnectionPair(Landing(manifest), limits=Limits(reserved_bytes=need * 3 // 2)) as pair:
        first = pair.client.offer("x", manifest(150), deadline_s=10)
        other = Client(pair.server.address, terms("other"))
        with pytest.raises(Busy):
            other.offer("y", manifest(150), deadline_s=10)
        first.abort("make room")
        send(other, "y")
        other.close()


def test_a_second_offer_of_a_transfer_under_way_is_refused() -> None:
    with ConnectionPair(Landing(manifest)) as pair:
        first = pair.client.offer("x", manifest(150), deadline_s=10)
        with Client(pair.server.address, terms("sender")) as twin, pytest.raises(TransportError, match="under way"):
            twin.offer("x", manifest(150), deadline_s=10)
        first.abort("done with it")


def test_a_slow_handler_delays_no_other_transfer() -> None:
    """And a slow `on_complete` keeps its own connection alive: pings are answered meanwhile."""
    applied = threading.Event()

    def apply(incoming: Incoming) -> None:
        if incoming.transfer_id == "slow":
            applied.wait(10)

    limits = Limits(idle_s=0.3)
    with ConnectionPair(pages := Landing(manifest, apply=apply), limits=limits) as pair:
        slow = threading.Thread(target=send, args=(pair.client, "slow"))
        slow.start()
        with Client(pair.server.address, terms("other", limits)) as other:
            for i in range(3):
                send(other, f"quick{i}")
        time.sleep(0.5)
        applied.set()
        slow.join()
    assert pages.completed == ["quick0", "quick1", "quick2", "slow"]


def test_a_server_that_closes_while_it_applies_still_says_applied() -> None:
    applying = threading.Event()

    def apply(_: Incoming) -> None:
        applying.set()
        time.sleep(0.2)

    with ConnectionPair(pages := Landing(manifest, apply=apply)) as pair:
        closing = threading.Thread(target=lambda: applying.wait(10) and pair.server.close())
        closing.start()
        report, _ = send(pair.client)
        closing.join()
        assert report.attempts == 1 and pages.completed == ["x"] and not pages.closed


def test_a_connection_that_comes_up_while_the_server_closes_does_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TLS handshake may end after `close` has shut all the streams that it knew; the peer then talks on and on."""
    begun, all_shut = threading.Event(), threading.Event()

    def slow_handshake(sock: socket.socket, *_: object) -> TcpStream:
        begun.set()
        all_shut.wait(10)
        return TcpStream(sock)

    monkeypatch.setattr("prfaas_ref.transport.server.open_stream", slow_handshake)
    server = Server(terms("r", Limits(grace_s=0.0, handshake_s=60.0)), Landing(manifest))
    join = server._join

    def joining(*kinds: str, within_s: float = float("inf")) -> None:
        if kinds == ("line",) and within_s == float("inf"):
            all_shut.set()
        join(*kinds, within_s=within_s)

    monkeypatch.setattr(server, "_join", joining)
    with socket.create_connection(server.address):
        assert begun.wait(10)
        closing = threading.Thread(target=server.close)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()
    closing.join()


def test_a_handler_that_decides_too_late_gives_its_destination_back() -> None:
    """SGLang PR 12693's kin: the sender has given up when `on_offer` returns; its pages are freed once."""

    class Slow(Landing):
        def on_offer(self, incoming: Incoming) -> Destination:
            time.sleep(0.6)
            return super().on_offer(incoming)

    with ConnectionPair(pages := Slow(manifest), limits=Limits(resume_s=0.1)) as pair:
        with pytest.raises((DeadlineExceeded, Expired)):
            pair.client.offer("x", manifest(150), deadline_s=0.2)
        eventually(lambda: pages.closed)
        send(pair.client, "y", 5)
    assert [name for name, _ in pages.closed] == ["x"] and pages.completed == ["y"]


def test_a_client_carries_one_transfer_at_a_time() -> None:
    with ConnectionPair(Landing(manifest)) as pair, pair.client.offer("x", manifest(150), deadline_s=10) as transfer:
        with pytest.raises(ValueError, match="one transfer at a time"):
            pair.client.offer("y", manifest(150), deadline_s=10)
        finish(transfer, [[memoryview(bytes(t.n_bytes)) for t in layer.tensors] for layer in manifest(150).layers])


def test_a_dead_server_is_a_typed_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with Client(address, terms("s")) as client, pytest.raises(PeerGone, match="cannot connect"):
        client.offer("x", manifest(5), deadline_s=5)


def test_a_server_that_never_greets_is_bounded() -> None:
    impatient = terms("s", Limits(handshake_s=0.3))
    with socket.create_server(("127.0.0.1", 0)) as mute, Client(mute.getsockname(), impatient) as c:
        began = time.monotonic()
        with pytest.raises(TransportError):
            c.offer("x", manifest(5), deadline_s=5)
        assert time.monotonic() - began < 2


def test_apply_failed_is_never_success_and_is_not_retried() -> None:
    """Mooncake #2086 / PR 2850: a receiver that rejects."""

    def apply(_: Incoming) -> None:
        raise ApplyFailed("the slot is gone")

    with ConnectionPair(pages := Landing(manifest, apply=apply)) as pair, pytest.raises(ApplyFailed):
        send(pair.client)
    assert len(pages.closed) == 1
