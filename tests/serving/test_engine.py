"""The engine: cache hits and batch mates give the bytes of a cold run alone, and the pool's books balance."""

import hashlib
import queue
import random
from typing import Any

import pytest
import torch

from prfaas_ref.cache.manager import GlobalKVCacheManager
from prfaas_ref.cache.report import WorkerName
from prfaas_ref.cache.tree import OutOfBlocks
from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.config import HybridConfig
from prfaas_ref.model.generation import generate, logits_bytes
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.kinds import GQAShape
from prfaas_ref.model.weights import random_weights
from prfaas_ref.serving.cache_reports import read_report, send_report
from prfaas_ref.serving.decode_batch import DecodeBatch, Running
from prfaas_ref.serving.engine import Engine
from prfaas_ref.units import MIB


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> HybridModel:
    return load_model("toy-random", request.param, seed=3)


@pytest.fixture
def engine(model: HybridModel) -> Engine:
    return Engine(model, "f" * 64, 32 * MIB)


class Events(queue.SimpleQueue[dict[str, Any]]):
    """A control port whose front end is the test."""

    send = queue.SimpleQueue.put


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=n)


class Client:
    """Drives requests through one engine, as a worker does, and collects what comes out."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.batch = engine, DecodeBatch(engine)
        self.tokens: dict[str, list[int]] = {}
        self.digests: dict[str, Any] = {}

    def submit(self, key: str, prompt: list[int], max_tokens: int) -> int:
        """Prefill and join; returns the cached tokens."""
        alloc, state = self.engine.begin(prompt, extra_tokens=max_tokens)
        done = self.engine.prefill(prompt, alloc, state)
        self.tokens[key], self.digests[key] = [], hashlib.sha256()
        self._take(key, done.token, done.logits)
        self.batch.join(Running(key, alloc, done.token, max_tokens - 1), state)
        return done.cached_tokens

    def step(self) -> None:
        for step in self.batch.step():
            assert step.logits is not None, step.error
            self._take(step.key, step.token, step.logits)

    def finish(self) -> None:
        while self.batch.running:
            self.step()

    def _take(self, key: str, token: int, logits: torch.Tensor) -> None:
        self.tokens[key].append(token)
        self.digests[key].update(logits_bytes(logits))

    def assert_equals_cold(self, key: str, prompt: list[int], max_tokens: int) -> None:
        cold = generate(self.engine.model, prompt, max_tokens)
        assert (self.tokens[key], self.digests[key].hexdigest()) == (cold.tokens, cold.logits_sha256)


def drained(engine: Engine) -> bool:
    """Whether nothing but cached prefixes is left."""
    engine.pool.index.check_invariants()
    return not engine.pool.index.allocations and not engine.pool.index.transfers.in_flight


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 191, 192, 193, 300])
def test_a_repeat_hits_the_deepest_block_end_below_its_last_token_and_equals_a_cold_run(engine: Engine, n: int) -> None:
    prompt, client = text(n, n), Client(engine)
    assert client.submit("cold", prompt, 3) == 0
    assert client.submit("warm", prompt, 3) == (n - 1) // 64 * 64
    client.finish()
    for key in ("cold", "warm"):
        client.assert_equals_cold(key, prompt, 3)
    assert drained(engine)


@pytest.mark.parametrize("n", [64, 192])
def test_a_prompt_of_whole_blocks_is_a_prefix_to_start_from(engine: Engine, n: int) -> None:
    prompt, client = text(n, n), Client(engine)
    client.submit("first", prompt, 1)
    assert client.submit("longer", [*prompt, 7, 8, 9], 3) == n
    client.finish()
    client.assert_equals_cold("longer", [*prompt, 7, 8, 9], 3)


def test_the_third_prompt_with_a_shared_beginning_starts_at_the_branch(engine: Engine) -> None:
    shared, client = text(0, 500), Client(engine)
    hits = [client.submit(f"r{i}", shared + text(10 + i, 100 + i), 2) for i in range(3)]
    client.finish()
    assert hits == [0, 0, 448]  # the second saw KV without a state at 448, and kept one there
    for i in range(3):
        client.assert_equals_cold(f"r{i}", shared + text(10 + i, 100 + i), 2)


def test_the_next_turn_hits_prompt_and_answer(engine: Engine) -> None:
    turn, client, last_end = text(2, 200), Client(engine), 0
    for i in range(4):
        cached = client.submit(f"turn{i}", turn, 70)
        client.finish()
        client.assert_equals_cold(f"turn{i}", turn, 70)
        assert cached == last_end
        last_end = (len(turn) + len(client.tokens[f"turn{i}"]) - 1) // 64 * 64
        assert last_end > len(turn) // 64 * 64  # the answer crossed a block end
        turn = turn + client.tokens[f"turn{i}"] + text(50 + i, 9)


def test_requests_join_and_leave_a_batch_without_touching_each_other(engine: Engine) -> None:
    rng, client = random.Random(5), Client(engine)
    prompts = {f"r{i}": text(100 + i, rng.randrange(1, 260)) for i in range(12)}
    lengths = {key: rng.randrange(1, 90) for key in prompts}
    waiting = list(prompts)
    while waiting or client.batch.running:
        if waiting and (rng.random() < 0.2 or not client.batch.running):
            key = waiting.pop()
            client.submit(key, prompts[key], lengths[key])
        else:
            client.step()
    for key, prompt in prompts.items():
        client.assert_equals_cold(key, prompt, lengths[key])
    assert drained(engine)


def test_one_request_turning_non_finite_fails_alone_and_publishes_nothing(engine: Engine) -> None:
    client = Client(engine)
    client.submit("good", text(9, 130), 80)
    client.submit("bad", text(8, 130), 80)
    assert client.batch._state is not None
    client.batch._state.layers[0].S[1] = float("nan")
    steps = {step.key: step for step in client.batch.step()}
    assert "NonFinite" in steps["bad"].error
    assert steps["good"].logits is not None
    client._take("good", steps["good"].token, steps["good"].logits)
    client.finish()
    client.assert_equals_cold("good", text(9, 130), 80)
    match = engine.pool.index.match_prefix(engine.namespace, [*text(8, 130), 0])
    assert match.usable_tokens == 128  # from its healthy prefill, nothing later
    assert drained(engine)


def test_a_prompt_that_does_not_fit_is_refused_and_changes_nothing(model: HybridModel) -> None:
    engine = Engine(model, "f" * 64, 2 * MIB)
    with pytest.raises(OutOfBlocks):
        engine.begin(text(1, 64 * 300))
    assert drained(engine)
    assert Client(engine).submit("small", text(1, 65), 1) == 0


def test_a_model_without_fixed_size_state_hits_by_its_pages_alone_and_says_so() -> None:
    shape = GQAShape(num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=48)
    config = HybridConfig(("gqa", "gqa"), vocab_size=257, hidden_size=64, intermediate_size=64, gqa=shape)
    engine = Engine(HybridModel(config, random_weights(config, torch.float32, seed=1)), "f" * 64, 8 * MIB)
    client, control, prompt = Client(engine), Events(), text(1, 200)
    assert [client.submit(f"r{i}", prompt, 70) for i in range(2)] == [0, 192]
    client.finish()
    for i in range(2):
        client.assert_equals_cold(f"r{i}", prompt, 70)
    assert drained(engine)
    send_report(engine, control)
    caches = GlobalKVCacheManager()
    assert caches.apply(read_report(WorkerName("pd", "w"), 1, control.get()))
    (match,) = caches.lookup(engine.namespace, prompt).values()
    assert (match.kv_tokens, match.usable_tokens) == (192, 192)
