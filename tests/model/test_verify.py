"""The falsification campaign can find faults, names the seed that repeats them, and says so by its exit status."""

import argparse
import json

import pytest

from prfaas_ref.commands import verify
from prfaas_ref.model.campaign import Walk
from prfaas_ref.model.unconstrained import with_recurrent_decode
from tests.model.shapes import model_of


def test_a_walk_finds_a_plain_recurrent_decode() -> None:
    walk = Walk(with_recurrent_decode(model_of("toy")), seed=2, n_requests=2, max_tokens=60, threads=(1,))
    assert len(walk.run().mismatches) > 10


def test_a_walk_repeats_itself() -> None:
    first, again = (Walk(model_of("two heads"), 5, 2, 80, (1,)).run() for _ in range(2))
    assert first.checked == again.checked


def test_the_command_reports_counts_and_the_control(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    assert verify.run(parser.parse_args(["--seed", "4", "--model", "toy", "--json"])) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"]
    assert result["walks"] == 2  # float32 and bfloat16
    assert result["mismatches"] == []
    assert result["control_differs_at"] > 50
    assert result["checked"]["batch neighbours, NaN among them"] > 20


def test_a_mismatch_fails_and_tells_how_to_repeat_it() -> None:
    mismatch = {
        "name": "prefix hit",
        "request": 0,
        "position": 7,
        "size": 1e-6,
        "model": "toy",
        "dtype": "float32",
        "seed": 9,
    }
    result = {"checked": {}, "mismatches": [mismatch], "control_differs_at": 64, "processes_agree": True, "walks": 1}
    text = verify.as_text({**result, "passed": False})
    assert "repeat: prfaas verify --model toy --seed 9" in text
    assert "does NOT hold" in text
