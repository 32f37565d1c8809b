"""The demo's prompts: text at hand, in the mixture that a serving system meets.

Short and long ones, some that share a long beginning, some that come again word for word, and conversations whose
second turn continues the first one's answer. The trained toy is given documents with facts in them and asked for one,
so that a person can check its answer; any other model is given this package's own source text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from prfaas_ref.model.facts import Document, Fact, document

Write = Callable[[int], Document]


@dataclass(frozen=True)
class Prompt:
    """One prompt. follows: a request whose prompt and answer come first; waits_for: one that must be over by then.
    asked: the fact that the prompt ends by asking for, if any.
    """

    request_id: str
    text: bytes
    kind: str
    follows: str = ""
    waits_for: str = ""
    asked: Fact | None = None

    @property
    def depends_on(self) -> str:
        return self.follows or self.waits_for


def from_files(texts: Sequence[bytes], n_requests: int) -> list[Prompt]:
    """Each text is one prompt, whole; beyond the last they come again, after their first time is over."""
    prompts: list[Prompt] = []
    for i in range(n_requests):
        earlier = f"r{i - len(texts) + 1:02}" if i >= len(texts) else ""
        prompts.append(Prompt(f"r{i + 1:02}", texts[i % len(texts)], "again" if earlier else "file", waits_for=earlier))
    return prompts


def documents(seed: int) -> Write:
    """Writes documents of about so many bytes, with facts in them, one after another."""
    random = Random(seed)
    return lambda n_bytes: document(random, n_bytes - 50, n_facts=8 if n_bytes > 1000 else 3)


def own_source() -> Write:
    """Cuts this package's source text, piece after piece, without end."""
    root = Path(__file__).parent.parent
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))
    place = 0

    def write(n_bytes: int) -> Document:
        nonlocal place
        place = (place + n_bytes) % (len(source) - n_bytes)
        return Document(source[place : place + n_bytes], ())

    return write


def mixture(write: Write, n_requests: int) -> list[Prompt]:
    """Rounds of twelve prompts, each round of new text."""
    prompts: list[Prompt] = []
    for first in count(1, 12):
        prompts += one_round(write, first)
        if len(prompts) >= n_requests:
            return prompts[:n_requests]
    raise AssertionError("unreachable")


def one_round(write: Write, first: int) -> Iterator[Prompt]:
    name = [f"r{first + i:02}" for i in range(12)]
    long, longer, short = write(2_500), write(4_200), write(650)
    yield ask(name[0], write(230), "short")
    yield ask(name[1], long, "long")
    yield ask(name[2], longer, "long")
    yield ask(name[3], short, "short")
    yield ask(name[4], begins_like(longer, write(800)), f"begins like {name[2]}", waits_for=name[2])
    yield ask(name[5], begins_like(longer, write(1_500)), f"begins like {name[2]}", waits_for=name[4])
    yield ask(name[6], long, f"{name[1]} again", waits_for=name[1])
    yield next_turn(name[7], longer, name[2])
    yield ask(name[8], write(900), "short")
    yield ask(name[9], write(6_000), "long")
    yield next_turn(name[10], short, name[3])
    yield ask(name[11], write(3_333), "long")


def ask(request_id: str, text: Document, kind: str, waits_for: str = "") -> Prompt:
    """The document, and the question for its first fact."""
    asked = text.facts[0] if text.facts else None
    prompt = text.prompt(asked) if asked else text.text.encode()
    return Prompt(request_id, prompt, kind, waits_for=waits_for, asked=asked)


def next_turn(request_id: str, text: Document, first: str) -> Prompt:
    """Another question to the document of an earlier request, after that one's answer."""
    asked = text.facts[-1] if text.facts else None
    question = f"\n{asked.question}" if asked else "\n# And then?\n"
    return Prompt(request_id, question.encode(), f"2nd turn of {first}", follows=first, asked=asked)


def begins_like(text: Document, rest: Document, n_bytes: int = 3_000) -> Document:
    """The first n_bytes of one document, to the end of a sentence, then another; asked for what the first part says."""
    kept = text.text[: text.text.rfind(" ", 0, n_bytes)]
    facts = tuple(fact for fact in text.facts if fact.sentence in kept)
    return Document(f"{kept} {rest.text}", facts or rest.facts)
