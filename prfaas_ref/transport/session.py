"""What a receiver keeps per connection and per group of connections, and the events it hands to its driver."""

from dataclasses import dataclass, field

from prfaas_ref.transport.connection import Connection
from prfaas_ref.transport.errors import ProtocolError, TransportError
from prfaas_ref.transport.frames import FrameType
from prfaas_ref.transport.incoming import Incoming
from prfaas_ref.transport.ledger import to_spans
from prfaas_ref.transport.messages import Message, Progress
from prfaas_ref.transport.transitions import R


class Session:
    """The connections of one sender (stripe 0 carries control), and the one transfer that is under way on them."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.incoming: Incoming | None = None
        self.transfer = self.attempt = 0  # of the last OFFER
        self.over = False

    @property
    def state(self) -> R:
        return self.incoming.state if self.incoming else R.IDLE

    def join(self, line: "Line") -> None:
        stripe = line.connection.stripe
        if stripe in self.lines:
            raise ProtocolError(f"stripe {stripe} of this session is connected already")
        self.lines[stripe] = line
        line.session = self

    def begin(self, transfer: int, attempt: int) -> None:
        """OFFER has come. What a stripe has not reported by now is of the transfer before, which nobody asks about."""
        self.transfer, self.attempt = transfer, attempt
        for line in self.lines.values():
            line.unreported.clear()
            line.unreported_bytes = 0

    def say(self, kind: FrameType, message: Message) -> None:
        self.lines[0].connection.send(kind, message, self.transfer, self.attempt)


@dataclass(eq=False)
class Line:
    """One connection at the receiver."""

    connection: Connection
    session: Session | None = None
    lent: tuple[Incoming, tuple[int, int]] | None = None  # the chunk whose pages its next bytes land in
    unreported: list[tuple[int, int]] = field(default_factory=list)
    unreported_bytes: int = 0
    reported_at: float = 0.0

    @property
    def is_stale(self) -> bool:
        """What it writes is of a transfer that is over, or that another session has resumed."""
        if self.lent is None:
            return False
        incoming, _ = self.lent
        return incoming.state is R.QUARANTINE or incoming.session is not self.session

    @property
    def over(self) -> bool:
        """Its session has ended: close it."""
        return self.session is not None and self.session.over

    def report(self, now: float) -> None:
        """PROGRESS, on the connection that the chunks came by: credit returns there, and a PING is answered."""
        assert self.session is not None
        progress = Progress(to_spans(self.unreported))
        self.connection.send(FrameType.PROGRESS, progress, self.session.transfer, self.session.attempt)
        self.unreported.clear()
        self.unreported_bytes, self.reported_at = 0, now


@dataclass(frozen=True)
class Offered:
    """Ask the handler; answer with `accept` or `reject`."""

    incoming: Incoming


@dataclass(frozen=True)
class Complete:
    """Every byte is in and proved; have it applied; answer with `applied` or `fail`."""

    incoming: Incoming


@dataclass(frozen=True)
class Closed:
    """The transfer failed, and no write of it can land any more: its pages are free."""

    incoming: Incoming
    error: TransportError


Event = Offered | Complete | Closed
