"""Whether to take a request at all: a bound on its predicted TTFT, and one on the bytes already owed to the link.

Knows nothing of queues beyond the estimates it is given. A refused request costs nothing and says which bound it met;
it still counts against goodput.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

Bound = Literal["predicted ttft", "bytes in flight"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The bounds; infinite ones admit everything."""

    max_ttft_s: float = inf
    max_link_bytes: float = inf

    def exceeded(self, predicted_ttft_s: float, link_bytes: float) -> Bound | None:
        """The bound that a request would break, with `link_bytes` in flight if it were admitted. None: admit it."""
        if predicted_ttft_s > self.max_ttft_s:
            return "predicted ttft"
        if link_bytes > self.max_link_bytes:
            return "bytes in flight"
        return None
