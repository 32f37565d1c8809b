"""Who may talk to whom. The attacks are written against the core, so that nothing depends on timing."""

import hmac
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.transport import Client, LayerSpec, Limits, Manifest, Options, Server, TensorSpec
from prfaas_ref.transport.errors import AuthenticationFailed, Busy, PeerGone, Refused
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.security import read_secret, require_protection, tls_context
from prfaas_ref.transport.stream import TlsStream
from prfaas_ref.transport.testing import ConnectionPair, Landing, terms
from prfaas_ref.transport.transitions import Connection

SECRET = b"0123456789abcdef0123456789abcdef"
SPEC = Manifest(1, (LayerSpec((TensorSpec("x", "U8", (300_000,), "flat"),)),))


def ship(client: Client) -> None:
    transfer = client.offer("x", SPEC, deadline_s=10)
    transfer.send_layer(0, [memoryview(bytes(range(250)) * 1200)])
    transfer.finish()


def test_a_shared_secret_admits() -> None:
    pages = Landing(lambda _: SPEC)
    with ConnectionPair(
        pages, Options(2), sender=terms("s", secret=SECRET), receiver=terms("r", secret=SECRET)
    ) as pair:
        ship(pair.client)
    assert pages.completed == ["x"]


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [(SECRET, SECRET[::-1], AuthenticationFailed), (None, SECRET, Refused), (SECRET, None, Refused)],
)
def test_another_secret_or_none_does_not(ours: bytes | None, theirs: bytes | None, error: type) -> None:
    pages = Landing(lambda _: SPEC)
    pair = ConnectionPair(pages, sender=terms("s", secret=ours), receiver=terms("r", secret=theirs))
    with pair, pytest.raises(error):
        ship(pair.client)
    assert not pages.completed and not pages.closed


def test_a_receiver_shows_its_proof_to_none_but_a_sender_that_showed_its_own() -> None:
    link = MemoryLink(terms("s", secret=SECRET[::-1]), terms("r", secret=SECRET), Landing(lambda _: SPEC))
    sender = link.connect()
    (line,) = link.receiver.lines
    while sender.lost is None:
        link.step()
    assert not any(hmac_of(line.connection) in frame for frame in line.connection.outbox)
    assert line.connection.state is Connection.PROVING and not sender.ready


def hmac_of(connection: object) -> bytes:
    return connection._mac(by_sender=False).encode()  # type: ignore[attr-defined]


def test_a_proof_cannot_be_reflected_or_replayed() -> None:
    """The roles and both nonces are in it, so no two are alike."""
    proofs = set()
    for name in ("one", "two"):
        link = MemoryLink(terms("s", secret=SECRET), terms(name, secret=SECRET), Landing(lambda _: SPEC))
        sender = link.connect()
        while not sender.ready:
            link.step()
        connection = sender.connections[0]
        proofs |= {connection._mac(by_sender=True), connection._mac(by_sender=False)}
    assert len(proofs) == 4
    assert not hmac.compare_digest(*sorted(proofs)[:2])


def test_a_server_binds_to_the_loopback_unless_it_is_protected() -> None:
    for host in ("0.0.0.0", "", "::"):
        with pytest.raises(UserError, match="--secret-file or TLS"):
            require_protection(host, None, None)
        require_protection(host, SECRET, None)
    require_protection("127.0.0.1", None, None)
    with pytest.raises(UserError):
        Server(terms("r"), Landing(lambda _: SPEC), host="0.0.0.0")


def test_a_secret_file_is_long_and_private(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(UserError, match="secret"):
        read_secret(file)
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_secret(file)
    file.chmod(0o600)
    assert read_secret(file) == SECRET
    file.write_bytes(b"short")
    with pytest.raises(UserError, match="5 bytes"):
        read_secret(file)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("edge", [b" ", b"\t", b"\v", b"\0", b"\n\r", b"\r"])
def test_every_byte_of_a_secret_counts_but_a_newline_at_its_end(edge: bytes, end: bytes, tmp_path: Path) -> None:
    if edge.endswith(b"\r") and end == b"\n":
        pytest.skip("together they are one newline")
    file, secret = tmp_path / "secret", edge + bytes(range(128, 160)) + edge
    file.write_bytes(secret + end)
    file.chmod(0o600)
    assert read_secret(file) == secret


def test_before_the_proof_a_peer_is_given_little() -> None:
    limits = Limits(hello_bytes=2000)
    link = MemoryLink(terms("s", secret=SECRET), terms("r", limits, secret=SECRET), Landing(lambda _: SPEC))
    lines = [link.receiver.connect("00" * 16) for _ in range(limits.unready_connections)]
    assert lines[0].connection.payload_cap() == 2000
    with pytest.raises(Busy):
        link.receiver.connect("00" * 16)


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate that it signed, and one that it did not."""
    home = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=home, check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (home / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("req", *new_key[:-2], "-keyout", "good.key", "-out", "good.csr", "-subj", "/CN=good")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl("x509", "-req", "-in", "good.csr", *sign, "-out", "good.pem")
    openssl("req", "-x509", *new_key, "-keyout", "bad.key", "-out", "bad.pem", "-subj", "/CN=bad")
    return home


def context(home: Path, name: str, listening: bool) -> ssl.SSLContext:
    return tls_context(str(home / f"{name}.pem"), str(home / f"{name}.key"), str(home / "ca.pem"), listening)


def test_mutual_tls_carries_a_transfer(certificates: Path) -> None:
    pages = Landing(lambda _: SPEC)
    with (
        Server(terms("r"), pages, tls=context(certificates, "good", True)) as server,
        Client(server.address, terms("s"), Options(2), tls=context(certificates, "good", False)) as client,
    ):
        ship(client)
    assert pages.completed == ["x"] and pages.layers == [[bytes(range(250)) * 1200]]


@pytest.mark.parametrize("end", [TlsStream.finish, TlsStream.shut])
def test_what_is_written_while_a_stream_is_ended_never_leaves_in_clear(
    end: Callable[[TlsStream], None], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread writes in the worst moment: its end has begun, and the system has not heard of it."""
    near, far = socket.socketpair()
    wire = far.dup()  # what really travels
    streams: list[TlsStream] = []
    tls = context(certificates, "good", True), context(certificates, "good", False)
    greeting = threading.Thread(target=lambda: streams.append(TlsStream(far, tls[0], None, 10.0, time.monotonic)))
    greeting.start()
    stream = TlsStream(near, tls[1], "127.0.0.1", 10.0, time.monotonic)
    greeting.join()
    shutdown, secret, ended = socket.socket.shutdown, b"a cache is its prompt in another form", []

    def late(sock: socket.socket, how: int) -> None:
        if sock is stream.socket and not ended:
            ended.append(how)
            stream.send([secret], 5.0)
        shutdown(sock, how)

    monkeypatch.setattr(socket.socket, "shutdown", late)
    try:
        end(stream)
        with pytest.raises(PeerGone):
            stream.send([secret], 5.0)
        wire.setblocking(True)
        travelled = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    finally:
        for each in (stream, *streams):
            each.close()
        wire.close()
    assert ended and len(travelled) > len(secret) and secret not in travelled


@pytest.mark.parametrize("client_name", ["bad", None])
def test_tls_without_a_signed_certificate_is_turned_away(certificates: Path, client_name: str | None) -> None:
    pages = Landing(lambda _: SPEC)
    tls = context(certificates, client_name, False) if client_name else None
    impatient = terms("s", Limits(handshake_s=1.0))
    with (
        Server(terms("r", Limits(handshake_s=1.0)), pages, tls=context(certificates, "good", True)) as server,
        Client(server.address, impatient, tls=tls) as client,
        pytest.raises(PeerGone),
    ):
        ship(client)
    assert not pages.completed


def test_missing_tls_files_are_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="TLS files"):
        context(tmp_path, "good", True)
