"""Whole transfers over the memory link: cut at every byte, every header bit flipped, any order, any piece size."""

import os
import pickle
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.transport import Check, LayerSpec, Limits, Manifest, TensorSpec, Terms
from prfaas_ref.transport.checks import checksum
from prfaas_ref.transport.errors import BadFrame, Corrupt, PeerRestarted, TransportError
from prfaas_ref.transport.frames import HEADER_BYTES, FrameType, pack, unpack
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.messages import Offer
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import Faults, Pipe, feed
from prfaas_ref.transport.reader import FrameReader
from prfaas_ref.transport.testing import Landing, terms

N_TOKENS, HAVE, CHUNK = 90, 64, 1024
SENDER, RECEIVER = terms("sender"), terms("receiver")


def manifest(n_tokens: int) -> Manifest:
    """About 10 KB in 3 layers, once the first 64 tokens are taken off; the last layer has no pages at all."""
    kv = TensorSpec("kv", "BF16", (n_tokens, 37), "token,latent+rope", per_token=True)
    state = TensorSpec("state", "F32", (3, 5, 7), "head,k,v")
    big = TensorSpec("state", "F32", (2, 17, 23), "head,k,v")
    return Manifest(n_tokens, (LayerSpec((kv, state)), LayerSpec((kv, state)), LayerSpec((big,))))


RANDOM = random.Random(0)
DATA = [[RANDOM.randbytes(t.n_bytes) for t in layer.tensors] for layer in manifest(N_TOKENS).increment(HAVE).layers]


def outgoing(deadline_s: float = 60.0, chunk_bytes: int = CHUNK) -> Outgoing:
    ours = manifest(N_TOKENS)
    return Outgoing(Offer("x", 0, deadline_s, chunk_bytes, ours.to_json(), {}), ours, SENDER.identity.fingerprint())


def layers() -> list[list[memoryview]]:
    return [[memoryview(t) for t in tensors] for tensors in DATA]


def run(faults: Faults, stripes: int = 1, chunk_bytes: int = CHUNK) -> tuple[Landing, MemoryLink, int]:
    """One transfer to its good end. Returns the pages, the link and the number of attempts."""
    pages = Landing(manifest, HAVE)
    link = MemoryLink(SENDER, RECEIVER, pages, stripes, faults)
    attempts = link.hand_off(outgoing(chunk_bytes=chunk_bytes), layers)
    assert pages.layers == DATA and pages.completed == ["x"] and not pages.closed
    assert not link.receiver.transfers.under_way
    return pages, link, attempts


WRITTEN = run(Faults())[1].written_bytes


def end_of_applied() -> int:
    """How many bytes both sides have written when APPLIED, the frame of type 11, is."""
    ends: list[int] = []

    class Recorder(MemoryLink):
        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            super()._write(pipe, data, by_sender)
            if data[3] == FrameType.APPLIED:
                ends.append(self.written_bytes)

    Recorder(SENDER, RECEIVER, Landing(manifest, HAVE)).hand_off(outgoing(), layers)
    return ends[0]


APPLIED_AT = end_of_applied()


def test_the_transfer_is_of_the_size_that_this_file_is_about() -> None:
    assert sum(len(t) for tensors in DATA for t in tensors) == pytest.approx(10_000, rel=0.35)
    assert 10_000 < WRITTEN < 16_000


@pytest.mark.parametrize("part", range(4))
def test_a_cut_at_every_byte_is_resumed_to_the_same_bytes(part: int) -> None:
    """Of both directions: greeting, offer, data, answers, the very last byte of APPLIED."""
    for cut_at in range(part, WRITTEN, 4):
        _, _, attempts = run(Faults(cut_at=cut_at))
        assert attempts == (2 if cut_at < APPLIED_AT else 1)


def test_only_the_holes_are_sent_again() -> None:
    whole = WRITTEN
    _, link, _ = run(Faults(cut_at=whole * 3 // 4))
    greeting = 2000  # HELLOs, OFFER and ACCEPT of the second attempt
    assert link.written_bytes < whole + greeting + 2 * CHUNK


def test_every_flipped_bit_of_the_senders_bytes_is_survived_or_told_never_delivered() -> None:
    """All bits of all headers, and a sample of payload bits: the right bytes arrive, or a typed error does."""
    headers = header_positions()
    rng = random.Random(1)
    bits = [8 * at + bit for at in headers for bit in range(8 * HEADER_BYTES)]
    bits += [rng.randrange(8 * WRITTEN) for _ in range(500)]
    outcomes = {"applied": 0, "told": 0}
    for bit in bits:
        pages = Landing(manifest, HAVE)
        link = MemoryLink(SENDER, RECEIVER, pages, 1, Faults(flip_bit=bit))
        try:
            link.hand_off(outgoing(), layers)
        except TransportError:
            outcomes["told"] += 1
            assert not pages.completed
        else:
            outcomes["applied"] += 1
            assert pages.layers == DATA
    assert outcomes["applied"] > len(bits) // 2


def header_positions() -> list[int]:
    """Where in the sender's stream its frames begin, read from the lengths in the headers themselves."""
    stream = bytearray()

    class Recorder(MemoryLink):
        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            if by_sender:
                stream.extend(data)
            super()._write(pipe, data, by_sender)

    Recorder(SENDER, RECEIVER, Landing(manifest, HAVE)).hand_off(outgoing(), layers)
    positions, at = [], 0
    while at < len(stream):
        positions.append(at)
        at += HEADER_BYTES + int.from_bytes(stream[at + 20 : at + 24], "big")
    return positions


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    stripes=st.integers(1, 4),
    chunk_bytes=st.sampled_from([256, 300, 1024, 5000, 100_000]),
    cut=st.none() | st.integers(0, 40_000),
    dribble=st.booleans(),
    delay_s=st.sampled_from([0.0, 0.02]),
)
def test_any_order_any_pieces_any_stripes(
    seed: int, stripes: int, chunk_bytes: int, cut: int | None, dribble: bool, delay_s: float
) -> None:
    run(Faults(cut, None, delay_s, dribble, seed), stripes, chunk_bytes)


def test_a_chunk_that_always_arrives_damaged_is_tried_three_times_more_then_told() -> None:
    class Damaging(MemoryLink):
        sent = 0

        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            if by_sender and len(data) == HEADER_BYTES + CHUNK and data[12:14] == b"\0\1":  # whole chunks of layer 1
                data = data[:-1] + bytes([data[-1] ^ 1])
                self.sent += 1
            super()._write(pipe, data, by_sender)

    pages = Landing(manifest, HAVE)
    link = Damaging(SENDER, RECEIVER, pages)
    with pytest.raises(Corrupt, match="layer 1"):
        link.hand_off(outgoing(), layers)
    assert [type(error) for _, error in pages.closed] == [Corrupt] and not pages.completed
    assert link.sent >= 4


def test_what_is_settled_is_not_written_again() -> None:
    """Behind every chunk comes another in its place, with other bytes and a checksum that is right for them."""

    class Echoing(MemoryLink):
        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            super()._write(pipe, data, by_sender)
            if by_sender and data[3] == FrameType.DATA:
                header, body = unpack(data[:HEADER_BYTES]), bytes(len(data) - HEADER_BYTES)
                check = checksum(header.check, [memoryview(body)])
                super()._write(pipe, pack(header._replace(payload_check=check)) + body, by_sender)

    pages = Landing(manifest, HAVE)
    Echoing(SENDER, RECEIVER, pages).hand_off(outgoing(), layers)
    assert pages.layers == DATA and pages.completed == ["x"]


def test_a_digest_that_does_not_fit_is_never_applied() -> None:
    """A chunk whose bytes and checksum were both changed on the way: the layer's digest tells."""

    class Forging(MemoryLink):
        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            if by_sender and data[3] == FrameType.DATA and data[12:14] == b"\0\2":
                header, body = unpack(data[:HEADER_BYTES]), bytes(len(data) - HEADER_BYTES)
                check = checksum(header.check, [memoryview(body)])
                data = pack(header._replace(payload_check=check)) + body
            super()._write(pipe, data, by_sender)

    pages = Landing(manifest, HAVE)
    with pytest.raises(Corrupt, match="layer 2: the digest"):
        Forging(SENDER, RECEIVER, pages).hand_off(outgoing(), layers)
    assert not pages.completed and [type(error) for _, error in pages.closed] == [Corrupt]


def test_a_restarted_receiver_is_a_new_peer() -> None:
    pages = Landing(manifest, HAVE)
    link = MemoryLink(SENDER, RECEIVER, pages, 1, Faults(cut_at=WRITTEN // 2))
    real_connect: Callable[[], object] = link.connect

    def restarted() -> object:
        if link.written_bytes:
            link.receiver = type(link.receiver)(terms("another"))
        return real_connect()

    link.connect = restarted  # type: ignore[method-assign,assignment]
    with pytest.raises(TransportError) as error:
        link.hand_off(outgoing(), layers)
    assert isinstance(error.value, PeerRestarted)


def test_bf16_bits_survive() -> None:
    """A signalling NaN, -0.0, subnormals: bytes travel, numbers do not."""
    patterns = b"".join(bits.to_bytes(2, "little") for bits in (0x7F81, 0x8000, 0x0001, 0x807F, 0xFF81, 0x7F80))
    spec = Manifest(0, (LayerSpec((TensorSpec("x", "BF16", (6,), "flat"),)),))
    pages = Landing(lambda _: spec)
    offer = Offer("x", 0, 60.0, 256, spec.to_json(), {})
    MemoryLink(SENDER, RECEIVER, pages).hand_off(
        Outgoing(offer, spec, SENDER.identity.fingerprint()), lambda: [[memoryview(patterns)]]
    )
    assert pages.layers == [[patterns]]


@pytest.mark.parametrize("check", [Check.NONE, Check.CRC32])
def test_the_checksum_is_negotiated(check: Check) -> None:
    def speaking(name: str) -> Terms:
        return Terms(terms(name).identity, Limits(), (check,))

    pages = Landing(manifest, HAVE)
    link = MemoryLink(speaking("sender"), speaking("receiver"), pages)
    link.hand_off(outgoing(), layers)
    assert link.sender is not None and link.sender.connections[0].check is check
    with pytest.raises(TransportError, match="checks"):
        MemoryLink(speaking("sender"), Terms(terms("r").identity, Limits(), (Check(1 - check),)), pages).hand_off(
            outgoing(), layers
        )


def test_random_bytes_at_the_port_are_refused() -> None:
    receiver = MemoryLink(SENDER, RECEIVER, Landing(manifest)).receiver
    line = receiver.connect("00" * 16)
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for junk in (pickle.dumps({"a": [1] * 99}), request, os.urandom(200), bytes(200)):
        reader = FrameReader(lambda header: receiver.admit(line, header))
        with pytest.raises(BadFrame, match="not a frame"):
            list(feed(reader, junk))
