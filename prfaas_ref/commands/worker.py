"""Run one worker process of a deployment. `prfaas demo` starts three of these; this command starts one by hand.

It prints one JSON line (pid, control port, data port, fingerprint) and then waits for a front end to connect to its
control port. It listens on loopback only, and ends when its front end goes away; with --supervised also when its
standard input ends, which is how it never outlives whatever started it.

  prfaas worker --role decode  --cluster pd
  prfaas worker --role prefill --cluster prfaas --link-mbps 100 --rtt-ms 10
"""

import argparse
import os
import threading

from prfaas_ref.commands.options import add_model_options, not_negative, positive, start_runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", required=True, choices=("prefill", "decode"), help="what it does")
    parser.add_argument("--cluster", required=True, choices=("prfaas", "pd"), help="where it stands")
    parser.add_argument("--name", help="its name in logs and reports (cluster-role)")
    parser.add_argument(
        "--port", type=not_negative(int, 65535), default=0, metavar="P", help="control port (0: a free one)"
    )
    add_model_options(parser)
    parser.add_argument(
        "--cache-mb", type=positive(float), default=256.0, metavar="MIB", help="memory of the cache pool in MiB (256)"
    )
    parser.add_argument(
        "--link-mbps",
        type=positive(float),
        metavar="R",
        help="emulate a link of this rate for what it sends (no limit)",
    )
    parser.add_argument(
        "--rtt-ms", type=not_negative(float), default=0.0, metavar="MS", help="and of this round-trip time (0)"
    )
    parser.add_argument(
        "--stripes", type=positive(int, 16), default=2, metavar="N", help="connections of a hand-off that it sends (2)"
    )
    parser.add_argument("--supervised", action="store_true", help="end when standard input ends")


def run(args: argparse.Namespace) -> int:
    if args.supervised:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    start_runtime(args)
    from prfaas_ref.serving.worker import WorkerOptions, run_worker

    name = args.name or f"{args.cluster}-{args.role}"
    model, sending = (args.model, args.dtype, args.seed), (args.link_mbps, args.rtt_ms, args.stripes)
    run_worker(WorkerOptions(name, args.cluster, args.role, *model, args.port, args.cache_mb, *sending))
    return 0


def end_with_stdin() -> None:
    """End this process, whatever it is doing, when the other end of its standard input has gone."""
    while os.read(0, 4096):  # not sys.stdin: an interpreter that ends must not wait for its lock
        pass
    os._exit(0)
