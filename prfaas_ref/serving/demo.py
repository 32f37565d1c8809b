"""The demo: real prompts through two clusters of processes, each answer held against a single process.

    PrfaaS cluster                    PD cluster
    prefill worker  == the link ==>   decode worker
                                      prefill worker --/

Long uncached prompts are prefilled in the PrfaaS cluster and their caches cross a TCP link of limited rate; the others
are prefilled beside the decode worker. Everything is then computed again in this process alone, and compared by digest.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prfaas_ref.model.config import as_bytes
from prfaas_ref.model.generation import Generation, generate
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.sizes import bytes_per_token, fixed_bytes
from prfaas_ref.request import Request
from prfaas_ref.scheduler.fleet import Costs, LinkView
from prfaas_ref.scheduler.profile import KvSize, PrefillProfile
from prfaas_ref.scheduler.router import Router, Threshold
from prfaas_ref.serving.front_end import FrontEnd, Served
from prfaas_ref.serving.prompts import Prompt
from prfaas_ref.serving.supervisor import Worker, WorkerSpec
from prfaas_ref.units import mbps

CONCURRENT = 4


@dataclass(frozen=True)
class DemoOptions:
    """What the command line chose."""

    model: str
    dtype: str
    seed: int
    tokens: int
    threshold_tokens: int
    link_mbps: float
    rtt_ms: float
    deadline_s: float
    threads: int = 1


@dataclass(frozen=True)
class Verdict:
    """A served request beside the same request in a single process."""

    prompt: Prompt
    served: Served
    reference: Generation

    @property
    def exact(self) -> bool:
        """Same tokens, and the same bytes of every logits vector they were drawn from."""
        served, reference = self.served, self.reference
        complete = served.record.status == "completed"
        return complete and served.tokens == reference.tokens and self.logits_sha256 == reference.logits_sha256

    @property
    def logits_sha256(self) -> str:
        return str(self.served.digest.hexdigest())

    @property
    def answer(self) -> str:
        """The answer's bytes as text."""
        return as_bytes(self.served.tokens).decode("utf-8", "replace")

    def to_json(self) -> dict[str, Any]:
        record = self.served.record
        return {
            "id": self.prompt.request_id,
            "kind": self.prompt.kind,
            "status": record.status,
            "reason": record.reason,
            "attempts": record.attempts,
            "prompt_tokens": record.request.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "route": record.route,
            "bytes_sent": record.link_bytes,
            "bytes_sent_in_cluster": self.served.local_bytes,
            "ttft_s": record.ttft_s,
            "tokens": self.served.tokens,
            "answer": self.answer,
            "asked": self.prompt.asked.thing if self.prompt.asked else None,
            "told": self.prompt.asked.code if self.prompt.asked else None,
            "logits_sha256": self.logits_sha256,
            "exact": self.exact,
        }


def cluster_specs(options: DemoOptions) -> list[WorkerSpec]:
    """One prefill worker in the PrfaaS cluster, behind the link; one prefill and one decode worker in the PD
    cluster.
    """
    common = (
        "--model", options.model, "--dtype", options.dtype, "--seed", str(options.seed),
        "--threads", str(options.threads),
    )  # fmt: skip
    link = ("--link-mbps", str(options.link_mbps), "--rtt-ms", str(options.rtt_ms))
    return [
        WorkerSpec("prfaas-prefill-0", "prfaas", "prefill", (*common, *link)),
        WorkerSpec("pd-prefill-0", "pd", "prefill", common),
        WorkerSpec("pd-decode-0", "pd", "decode", common),
    ]


def make_router(model: HybridModel, options: DemoOptions) -> Router:
    """The paper's threshold rule. The cost profile only ranks workers, and there is one of a kind."""
    dtype = options.dtype
    kv = KvSize(bytes_per_token(model.config, dtype), fixed_bytes(model.config, dtype))
    profile = PrefillProfile(0.02, 2e-4)
    return Router(Threshold(options.threshold_tokens), Costs({"prfaas": profile, "pd": profile}, kv))


async def serve_all(
    front: FrontEnd, prompts: Sequence[Prompt], options: DemoOptions, on_done: Callable[[], object]
) -> list[Served]:
    """Serve every prompt, a few at a time and each after the one it depends on."""
    served: dict[str, Served] = {}
    over = {prompt.request_id: asyncio.Event() for prompt in prompts}
    room = asyncio.Semaphore(CONCURRENT)

    async def one(prompt: Prompt) -> Served:
        if prompt.depends_on:
            await over[prompt.depends_on].wait()
        tokens = list(prompt.text)
        if prompt.follows:
            first = served[prompt.follows]
            tokens = [*(first.record.request.token_ids or ()), *first.tokens, *tokens]
        async with room:
            request = Request(prompt.request_id, asyncio.get_running_loop().time(), len(tokens), options.tokens, tokens)
            served[prompt.request_id] = result = await front.serve(request, options.deadline_s)
        over[prompt.request_id].set()
        on_done()
        return result

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


async def serve(
    model: HybridModel, prompts: Sequence[Prompt], options: DemoOptions, logs: Path, on_done: Callable[[], object]
) -> tuple[list[Served], list[Worker]]:
    """Start the workers, serve everything, stop them. on_done is called once per prompt."""
    link = LinkView(mbps(options.link_mbps), rtt_s=options.rtt_ms / 1000)
    async with FrontEnd(cluster_specs(options), make_router(model, options), link, logs) as front:
        return await serve_all(front, prompts, options, on_done), front.workers


def check(
    model: HybridModel, prompts: Sequence[Prompt], served: Sequence[Served], on_done: Callable[[], object]
) -> list[Verdict]:
    """Compute every served prompt again, in this process alone. on_done is called once per prompt."""
    verdicts = []
    for prompt, result in zip(prompts, served, strict=True):
        request = result.record.request
        assert request.token_ids is not None
        verdicts.append(Verdict(prompt, result, generate(model, request.token_ids, request.max_tokens)))
        on_done()
    return verdicts
