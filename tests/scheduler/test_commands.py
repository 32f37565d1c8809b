import argparse
import importlib
import json
import subprocess
import sys

import pytest

from prfaas_ref.errors import UserError
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
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(s.__path__, 'prfaas_ref.scheduler.')]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_scenario_without_remote_instances_or_without_requests(capsys, tmp_path):
    alone, empty = tmp_path / "alone.toml", tmp_path / "empty.toml"
    alone.write_text(EXAMPLE.replace("instances = 4", "instances = 0"))
    found = json.loads(run(capsys, "plan", alone, "--json"))
    assert set(found["compared_with"]) == {"homogeneous, equal count", "homogeneous, equal cost"}
    assert "all local" in run(capsys, "plan", alone)
    assert json.loads(run(capsys, "simulate", alone, "--requests", 50, "--json"))["offloaded_share"] == 0
    (tmp_path / "t.jsonl").write_text("")
    drawn = EXAMPLE[EXAMPLE.index("mu = 9.90") : EXAMPLE.index("output_tokens")]
    empty.write_text(EXAMPLE.replace(drawn, 'trace = "t.jsonl"\ntrace_format = "mooncake"\n'))
    assert json.loads(run(capsys, "plan", empty, "--json"))["lambda_max"] > 0
    found = json.loads(run(capsys, "simulate", empty, "--json"))
    assert (found["arrived"], found["in_flight"], found["mean_ttft_ms"]) == (0, 0, None)


def test_simulate_counts_and_repeats(capsys):
    first, again = (json.loads(run(capsys, "simulate", "--requests", 400, "--seed", 3, "--json")) for _ in range(2))
    assert first == again
    assert first["arrived"] == 400
    assert sum(first[name] for name in ("completed", "rejected", "failed", "in_flight")) == 400
    other = json.loads(run(capsys, "simulate", "--requests", 400, "--seed", 4, "--json"))
    assert other["event_log_sha256"] != first["event_log_sha256"]


@pytest.mark.parametrize(
    ("deployment", "share"), [("homogeneous", 0.0), ("naive", 1.0), ("prfaas-pd", pytest.approx(0.5, abs=0.1))]
)
def test_simulate_each_deployment(capsys, deployment, share):
    found = json.loads(run(capsys, "simulate", "--deployment", deployment, "--requests", 500, "--json"))
    assert found["offloaded_share"] == share
    assert found["completed"] == 500
    assert found["request_throughput"] <= found["planned_lambda_max"]


def test_simulate_a_trace_into_files(capsys, tmp_path):
    trace = tmp_path / "t.jsonl"
    row = {"input_length": 1500, "output_length": 5}
    lines = [{"timestamp": 1000 * i, **row, "hash_ids": [1, 2, 100 + i]} for i in range(30)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    csv_file, timeline = tmp_path / "r.csv", tmp_path / "t.json"
    words = ("--trace", trace, "--deployment", "homogeneous", "--requests-csv", csv_file, "--timeline", timeline)
    found = json.loads(run(capsys, "simulate", *words, "--json"))
    assert (found["arrived"], found["rate_per_s"]) == (30, None)
    assert found["hit_ratio_pd"] > 0.5
    assert len(csv_file.read_text().splitlines()) == 31
    events = json.loads(timeline.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 30
    assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events) == 30
    assert "simulated" in run(capsys, "simulate", *words)


def test_a_replay_needs_the_ids_of_every_row(capsys, tmp_path):
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 1500, "output_length": 5}
    trace.write_text("\n".join(map(json.dumps, [row | {"hash_ids": [1, 2, 3]}, row, row | {"hash_ids": []}])))
    with pytest.raises(UserError, match="have no hash_ids"):
        run(capsys, "cache_replay", trace)


def test_plans_are_json_whatever_is_infinite(capsys, tmp_path):
    """An empty trace, and prefill without a fixed cost."""
    (tmp_path / "t.jsonl").write_text("")
    drawn = EXAMPLE[EXAMPLE.index("mu = 9.90") : EXAMPLE.index("output_tokens")]
    text = EXAMPLE.replace(drawn, 'trace = "t.jsonl"\ntrace_format = "mooncake"\n')
    path = tmp_path / "s.toml"
    path.write_text(text.replace("[0.4692206,", "[0.0,").replace("[0.3891235,", "[0.0,"))
    found = run(capsys, "plan", path, "--json")
    assert json.loads(found)["theta_pd_prefill"] is None
    assert "Infinity" not in found


def test_equal_prices_buy_as_many_instances(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(EXAMPLE.replace("price_per_hour = 2.0", "price_per_hour = 0.7").replace("hour = 1.0", "hour = 0.7"))
    rival = json.loads(run(capsys, "plan", path, "--json"))["compared_with"]["homogeneous, equal cost"]
    assert rival["n_pd_prefill"] + rival["n_pd_decode"] == 12


def test_a_naive_deployment_needs_something_to_decode(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(EXAMPLE.replace("instances = 8", "instances = 0"))
    with pytest.raises(Infeasible, match="to decode"):
        run(capsys, "simulate", path, "--deployment", "naive")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--requests", 0), "--requests must be positive"),
        (("--rate", -1), "--rate must be positive"),
        (("--seed", -1), "--seed"),
        (("--policy", "sometimes"), "never, cost or a threshold"),
        (("--trace", "none.jsonl"), "cannot read trace"),
        (("none.toml",), "cannot read scenario"),
    ],
)
def test_simulate_refuses_what_means_nothing(capsys, words, message):
    with pytest.raises(UserError, match=message):
        run(capsys, "simulate", *words)


def test_simulate_refuses_a_failure_of_nobody(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(EXAMPLE.replace("failures = []", 'failures = [[10, "pd-99", 5]]'))
    with pytest.raises(UserError, match="no worker 'pd-99'"):
        run(capsys, "simulate", path)


def test_bench_simulator(capsys):
    found = json.loads(run(capsys, "bench_simulator", "--requests", 300, "--repeats", 1, "--large", 600, "--json"))
    assert {"requests_s", "events_s", "bare_heap_events_s", "ratio", "large_cost_ratio"} <= set(found)
    assert found["ratio"] == pytest.approx(found["events_s"] / found["bare_heap_events_s"])
