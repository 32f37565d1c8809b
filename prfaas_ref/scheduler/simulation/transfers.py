"""Transfers between the clusters in the simulator: flows on two fluid links, and the events that end them.

Knows nothing of decode, and of prefill only whether it runs. A flow that ends is applied at the receiver half a round
trip later; then the attempt is handed on, but a hand-off not before its prompt is computed.
"""

from collections.abc import Callable

from prfaas_ref.scheduler.simulation.attempt import Attempt
from prfaas_ref.scheduler.simulation.events import ENDING, EventQueue
from prfaas_ref.scheduler.simulation.links import FluidLink
from prfaas_ref.scheduler.simulation.log import EventLog


class Transfers:
    """Hand-offs over `egress`, prefix transfers over either direction; `on_applied` and `on_prefix` take over."""

    def __init__(self, events: EventQueue, log: EventLog, bits_per_s: float, rtt_s: float) -> None:
        self.events, self.log, self.one_way_s = events, log, rtt_s / 2
        self.egress, self.ingress = FluidLink(bits_per_s), FluidLink(bits_per_s)
        self.on_applied: Callable[[Attempt], None]
        self.on_prefix: Callable[[Attempt], None]

    def open(self, attempt: Attempt, n_bytes: float, cap_bits_per_s: float) -> None:
        """The hand-off of a prompt that is being computed."""
        attempt.flow = self.egress.start(self.events.now_s, n_bytes, cap_bits_per_s, (attempt, False))
        self._expect(self.egress)

    def all_computed(self, attempt: Attempt) -> None:
        """The last layer exists. A hand-off of next to no bytes is through before it, and is applied now."""
        if attempt.flow is None:
            self.events.at(self.events.now_s + self.one_way_s, ENDING, self._apply, (attempt, False))
        elif attempt.flow in self.egress.flows:
            self.egress.lift_cap(self.events.now_s, attempt.flow)
            self._expect(self.egress)

    def move_prefix(self, attempt: Attempt) -> None:
        """Bring the cached prefix to the cluster that was chosen, before prefill."""
        link = self.ingress if attempt.decision.route == "prfaas" else self.egress
        attempt.flow = link.start(self.events.now_s, attempt.decision.prefix_bytes, tag=(attempt, True))
        self._expect(link)

    def set_capacity(self, bits_per_s: float) -> None:
        for link in (self.egress, self.ingress):
            link.set_capacity(self.events.now_s, bits_per_s)
            self._expect(link)

    def lose(self, attempt: Attempt) -> None:
        """Stop whatever is on the wire for an attempt."""
        for link in (self.egress, self.ingress):
            if attempt.flow in link.flows:
                link.abort(self.events.now_s, attempt.flow)
                self._expect(link)
        attempt.flow = None

    def _expect(self, link: FluidLink) -> None:
        """Schedule the next end on a link; a change of rates before then voids it."""
        finish_s = link.next_finish_s()
        if finish_s < float("inf"):
            self.events.at(max(finish_s, self.events.now_s), ENDING, self._flow_ends, (link, link.version))

    def _flow_ends(self, expected: tuple[FluidLink, int]) -> None:
        link, version = expected
        if version != link.version:
            return
        now_s = self.events.now_s
        for flow in link.take_finished(now_s):
            assert isinstance(flow.tag, tuple)
            attempt, is_prefix = flow.tag
            self.log.add("transfer end", now_s, attempt.number, attempt.decode.number)
            self.log.span("prefix" if is_prefix else "hand-off", attempt.number, "link", attempt.started_s, now_s)
            self.events.at(now_s + self.one_way_s, ENDING, self._apply, (attempt, is_prefix))
        self._expect(link)

    def _apply(self, arrived: tuple[Attempt, bool]) -> None:
        attempt, is_prefix = arrived
        if attempt.alive:
            attempt.flow = None
            if is_prefix:
                self.on_prefix(attempt)
            elif attempt.number not in attempt.prefill.running:
                self.on_applied(attempt)
