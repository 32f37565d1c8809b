"""Hand a directory of .safetensors files over to a `prfaas receive`: a lesson for two terminals.

  terminal 1   prfaas receive --out inbox
  terminal 2   prfaas send prfaas_ref/weights 127.0.0.1:7747

Every file is one layer, in the order of the names: any directory of .safetensors files will do, such as the toy's
weights or an earlier inbox/0001. The two ends greet (HELLO), the sender offers a manifest of all tensors (OFFER), the
receiver accepts it, and the chunks of each layer travel over `--stripes` connections that share one queue (DATA,
LAYER_END). DONE carries the root digest; only APPLIED, which comes when the files lie in the inbox, is success. Try it
with `--link-mbps 100 --rtt-ms 40`, and stop the receiver in the middle: the sender ends with a typed error, within its
deadline.
"""

import argparse
import dataclasses
import json
import mmap
import os
import sys
from pathlib import Path

from tqdm import tqdm

from prfaas_ref.commands import transport_options
from prfaas_ref.commands.options import not_negative, positive
from prfaas_ref.errors import UserError
from prfaas_ref.transport import Client, EmulatedLink, LayerSpec, Limits, Manifest, Options, Report
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.image import parse_image
from prfaas_ref.transport.limits import MOST_STRIPES
from prfaas_ref.units import BITS_PER_BYTE, KIB, M, mbps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where the .safetensors files are, one per layer")
    parser.add_argument("address", metavar="HOST:PORT", help="of the receiver")
    limits = Limits()
    parser.add_argument("--stripes", type=positive(int, MOST_STRIPES), default=2, metavar="N", help="connections (2)")
    parser.add_argument(
        "--chunk-kib",
        type=positive(int, limits.largest_chunk_bytes // KIB),
        default=1024,
        metavar="KIB",
        help="bytes are sent and checked in chunks; smaller ones on a slow link (1024)",
    )
    parser.add_argument(
        "--deadline-s",
        type=positive(float, limits.deadline_s),
        default=60.0,
        metavar="S",
        help="applied by then, or failed (60)",
    )
    parser.add_argument("--link-mbps", type=positive(float), metavar="R", help="emulate a link of this rate (no limit)")
    parser.add_argument(
        "--rtt-ms", type=not_negative(float), default=0.0, metavar="MS", help="and of this round-trip time (0)"
    )
    transport_options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    host, _, port = args.address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(f"{args.address!r} is not HOST:PORT, with a port from 1 to 65535")
    layers = read_layers(Path(args.directory))
    link = EmulatedLink(mbps(args.link_mbps) if args.link_mbps else None, args.rtt_ms / 1e3)
    options = Options(args.stripes, args.chunk_kib * KIB)
    terms, tls = transport_options.terms(args, Limits()), transport_options.tls(args, listening=False)
    try:
        with Client((host.strip("[]"), int(port)), terms, options, link, tls) as client:
            report = hand_over(client, shown(Path(args.directory).resolve().name), layers, args.deadline_s)
            print(json.dumps(dataclasses.asdict(report)) if args.json else describe(report, client))
    except TransportError as error:
        print(f"prfaas send: {error.code}: {error}", file=sys.stderr)
        return 1
    return 0


def shown(name: str) -> str:
    """A file's name as text that can travel: its bytes need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def read_layers(directory: Path) -> list[tuple[LayerSpec, memoryview]]:
    """The files, mapped into memory: their pages are sent as they are."""
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise UserError(f"{directory} holds no .safetensors files")
    return [read_layer(path) for path in paths]


def read_layer(path: Path) -> tuple[LayerSpec, memoryview]:
    try:
        with path.open("rb") as file:
            return parse_image(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a safetensors file: {error}") from None


def hand_over(client: Client, name: str, layers: list[tuple[LayerSpec, memoryview]], deadline_s: float) -> Report:
    manifest = Manifest(0, tuple(spec for spec, _ in layers))
    with client.offer(name, manifest, deadline_s=deadline_s) as transfer:
        for i, (_, body) in enumerate(tqdm(layers, desc="layers", unit="layer", delay=1, file=sys.stderr)):
            transfer.send_layer(i, [body])
        return transfer.finish()


def describe(report: Report, client: Client) -> str:
    rate = report.bytes_sent * BITS_PER_BYTE / report.seconds / M
    lines = [
        f"applied: {report.bytes_sent:,} bytes in {report.seconds:.2f} s ({rate:,.0f} Mbit/s), "
        f"attempts {report.attempts}, damaged chunks sent again {report.retries}"
    ]
    if seen := client.link_report:
        queueing = "unknown" if seen.queueing_s is None else f"{seen.queueing_s * 1e3:.1f} ms"
        resent = "unknown" if seen.retransmitted_share is None else f"{seen.retransmitted_share:.2%}"
        lines.append(f"link at the end: limited by {seen.limited_by}, queueing {queueing}, retransmitted {resent}")
    return "\n".join(lines)
