"""Both roles of a worker in this process, with the real transport between them: requests come and go at any moment.

Whoever stays gets the tokens of a cold run alone; when all have gone, no block, transfer or hand-off is left.
"""

import queue
import random
import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.fingerprint import fingerprint
from prfaas_ref.model.generation import generate
from prfaas_ref.serving.control import Message
from prfaas_ref.serving.decode_role import DecodeRole
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.prefill_role import PrefillRole
from prfaas_ref.serving.worker import serve
from prfaas_ref.transport.checks import supported
from prfaas_ref.transport.client import Options
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.identity import Identity
from prfaas_ref.transport.limits import Limits
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.server import Server
from prfaas_ref.units import KIB, MIB

MODEL = load_model("toy-random", seed=3)
FINGERPRINT = fingerprint(MODEL)
STAGES = ("after expect", "before prefill", "in prefill", "after prefill", "in decode")
Life = Generator[None, None, None]


class Events(queue.SimpleQueue[Message]):
    """A control port whose front end is the test."""

    send = queue.SimpleQueue.put


def drained(events: Events) -> list[Message]:
    return [events.get() for _ in range(events.qsize())]


class Pair:
    """A prefill and a decode worker, their pools full of what others left (NaN), and the events of every request."""

    def __init__(self, cache_mb: int) -> None:
        self.engines = [Engine(MODEL, FINGERPRINT.digest, cache_mb * MIB) for _ in range(2)]
        for engine in self.engines:
            engine.pool.blocks.storage.fill_(255)
        self.control = Events()
        self.decode = DecodeRole(self.engines[0], self.control)
        self.server = Server(self.terms(), self.decode)
        link = EmulatedLink(400e6, 0.002)
        self.prefill = PrefillRole(self.engines[1], self.control, self.terms(), Options(2, 64 * KIB), link)
        self.inboxes: dict[str, list[Message]] = {}

    def terms(self) -> Terms:
        identity = Identity(secrets.token_hex(8), FINGERPRINT.layout, FINGERPRINT.numeric)
        return Terms(identity, Limits(), supported())

    def tick(self) -> None:
        """One round of both main loops."""
        for role in (self.prefill, self.decode):
            if role.busy:
                role.step()
            role.idle()
        for event in drained(self.control):
            self.inboxes.setdefault(event.get("key", ""), []).append(event)

    def release(self, key: str) -> None:
        for role in (self.prefill, self.decode):
            role.released(key)
            role.handle({"type": "release", "key": key})

    def event(self, key: str) -> Generator[None, None, Message]:
        while not self.inboxes.get(key):
            yield
        event = self.inboxes[key].pop(0)
        assert event["type"] != "failed", event
        return event

    def settled(self) -> bool:
        return not self.prefill._outbound and all(not e.pool.index.transfers.in_flight for e in self.engines)


@contextmanager
def pair(cache_mb: int = 16) -> Iterator[Pair]:
    """Both workers; afterwards their books must be empty but for what is cached."""
    workers = Pair(cache_mb)
    try:
        yield workers
        end = time.monotonic() + 20
        while not workers.settled() and time.monotonic() < end:
            workers.tick()
        assert workers.settled()
        for engine in workers.engines:
            engine.pool.index.check_invariants()
            assert not engine.pool.index.allocations
        assert not (workers.decode._expected or workers.decode._landing or workers.decode.batch.running)
    finally:
        workers.prefill.close()
        workers.server.close()


def life(workers: Pair, key: str, prompt: list[int], max_tokens: int, leave: str | None, wait: int) -> Life:
    """One request from expect to finished, or until it leaves; yields while it waits."""
    common: dict[str, Any] = {"key": key, "tokens": prompt, "deadline_s": 60.0}
    workers.decode.handle({"type": "expect", "max_tokens": max_tokens, **common})
    if leave == "after expect":
        return workers.release(key)
    yield from workers.event(key)
    workers.prefill.handle({"type": "prefill", "to_port": workers.server.address[1], **common})
    if leave == "before prefill":
        return workers.release(key)
    if leave == "in prefill":
        workers.prefill.released(key)  # the reading thread hears of it before the computing one
        for _ in range(wait):
            yield
        return workers.release(key)
    tokens = [(yield from workers.event(key))["token"]]
    if leave == "after prefill":
        return workers.release(key)
    workers.decode.handle({"type": "start", "key": key, "token": tokens[0]})
    while (event := (yield from workers.event(key)))["type"] == "token":
        tokens.append(event["token"])
        if leave == "in decode" and len(tokens) > wait:
            return workers.release(key)
    workers.release(key)
    assert tokens == generate(MODEL, prompt, max_tokens).tokens
    return None


def run(workers: Pair, lives: list[Life], at_once: int = 4) -> None:
    running: list[Life] = []
    end = time.monotonic() + 120
    while lives or running:
        assert time.monotonic() < end, "a request waits for ever"
        running += [lives.pop() for _ in range(min(len(lives), at_once - len(running)))]
        running = [one for one in running if next(one, one) is None]
        workers.tick()


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_leave_at_any_moment_harm_nobody_and_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [rng.choices(range(256), k=n) for n in (1, 64, 130, 700)]
    with pair() as workers:
        lives = []
        for i in range(24):
            leave = rng.choice([None, None, *STAGES])
            lives.append(
                life(workers, f"k{i}", rng.choice(prompts), rng.choice([1, 2, 20, 70]), leave, rng.randrange(4))
            )
        run(workers, lives)


GOOD: dict[str, dict[str, Any]] = {
    "expect": {"key": "k", "tokens": [1, 2], "max_tokens": 1, "deadline_s": 9.0},
    "prefill": {"key": "k", "tokens": [1, 2], "to_port": 7, "deadline_s": 9.0},
    "start": {"key": "k", "token": 1},
    "release": {"key": "k"},
}
NONSENSE = [None, True, -1, 1e400, float("nan"), 10**400, "1", [], {}, ["x"], [True], [257], [-1], [[1]]]
SENSE = [("deadline_s", -1), ("key", "1")]  # too late, and another key


class Script(Events):
    """A front end that says these things and goes."""

    def __init__(self, said: list[Message]) -> None:
        self._said = said

    def messages(self) -> Iterator[Message]:
        yield from self._said


def malformed() -> list[Message]:
    """Each message without each of its fields, with nonsense in each of them, and one that nobody knows."""
    bad: list[Message] = [{"type": "nonsense", "key": "k"}, {"type": ""}]
    for kind, fields in GOOD.items():
        for name in fields:
            bad.append({"type": kind, **{other: value for other, value in fields.items() if other != name}})
            bad += [{"type": kind, **fields, name: value} for value in NONSENSE if (name, value) not in SENSE]
    return bad


def test_a_malformed_message_fails_its_request_and_nothing_else() -> None:
    """At both roles, though each would take only some of them."""
    with pair() as workers:
        for role in (workers.prefill, workers.decode):
            script = Script(malformed())
            serve(script, role, 257)  # ends when the front end goes, and with nothing sooner
            failed = [event for event in drained(script) if event["type"] == "failed"]
            assert len(failed) == len(malformed())
            assert all(event["error"].startswith("ValueError") for event in failed)
        run(workers, [life(workers, "good", [1, 2, 3], 4, None, 0)])


def test_a_hand_off_that_cannot_begin_fails_its_request_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as workers:
        with monkeypatch.context() as broken:
            no_thread = Mock(side_effect=RuntimeError("can't start new thread"))
            broken.setattr("prfaas_ref.serving.prefill_role.Outbound", no_thread)
            workers.prefill.handle({"type": "prefill", **GOOD["prefill"]})
            workers.prefill.step()
        (event,) = [e for e in drained(workers.control) if e["type"] == "failed"]
        assert (event["key"], event["error"]) == ("k", "RuntimeError: can't start new thread")
        assert not workers.engines[1].pool.index.transfers.in_flight
        run(workers, [life(workers, "good", [1, 2, 3], 4, None, 0)])


def test_requests_wait_while_others_hold_the_room() -> None:
    rng = random.Random(7)
    with pair(cache_mb=1) as workers:
        prompts = [rng.choices(range(256), k=900) for _ in range(4)]
        run(workers, [life(workers, f"k{i}", prompt, 5, None, 0) for i, prompt in enumerate(prompts)])
