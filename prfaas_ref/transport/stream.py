"""A connected socket with deadlines, plain or TLS: gathers on send, scatters on receive, fails with our own errors.

One thread reads and another writes. A plain socket blocks in the kernel, so that a whole chunk moves in one call, with
Python's lock released; the kernel hands back what it has after `SLICE_S`, and deadlines are kept here. An OpenSSL
connection is not for two threads at once, so a TLS stream takes turns and waits outside the lock.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from prfaas_ref.transport.errors import PeerGone, Stalled

MAX_VIEWS = 512  # per system call; the kernel's limit is 1024
TLS_PIECE_BYTES = 1 << 18
SLICE_S = 0.02  # of a blocked call; a peer is found too slow at most so late
Clock = Callable[[], float]
T = TypeVar("T")


class _Owner:
    """The end of either kind of stream, which owns its socket.

    Only the system's own shutdown is called: that of an SSLSocket first forgets its encryption, and what another thread
    writes in that moment would leave in clear.
    """

    socket: socket.socket

    def finish(self) -> None:
        """No more will be written; what was written still arrives."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_WR)

    def shut(self) -> None:
        """Both directions end now; blocked calls return. Call `close` when no thread uses it any more."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self.socket.close()


class TcpStream(_Owner):
    """Owns the socket. `send` and `receive_into` may run in two threads; `shut` ends both from any thread."""

    def __init__(self, sock: socket.socket, clock: Clock = time.monotonic) -> None:
        self.socket, self._clock = sock, clock
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", 0, int(SLICE_S * 1e6)))
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def send(self, views: Sequence[memoryview | bytes], within_s: float) -> None:
        """Write all of them. Raises Stalled when the peer does not take them in time, PeerGone when it has gone."""
        deadline = self._clock() + within_s
        rest = [memoryview(view) for view in views]
        while rest:
            try:
                sent = self._in_time(self._writable, deadline, partial(self.socket.sendmsg, rest[:MAX_VIEWS]))
            except TimeoutError:
                raise Stalled(f"the peer has not read {sum(map(len, rest))} bytes for {within_s:.1f} s") from None
            except OSError as error:
                raise PeerGone(f"writing: {error}") from None
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def receive_into(self, views: list[memoryview], within_s: float, fill: bool = False) -> int:
        """Read at least one byte; with `fill`, all of them or what comes within `SLICE_S`.

        Raises TimeoutError when none comes in time, PeerGone at the end of the stream.
        """
        flags = socket.MSG_WAITALL if fill else socket.MSG_DONTWAIT
        receive = partial(self.socket.recvmsg_into, views, 0, flags)
        try:
            n_bytes: int = self._in_time(self._readable, self._clock() + within_s, receive)[0]
        except TimeoutError:
            raise
        except OSError as error:
            raise PeerGone(f"reading: {error}") from None
        if not n_bytes:
            raise PeerGone("the peer closed the connection")
        return n_bytes

    def _in_time(self, moved: select.poll, deadline: float, call: Callable[[], T]) -> T:
        """The first call that moves a byte. Raises TimeoutError when it is too late for one."""
        while (left_s := deadline - self._clock()) > 0:
            try:
                return call()
            except BlockingIOError:
                moved.poll(left_s * 1000)
        raise TimeoutError


class TlsStream(_Owner):
    """The same over TLS. The handshake is done here, within `within_s`; raises PeerGone when it fails."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None, within_s: float, clock: Clock
    ) -> None:
        sock.settimeout(within_s)
        try:
            self.socket = context.wrap_socket(
                sock, server_side=server_hostname is None, server_hostname=server_hostname
            )
        except OSError as error:  # ssl.SSLError is one
            sock.close()
            raise PeerGone(f"TLS: {error}") from None
        self.socket.setblocking(False)
        self._lock, self._clock = threading.Lock(), clock

    def send(self, views: Sequence[memoryview | bytes], within_s: float) -> None:
        deadline = self._clock() + within_s
        for view in views:
            view = memoryview(view)
            while view:
                send = partial(self.socket.send, view[:TLS_PIECE_BYTES])
                try:
                    view = view[self._turn(send, deadline, select.POLLOUT) :]
                except TimeoutError:
                    raise Stalled(f"the peer has not read for {within_s:.1f} s") from None

    def receive_into(self, views: list[memoryview], within_s: float, _fill: bool = False) -> int:
        receive = partial(self.socket.recv_into, views[0])
        n_bytes = self._turn(receive, self._clock() + within_s, select.POLLIN)
        if not n_bytes:
            raise PeerGone("the peer closed the connection")
        return n_bytes

    def _turn(self, call: Callable[[], int], deadline: float, event: int) -> int:
        """Try `call` under the lock until it neither has to wait to read nor to write."""
        poll = select.poll()
        while True:
            try:
                poll.register(self.socket, event)
                with self._lock:
                    return call()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left_s = max(deadline - self._clock(), 0)
                if not poll.poll(left_s * 1000) and not left_s:
                    raise TimeoutError from None
            except (OSError, ValueError) as error:
                raise PeerGone(f"TLS: {error}") from None


Stream = TcpStream | TlsStream


def open_stream(
    sock: socket.socket, tls: ssl.SSLContext | None, server_hostname: str | None, within_s: float, clock: Clock
) -> Stream:
    """A stream over a connected socket, which it owns from here on; the listening side has no `server_hostname`."""
    if tls is None:
        return TcpStream(sock, clock)
    return TlsStream(sock, tls, server_hostname, within_s, clock)
