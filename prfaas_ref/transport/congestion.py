"""How the link fares (paper section 7): the kernel's TCP_INFO and our own queue, as the LinkReport the router reads.

TCP_INFO grew over the years: what this kernel does not return is None, and what is derived from it as well.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Literal

SAMPLE_S = 0.1
_TCP_INFO_BYTES = 256
_MICRO = 1e-6
# name: (offset, format) in struct tcp_info of linux/tcp.h, which only ever grows at its end
_FIELDS = {
    "rtt_us": (68, "I"),
    "bytes_acked": (120, "Q"),
    "min_rtt_us": (148, "I"),
    "delivery_rate_bytes_per_s": (160, "Q"),
    "busy_us": (168, "Q"),
    "rwnd_limited_us": (176, "Q"),
    "bytes_sent": (200, "Q"),
    "bytes_retrans": (208, "Q"),
}


@dataclass(frozen=True)
class TcpInfo:
    """What the router's report needs of struct tcp_info. A field that the kernel did not return is None."""

    rtt_us: int | None
    bytes_acked: int | None
    min_rtt_us: int | None
    delivery_rate_bytes_per_s: int | None
    busy_us: int | None
    rwnd_limited_us: int | None
    bytes_sent: int | None
    bytes_retrans: int | None


def parse_tcp_info(raw: bytes) -> TcpInfo:
    """By the length that was returned, not by the length that was asked for."""
    fields = {
        name: struct.unpack_from("=" + kind, raw, at)[0] if at + struct.calcsize(kind) <= len(raw) else None
        for name, (at, kind) in _FIELDS.items()
    }
    return TcpInfo(**fields)


def tcp_info(sock: socket.socket) -> TcpInfo:
    """Of a connected socket; all None where the system has no TCP_INFO, or the socket is closed."""
    try:
        return parse_tcp_info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES))
    except (OSError, AttributeError):
        return parse_tcp_info(b"")


@dataclass(frozen=True)
class LinkReport:
    """One sample, over the time since the sample before. `limited_by` is what held the sender back in it."""

    goodput_bits_per_s: float
    queueing_s: float | None  # rtt - min_rtt: what waits in the network
    retransmitted_share: float | None  # of the bytes sent
    limited_by: Literal["sender", "receiver", "network", "rate"]
    queued_bytes: int  # ours: layers handed over, not yet on the line
    in_flight_bytes: int  # ours: sent, not yet confirmed by the receiver


@dataclass(frozen=True)
class Sample:
    """What is read at one moment. `link_busy_s` is the emulated link's; `out_of_credit`: the receiver takes no more."""

    at_s: float
    confirmed_bytes: int
    queued_bytes: int
    in_flight_bytes: int
    link_busy_s: float
    out_of_credit: bool
    sockets: tuple[TcpInfo, ...]


def link_report(before: Sample, now: Sample) -> LinkReport:
    """What happened between two samples of one session."""
    elapsed_s = max(now.at_s - before.at_s, 1e-9)
    pairs = list(zip(before.sockets, now.sockets, strict=True))
    sent, resent = _grown(pairs, "bytes_sent"), _grown(pairs, "bytes_retrans")
    busy_us, rwnd_us = _grown(pairs, "busy_us"), _grown(pairs, "rwnd_limited_us")
    waits = [i.rtt_us - i.min_rtt_us for i in now.sockets if i.rtt_us is not None and i.min_rtt_us is not None]
    resent_share = None if sent is None or resent is None else resent / sent if sent else 0.0
    receiver_full = now.out_of_credit or (busy_us and rwnd_us and rwnd_us > busy_us / 2)
    limited_by: Literal["sender", "receiver", "network", "rate"]
    if now.link_busy_s - before.link_busy_s > elapsed_s / 2:
        limited_by = "rate"
    elif receiver_full:
        limited_by = "receiver"
    elif now.queued_bytes or (resent_share or 0.0) > 0.01:
        limited_by = "network"
    else:
        limited_by = "sender"
    return LinkReport(
        max(now.confirmed_bytes - before.confirmed_bytes, 0) * 8 / elapsed_s,
        max(waits) * _MICRO if waits else None,
        resent_share,
        limited_by,
        now.queued_bytes,
        now.in_flight_bytes,
    )


def _grown(pairs: list[tuple[TcpInfo, TcpInfo]], field: str) -> int | None:
    """By how much a counter grew over all sockets; None when the kernel does not count it."""
    total = 0
    for old, new in pairs:
        before, after = getattr(old, field), getattr(new, field)
        if before is None or after is None:
            return None
        total += int(after) - int(before)
    return total
