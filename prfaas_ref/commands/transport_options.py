"""The options that `prfaas send` and `prfaas receive` share: who may talk to whom."""

import argparse
import os
import ssl

from prfaas_ref.errors import UserError
from prfaas_ref.transport import Identity, Limits, Terms, supported
from prfaas_ref.transport.security import read_secret, tls_context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    guard = parser.add_argument_group("protection (a bind beyond the loopback needs the secret or TLS)")
    guard.add_argument("--secret-file", metavar="FILE", help="32 random bytes or more, mode 600, the same at both ends")
    guard.add_argument("--tls-cert", metavar="PEM", help="our certificate; all three --tls options go together")
    guard.add_argument("--tls-key", metavar="PEM", help="its private key")
    guard.add_argument("--tls-ca", metavar="PEM", help="the authority that signed the peer's certificate")
    parser.add_argument("--json", action="store_true", help="print JSON alone, a line per hand-off")


def terms(args: argparse.Namespace, limits: Limits) -> Terms:
    """This process, with a boot epoch of its own. Files carry their own description, so there is no fingerprint."""
    secret = read_secret(args.secret_file) if args.secret_file else None
    return Terms(Identity(os.urandom(8).hex()), limits, supported(), secret)


def tls(args: argparse.Namespace, listening: bool) -> ssl.SSLContext | None:
    files = (args.tls_cert, args.tls_key, args.tls_ca)
    if not any(files):
        return None
    if not all(files):
        raise UserError("--tls-cert, --tls-key and --tls-ca go together: TLS is mutual here")
    return tls_context(*files, listening=listening)
