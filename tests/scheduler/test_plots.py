import pytest

from prfaas_ref.errors import UserError
from tests.scheduler.test_commands import run

PNG = b"\x89PNG"


def test_figures_are_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    run(capsys, "paper", "--plot", tmp_path / "figures")
    drawn = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert drawn == ["figure5_split.png", "figure5_threshold.png", "kv_rate.png", "kv_size.png"]
    run(capsys, "simulate", "--requests", 100, "--plot", tmp_path / "run.png")
    for path in [tmp_path / "run.png", *(tmp_path / "figures").iterdir()]:
        assert path.read_bytes().startswith(PNG)


def test_without_matplotlib_the_remedy_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"prfaas_ref\[plot\]"):
        run(capsys, "paper", "--plot", tmp_path)
