"""A proxy on the loopback that stands between the two ends of a hand-off, and does to its frames what a script says.

For tests, ours and yours. It sees the sender's stream frame by frame; the receiver's answers pass as they are.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from prfaas_ref.transport.frames import HEADER_BYTES

Script = Callable[[int, bytes], bytes | None]
LENGTH_AT = slice(20, 24)  # of the header


class FaultProxy:
    """Connect a Client to `address` instead of the server's own.

    `script(connection, frame)` is called with the number of the connection (from 0, in order of arrival) and each whole
    frame the sender wrote, and returns what to pass on in its place: the frame, a damaged one, several, b"" to lose it.
    None cuts the connection. It may block: the connection then stalls.
    """

    def __init__(self, target: tuple[str, int], script: Script) -> None:
        self._target, self._script = target, script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut everything and wait for the threads. A script that blocks must be let go first."""
        _cut(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join()
        for sock in [self._listener, *self._sockets]:
            sock.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="prfaas-fault-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                inner = self._listener.accept()[0]
                outer = socket.create_connection(self._target)
                self._sockets += [inner, outer]
                self._start(self._forward, number, inner, outer)
                self._start(self._answer, outer, inner)
                number += 1

    def _forward(self, number: int, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(source)) and (changed := self._script(number, frame)) is not None:
                sink.sendall(changed)
        _cut(source, sink)

    def _answer(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        _cut(source, sink)


def _read_frame(sock: socket.socket) -> bytes:
    header = _read(sock, HEADER_BYTES)
    return header + _read(sock, int.from_bytes(header[LENGTH_AT], "big")) if header else b""


def _read(sock: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes and (piece := sock.recv(n_bytes - len(data))):
        data += piece
    return data


def _cut(*sockets: socket.socket) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
