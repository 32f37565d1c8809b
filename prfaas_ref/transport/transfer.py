"""One hand-off at its sender, from the offer to APPLIED: what a prefill engine holds while it computes layer by layer.

A supervisor thread mends broken connections: while the deadline and the attempts last, it opens a new session and
offers the next attempt, of which only the holes travel. Every call ends: in success, or in a typed error.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prfaas_ref.transport.congestion import SAMPLE_S, link_report
from prfaas_ref.transport.errors import Aborted, DeadlineExceeded, TransportError
from prfaas_ref.transport.manifest import Manifest
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.sender import ENDED, Sender
from prfaas_ref.transport.stripes import Stripes
from prfaas_ref.transport.transitions import S

if TYPE_CHECKING:
    from prfaas_ref.transport.client import Client


@dataclass(frozen=True)
class Report:
    """What an applied transfer cost. Bytes are payload, of all attempts."""

    transfer_id: str
    bytes_sent: int
    seconds: float
    attempts: int
    retries: int  # chunks that arrived damaged and were sent again
    have_tokens: int
    exact: bool  # False when a numeric fingerprint differed, and both sides allowed it


class Transfer:
    """Made by `Client.offer`. The views given to it must stay as they are until `finish` or `abort` has ended.

    As a context manager it aborts when the block fails: an exception in the engine becomes a message to the receiver.
    """

    def __init__(self, client: "Client", outgoing: Outgoing) -> None:
        self._client, self._outgoing = client, outgoing
        self._changed, self._clock = client.changed, client.clock
        self._began = self._clock()
        self._deadline = self._began + outgoing.offer.deadline_s
        self._session: Stripes | None = None
        self._error: TransportError | None = None
        self._attempt = self._past_bytes = self._past_retries = 0
        self._attach(0)
        self._supervisor = threading.Thread(target=self._supervise, name="prfaas-client-supervisor", daemon=True)
        self._supervisor.start()
        self._wait(lambda: outgoing.increment is not None or self._ended())

    def __enter__(self) -> "Transfer":
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if not self._over():
            self.abort(repr(error) if error else "the sender left before it had finished")

    @property
    def have_tokens(self) -> int:
        """How many tokens' rows the receiver holds already."""
        return self._outgoing.have_tokens

    @property
    def exact(self) -> bool:
        """False when a numeric fingerprint differs and both sides allow it: the contract does not cover the result."""
        return self._core.exact

    @property
    def increment(self) -> Manifest:
        """What travels: views given to `send_layer` follow it."""
        assert self._outgoing.increment is not None
        return self._outgoing.increment

    def send_layer(self, layer: int, views: Sequence[memoryview], ready_bytes: int | None = None) -> None:
        """Send a layer's tensors: contiguous views whose bytes, one after another, are those of `increment`.

        Blocks while more than `queue_bytes` wait for the line: back pressure on compute. With `ready_bytes`, only so
        many are final yet; `advance_layer` says when more are. Raises ValueError for bytes that do not fit the
        manifest, and the transfer's own error if it has failed.
        """
        self._wait(lambda: self._outgoing.queued_bytes <= self._client.options.queue_bytes)
        with self._changed:
            self._outgoing.add(layer, views, ready_bytes)
            self._changed.notify_all()

    def advance_layer(self, layer: int, ready_bytes: int) -> None:
        """The first `ready_bytes` of a layer are final."""
        self._wait(lambda: self._outgoing.queued_bytes <= self._client.options.queue_bytes)
        with self._changed:
            self._outgoing.advance(layer, ready_bytes)
            self._changed.notify_all()

    def finish(self) -> Report:
        """Returns when the receiver has applied the whole of it. Raises a TransportError otherwise, by the deadline."""
        with self._changed:
            if not self._ended() and (missing := self._outgoing.unready()):
                raise ValueError(f"layers {missing} were never wholly sent")
        self._wait(self._ended)
        return Report(
            self._outgoing.offer.transfer_id, self._past_bytes + self._core.sent_bytes, self._clock() - self._began,
            self._attempt + 1, self._past_retries + self._core.retries, self.have_tokens, self._core.exact,
        )  # fmt: skip

    def abort(self, reason: str) -> None:
        """Take it back. Returns when the receiver has said that no write can land any more, or after `abort_s`."""
        with self._changed:
            if self._over():
                return
            self._error = Aborted(reason)
            self._core.abort(reason)
            self._changed.notify_all()
            end = self._clock() + self._client.options.abort_s
            while not self._ended() and self._core.lost is None and self._clock() < end:
                self._changed.wait(end - self._clock())
        self._let_go(Aborted(reason))

    # how it is driven

    @property
    def _core(self) -> Sender:
        assert self._session is not None
        return self._session.core

    def _ended(self) -> bool:
        return self._core.outgoing is self._outgoing and self._core.state in ENDED

    def _over(self) -> bool:
        return self._error is not None or self._ended()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until `done`. Raises what the transfer failed with, and DeadlineExceeded at the deadline."""
        with self._changed:
            while not (self._over() or done()) and self._clock() < self._deadline:
                self._changed.wait(self._deadline - self._clock())
            if self._error is None and self._ended() and self._core.state is not S.APPLIED:
                self._error = self._core.error
            if self._error is None and not done():
                self._error = DeadlineExceeded(f"not applied within {self._outgoing.offer.deadline_s:.1f} s")
                self._changed.notify_all()
        if self._error is not None:
            if self._core.state is not S.REFUSED:
                self._let_go(self._error)
            raise self._error

    def _let_go(self, error: TransportError) -> None:
        """End the session, and wait until no thread of it reads the user's pages."""
        assert self._session is not None
        self._session.end(error)
        self._session.join()

    def _attach(self, attempt: int) -> None:
        """Offer this attempt on a live session. Raises what the connection met."""
        left = self._deadline - self._clock()
        session = self._client.connect(left)
        with self._changed:
            if self._session is not None and self._over():
                return
            self._outgoing.offer = replace(self._outgoing.offer, deadline_s=max(left, 0.0))
            session.core.offer(self._outgoing, attempt)
            if self._session is not None:
                self._past_bytes += self._core.sent_bytes
                self._past_retries += self._core.retries
            self._session, self._attempt = session, attempt
            self._changed.notify_all()

    def _supervise(self) -> None:
        attempt, options = 0, self._client.options
        while True:
            with self._changed:
                self._watch()
                if self._over():
                    return None
                attempt += 1
                lost = self._core.lost or DeadlineExceeded("the deadline passed")
                if not lost.resumable or attempt >= options.attempts:
                    return self._fail(lost)
                self._sleep_until(self._clock() + options.backoff_s * 2**attempt, self._over)
            try:
                self._attach(attempt)
            except TransportError as error:
                if not error.resumable:
                    return self._fail(error)

    def _watch(self) -> None:
        """Until it is over, its session is lost or its deadline has come: how does the link fare?"""
        before = self._session and self._session.sample()
        while not self._over() and self._core.lost is None and self._clock() < self._deadline:
            next_at = min(self._clock() + SAMPLE_S, self._deadline)
            self._sleep_until(next_at, lambda: self._over() or self._core.lost is not None)
            if before and self._session:
                now = self._session.sample()
                self._client.link_report, before = link_report(before, now), now

    def _sleep_until(self, when: float, done: Callable[[], bool]) -> None:
        while not done() and self._clock() < when:
            self._changed.wait(when - self._clock())

    def _fail(self, error: TransportError) -> None:
        """Nobody may be waiting for it: the session ends here as well, so that no page is read after the deadline."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        if self._session:
            self._session.end(error)
