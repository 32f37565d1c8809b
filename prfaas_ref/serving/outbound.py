"""One hand-off as a prefill worker sends it: layer by layer, each as soon as it is computed (paper, section 3.5).

The computing thread says which layer is final and goes on with the next; a thread of this hand-off's own connects,
offers, and puts the layers on the wire. It reads the request's blocks where they lie, which the pool keeps until the
hand-off has settled. Success is the receiver's APPLIED, nothing earlier.
"""

import queue
import threading
import time
from base64 import b64encode
from collections.abc import Callable

from prfaas_ref.cache.transfer import Transfer as HeldBlocks
from prfaas_ref.model.generation import logits_bytes
from prfaas_ref.serving.control import LOOPBACK, Message, failed
from prfaas_ref.serving.engine import Engine, Prefilled
from prfaas_ref.serving.hand_off import layer_views, manifest
from prfaas_ref.transport.client import Client, Options
from prfaas_ref.transport.congestion import LinkReport
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.transfer import Transfer


class Outbound:
    """job: the front end's message. held: the pool's side of the hand-off. report: called once, with how it ended."""

    def __init__(
        self, job: Message, engine: Engine, held: HeldBlocks, terms: Terms, options: Options, link: EmulatedLink,
        report: Callable[[Message], None],
    ) -> None:  # fmt: skip
        self.job, self.engine, self.held, self.report = job, engine, held, report
        self._items: queue.SimpleQueue[int | Prefilled | Exception] = queue.SimpleQueue()
        self._transfer: Transfer | None = None
        self._client = Client((LOOPBACK, job["to_port"]), terms, options, link)
        self._thread = threading.Thread(target=self._run, name=f"hand-off {job['key']}", daemon=True)
        self._thread.start()

    # the computing thread's side

    def layer_done(self, layer: int) -> None:
        """This layer's pages and state are final."""
        self._items.put(layer)

    def computed(self, result: Prefilled | Exception) -> None:
        """The prompt is computed, or failed: the hand-off is then taken back."""
        self._items.put(result)

    def abort(self, reason: str) -> None:
        """Take the hand-off back. Returns within the transport's `abort_s`, whatever the peer does."""
        self._items.put(TransportError(reason))
        if self._transfer:
            self._transfer.abort(reason)

    @property
    def link_report(self) -> LinkReport | None:
        """How the link fared in the last 100 ms of this hand-off."""
        return self._client.link_report

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    # its own thread

    def _run(self) -> None:
        transfers = self.engine.pool.index.transfers
        try:
            event = self._send()
            with self.engine.lock:
                transfers.ack(self.held)
        except Exception as error:  # whatever it is, the request must end with it
            event = failed(self.job["key"], error)
            with self.engine.lock:
                transfers.abort(self.held)
        with self.engine.lock:
            transfers.settle(self.held)
        self.report(event)

    def _send(self) -> Message:
        key, n_tokens = self.job["key"], len(self.job["tokens"])
        deadline_s = max(0.001, self.job["deadline"] - time.monotonic())
        with (
            self._client as client,
            client.offer(key, manifest(self.engine, n_tokens), deadline_s=deadline_s) as transfer,
        ):
            self._transfer = transfer
            while isinstance(item := self._items.get(), int):
                views = layer_views(self.engine, self.held, item, transfer.have_tokens, n_tokens, time.monotonic())
                transfer.send_layer(item, views)
            if isinstance(item, Exception):
                raise item
            sent = transfer.finish()
        return {
            "type": "prefilled",
            "key": key,
            "token": item.token,
            "logits": b64encode(logits_bytes(item.logits)).decode(),
            "cached_tokens": item.cached_tokens,
            "bytes_sent": sent.bytes_sent,
        }
