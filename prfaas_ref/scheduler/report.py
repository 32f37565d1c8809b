"""Plain text tables, and files written whole or not at all. Knows nothing of what is in them."""

import os
import tempfile
from collections.abc import Sequence
from math import inf
from pathlib import Path

from prfaas_ref.errors import UserError


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns padded to their widest cell; a column of numbers is set to the right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float) and abs(cell) < 1000:
        return f"{cell:.4g}"
    if isinstance(cell, int | float) and cell not in (inf, -inf):
        return f"{cell:,.0f}"
    return str(cell)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of it or the old one. Raises UserError."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same as a Markdown table."""
    lines = [header, ["---"] * len(header), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
