"""Measure the hand-off transport against plain sockets, on this machine, in one run.

Two processes on the loopback move the same gibibyte of bfloat16 in 16 layers from one set of pages to another:

  raw          sendall and recv_into over 1, 2 and 4 connections, one thread each: what the machine can do
  ours         the whole protocol over 2 connections in chunks of 4 MiB, with no checksum, crc32, and xxh3 if installed
  safetensors  save a file, send it, write it, load it: what a hand-off costs without a protocol
  link         an emulated 1 Gbit/s: which share of the rate arrives, without and with 40 ms of round trip
  pipeline     layers sent as they are computed (compute is a timed wait), against computed first and sent then

All of them are interleaved and repeated; figures are medians. Two cores that also check every byte at both ends cannot
keep up with two that only move them: with zlib's crc32 at about 4 GB/s a ratio of about 0.4 is all there is.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from typing import Any

from tqdm import tqdm

from prfaas_ref.commands.bench_transport_ends import LAYERS, Bench, receive
from prfaas_ref.errors import UserError
from prfaas_ref.transport import Check, EmulatedLink, supported
from prfaas_ref.units import GIB, MIB, G, seconds_on_wire

LINK_BITS_PER_S = 1 * G
TARGETS = {"none": 0.8, "xxh3": 0.62, "crc32": 0.30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=1024, help="size of a hand-off in MiB, a multiple of 16 (1024)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each measurement is taken (3)")
    parser.add_argument("--json", action="store_true", help="print JSON alone")


def run(args: argparse.Namespace) -> int:
    if args.mib < LAYERS or args.mib % LAYERS or args.rounds < 1:
        raise UserError("--mib is a positive multiple of 16, --rounds at least 1")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    peer = context.Process(target=receive, args=(theirs, args.mib * MIB), daemon=True)
    peer.start()
    try:
        result = measure(Bench(ours, args.mib * MIB), args.rounds)
    finally:
        ours.close()
        peer.join()
    print(json.dumps(result) if args.json else table(result))
    return 0


def measure(bench: Bench, rounds: int) -> dict[str, Any]:
    checks = ["none", "crc32", *(["xxh3"] if Check.XXH3 in supported() else [])]
    best, small = checks[-1], min(bench.n_bytes, 256 * MIB)
    seen: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seen.setdefault(name, []).append(value)
        progress.update()

    steps = rounds * (3 + len(checks) + 1 + 2) + 2
    with tqdm(total=steps, desc="bench transport", file=sys.stderr, disable=None) as progress:
        for _ in range(rounds):
            for connections in (1, 2, 4):
                note(f"raw {connections}", bench.raw_gb_s(connections))
            for check in checks:
                note(check, bench.n_bytes / bench.ours(check, bench.n_bytes)[0] / G)
            note("safetensors", bench.safetensors_gb_s())
            for rtt_s in (0.0, 0.04):
                _, bits_per_s = bench.ours(best, small, EmulatedLink(LINK_BITS_PER_S, rtt_s))
                note(f"link {rtt_s}", bits_per_s / LINK_BITS_PER_S)
        pipe_bytes = min(bench.n_bytes, 128 * MIB)
        layer_s = seconds_on_wire(pipe_bytes / LAYERS, LINK_BITS_PER_S)
        note("pipelined", bench.ours(best, pipe_bytes, EmulatedLink(LINK_BITS_PER_S), layer_s)[0])
        note("sent", bench.ours(best, pipe_bytes, EmulatedLink(LINK_BITS_PER_S))[0])
    middle = {name: statistics.median(values) for name, values in seen.items()}
    ratio = {c: statistics.median(a / b for a, b in zip(seen[c], seen["raw 2"], strict=True)) for c in checks}
    compute_s = LAYERS * layer_s
    return {
        "raw_gb_s": {str(n): middle[f"raw {n}"] for n in (1, 2, 4)},
        "ours": {"none": None, "crc32": None, "xxh3": None} | {check: middle[check] for check in checks},
        "ratio": {"none": None, "crc32": None, "xxh3": None} | ratio,
        "safetensors_copy_gb_s": middle["safetensors"],
        "link_1g": {"share": middle["link 0.0"], "share_40ms": middle["link 0.04"]},
        "pipeline": {
            "compute_s": compute_s,
            "serial_s": compute_s + middle["sent"],
            "pipelined_s": middle["pipelined"],
            "exposed_s": middle["pipelined"] - compute_s,
            "layer_s": layer_s,
        },
        "gib": bench.n_bytes / GIB,
    }


def table(result: dict[str, Any]) -> str:
    """The figures beside their targets."""
    lines = [f"{result['gib']:.2f} GiB in {LAYERS} layers, two processes, {os.cpu_count()} cores; GB/s, medians"]
    lines += [f"  raw sockets, {n} connection(s)   {gb_s:6.2f}" for n, gb_s in result["raw_gb_s"].items()]
    for check, gb_s in result["ours"].items():
        if gb_s is None:
            lines.append(f"  ours, {check}: not measured, it needs `pip install xxhash`")
            continue
        ratio = f"{result['ratio'][check]:.2f} of raw with 2 connections, target {TARGETS[check]:.2f}"
        lines.append(f"  ours, {check:<6} {gb_s:20.2f}   {ratio}")
    lines.append("    (two cores that also check 4.2 GB/s of crc32 each cannot pass about 0.4)")
    copy, fastest = result["safetensors_copy_gb_s"], max(v for v in result["ours"].values() if v)
    lines.append(f"  safetensors save-send-load   {copy:6.2f}   ours is {fastest / copy:.1f} times as fast, target 6")
    share, delayed = result["link_1g"]["share"], result["link_1g"]["share_40ms"]
    lines.append(f"1 Gbit/s link (emulated): {share:.3f} of the rate, target 0.97")
    lines.append(f"  with 40 ms of round trip: {delayed:.3f}, target {share * 0.98:.3f}")
    p = result["pipeline"]
    lines.append(f"pipeline (compute is a timed wait): {p['pipelined_s']:.2f} s; in series {p['serial_s']:.2f} s")
    exposed_ms, target_ms = p["exposed_s"] * 1e3, 1.3 * p["layer_s"] * 1e3
    lines.append(f"  exposed transfer {exposed_ms:.0f} ms, target {target_ms:.0f} ms (1.3 layers)")
    return "\n".join(lines)
