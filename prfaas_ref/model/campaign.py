"""The falsification campaign: random schedules of a few requests, every result compared with a one-shot run's bytes.

The contract says that the logits after a token prefix are one sequence of bytes, however the prefix came to be
processed (docs/exactness.md). A `Walk` draws prompts, computes each in one call, and then processes the same tokens in
every other way it can think of. Each comparison is counted under the property it tests; a difference is kept as a
`Mismatch`.
`prfaas verify` runs walks on the machine at hand, and the test suite runs some with fixed seeds.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prfaas_ref.model.generation import logits_bytes, prefill
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.state import HybridState, LayerState


@dataclass(frozen=True)
class Mismatch:
    """Where bytes differed. name: the property. position: tokens before it. size: the largest difference of logits."""

    name: str
    request: int
    position: int
    size: float


@dataclass
class Tally:
    """What a walk has compared, and what it found."""

    checked: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)


def state_bytes(model: HybridModel, state: HybridState, pages: Tensor, request: int = 0) -> bytes:
    """All that one request has accumulated: the tensors of its fixed-size layers, and its rows of the pages."""
    parts = [t[request] for layer in state.layers.values() for t in layer.tensors().values()]
    n, block = state.positions[request], model.config.grid.block
    parts += [pages[page, :, : n - i * block] for i, page in enumerate(state.tables[request][: -(-n // block)])]
    return b"".join(part.cpu().contiguous().view(torch.uint8).numpy().tobytes() for part in parts)


class Pool:
    """Pages in random order. Free ones hold NaN, as if somebody else had used them; a page is zeroed when allocated."""

    def __init__(self, model: HybridModel, n_pages: int, rng: random.Random) -> None:
        self.pages, self.rng = model.new_pages(n_pages).fill_(torch.nan), rng
        self.free = list(range(n_pages))

    def take(self, n: int) -> list[int]:
        self.rng.shuffle(self.free)
        table, self.free = self.free[:n], self.free[n:]
        self.pages[table] = 0.0
        return table

    def give(self, table: list[int]) -> None:
        self.pages[table] = torch.nan
        self.free += table


class Walk:
    """Random schedules of some prompts. Everything follows from the seed.

    threads: intra-op thread counts to switch between. max_tokens: the longest prompt.
    """

    def __init__(
        self,
        model: HybridModel,
        seed: int,
        n_requests: int = 3,
        max_tokens: int = 200,
        threads: tuple[int, ...] = (1, 2),
    ) -> None:
        self.model, self.rng, self.threads, self.tally = model, random.Random(seed), threads, Tally()
        self.block = model.config.grid.block
        lengths = [self.rng.randint(max_tokens // 2, max_tokens) for _ in range(n_requests)]
        self.prompts = [[self.rng.randrange(model.config.vocab_size) for _ in range(n)] for n in lengths]
        n_pages = 8 * n_requests * (max_tokens // self.block + 2)
        self.pool = Pool(model, n_pages, self.rng)
        self.expected = [self.one_shot(prompt)[0] for prompt in self.prompts]
        self.snapshots: dict[int, tuple[HybridState, Tensor]] = {}  # a request's state and pages at its last block end

    def run(self) -> Tally:
        """Take every prompt to its end. Returns the tally."""
        with torch.inference_mode():
            running = {i: self.start(i) for i in range(len(self.prompts))}
            while running:
                self.switch_threads()
                some = [i for i in running if self.rng.random() < 0.8] or list(running)
                self.step({i: running[i] for i in some}, running)
                for i in some:
                    self.after_step(i, running)
        return self.tally

    def one_shot(self, prompt: list[int]) -> tuple[list[bytes], bytes]:
        """The reference: one call, one thread, fresh pages. The logits at every position, and the state at the end."""
        torch.set_num_threads(1)
        n_pages = -(-len(prompt) // self.block)
        state, pages = self.model.new_state(), self.model.new_pages(n_pages)
        state.tables[0] = list(range(n_pages))
        with torch.inference_mode():
            tokens = torch.tensor([prompt], device=self.model.device)
            logits = self.model.forward(tokens, state, pages, rows=range(len(prompt)))[0]
        return [logits_bytes(row) for row in logits], state_bytes(self.model, state, pages)

    def start(self, i: int) -> HybridState:
        """A request after a prefill of random length, perhaps none at all, or all but one token."""
        n = self.rng.choice((0, self.rng.randrange(1, len(self.prompts[i])), len(self.prompts[i]) - 1))
        state = self.model.new_state()
        state.tables[0] = self.pool.take(-(-len(self.prompts[i]) // self.block))
        return self.prefill(i, state, n, "any split of prefill")

    def prefill(self, i: int, state: HybridState, end: int, name: str) -> HybridState:
        """Go on to position `end` in pieces of random sizes, in either order of the (layer, piece) cells."""
        start, tokens = state.positions[0], self.prompts[i][state.positions[0] : end]
        if tokens:
            cuts = self.rng.sample(range(start, end), self.rng.randrange(min(4, len(tokens))))
            order = self.rng.choice(("layer", "chunk"))
            logits = prefill(self.model, tokens, state, self.pool.pages, order, cuts)
            self.check(name, i, end - 1, logits)
            self.check_state(name, i, state)
        return state

    def step(self, some: dict[int, HybridState], running: dict[int, HybridState]) -> None:
        """One token of some requests, in a batch with rows in random order and up to three poisoned neighbours."""
        rows: list[tuple[int | None, HybridState]] = list(some.items())
        rows += [(None, self.poison()) for _ in range(self.rng.randrange(4))]
        self.rng.shuffle(rows)
        batch = HybridState.stack([state for _, state in rows])
        vocab = range(self.model.config.vocab_size)
        tokens = [self.rng.choice(vocab) if i is None else self.prompts[i][s.positions[0]] for i, s in rows]
        tokens = torch.tensor(tokens, device=self.model.device)[:, None]
        logits = self.model.forward(tokens, batch, self.pool.pages)[:, 0]
        name = "decode = prefill" if len(rows) == 1 else "batch neighbours, NaN among them"
        for row, (i, state) in enumerate(rows):
            if i is None:
                self.pool.give(state.tables[0])
                continue
            running[i] = batch.select([row])
            self.check(name, i, state.positions[0], logits[row])

    def after_step(self, i: int, running: dict[int, HybridState]) -> None:
        """Finish the request, or do to it one of the things that may happen between two steps."""
        state = running[i]
        if state.positions[0] % self.block == 0:
            self.snapshots[i] = state.select([0]), self.pool.pages[state.tables[0][: state.positions[0] // self.block]]
        if state.positions[0] == len(self.prompts[i]):
            self.check_state("decode = prefill", i, state)
            self.pool.give(running.pop(i).tables[0])
        elif (event := self.rng.random()) < 0.06:
            running[i] = self.hand_off(state)
        elif event < 0.1:
            running[i] = self.resume(i, state)

    def hand_off(self, state: HybridState) -> HybridState:
        """Save all of a request's state to bytes, and restore it on other pages."""
        moved = self.restore(state, self.pool.pages[state.tables[0]].clone())
        self.pool.give(state.tables[0])
        for layer, memory in moved.layers.items():
            for name, tensor in memory.tensors().items():
                raw = bytearray(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
                copy = torch.frombuffer(raw, dtype=tensor.dtype).view(tensor.shape).to(tensor.device)
                setattr(moved.layers[layer], name, copy)
        self.tally.checked["hand-off, save and restore"] += 1
        return moved

    def restore(self, state: HybridState, content: Tensor) -> HybridState:
        """A copy of a request on new pages, the first of which get `content`."""
        copy = state.select([0])
        copy.tables[0] = self.pool.take(len(state.tables[0]))
        self.pool.pages[copy.tables[0][: len(content)]] = content
        return copy

    def resume(self, i: int, state: HybridState) -> HybridState:
        """Forget the request; prefill what it had processed, perhaps more, from its last block end or from nothing."""
        n = state.positions[0]
        self.pool.give(state.tables[0])
        if i in self.snapshots and self.rng.random() < 0.7:
            again, name = self.restore(*self.snapshots[i]), "prefix hit"
        else:
            again, name = self.model.new_state(), "resume from nothing"
            again.tables[0] = self.pool.take(len(state.tables[0]))
        return self.prefill(i, again, min(n + self.rng.choice((0, 0, 7)), len(self.prompts[i]) - 1), name)

    def poison(self) -> HybridState:
        """A neighbour whose state and pages are not numbers at all."""
        state = self.model.new_state()
        state.positions = [self.rng.randrange(2 * self.block)]
        state.layers = {
            i: LayerState.of({n: t.fill_(torch.nan) for n, t in s.tensors().items()}) for i, s in state.layers.items()
        }
        state.tables[0] = self.pool.take(3)
        self.pool.pages[state.tables[0]] = torch.nan
        return state

    def switch_threads(self) -> None:
        torch.set_num_threads(self.rng.choice(self.threads))

    def check(self, name: str, i: int, position: int, logits: Tensor) -> None:
        self.tally.checked[name] += 1
        if logits_bytes(logits) != self.expected[i][position]:
            expected = torch.frombuffer(bytearray(self.expected[i][position]), dtype=torch.float32)
            size = (logits.cpu().float() - expected).abs().max().item()
            self.tally.mismatches.append(Mismatch(name, i, position, size))

    def check_state(self, name: str, i: int, state: HybridState) -> None:
        """Compare everything the request holds with what one call over the same tokens leaves."""
        n = state.positions[0]
        self.tally.checked[f"{name}: state"] += 1
        if state_bytes(self.model, state, self.pool.pages) != self.one_shot(self.prompts[i][:n])[1]:
            self.tally.mismatches.append(Mismatch(f"{name}: state", i, n, 0.0))
