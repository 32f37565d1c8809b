"""The paper's numbers beside ours, and what each comparison proves.

Our throughput model and planner (equations 1 to 8 of arXiv 2604.15039) are fed with the paper's profiles and asked for
the cells of its tables. Every cell is marked:

  stated     the paper says it; repeated here for reference
  anchor     our model was calibrated on it, so agreement is no evidence
  predicted  it came out of the model; it should agree within 1 %, and what does not is said

All of it is modelled, in the paper as here: no cell of these tables was measured end to end.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from prfaas_ref.scheduler.paper import Cell, cells, figure5, kv_rates
from prfaas_ref.scheduler.report import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw figure 5, KV sizes and KV rates into DIR")


def run(args: argparse.Namespace) -> int:
    found = cells()
    if args.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print(as_text(found))
    if args.plot:
        from prfaas_ref.scheduler.plots import plot_paper

        files = plot_paper(args.plot)
        if not args.json:
            print("\nwrote " + ", ".join(map(str, files)))
    return 0


def as_json(found: list[Cell]) -> dict[str, object]:
    rows = [{**asdict(cell), "error": cell.error, "reproduced": cell.reproduced} for cell in found]
    predicted = [cell for cell in found if cell.reproduced is not None]
    return {
        "cells": rows,
        "predicted": len(predicted),
        "reproduced": sum(bool(cell.reproduced) for cell in predicted),
        "not_reproduced": [cell.name for cell in predicted if not cell.reproduced],
        "figure5": {name: asdict(curve) for name, curve in figure5().items()},
        "internal_model_kv_rate_gbps": kv_rates(),
    }


def as_text(found: list[Cell]) -> str:
    parts = []
    for name in dict.fromkeys(cell.table for cell in found):
        rows = [_row(cell) for cell in found if cell.table == name]
        parts.append(f"{name}\n" + table(("", "paper", "ours", "error", "mark", ""), rows))
    predicted = [cell for cell in found if cell.reproduced is not None]
    missed = [cell for cell in predicted if not cell.reproduced]
    parts.append(f"{len(predicted) - len(missed)} of {len(predicted)} predicted cells reproduced (1 %, or two digits).")
    parts += [f"Not reproduced: {c.table}, {c.name}: paper {c.paper:g}, ours {c.ours:.4g}." for c in missed]
    return "\n\n".join(parts)


def _row(cell: Cell) -> tuple[object, ...]:
    error = "-" if cell.error is None or cell.mark == "stated" else f"{100 * cell.error:+.2f} %"
    verdict = "" if cell.reproduced is not False else "not reproduced"
    return cell.name, cell.paper, float(cell.ours), error, cell.mark, verdict
