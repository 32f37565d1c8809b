"""One worker process as the front end sees it: started, connected, watched, restarted, and never left behind.

Knows nothing of requests: messages go to a callback. A worker that dies, or answers no ping for `stall_s`, is lost; its
next start is a new incarnation. Children live in sessions of their own, so that Ctrl-C reaches the front end alone,
which then ends them; should the front end be killed, the pipe to their standard input closes, and they end themselves.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prfaas_ref.cache.report import WorkerName
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

    @property
    def cache_name(self) -> WorkerName:
        """What the global KVCache manager calls it."""
        return WorkerName(self.spec.cluster, self.spec.name)

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
        self.starting = 0  # workers on their way up
        self.changes = 0  # counts workers that came or went; see `wait_for_change`
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> "Supervisor":
        starts = [self._start(spec, incarnation=1) for spec in self.specs]
        try:
            results = await asyncio.gather(*starts, return_exceptions=True)  # not one is left half started
            if failed := [result for result in results if isinstance(result, BaseException)]:
                raise failed[0]
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in self.workers.values()))

    async def wait_for_change(self, seen: int) -> None:
        """Until a worker has come or gone since `changes` was `seen`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.changes != seen)

    async def _start(self, spec: WorkerSpec, incarnation: int) -> None:
        """Start a process, read its hello line, connect. Raises UserError with the end of its log if it does not come
        up.
        """
        log = self.logs / f"{spec.name}.{incarnation}.log"
        words = ["worker", "--supervised", "--name", spec.name, "--cluster", spec.cluster, "--role", spec.role]
        self.starting += 1
        try:
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "prfaas_ref", *words, *spec.options,
                    stdin=PIPE, stdout=PIPE, stderr=stderr, start_new_session=True,
                )  # fmt: skip
            try:
                hello, reader, writer = await asyncio.wait_for(self._meet(process), START_S)
            except BaseException as error:
                await self._kill(process)
                if isinstance(error, (OSError, TimeoutError)):
                    late = f"it was not up within {START_S:g} s; " if isinstance(error, TimeoutError) else ""
                    raise UserError(f"worker {spec.name} did not start: {late}{last_words(log)}") from None
                raise
        finally:
            self.starting -= 1
            await self._tell()
        worker = Worker(spec, incarnation, process, hello, writer, last_heard_s=self._now())
        self.workers[spec.name] = worker
        self._spawn(self._read(worker, reader))
        self._spawn(self._watch(worker))
        await self._tell()

    async def _meet(self, process: Process) -> tuple[Message, StreamReader, StreamWriter]:
        """A new process's own report of itself, and the connection to its control port."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise ConnectionError("it ended at once")
        hello = json.loads(line)
        return hello, *await asyncio.open_connection(LOOPBACK, hello["control_port"], limit=MAX_LINE_BYTES)

    async def _read(self, worker: Worker, reader: StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                worker.last_heard_s = self._now()
                message = decode(line)
                if message["type"] != "pong":
                    self.on_message(worker, message)
        await self._lose(worker, "died")

    async def _watch(self, worker: Worker) -> None:
        while worker.active:
            asked_s = self._now()
            worker.writer.write(encode({"type": "ping"}))
            await asyncio.sleep(PING_S)
            if self._now() - asked_s > 2 * PING_S:  # it was us who stood still: what came meanwhile is not read yet
                worker.last_heard_s = self._now()
            elif self._now() - worker.last_heard_s > self.stall_s:
                await self._lose(worker, f"answered nothing for {self.stall_s:g} s")

    async def _lose(self, worker: Worker, why: str) -> None:
        if worker.active and not self._closing:
            worker.active = False
            self.starting += 1
            self._spawn(self._replace(worker))
            self.on_lost(worker, why)
            await self._tell()

    async def _replace(self, lost: Worker) -> None:
        """End what is left of it, and start it again. If it stays lost, requests that need it end with an error."""
        try:
            await self._end(lost)
            for incarnation in range(lost.incarnation + 1, self.restarts + 2):
                with contextlib.suppress(UserError, OSError):
                    return await self._start(lost.spec, incarnation)
        finally:
            self.starting -= 1
            await self._tell()

    async def _end(self, worker: Worker) -> None:
        worker.active = False
        worker.writer.close()
        await self._kill(worker.process)

    async def _kill(self, process: Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # process.kill() would reap it behind asyncio's back
        await process.wait()
        if process.stdin:
            process.stdin.close()

    async def _tell(self) -> None:
        async with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def last_words(log: Path) -> str:
    """Why a worker ended, by its log: the mistake that it names, else whatever it wrote last."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["it wrote no log"]
    named = [line.removeprefix("prfaas: ") for line in lines if line.startswith("prfaas: ")]
    return (named or lines)[-1]
