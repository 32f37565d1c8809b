"""The control channel between the front end and a worker: one JSON object a line, over loopback TCP.

Tensors never travel here (that is `transport`'s business); what does is prompts, tokens and reports. The worker's
side is a listening socket with a reading thread; the front end's side is asyncio (see `supervisor.py`).
"""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.units import MIB

LOOPBACK = "127.0.0.1"
MAX_LINE_BYTES = 16 * MIB

Message = dict[str, Any]


class BadMessage(ValueError):
    """A line that is no JSON object with a type. The peer is not one of ours, and the connection is closed."""


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise BadMessage(f"not JSON: {line[:60]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadMessage(f"not an object with a type: {line[:60]!r}")
    return message


def failed(key: str, error: BaseException) -> Message:
    """The event that reports a request's end by an error."""
    return {"type": "failed", "key": key, "error": f"{type(error).__name__}: {error}"}


class ControlPort:
    """The worker's end: accepts one front end, yields its messages, sends it events from any thread."""

    def __init__(self, port: int) -> None:
        """Listen on loopback; port 0 takes a free one. Raises UserError when the port is in use."""
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "a port is a number up to 65535"
            raise UserError(f"cannot listen on {LOOPBACK}:{port}: {why}; choose another --port") from error
        self.port: int = self._listener.getsockname()[1]
        self._peer: socket.socket | None = None
        self._sending = threading.Lock()

    def accept(self, timeout_s: float) -> None:
        """Wait for the front end. Raises UserError if none comes in time."""
        self._listener.settimeout(timeout_s)
        try:
            self._peer, _ = self._listener.accept()
        except TimeoutError:
            raise UserError(f"no front end connected to port {self.port} within {timeout_s:g} s") from None
        finally:
            self._listener.close()
        self._peer.settimeout(None)

    def messages(self) -> Iterator[Message]:
        """Every message of the front end, until it goes away or talks nonsense."""
        assert self._peer is not None
        with self._peer.makefile("rb") as stream:
            while True:
                try:
                    line = stream.readline(MAX_LINE_BYTES)
                    if not line.endswith(b"\n"):
                        return
                    yield decode(line)
                except (BadMessage, OSError):
                    return

    def send(self, message: Message) -> None:
        """Send one event; a front end that has gone is noticed by `messages`, not here."""
        assert self._peer is not None
        with self._sending:
            try:
                self._peer.sendall(encode(message))
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()
        if self._peer:
            self._peer.close()
