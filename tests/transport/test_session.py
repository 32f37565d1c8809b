"""One session, several stripes, one transfer after another: what one stripe still says is never about the next one.

Driven against the cores; the order in which the stripes' bytes arrive is hypothesis' choice.
"""

from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.transport import LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.frames import FrameType, control_frame
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.messages import Offer, Ping, Progress, Retry, encode
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import Pipe, feed
from prfaas_ref.transport.reader import FrameReader
from prfaas_ref.transport.sender import Sender
from prfaas_ref.transport.testing import Landing, terms
from prfaas_ref.transport.transitions import R, S

N_BYTES, CHUNK_BYTES = 1800, 256
SPEC = Manifest(0, (LayerSpec((TensorSpec("x", "U8", (N_BYTES,), "flat"),)),))
SENDER, RECEIVER = terms("sender"), terms("receiver")
TRANSFERS = 3


class Talk(MemoryLink):
    """A session that stays open. The chunks numbered in `lost` (counted over all of it) never arrive."""

    def __init__(self, stripes: int, order: Random | None = None, lost: frozenset[int] = frozenset()) -> None:
        self.pages, self.lost, self.written_chunks = Landing(lambda _: SPEC), lost, 0
        super().__init__(SENDER, RECEIVER, self.pages, stripes)
        self._random = order or self._random
        self.core: Sender = self.connect()
        while not self.core.ready:
            self.step()

    def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
        if by_sender and data[3] == FrameType.DATA:
            self.written_chunks += 1
            if self.written_chunks - 1 in self.lost:
                return
        super()._write(pipe, data, by_sender)

    def offer(self, name: str) -> Outgoing:
        offer = Offer(name, 0, 50.0, CHUNK_BYTES, SPEC.to_json(), {})
        outgoing = Outgoing(offer, SPEC, SENDER.identity.fingerprint())
        self.core.offer(outgoing, 0)
        return outgoing

    def carry(self, name: str, body: bytes, pings: int = 0) -> None:
        """One transfer to its end, while quiet stripes ping so many times."""
        outgoing, added = self.offer(name), False
        while self.core.state is not S.APPLIED:
            if outgoing.increment and not added:
                added = True
                outgoing.add(0, [memoryview(body)])
            if pings and self._random.random() < 0.3:
                pings -= 1
                self.core.ping(self._random.choice(self.core.connections))
            self.step()
            assert self.core.lost is None and self.core.error is None
        assert self.pages.layers == [[body]] and self.pages.completed[-1] == name


UNDISTURBED = Talk(1)
UNDISTURBED.carry("x", bytes(N_BYTES))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(2, 3), st.integers(0, 4))
def test_whatever_stripe_is_late_every_chunk_travels_once_and_arrives(order: Random, stripes: int, pings: int) -> None:
    talk = Talk(stripes, order)
    for i in range(TRANSFERS):
        talk.carry(f"t{i}", bytes([i + 1]) * N_BYTES, pings)
        assert (talk.core.retries, talk.core.sent_bytes) == (0, UNDISTURBED.core.sent_bytes)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(0, 4), st.sets(st.integers(0, 20), max_size=4))
def test_a_chunk_that_is_lost_is_asked_for_whatever_stripe_is_late(
    order: Random, stripes: int, pings: int, lost: set[int]
) -> None:
    talk = Talk(stripes, order, frozenset(lost))
    for i in range(TRANSFERS):
        talk.carry(f"t{i}", bytes([i + 1]) * N_BYTES, pings)
    assert talk.written_chunks == TRANSFERS * UNDISTURBED.written_chunks + len(lost)


def test_what_a_stripe_had_not_reported_is_not_reported_of_the_next_transfer() -> None:
    talk = Talk(2)
    talk.carry("one", bytes(N_BYTES))
    two = talk.offer("two")
    for line in talk.receiver.lines:  # its last chunks were applied before anybody asked for them
        line.unreported.append((0, 1))
        line.unreported_bytes = CHUNK_BYTES
    while talk.core.state is not S.SENDING:
        talk.step()
    for connection in talk.core.connections:
        connection.send(FrameType.PING, Ping(0), 1, 0)  # of the first, and late
    for _ in range(10):
        talk.step()
    assert two.confirmed == set() and talk.core.confirmed_bytes == 0


def test_a_late_ping_of_another_transfer_is_no_fence() -> None:
    talk = Talk(1)
    talk.carry("one", bytes(N_BYTES))
    talk.offer("two")
    while talk.core.state is not S.SENDING:
        talk.step()
    (incoming,) = talk.receiver.transfers.under_way.values()
    incoming.state = R.COVERING  # DONE has overtaken the chunks
    for transfer, attempt in ((1, 0), (2, 1), (0, 0)):
        talk.core.connections[0].send(FrameType.PING, Ping(0), transfer, attempt)
    for _ in range(10):
        talk.step()
    assert not incoming.fenced and not incoming.asked_again and talk.core.retries == 0


def test_the_fences_of_an_attempt_end_with_it() -> None:
    talk = Talk(2)
    outgoing = talk.offer("x")
    while talk.core.state is not S.SENDING:
        talk.step()
    (incoming,) = talk.receiver.transfers.under_way.values()
    incoming.fenced.update((0, 1))
    incoming.retries_said = 2
    talk.core = talk.connect()
    while not talk.core.ready:
        talk.step()
    talk.core.offer(outgoing, 1)
    while talk.core.state is not S.SENDING:
        talk.step()
    assert not incoming.fenced and incoming.retries_said == 0


def test_a_retry_that_progress_overtook_on_another_stripe_changes_nothing() -> None:
    talk = Talk(2)
    outgoing = talk.offer("x")
    while talk.core.state is not S.SENDING:
        talk.step()
    outgoing.add(0, [memoryview(bytes(N_BYTES))])
    control, other = talk.core.connections
    for connection, kind, message in (
        (other, FrameType.PROGRESS, Progress([(0, 0, 0)])),
        (control, FrameType.RETRY, Retry(0, 0)),
    ):
        frame = control_frame(kind, encode(message), connection.tag, 1, 0)
        for read in feed(FrameReader(partial(talk.core.admit, connection)), frame):
            talk.core.receive(connection, read)
    assert talk.core.state is S.SENDING and talk.core.error is None and talk.core.retries == 0
    while talk.core.state is not S.APPLIED:
        talk.step()
        assert talk.core.lost is None
