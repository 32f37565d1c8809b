"""One connection, either role, sans-IO: the greeting, the proof of the secret, and the frames waiting to be written.

Both sides send HELLO. With a secret, both then send AUTH: HMAC-SHA256, keyed by the secret, over the speaker's role and
the digest of both HELLOs with their nonces; the receiver speaks only after it has checked the sender's. Every later
frame must carry the session tag, which stands for both boot epochs. `docs/transport-security.md` says what this
protects and what it does not.
"""

import hashlib
import hmac
from collections import deque
from dataclasses import dataclass, field

from prfaas_ref.transport.checks import Check, supported
from prfaas_ref.transport.errors import AuthenticationFailed, Corrupt, PeerRestarted, ProtocolError, Refused
from prfaas_ref.transport.frames import FrameType, Header, control_frame
from prfaas_ref.transport.identity import Identity, session_tag
from prfaas_ref.transport.limits import MOST_STRIPES, Limits
from prfaas_ref.transport.messages import Auth, Failure, Hello, Message, decode, encode, exception
from prfaas_ref.transport.reader import Frame
from prfaas_ref.transport.transitions import CONNECTION, step
from prfaas_ref.transport.transitions import Connection as C


@dataclass(frozen=True)
class Terms:
    """What one endpoint brings to each of its connections."""

    identity: Identity
    limits: Limits = field(default_factory=Limits)
    checks: tuple[Check, ...] = field(default_factory=supported)  # best first
    secret: bytes | None = None

    @property
    def auth(self) -> str:
        return "hmac-sha256" if self.secret else "none"


class Connection:
    """Construct with `hello=None` at the receiver, which answers the sender's; `nonce` is 16 random bytes in hex."""

    def __init__(self, terms: Terms, nonce: str, session: str | None = None, stripe: int = 0, stripes: int = 1) -> None:
        self.terms, self._nonce = terms, nonce
        self.state: C = C.GREETING_SECURED if terms.secret else C.GREETING
        self.outbox: deque[bytes] = deque()
        self.session, self.stripe, self.stripes = session or "", stripe, stripes
        self.is_sender = session is not None
        self.exact = False
        self.check = Check.NONE
        self.tag = 0
        self.peer_epoch = ""
        self._hellos: dict[bool, bytes] = {}  # by "said by the sender"
        if self.is_sender:
            self._greet()

    @property
    def ready(self) -> bool:
        return self.state is C.READY

    def payload_cap(self) -> int:
        return self.terms.limits.control_bytes if self.ready else self.terms.limits.hello_bytes

    def check_header(self, header: Header) -> None:
        """Raises when this frame may not be read any further: its length, its session, or its place."""
        if header.type is not FrameType.DATA and header.length > self.payload_cap():
            raise ProtocolError(f"{header.type.name} of {header.length} bytes; the cap is {self.payload_cap()}")
        unbound = header.session == 0 and header.type in (FrameType.HELLO, FrameType.ERROR)
        if header.session != self.tag and not unbound:
            raise PeerRestarted("a frame of another session: one of its ends has been restarted")
        if not self.ready or header.type in (FrameType.HELLO, FrameType.AUTH):
            step(CONNECTION, self.state, header.type)

    def receive(self, frame: Frame) -> None:
        """HELLO, AUTH, or an ERROR about the connection. Raises what the peer reports, or what is wrong with it."""
        if not frame.intact:
            raise Corrupt(f"{frame.header.type.name} fails its checksum")
        state = step(CONNECTION, self.state, frame.header.type)
        if frame.header.type is FrameType.ERROR:
            self.state = state
            raise exception(decode(Failure, frame.payload))
        if frame.header.type is FrameType.HELLO:
            self._greeted(frame.payload)
        else:
            self._proved(decode(Auth, frame.payload))
        self.state = state

    def send(self, kind: FrameType, message: Message, transfer: int = 0, attempt: int = 0) -> None:
        self.outbox.append(control_frame(kind, encode(message), self.tag, transfer, attempt))

    def _greet(self) -> None:
        me = self.terms.identity
        hello = Hello(
            "sender" if self.is_sender else "receiver", me.boot_epoch, self.session, self.stripe, self.stripes,
            self._nonce, self.terms.auth, [check.name.lower() for check in self.terms.checks],
            dict(me.layout), dict(me.numeric), me.allow_inexact,
        )  # fmt: skip
        self._hellos[self.is_sender] = encode(hello)
        self.outbox.append(control_frame(FrameType.HELLO, self._hellos[self.is_sender]))

    def _greeted(self, payload: bytes) -> None:
        hello = decode(Hello, payload)
        expected = "receiver" if self.is_sender else "sender"
        if hello.role != expected:
            raise Refused("role", "sender" if self.is_sender else "receiver", hello.role)
        if hello.auth != self.terms.auth:
            raise Refused("auth", self.terms.auth, hello.auth)
        if not hello.stripe < hello.stripes <= MOST_STRIPES or len(hello.session) > 64 or len(hello.nonce) > 64:
            raise ProtocolError("Hello: stripe, stripes, session or nonce out of range")
        self.exact = self.terms.identity.meet(hello)
        self._hellos[not self.is_sender] = payload
        self.peer_epoch = hello.boot_epoch
        if self.is_sender:
            if (hello.session, hello.stripe, hello.stripes) != (self.session, self.stripe, self.stripes):
                raise ProtocolError("Hello: the receiver answers for another session")
            self._agree(hello)
            if self.terms.secret:
                self.send(FrameType.AUTH, Auth(self._mac(by_sender=True)))
        else:
            self.session, self.stripe, self.stripes = hello.session, hello.stripe, hello.stripes
            self._agree(hello)
            self._greet()

    def _agree(self, hello: Hello) -> None:
        """Derive what both ends now know: the session tag and the chunk checksum, the sender's first that both have."""
        ours, theirs = [check.name.lower() for check in self.terms.checks], hello.checks
        first, second = (ours, theirs) if self.is_sender else (theirs, ours)
        common = [name for name in first if name in second and name.upper() in Check.__members__]
        if not common:
            raise Refused("checks", ours, theirs)
        self.check = Check[common[0].upper()]
        epochs = (self.terms.identity.boot_epoch, self.peer_epoch)
        self.tag = session_tag(*(epochs if self.is_sender else epochs[::-1]))

    def _mac(self, by_sender: bool) -> str:
        transcript = hashlib.sha256(self._hellos[True]).digest() + hashlib.sha256(self._hellos[False]).digest()
        role = b"sender" if by_sender else b"receiver"
        return hmac.new(self.terms.secret or b"", b"prfaas-1 " + role + transcript, hashlib.sha256).hexdigest()

    def _proved(self, auth: Auth) -> None:
        if not hmac.compare_digest(auth.mac.encode(), self._mac(by_sender=not self.is_sender).encode()):
            raise AuthenticationFailed("the peer does not know the secret")
        if not self.is_sender:
            self.send(FrameType.AUTH, Auth(self._mac(by_sender=False)))
