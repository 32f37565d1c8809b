from pathlib import Path

import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.planner import Search
from prfaas_ref.scheduler.profile import MeasuredProfile
from prfaas_ref.scheduler.scenario import EXAMPLE, load_scenario, parse_scenario


def changed(old, new):
    assert old in EXAMPLE
    return EXAMPLE.replace(old, new)


def test_the_example_is_the_case_study():
    scenario = parse_scenario(EXAMPLE, Path())
    ours, example = case_study(), scenario.system
    assert (scenario.n_prfaas, scenario.n_pd) == (4, 8)
    for tokens in (1000, 20_000, 100_000):
        assert example.prfaas_prefill.seconds(tokens) == pytest.approx(ours.prfaas_prefill.seconds(tokens), rel=1e-5)
        assert example.pd_prefill.seconds(tokens) == pytest.approx(ours.pd_prefill.seconds(tokens), rel=1e-5)
        assert example.kv.bytes(tokens) == ours.kv.bytes(tokens)
    assert example.lengths == ours.lengths
    assert Search(example, scenario.slo).best(4, 8).threshold_tokens == 19_400


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gbps = 100", "gbps = 'fast'", r"\[link\] gbps must be a number"),
        ("gbps = 100", "gbps = 0", "link_bits_per_s > 0"),
        ("gbps = 100", "", r"\[link\] needs gbps"),
        ("instances = 8", "instances = 2.5", "whole number"),
        ("[slo]", "[sla]", r"no table \[sla\]"),
        ("rtt_ms = 0", "rtt = 0", "no key 'rtt'"),
        ("sigma = 1.00", "sigma = -1", "log-normal"),
        ("load = 0.8", "load = 0", "must be positive"),
        ("failures = []", "failures = [[1, 2, 3]]", r"failures must be a list of \[number, text, number\]"),
        ("bytes_per_token = 17280", "name = 'GPT'", "known are Kimi Linear"),
        ("decode_step_ms = 24.98", "decode_step_ms = 0", "decode profile"),
        ("[0.4692206, 1.3001935e-04, 2.945366e-10]", "'quick'", "prefill_coefficients"),
        ("[model]", "[model", "not TOML"),
    ],
)
def test_a_mistake_is_named(old, new, message):
    with pytest.raises(UserError, match=message):
        parse_scenario(changed(old, new), Path())


def test_points_traces_and_models_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,100,10\n")
    points = "prefill_points = [[0, 1], [9, 2]]"
    text = changed("prefill_coefficients = [0.4692206, 1.3001935e-04, 2.945366e-10]", points)
    text = text.replace("bytes_per_token = 17280", "name = 'Kimi Linear'").replace("fixed_mib = 173.90625", "")
    start, end = text.index("mu = 9.90"), text.index("[slo]")
    text = text[:start] + 'trace = "t.csv"\ntrace_format = "azure"\n' + text[end:]
    path = tmp_path / "s.toml"
    path.write_text(text)
    scenario = load_scenario(path)
    assert scenario.system.pd_prefill == MeasuredProfile(((0, 1), (9, 2)))
    assert scenario.system.kv.bytes_per_token == 8064
    assert scenario.system.output_tokens == 10
    assert [r.prompt_tokens for r in scenario.requests] == [100]


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="cannot read scenario"):
        load_scenario(tmp_path / "none.toml")
