"""The memory driver: both cores in one thread, joined by byte queues under a clock of its own. No socket, no sleep.

Deterministic for a given seed, so a failure found by a random schedule can be run again. Faults are injected here, on
the bytes: delay, dribble, cut connections, flipped bits, and stripes that overtake each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from prfaas_ref.transport.connection import Connection, Terms
from prfaas_ref.transport.errors import DeadlineExceeded, PeerGone, TransportError
from prfaas_ref.transport.handler import Handler
from prfaas_ref.transport.messages import exception, failure
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import Faults, Pipe, feed
from prfaas_ref.transport.reader import FrameReader
from prfaas_ref.transport.receiver import Receiver
from prfaas_ref.transport.sender import ENDED, Sender
from prfaas_ref.transport.session import Closed, Complete, Event, Line, Offered
from prfaas_ref.transport.transitions import S

Layers = Callable[[], Sequence[Sequence[memoryview]]]
TICK_S = 0.1  # how far the clock moves when nothing is on its way


@dataclass
class _Ends:
    """One connection: both of its ends and both of its directions."""

    connection: Connection
    line: Line
    sender_reader: FrameReader
    receiver_reader: FrameReader
    out: Pipe = field(default_factory=Pipe)
    back: Pipe = field(default_factory=Pipe)


class MemoryLink:
    """Hands transfers over from a sender to `handler`, in virtual time `now`. Survives any number of sessions."""

    def __init__(
        self, sender: Terms, receiver: Terms, handler: Handler, stripes: int = 1, faults: Faults | None = None
    ) -> None:
        self.now = 0.0
        self.receiver = Receiver(receiver)
        self.sender: Sender | None = None
        self.written_bytes = 0
        self._sender_bits = 0
        self._terms, self._handler, self._stripes = sender, handler, stripes
        self._faults = faults or Faults()
        self._random = Random(self._faults.seed)
        self._ends: list[_Ends] = []
        self._sessions = 0

    def hand_off(self, outgoing: Outgoing, layers: Layers, attempts: int = 4) -> int:
        """The whole of a transfer, resumed as often as it takes. Returns the attempts; raises what it failed with.

        `layers()` is called once, after the first ACCEPT, for the views of the increment.
        """
        deadline, added = self.now + outgoing.offer.deadline_s, False
        for attempt in range(attempts):
            sender = self.connect()
            while sender.lost is None and sender.state not in ENDED:
                if self.now >= deadline:
                    raise DeadlineExceeded("in virtual time")
                if sender.state is S.IDLE and sender.ready:
                    sender.offer(outgoing, attempt)
                if outgoing.increment is not None and not added:
                    added = True
                    for i, views in enumerate(layers()):
                        outgoing.add(i, views)
                self.step()
            if sender.state is S.APPLIED:
                return attempt + 1
            if error := sender.error or (None if sender.lost and sender.lost.resumable else sender.lost):
                raise error
        raise sender.lost or PeerGone("too many attempts")

    def connect(self) -> Sender:
        """A new session. The connections of the one before are cut."""
        self.cut(PeerGone("another session begins"))
        self._sessions += 1
        session = f"{self._sessions:032x}"
        self._ends = [self._wire(session, stripe) for stripe in range(self._stripes)]
        self.sender = Sender([ends.connection for ends in self._ends])
        return self.sender

    def _wire(self, session: str, stripe: int) -> _Ends:
        connection = Connection(self._terms, f"{session[16:]}{stripe:016x}", session, stripe, self._stripes)
        line = self.receiver.connect(f"{stripe:032x}")
        return _Ends(
            connection,
            line,
            FrameReader(lambda header: self._sender_side.admit(connection, header)),
            FrameReader(lambda header: self.receiver.admit(line, header)),
        )

    @property
    def _sender_side(self) -> Sender:
        assert self.sender is not None
        return self.sender

    def cut(self, error: TransportError) -> None:
        """Every connection breaks now; what is on its way is lost."""
        ends, self._ends = self._ends, []
        for each in ends:
            self._sender_side.lose(error)
            self._act(self.receiver.lose(each.line, error, self.now))

    def step(self) -> None:
        """Write what either side has to say, then let one piece arrive; or let time pass when there is none."""
        self._write_all()
        coming = [(at, ends) for ends in self._ends for p in (ends.out, ends.back) if (at := p.next_at()) is not None]
        if coming:
            self.now = max(self.now, min(at for at, _ in coming))
            self._arrive(self._random.choice([ends for at, ends in coming if at <= self.now]))
        else:
            self.now += TICK_S
        self._act(self.receiver.tick(self.now))

    def _write_all(self) -> None:
        for ends in list(self._ends):
            while ends.connection.outbox:
                self._write(ends.out, ends.connection.outbox.popleft(), by_sender=True)
            while ends.line.connection.outbox:
                self._write(ends.back, ends.line.connection.outbox.popleft(), by_sender=False)
        while self._ends:
            ends = self._random.choice(self._ends)
            parcel = self._sender_side.take(ends.connection)
            if parcel is None:
                break
            header, digest = self._sender_side.seal(parcel)
            self._sender_side.sent(parcel, digest)
            self._write(ends.out, b"".join([header, *parcel.chunk.views]), by_sender=True)

    def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
        faults = self._faults
        if faults.flip_bit is not None and by_sender:
            data = self._flipped(data, faults.flip_bit - self._sender_bits)
            self._sender_bits += 8 * len(data)
        if faults.cut_at is not None and self.written_bytes + len(data) > faults.cut_at:
            data, faults.cut_at = data[: faults.cut_at - self.written_bytes], None
            pipe.write(data, self.now)
            self._drain()
            self.cut(PeerGone("cut"))
        elif self._ends:
            pipe.write(data, self.now + faults.delay_s)
        self.written_bytes += len(data)

    @staticmethod
    def _flipped(data: bytes, bit: int) -> bytes:
        if not 0 <= bit < 8 * len(data):
            return data
        changed = bytearray(data)
        changed[bit // 8] ^= 0x80 >> bit % 8
        return bytes(changed)

    def _drain(self) -> None:
        """What was written before a cut still arrives."""
        while waiting := [e for e in self._ends if e.out.next_at() is not None or e.back.next_at() is not None]:
            self._arrive(waiting[0])

    def _arrive(self, ends: _Ends) -> None:
        """One piece reaches one end. An end that refuses it breaks the session; the other end hears why."""
        most = self._random.randint(1, 200) if self._faults.dribble else 1 << 30
        outwards = ends.out.next_at() is not None and (ends.back.next_at() is None or self._random.random() < 0.5)
        try:
            if outwards:
                for frame in feed(ends.receiver_reader, ends.out.read(most)):
                    self._act(self.receiver.receive(ends.line, frame, self.now))
            else:
                for frame in feed(ends.sender_reader, ends.back.read(most)):
                    self._sender_side.receive(ends.connection, frame)
        except TransportError as error:
            self.cut(exception(failure(error)) if outwards else error)

    def _act(self, events: list[Event]) -> None:
        core = self.receiver.transfers
        for event in events:
            incoming = event.incoming
            try:
                if isinstance(event, Offered):
                    self._act(core.accept(incoming, self._handler.on_offer(incoming)))
                elif isinstance(event, Complete):
                    self._handler.on_complete(incoming)
                    core.applied(incoming)
                elif isinstance(event, Closed):
                    self._handler.on_closed(incoming, event.error)
            except TransportError as error:
                if isinstance(event, Offered):
                    core.reject(incoming, error)
                else:
                    self._act(core.fail(incoming, error))
