"""Continuous batching: requests join and leave between steps, and a step gives every running request its next token.

Nobody's bits depend on who else is in the batch. A request that turns non-finite fails alone and publishes nothing
more.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prfaas_ref.cache.allocation import Allocation
from prfaas_ref.model.generation import greedy
from prfaas_ref.model.state import HybridState
from prfaas_ref.serving.engine import Engine


@dataclass
class Running:
    """One request: its blocks, its newest token (not yet processed), and how many more it may have."""

    key: str
    alloc: Allocation
    token: int
    remaining: int
    rolling: tuple[int, Tensor] | None = None  # the state at its last block end: the snapshot to keep when it ends


@dataclass(frozen=True)
class Step:
    """What a step did for one request: a token with the logits it was drawn from, or an error that ended it."""

    key: str
    token: int = 0
    logits: Tensor | None = None
    finished: bool = False
    error: str = ""


class DecodeBatch:
    """The running requests of a decode worker, side by side in one state."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.running: list[Running] = []
        self._state: HybridState | None = None

    def join(self, request: Running, state: HybridState) -> bool:
        """Take a request in, with the state after all tokens but its newest. False if it was finished already."""
        if self._finished(request):
            self._end(request)
            return False
        self._state = state if self._state is None else HybridState.stack([self._state, state])
        self.running.append(request)
        self._keep_rolling([len(self.running) - 1])
        return True

    def leave(self, key: str) -> bool:
        """Let a request go; what it published stays cached. False if it is not running."""
        left = [r for r in self.running if r.key == key]
        for request in left:
            self._end(request)
        self._drop({r.key for r in left})
        return bool(left)

    def step(self) -> list[Step]:
        """One token for every running request. Finished and failed ones have left afterwards."""
        engine, state = self.engine, self._state
        assert state is not None
        with engine.lock:
            for request in self.running:  # within the blocks it was given at the start
                engine.pool.index.extend(request.alloc, [request.token])
        state.tables = [request.alloc.block_table for request in self.running]
        tokens = torch.tensor([[request.token] for request in self.running])
        with torch.inference_mode():
            logits = engine.model.forward(tokens, state, engine.pool.blocks.pages)[:, 0]
        steps = [self._advance(request, row) for request, row in zip(self.running, logits, strict=True)]
        failed = {step.key for step in steps if step.error}
        block = engine.model.config.grid.block
        self._keep_rolling(
            [i for i, r in enumerate(self.running) if state.positions[i] % block == 0 and r.key not in failed]
        )
        for request in self.running:
            if request.key in failed:
                engine.free(request.alloc)
            elif self._finished(request):
                self._end(request)
        self._drop(failed | {r.key for r in self.running if self._finished(r)})
        return steps

    def _advance(self, request: Running, logits: Tensor) -> Step:
        try:
            request.token = greedy(logits)
        except FloatingPointError as error:
            return Step(request.key, error=f"NonFinite: {error}")
        request.remaining -= 1
        return Step(request.key, request.token, logits, self._finished(request))

    def _finished(self, request: Running) -> bool:
        return request.remaining == 0 or request.token in self.engine.model.config.end_tokens

    def _keep_rolling(self, rows: list[int]) -> None:
        """Where a request stands at a block end: publish the block, and keep a copy of the state."""
        engine, state = self.engine, self._state
        assert state is not None
        for row in rows:
            position = state.positions[row]
            if position % engine.model.config.grid.block == 0:
                if layers := [engine.snapshot.pack(i, memory, row) for i, memory in state.layers.items()]:
                    self.running[row].rolling = position, torch.cat(layers)
                engine.publish(self.running[row].alloc, position, {})

    def _end(self, request: Running) -> None:
        """Publish what a next turn can start from, and give the rest back."""
        if request.rolling:
            position, snapshot = request.rolling
            self.engine.publish(request.alloc, request.alloc.committed_tokens, {position: snapshot})
        self.engine.free(request.alloc)

    def _drop(self, keys: set[str]) -> None:
        if not keys:
            return
        rows = [i for i, request in enumerate(self.running) if request.key not in keys]
        self.running = [self.running[i] for i in rows]
        self._state = self._state.select(rows) if rows and self._state else None
