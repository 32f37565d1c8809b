import json

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.experiments import case_study, day, mooncake, policies
from prfaas_ref.scheduler.traces import read_trace
from tests.scheduler.test_commands import run


def test_every_row_of_every_experiment_can_be_run(tmp_path):
    """A few requests each: what is checked is that rows come out whole, not what they say."""
    trace = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 900 * i, "input_length": 1500, "output_length": 9, "hash_ids": [1, 2, i + 9]} for i in range(9)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    requests = tuple(read_trace(trace, "mooncake"))
    sampled = [*case_study.cases(40)[::9], *policies.cases(40)[::7], *day.cases(200), *mooncake.cases(requests)[::4]]
    assert len({tuple(case.labels.values()) for case in sampled}) == len(sampled)
    for case in sampled:
        row = case.row()
        assert set(case.labels) < set(row)
        assert 0 <= row["within SLO, %"] <= 100


def test_held_out_worlds_are_not_tuned_on():
    held_out = {world.name for world in policies.WORLDS if world.held_out}
    assert held_out.isdisjoint(world.name for world in policies.WORLDS if not world.held_out)
    assert len(held_out) >= 4
    assert any(d.held_out for d in day.DAYS)


def test_the_command_prints_a_table_and_asks_for_a_trace(capsys):
    text = run(capsys, "experiment", "day", "--requests", 100)
    assert text.count("\n| ") >= 7
    found = json.loads(run(capsys, "experiment", "day", "--requests", 100, "--json"))
    assert len(found["rows"]) == 6
    with pytest.raises(UserError, match="--trace"):
        run(capsys, "experiment", "mooncake")
    with pytest.raises(UserError, match="positive"):
        run(capsys, "experiment", "day", "--requests", 0)
