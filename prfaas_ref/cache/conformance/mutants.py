"""Our pool with one fault planted, and the machine set on it.

A conformance test that has never failed says little. Every mutant must be killed by a promise that breaks (an
AssertionError that says which), not by a crash: a survivor is a hole in the machine, a crash a promise that nobody
wrote down.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import ModuleType

from prfaas_ref.cache.conformance.faults import Fault, read_faults, source
from prfaas_ref.cache.conformance.machine import examine
from prfaas_ref.cache.conformance.ours import OurAdapter

SOURCES = ("keys", "entries", "block_ids", "eviction", "tree", "allocation", "transfer", "invariants", "index")
MUTANT_STORIES = 400  # most mutants die within ten
_numbers = count()


@dataclass(frozen=True)
class Verdict:
    """How a mutant ended: `killed` by a broken promise; `reason` is that promise, the crash, or nothing."""

    fault: Fault
    killed: bool
    reason: str


def mutate(fault: Fault) -> ModuleType:
    """A private copy of the index and all it imports, with `fault` in it. Ours is untouched."""
    package = f"prfaas_ref_cache_mutant_{next(_numbers)}"
    for name in SOURCES:
        text = fault.plant(source(name)) if name == fault.module else source(name)
        text = text.replace("prfaas_ref.cache.", f"{package}.")
        module = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
        exec(compile(text, f"{package}/{name}.py", "exec"), module.__dict__)
    return sys.modules[f"{package}.index"]


def forget(module: ModuleType) -> None:
    """Unload what `mutate` loaded."""
    package = module.__name__.rpartition(".")[0]
    for name in SOURCES:
        del sys.modules[f"{package}.{name}"]


def try_fault(fault: Fault, stories: int) -> Verdict:
    """Set the machine on one mutant, for `stories` stories at most."""
    module = mutate(fault)
    try:
        examine(partial(OurAdapter, module=module), stories=stories, shrink=False)
    except AssertionError as broken:
        return Verdict(fault, True, str(broken))
    except Exception as crash:  # a mutant may do anything
        return Verdict(fault, False, f"crash: {crash!r}")
    finally:
        forget(module)
    return Verdict(fault, False, "survived")


def try_all(stories: int = MUTANT_STORIES, on_verdict: Callable[[Verdict], None] | None = None) -> dict[str, object]:
    """Every mutant. Returns the report that the command prints: counts, survivors by story, seconds."""
    start_s = time.monotonic()
    verdicts = []
    for fault in read_faults():
        verdicts.append(try_fault(fault, stories))
        if on_verdict:
            on_verdict(verdicts[-1])
    return {
        "mutants": len(verdicts),
        "killed": sum(verdict.killed for verdict in verdicts),
        "survivors": [verdict.fault.story for verdict in verdicts if not verdict.killed],
        "seconds": round(time.monotonic() - start_s, 1),
        "verdicts": {verdict.fault.story: verdict.reason for verdict in verdicts},
    }
