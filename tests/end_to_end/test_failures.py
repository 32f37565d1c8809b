"""Workers are killed and stopped in the middle of requests: every request still ends, exactly, and nothing is left."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.hybrid import HybridModel
from tests.end_to_end.deployment import alive, assert_exact, deployment, serve, text, worker_pid


@pytest.fixture(scope="module")
def model() -> HybridModel:
    return load_model("toy-random")


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def prefilling(front, name: str) -> bool:
    """Whether the router has handed work to the worker that is not over yet."""
    worker = front.supervisor.workers[name]
    return front.router.ledger.account(name, worker.incarnation).requests > 0


def test_a_killed_decode_worker_is_replaced_and_the_answer_goes_on_where_it_stopped(
    model: HybridModel, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path) as front:
            victim, seen = worker_pid(front, "pd-decode-0"), []

            def kill_at_the_eighth(token: int) -> None:
                seen.append(token)
                if len(seen) == 8:
                    os.kill(victim, signal.SIGKILL)

            served = await serve(front, "r", text(1, 300), 80, on_token=kill_at_the_eighth)
            assert served.record.attempts == 2
            assert_exact(model, served)
            assert front.supervisor.workers["pd-decode-0"].incarnation == 2
            assert not alive(victim)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_worker_lost_in_mid_request_is_done_without(
    model: HybridModel, tmp_path: Path, how: signal.Signals
) -> None:
    """No restart: the PD cluster takes over. A stopped process looks alive to the kernel, and answers no ping."""

    async def scenario() -> None:
        async with deployment(model, tmp_path, restarts=0, stall_s=2.0) as front:
            victim = worker_pid(front, "prfaas-prefill-0")
            request = asyncio.create_task(serve(front, "r", text(2, 8_000), 4))
            await until(lambda: prefilling(front, "prfaas-prefill-0"))
            os.kill(victim, how)
            served = await request
            assert (served.record.route, served.record.attempts) == ("pd", 2)
            assert_exact(model, served)
            assert not alive(victim)

    asyncio.run(scenario())


def test_with_no_decode_worker_left_a_request_ends_at_once_with_a_typed_error(
    model: HybridModel, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path, restarts=0) as front:
            os.kill(worker_pid(front, "pd-decode-0"), signal.SIGKILL)
            await until(lambda: not front.supervisor.workers["pd-decode-0"].active)
            served = await serve(front, "r", text(3, 100), 4, deadline_s=30.0)
            assert served.record.status == "failed"
            assert served.record.reason.startswith("NoWorker: no active decode worker")

    asyncio.run(scenario())


def test_a_request_ends_at_its_deadline(model: HybridModel, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path) as front:
            served = await serve(front, "r", text(3, 9_000), 4, deadline_s=0.3)
            assert served.record.status == "failed"
            assert served.record.reason.startswith("DeadlineExceeded")
            assert_exact(model, await serve(front, "s", text(5, 100), 4))

    asyncio.run(scenario())


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_decode_worker_lost_after_the_last_token_takes_nothing_away_and_adds_nothing(
    model: HybridModel, tmp_path: Path, max_tokens: int
) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path) as front:
            victim, seen = worker_pid(front, "pd-decode-0"), []

            def kill_at_the_last(token: int) -> None:
                seen.append(token)
                if len(seen) == max_tokens:
                    os.kill(victim, signal.SIGKILL)

            served = await serve(front, "r", text(6, 200), max_tokens, on_token=kill_at_the_last)
            assert_exact(model, served)
            assert served.tokens == seen

    asyncio.run(scenario())


def test_a_bad_request_harms_no_other(model: HybridModel, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path, restarts=0) as front:
            for bad in (-1, 257, 2**32):
                served = await serve(front, "bad", [1, bad, 2], 4)
                assert served.record.reason.startswith("InvalidToken")
            for worker in front.workers:
                bad = {"key": "nobody", "tokens": [-1], "deadline_s": 9.0, "max_tokens": 1, "to_port": 1}
                for what in ("expect", "prefill", "nonsense"):
                    worker.send({"type": what, **bad})
            first = asyncio.create_task(serve(front, "same", text(7, 300), 4))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="in flight"):
                await serve(front, "same", text(8, 300), 4)
            assert_exact(model, await first)
            assert all(worker.active for worker in front.workers)

    asyncio.run(scenario())


def test_the_front_end_knows_what_every_worker_holds_and_forgets_the_lost(model: HybridModel, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path) as front:
            prompt = text(10, 300)
            served = await serve(front, "r", prompt, 70)
            assert len(served.tokens) == 70  # long enough for a block to end while it is decoded
            turn = [*prompt, *served.tokens, 1]

            def held(tokens: list[int]) -> dict[str, int]:
                matches = front.caches.lookup(front._namespace(), tokens)
                return {name.worker: match.usable_tokens for name, match in matches.items()}

            last_end = (len(turn) - 2) // 64 * 64  # the last sampled token has not been processed
            await until(lambda: held(turn).get("pd-decode-0") == last_end)
            assert held(turn)["pd-prefill-0"] == held(prompt)["pd-prefill-0"] == 256
            again = await serve(front, "again", prompt, 2)
            assert again.record.cached_tokens == 256
            os.kill(worker_pid(front, "pd-prefill-0"), signal.SIGKILL)
            await until(lambda: front.supervisor.workers["pd-prefill-0"].incarnation == 2)
            assert held(prompt).get("pd-prefill-0", 0) == 0
            assert_exact(model, await serve(front, "third", prompt, 2))
            assert held(prompt)["pd-prefill-0"] == 256

    asyncio.run(scenario())


def test_requests_wait_for_room_that_others_hold(model: HybridModel, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path, cache_mb=1) as front:
            prompts = [text(20 + i, 900) for i in range(4)]
            for served in await asyncio.gather(*(serve(front, f"r{i}", p, 4) for i, p in enumerate(prompts))):
                assert_exact(model, served)
                assert served.record.attempts == 1

    asyncio.run(scenario())


def test_a_worker_that_always_fails_is_asked_a_bounded_number_of_times(model: HybridModel, tmp_path: Path) -> None:
    """The prompt fits no pool: each attempt ends with the same typed error, and the workers stay healthy."""

    async def scenario() -> None:
        async with deployment(model, tmp_path) as front:
            served = await serve(front, "r", text(4, 64 * 13_500), 1)
            assert (served.record.status, served.record.attempts) == ("failed", 3)
            assert served.record.reason.startswith("OutOfBlocks")
            assert_exact(model, await serve(front, "s", text(5, 100), 4))

    asyncio.run(scenario())


def test_workers_end_when_their_front_end_is_gone(model: HybridModel, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(model, tmp_path, restarts=0) as front:
            pids = [worker.hello["pid"] for worker in front.workers]
            for worker in front.workers:
                worker.writer.close()
            await until(lambda: all(worker.process.returncode is not None for worker in front.workers))
            assert not any(map(alive, pids))

    asyncio.run(scenario())
