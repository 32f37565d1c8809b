"""A later attempt while the one before still looks alive: the old connections write nothing once the new ones may.

Driven against the cores, so that every byte arrives when the test says so.
"""

import pytest

from prfaas_ref.transport import LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.checks import Check, checksum
from prfaas_ref.transport.errors import Aborted, Expired, PeerGone, ProtocolError
from prfaas_ref.transport.frames import HEADER_BYTES, FrameType, Header, pack
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.messages import Abort, Offer
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import feed
from prfaas_ref.transport.reader import FrameReader
from prfaas_ref.transport.session import Closed, Line
from prfaas_ref.transport.testing import Landing, terms
from prfaas_ref.transport.transitions import R, S

SPEC = Manifest(0, (LayerSpec((TensorSpec("x", "U8", (900,), "flat"),)),))
BODY = bytes(range(225)) * 4


class Two:
    """One receiver, and a sender's two sessions with it that are connected at the same time."""

    def __init__(self) -> None:
        self.pages = Landing(lambda _: SPEC)
        self.link = MemoryLink(terms("sender"), terms("receiver"), self.pages)
        self.outgoing = Outgoing(Offer("x", 0, 50.0, 256, SPEC.to_json(), {}), SPEC, terms("s").identity.fingerprint())
        self.old = self.session(0)
        (self.incoming,) = self.link.receiver.transfers.under_way.values()

    def session(self, attempt: int) -> Line:
        """Connect without cutting what is connected, and offer."""
        before = set(self.link.receiver.lines)
        self.link._ends = []
        sender = self.link.connect()
        (line,) = self.link.receiver.lines - before
        while not sender.ready:
            self.link.step()
        sender.offer(self.outgoing, attempt)
        for _ in range(10):
            self.link.step()
        return line

    def half_a_chunk(self, line: Line) -> tuple[FrameReader, bytes]:
        """The first half of chunk 0 arrives on this line. Returns its reader, and the other half."""
        ledger = self.incoming.ledgers[0]
        body = bytes(ledger.span(0)[1])
        check = checksum(Check.CRC32, [memoryview(body)])
        session = line.session
        assert session is not None
        header = Header(
            FrameType.DATA, line.connection.tag, session.transfer, session.attempt, Check.CRC32, 0, 0, len(body), check
        )
        reader = FrameReader(lambda h: self.link.receiver.admit(line, h))
        half = HEADER_BYTES + len(body) // 2
        assert not list(feed(reader, (pack(header) + body)[:half]))
        return reader, body[len(body) // 2 :]


def test_the_next_attempt_is_accepted_only_when_the_old_one_has_let_go() -> None:
    two = Two()
    reader, rest = two.half_a_chunk(two.old)
    assert two.incoming.landing and not two.old.is_stale
    two.session(1)
    sender = two.link.sender
    assert sender is not None and sender.state is S.OFFERED and two.incoming.state is R.OFFERED
    assert two.old.over and two.old.is_stale
    for _ in range(10):
        two.link.step()
    assert sender.state is S.OFFERED  # the old chunk's page is still lent
    for frame in feed(reader, rest):
        assert two.link.receiver.receive(two.old, frame, 0.0) == []
    while sender.state is S.OFFERED:
        two.link.step()
    two.outgoing.add(0, [memoryview(BODY)])
    while sender.state is not S.APPLIED:
        two.link.step()
    assert two.pages.layers[0][0] == BODY


def test_a_lost_connection_gives_its_page_back_as_well() -> None:
    two = Two()
    two.half_a_chunk(two.old)
    assert two.link.receiver.lose(two.old, PeerGone("cut"), 0.0) == []  # it waits to be resumed
    assert not two.incoming.landing and two.incoming.state is R.RECEIVING
    assert two.link.receiver.tick(4.9) == []
    (closed,) = two.link.receiver.tick(5.1)
    assert isinstance(closed, Closed) and str(closed.error) == "cut"
    assert two.link.receiver.tick(100.0) == []


def test_an_aborted_transfer_is_closed_when_its_last_page_is_back_and_once() -> None:
    two = Two()
    two.half_a_chunk(two.old)
    two.incoming.abort_wanted = True
    assert two.link.receiver.transfers.fail(two.incoming, Aborted("no")) == []
    assert two.old.is_stale
    (closed,) = two.link.receiver.lose(two.old, PeerGone("cut"), 0.0)
    assert closed == Closed(two.incoming, two.incoming.error)
    assert two.link.receiver.transfers.fail(two.incoming, Aborted("again")) == []


def test_a_resume_after_the_lease_is_told_expired() -> None:
    two = Two()
    (closed,) = two.link.receiver.tick(60.0)
    assert isinstance(closed.error, Expired)
    two.session(1)
    sender = two.link.sender
    assert sender is not None and sender.state is S.FAILED and isinstance(sender.error, Expired)


@pytest.mark.parametrize("attempt", [1, 3])
def test_attempts_only_count_up(attempt: int) -> None:
    two = Two()
    two.session(3 if attempt == 1 else 5)
    two.session(attempt)
    sender = two.link.sender
    assert sender is not None and isinstance(sender.lost, ProtocolError)


def test_an_abort_is_answered_when_no_write_can_land() -> None:
    two = Two()
    reader, rest = two.half_a_chunk(two.old)
    sender = two.link.sender
    assert sender is not None
    sender.abort("changed my mind")
    for _ in range(10):
        two.link.step()
    assert sender.state is S.ABORTING and not two.pages.closed
    for frame in feed(reader, rest):
        (closed,) = two.link.receiver.receive(two.old, frame, 0.0)
        two.link._act([closed])
    while sender.state is not S.ABORTED:
        two.link.step()
    assert [(name, type(error)) for name, error in two.pages.closed] == [("x", Aborted)]


def test_abort_of_what_is_over_is_answered_all_the_same() -> None:
    two = Two()
    two.link.receiver.tick(60.0)
    sender = two.link.sender
    assert sender is not None
    sender.connections[0].send(FrameType.ABORT, Abort("late"), 1, 0)
    sender.state = S.ABORTING
    for _ in range(10):
        two.link.step()
    assert sender.state is S.ABORTED
