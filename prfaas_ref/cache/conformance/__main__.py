"""python -m prfaas_ref.cache.conformance: examine a prefix-cache manager, or (--mutants) the examination itself.

Without options our own pool is examined. --adapter my_engine.cache_test:MyAdapter takes yours: a class (or a function
of a CacheConfig) that makes a CacheAdapter. Exit status 1 when a promise was broken or a mutant survived.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from dataclasses import asdict

from prfaas_ref.cache.conformance.machine import AdapterFactory, examine
from prfaas_ref.cache.conformance.mutants import MUTANT_STORIES, Verdict, try_all

STORIES = 400
OURS = "prfaas_ref.cache.conformance.ours:OurAdapter"


def load(name: str) -> AdapterFactory:
    """The adapter factory at `module:name`. Raises ValueError when there is none."""
    module, _, attribute = name.partition(":")
    try:
        factory: AdapterFactory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no adapter {name!r}, which must be module:name ({error})") from None
    return factory


def examination(factory: AdapterFactory, name: str, stories: int) -> dict[str, object]:
    """Examine one manager. Returns the report that the command prints."""
    start_s = time.monotonic()
    report: dict[str, object] = {"adapter": name, "stories": stories, "passed": False, "broken": None}
    broken: Exception | None = None
    try:
        report |= asdict(examine(factory, stories))
        report["passed"] = True
    except Exception as error:
        broken = error
    if broken is not None:
        broken = shorter_story(factory, stories) or broken
        report["broken"] = "".join(traceback.format_exception(broken, limit=-1, chain=False))
    report["seconds"] = round(time.monotonic() - start_s, 1)
    return report


def shorter_story(factory: AdapterFactory, stories: int) -> Exception | None:
    """A failure within fewer moves, if there is one: hypothesis shortens moves well, and their number less so."""
    for moves in (2, 4, 8, 16):
        try:
            examine(factory, stories, moves)
        except Exception as error:
            if getattr(error, "__notes__", None):  # it has a story: not the verdict on all of them
                return error
    return None


def show(verdict: Verdict) -> None:
    """One mutant's end, on stderr as it comes."""
    print(f"{'killed' if verdict.killed else 'ALIVE ':6}  {verdict.fault.story}: {verdict.reason}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m prfaas_ref.cache.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--adapter", default=OURS, help="module:name of the manager's adapter (default: our pool)")
    parser.add_argument("--stories", type=int, help="random lives to try (400); with --mutants, for each mutant")
    parser.add_argument("--mutants", action="store_true", help="plant each known fault in our pool and look for it")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    args = parser.parse_args()
    if args.stories is not None and args.stories < 1:
        parser.error("--stories must be at least 1")
    if args.mutants:
        report = try_all(args.stories or MUTANT_STORIES, None if args.json else show)
        good = not report["survivors"]
    else:
        try:
            factory = load(args.adapter)
        except ValueError as error:
            parser.error(str(error))
        report = examination(factory, args.adapter, args.stories or STORIES)
        good = bool(report["passed"])
    report.pop("verdicts", None)  # seen on stderr
    print(json.dumps(report, indent=2) if args.json else "\n".join(f"{key}: {value}" for key, value in report.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
