"""One row of an experiment: labels, and a function that fills in the rest. Knows nothing of any experiment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`labels` name the row; `run` computes its figures, in the order in which they are shown."""

    labels: Mapping[str, Any]
    run: Callable[[], Row]

    def row(self) -> Row:
        return {**self.labels, **self.run()}


def latencies(found: Mapping[str, Any]) -> Row:
    """The columns that every experiment shows."""
    return {
        "mean TTFT, s": found["mean_ttft_ms"] / 1e3,
        "P90 TTFT, s": found["p90_ttft_ms"] / 1e3,
        "P99 TTFT, s": found["p99_ttft_ms"] / 1e3,
        "within SLO, %": 100 * found["slo_attainment"],
    }
