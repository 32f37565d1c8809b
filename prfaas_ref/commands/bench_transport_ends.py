"""The two ends of `prfaas bench transport`: the process that receives, and what the sending one measures.

Every measurement moves the same pages: anonymous memory that was touched before, in 16 layers.
"""

import mmap
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from prfaas_ref.transport import (
    Check,
    Client,
    Destination,
    EmulatedLink,
    Identity,
    Incoming,
    LayerSpec,
    Manifest,
    Options,
    Server,
    TensorSpec,
    Terms,
)
from prfaas_ref.transport.errors import TransportError
from prfaas_ref.units import MIB, G

LAYERS = 16
PIECE_BYTES = MIB
OPTIONS = Options(stripes=2, chunk_bytes=4 * MIB)


def pages(n_bytes: int) -> memoryview:
    """Anonymous memory, every page of it touched."""
    view = memoryview(mmap.mmap(-1, n_bytes))
    for at in range(0, n_bytes, MIB):
        view[at : at + MIB] = os.urandom(4096) * (min(MIB, n_bytes - at) // 4096)
    return view


def manifest(n_bytes: int) -> Manifest:
    layer = LayerSpec((TensorSpec("kv", "BF16", (n_bytes // LAYERS // 2,), "flat"),))
    return Manifest(0, (layer,) * LAYERS)


def layer_views(memory: memoryview, n_bytes: int) -> list[list[memoryview]]:
    size = n_bytes // LAYERS
    return [[memory[i * size : (i + 1) * size]] for i in range(LAYERS)]


def terms(check: str) -> Terms:
    return Terms(Identity(os.urandom(8).hex()), checks=(Check[check.upper()],))


class Landing:
    """A handler that lands every hand-off in the same pages."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self.bits_per_s = memory, 0.0

    def on_offer(self, incoming: Incoming) -> Destination:
        return Destination(incoming.manifest, layer_views(self._memory, incoming.manifest.n_bytes))

    def on_complete(self, incoming: Incoming) -> None:
        self.bits_per_s = incoming.bits_per_s or 0.0

    def on_closed(self, incoming: Incoming, error: TransportError) -> None:
        print(f"{incoming.transfer_id}: {error}", file=sys.stderr)


def receive(pipe: Pipe, n_bytes: int) -> None:
    """Serve what the parent asks for, until it closes its end."""
    memory = pages(n_bytes)
    servers: dict[str, Callable[[Any], Iterator[Any]]] = {"raw": raw_sink, "ours": our_sink, "files": file_sink}
    while True:
        try:
            kind, argument = pipe.recv()
        except EOFError:
            return
        with contextmanager(servers[kind])((argument, memory)) as (address, outcome):
            pipe.send(address)
            pipe.recv()
            pipe.send(outcome())


def our_sink(request: tuple[str, memoryview]) -> Iterator[Any]:
    check, memory = request
    landing = Landing(memory)
    with Server(terms(check), landing) as server:
        yield server.address, lambda: landing.bits_per_s


def raw_sink(request: tuple[int, memoryview]) -> Iterator[Any]:
    connections, memory = request
    share = len(memory) // connections

    def sink(sock: socket.socket, view: memoryview) -> None:
        with sock:
            while view:
                view = view[sock.recv_into(view[:PIECE_BYTES]) :]
            sock.sendall(b"!")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            parts = [memory[i * share : (i + 1) * share] for i in range(connections)]
            in_threads([lambda part=part: sink(listener.accept()[0], part) for part in parts])

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname(), lambda: None
        thread.join()


def file_sink(request: tuple[int, memoryview]) -> Iterator[Any]:
    from safetensors.numpy import load_file

    n_bytes, _ = request
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as home:

        def sink() -> None:
            sock, path = listener.accept()[0], Path(home, "layers.safetensors")
            with sock, path.open("wb") as file:
                while data := sock.recv(PIECE_BYTES):
                    file.write(data)
                file.flush()
                assert sum(array.nbytes for array in load_file(path).values()) == n_bytes
                sock.sendall(b"!")

        thread = threading.Thread(target=sink)
        thread.start()
        yield listener.getsockname(), lambda: None
        thread.join()


def in_threads(tasks: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Bench:
    """Each method is one measurement."""

    def __init__(self, pipe: Pipe, n_bytes: int) -> None:
        self.n_bytes, self._pipe, self._memory = n_bytes, pipe, pages(n_bytes)

    @contextmanager
    def _sink(self, kind: str, argument: Any, outcome: list[Any]) -> Iterator[tuple[str, int]]:
        self._pipe.send((kind, argument))
        yield tuple(self._pipe.recv())
        self._pipe.send("done")
        outcome.append(self._pipe.recv())

    def raw_gb_s(self, connections: int) -> float:
        share = self.n_bytes // connections

        def source(address: tuple[str, int], view: memoryview) -> None:
            with socket.create_connection(address) as sock:
                for at in range(0, len(view), PIECE_BYTES):
                    sock.sendall(view[at : at + PIECE_BYTES])
                sock.recv(1)

        with self._sink("raw", connections, []) as address:
            parts = [self._memory[i * share : (i + 1) * share] for i in range(connections)]
            began = time.perf_counter()
            in_threads([lambda part=part: source(address, part) for part in parts])
            return self.n_bytes / (time.perf_counter() - began) / G

    def ours(
        self, check: str, n_bytes: int, link: EmulatedLink | None = None, compute_s: float = 0.0
    ) -> tuple[float, float]:
        """Seconds from the first layer's compute (a timed wait) to APPLIED, and the bits/s that arrived."""
        outcome: list[float] = []
        with self._sink("ours", check, outcome) as address, Client(address, terms(check), OPTIONS, link) as client:
            transfer = client.offer("bench", manifest(n_bytes), deadline_s=120)
            began = time.perf_counter()
            for i, views in enumerate(layer_views(self._memory, n_bytes)):
                time.sleep(compute_s)
                transfer.send_layer(i, views)
            transfer.finish()
            elapsed_s = time.perf_counter() - began
        return elapsed_s, outcome[0]

    def safetensors_gb_s(self) -> float:
        import numpy
        from safetensors.numpy import save_file

        n_bytes = self.n_bytes // 4
        layers = layer_views(self._memory, n_bytes)
        arrays = {f"layer{i}": numpy.frombuffer(view, "uint16") for i, (view,) in enumerate(layers)}
        with self._sink("files", n_bytes, []) as address, tempfile.TemporaryDirectory() as home:
            began, path = time.perf_counter(), Path(home, "layers.safetensors")
            save_file(arrays, path)
            with socket.create_connection(address) as sock, path.open("rb") as file:
                while data := file.read(PIECE_BYTES):
                    sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1)
            return n_bytes / (time.perf_counter() - began) / G
