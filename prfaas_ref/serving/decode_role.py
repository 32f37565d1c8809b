"""A decode worker's work: it makes room for a hand-off, takes it in, and decodes it in the running batch.

    expect   the front end announces a request: blocks for its pages, its live state and its answer are taken now
    (offer)  the prefill worker's hand-off lands in them, through the transport's threads; applied, it is published
    start    the front end passes the first token on: the request joins the batch
    release  whatever is left of it is let go; a hand-off that may still write keeps its blocks until it has settled

Runs in the worker's main thread but for the three `on_` methods, which the transport calls; `engine.lock` guards both.
"""

import sys
import time
from base64 import b64encode
from collections import deque
from dataclasses import dataclass

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.cache.transfer import Transfer
from prfaas_ref.cache.tree import OutOfBlocks
from prfaas_ref.model.generation import logits_bytes
from prfaas_ref.model.state import HybridState
from prfaas_ref.serving.cache_reports import send_report
from prfaas_ref.serving.control import ControlPort, Message, failed
from prfaas_ref.serving.decode_batch import DecodeBatch, Running
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.hand_off import layer_views, manifest
from prfaas_ref.serving.state_bytes import StateBytes
from prfaas_ref.transport.errors import Refused, TransportError
from prfaas_ref.transport.incoming import Destination, Incoming


@dataclass
class Expected:
    """A request on its way in."""

    transfer: Transfer
    alloc: Allocation
    layout: StateBytes
    max_tokens: int
    state: HybridState | None = None  # once the hand-off is applied


class DecodeRole:
    """Also the transport server's handler."""

    def __init__(self, engine: Engine, control: ControlPort) -> None:
        self.engine, self.control = engine, control
        self.batch = DecodeBatch(engine)
        self._waiting: deque[Message] = deque()
        self._expected: dict[str, Expected] = {}
        self._landing: dict[str, Transfer] = {}  # hand-offs whose bytes may be written at this moment

    # the front end's messages, and the batch: the main thread

    @property
    def busy(self) -> bool:
        return bool(self.batch.running)

    def handle(self, message: Message) -> None:
        {"expect": self._expect, "start": self._start, "release": self._release}[message["type"]](message)

    def step(self) -> None:
        steps = self.batch.step()
        send_report(self.engine, self.control)
        for step in steps:
            if step.logits is None:
                self.control.send({"type": "failed", "key": step.key, "error": step.error})
            else:
                logits = b64encode(logits_bytes(step.logits)).decode()
                self.control.send({"type": "token", "key": step.key, "token": step.token, "logits": logits})
                if step.finished:
                    self.control.send({"type": "finished", "key": step.key})

    def idle(self) -> None:
        """Between steps: end the leases of hand-offs that never came, and let in who waits for room."""
        with self.engine.lock:
            self.engine.pool.index.transfers.expire(time.monotonic())
        send_report(self.engine, self.control)
        self._admit()

    def released(self, key: str) -> None:
        """Nothing here is long enough to be stopped in the middle."""

    def _expect(self, message: Message) -> None:
        self._waiting.append({**message, "deadline": time.monotonic() + message["deadline_s"]})
        self._admit()

    def _admit(self) -> None:
        """Make room for those who wait, in order. One that does not fit waits for what others hold, if they do."""
        index = self.engine.pool.index
        while self._waiting:
            message = self._waiting[0]
            try:
                self._open(message)
            except (OutOfBlocks, ValueError) as error:
                if isinstance(error, OutOfBlocks) and index.allocations:
                    return
                self.control.send(failed(message["key"], error))
            else:
                self.control.send({"type": "expecting", "key": message["key"]})
            self._waiting.popleft()

    def _open(self, message: Message) -> None:
        engine, tokens, max_tokens = self.engine, message["tokens"], message["max_tokens"]
        layout = StateBytes.after(len(tokens), engine.model.config, engine.model.dtype)
        with engine.lock:
            transfer = engine.pool.open_receive(
                engine.namespace, tokens, layout.n_bytes, max_tokens, message["deadline"]
            )
            assert transfer.alloc is not None
            self._expected[message["key"]] = Expected(transfer, transfer.alloc, layout, max_tokens)

    def _start(self, message: Message) -> None:
        key = message["key"]
        expected = self._expected.get(key)
        if expected is None or expected.state is None:
            self.control.send({"type": "failed", "key": key, "error": "NotReceived: no hand-off was applied"})
            return
        del self._expected[key]
        running = Running(key, expected.alloc, message["token"], expected.max_tokens - 1)
        if not self.batch.join(running, expected.state):
            self.control.send({"type": "finished", "key": key})

    def _release(self, message: Message) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting["key"] != message["key"])
        expected = self._expected.pop(message["key"], None)
        if expected is None:
            self.batch.leave(message["key"])
            return
        with self.engine.lock:
            transfers = self.engine.pool.index.transfers
            transfers.abort(expected.transfer)
            if message["key"] not in self._landing:
                transfers.settle(expected.transfer)
            self.engine.pool.index.free(expected.alloc)

    # the transport's calls, each in a thread of its own

    def on_offer(self, incoming: Incoming) -> Destination:
        with self.engine.lock:
            expected = self._require(incoming)
            have, n_tokens = expected.alloc.cached_tokens, expected.layout.n_tokens
            views = [
                layer_views(self.engine, expected.transfer, i, have, n_tokens, time.monotonic())
                for i in range(len(self.engine.model.config.layer_kinds))
            ]
            self._landing[incoming.transfer_id] = expected.transfer
        return Destination(manifest(self.engine, n_tokens), views, have)

    def on_complete(self, incoming: Incoming) -> None:
        """Read the live state out of its transfer blocks, free those, and publish the pages."""
        engine = self.engine
        with engine.lock:
            expected = self._require(incoming)
            expected.transfer.require_lease(time.monotonic())
            live = engine.pool.blocks.read(expected.transfer.live_blocks, expected.layout.n_bytes)
            expected.state = expected.layout.unpack(live, engine.model)
            engine.pool.index.transfers.ack(expected.transfer)
            engine.pool.index.commit(expected.alloc, expected.layout.n_tokens)
            del self._landing[incoming.transfer_id]

    def on_closed(self, incoming: Incoming, error: TransportError) -> None:
        """It failed, and no write can land any more: its blocks are nobody's."""
        with self.engine.lock:
            transfer = self._landing.pop(incoming.transfer_id)
            self.engine.pool.index.transfers.abort(transfer)
            self.engine.pool.index.transfers.settle(transfer)
        print(f"hand-off {incoming.transfer_id} failed: {error}", file=sys.stderr, flush=True)

    def _require(self, incoming: Incoming) -> Expected:
        expected = self._expected.get(incoming.transfer_id)
        if expected is None:
            raise Refused("transfer_id", "one that the front end announced", incoming.transfer_id)
        return expected
