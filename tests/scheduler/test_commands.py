import argparse
import importlib
import json
import subprocess
import sys

import pytest

from prfaas_ref.scheduler.planner import Infeasible
from prfaas_ref.scheduler.scenario import EXAMPLE


def run(capsys, name, *words):
    """One subcommand's standard output."""
    module = importlib.import_module(f"prfaas_ref.commands.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert module.run(parser.parse_args([str(word) for word in words])) == 0
    return capsys.readouterr().out


def test_paper(capsys):
    found = json.loads(run(capsys, "paper", "--json"))
    assert found["not_reproduced"] == ["mean egress, Gbps"]
    assert {c["mark"] for c in found["cells"]} == {"stated", "anchor", "predicted"}
    text = run(capsys, "paper")
    assert "Not reproduced: table 6, mean egress, Gbps: paper 13, ours 12.37" in text


def test_plan(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(run(capsys, "plan", "--example"))
    assert path.read_text() == EXAMPLE
    found = json.loads(run(capsys, "plan", path, "--json"))
    assert (found["n_prfaas"], found["n_pd_prefill"], found["n_pd_decode"]) == (4, 3, 5)
    assert found["compared_with"]["homogeneous, equal count"]["gain"] == pytest.approx(0.539, abs=1e-3)
    assert found["compared_with"]["homogeneous, equal cost"]["gain"] == pytest.approx(0.154, abs=1e-3)
    assert found["compared_with"]["naive, same instances"]["gain"] == pytest.approx(0.315, abs=1e-3)
    assert "Binding: prfaas compute" in run(capsys, "plan", path)


def test_plan_buys_instances_or_says_what_forbids_it(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(EXAMPLE.replace("# demand_per_s = 3.0", "demand_per_s = 3.0"))
    assert json.loads(run(capsys, "plan", path, "--json"))["cost_per_hour"] == 15
    path.write_text(EXAMPLE.replace("# demand_per_s = 3.0", "demand_per_s = 50"))
    with pytest.raises(Infeasible, match="demand"):
        run(capsys, "plan", path)


def test_scheduler_and_its_commands_do_not_import_torch():
    code = (
        "import sys, pkgutil, importlib, prfaas_ref.scheduler as s, prfaas_ref.commands.plan as p\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(s.__path__, 'prfaas_ref.scheduler.')]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
