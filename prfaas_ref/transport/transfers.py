"""The life of every transfer at a receiver, sans-IO: offered, accepted, covered, applied; or failed and closed.

Pages are lent to a connection for one chunk at a time (`Incoming.landing`). Whatever ends a transfer, it is closed only
when no page of it is lent: until then it is in quarantine, and its pages are nobody else's.
"""

from collections import OrderedDict

from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import Busy, Expired, PeerGone, ProtocolError, Refused, TransportError
from prfaas_ref.transport.frames import FrameType
from prfaas_ref.transport.incoming import Destination, Incoming
from prfaas_ref.transport.ledger import to_spans
from prfaas_ref.transport.manifest import Manifest, manifest_from_json, require_equal
from prfaas_ref.transport.messages import Accept, Message, Nothing, Offer, Root, failure
from prfaas_ref.transport.session import Closed, Complete, Event, Line, Offered, Session
from prfaas_ref.transport.transitions import R

TOMBSTONES = 1024  # ended transfers that are remembered, for a sender that missed how they ended
MOST_CHUNKS = 1 << 20


class Transfers:
    """All transfers of one receiver. Every method may return events for the driver to act on."""

    def __init__(self, terms: Terms) -> None:
        self._limits, self._fingerprint = terms.limits, terms.identity.fingerprint()
        self.under_way: dict[tuple[str, str], Incoming] = {}
        self._ended: OrderedDict[tuple[str, str], str | TransportError] = OrderedDict()  # the root digest, or the error

    # what the sender asks for

    def offered(self, line: Line, session: Session, offer: Offer, now: float) -> list[Event]:
        """A first OFFER, or that of a later attempt: which continues, or is told how the transfer ended."""
        key = line.connection.peer_epoch, offer.transfer_id
        known, ended = self.under_way.get(key), self._ended.get(key)
        if known and known.state is R.QUARANTINE:
            ended = known.error
        elif known and session.attempt:
            return self._resumed(known, session, offer)
        if ended is not None and session.attempt:
            if isinstance(ended, str):
                session.say(FrameType.APPLIED, Root(ended))
            else:
                session.say(FrameType.ERROR, failure(ended))
            return []
        try:
            if known:
                raise Refused("transfer_id", f"{offer.transfer_id} is under way", "a new offer of it")
            manifest = manifest_from_json(offer.manifest)
            self._check(offer, manifest)
        except TransportError as error:
            session.say(FrameType.REJECT, failure(error))
            return []
        deadline = now + offer.deadline_s
        incoming = Incoming(offer, manifest, line.connection.peer_epoch, line.connection.exact, deadline)
        incoming.session, session.incoming = session, incoming
        self.under_way[key] = incoming
        return [Offered(incoming)]

    def _check(self, offer: Offer, manifest: Manifest) -> None:
        limits = self._limits
        if not 0 < len(offer.transfer_id) <= 256:
            raise Refused("transfer_id", "1 to 256 characters", len(offer.transfer_id))
        if not limits.smallest_chunk_bytes <= offer.chunk_bytes <= limits.largest_chunk_bytes:
            span = f"{limits.smallest_chunk_bytes}..{limits.largest_chunk_bytes}"
            raise Refused("chunk_bytes", span, offer.chunk_bytes)
        if offer.deadline_s > limits.deadline_s:
            raise Refused("deadline_s", f"at most {limits.deadline_s:g}", f"{offer.deadline_s:g}")
        if offer.available_from > manifest.n_tokens:
            raise Refused("available_from", f"at most {manifest.n_tokens}", offer.available_from)
        if manifest.n_bytes // offer.chunk_bytes > MOST_CHUNKS:
            raise Refused("chunks", MOST_CHUNKS, manifest.n_bytes // offer.chunk_bytes)
        free = limits.reserved_bytes - sum(other.reserved_bytes for other in self.under_way.values())
        if manifest.n_bytes > free or len(self.under_way) >= limits.connections:
            raise Busy(f"{manifest.n_bytes} bytes do not fit into the {free} that are free for transfers")

    def _resumed(self, incoming: Incoming, session: Session, offer: Offer) -> list[Event]:
        if session.attempt <= incoming.attempt:
            raise ProtocolError(f"attempt {session.attempt} after attempt {incoming.attempt}")
        if (offer.manifest, offer.chunk_bytes) != (incoming.manifest.to_json(), incoming.offer.chunk_bytes):
            raise ProtocolError(f"attempt {session.attempt} of {offer.transfer_id!r} offers something else")
        if incoming.session:  # its connections still look alive; this attempt ends them
            incoming.session.over, incoming.session.incoming = True, None
        incoming.session, session.incoming, incoming.attempt = session, incoming, session.attempt
        if incoming.state in (R.RECEIVING, R.COVERING):
            incoming.state, incoming.error = R.OFFERED, None
            incoming.claimed.clear()
            incoming.fenced.clear()
            incoming.retries_said = 0
        return self.pages_returned(incoming)

    # what our own side answers

    def accept(self, incoming: Incoming, destination: Destination) -> list[Event]:
        """Our side takes it. Refuses it after all when the two manifests differ; the destination is then given back."""
        incoming.deciding = False
        if incoming.state is R.QUARANTINE:
            return self.pages_returned(incoming)
        try:
            require_equal(destination.manifest, incoming.manifest)
            incoming.place(destination)
            if destination.have_tokens < incoming.available_from:
                raise Refused("have_tokens", destination.have_tokens, f"at least {incoming.available_from}")
        except (TransportError, ValueError) as error:
            mine = error if isinstance(error, TransportError) else TransportError(str(error))
            self.reject(incoming, mine)
            return [Closed(incoming, mine)]
        return self.pages_returned(incoming)

    def reject(self, incoming: Incoming, error: TransportError) -> None:
        """Our side does not take it. There is no destination to give back."""
        if incoming.state is not R.QUARANTINE:
            self._say(incoming, FrameType.REJECT, failure(error))
        self._end(incoming, error)

    def applied(self, incoming: Incoming) -> None:
        """Our side has put it to use: the one success."""
        self._say(incoming, FrameType.APPLIED, Root(incoming.root))
        self._end(incoming, incoming.root)

    # how it goes on, and how it ends

    def complete(self, incoming: Incoming) -> list[Event]:
        """Called after DONE and after each chunk that follows it: is everything in?"""
        if incoming.holes():
            return []
        try:
            incoming.prove(self._fingerprint)
        except TransportError as error:
            return self.fail(incoming, error)
        incoming.state = R.APPLYING
        return [Complete(incoming)]

    def fail(self, incoming: Incoming, error: TransportError) -> list[Event]:
        """It cannot succeed any more. The sender is told now, our side when no write can land."""
        if self.under_way.get(incoming.key) is not incoming or incoming.state is R.QUARANTINE:
            return []
        incoming.error, incoming.state = error, R.QUARANTINE
        self._say(incoming, FrameType.ERROR, failure(error))
        return self.pages_returned(incoming)

    def pages_returned(self, incoming: Incoming) -> list[Event]:
        """Go on with what had to wait until no page is lent: closing, or the next attempt's ACCEPT."""
        if incoming.landing or incoming.deciding or self.under_way.get(incoming.key) is not incoming:
            return []
        if incoming.state is R.QUARANTINE:
            error = incoming.error or PeerGone("the transfer ended")
            self._end(incoming, error)
            return [Closed(incoming, error)]
        if incoming.state is R.OFFERED and incoming.increment and incoming.session:
            assert incoming.have_tokens is not None
            have, digest = to_spans(incoming.settled()), incoming.increment.digest()
            accept = Accept(incoming.have_tokens, digest, self._limits.credit_bytes, have)
            incoming.state = R.RECEIVING
            self._say(incoming, FrameType.ACCEPT, accept)
        return []

    def detach(self, incoming: Incoming, error: TransportError, now: float) -> None:
        """Its connections are gone; it waits for another attempt."""
        incoming.session, incoming.detached_at = None, now
        incoming.error = incoming.error or error

    def tick(self, now: float) -> list[Event]:
        """Leases end here: at the deadline, or when a broken transfer was not resumed in time."""
        events: list[Event] = []
        for incoming in list(self.under_way.values()):
            if incoming.state is R.APPLYING:
                continue
            if now >= incoming.deadline:
                events += self.fail(incoming, Expired(f"the lease on {incoming.transfer_id!r} is over"))
            elif incoming.session is None and now >= incoming.detached_at + self._limits.resume_s:
                events += self.fail(incoming, incoming.error or PeerGone("the sender did not come back"))
        return events

    def _end(self, incoming: Incoming, how: str | TransportError) -> None:
        """Forget it, but for how it ended. The session may carry another transfer."""
        del self.under_way[incoming.key]
        self._ended[incoming.key] = how
        while len(self._ended) > TOMBSTONES:
            self._ended.popitem(last=False)
        if incoming.abort_wanted:
            self._say(incoming, FrameType.ABORTED, Nothing())
        if incoming.session:
            incoming.session.incoming = None

    def _say(self, incoming: Incoming, kind: FrameType, message: Message) -> None:
        if incoming.session:
            incoming.session.say(kind, message)
