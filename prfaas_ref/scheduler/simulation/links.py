"""One direction of the inter-cluster link as a fluid: flows share it max-min fairly, each under a cap of its own.

Knows nothing of packets or requests. A flow's cap is how fast its bytes come into being (layers leave as they are
computed); once they all exist the cap is lifted, and only then does a delayed flow catch up. At each change the
residual bits of every flow are brought up to date and rates are shared anew, so capacity may change, or fail, under
running flows. Section 3.3 of the paper.
"""

from math import inf, ulp

EPSILON_BITS = 64.0  # what rounding of sums of bits can leave over; counted as delivered


class Flow:
    """One transfer. `tag` is the caller's."""

    __slots__ = ("bits", "cap_bits_per_s", "rate_bits_per_s", "remaining_bits", "tag")

    def __init__(self, n_bytes: float, cap_bits_per_s: float, tag: object) -> None:
        self.bits = self.remaining_bits = 8.0 * n_bytes
        self.cap_bits_per_s = cap_bits_per_s
        self.rate_bits_per_s = 0.0
        self.tag = tag


class FluidLink:
    """Flows over one capacity. Every method first lets the time since the last call pass. `now_s` must not go back."""

    def __init__(self, bits_per_s: float) -> None:
        self.capacity_bits_per_s = bits_per_s
        self.flows: list[Flow] = []
        self.delivered_bits = 0.0
        self.updated_s = 0.0
        self.version = 0  # changes with the rates: a finish time computed before is void

    def start(self, now_s: float, n_bytes: float, cap_bits_per_s: float = inf, tag: object = None) -> Flow:
        """A flow of `n_bytes` begins."""
        self.advance(now_s)
        flow = Flow(n_bytes, cap_bits_per_s, tag)
        self.flows.append(flow)
        self._share()
        return flow

    def lift_cap(self, now_s: float, flow: Flow) -> None:
        """All bytes of the flow exist now."""
        self.advance(now_s)
        flow.cap_bits_per_s = inf
        self._share()

    def abort(self, now_s: float, flow: Flow) -> None:
        """A flow ends early; what it delivered stays delivered."""
        self.advance(now_s)
        self.flows.remove(flow)
        self._share()

    def set_capacity(self, now_s: float, bits_per_s: float) -> None:
        """The link changes; 0 is an outage, under which flows wait."""
        self.advance(now_s)
        self.capacity_bits_per_s = bits_per_s
        self._share()

    def take_finished(self, now_s: float) -> list[Flow]:
        """Remove and return the flows that have no bits left: at least one at `next_finish_s`."""
        self.advance(now_s)
        finished = [flow for flow in self.flows if flow.remaining_bits <= _rounding_bits(flow, now_s)]
        if finished:
            for flow in finished:
                self._deliver(flow, flow.remaining_bits)
            self.flows = [flow for flow in self.flows if flow not in finished]
            self._share()
        return finished

    def next_finish_s(self) -> float:
        """When the first flow will be done if nothing changes; infinite when none will."""
        first = inf
        for flow in self.flows:
            if flow.rate_bits_per_s > 0.0:
                left_s = flow.remaining_bits / flow.rate_bits_per_s
                if left_s < first:
                    first = left_s
            elif flow.remaining_bits <= EPSILON_BITS:
                first = 0.0
        return self.updated_s + first

    def advance(self, now_s: float) -> None:
        """Let time pass under the present rates."""
        passed_s = now_s - self.updated_s
        if passed_s > 0.0:
            for flow in self.flows:
                sent = flow.rate_bits_per_s * passed_s
                whole = flow.remaining_bits - sent <= _rounding_bits(flow, now_s)
                self._deliver(flow, flow.remaining_bits if whole else sent)
            self.updated_s = now_s

    def _deliver(self, flow: Flow, bits: float) -> None:
        flow.remaining_bits -= bits
        self.delivered_bits += bits

    def _share(self) -> None:
        """Max-min fair rates: a flow whose cap is below its fair share takes the cap, the others share what is left."""
        self.version += 1
        left, waiting = self.capacity_bits_per_s, self.flows
        if len(waiting) > 1:
            waiting = sorted(waiting, key=_cap)
        n = len(waiting)
        for flow in waiting:
            fair = left / n
            rate = flow.rate_bits_per_s = flow.cap_bits_per_s if flow.cap_bits_per_s < fair else fair
            left -= rate
            n -= 1


def _rounding_bits(flow: Flow, now_s: float) -> float:
    """What rounding can leave of a flow at its finish time: a clock that has run for long takes coarse steps."""
    return max(EPSILON_BITS, 2.0 * flow.rate_bits_per_s * ulp(now_s))


def _cap(flow: Flow) -> float:
    return flow.cap_bits_per_s
