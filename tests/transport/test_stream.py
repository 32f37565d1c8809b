"""A plain stream's patience: blocked in the kernel, and still on time."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from prfaas_ref.transport.errors import PeerGone, Stalled
from prfaas_ref.transport.stream import TcpStream


@pytest.fixture
def ends() -> Iterator[tuple[TcpStream, socket.socket]]:
    """A stream, and its peer's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        stream = TcpStream(listener.accept()[0])
        yield stream, peer
        stream.close()


def test_what_waits_is_filled_in_one_call(ends: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = ends
    whole = bytearray(5)
    peer.sendall(b"hello")
    assert stream.receive_into([memoryview(whole)[:2], memoryview(whole)[2:]], 5.0, True) == 5
    assert whole == b"hello"


def test_a_call_that_fills_gives_back_what_it_has(ends: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = ends
    peer.sendall(b"half")
    assert stream.receive_into([memoryview(bytearray(8))], 5.0, True) == 4


@pytest.mark.parametrize("fill", [False, True])
def test_silence_ends_on_time(ends: tuple[TcpStream, socket.socket], fill: bool) -> None:
    stream, _ = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        stream.receive_into([memoryview(bytearray(8))], 0.1, fill)
    assert 0.1 <= time.monotonic() - began < 1.0


def test_too_late_is_too_late_though_bytes_are_there(ends: tuple[TcpStream, socket.socket]) -> None:
    """A peer that always has one more byte to give does not outlast its deadline."""
    stream, peer = ends
    peer.sendall(b"x")
    with pytest.raises(TimeoutError):
        stream.receive_into([memoryview(bytearray(8))], 0.0, True)


def test_a_peer_that_does_not_read_is_stalled_on_time(ends: tuple[TcpStream, socket.socket]) -> None:
    stream, _ = ends
    began = time.monotonic()
    with pytest.raises(Stalled):
        stream.send([bytes(64 << 20)], 0.2)
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("reading", [False, True])
def test_shut_wakes_a_blocked_call(ends: tuple[TcpStream, socket.socket], reading: bool) -> None:
    stream, _ = ends
    ended: list[BaseException] = []

    def blocked() -> None:
        try:
            if reading:
                stream.receive_into([memoryview(bytearray(8))], 60.0, True)
            else:
                stream.send([bytes(64 << 20)], 60.0)
        except PeerGone as error:
            ended.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    thread.join(0.05)
    stream.shut()
    thread.join(5.0)
    assert ended
