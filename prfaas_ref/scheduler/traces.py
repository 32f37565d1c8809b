"""Readers of public request traces: Mooncake's JSON lines and Azure's CSV, from a path that the user gives.

Knows nothing of simulation. A Mooncake line has `timestamp` (ms), `input_length`, `output_length` and, or not,
`hash_ids`, one per block of 512 tokens, the last of which may be begun only; an Azure row has TIMESTAMP (UTC where it
names no zone), ContextTokens and GeneratedTokens.
"""

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil, isfinite
from pathlib import Path
from typing import Literal

from prfaas_ref.errors import UserError
from prfaas_ref.request import Request

TraceFormat = Literal["mooncake", "azure"]
HASH_BLOCK_TOKENS = 512
ID_LIMIT = 2**31  # hash ids are below this, and lengths too


def read_trace(path: Path, trace_format: TraceFormat, limit: int | None = None) -> list[Request]:
    """The trace's requests in order of arrival, the first at 0 s. Raises UserError with the line that is wrong."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = _mooncake(file) if trace_format == "mooncake" else _azure(file)
            return list(_requests(rows, limit))
    except OSError as error:
        raise UserError(f"cannot read trace {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"trace {path} is not text") from error
    except _BadRow as error:
        raise UserError(f"trace {path}, line {error.line}: not a {trace_format} row ({error.why})") from error


class _BadRow(Exception):
    def __init__(self, line: int, why: object) -> None:
        self.line, self.why = line, why


_Row = tuple[int, float, int, int, tuple[int, ...]]  # line, seconds, prompt tokens, output tokens, hash ids


def _requests(rows: Iterator[_Row], limit: int | None) -> Iterator[Request]:
    kept: list[_Row] = []
    for row in rows:
        if limit is not None and len(kept) >= limit:
            break
        kept.append(row)
    kept.sort(key=lambda row: row[1])
    for number, (line, seconds, prompt, output, hash_ids) in enumerate(kept):
        try:
            yield Request(f"r{number}", seconds - kept[0][1], prompt, max(1, output), hash_ids=hash_ids)
        except ValueError as error:
            raise _BadRow(line, error) from error


def _mooncake(file: Iterator[str]) -> Iterator[_Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            prompt, ids = _whole(row["input_length"]), tuple(map(_whole, row.get("hash_ids", ())))
            blocks = ceil(prompt / HASH_BLOCK_TOKENS)
            if ids and len(ids) != blocks:
                raise ValueError(f"{len(ids)} hash_ids for {blocks} blocks: ids name blocks of 512 tokens")
            yield line, _finite(row["timestamp"]) / 1e3, prompt, _whole(row["output_length"]), ids
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _BadRow(line, error) from error


def _azure(file: Iterator[str]) -> Iterator[_Row]:
    for line, row in enumerate(csv.DictReader(file), 2):
        try:
            when = datetime.fromisoformat(row["TIMESTAMP"])
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
            yield line, seconds, _whole(row["ContextTokens"]), _whole(row["GeneratedTokens"]), ()
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise _BadRow(line, error) from error


def _whole(value: str | float) -> int:
    number = int(value)
    if not 0 <= number < ID_LIMIT:
        raise ValueError(f"{value} is not from 0 to below 2**31")
    return number


def _finite(value: str | float) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"{value} is not a time")
    return number
