"""The clock of the simulator: a queue of events ordered by (time, priority, sequence).

Knows nothing of what the events do. The sequence makes ties deterministic: first scheduled, first run. A handler is a
function of one argument; time stands in `now_s`.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

# At one instant the world changes first, then work ends, then new work arrives.
WORLD, ENDING, ARRIVAL = 0, 1, 2

Handler = Callable[[Any], None]


class EventQueue:
    """Pending events. `processed` counts those that ran."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.processed = 0
        self._heap: list[tuple[float, int, int, Handler, Any]] = []
        self._sequence = count()

    def at(self, time_s: float, priority: int, handler: Handler, argument: Any = None) -> None:
        """Schedule `handler(argument)`. Raises ValueError for a time that has passed."""
        if time_s < self.now_s:
            raise ValueError(f"cannot schedule at {time_s}: it is {self.now_s} already")
        heapq.heappush(self._heap, (time_s, priority, next(self._sequence), handler, argument))

    def run(self, until_s: float) -> None:
        """Run everything due up to and including `until_s`, or until nothing is pending."""
        heap, pop = self._heap, heapq.heappop
        processed = 0
        try:
            while heap and heap[0][0] <= until_s:
                self.now_s, _, _, handler, argument = pop(heap)
                processed += 1
                handler(argument)
        finally:
            self.processed += processed

    def __len__(self) -> int:
        return len(self._heap)
