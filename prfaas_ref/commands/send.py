"""Hand a directory of .safetensors files over to a `prfaas receive`: a lesson for two terminals.

  terminal 1   prfaas receive --out inbox
  terminal 2   prfaas send captured 127.0.0.1:7747

Every file is one layer, in the order of the names: a hand-off that was captured before, or the shards of a model. The
two ends greet (HELLO), the sender offers a manifest of all tensors (OFFER), the receiver accepts it, and the chunks of
each layer travel over `--stripes` connections that share one queue (DATA, LAYER_END). DONE carries the root digest;
only APPLIED, which comes when the files lie in the inbox, is success. Try it with `--link-mbps 100 --rtt-ms 40`, and
stop the receiver in the middle: the sender ends with a typed error, within its deadline.
"""

import argparse
import dataclasses
import json
import mmap
import sys
from pathlib import Path

from tqdm import tqdm

from prfaas_ref.commands import transport_options
from prfaas_ref.errors import UserError
from prfaas_ref.transport import Client, EmulatedLink, LayerSpec, Limits, Manifest, Options, Report
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.image import parse_image
from prfaas_ref.units import BITS_PER_BYTE, KIB, M, mbps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where the .safetensors files are, one per layer")
    parser.add_argument("address", metavar="HOST:PORT", help="of the receiver")
    parser.add_argument("--stripes", type=int, default=2, help="connections (2)")
    parser.add_argument("--chunk-kib", type=int, default=1024, help="bytes are sent and checked in chunks (1024)")
    parser.add_argument("--deadline-s", type=float, default=60.0, help="applied by then, or failed (60)")
    parser.add_argument("--link-mbps", type=float, help="emulate a link of this rate")
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="and of this round-trip time")
    transport_options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    host, _, port = args.address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{args.address!r} is not HOST:PORT")
    if not (1 <= args.stripes <= 64 and args.chunk_kib >= 1 and args.deadline_s > 0):
        raise UserError("--stripes is 1 to 64, --chunk-kib at least 1, --deadline-s above 0")
    if (args.link_mbps is not None and args.link_mbps <= 0) or args.rtt_ms < 0:
        raise UserError("--link-mbps is above 0 and --rtt-ms not negative")
    layers = read_layers(Path(args.directory))
    link = EmulatedLink(mbps(args.link_mbps) if args.link_mbps else None, args.rtt_ms / 1e3)
    options = Options(args.stripes, args.chunk_kib * KIB)
    terms, tls = transport_options.terms(args, Limits()), transport_options.tls(args, listening=False)
    try:
        with Client((host.strip("[]"), int(port)), terms, options, link, tls) as client:
            report = hand_over(client, Path(args.directory).resolve().name, layers, args.deadline_s)
            print(json.dumps(dataclasses.asdict(report)) if args.json else describe(report, client))
    except TransportError as error:
        print(f"prfaas send: {error.code}: {error}", file=sys.stderr)
        return 1
    return 0


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
