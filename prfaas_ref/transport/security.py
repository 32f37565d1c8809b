"""Who may listen where, and with what protection. `docs/transport-security.md` says what each of the two gives.

Without a secret and without TLS a server binds to the loopback alone.
"""

import ipaddress
import re
import socket
import ssl
import stat
from pathlib import Path

from prfaas_ref.errors import UserError

SECRET_BYTES = 32


def require_protection(host: str, secret: bytes | None, tls: ssl.SSLContext | None) -> None:
    """Raises UserError when this address may be reached from other machines and nothing guards it."""
    addresses = {info[4][0] for info in socket.getaddrinfo(host or "0.0.0.0", None)}
    if not (secret or tls) and not all(ipaddress.ip_address(a).is_loopback for a in addresses):
        raise UserError(f"binding to {host!r} needs --secret-file or TLS certificates; 127.0.0.1 needs neither")


def read_secret(path: str | Path) -> bytes:
    """A shared secret of at least 32 bytes, from a file that others cannot read. Raises UserError.

    A newline at its end is an editor's, and not part of it; every other byte is.
    """
    file = Path(path)
    try:
        secret, mode = re.sub(rb"\r?\n\Z", b"", file.read_bytes()), file.stat().st_mode
    except OSError as error:
        raise UserError(f"--secret-file: {error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"--secret-file: {path} is open to other users; run `chmod 600 {path}`")
    if len(secret) < SECRET_BYTES:
        raise UserError(f"--secret-file: {path} holds {len(secret)} bytes; {SECRET_BYTES} random ones are the least")
    return secret


def tls_context(certificate: str, key: str, authority: str, listening: bool) -> ssl.SSLContext:
    """Mutual TLS 1.3: we show our certificate, and the peer must show one that `authority` signed. Raises UserError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listening else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"TLS files: {error}") from None
    return context
