"""Moves one connection's incoming bytes into its reader, with patience that ends: the loop that both drivers share."""

from collections.abc import Callable

from prfaas_ref.transport.errors import PeerGone, Stalled
from prfaas_ref.transport.frames import Header
from prfaas_ref.transport.limits import Limits
from prfaas_ref.transport.reader import Frame, FrameReader
from prfaas_ref.transport.stream import Clock, Stream

Admit = Callable[[Header], list[memoryview] | None]


class Pump:
    """Call `step` again and again. `ready` says whether the greeting is over.

    A peer has `handshake_s` for its greeting, `idle_s` of silence between frames, and for a frame that it has begun the
    time that the minimum rate gives. Raises Stalled or PeerGone when it takes longer, and whatever `admit` raises.
    """

    def __init__(
        self, stream: Stream, admit: Admit, ready: Callable[[], bool], limits: Limits, clock: Clock
    ) -> None:
        self._stream, self._ready, self._limits, self._clock = stream, ready, limits, clock
        self._opened = self._began = clock()
        self._frame_bytes = 0
        self._admit = admit
        self.reader = FrameReader(self._began_frame)

    def _began_frame(self, header: Header) -> list[memoryview] | None:
        views = self._admit(header)
        self._began, self._frame_bytes = self._clock(), header.length
        return views

    def _deadline(self) -> float:
        if not self._ready():
            return self._opened + self._limits.handshake_s
        if self.reader.between_frames:
            return self._began + self._limits.idle_s
        return self._began + self._limits.frame_s(self._frame_bytes)

    def step(self) -> Frame | None:
        """Wait for bytes once. Returns the frame they complete, if any."""
        fill = not self.reader.between_frames  # the wait for a frame ends with its first byte
        try:
            n_bytes = self._stream.receive_into(self.reader.buffers(), self._deadline() - self._clock(), fill)
        except TimeoutError:
            if self.reader.between_frames and self._ready():
                raise PeerGone(f"silent for {self._limits.idle_s} s") from None
            raise Stalled("slower than the minimum rate") from None
        if self.reader.between_frames:
            self._began = self._clock()
        frame = self.reader.received(n_bytes)
        if frame:
            self._began, self._frame_bytes = self._clock(), 0
        return frame
