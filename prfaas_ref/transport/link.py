"""An emulated link: a rate that all stripes and sessions share, and a round-trip time. Time is an argument.

The whole round trip is charged to the sender's direction, so that a question and its answer take one RTT, as on a real
line. `rate` shapes DATA and control alike; the driver holds what is still "on the line" and writes it when it is due.
"""

from threading import Lock

from prfaas_ref.units import BITS_PER_BYTE


class EmulatedLink:
    """A token bucket and a delay. May be shared by any number of senders and threads of a process.

    `burst_s` is how long the link may stay idle and still catch up: it absorbs late wake-ups, no more.
    """

    def __init__(self, bits_per_s: float | None = None, rtt_s: float = 0.0, burst_s: float = 0.01) -> None:
        if (bits_per_s is not None and bits_per_s <= 0) or rtt_s < 0:
            raise ValueError(f"a link of {bits_per_s} bit/s and {rtt_s} s")
        self.bits_per_s, self.rtt_s, self._burst_s = bits_per_s, rtt_s, burst_s
        self.busy_s = 0.0  # in all, so that a sampler sees its utilisation
        self._free_at = float("-inf")
        self._lock = Lock()

    @property
    def free_at(self) -> float:
        """When the next frame may begin to leave."""
        return self._free_at

    def reserve(self, n_bytes: int, now: float) -> float:
        """Put a frame on the link. Returns when it has arrived: queue, its own time on the wire, and the delay."""
        if self.bits_per_s is None:
            return now + self.rtt_s
        with self._lock:
            on_wire_s = n_bytes * BITS_PER_BYTE / self.bits_per_s
            self._free_at = max(self._free_at, now - self._burst_s) + on_wire_s
            self.busy_s += on_wire_s
            return max(self._free_at, now) + self.rtt_s
