"""The lines of the memory driver: bytes with the time of their arrival, and what goes wrong on the way."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from prfaas_ref.transport.reader import Frame, FrameReader


@dataclass
class Faults:
    """What goes wrong. `cut_at` and `flip_bit` happen once."""

    cut_at: int | None = None  # of all bytes of both sides, in order of writing: every connection breaks before it
    flip_bit: int | None = None  # of all that the sender writes: this bit arrives inverted
    delay_s: float = 0.0  # of every byte
    dribble: bool = False  # bytes arrive in pieces of random length
    seed: int = 0  # of stripes that overtake each other, and of the dribble


class Pipe:
    """One direction of one connection: bytes with the time of their arrival."""

    def __init__(self) -> None:
        self._queue: deque[tuple[float, bytes]] = deque()

    def write(self, data: bytes, arrives_at: float) -> None:
        self._queue.append((arrives_at, data))

    def next_at(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def read(self, most_bytes: int) -> bytes:
        when, data = self._queue.popleft()
        if len(data) > most_bytes:
            self._queue.appendleft((when, data[most_bytes:]))
        return data[:most_bytes]


def feed(reader: FrameReader, data: bytes) -> Iterator[Frame]:
    """Put bytes into a reader's own buffers, and yield the frames they complete."""
    rest = memoryview(data)
    while rest:
        view = reader.buffers()[0]
        n_bytes = min(len(view), len(rest))
        view[:n_bytes] = rest[:n_bytes]
        rest = rest[n_bytes:]
        if frame := reader.received(n_bytes):
            yield frame
