"""Control payloads: one frozen dataclass per frame type, as strict JSON.

Strict means: the fields named here, each once, each of its type, and nothing else. An unknown, missing, duplicate or
mistyped field is refused by name. Nothing from the wire is evaluated, and sizes are bounded by the header's length.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from prfaas_ref.transport.errors import BY_CODE, ProtocolError, Refused, TransportError

Span = tuple[int, int, int]  # layer, first chunk, last chunk (included)


@dataclass(frozen=True)
class Hello:
    """Who speaks. Both sides send one; `session` and `stripe` are the sender's choice and echoed by the receiver."""

    role: str  # "sender" or "receiver"
    boot_epoch: str  # 16 hex digits drawn when the process started: a restarted peer is a new peer
    session: str
    stripe: int
    stripes: int
    nonce: str
    auth: str  # "none" or "hmac-sha256"
    checks: list[str]  # chunk checksums, best first
    layout: dict[str, str]  # fingerprint fields that must be equal
    numeric: dict[str, str]  # fingerprint fields that must be equal unless both sides allow otherwise
    allow_inexact: bool


@dataclass(frozen=True)
class Auth:
    mac: str


@dataclass(frozen=True)
class Offer:
    transfer_id: str
    available_from: int  # the first token whose rows the sender can send
    deadline_s: float  # from the arrival of this frame
    chunk_bytes: int
    manifest: dict[str, Any]  # of all n_tokens tokens
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Accept:
    have_tokens: int
    manifest_sha256: str  # of the increment
    credit_bytes: int  # sent and not confirmed: at most this
    have: list[Span]  # chunks of the increment that an earlier attempt brought


@dataclass(frozen=True)
class Failure:
    """REJECT and ERROR. `field`, `ours` and `theirs` are empty unless the code is "refused"."""

    code: str
    text: str
    field: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class LayerEnd:
    layer: int
    digest: str


@dataclass(frozen=True)
class Progress:
    chunks: list[Span]


@dataclass(frozen=True)
class Retry:
    layer: int
    chunk: int


@dataclass(frozen=True)
class Root:
    """DONE and APPLIED."""

    digest: str


@dataclass(frozen=True)
class Abort:
    reason: str


@dataclass(frozen=True)
class Ping:
    retries: int  # RETRYs of this attempt that the sender has heard


@dataclass(frozen=True)
class Nothing:
    """ABORTED."""


Message = Hello | Auth | Offer | Accept | Failure | LayerEnd | Progress | Retry | Root | Abort | Ping | Nothing
M = TypeVar("M", bound=Message)
_HINTS: dict[type, dict[str, Any]] = {kind: get_type_hints(kind) for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps(vars(message), separators=(",", ":"), allow_nan=False).encode()


def decode(kind: type[M], payload: bytes | bytearray) -> M:
    """The message in this payload. Raises ProtocolError naming the field that is wrong."""
    try:
        value = _STRICT.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{kind.__name__}: not strict JSON: {str(error)[:100]}") from None
    if type(value) is not dict:
        raise ProtocolError(f"{kind.__name__}: not a JSON object")
    hints = _HINTS[kind]
    for name in value.keys() ^ hints.keys():
        raise ProtocolError(f"{kind.__name__}.{name}: {'unknown' if name in value else 'missing'} field")
    return kind(**{name: _typed(f"{kind.__name__}.{name}", value[name], hint) for name, hint in hints.items()})


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(n for i, n in enumerate(names) if n in names[:i])!r} is there twice")
    return fields


def _no_constants(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constants)


def _typed(field: str, value: Any, hint: Any) -> Any:
    """The value, if it has the type that the field declares: numbers are finite and not negative."""
    inner = get_args(hint)
    if get_origin(hint) is list and type(value) is list:
        return [_typed(field, item, inner[0]) for item in value]
    if get_origin(hint) is tuple and type(value) is list and len(value) == len(inner):
        return tuple(_typed(field, item, kind) for item, kind in zip(value, inner, strict=True))
    if get_origin(hint) is dict and type(value) is dict:
        return {key: item if inner[1] is Any else _typed(field, item, inner[1]) for key, item in value.items()}
    if hint in (str, bool) and type(value) is hint:
        return value
    if hint is int and type(value) is int and 0 <= value < 2**63:
        return value
    if hint is float and type(value) in (int, float) and 0 <= value <= 1e9 and math.isfinite(value):
        return float(value)
    raise ProtocolError(f"{field}: {str(value)[:60]!r} is not what this field holds")


def failure(error: Exception) -> Failure:
    """An exception as a message. What is not ours to tell is reported by its class name only."""
    if isinstance(error, Refused):
        return Failure(error.code, "", error.field, error.ours, error.theirs)
    if isinstance(error, TransportError):
        return Failure(error.code, str(error)[:500], "", "", "")
    return Failure(TransportError.code, f"{type(error).__name__} at the peer", "", "", "")


def exception(message: Failure) -> TransportError:
    """A message as an exception, from our point of view: the peer's `ours` is our `theirs`."""
    kind = BY_CODE.get(message.code)
    if kind is None:
        return ProtocolError(f"the peer reports an unknown error {message.code[:40]!r}")
    if kind is Refused:
        return Refused(message.field, message.theirs, message.ours)
    return kind(message.text)
