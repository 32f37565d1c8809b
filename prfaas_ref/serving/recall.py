"""Does what was read survive the hand-off? Documents with facts are read in one process and asked about in another.

Every question is one request: a fresh document, a line break, the question. The prefill worker reads it, its cache
crosses to the decode worker, and the digits of the answer are drawn there. The same is computed in this process alone,
where several answers part at the hand-off: one with all that was handed over, which must equal the served one to the
byte, and controls with a part of it blanked, which show what that part carries.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from prfaas_ref.model.config import as_bytes
from prfaas_ref.model.facts import Document, Filler, document, sentence
from prfaas_ref.model.generation import PIECE, greedy, logits_bytes, prefill
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.state import HybridState
from prfaas_ref.request import Request
from prfaas_ref.serving.front_end import FrontEnd, Served

ANSWER_TOKENS = 4
"""A space, two digits, a full stop."""


@dataclass(frozen=True)
class Sample:
    """One document of about `context` tokens, and all its facts to be asked."""

    name: str
    context: int
    document: Document


def draw_samples(
    contexts: Iterable[int], n_samples: int, n_facts: int, seed: int, filler: Filler = sentence
) -> list[Sample]:
    """Fresh documents; those of one context do not depend on which others are asked for."""
    return [
        Sample(f"{context}.{i}", context, document(Random(f"recall {seed} {context} {i}"), context, n_facts, filler))
        for context in contexts
        for i in range(n_samples)
    ]


@dataclass
class Answer:
    """The tokens drawn for one question, and the digest over the logits they were drawn from."""

    tokens: list[int]
    digest: Any

    @classmethod
    def start(cls, logits: Tensor) -> "Answer":
        answer = cls([], hashlib.sha256())
        answer.add(logits)
        return answer

    def add(self, logits: Tensor) -> None:
        self.tokens.append(greedy(logits))
        self.digest.update(logits_bytes(logits))


def says(tokens: Sequence[int]) -> str:
    """The first number in an answer, as its digits; empty if there is none."""
    match = re.search(rb"\d+", as_bytes(tokens))
    return match[0].decode() if match else ""


# In this process alone ------------------------------------------------------------------------------------------------

CONTROLS = ("accuracy", "state_zeroed", "pages_zeroed", "state_bfloat16")
"""What is decoded with: all that was handed over; all but the recurrent state; all but the attention pages; all, but
the recurrent state rounded to bfloat16, which the hand-off never does."""


@torch.inference_mode()
def ask_alone(model: HybridModel, text: Document) -> list[dict[str, Answer]]:
    """For every fact of a document, the answers by control. The document is read once, and asked about from there."""
    read = list(text.text.encode())
    prompts = [list(text.prompt(fact)) for fact in text.facts]
    table = PageTable(model, len(read), max(map(len, prompts)) + ANSWER_TOKENS, 1 + len(prompts) * (1 + len(CONTROLS)))
    after_text = model.new_state()
    after_text.tables[0] = table.own()
    prefill(model, read, after_text, table.pages, cuts=range(0, len(read), PIECE))
    states, answers = [], []
    for prompt in prompts:
        asked = after_text.select([0])
        asked.tables[0] = table.own(copy=after_text.tables[0])
        logits = prefill(model, prompt[len(read) :], asked, table.pages)
        answers.append({control: Answer.start(logits) for control in CONTROLS})
        states += [part_at_hand_off(control, asked, table, model) for control in CONTROLS]
    decode(model, HybridState.stack(states), table.pages, [answer for each in answers for answer in each.values()])
    return answers


class PageTable:
    """Pages for several continuations of one text: its full pages are shared, each has the later ones for itself."""

    def __init__(self, model: HybridModel, n_shared_tokens: int, n_tokens: int, n_owners: int) -> None:
        block = model.config.grid.block
        self.n_shared = n_shared_tokens // block
        self.n_own = -(-n_tokens // block) - self.n_shared
        self.pages = model.new_pages(1 + self.n_shared + n_owners * self.n_own)
        self._next = 1 + self.n_shared

    def own(self, copy: list[int] | None = None, blank: bool = False) -> list[int]:
        """The table of one more owner. copy: a table whose own pages it starts with. blank: shared pages all zeros."""
        mine = list(range(self._next, self._next + self.n_own))
        self._next += self.n_own
        if copy is not None:
            self.pages[mine] = self.pages[copy[self.n_shared :]]
        return ([0] * self.n_shared if blank else list(range(1, 1 + self.n_shared))) + mine


def part_at_hand_off(control: str, asked: HybridState, table: PageTable, model: HybridModel) -> HybridState:
    """What decode gets of a request's state and pages."""
    state = model.new_state() if control == "state_zeroed" else asked.select([0])
    state.positions = list(asked.positions)
    state.tables[0] = table.own(blank=True) if control == "pages_zeroed" else table.own(copy=asked.tables[0])
    if control == "state_bfloat16":
        for layer in state.layers.values():
            for name, tensor in layer.tensors().items():
                setattr(layer, name, tensor.bfloat16().to(tensor.dtype))
    return state


def decode(model: HybridModel, state: HybridState, pages: Tensor, answers: list[Answer]) -> None:
    """Continue all answers side by side: nobody's bits depend on who shares the batch."""
    for _ in range(ANSWER_TOKENS - 1):
        tokens = torch.tensor([answer.tokens[-1:] for answer in answers])
        for answer, logits in zip(answers, model.forward(tokens, state, pages)[:, 0], strict=True):
            answer.add(logits)


# Through two processes ------------------------------------------------------------------------------------------------


async def serve(
    front: FrontEnd, samples: Sequence[Sample], deadline_s: float, on_done: Callable[[int], object]
) -> list[list[Served]]:
    """Serve every question, a document's first before its others, which find the document cached. on_done(1) each."""

    async def ask(name: str, prompt: bytes) -> Served:
        now = asyncio.get_running_loop().time()
        served = await front.serve(Request(name, now, len(prompt), ANSWER_TOKENS, list(prompt)), deadline_s)
        on_done(1)
        return served

    results = []
    for sample in samples:
        prompts = [(f"{sample.name}.{i}", sample.document.prompt(fact)) for i, fact in enumerate(sample.document.facts)]
        first = await ask(*prompts[0])
        results.append([first, *await asyncio.gather(*(ask(*prompt) for prompt in prompts[1:]))])
    return results


# Together -------------------------------------------------------------------------------------------------------------


def report(
    samples: Sequence[Sample], served: list[list[Served]], alone: list[list[dict[str, Answer]]]
) -> dict[str, dict[str, Any]]:
    """Per context: the share of facts told right, by control, and whether every served answer was exact."""
    contexts: dict[str, dict[str, Any]] = {}
    for context in dict.fromkeys(sample.context for sample in samples):
        of = [
            (fact, result, answers)
            for sample, results, answered in zip(samples, served, alone, strict=True)
            if sample.context == context
            for fact, result, answers in zip(sample.document.facts, results, answered, strict=True)
        ]
        row = contexts[str(context)] = {}
        for control in CONTROLS:
            right = [says(answers[control].tokens) == str(fact.code) for fact, _, answers in of]
            row[control] = sum(right) / len(right)
        row["exact"] = all(exact(result, answers["accuracy"]) for _, result, answers in of)
    return contexts


def exact(served: Served, alone: Answer) -> bool:
    """The same tokens, drawn from the same bytes of logits."""
    complete = served.record.status == "completed"
    return complete and served.tokens == alone.tokens and served.digest.digest() == alone.digest.digest()
