"""The front end of a two-cluster deployment: routes a request, follows it through prefill and decode, tries again.

It holds no tensors and knows nothing of sockets or processes (supervisor.py does). A request's life is one attempt
after another, at most ATTEMPTS and within its deadline:

    route    the scheduler's Router chooses cluster and workers by what the pools have reported (the global KVCache
             manager's answer) and by load; what it charges is released stage by stage
    expect   the decode worker makes room and says so
    prefill  the prefill worker computes, hands the cache over meanwhile, and reports the first token when it is applied
    decode   the decode worker reports token after token

If a worker is lost on the way, the next attempt prefills the prompt *and* the tokens that already came: by the
exactness contract the continuation is the same to the byte, so nobody downstream can tell.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from prfaas_ref.cache.allocation import PrefixMatch
from prfaas_ref.cache.keys import Namespace
from prfaas_ref.cache.manager import GlobalKVCacheManager
from prfaas_ref.request import Request, RequestRecord
from prfaas_ref.scheduler.fleet import LinkView, WorkerView, muster
from prfaas_ref.scheduler.router import Decision, Refusal, Router
from prfaas_ref.serving.cache_reports import read_report
from prfaas_ref.serving.control import Message
from prfaas_ref.serving.supervisor import Supervisor, Worker, WorkerLost, WorkerSpec

ATTEMPTS = 3


class RequestFailed(Exception):
    """A worker could not do its part: the message begins with the typed error's name."""


@dataclass
class Served:
    """A request's record, its tokens, and the digest over the logits they were drawn from."""

    record: RequestRecord
    end_tokens: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    local_bytes: int = 0  # handed over inside the PD cluster, so not over the link
    digest: Any = field(default_factory=hashlib.sha256)
    on_token: Callable[[int], object] | None = None

    @property
    def finished(self) -> bool:
        """Whether the last token that it may have has come."""
        last = self.tokens[-1] if self.tokens else None
        return len(self.tokens) == self.record.request.max_tokens or last in self.end_tokens

    def add(self, event: Message) -> None:
        self.tokens.append(event["token"])
        self.digest.update(base64.b64decode(event["logits"]))
        if self.on_token:
            self.on_token(event["token"])


class FrontEnd:
    """`async with FrontEnd(...) as front: served = await front.serve(request)`."""

    def __init__(
        self,
        specs: list[WorkerSpec],
        router: Router,
        link: LinkView,
        logs: Path,
        restarts: int = 2,
        stall_s: float = 5.0,
    ) -> None:
        """logs: a directory for the workers' logs. restarts: how often each worker is started again. stall_s: silence
        after which a worker counts as lost."""
        self.router, self.link = router, link
        self.supervisor = Supervisor(specs, self._on_message, self._on_lost, logs, restarts, stall_s)
        self.caches = GlobalKVCacheManager()
        self._in_flight: set[str] = set()
        self._attempts = count(1)
        self._inboxes: dict[str, asyncio.Queue[tuple[Worker, Message]]] = {}
        self._involved: dict[str, set[Worker]] = {}

    async def __aenter__(self) -> "FrontEnd":
        await self.supervisor.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.supervisor.__aexit__(*error)

    @property
    def workers(self) -> list[Worker]:
        return list(self.supervisor.workers.values())

    async def serve(
        self, request: Request, deadline_s: float = 60.0, on_token: Callable[[int], object] | None = None
    ) -> Served:
        """Serve one request, with its token_ids. It ends once, within `deadline_s`, and its record says how: a worker's
        fault raises nothing here. on_token is called with each token as it comes. Raises ValueError for a request
        without token_ids, or whose id is in flight already.
        """
        if request.token_ids is None or request.request_id in self._in_flight:
            raise ValueError(f"request {request.request_id} has no token_ids, or its id is in flight already")
        hello = self.workers[0].hello
        served = Served(RequestRecord(request), tuple(hello["end_tokens"]), on_token=on_token)
        record, start = served.record, self._now()
        if not all(0 <= token < hello["vocab_size"] for token in request.token_ids):
            record.end("failed", start, f"InvalidToken: token ids are 0 to {hello['vocab_size'] - 1}")
            return served
        self._in_flight.add(request.request_id)
        try:
            async with asyncio.timeout(deadline_s):
                while record.in_flight:
                    record.attempts += 1
                    try:
                        await self._attempt(served, start, deadline_s)
                    except (RequestFailed, WorkerLost) as error:
                        if record.attempts == ATTEMPTS and not served.finished:
                            record.end("failed", self._now(), f"{error} (attempt {ATTEMPTS} of {ATTEMPTS})")
                    if record.in_flight and served.finished:
                        record.end("completed", self._now())
        except TimeoutError:
            record.end("failed", self._now(), f"DeadlineExceeded: not finished within {deadline_s:g} s")
        finally:
            self._in_flight.remove(request.request_id)
        return served

    async def _attempt(self, served: Served, start: float, deadline_s: float) -> None:
        request = served.record.request
        tokens = [*(request.token_ids or ()), *served.tokens]
        rest = Request(request.request_id, start, len(tokens), request.max_tokens - len(served.tokens), tokens)
        key = f"{request.request_id}.{next(self._attempts)}"
        self._inboxes[key], self._involved[key] = asyncio.Queue(), set()
        try:
            decision = await self._route(rest)
            await self._run(key, rest, decision, served, start, deadline_s - (self._now() - start))
        finally:
            self.router.release_all(rest.request_id)
            for worker in self._involved.pop(key):
                if worker.active:
                    worker.send({"type": "release", "key": key})
            del self._inboxes[key]

    async def _route(self, request: Request) -> Decision:
        """A decision on what is known now. Where no worker can do it, waits for one that is on its way up."""
        while True:
            seen = self.supervisor.changes
            decision = self.router.route(request, muster(self._views(request), self.link))
            if not isinstance(decision, Refusal):
                return decision
            if not self.supervisor.starting:
                raise RequestFailed(f"NoWorker: {decision.reason}, and none is on its way")
            await self.supervisor.wait_for_change(seen)

    def _views(self, request: Request) -> list[WorkerView]:
        """The active workers, and how much of the prompt each holds, as far as they have told."""
        views, held = [], self.caches.lookup(self._namespace(), request.token_ids or ())
        for worker in (w for w in self.workers if w.active):
            spec, match = worker.spec, held.get(worker.cache_name, PrefixMatch(0, 0))
            account = self.router.ledger.account(spec.name, worker.incarnation)
            view = WorkerView(spec.name, spec.cluster, spec.role, True, worker.incarnation, load=account)
            view.matched_tokens, view.kv_tokens = match.usable_tokens, match.kv_tokens
            views.append(view)
        return views

    def _namespace(self) -> Namespace:
        hello = self.workers[0].hello
        return Namespace(hello["fingerprint"], hello["block_size"])

    async def _run(
        self, key: str, request: Request, decision: Decision, served: Served, start: float, deadline_s: float
    ) -> None:
        record = served.record
        prefiller, decoder = self._worker(decision.prefill_worker), self._worker(decision.decode_worker)
        self._involved[key] = {prefiller, decoder}
        common = {"key": key, "tokens": request.token_ids, "deadline_s": deadline_s}
        decoder.send({"type": "expect", "max_tokens": request.max_tokens, **common})
        await self._next(key, "expecting")
        prefiller.send({"type": "prefill", "to_port": decoder.hello["data_port"], **common})
        _, event = await self._next(key, "prefilled")
        self._involved[key].discard(prefiller)
        if record.ttft_s is None:
            record.ttft_s = self._now() - start
            record.route, record.cached_tokens = decision.route, event["cached_tokens"]
        if decision.route == "prfaas":
            record.link_bytes += event["bytes_sent"]
        else:
            served.local_bytes += event["bytes_sent"]
        for stage in ("prefix", "prefill", "egress"):
            self.router.release(request.request_id, stage)
        served.add(event)
        decoder.send({"type": "start", "key": key, "token": event["token"]})
        while True:
            _, event = await self._next(key, "token", "finished")
            if event["type"] == "finished":
                return
            served.add(event)

    async def _next(self, key: str, *types: str) -> tuple[Worker, Message]:
        """The next event of this attempt of one of these types. Raises RequestFailed or WorkerLost."""
        while True:
            worker, event = await self._inboxes[key].get()
            if event["type"] == "lost" and worker in self._involved[key]:
                raise WorkerLost(f"WorkerLost: {worker.spec.name} {event['why']}")
            if event["type"] == "failed":
                raise RequestFailed(event["error"])
            if event["type"] in types:
                return worker, event

    def _worker(self, name: str) -> Worker:
        return self.supervisor.workers[name]

    def _on_message(self, worker: Worker, message: Message) -> None:
        if message["type"] == "link":
            if worker.spec.cluster == "prfaas":
                self._on_link(message)
            return
        if message["type"] == "cache":
            self.caches.apply(read_report(worker.cache_name, worker.incarnation, message))
            return
        if inbox := self._inboxes.get(message.get("key", "")):  # else: an attempt that is over
            inbox.put_nowait((worker, message))

    def _on_link(self, report: Message) -> None:
        """A sample of the link between the clusters: a link that held its sender back showed what it can carry, unless
        nothing was confirmed yet: what is on its way shows nothing.
        """
        goodput = report["goodput_bits_per_s"]
        if report["limited_by"] in ("rate", "network"):
            if not goodput:
                return
            self.link.bits_per_s = goodput
        self.link.utilization = min(1.0, goodput / self.link.bits_per_s)

    def _on_lost(self, worker: Worker, why: str) -> None:
        self.caches.forget(worker.cache_name)
        for inbox in self._inboxes.values():
            inbox.put_nowait((worker, {"type": "lost", "why": why}))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
