"""TCP_INFO by the length that came, and what held the sender back."""

import socket
import struct
import threading
import time

import pytest

from prfaas_ref.transport import EmulatedLink, LayerSpec, LinkReport, Manifest, Options, TensorSpec
from prfaas_ref.transport.congestion import Sample, TcpInfo, link_report, parse_tcp_info, tcp_info
from prfaas_ref.transport.testing import ConnectionPair, Landing


def test_fields_beyond_the_returned_length_are_absent() -> None:
    raw = bytearray(256)
    struct.pack_into("=I", raw, 68, 40_000)
    struct.pack_into("=Q", raw, 208, 77)
    whole, old, none = parse_tcp_info(bytes(raw)), parse_tcp_info(bytes(raw[:104])), parse_tcp_info(b"")
    assert (whole.rtt_us, whole.bytes_retrans) == (40_000, 77)
    assert (old.rtt_us, old.min_rtt_us, old.bytes_retrans) == (40_000, None, None)
    assert none == TcpInfo(*[None] * 8)


def test_a_real_socket_tells_its_round_trip_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 5000)
            other.recv(5000)
            time.sleep(0.05)
            info = tcp_info(one)
    assert info.rtt_us is not None and 0 < info.rtt_us < 1_000_000
    assert info.bytes_acked is None or info.bytes_acked >= 5000
    assert tcp_info(one) == TcpInfo(*[None] * 8)  # closed


def sample(at_s: float = 1.0, confirmed: int = 0, queued: int = 0, **fields: object) -> Sample:
    info = dict.fromkeys(TcpInfo.__dataclass_fields__, 0) | fields
    busy_s, full = info.pop("link_busy_s", 0.0), bool(info.pop("full", 0))
    return Sample(at_s, confirmed, queued, 0, busy_s, full, (TcpInfo(**info),))


@pytest.mark.parametrize(
    ("now", "limited_by"),
    [
        (sample(), "sender"),
        (sample(queued=1), "network"),
        (sample(bytes_sent=100, bytes_retrans=2), "network"),
        (sample(queued=1, full=1), "receiver"),
        (sample(queued=1, busy_us=100, rwnd_limited_us=60), "receiver"),
        (sample(queued=1, link_busy_s=0.9), "rate"),
    ],
)
def test_what_held_the_sender_back(now: Sample, limited_by: str) -> None:
    assert link_report(sample(0.0), now).limited_by == limited_by


def test_the_figures_of_a_report() -> None:
    before = sample(2.0, 1000, bytes_sent=1000, bytes_retrans=10)
    now = sample(2.5, 6000, rtt_us=50_000, min_rtt_us=20_000, bytes_sent=3000, bytes_retrans=110)
    report = link_report(before, now)
    assert report.goodput_bits_per_s == 80_000
    assert report.queueing_s == pytest.approx(0.03)
    assert report.retransmitted_share == pytest.approx(0.05)
    unknown = link_report(sample(0.0, bytes_sent=None), sample(1.0, bytes_sent=None, rtt_us=None))
    assert unknown.retransmitted_share is None and unknown.queueing_s is None


def test_a_transfer_over_a_slow_link_reports_that_the_rate_limits_it() -> None:
    spec = Manifest(0, (LayerSpec((TensorSpec("x", "U8", (600_000,), "flat"),)),))
    reports: list[LinkReport] = []
    link = EmulatedLink(bits_per_s=8e6)
    with ConnectionPair(Landing(lambda _: spec), Options(chunk_bytes=16384), link=link) as pair:
        transfer = pair.client.offer("x", spec, deadline_s=10)
        watching = threading.Event()

        def watch() -> None:
            while not watching.wait(0.05):
                if (report := pair.client.link_report) and report not in reports:
                    reports.append(report)

        watcher = threading.Thread(target=watch)
        watcher.start()
        transfer.send_layer(0, [memoryview(bytes(600_000))])
        transfer.finish()
        watching.set()
        watcher.join()
    busy = [report for report in reports if report.queued_bytes]
    assert busy and sum(report.limited_by == "rate" for report in busy) > len(busy) / 2
    assert max(report.goodput_bits_per_s for report in reports) == pytest.approx(8e6, rel=0.5)
