"""The demo's prompts: real text at hand, in the mixture that a serving system meets.

Short and long ones, some that share a long beginning, some that come again word for word, and conversations whose
second turn continues the first one's answer. Without files, the text is this package's own source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    """One prompt. follows: a request whose prompt and answer come first; waits_for: one that must be over by then."""

    request_id: str
    text: bytes
    kind: str
    follows: str = ""
    waits_for: str = ""

    @property
    def depends_on(self) -> str:
        return self.follows or self.waits_for


def own_source() -> bytes:
    """This package's source, all of it."""
    root = Path(__file__).parent.parent
    return b"\n".join(path.read_bytes() for path in sorted(root.rglob("*.py")))


def from_files(texts: Sequence[bytes], n_requests: int) -> list[Prompt]:
    """Each text is one prompt, whole; beyond the last they come again, after their first time is over."""
    prompts: list[Prompt] = []
    for i in range(n_requests):
        earlier = f"r{i - len(texts) + 1:02}" if i >= len(texts) else ""
        prompts.append(Prompt(f"r{i + 1:02}", texts[i % len(texts)], "again" if earlier else "file", waits_for=earlier))
    return prompts


def mixture(source: bytes, n_requests: int) -> list[Prompt]:
    """Rounds of twelve prompts cut from `source`, each round from text of its own."""
    prompts: list[Prompt] = []
    for start in count(0, 32_000):
        for prompt in one_round(source, start, len(prompts) + 1):
            if len(prompts) == n_requests:
                return prompts
            prompts.append(prompt)
    raise AssertionError("unreachable")


def one_round(source: bytes, start: int, first: int) -> Iterator[Prompt]:
    def cut(offset: int, length: int) -> bytes:
        begin = (start + offset) % max(1, len(source) - length)
        return source[begin : begin + length]

    name = [f"r{first + i:02}" for i in range(12)]
    shared = cut(3_000, 3_000)
    yield Prompt(name[0], cut(0, 230), "short")
    yield Prompt(name[1], cut(300, 2_500), "long")
    yield Prompt(name[2], shared + cut(6_000, 1_200), "long")
    yield Prompt(name[3], cut(7_300, 650), "short")
    yield Prompt(name[4], shared + cut(8_000, 800), f"begins like {name[2]}", waits_for=name[2])
    yield Prompt(name[5], shared + cut(9_000, 1_500), f"begins like {name[2]}", waits_for=name[4])
    yield Prompt(name[6], cut(300, 2_500), f"{name[1]} again", waits_for=name[1])
    yield Prompt(name[7], cut(10_500, 400), f"2nd turn of {name[2]}", follows=name[2])
    yield Prompt(name[8], cut(11_000, 900), "short")
    yield Prompt(name[9], cut(12_000, 6_000), "long")
    yield Prompt(name[10], cut(18_000, 150), f"2nd turn of {name[3]}", follows=name[3])
    yield Prompt(name[11], cut(18_200, 3_333), "long")
