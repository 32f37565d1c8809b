"""Figures: the paper's curves and a simulation's. Knows nothing of how the numbers came to be.

The only file here that wants matplotlib: `pip install prfaas_ref[plot]`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler import paper_data as data
from prfaas_ref.scheduler.paper import Curve, deployments, figure5
from prfaas_ref.units import MIB


def _figure() -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("plots need matplotlib: pip install 'prfaas_ref[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=144)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)
    return path


def plot_paper(folder: Path) -> list[Path]:
    """KV size by length, KV rate by length, and both panels of figure 5. Returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    curves, best = figure5(), deployments().prfaas_pd
    return [
        _plot_kv_size(folder / "kv_size.png"),
        _plot_kv_rate(folder / "kv_rate.png"),
        _plot_curve(curves["N_p"], "PD prefill instances N_p", best.counts.pd_prefill, folder / "figure5_split.png"),
        _plot_curve(curves["t"], "threshold t, tokens", best.threshold_tokens, folder / "figure5_threshold.png"),
    ]


def _plot_kv_size(path: Path) -> Path:
    figure, axes = _figure()
    for model, size in data.MODEL_BYTES.items():
        style = "--" if model in data.DENSE else "-"
        axes.loglog(data.TABLE3_LENGTHS, [size.bytes(n) / MIB for n in data.TABLE3_LENGTHS], style, label=model)
    axes.set(xlabel="prompt, tokens", ylabel="S_kv, MiB (derived)", title="KV cache by prompt length (dashed: dense)")
    axes.legend(fontsize=8)
    return _save(figure, path)


def _plot_kv_rate(path: Path) -> Path:
    figure, axes = _figure()
    for model, rates in data.TABLE3_GBPS.items():
        axes.loglog(data.TABLE3_LENGTHS, rates, "--" if model in data.DENSE else "-", marker="o", label=model)
    axes.set(xlabel="prompt, tokens", ylabel="Phi_kv, Gbps (stated)", title="KV rate of one 8 x H200 instance, table 3")
    axes.legend(fontsize=8)
    return _save(figure, path)


def _plot_curve(curve: Curve, x_label: str, best: float, path: Path) -> Path:
    figure, axes = _figure()
    for name, values in curve.series.items():
        axes.plot(curve.x, values, label=name, linewidth=2.5 if name == "Lambda_max" else 1.2)
    axes.axvline(best, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel=x_label, ylabel="requests/s (modelled)", ylim=(0, 8), title="Figure 5: what bounds the throughput")
    axes.legend(fontsize=8)
    return _save(figure, path)


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def plot_lines(path: Path, title: str, x_label: str, y_label: str, series: Series) -> Path:
    """One panel of lines, `series` being name -> (x, y)."""
    figure, axes = _figure()
    for name, (x, y) in series.items():
        axes.plot(x, y, label=name)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.legend(fontsize=8)
    return _save(figure, path)
