"""The receiving side, sans-IO: every frame of every connection finds its place here, or is refused.

Bytes and time in, answers and events out. The driver calls the user's handler for each event and brings the answer to
`transfers`. Knows nothing of sockets, threads or clocks.
"""

from prfaas_ref.transport.connection import Connection, Terms
from prfaas_ref.transport.errors import Aborted, Busy, Corrupt, Incomplete, ProtocolError, TransportError
from prfaas_ref.transport.frames import FrameType, Header
from prfaas_ref.transport.incoming import Incoming
from prfaas_ref.transport.messages import Abort, LayerEnd, Nothing, Offer, Ping, Retry, Root, decode
from prfaas_ref.transport.reader import Frame, scratch
from prfaas_ref.transport.session import Event, Line, Session
from prfaas_ref.transport.transfers import Transfers
from prfaas_ref.transport.transitions import RECEIVER, R, step

REPORT_S = 0.05  # chunks are confirmed at least so often, and after an eighth of the credit


class Receiver:
    """Feed it `connect`, `admit`, `receive`, `lose` and `tick`; the last three return events."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.limits = terms, terms.limits
        self.transfers = Transfers(terms)
        self.lines: set[Line] = set()
        self._sessions: dict[tuple[str, str], Session] = {}

    # connections

    def connect(self, nonce: str) -> Line:
        """A peer connected. Raises Busy when it is one too many: close it."""
        unready = sum(not line.connection.ready for line in self.lines)
        if len(self.lines) >= self.limits.connections or unready >= self.limits.unready_connections:
            raise Busy("too many connections")
        line = Line(Connection(self.terms, nonce))
        self.lines.add(line)
        return line

    def _join(self, line: Line) -> None:
        key = line.connection.peer_epoch, line.connection.session
        self._sessions.setdefault(key, Session()).join(line)

    def _surrender(self, line: Line) -> list[Event]:
        """No byte of this line lands any more in the pages that were lent to it."""
        if line.lent is None:
            return []
        (incoming, pair), line.lent = line.lent, None
        del incoming.landing[pair]
        return self.transfers.pages_returned(incoming)

    def lose(self, line: Line, error: TransportError, now: float) -> list[Event]:
        """The connection ended, or its peer broke the rules. Its session is over, its transfer waits to be resumed."""
        self.lines.discard(line)
        session = line.session
        if session and not session.over:
            session.over = True
            if session.incoming:
                self.transfers.detach(session.incoming, error, now)
                session.incoming = None
        self._sessions = {key: s for key, s in self._sessions.items() if not s.over}
        return self._surrender(line)

    def tick(self, now: float) -> list[Event]:
        return self.transfers.tick(now)

    def close(self, error: TransportError) -> list[Event]:
        """Every line is lost already; now every transfer fails."""
        transfers = list(self.transfers.under_way.values())
        return [event for incoming in transfers for event in self.transfers.fail(incoming, error)]

    # frames

    def admit(self, line: Line, header: Header) -> list[memoryview] | None:
        """Where this frame's payload goes; None for a buffer of its own. Raises when it must not be read."""
        line.connection.check_header(header)
        if header.type is not FrameType.DATA:
            return None
        if header.length > self.limits.largest_chunk_bytes or header.check is not line.connection.check:
            raise ProtocolError(f"DATA of {header.length} bytes with checksum {header.check.name}")
        incoming = self._addressed(line, header)
        if incoming is None:
            return scratch(header.length)
        step(RECEIVER, incoming.state, FrameType.DATA)
        if header.layer >= len(incoming.ledgers):
            raise ProtocolError(f"DATA of layer {header.layer}; there are {len(incoming.ledgers)}")
        ledger = incoming.ledgers[header.layer]
        pair = header.layer, ledger.chunk_at(header.offset, header.length)
        # What is proved is not written again, and no two connections write the same page.
        if incoming.state is R.QUARANTINE or ledger.digests[pair[1]] is not None or pair in incoming.landing:
            return scratch(header.length)
        line.lent = incoming, pair
        incoming.landing[pair] = line
        incoming.fenced.discard(line.connection.stripe)
        return incoming.images[header.layer].views(header.offset, header.length)

    def _addressed(self, line: Line, header: Header) -> Incoming | None:
        """The transfer that a frame is about, or None when it is late. Raises when there never was one."""
        session = line.session
        assert session is not None
        if not session.transfer:
            step(RECEIVER, R.IDLE, header.type)
        late = (header.transfer, header.attempt) != (session.transfer, session.attempt)
        return None if late else session.incoming

    def receive(self, line: Line, frame: Frame, now: float) -> list[Event]:
        """A whole frame came in. Raises when the connection is no good; send the peer ERROR and call `lose` then."""
        header, connection, session = frame.header, line.connection, line.session
        if header.type is FrameType.DATA:
            return self._landed(line, frame, now)
        if session is None or header.type is FrameType.ERROR:
            connection.receive(frame)
            if connection.ready:
                self._join(line)
            return []
        if not frame.intact:
            raise Corrupt(f"{header.type.name} fails its checksum")
        if header.type is FrameType.PING:
            line.report(now)
            ping, incoming = decode(Ping, frame.payload), self._addressed(line, header)
            if incoming is None or ping.retries != incoming.retries_said:  # it is no fence, or sent before our RETRY
                return []
            incoming.fenced.add(connection.stripe)
            return self._lost_chunks(incoming)
        if connection.stripe:
            raise ProtocolError(f"{header.type.name} on stripe {connection.stripe}; it belongs on stripe 0")
        if header.type is FrameType.OFFER:
            step(RECEIVER, session.state, FrameType.OFFER)
            session.begin(header.transfer, header.attempt)
            return self.transfers.offered(line, session, decode(Offer, frame.payload), now)
        incoming = self._addressed(line, header)
        if incoming:
            return self._about_transfer(incoming, frame)
        if header.type is FrameType.ABORT:  # of a transfer that is over already
            connection.send(FrameType.ABORTED, Nothing(), header.transfer, header.attempt)
        return []

    def _about_transfer(self, incoming: Incoming, frame: Frame) -> list[Event]:
        kind, before = frame.header.type, incoming.state
        state = step(RECEIVER, before, kind)
        if kind is FrameType.ABORT:
            incoming.abort_wanted = True
            incoming.error = incoming.error or Aborted(decode(Abort, frame.payload).reason)
        elif before is R.QUARANTINE:
            pass
        elif kind is FrameType.LAYER_END:
            end = decode(LayerEnd, frame.payload)
            if end.layer >= len(incoming.ledgers):
                raise ProtocolError(f"LAYER_END of layer {end.layer}; there are {len(incoming.ledgers)}")
            incoming.claimed[end.layer] = end.digest
        elif kind is FrameType.DONE:
            incoming.root = decode(Root, frame.payload).digest
        incoming.state = state
        if state is R.COVERING:
            return self.transfers.complete(incoming) or self._lost_chunks(incoming)
        return self.transfers.pages_returned(incoming) if state is R.QUARANTINE else []

    def _landed(self, line: Line, frame: Frame, now: float) -> list[Event]:
        """A whole DATA frame is in place (or in no place, when it came late)."""
        if line.lent is None:
            return []
        incoming, pair = line.lent
        stale = line.is_stale
        events = self._surrender(line)
        if stale:
            return events
        if not frame.intact:
            return self._ask_again(incoming, pair, Corrupt)
        incoming.ledgers[pair[0]].settle(pair[1], frame.header.payload_check)
        incoming.count(frame.header.length, now)
        line.unreported.append(pair)
        line.unreported_bytes += frame.header.length
        covering, batch_bytes = incoming.state is R.COVERING, self.limits.credit_bytes // (8 * line.connection.stripes)
        if covering or line.unreported_bytes >= batch_bytes or now >= line.reported_at + REPORT_S:
            line.report(now)
        return self.transfers.complete(incoming) if covering else []

    def _lost_chunks(self, incoming: Incoming) -> list[Event]:
        """After DONE, when no stripe has anything more to bring: what is missing was lost on the way; ask for it."""
        stripes = len(incoming.session.lines) if incoming.session else 0
        if incoming.state is not R.COVERING or len(incoming.fenced) < stripes:
            return []
        return [event for pair in incoming.missing() for event in self._ask_again(incoming, pair, Incomplete)]

    def _ask_again(self, incoming: Incoming, pair: tuple[int, int], fault: type[TransportError]) -> list[Event]:
        times = incoming.asked_again[pair] = incoming.asked_again.get(pair, 0) + 1
        if times > self.limits.chunk_retries:
            return self.transfers.fail(incoming, fault(f"chunk {pair[1]} of layer {pair[0]} failed {times} times"))
        assert incoming.session is not None
        incoming.session.say(FrameType.RETRY, Retry(*pair))
        incoming.retries_said += 1
        incoming.fenced.clear()  # the chunk comes behind another PING
        return []
