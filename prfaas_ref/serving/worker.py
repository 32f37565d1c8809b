"""A worker process: one role, one pool, one control port, and, if it decodes, one data port.

It starts, prints one JSON line that says who and where it is, waits for its front end, and works until that goes away.
Whatever starts it (the demo's supervisor, a shell, a cluster manager) only places it.
"""

import json
import os
import queue
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.fingerprint import fingerprint
from prfaas_ref.serving.control import LOOPBACK, ControlPort, Message, failed
from prfaas_ref.serving.decode_role import DecodeRole
from prfaas_ref.serving.engine import Engine
from prfaas_ref.serving.prefill_role import PrefillRole
from prfaas_ref.transport.checks import supported
from prfaas_ref.transport.client import Options
from prfaas_ref.transport.connection import Terms
from prfaas_ref.transport.identity import Identity
from prfaas_ref.transport.limits import Limits
from prfaas_ref.transport.link import EmulatedLink
from prfaas_ref.transport.server import Server
from prfaas_ref.units import KIB, MIB, mbps

FRONT_END_S, POLL_S = 120.0, 0.2
FIELDS = {  # of the front end's messages; `require_fields` says what each may be
    "expect": ("key", "tokens", "max_tokens", "deadline_s"),
    "prefill": ("key", "tokens", "to_port", "deadline_s"),
    "start": ("key", "token"),
    "release": ("key",),
}
CHUNK_BYTES = 128 * KIB  # small beside a toy's layer, so that layers overlap on the wire


@dataclass(frozen=True)
class WorkerOptions:
    """What the command line chose."""

    name: str
    cluster: str
    role: str
    model: str
    dtype: str
    seed: int
    port: int
    cache_mb: float
    link_mbps: float | None
    rtt_ms: float
    stripes: int


class Role(Protocol):
    """A worker's work, one piece at a time, in the main thread."""

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""

    def handle(self, message: Message) -> None:
        """Act on one message of the front end."""

    def step(self) -> None:
        """Compute one piece."""

    def idle(self) -> None:
        """Called again and again, busy or not."""

    def released(self, key: str) -> None:
        """The front end lets this request go: told at once, by the reading thread; the message itself follows."""


def run_worker(options: WorkerOptions) -> None:
    """Run until the front end goes away. Raises UserError when the port is taken, or no front end comes."""
    model = load_model(options.model, options.dtype, options.seed)
    print_of = fingerprint(model)
    engine = Engine(model, print_of.digest, int(options.cache_mb * MIB))
    identity = Identity(secrets.token_hex(8), print_of.layout, print_of.numeric)
    terms = Terms(identity, Limits(), supported())
    with ExitStack() as stack:
        control = ControlPort(options.port)
        stack.callback(control.close)
        role: PrefillRole | DecodeRole
        data_port = None
        if options.role == "decode":
            role = DecodeRole(engine, control)
            data_port = stack.enter_context(Server(terms, role, LOOPBACK)).address[1]
        else:
            rate = None if options.link_mbps is None else mbps(options.link_mbps)
            sending = Options(options.stripes, CHUNK_BYTES)
            role = PrefillRole(engine, control, terms, sending, EmulatedLink(rate, options.rtt_ms / 1000))
            stack.callback(role.close)
        hello = {
            "name": options.name,
            "pid": os.getpid(),
            "control_port": control.port,
            "data_port": data_port,
            "fingerprint": print_of.digest,
            "vocab_size": model.config.vocab_size,
            "end_tokens": model.config.end_tokens,
            "block_size": model.config.grid.block,
        }
        print(json.dumps(hello), flush=True)
        control.accept(FRONT_END_S)
        serve(control, role, model.config.vocab_size)


def require_fields(message: Message, vocab_size: int) -> None:
    """Raises ValueError naming the first field of a front end's message that is missing or makes no sense."""

    def is_token(value: object) -> bool:
        return type(value) is int and 0 <= value < vocab_size

    makes_sense: dict[str, Callable[[Any], bool]] = {
        "key": lambda value: type(value) is str,
        "tokens": lambda value: type(value) is list and len(value) > 0 and all(map(is_token, value)),
        "token": is_token,
        "max_tokens": lambda value: type(value) is int and 0 < value < 1 << 31,
        "to_port": lambda value: type(value) is int and 0 < value < 1 << 16,
        "deadline_s": lambda value: type(value) in (int, float) and abs(value) <= 1e9,
    }
    if message["type"] not in FIELDS:
        raise ValueError(f"there is no message {message['type'][:40]!r}")
    for name in FIELDS[message["type"]]:
        if not makes_sense[name](message.get(name)):
            raise ValueError(f"{message['type']}: {name} cannot be {str(message.get(name))[:40]!r}")


def serve(control: ControlPort, role: Role, vocab_size: int) -> None:
    """The main loop: messages first, then one piece of work. Pings are answered while it computes."""
    inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def answer(message: Message) -> None:
        if message["type"] == "ping":
            control.send({"type": "pong"})
            return
        require_fields(message, vocab_size)
        if message["type"] == "release":
            role.released(message["key"])
        inbox.put(message)

    def read() -> None:
        try:
            for message in control.messages():
                guarded(answer, message)
        finally:
            inbox.put(None)

    def guarded(act: Callable[[Message], None], message: Message) -> None:
        """A message that cannot be acted on fails its request, and nothing else."""
        try:
            act(message)
        except (KeyError, TypeError, ValueError) as error:
            control.send(failed(str(message.get("key", "")), error))

    threading.Thread(target=read, name="control", daemon=True).start()
    while True:
        try:
            message = inbox.get(block=not role.busy, timeout=POLL_S)
            if message is None:
                return
            guarded(role.handle, message)
        except queue.Empty:
            if role.busy:
                role.step()
        role.idle()
