"""The decode stage: continuous batches of at most BS_max requests, within an instance's memory, a token per step each.

Knows nothing of prefill. The first token comes with the hand-off: it is out when a slot admits the request, and each
step brings one more. A step takes T_decode whatever the batch. (The paper's equation 5 counts a step for the first
token too: one in a thousand.)
"""

from collections.abc import Callable

from prfaas_ref.scheduler.profile import DecodeProfile, KvSize
from prfaas_ref.scheduler.simulation.attempt import Attempt, SimWorker
from prfaas_ref.scheduler.simulation.events import ENDING, EventQueue
from prfaas_ref.scheduler.simulation.log import EventLog


class DecodeStage:
    """Waiting and running requests of every decode worker."""

    def __init__(
        self, events: EventQueue, log: EventLog, profile: DecodeProfile, kv: KvSize, on_done: Callable[[Attempt], None]
    ) -> None:
        self.events, self.log, self.profile, self.kv, self.on_done = events, log, profile, kv, on_done

    def enqueue(self, attempt: Attempt) -> None:
        attempt.context_bytes = self.kv.bytes(attempt.request.prompt_tokens + attempt.request.max_tokens)
        attempt.decode.queue.append(attempt)
        self._admit(attempt.decode)

    def fits(self, context_tokens: int) -> bool:
        """Can any worker ever hold this context?"""
        return self.kv.bytes(context_tokens) <= self.profile.memory_bytes

    def _admit(self, worker: SimWorker) -> None:
        """Fill free slots in order of arrival; the first that does not fit waits, and all behind it."""
        profile, queue, now_s = self.profile, worker.queue, self.events.now_s
        while queue and len(worker.running) < profile.batch_max:
            attempt = queue[0]
            if worker.memory_bytes + attempt.context_bytes > profile.memory_bytes:
                return
            queue.popleft()
            worker.running[attempt.number] = attempt
            worker.memory_bytes += attempt.context_bytes
            attempt.started_s = now_s
            if attempt.record.ttft_s is None:
                attempt.record.ttft_s = now_s - attempt.record.request.arrival_s
            self.log.add("decode start", now_s, attempt.number, worker.number)
            self.events.at(now_s + (attempt.request.max_tokens - 1) * profile.step_s, ENDING, self._finish, attempt)

    def _finish(self, attempt: Attempt) -> None:
        if not attempt.alive:
            return
        worker, now_s = attempt.decode, self.events.now_s
        self._leave(attempt)
        self.log.span("decode", attempt.number, worker.worker_id, attempt.started_s, now_s)
        self._admit(worker)
        self.on_done(attempt)

    def emitted(self, attempt: Attempt) -> int:
        """Tokens a running attempt has produced by now, at most all but one: an unfinished answer has one to come."""
        if attempt.number not in attempt.decode.running:
            return 0
        steps = int((self.events.now_s - attempt.started_s) / self.profile.step_s)
        return min(1 + steps, attempt.request.max_tokens - 1)

    def lose(self, attempt: Attempt) -> None:
        """Forget an attempt that waits or runs here, if it does."""
        worker = attempt.decode
        if attempt.number in worker.running:
            self._leave(attempt)
            if worker.phase != "down":
                self._admit(worker)
        elif attempt in worker.queue:
            worker.queue.remove(attempt)

    def _leave(self, attempt: Attempt) -> None:
        worker = attempt.decode
        del worker.running[attempt.number]
        worker.memory_bytes -= attempt.context_bytes
        if not worker.running:
            worker.memory_bytes = 0.0
