"""The sending driver of one session: a reader and a writer thread per connection, around one sans-IO Sender.

All threads share the client's condition. A writer takes the next chunk that any stripe may send, seals it outside the
lock, and writes it straight from the user's pages; on an emulated link it holds the frame until its time has come.
"""

import logging
import secrets
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from prfaas_ref.transport.congestion import Sample, tcp_info
from prfaas_ref.transport.connection import Connection, Terms
from prfaas_ref.transport.errors import PeerGone, TransportError
from prfaas_ref.transport.frames import Header
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.pump import Pump
from prfaas_ref.transport.sender import Parcel, Sender
from prfaas_ref.transport.stream import Clock, Stream, open_stream

logger = logging.getLogger(__name__)
Loop = Callable[[Connection, Stream], None]


class Departure(NamedTuple):
    """A frame on the emulated link."""

    due: float
    views: list[memoryview | bytes]


class Stripes:
    """Connects on construction; raises PeerGone when that fails. Ready when `core.ready`; over when `core.lost`."""

    def __init__(
        self, address: tuple[str, int], terms: Terms, stripes: int, queue_bytes: int, link: EmulatedLink,
        changed: threading.Condition, tls: ssl.SSLContext | None, clock: Clock,
    ) -> None:  # fmt: skip
        session = secrets.token_hex(16)
        self._limits, self._link, self._changed, self._clock = terms.limits, link, changed, clock
        self._queue_bytes = queue_bytes
        self._streams: list[Stream] = []
        try:
            for _ in range(stripes):
                sock = socket.create_connection(address, terms.limits.handshake_s)
                self._streams.append(open_stream(sock, tls, address[0], terms.limits.handshake_s, clock))
        except (OSError, PeerGone) as error:
            self._close_streams()
            raise PeerGone(f"cannot connect to {address[0]}:{address[1]}: {error}") from None
        connections = [Connection(terms, secrets.token_hex(16), session, i, stripes) for i in range(stripes)]
        self.core = Sender(connections)
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop, *pair), name="prfaas-client-stripe", daemon=True)
            for pair in zip(connections, self._streams, strict=True)
            for loop in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, loop: Loop, connection: Connection, stream: Stream) -> None:
        try:
            loop(connection, stream)
        except TransportError as error:
            self.end(error)
        except Exception as error:  # a mistake of ours must end the transfer too, not hang it
            logger.exception("a stripe failed")
            self.end(TransportError(repr(error)))

    def end(self, error: TransportError) -> None:
        """The session is over. Returns at once; `join` waits until no thread reads the user's pages."""
        with self._changed:
            self.core.lose(error)
            self._changed.notify_all()
        for stream in self._streams:
            stream.shut()

    def sample(self) -> Sample:
        """For the LinkReport. Call it under the condition."""
        core, now = self.core, self._clock()
        queued = core.outgoing.queued_bytes if core.outgoing else 0
        return Sample(
            now, core.confirmed_bytes, queued, core.in_flight_bytes, self._link.busy_s,
            core.out_of_credit, tuple(tcp_info(stream.socket) for stream in self._streams),
        )  # fmt: skip

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._close_streams()

    def _close_streams(self) -> None:
        for stream in self._streams:
            stream.close()

    def _read(self, connection: Connection, stream: Stream) -> None:
        def admit(header: Header) -> None:
            self.core.admit(connection, header)

        pump = Pump(stream, admit, lambda: connection.ready, self._limits, self._clock)
        while True:
            if frame := pump.step():
                with self._changed:
                    self.core.receive(connection, frame)
                    self._changed.notify_all()

    def _write(self, connection: Connection, stream: Stream) -> None:
        line: deque[Departure] = deque()
        while (work := self._next(connection, line)) is not None:
            if isinstance(work, Parcel):
                header, digest = self.core.seal(work)
                with self._changed:
                    self.core.sent(work, digest)
                    if self.core.has_control:
                        self._changed.notify_all()
                self._depart(line, [header, *work.chunk.views])
            else:
                stream.send(work.views, self._limits.frame_s(sum(map(len, work.views))))

    def _depart(self, line: deque[Departure], views: list[memoryview | bytes]) -> None:
        due = self._link.reserve(sum(map(len, views)), self._clock())
        line.append(Departure(max(due, line[-1].due) if line else due, views))

    def _next(self, connection: Connection, line: deque[Departure]) -> Parcel | Departure | None:
        """Wait for this stripe's next work: a frame that is due, or a chunk to seal; None when the session is over."""
        ping_at = self._clock() + self._limits.idle_s / 3
        with self._changed:
            while self.core.lost is None:
                while connection.outbox:
                    self._depart(line, [connection.outbox.popleft()])
                now = self._clock()
                wake_at = min(line[0].due, ping_at) if line else max(ping_at, now + 0.01)
                if line and line[0].due <= now:
                    return line.popleft()
                if self._link.free_at > now:
                    wake_at = min(wake_at, self._link.free_at)
                elif parcel := self._take(connection):
                    return parcel
                if now >= ping_at and connection.ready:
                    self.core.ping(connection)
                    ping_at = now + self._limits.idle_s / 3
                    continue
                self._changed.wait(wake_at - now)
        return None

    def _take(self, connection: Connection) -> Parcel | None:
        """The next chunk. Who waits for room in the queue is woken when there is some, and not at every chunk."""
        full = self._full
        parcel = self.core.take(connection)
        if full and not self._full:
            self._changed.notify_all()
        return parcel

    @property
    def _full(self) -> bool:
        return self.core.outgoing is not None and self.core.outgoing.queued_bytes > self._queue_bytes
