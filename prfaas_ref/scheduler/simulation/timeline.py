"""A run as a Chrome trace (chrome://tracing, Perfetto): a row per worker, one for the link.

Knows nothing of the run but its spans. Prefills do not overlap on a worker and are slices; decodes and transfers do,
and are asynchronous spans named by their request.
"""

import json
from collections.abc import Sequence

from prfaas_ref.scheduler.simulation.log import Span


def chrome_trace(spans: Sequence[Span]) -> str:
    """JSON in the trace event format; times in microseconds of virtual time."""
    rows = {where: row for row, where in enumerate(dict.fromkeys(span.where for span in spans))}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": where}} for where, row in rows.items()
    ]
    for span in spans:
        events += _events(span, rows[span.where])
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(span: Span, row: int) -> list[dict[str, object]]:
    base: dict[str, object] = {"name": span.name, "cat": span.name, "pid": 0, "tid": row}
    start, end = 1e6 * span.start_s, 1e6 * span.end_s
    if span.name == "prefill":
        return [{**base, "ph": "X", "ts": start, "dur": end - start, "args": {"request": span.request}}]
    name = f"{span.name} {span.request}"
    base |= {"name": name, "id": name}
    return [{**base, "ph": "b", "ts": start}, {**base, "ph": "e", "ts": end}]
