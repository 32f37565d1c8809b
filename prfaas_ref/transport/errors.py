"""Every way a hand-off can fail, as a type. Each has a code on the wire, so the peer raises what we raised.

Success has one form, APPLIED; whatever else ends a transfer is one of these.
"""

from typing import ClassVar


class TransportError(Exception):
    """A hand-off did not succeed. `resumable` says whether another attempt may: the bytes or the line were at fault."""

    code: ClassVar[str] = "internal"
    resumable: ClassVar[bool] = False


class Refused(TransportError):
    """One side does not agree to the hand-off: `field` differs, and both values are told."""

    code = "refused"

    def __init__(self, field: str, ours: object, theirs: object) -> None:
        super().__init__(f"{field}: ours is {ours}, theirs is {theirs}")
        self.field, self.ours, self.theirs = field, str(ours), str(theirs)


class ProtocolError(TransportError):
    """The peer sent what the protocol does not allow here, or something that is not the protocol at all."""

    code = "protocol"


class BadFrame(ProtocolError):
    """A header fails its own check: the place in the stream is lost and the connection ends; a resume may succeed."""

    code = "bad_frame"
    resumable = True


class AuthenticationFailed(TransportError):
    """The peer did not prove that it knows the secret."""

    code = "authentication"


class Corrupt(TransportError):
    """Bytes arrived that are not the bytes that left, and sending them again did not help."""

    code = "corrupt"


class Incomplete(TransportError):
    """DONE was said, parts of the manifest never came, and asking for them again did not help."""

    code = "incomplete"


class DeadlineExceeded(TransportError):
    """The transfer's own deadline passed."""

    code = "deadline"


class Stalled(TransportError):
    """The peer is connected, and moves fewer bytes than the minimum rate."""

    code = "stalled"


class Expired(TransportError):
    """The receiver's lease on the destination is over; nothing can be written to it any more."""

    code = "expired"


class PeerGone(TransportError):
    """The connection ended, or could not be made."""

    code = "peer_gone"
    resumable = True


class PeerRestarted(TransportError):
    """The process at this address is a new one: what the old one held is lost."""

    code = "peer_restarted"


class Aborted(TransportError):
    """The sender took the offer back."""

    code = "aborted"


class ApplyFailed(TransportError):
    """All bytes arrived intact, and the receiver could not put them to use."""

    code = "apply_failed"


class Busy(TransportError):
    """The receiver is at one of its limits (connections, memory); a later try may be admitted."""

    code = "busy"


BY_CODE: dict[str, type[TransportError]] = {
    kind.code: kind
    for kind in (
        TransportError, Refused, ProtocolError, BadFrame, AuthenticationFailed, Corrupt, Incomplete, DeadlineExceeded,
        Stalled, Expired, PeerGone, PeerRestarted, Aborted, ApplyFailed, Busy,
    )
}  # fmt: skip
