"""A small live deployment for tests: the demo's three workers, a front end, and the processes it leaves behind."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from prfaas_ref.model.generation import generate
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.request import Request
from prfaas_ref.scheduler.fleet import LinkView
from prfaas_ref.serving.demo import DemoOptions, cluster_specs, make_router
from prfaas_ref.serving.front_end import FrontEnd, Served

OPTIONS = DemoOptions("toy-random", "float32", 0, 16, 1000, 1000.0, 0.0, 60.0)


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=n)


@asynccontextmanager
async def deployment(
    model: HybridModel, logs: Path, cache_mb: int = 256, restarts: int = 2, stall_s: float = 5.0
) -> AsyncIterator[FrontEnd]:
    """Started, and afterwards held to have left no process, no open request and no charge behind."""
    specs = [replace(spec, options=(*spec.options, "--cache-mb", str(cache_mb))) for spec in cluster_specs(OPTIONS)]
    front = FrontEnd(specs, make_router(model, OPTIONS), LinkView(1e9), logs, restarts, stall_s)
    async with front:
        yield front
        assert not front._inboxes
        assert not front._involved
    for worker in front.workers:
        assert worker.process.returncode is not None
    front.router.ledger.check_invariants()


def worker_pid(front: FrontEnd, name: str) -> int:
    return int(front.supervisor.workers[name].hello["pid"])


async def serve(front: FrontEnd, name: str, tokens: list[int], max_tokens: int, **options: object) -> Served:
    now = asyncio.get_running_loop().time()
    return await front.serve(Request(name, now, len(tokens), max_tokens, tokens), **options)


def assert_exact(model: HybridModel, served: Served) -> None:
    request = served.record.request
    reference = generate(model, request.token_ids, request.max_tokens)
    assert served.record.status == "completed", served.record.reason
    assert (served.tokens, served.digest.hexdigest()) == (reference.tokens, reference.logits_sha256)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
