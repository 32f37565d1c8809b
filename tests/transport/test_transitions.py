"""Every (state, frame) pair, for both roles and the greeting: the table's answer, or a ProtocolError that names both.

The expectation is written out here, not read from the tables; and the cores are driven, not the tables alone.
"""

import itertools

import pytest

from prfaas_ref.transport import LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.checks import Check, checksum
from prfaas_ref.transport.errors import PeerRestarted, ProtocolError, TransportError
from prfaas_ref.transport.frames import FrameType as F
from prfaas_ref.transport.frames import Header, control_frame, pack
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.messages import (
    Abort,
    Accept,
    Auth,
    Failure,
    LayerEnd,
    Message,
    Nothing,
    Offer,
    Ping,
    Progress,
    Retry,
    Root,
    encode,
)
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import feed
from prfaas_ref.transport.reader import FrameReader
from prfaas_ref.transport.testing import Landing, terms
from prfaas_ref.transport.transitions import CONNECTION, RECEIVER, SENDER, Connection, R, S, step

GREETING = {
    Connection.GREETING: {F.HELLO: Connection.READY, F.ERROR: Connection.CLOSED},
    Connection.GREETING_SECURED: {F.HELLO: Connection.PROVING, F.ERROR: Connection.CLOSED},
    Connection.PROVING: {F.AUTH: Connection.READY, F.ERROR: Connection.CLOSED},
    Connection.READY: {F.ERROR: Connection.CLOSED},
    Connection.CLOSED: {},
}
ALWAYS_S = {F.PROGRESS: None}
SENDING = {
    S.IDLE: {},
    S.OFFERED: {F.ACCEPT: S.SENDING, F.REJECT: S.REFUSED, F.APPLIED: S.APPLIED, F.ERROR: S.FAILED},
    S.SENDING: {F.RETRY: S.SENDING, F.ERROR: S.FAILED},
    S.FINISHING: {F.RETRY: S.FINISHING, F.APPLIED: S.APPLIED, F.ERROR: S.FAILED},
    S.ABORTING: dict.fromkeys((F.ACCEPT, F.REJECT, F.RETRY, F.APPLIED, F.ERROR), S.ABORTING) | {F.ABORTED: S.ABORTED},
    S.APPLIED: {},
    S.REFUSED: {},
    S.FAILED: {},
    S.ABORTED: {},
}
RECEIVING = {
    R.IDLE: {F.OFFER: R.OFFERED},
    R.OFFERED: {F.ABORT: R.QUARANTINE},
    R.RECEIVING: {F.DATA: R.RECEIVING, F.LAYER_END: R.RECEIVING, F.DONE: R.COVERING, F.ABORT: R.QUARANTINE},
    R.COVERING: {F.DATA: R.COVERING, F.ABORT: R.QUARANTINE},
    R.APPLYING: {F.DATA: R.APPLYING, F.ABORT: R.APPLYING},
    R.QUARANTINE: dict.fromkeys((F.DATA, F.LAYER_END, F.DONE, F.ABORT), R.QUARANTINE),
}


@pytest.mark.parametrize(
    ("table", "expected", "always"),
    [(CONNECTION, GREETING, ()), (SENDER, SENDING, (F.PROGRESS,)), (RECEIVER, RECEIVING, (F.PING,))],
)
def test_every_state_and_frame(table: dict, expected: dict, always: tuple[F, ...]) -> None:
    for state, frame in itertools.product(expected, F):
        wanted = state if frame in always else expected[state].get(frame)
        if wanted is None:
            with pytest.raises(ProtocolError, match=f"{frame.name} is not allowed in state {state.name}"):
                step(table, state, frame)
        else:
            assert step(table, state, frame) is wanted
    assert set(expected) == {type(state)(i + 1) for state in list(expected)[:1] for i in range(len(type(state)))}


SPEC = Manifest(4, (LayerSpec((TensorSpec("kv", "U8", (4, 8), "token,x", per_token=True),)),))
SENDER_TERMS, RECEIVER_TERMS = terms("sender"), terms("receiver")
MESSAGES: dict[F, Message] = {
    F.HELLO: Nothing(),
    F.AUTH: Auth("00"),
    F.OFFER: Offer("y", 0, 1.0, 256, SPEC.to_json(), {}),
    F.ACCEPT: Accept(0, SPEC.digest(), 1 << 20, []),
    F.REJECT: Failure("refused", "", "dtype", "a", "b"),
    F.LAYER_END: LayerEnd(0, "00"),
    F.PROGRESS: Progress([]),
    F.RETRY: Retry(0, 0),
    F.DONE: Root("00"),
    F.APPLIED: Root("00"),
    F.ABORT: Abort("why not"),
    F.ABORTED: Nothing(),
    F.PING: Ping(0),
    F.ERROR: Failure("expired", "over", "", "", ""),
}


def frame_bytes(kind: F, tag: int, transfer: int) -> bytes:
    if kind is F.DATA:
        data = bytes(10)
        check = checksum(Check.CRC32, [memoryview(data)])
        return pack(Header(kind, tag, transfer, 0, Check.CRC32, 0, 0, len(data), check)) + data
    return control_frame(kind, encode(MESSAGES[kind]), tag, transfer, 0)


def at_sender_state(state: S) -> MemoryLink:
    """A link whose sender is in this state; what it says reaches nobody."""
    link = MemoryLink(SENDER_TERMS, RECEIVER_TERMS, Landing(lambda _: SPEC))
    sender = link.connect()
    while not sender.ready:
        link.step()
    outgoing = Outgoing(MESSAGES[F.OFFER], SPEC, SENDER_TERMS.identity.fingerprint())  # type: ignore[arg-type]
    sender.offer(outgoing, 0)
    outgoing.accepted(MESSAGES[F.ACCEPT])  # type: ignore[arg-type]
    outgoing.add(0, [memoryview(bytes(32))])
    sender.state = state
    return link


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("kind", F)
def test_the_sender_follows_its_table(state: S, kind: F) -> None:
    link = at_sender_state(state)
    sender = link.sender
    assert sender is not None
    connection = sender.connections[0]
    reader = FrameReader(lambda header: sender.admit(connection, header))
    allowed = kind is F.PROGRESS or kind in SENDING[state]
    try:
        for frame in feed(reader, frame_bytes(kind, connection.tag, 1)):
            sender.receive(connection, frame)
    except ProtocolError:
        assert not allowed
    else:
        assert allowed
        objected = sender.state is S.ABORTING and sender.error is not None  # to what a lawful frame says
        assert objected or sender.state is SENDING[state].get(kind, state)


@pytest.mark.parametrize("state", [R.OFFERED, R.RECEIVING, R.COVERING, R.APPLYING, R.QUARANTINE])
@pytest.mark.parametrize("kind", F)
def test_the_receiver_follows_its_table(state: R, kind: F) -> None:
    link = MemoryLink(SENDER_TERMS, RECEIVER_TERMS, pages := Landing(lambda _: SPEC))
    sender = link.connect()
    while not sender.ready:
        link.step()
    sender.offer(Outgoing(MESSAGES[F.OFFER], SPEC, SENDER_TERMS.identity.fingerprint()), 0)  # type: ignore[arg-type]
    while not link.receiver.transfers.under_way:
        link.step()
    (incoming,) = link.receiver.transfers.under_way.values()
    (line,) = link.receiver.lines
    incoming.state, incoming.deciding = state, state is R.OFFERED
    if state is R.QUARANTINE:
        incoming.landing[0, 0] = line  # a write may still land
    reader = FrameReader(lambda header: link.receiver.admit(line, header))
    data = frame_bytes(kind, line.connection.tag, 1)
    if kind is F.DATA:  # of a layer that exists, on its grid
        body = bytes(incoming.ledgers[0].n_bytes)
        check = checksum(Check.CRC32, [memoryview(body)])
        data = pack(Header(kind, line.connection.tag, 1, 0, Check.CRC32, 0, 0, len(body), check)) + body
    allowed = kind is F.PING or kind in RECEIVING[state]
    try:
        for frame in feed(reader, data):
            link.receiver.receive(line, frame, link.now)
    except TransportError:
        assert not allowed
    else:
        assert allowed
        ended = kind is F.ABORT or incoming.state is R.QUARANTINE  # a lie in a lawful frame fails the transfer
        assert ended or incoming.state is RECEIVING[state].get(kind, state)
    assert not pages.completed


@pytest.mark.parametrize(("check", "length"), [(Check.NONE, 10), (Check.CRC32, (16 << 20) + 1)])
def test_data_without_the_agreed_checksum_or_beyond_the_cap_is_refused(check: Check, length: int) -> None:
    link = MemoryLink(SENDER_TERMS, RECEIVER_TERMS, Landing(lambda _: SPEC))
    sender = link.connect()
    while not sender.ready:
        link.step()
    sender.offer(Outgoing(MESSAGES[F.OFFER], SPEC, SENDER_TERMS.identity.fingerprint()), 0)  # type: ignore[arg-type]
    while sender.state is not S.SENDING:
        link.step()
    (line,) = link.receiver.lines
    agreed = line.connection.check if check is not Check.NONE else check
    header = Header(F.DATA, line.connection.tag, 1, 0, agreed, 0, 0, length, 0)
    with pytest.raises(ProtocolError, match=f"DATA of {length} bytes"):
        list(feed(FrameReader(lambda h: link.receiver.admit(line, h)), pack(header)))


@pytest.mark.parametrize("kind", sorted(set(F) - {F.HELLO, F.AUTH}))
def test_a_frame_from_before_a_restart_is_refused_at_both_ends(kind: F) -> None:
    """Boot epochs are on every frame, as the session tag; one that is not ours ends the connection."""
    link = MemoryLink(SENDER_TERMS, RECEIVER_TERMS, Landing(lambda _: SPEC))
    sender = link.connect()
    while not sender.ready:
        link.step()
    (line,), (connection,) = link.receiver.lines, sender.connections
    for admit in (lambda h: link.receiver.admit(line, h), lambda h: sender.admit(connection, h)):
        with pytest.raises(PeerRestarted):
            list(feed(FrameReader(admit), frame_bytes(kind, connection.tag ^ 1, 1)))


@pytest.mark.parametrize("kind", sorted(set(F) - {F.OFFER, F.PING}))
def test_an_idle_receiver_takes_offers_alone(kind: F) -> None:
    link = MemoryLink(SENDER_TERMS, RECEIVER_TERMS, Landing(lambda _: SPEC))
    sender = link.connect()
    while not sender.ready:
        link.step()
    (line,) = link.receiver.lines
    reader = FrameReader(lambda header: link.receiver.admit(line, header))
    with pytest.raises(TransportError):
        [link.receiver.receive(line, frame, 0.0) for frame in feed(reader, frame_bytes(kind, line.connection.tag, 1))]


@pytest.mark.parametrize("kind", F)
@pytest.mark.parametrize("secret", [None, b"s" * 32])
def test_nothing_but_hello_opens_a_connection(kind: F, secret: bytes | None) -> None:
    link = MemoryLink(terms("sender", secret=secret), terms("receiver", secret=secret), Landing(lambda _: SPEC))
    line = link.receiver.connect("00" * 16)
    reader = FrameReader(lambda header: link.receiver.admit(line, header))
    with pytest.raises(TransportError):
        [link.receiver.receive(line, frame, 0.0) for frame in feed(reader, frame_bytes(kind, 0, 0))]
    assert not line.connection.ready
