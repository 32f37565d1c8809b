"""The sending side of one session, sans-IO: its connections (stripes), one transfer at a time.

Bytes and time in, frames and chunks out. All stripes take from one queue, so a slow stripe takes less. Stripe 0 also
carries control: OFFER, LAYER_END, DONE, ABORT go there, in that order. When any connection breaks the session is over,
and a new session may resume the same Outgoing. Knows nothing of sockets, threads or clocks.
"""

from typing import NamedTuple

from prfaas_ref.transport.checks import checksum
from prfaas_ref.transport.connection import Connection
from prfaas_ref.transport.errors import Aborted, Corrupt, PeerRestarted, ProtocolError, TransportError
from prfaas_ref.transport.frames import FrameType, Header, pack
from prfaas_ref.transport.ledger import from_spans
from prfaas_ref.transport.messages import (
    Abort,
    Accept,
    Failure,
    LayerEnd,
    Message,
    Ping,
    Progress,
    Retry,
    Root,
    decode,
    exception,
)
from prfaas_ref.transport.outgoing import Chunk, Outgoing
from prfaas_ref.transport.reader import Frame
from prfaas_ref.transport.transitions import SENDER, S, step


class Parcel(NamedTuple):
    """A chunk on its way, stamped with the transfer and attempt that it belongs to."""

    chunk: Chunk
    transfer: int
    attempt: int


UNDER_WAY = (S.OFFERED, S.SENDING, S.FINISHING)
ENDED = (S.APPLIED, S.REFUSED, S.FAILED, S.ABORTED)


class Sender:
    """Feed it `admit` and `receive`; ask it `take` and each connection's outbox."""

    def __init__(self, connections: list[Connection]) -> None:
        self.connections = connections
        self.state: S = S.IDLE
        self.error: TransportError | None = None  # why the transfer is REFUSED, FAILED or ABORTED
        self.lost: TransportError | None = None  # why the session is over
        self.outgoing: Outgoing | None = None
        self._transfer = self._attempt = self._retries_heard = 0
        self._credit_bytes = 0  # of each stripe
        self._flying: dict[tuple[int, int], int] = {}  # chunks sent and not confirmed, with their stripe
        self._flying_bytes = [0] * len(connections)
        self._layers_ended: set[int] = set()
        self.sent_bytes = self.confirmed_bytes = self.retries = 0  # of DATA payloads, in this attempt

    @property
    def peer_epoch(self) -> str:
        return self.connections[0].peer_epoch

    @property
    def exact(self) -> bool:
        return self.connections[0].exact

    @property
    def ready(self) -> bool:
        return all(connection.ready for connection in self.connections)

    # what the user asks for

    def offer(self, outgoing: Outgoing, attempt: int) -> None:
        """Begin a transfer, or its next attempt. Raises PeerRestarted when the first one went to another process.

        Raises ValueError while another transfer is under way: a session carries one at a time.
        """
        if not self.ready or self.state not in (S.IDLE, *ENDED):
            raise ValueError("a session carries one transfer at a time; open another client")
        if outgoing.peer_epoch not in ("", self.peer_epoch):
            raise PeerRestarted(f"boot epoch {outgoing.peer_epoch} is now {self.peer_epoch}")
        outgoing.peer_epoch = self.peer_epoch
        self.outgoing, self.state, self.error = outgoing, S.OFFERED, None
        self._transfer, self._attempt = self._transfer % 0xFFFF + 1, attempt
        self._credit_bytes = self.sent_bytes = self.confirmed_bytes = self.retries = self._retries_heard = 0
        self._flying.clear()
        self._flying_bytes = [0] * len(self.connections)
        self._layers_ended.clear()
        self._control(FrameType.OFFER, outgoing.offer)

    def abort(self, reason: str) -> None:
        """Take the offer back. It is over when the state has left ABORTING."""
        if self.state in UNDER_WAY:
            self.state, self.error = S.ABORTING, Aborted(reason)
            self._control(FrameType.ABORT, Abort(reason))

    def ping(self, connection: Connection) -> None:
        """Are you there? Behind the last chunk it is a fence: on this stripe nothing is on its way any more."""
        if self.state is S.FINISHING and self.outgoing and self.outgoing.all_sealed:
            connection.send(FrameType.PING, Ping(self._retries_heard), self._transfer, self._attempt)
        else:
            connection.send(FrameType.PING, Ping(0))

    # what there is to write

    @property
    def has_control(self) -> bool:
        """There is a frame in some connection's outbox."""
        return any(connection.outbox for connection in self.connections)

    def take(self, connection: Connection) -> Parcel | None:
        """The next chunk, for whichever stripe asks; None when there is none, or the stripe has no credit for it."""
        if self.state not in (S.SENDING, S.FINISHING) or self.outgoing is None or self.lost:
            return None
        length = self.outgoing.next_length()
        if not length or not self._has_credit(connection.stripe, length):
            return None
        chunk = self.outgoing.take()
        self._flying[chunk.layer, chunk.number] = connection.stripe
        self._flying_bytes[connection.stripe] += length
        return Parcel(chunk, self._transfer, self._attempt)

    def _has_credit(self, stripe: int, length: int) -> bool:
        """Every stripe has its share of the credit, so that a slow one does not hold up the others; and one chunk."""
        return not self._flying_bytes[stripe] or self._flying_bytes[stripe] + length <= self._credit_bytes

    @property
    def out_of_credit(self) -> bool:
        """There is a chunk to send, and every stripe has to wait for the receiver's PROGRESS."""
        length = self.outgoing.next_length() if self.outgoing else 0
        return length > 0 and not any(self._has_credit(c.stripe, length) for c in self.connections)

    @property
    def in_flight_bytes(self) -> int:
        return sum(self._flying_bytes)

    def _landed(self, outgoing: Outgoing, pair: tuple[int, int]) -> None:
        """A chunk has come to the receiver, whole or damaged: its stripe has the credit back."""
        if (stripe := self._flying.pop(pair, None)) is not None:
            self._flying_bytes[stripe] -= outgoing.ledgers[pair[0]].span(pair[1])[1]

    def seal(self, parcel: Parcel) -> tuple[bytes, int]:
        """A chunk's header and digest. Reads the chunk's bytes and changes nothing: run it outside any lock."""
        chunk, transfer, attempt = parcel
        tag, check = self.connections[0].tag, self.connections[0].check
        digest = checksum(check, chunk.views)
        header = Header(FrameType.DATA, tag, transfer, attempt, check, chunk.layer, chunk.offset, chunk.length, digest)
        return pack(header), digest

    def sent(self, parcel: Parcel, digest: int) -> None:
        """The chunk was handed to its connection (or stands in its line); LAYER_END and DONE follow when due."""
        chunk, outgoing = parcel.chunk, self.outgoing
        self.sent_bytes += chunk.length
        if outgoing is None or parcel[1:] != (self._transfer, self._attempt) or self.state not in UNDER_WAY:
            return
        outgoing.ledgers[chunk.layer].settle(chunk.number, digest)
        if outgoing.ledgers[chunk.layer].digests[chunk.number] != digest:
            self._fail(Corrupt(f"layer {chunk.layer} was changed while it was being sent"))
            return
        self._conclude(chunk.layer)

    def _fail(self, error: TransportError) -> None:
        """Our own fault or objection: the receiver is told to let go, and the error is what the user will see."""
        self.abort(str(error)[:200])
        self.error = error

    def _conclude(self, *layers: int) -> None:
        """LAYER_END for those of these layers that are whole; DONE if all are, and a PING behind it on each stripe."""
        outgoing = self.outgoing
        assert outgoing is not None
        for layer in layers:
            if layer not in self._layers_ended and not outgoing.ledgers[layer].missing:
                self._layers_ended.add(layer)
                self._control(FrameType.LAYER_END, LayerEnd(layer, outgoing.ledgers[layer].digest()))
        if self.state is S.SENDING and outgoing.all_sealed:
            self.state = S.FINISHING
            self._control(FrameType.DONE, Root(outgoing.root()))
        if self.state is S.FINISHING and outgoing.all_sealed:
            for connection in self.connections:  # behind the last chunk of each stripe: what has not come is lost
                self.ping(connection)

    def _control(self, kind: FrameType, message: Message) -> None:
        self.connections[0].send(kind, message, self._transfer, self._attempt)

    # what arrives

    def admit(self, connection: Connection, header: Header) -> None:
        """A header came in on this connection. Raises when its payload must not be read."""
        connection.check_header(header)
        if header.type is FrameType.DATA:
            raise ProtocolError("a receiver of caches sends no DATA")

    def receive(self, connection: Connection, frame: Frame) -> None:
        """A frame came in on this connection. Raises when the connection is no good; call `lose` then."""
        header = frame.header
        if not connection.ready or (header.type is FrameType.ERROR and not header.transfer):
            connection.receive(frame)
        elif not frame.intact:
            raise Corrupt(f"{header.type.name} fails its checksum")
        elif (header.transfer, header.attempt) == (self._transfer, self._attempt):
            self._about_transfer(header.type, frame.payload)

    def _about_transfer(self, kind: FrameType, payload: bytes) -> None:
        outgoing, before = self.outgoing, self.state
        self.state = step(SENDER, before, kind)
        if outgoing is None or before not in UNDER_WAY:
            return
        try:
            if kind is FrameType.ACCEPT:
                self._accepted(outgoing, decode(Accept, payload))
            elif kind is FrameType.PROGRESS:
                for pair in from_spans(decode(Progress, payload).chunks, outgoing.ledgers):
                    self._landed(outgoing, pair)
                    self.confirmed_bytes += outgoing.confirm(pair)
            elif kind is FrameType.RETRY:
                self._retry(outgoing, decode(Retry, payload))
            elif kind in (FrameType.REJECT, FrameType.ERROR):
                self.error = exception(decode(Failure, payload))
        except TransportError as objection:
            self._fail(objection)

    def _accepted(self, outgoing: Outgoing, accept: Accept) -> None:
        outgoing.accepted(accept)
        self._credit_bytes = accept.credit_bytes // len(self.connections)
        self._conclude(*range(len(outgoing.ledgers)))

    def _retry(self, outgoing: Outgoing, retry: Retry) -> None:
        self._retries_heard += 1
        if outgoing.again(retry.layer, retry.chunk):
            self._landed(outgoing, (retry.layer, retry.chunk))
            self.retries += 1

    def lose(self, error: TransportError) -> None:
        """A connection broke, or its peer broke the rules: the whole session is over, for the first reason given."""
        self.lost = self.lost or error
