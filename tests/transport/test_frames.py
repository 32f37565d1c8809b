"""Headers, control payloads and the reader: strict, bounded, indifferent to how bytes are cut."""

import contextlib
import json
import random
import struct
import zlib
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.transport.checks import Check, checksum, running, supported
from prfaas_ref.transport.errors import BY_CODE, BadFrame, ProtocolError, Refused, TransportError
from prfaas_ref.transport.frames import HEADER_BYTES, FrameType, Header, control_frame, pack, unpack
from prfaas_ref.transport.messages import (
    Accept,
    Failure,
    Hello,
    Message,
    Offer,
    Progress,
    Retry,
    decode,
    encode,
    exception,
    failure,
)
from prfaas_ref.transport.reader import SCRATCH_BYTES, FrameReader, scratch

headers = st.builds(
    Header,
    st.just(FrameType.DATA),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 255),
    st.sampled_from(Check),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)


@settings(deadline=None, derandomize=True)
@given(headers, st.integers(0, 8 * HEADER_BYTES - 1))
def test_a_header_comes_back_and_no_flipped_bit_goes_unseen(header: Header, bit: int) -> None:
    packed = pack(header)
    assert len(packed) == HEADER_BYTES and unpack(packed) == header
    flipped = (int.from_bytes(packed, "big") ^ 1 << bit).to_bytes(HEADER_BYTES, "big")
    with pytest.raises(BadFrame):
        unpack(flipped)


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [(2, 2, "version"), (3, 0, "unknown"), (3, 77, "unknown"), (11, 3, "unknown"), (12, 1, "position")],
)
def test_a_header_that_is_intact_and_wrong(at: int, value: int, told: str) -> None:
    packed = bytearray(control_frame(FrameType.DONE, b"")[:28])
    packed[at] = value
    with pytest.raises(BadFrame, match=told):
        unpack(bytes(packed) + struct.pack(">I", zlib.crc32(packed)))


def test_checksums() -> None:
    data = random.Random(0).randbytes(100_000)
    pieces = [memoryview(data)[i : i + 777] for i in range(0, len(data), 777)]
    assert checksum(Check.CRC32, pieces) == zlib.crc32(data)
    assert checksum(Check.NONE, pieces) == 0
    assert Check.NONE not in supported() and Check.CRC32 in supported()


@pytest.mark.skipif(Check.XXH3 not in supported(), reason="the `fast` extra is not installed")
def test_xxh3_is_the_low_half_of_the_64_bits() -> None:
    from xxhash import xxh3_64_intdigest

    state = running(Check.XXH3)
    state.update(memoryview(b"prefill"))
    state.update(memoryview(b"decode"))
    assert state.value() == xxh3_64_intdigest(b"prefilldecode") & 0xFFFFFFFF


OFFER = Offer("x", 0, 1.5, 4096, {"n_tokens": 0, "layers": []}, {"any": ["thing", None, -1]})
HELLO = Hello("sender", "0" * 16, "a", 0, 1, "b", "none", ["crc32"], {"k": "v"}, {}, False)


@pytest.mark.parametrize("message", [OFFER, HELLO, Accept(64, "00", 10, [(0, 1, 2)]), Progress([]), Retry(1, 2)])
def test_messages_come_back(message: Message) -> None:
    assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize("kind", get_args(Message))
def test_every_field_is_needed_and_no_other_is_taken(kind: type) -> None:
    names = [f.name for f in fields(kind)]
    with pytest.raises(ProtocolError, match=f"{kind.__name__}.surplus: unknown field"):
        decode(kind, json.dumps(dict.fromkeys([*names, "surplus"], 0)).encode())
    for name in names:
        rest = dict.fromkeys((n for n in names if n != name), 0)
        with pytest.raises(ProtocolError, match=f"{kind.__name__}.{name}: missing field"):
            decode(kind, json.dumps(rest).encode())


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b'{"layer": 1, "layer": 2, "chunk": 0}', "'layer' is there twice"),
        (b'{"layer": -1, "chunk": 0}', "Retry.layer"),
        (b'{"layer": true, "chunk": 0}', "Retry.layer"),
        (b'{"layer": 1.0, "chunk": 0}', "Retry.layer"),
        (b'{"layer": "1", "chunk": 0}', "Retry.layer"),
        (b'{"layer": 9223372036854775808, "chunk": 0}', "Retry.layer"),
        (b'{"layer": NaN, "chunk": 0}', "NaN is not a number"),
        (b'{"layer": 1, "chunk": 0} ', ""),
        (b"[1, 0]", "not a JSON object"),
        (b"\xff\xfe", "not strict JSON"),
        (b"", "not strict JSON"),
        (b"[" * 100_000, "not strict JSON"),
        (b'{"layer": ' + b"9" * 5000 + b', "chunk": 0}', "not strict JSON"),
    ],
)
def test_what_is_not_strict_json_is_refused_by_name(payload: bytes, told: str) -> None:
    if not told:
        assert decode(Retry, payload) == Retry(1, 0)
        return
    with pytest.raises(ProtocolError, match=told):
        decode(Retry, payload)


@pytest.mark.parametrize("deadline_s", ["Infinity", "-1", "1e400", '"soon"', "null", "[1]"])
def test_a_deadline_is_a_finite_number(deadline_s: str) -> None:
    payload = encode(OFFER).replace(b"1.5", deadline_s.encode())
    with pytest.raises(ProtocolError):
        decode(Offer, payload)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.sampled_from(get_args(Message)))
def test_no_bytes_do_worse_than_a_protocol_error(payload: bytes, kind: type) -> None:
    with contextlib.suppress(ProtocolError):
        decode(kind, payload)


@pytest.mark.parametrize("kind", BY_CODE.values())
def test_every_error_crosses_the_wire_as_itself(kind: type[TransportError]) -> None:
    error = kind("dtype", "BF16", "F32") if kind is Refused else kind("why")
    theirs = exception(decode(Failure, encode(failure(error))))
    assert type(theirs) is kind
    if isinstance(theirs, Refused):
        assert (theirs.field, theirs.ours, theirs.theirs) == ("dtype", "F32", "BF16")


def test_what_a_handler_raised_by_mistake_is_not_told_in_detail() -> None:
    assert "secret" not in failure(KeyError("secret")).text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 100))
def test_frames_do_not_depend_on_how_their_bytes_are_cut(payloads: list[bytes], piece: int) -> None:
    landed: list[bytearray] = []

    def admit(header: Header) -> list[memoryview] | None:
        if header.length % 2:
            return None
        landed.append(bytearray(header.length))
        middle = header.length // 3
        return [memoryview(landed[-1])[:middle], memoryview(landed[-1])[middle:]]

    reader, seen = FrameReader(admit), []
    stream = b"".join(control_frame(FrameType.DONE, payload) for payload in payloads)
    while stream:
        view = reader.buffers()[0]
        n_bytes = min(piece, len(view), len(stream))
        view[:n_bytes], stream = stream[:n_bytes], stream[n_bytes:]
        if frame := reader.received(n_bytes):
            seen.append(frame)
    assert all(frame.intact for frame in seen) and reader.between_frames
    in_place = iter(landed)
    arrived = [frame.payload if frame.header.length % 2 else bytes(next(in_place)) for frame in seen]
    assert arrived == payloads


@pytest.mark.parametrize("n_bytes", [0, 1, SCRATCH_BYTES, SCRATCH_BYTES + 1, 5 * SCRATCH_BYTES])
def test_scratch_is_as_long_as_asked_and_small(n_bytes: int) -> None:
    views = scratch(n_bytes)
    assert sum(map(len, views)) == n_bytes and len({id(view.obj) for view in views}) <= 1
