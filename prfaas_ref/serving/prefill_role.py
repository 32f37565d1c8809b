"""A prefill worker's work: compute prompts, one after another, and hand each to its decode worker while it is computed.

    prefill   queue a prompt
    release   forget it: not yet computed, it is dropped; on its way, its hand-off is aborted

Computing goes on while earlier hand-offs are still on the wire (see outbound.py). How the link fares meanwhile is
reported to the front end, whose router reads it.
"""

import threading
import time
from collections import deque

from prfaas_ref.cache.tree import OutOfBlocks
from prfaas_ref.serving.control import ControlPort, Message
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.outbound import Outbound, failed
from prfaas_ref.serving.state_bytes import StateBytes
from prfaas_ref.transport.client import Options
from prfaas_ref.transport.congestion import SAMPLE_S
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.link import EmulatedLink


class PrefillRole:
    """link: what this worker's sends have to cross, shared by all of them."""

    def __init__(
        self, engine: Engine, control: ControlPort, terms: Terms, options: Options, link: EmulatedLink
    ) -> None:
        self.engine, self.control = engine, control
        self.terms, self.options, self.link = terms, options, link
        self._waiting: deque[Message] = deque()
        self._outbound: dict[str, Outbound] = {}
        self._closing = threading.Event()
        threading.Thread(target=self._report_link, name="link report", daemon=True).start()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def handle(self, message: Message) -> None:
        if message["type"] == "prefill":
            message["deadline"] = time.monotonic() + message["deadline_s"]
            self._waiting.append(message)
        elif message["type"] == "release":
            self._waiting = deque(job for job in self._waiting if job["key"] != message["key"])
            if outbound := self._outbound.get(message["key"]):
                outbound.abort("the front end let the request go")

    def step(self) -> None:
        """Compute the next prompt; its hand-off is under way from the first layer on."""
        job = self._waiting.popleft()
        try:
            self._prefill(job)
        except OutOfBlocks as error:
            self.control.send(failed(job["key"], error))

    def _prefill(self, job: Message) -> None:
        engine, tokens = self.engine, job["tokens"]
        layout = StateBytes.after(len(tokens), engine.model.config, engine.model.dtype)
        alloc, state = engine.begin(tokens)
        try:
            with engine.lock:
                held = engine.pool.begin_stream(alloc, layout.n_bytes)
            outbound = Outbound(job, engine, held, self.terms, self.options, self.link, self.control.send)
            self._outbound[job["key"]] = outbound

            def on_layer(layer: int) -> None:
                if memory := state.layers.get(layer):
                    engine.pool.write_live(held, layout.offsets[layer], layout.pack(layer, memory))
                outbound.layer_done(layer)

            try:
                outbound.computed(engine.prefill(tokens, alloc, state, on_layer))
            except Exception as error:
                outbound.computed(error)
        finally:
            engine.free(alloc)

    def idle(self) -> None:
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
                        "queued_bytes": sum(report.queued_bytes for report in known),
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
