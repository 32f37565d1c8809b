"""Who a process is, and what the bytes of its cache mean: the fingerprint that both ends compare first."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from prfaas_ref.transport.errors import Refused
from prfaas_ref.transport.messages import Hello


@dataclass(frozen=True)
class Identity:
    """One process. `boot_epoch` is 16 hex digits drawn at its start, so that a restarted process is a new peer.

    `layout` fields (block size, dtype, weights digest, ...) must be equal. `numeric` fields (CPU, build, probe digest,
    ...) must be equal too, unless both sides set `allow_inexact`; the transfer is then marked `exact=False`.
    """

    boot_epoch: str
    layout: Mapping[str, str] = field(default_factory=dict)
    numeric: Mapping[str, str] = field(default_factory=dict)
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        if len(self.boot_epoch) != 16 or set(self.boot_epoch) - set("0123456789abcdef"):
            raise ValueError(f"boot_epoch is 16 hex digits, not {self.boot_epoch!r}")

    def fingerprint(self) -> str:
        """Of the layout fields: the part that is equal at both ends of every transfer."""
        return hashlib.sha256(json.dumps(sorted(self.layout.items())).encode()).hexdigest()

    def meet(self, theirs: Hello) -> bool:
        """Whether a transfer from or to them is exact. Raises Refused naming the first field that forbids it."""
        if differs := _difference(self.layout, theirs.layout):
            raise Refused(f"layout.{differs[0]}", *differs[1:])
        differs = _difference(self.numeric, theirs.numeric)
        if differs and not (self.allow_inexact and theirs.allow_inexact):
            raise Refused(f"numeric.{differs[0]}", *differs[1:])
        return differs is None


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str, str] | None:
    for name in sorted(ours.keys() | theirs.keys()):
        pair = ours.get(name, "absent"), theirs.get(name, "absent")
        if pair[0] != pair[1]:
            return name, *pair
    return None


def session_tag(sender_epoch: str, receiver_epoch: str) -> int:
    """The 32 bits that every frame carries in place of both boot epochs. Never 0, which is HELLO's."""
    digest = hashlib.sha256(f"{sender_epoch} {receiver_epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "big") or 1
