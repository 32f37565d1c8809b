"""Which block numbers are free. Knows nothing of what a block holds."""

import sys
from collections.abc import Iterable


class BlockIds:
    """The numbers 0..num_blocks-1, handed out and taken back; without `num_blocks` there is no end to them."""

    def __init__(self, num_blocks: int | None) -> None:
        if num_blocks is not None and num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = sys.maxsize if num_blocks is None else num_blocks
        self.returned: list[int] = []
        self.minted = 0  # numbers from here on were never handed out

    @property
    def num_free(self) -> int:
        return len(self.returned) + self.num_blocks - self.minted

    def take(self, count: int) -> list[int]:
        """`count` free numbers. The caller has made sure that there are so many."""
        keep = max(0, len(self.returned) - count)
        taken = self.returned[keep:]
        del self.returned[keep:]
        fresh = count - len(taken)
        taken.extend(range(self.minted, self.minted + fresh))
        self.minted += fresh
        return taken

    def give_back(self, ids: Iterable[int]) -> None:
        self.returned.extend(ids)
