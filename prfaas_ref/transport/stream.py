"""A connected socket with deadlines: gathers on send, scatters on receive, and fails with our own errors.

Reading and writing go through two handles of one connection, since a socket object has a single timeout and each
direction has a thread.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence

from prfaas_ref.transport.errors import PeerGone, Stalled

MAX_VIEWS = 512  # per system call; the kernel's limit is 1024
Clock = Callable[[], float]


class TcpStream:
    """Owns the socket. `send` and `receive_into` may run in two threads; `shut` ends both from any thread."""

    def __init__(self, sock: socket.socket, clock: Clock = time.monotonic) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._out, self._clock = sock, sock.dup(), clock

    def send(self, views: Sequence[memoryview | bytes], within_s: float) -> None:
        """Write all of them. Raises Stalled when the peer does not take them in time, PeerGone when it has gone."""
        deadline = self._clock() + within_s
        rest = [memoryview(view) for view in views]
        while rest:
            self._out.settimeout(max(deadline - self._clock(), 1e-3))
            try:
                sent = self._out.sendmsg(rest[:MAX_VIEWS])
            except TimeoutError:
                raise Stalled(f"the peer has not read {sum(map(len, rest))} bytes for {within_s:.1f} s") from None
            except OSError as error:
                raise PeerGone(f"writing: {error}") from None
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def receive_into(self, views: list[memoryview], within_s: float) -> int:
        """Read at least one byte. Raises TimeoutError when none comes in time, PeerGone at the end of the stream."""
        self._in.settimeout(max(within_s, 1e-3))
        try:
            n_bytes = self._in.recv_into(views[0]) if len(views) == 1 else self._in.recvmsg_into(views)[0]
        except TimeoutError:
            raise
        except OSError as error:
            raise PeerGone(f"reading: {error}") from None
        if not n_bytes:
            raise PeerGone("the peer closed the connection")
        return n_bytes

    @property
    def socket(self) -> socket.socket:
        return self._in

    def shut(self) -> None:
        """Both directions end now; blocked calls return. Call `close` when no thread uses it any more."""
        with contextlib.suppress(OSError):
            self._in.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._in.close()
        self._out.close()

