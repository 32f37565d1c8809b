"""The receiving driver: a listening socket, one thread per connection, one lock around the sans-IO Receiver.

A thread reads into the pages that the core lends it, folds the checksum outside the lock, and hands over whole frames.
Handlers run in threads of their own, so a slow one delays no other transfer.
"""

import contextlib
import logging
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial

from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import Busy, PeerGone, TransportError
from prfaas_ref.transport.frames import FrameType, Header, control_frame
from prfaas_ref.transport.handler import Handler, as_transport_error
from prfaas_ref.transport.messages import encode, failure
from prfaas_ref.transport.pump import Pump
from prfaas_ref.transport.receiver import Receiver
from prfaas_ref.transport.security import require_protection
from prfaas_ref.transport.session import Closed, Complete, Event, Line, Offered, Session
from prfaas_ref.transport.stream import Clock, Stream, open_stream

TICK_S = 0.05
logger = logging.getLogger(__name__)


class Wire:
    """One connection's socket side."""

    def __init__(self, line: Line, stream: Stream) -> None:
        self.line, self.stream = line, stream
        self.writing = threading.Lock()


class Server:
    """Listens from construction on. `address` is where; use it as a context manager, or call `close`."""

    def __init__(
        self, terms: Terms, handler: Handler, host: str = "127.0.0.1", port: int = 0,
        tls: ssl.SSLContext | None = None, clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        require_protection(host, terms.secret, tls)
        self.core = Receiver(terms)
        self._handler, self._limits, self._tls, self._clock = handler, terms.limits, tls, clock
        self._lock = threading.Lock()
        self._wires: dict[Line, Wire] = {}
        self._threads: set[threading.Thread] = set()
        self._spawning = threading.Lock()
        self._closing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._start(self._listen, "listen")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every connection and transfer; returns when the last handler call has. Call it from no handler.

        What a handler is applying is applied, and its sender is told, before the connections end.
        """
        self._closing = True
        self._join("listen", "handler")
        for wire in list(self._wires.values()):
            wire.stream.finish()
        self._join("line", within_s=self._limits.grace_s)
        for wire in list(self._wires.values()):
            wire.stream.shut()
        self._join("line")
        with self._lock:
            events = self.core.close(PeerGone("the receiver is closing"))
        self._act(events)
        self._join("handler")
        self._listener.close()

    def _join(self, *kinds: str, within_s: float = float("inf")) -> None:
        deadline = self._clock() + within_s
        while (left_s := deadline - self._clock()) > 0:
            with self._spawning:
                threads = [t for t in self._threads if t.name.endswith(kinds)]
            if not threads:
                return
            threads[0].join(min(left_s, self._limits.handshake_s))

    def _start(self, target: Callable[..., None], name: str, *args: object) -> None:
        def body() -> None:
            try:
                target(*args)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name=f"prfaas-server-{name}", daemon=True)
        with self._spawning:
            self._threads.add(thread)
            thread.start()

    # connections

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while not self._closing:
            if poll.poll(TICK_S * 1000):
                with contextlib.suppress(OSError):
                    self._welcome(self._listener.accept()[0])
            with self._lock:
                events = self.core.tick(self._clock())
            self._act(events)

    def _welcome(self, sock: socket.socket) -> None:
        try:
            with self._lock:
                line = self.core.connect(secrets.token_hex(16))
        except TransportError as busy:
            with sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.send(control_frame(FrameType.ERROR, encode(failure(busy))))
            return
        self._start(self._serve, "line", sock, line)

    def _serve(self, sock: socket.socket, line: Line) -> None:
        try:
            stream = open_stream(sock, self._tls, None, self._limits.handshake_s, self._clock)
        except TransportError as error:
            with self._lock:
                self.core.lose(line, error, self._clock())
            return
        self._wires[line] = wire = Wire(line, stream)
        if self._closing:  # `close` may have shut the wires already, without this one
            stream.shut()
        try:
            self._pump(wire)
        except TransportError as reason:
            self._part(wire, reason)
        except Exception as error:  # a mistake of ours must give the pages back too
            logger.exception("a connection failed")
            self._part(wire, TransportError(repr(error)))
        finally:
            del self._wires[line]
            stream.close()

    def _pump(self, wire: Wire) -> None:
        line, connection = wire.line, wire.line.connection
        pump = Pump(wire.stream, partial(self._admit, line), lambda: connection.ready, self._limits, self._clock)
        while True:
            if frame := pump.step():
                with self._lock:
                    events = self.core.receive(line, frame, self._clock())
                self._act(events)
                self._deliver(line.session or line)

    def _admit(self, line: Line, header: Header) -> list[memoryview] | None:
        with self._lock:
            return self.core.admit(line, header)

    def _part(self, wire: Wire, reason: TransportError) -> None:
        """The connection is no good: say why, if the peer may still listen, and let go of everything it held."""
        connection = wire.line.connection
        if not isinstance(reason, PeerGone):
            connection.send(FrameType.ERROR, failure(reason))
            self._write(wire)
        with self._lock:
            events = self.core.lose(wire.line, reason, self._clock())
        self._act(events)
        self._deliver(None)

    def _deliver(self, where: Session | Line | None) -> None:
        """Write what waits for the peers of this session or line, and end the connections whose session is over."""
        for line, wire in list(self._wires.items()):
            if line.over:
                wire.stream.shut()
            elif where is line or (where is line.session and where is not None):
                self._write(wire)

    def _write(self, wire: Wire) -> None:
        outbox = wire.line.connection.outbox
        with wire.writing, contextlib.suppress(TransportError):  # a broken connection is its reader's to report
            while outbox:
                wire.stream.send([outbox.popleft()], self._limits.frame_s(0))

    # the user's answers

    def _act(self, events: list[Event]) -> None:
        for event in events:
            self._start(self._handle, "handler", event)

    def _handle(self, event: Event) -> None:
        incoming, core = event.incoming, self.core.transfers
        events: list[Event] = []
        match event:
            case Offered():
                try:
                    if self._closing:
                        raise Busy("the receiver is closing")
                    destination = self._handler.on_offer(incoming)
                except Exception as error:
                    with self._lock:
                        core.reject(incoming, as_transport_error(error))
                else:
                    with self._lock:
                        events = core.accept(incoming, destination)
            case Complete():
                try:
                    self._handler.on_complete(incoming)
                except Exception as error:
                    with self._lock:
                        events = core.fail(incoming, as_transport_error(error))
                else:
                    with self._lock:
                        core.applied(incoming)
            case Closed(error=error):
                self._handler.on_closed(incoming, error)
        self._act(events)
        self._deliver(incoming.session)
