"""A prefill worker's work: compute prompts, one after another, and hand each to its decode worker while it is computed.

    prefill   queue a prompt; it waits while the pool has no room that will come
    release   forget it: one that waits is dropped, one that is computed stops at its next cell, a hand-off is aborted

Computing goes on while earlier hand-offs are still on the wire (see outbound.py). How the link fares meanwhile is
reported to the front end, whose router reads it.
"""

import threading
import time
from collections import deque

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.transfer import Transfer
from prfaas_ref.cache.tree import OutOfBlocks
from prfaas_ref.model.state import HybridState
from prfaas_ref.serving.cache_reports import send_report
from prfaas_ref.serving.control import ControlPort, Message, failed
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.outbound import Outbound
from prfaas_ref.serving.state_bytes import StateBytes
from prfaas_ref.transport.client import Options
from prfaas_ref.transport.congestion import SAMPLE_S
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.link import EmulatedLink


class Released(Exception):
    """The front end let the request go while it was computed."""


class PrefillRole:
    """link: what this worker's sends have to cross, shared by all of them."""

    def __init__(
        self, engine: Engine, control: ControlPort, terms: Terms, options: Options, link: EmulatedLink
    ) -> None:
        self.engine, self.control = engine, control
        self.terms, self.options, self.link = terms, options, link
        self._waiting: deque[Message] = deque()
        self._no_room = False  # for the first that waits, at the last try
        self._released: set[str] = set()
        self._outbound: dict[str, Outbound] = {}
        self._closing = threading.Event()
        threading.Thread(target=self._report_link, name="link report", daemon=True).start()

    @property
    def busy(self) -> bool:
        return bool(self._waiting) and not self._no_room

    def handle(self, message: Message) -> None:
        key = message["key"]
        if message["type"] == "prefill":
            self._waiting.append({**message, "deadline": time.monotonic() + message["deadline_s"]})
        elif message["type"] == "release":
            self._waiting = deque(job for job in self._waiting if job["key"] != key)
            if outbound := self._outbound.get(key):
                outbound.abort("the front end let the request go")
            self._released.discard(key)

    def released(self, key: str) -> None:
        self._released.add(key)

    def step(self) -> None:
        """Compute the next prompt; its hand-off is under way from the first layer on."""
        job = self._waiting.popleft()
        try:
            alloc, state, held = self._open(job)
        except (OutOfBlocks, ValueError) as error:
            if isinstance(error, OutOfBlocks) and self.engine.pool.index.allocations:  # which will be free some time
                self._waiting.appendleft(job)
                self._no_room = True
            else:
                self.control.send(failed(job["key"], error))
            return
        try:
            self._compute(job, alloc, state, held)
        finally:
            self.engine.free(alloc)

    def _open(self, job: Message) -> tuple[Allocation, HybridState, Transfer]:
        """Room for the prompt and for its live state, all or nothing. Raises OutOfBlocks."""
        engine = self.engine
        alloc, state = engine.begin(job["tokens"])
        try:
            live = StateBytes.after(len(job["tokens"]), engine.model.config, engine.model.dtype)
            with engine.lock:
                return alloc, state, engine.pool.begin_stream(alloc, live.n_bytes)
        except OutOfBlocks:
            engine.free(alloc)
            raise

    def _compute(self, job: Message, alloc: Allocation, state: HybridState, held: Transfer) -> None:
        engine, key, n_tokens = self.engine, job["key"], len(job["tokens"])
        layout = StateBytes.after(n_tokens, engine.model.config, engine.model.dtype)
        try:
            outbound = Outbound(job, engine, held, self.terms, self.options, self.link, self.control.send)
        except Exception as error:  # it has no thread: nobody else will let go of what is held
            with engine.lock:
                engine.pool.index.transfers.abort(held)
                engine.pool.index.transfers.settle(held)
            self.control.send(failed(key, error))
            return
        self._outbound[key] = outbound

        def on_cell(layer: int, position: int) -> None:
            if key in self._released:
                raise Released(key)
            if position == n_tokens:
                if memory := state.layers.get(layer):
                    with engine.lock:
                        if held.is_active:
                            engine.pool.write_live(held, layout.offsets[layer], layout.pack(layer, memory))
                outbound.layer_done(layer)

        try:
            done = engine.prefill(job["tokens"], alloc, state, on_cell)
            send_report(engine, self.control)
            outbound.computed(done)
        except Exception as error:  # the hand-off ends with it, and so does the request
            outbound.computed(error)

    def idle(self) -> None:
        send_report(self.engine, self.control)
        self._no_room = False
        for key in [key for key, outbound in self._outbound.items() if outbound.over]:
            del self._outbound[key]

    def _report_link(self) -> None:
        """In a thread of its own: what all hand-offs together got out of the link, sample by sample."""
        while not self._closing.wait(SAMPLE_S):
            reports = [o.link_report for o in list(self._outbound.values()) if not o.over]
            if known := [report for report in reports if report]:
                self.control.send(
                    {
                        "type": "link",
                        "goodput_bits_per_s": sum(report.goodput_bits_per_s for report in known),
                        "limited_by": known[0].limited_by,
                    }
                )

    def close(self) -> None:
        """End all hand-offs under way."""
        self._closing.set()
        for outbound in self._outbound.values():
            outbound.abort("the worker is closing")
        for outbound in self._outbound.values():
            outbound.join()
