"""Bytes in, frames out, without a copy: the reader lends the buffers that the next bytes belong in.

A payload is admitted only after its header was verified; `admit` names the buffers, which for DATA are the final pages.
The checksum is folded over the bytes as they land. Knows nothing of sockets; the driver does
`reader.received(sock.recv_into(reader.buffers()[0]))`.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from prfaas_ref.transport.checks import running
from prfaas_ref.transport.frames import HEADER_BYTES, Header, unpack

MAX_BUFFERS = 64  # per system call; the kernel's own limit is 1024
SCRATCH_BYTES = 1 << 16


class Frame(NamedTuple):
    header: Header
    payload: bytes  # empty for DATA, whose bytes are in place
    intact: bool  # the payload is what its checksum says


class FrameReader:
    """One direction of one connection. `admit` may raise; the reader is then not to be used again."""

    def __init__(self, admit: Callable[[Header], list[memoryview] | None]) -> None:
        self._admit = admit
        self._head = bytearray(HEADER_BYTES)
        self._await_header()

    def _await_header(self) -> None:
        self._header: Header | None = None
        self._body = bytearray()
        self._views = deque([memoryview(self._head)])

    @property
    def between_frames(self) -> bool:
        """Nothing of a next frame is here yet."""
        return self._header is None and len(self._views[0]) == HEADER_BYTES

    def buffers(self) -> list[memoryview]:
        """Where the next bytes go, in order. Never empty."""
        return [self._views[i] for i in range(min(MAX_BUFFERS, len(self._views)))]

    def received(self, n_bytes: int) -> Frame | None:
        """`n_bytes` were put into the buffers. Returns the frame that they complete, if any."""
        while n_bytes:
            view = self._views.popleft()
            landed = view[:n_bytes]
            if len(landed) < len(view):
                self._views.appendleft(view[n_bytes:])
            if self._header is not None:
                self._check.update(landed)
            n_bytes -= len(landed)
        if self._views:
            return None
        return self._open() if self._header is None else self._close()

    def _open(self) -> Frame | None:
        """The header is complete. `admit` returns the destination, or None for a buffer of the reader's own."""
        self._header = header = unpack(self._head)
        self._check = running(header.check)
        views = self._admit(header)
        if views is None:
            self._body = bytearray(header.length)
            views = [memoryview(self._body)]
        self._views = deque(view for view in views if view)
        return None if self._views else self._close()

    def _close(self) -> Frame:
        header = self._header
        assert header is not None
        frame = Frame(header, bytes(self._body), self._check.value() == header.payload_check)
        self._await_header()
        return frame


def scratch(n_bytes: int) -> list[memoryview]:
    """`n_bytes` of buffers to drop bytes into: one small buffer, again and again."""
    view = memoryview(bytearray(min(n_bytes, SCRATCH_BYTES)))
    whole, rest = divmod(n_bytes, SCRATCH_BYTES)
    return [view] * whole + ([view[:rest]] if rest else [])
