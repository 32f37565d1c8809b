import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


NUMBERS = [
    line.split("=")[0].strip(" #") for line in EXAMPLE.splitlines() if re.match(r"^(# )?\w+ = -?[\d.]+ *(#|$)", line)
]


def with_number(key, value):
    """The example with the first `key` set, commented out or not."""
    text, n = re.subn(rf"^(# )?{key} = \S+", f"{key} = {value}", EXAMPLE, count=1, flags=re.M)
    assert n == 1
    return text


@pytest.mark.parametrize("key", sorted(set(NUMBERS)))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", str(10**400)])
def test_no_number_is_infinite_and_few_are_negative(key, value):
    """Every number of the example, but mu, which is a logarithm, and memory, which may be unlimited."""
    if (key, value) in (("mu", "-1"), ("memory_gib", "inf")):
        return
    with pytest.raises(UserError, match=f"{key} must be|log-normal"):
        parse_scenario(with_number(key, value), Path())


BAD = st.sampled_from(["nan", "inf", "-inf", "-1", "-0.5"])


@given(st.sampled_from(["link_changes", "failures", "prefill_points", "prefill_coefficients"]), st.booleans(), BAD)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_row_holds_what_is_not_finite_or_below_zero(key, first, bad):
    one, two = (bad, "5") if first else ("5", bad)
    if key == "prefill_coefficients":
        text = changed("[0.3891235, 4.205504e-05, 9.936495e-11]", f"[{one}, {two}, 1]")
    elif key == "prefill_points":
        text = changed("prefill_coefficients = [0.3891235", f"prefill_points = [[{one}, {two}], [9, 9]]  # [0")
    else:
        worker = '"prfaas-0", ' if key == "failures" else ""
        text = changed(f"{key} = []", f"{key} = [[{one}, {worker}{two}]]")
    with pytest.raises(UserError, match=key):
        parse_scenario(text, Path())


def test_a_demand_is_above_zero():
    with pytest.raises(UserError, match="demand_per_s must be above 0"):
        parse_scenario(changed("# demand_per_s = 3.0", "demand_per_s = 0"), Path())


def test_unlimited_memory_may_be_said():
    assert parse_scenario(with_number("memory_gib", "inf"), Path()).system.decode_batch == 20


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
