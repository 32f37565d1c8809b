"""Where a request should leave a snapshot: the admission policy of state, which is large and hit at one length only.

KV is admitted always, block by block. For state the choice decides the hit ratio: `last` keeps what a repeat and a next
turn hit, `branch` (the default) adds the point where this prompt left the prompts before it, and `every:N` a grid.
Pure: lengths in, lengths out. All are best effort: a snapshot without room is not taken.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SnapshotPolicy:
    """kind, and for `every` the distance in tokens, rounded up to blocks."""

    kind: Literal["last", "branch", "every"] = "branch"
    every_tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> "SnapshotPolicy":
        """`last`, `branch` or `every:N`. Raises ValueError for anything else."""
        if text in ("last", "branch"):
            return cls("last" if text == "last" else "branch")
        kind, _, number = text.partition(":")
        if kind == "every" and number.isdecimal() and int(number) > 0:
            return cls("every", int(number))
        raise ValueError(f"a snapshot policy is last, branch or every:N tokens, not {text!r}")

    def in_prefill(self, block_size: int, prompt_tokens: int, cached_tokens: int, branch_tokens: int) -> list[int]:
        """The lengths to keep state at, ascending, for a prompt computed from `cached_tokens` on.

        The deepest block end that a repeat of the prompt can hit, the prompt's own last block end when that is another,
        and what the policy adds. branch_tokens is how deep the KV matched.
        """
        points = {(prompt_tokens - 1) // block_size * block_size, prompt_tokens // block_size * block_size}
        if self.kind == "branch":
            points.add(branch_tokens)
        elif self.kind == "every":
            step = -(-self.every_tokens // block_size) * block_size
            points.update(range(step, prompt_tokens + 1, step))
        return sorted([point for point in points if point > cached_tokens])

    def at_end(self, block_size: int, num_tokens: int) -> int:
        """The length of decode's rolling snapshot to publish when the request ends; 0 for none."""
        return num_tokens // block_size * block_size
