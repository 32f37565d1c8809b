"""One worker process as the front end sees it: started, connected, watched, restarted, and never left behind.

Knows nothing of requests: messages go to a callback. A worker that dies, or answers no ping for `stall_s`, is lost; its
next start is a new incarnation. Children live in sessions of their own, so that Ctrl-C reaches the front end alone,
which then ends them; should the front end be killed, they see its connection close and end by themselves.
"""

import asyncio
import contextlib
import json
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.request import Route
from prfaas_ref.scheduler.fleet import Role
from prfaas_ref.serving.control import LOOPBACK, MAX_LINE_BYTES, Message, decode, encode

START_S, PING_S = 60.0, 0.5


class WorkerLost(Exception):
    """The worker died, stalled, or is not there any more."""


@dataclass(frozen=True)
class WorkerSpec:
    """What to start: a name, its place, and the options of `prfaas worker` beyond those."""

    name: str
    cluster: Route
    role: Role
    options: tuple[str, ...] = ()


@dataclass(eq=False)
class Worker:
    """A started worker. hello: what it reported of itself (pid, ports, fingerprint)."""

    spec: WorkerSpec
    incarnation: int
    process: Process
    hello: Message
    writer: StreamWriter
    active: bool = True
    last_heard_s: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def send(self, message: Message) -> None:
        """Send one command. Raises WorkerLost."""
        if not self.active:
            raise WorkerLost(f"{self.spec.name} is gone")
        self.writer.write(encode(message))


class Supervisor:
    """Starts the workers of a deployment, and starts lost ones again, at most `restarts` times each."""

    def __init__(
        self,
        specs: list[WorkerSpec],
        on_message: Callable[[Worker, Message], None],
        on_lost: Callable[[Worker, str], None],
        logs: Path,
        restarts: int,
        stall_s: float,
    ) -> None:
        self.specs, self.on_message, self.on_lost = specs, on_message, on_lost
        self.logs, self.restarts, self.stall_s = logs, restarts, stall_s
        self.workers: dict[str, Worker] = {}
        self.changed = asyncio.Event()  # set whenever a worker has come or gone; `wait_for_change` clears it
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> "Supervisor":
        try:
            await asyncio.gather(*(self._start(spec, incarnation=1) for spec in self.specs))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(self._end(worker) for worker in self.workers.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for_change(self) -> None:
        await self.changed.wait()
        self.changed.clear()

    async def _start(self, spec: WorkerSpec, incarnation: int) -> None:
        """Start a process, read its hello line, connect. Raises UserError with the end of its log if it does not come
        up.
        """
        log = self.logs / f"{spec.name}.{incarnation}.log"
        words = ["worker", "--name", spec.name, "--cluster", spec.cluster, "--role", spec.role, *spec.options]
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "prfaas_ref", *words,
                stdin=DEVNULL, stdout=PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
            if not line:
                raise ConnectionError
            hello = json.loads(line)
            reader, writer = await asyncio.open_connection(LOOPBACK, hello["control_port"], limit=MAX_LINE_BYTES)
        except BaseException as error:
            await self._kill(process)
            if isinstance(error, (OSError, TimeoutError)):
                last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it wrote no log"]
                raise UserError(f"worker {spec.name} did not start: {last[0].removeprefix('prfaas: ')}") from None
            raise
        worker = Worker(spec, incarnation, process, hello, writer, last_heard_s=self._now())
        self.workers[spec.name] = worker
        worker.tasks = [self._spawn(self._read(worker, reader)), self._spawn(self._watch(worker))]
        self.changed.set()

    async def _read(self, worker: Worker, reader: StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                worker.last_heard_s = self._now()
                message = decode(line)
                if message["type"] != "pong":
                    self.on_message(worker, message)
        self._lose(worker, "died")

    async def _watch(self, worker: Worker) -> None:
        while worker.active:
            worker.writer.write(encode({"type": "ping"}))
            await asyncio.sleep(PING_S)
            if self._now() - worker.last_heard_s > self.stall_s:
                self._lose(worker, f"answered nothing for {self.stall_s:g} s")

    def _lose(self, worker: Worker, why: str) -> None:
        if worker.active and not self._closing:
            worker.active = False
            self.changed.set()
            self.on_lost(worker, why)
            self._spawn(self._replace(worker))

    async def _replace(self, worker: Worker) -> None:
        await self._end(worker)
        if worker.incarnation <= self.restarts:
            with contextlib.suppress(UserError):  # it stays lost; requests that need it end with a typed error
                await self._start(worker.spec, worker.incarnation + 1)

    async def _end(self, worker: Worker) -> None:
        worker.active = False
        worker.writer.close()
        await self._kill(worker.process)

    async def _kill(self, process: Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
