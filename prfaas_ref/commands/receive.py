"""Wait for hand-offs, and keep each as a directory of .safetensors files: the other half of `prfaas send`.

  terminal 1   prfaas receive --out inbox
  terminal 2   prfaas send prfaas_ref/weights 127.0.0.1:7747

The receiver names the directories itself (inbox/0001, ...): nothing that comes over the wire is used as a path. Bytes
land in memory that was reserved when the offer was accepted (`--budget-mib`); the files are written when every byte is
in and every digest agrees, and only then is the sender told APPLIED. The safetensors library opens them.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import TextIO

from prfaas_ref.commands import transport_options
from prfaas_ref.errors import UserError
from prfaas_ref.transport import Destination, Incoming, Limits, Server
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.image import image_header
from prfaas_ref.units import MIB, M


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="inbox", help="where hand-offs are kept (inbox)")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=7747, help="0 takes a free one (7747)")
    parser.add_argument("--count", type=int, default=0, help="end after so many hand-offs; 0 goes on until Ctrl-C (0)")
    parser.add_argument("--budget-mib", type=int, default=4096, help="memory for hand-offs under way (4096)")
    transport_options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 1 << 16 or args.count < 0 or args.budget_mib < 1:
        raise UserError("--port is 0 to 65535, --count not negative, --budget-mib at least 1")
    inbox = Inbox(Path(args.out), args.json)
    terms = transport_options.terms(args, Limits(reserved_bytes=args.budget_mib * MIB))
    try:
        server = Server(terms, inbox, args.host, args.port, transport_options.tls(args, listening=True))
    except OSError as error:
        raise UserError(f"cannot listen on {args.host}:{args.port}: {error.strerror}") from None
    with server:
        host, port = server.address
        print(f"listening on {f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr, flush=True)
        while not args.count or inbox.kept < args.count:
            inbox.changed.wait(0.5)
            inbox.changed.clear()
    return 0


class Inbox:
    """The handler: takes whatever is offered, under names of its own."""

    def __init__(self, directory: Path, as_json: bool) -> None:
        self._directory, self._as_json = directory, as_json
        self._buffers: dict[Incoming, list[bytearray]] = {}
        self._lock = threading.Lock()
        self.changed = threading.Event()
        self.kept = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out: {error}") from None

    def on_offer(self, incoming: Incoming) -> Destination:
        self._buffers[incoming] = [bytearray(layer.n_bytes) for layer in incoming.manifest.layers]
        return Destination(incoming.manifest, [[memoryview(buffer)] for buffer in self._buffers[incoming]])

    def on_complete(self, incoming: Incoming) -> None:
        with self._lock:
            home = self._keep(incoming, self._buffers.pop(incoming))
            self.kept += 1
            tell(self._kept(home, incoming), sys.stdout)
        self.changed.set()

    def on_closed(self, incoming: Incoming, error: TransportError) -> None:
        self._buffers.pop(incoming, None)
        tell(f"a hand-off failed: {error.code}: {error}", sys.stderr)

    def _kept(self, home: Path, incoming: Incoming) -> str:
        n_bytes, rate, layers = incoming.received_bytes, incoming.bits_per_s, len(incoming.manifest.layers)
        if self._as_json:
            return json.dumps({"directory": str(home), "bytes": n_bytes, "bits_per_s": rate})
        speed = f", {rate / M:,.0f} Mbit/s from first to last chunk" if rate else ""
        return f"{home}: {layers} layer{'s' * (layers != 1)}, {n_bytes:,} bytes{speed}"

    def _keep(self, incoming: Incoming, buffers: list[bytearray]) -> Path:
        """Write it beside its place, then move it there: a directory in the inbox is always whole."""
        number = 1 + max((int(p.name) for p in self._directory.iterdir() if p.name.isdecimal()), default=0)
        home, part = self._directory / f"{number:04d}", self._directory / f".{number:04d}.{os.getpid()}"
        part.mkdir()
        try:
            for i, (layer, buffer) in enumerate(zip(incoming.manifest.layers, buffers, strict=True)):
                with (part / f"layer_{i:03d}.safetensors").open("wb") as file:
                    file.write(image_header(layer))
                    file.write(buffer)
            return part.rename(home)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def tell(line: str, file: TextIO) -> None:
    """Print it. That nobody reads is no fault of the hand-off's."""
    with contextlib.suppress(OSError):
        print(line, file=file, flush=True)
