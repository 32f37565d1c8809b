"""The 32-byte header that opens every frame: packed, checked, and bounded before anything is allocated for its payload.

Knows nothing of payloads, sockets or transfers. `docs/wire-format.md` describes each byte.
"""

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from prfaas_ref.transport.checks import Check
from prfaas_ref.transport.errors import BadFrame

MAGIC = b"Pf"
VERSION = 1
HEADER_BYTES = 32
OFFSET_BITS = 48  # a layer's image is below 256 TiB
_FIELDS = struct.Struct(">2sBBIHBBQII")  # all but the header's own CRC
_CRC = struct.Struct(">I")


class FrameType(IntEnum):
    """What a frame says. S: said by the sender of the cache, R: by its receiver."""

    HELLO = 1  # S, R: who I am, what my cache means
    AUTH = 2  # S, R: proof of the shared secret
    OFFER = 3  # S: a transfer, its manifest and its deadline
    ACCEPT = 4  # R: go on; what I hold already
    REJECT = 5  # R: no; the field, ours and theirs
    DATA = 6  # S: one chunk of one layer's image
    LAYER_END = 7  # S: the layer's digest
    PROGRESS = 8  # R: chunks that arrived intact; returns credit
    RETRY = 9  # R: this chunk arrived damaged
    DONE = 10  # S: all is sent; the root digest
    APPLIED = 11  # R: all of it arrived and is in use: the only success
    ABORT = 12  # S: I take it back
    ABORTED = 13  # R: no write of it can land any more
    PING = 14  # S: are you there? answered by PROGRESS
    ERROR = 15  # S, R: a typed failure


class Header(NamedTuple):
    """One frame's header. Only DATA has a `layer` and an `offset` (bytes into the layer's image)."""

    type: FrameType
    session: int  # 32 bits derived from both boot epochs; 0 in HELLO
    transfer: int  # counts the session's transfers from 1; 0 when the frame is about the connection
    attempt: int
    check: Check
    layer: int
    offset: int
    length: int
    payload_check: int


def pack(header: Header) -> bytes:
    """The 32 bytes of this header."""
    position = header.layer << OFFSET_BITS | header.offset
    kind, session, transfer, attempt, check = header[:5]
    fields = _FIELDS.pack(
        MAGIC, VERSION, kind, session, transfer, attempt, check, position, header.length, header.payload_check
    )
    return fields + _CRC.pack(zlib.crc32(fields))


def unpack(data: bytes | bytearray) -> Header:
    """The header in these 32 bytes. Raises BadFrame when any bit of it is not as it was packed."""
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    magic, version, kind, session, transfer, attempt, flags, position, length, payload_check = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise BadFrame(f"not a frame of this protocol: it opens with {bytes(data[:4])!r}")
    if crc != zlib.crc32(memoryview(data)[: _FIELDS.size]):
        raise BadFrame("a frame's header fails its checksum")
    if version != VERSION:
        raise BadFrame(f"protocol version: ours is {VERSION}, theirs is {version}")
    layer, offset = position >> OFFSET_BITS, position & (1 << OFFSET_BITS) - 1
    try:
        kind, check = FrameType(kind), Check(flags)
    except ValueError as error:
        raise BadFrame(f"a frame's header holds an unknown value: {error}") from None
    if kind is not FrameType.DATA and (layer or offset or check is not Check.CRC32):
        raise BadFrame(f"a {kind.name} frame with a position or another checksum")
    return Header(kind, session, transfer, attempt, check, layer, offset, length, payload_check)


def control_frame(kind: FrameType, payload: bytes, session: int = 0, transfer: int = 0, attempt: int = 0) -> bytes:
    """A whole control frame. Control payloads are always checked by crc32."""
    crc = zlib.crc32(payload)
    return pack(Header(kind, session, transfer, attempt, Check.CRC32, 0, 0, len(payload), crc)) + payload
