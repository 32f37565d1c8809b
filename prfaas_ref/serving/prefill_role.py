"""A prefill worker's work: compute a prompt, send its cache to the decode worker, report the first token once it is
applied.

    prefill   queue a prompt; prompts are computed one after another
    release   forget it: not yet computed, it is dropped; on its way, its hand-off is aborted

Computing goes on while earlier hand-offs are still on the wire: each has a thread of its own, and reads blocks that the
pool keeps for it until it has settled.
"""

import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable

from prfaas_ref.cache.transfer import Transfer as HeldBlocks
from prfaas_ref.cache.tree import OutOfBlocks
from prfaas_ref.model.generation import logits_bytes
from prfaas_ref.serving.control import LOOPBACK, ControlPort, Message
from prfaas_ref.serving.engine import Engine, Prefilled
from prfaas_ref.serving.hand_off import layer_views, manifest, pack_live
from prfaas_ref.transport.client import Client
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.transfer import Transfer


class PrefillRole:
    """link: what this worker's sends have to cross, shared by all of them."""

    def __init__(self, engine: Engine, control: ControlPort, terms: Terms, link: EmulatedLink) -> None:
        self.engine, self.control, self.terms, self.link = engine, control, terms, link
        self._waiting: deque[Message] = deque()
        self._sending: dict[str, Transfer] = {}
        self._threads: set[threading.Thread] = set()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def handle(self, message: Message) -> None:
        if message["type"] == "prefill":
            message["deadline"] = time.monotonic() + message["deadline_s"]
            self._waiting.append(message)
        elif message["type"] == "release":
            self._waiting = deque(job for job in self._waiting if job["key"] != message["key"])
            if transfer := self._sending.get(message["key"]):
                self._spawn(transfer.abort, "the front end let the request go")

    def step(self) -> None:
        job = self._waiting.popleft()
        try:
            done = self.engine.prefill(job["tokens"])
        except (OutOfBlocks, FloatingPointError) as error:
            self._fail(job["key"], error)
            return
        try:
            live = pack_live(self.engine, done.state)
            with self.engine.lock:
                held = self.engine.pool.begin_transfer(done.alloc, len(job["tokens"]), live)
        except OutOfBlocks as error:
            self._fail(job["key"], error)
            return
        finally:
            self.engine.free(done.alloc)
        self._spawn(self._send, job, done, held)

    def idle(self) -> None:
        self._threads = {thread for thread in self._threads if thread.is_alive()}

    def close(self) -> None:
        """End all hand-offs under way."""
        for transfer in list(self._sending.values()):
            transfer.abort("the worker is closing")
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: Callable[..., object], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=target.__name__, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _send(self, job: Message, done: Prefilled, held: HeldBlocks) -> None:
        """In a thread of its own: the hand-off of one prompt, to APPLIED or to a typed error."""
        key, n_tokens = job["key"], len(job["tokens"])
        transfers = self.engine.pool.index.transfers
        try:
            deadline_s = max(0.001, job["deadline"] - time.monotonic())
            offered = manifest(self.engine, n_tokens)
            with (
                Client((LOOPBACK, job["to"]["port"]), self.terms, link=self.link) as client,
                client.offer(key, offered, deadline_s=deadline_s) as transfer,
            ):
                self._sending[key] = transfer
                for layer in range(len(offered.layers)):
                    views = layer_views(self.engine, held, layer, transfer.have_tokens, n_tokens, time.monotonic())
                    transfer.send_layer(layer, views)
                report = transfer.finish()
        except TransportError as error:
            with self.engine.lock:
                transfers.abort(held)
            self._fail(key, error)
        else:
            with self.engine.lock:
                transfers.ack(held)
            logits = b64encode(logits_bytes(done.logits)).decode()
            self.control.send(
                {
                    "type": "prefilled",
                    "key": key,
                    "token": done.token,
                    "logits": logits,
                    "cached_tokens": done.cached_tokens,
                    "bytes_sent": report.bytes_sent,
                    "send_s": report.seconds,
                }
            )
        finally:
            self._sending.pop(key, None)
            with self.engine.lock:
                transfers.settle(held)

    def _fail(self, key: str, error: Exception) -> None:
        self.control.send({"type": "failed", "key": key, "error": f"{type(error).__name__}: {error}"})
