import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.traces import read_trace


def test_mooncake(tmp_path):
    rows = [
        {"timestamp": 4000, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]},
        {"timestamp": 1000, "input_length": 10, "output_length": 0, "hash_ids": [7]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    first, second = read_trace(path, "mooncake")
    assert (first.arrival_s, first.prompt_tokens, first.max_tokens, first.hash_ids) == (0.0, 10, 1, (7,))
    assert (second.arrival_s, second.prompt_tokens, second.hash_ids) == (3.0, 600, (7, 9))
    assert len(read_trace(path, "mooncake", limit=1)) == 1


def test_azure(tmp_path):
    path = tmp_path / "t.csv"
    rows = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8")
    path.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)) + "\n")
    first, second = read_trace(path, "azure")
    assert (first.prompt_tokens, first.max_tokens, first.arrival_s) == (4808, 10, 0.0)
    assert second.arrival_s == pytest.approx(0.052)


GOOD = {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "-1", "1e300", "null", '"many"'])
@pytest.mark.parametrize("field", [name for name in GOOD if name != "hash_ids"])
def test_no_field_is_infinite_or_negative(tmp_path, field, value):
    if (field, value) in (("timestamp", "-1"), ("timestamp", "1e300")):
        return  # a time before the trace's own zero, or long after it, is a time
    path = tmp_path / "t.jsonl"
    path.write_text(
        json.dumps(GOOD) + "\n" + json.dumps(GOOD).replace(f'"{field}": {GOOD[field]}', f'"{field}": {value}')
    )
    with pytest.raises(UserError, match="line 2"):
        read_trace(path, "mooncake")


@given(st.integers(1, 5000), st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 100), max_size=12))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_ids_name_blocks_of_512_tokens(tmp_path_factory, tokens, ids):
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    path.write_text(json.dumps(GOOD | {"input_length": tokens, "hash_ids": ids}))
    blocks = (tokens + 511) // 512
    if not ids or (len(ids) == blocks and all(0 <= i < 2**31 for i in ids)):
        assert read_trace(path, "mooncake")[0].hash_ids == tuple(ids)
    else:
        with pytest.raises(UserError, match="line 1"):
            read_trace(path, "mooncake")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_azure_times_are_utc_or_of_the_zone_they_name(tmp_path, monkeypatch, zone):
    """Clocks went back in New York at 06:00 UTC on 2024-11-03, and those of this machine may."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    path = tmp_path / "t.csv"
    stamps = (
        "2024-11-03 05:30:00",
        "2024-11-03 06:30:00.5000000+00:00",
        "2024-11-03 07:30:00",
        "2024-11-03 10:30:00+02:00",
    )
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},9,9\n" for stamp in stamps))
    assert [r.arrival_s for r in read_trace(path, "azure")] == [0.0, 3600.5, 7200.0, 10_800.0]
    monkeypatch.undo()
    time.tzset()


def test_an_empty_file_is_an_empty_trace(tmp_path):
    path = tmp_path / "empty"
    path.write_text("")
    assert read_trace(path, "mooncake") == read_trace(path, "azure") == []


@pytest.mark.parametrize(
    ("text", "trace_format", "line"),
    [
        ('{"timestamp": 0}', "mooncake", 1),
        ("[1]", "mooncake", 1),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "mooncake", 1),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,many,1", "azure", 2),
        ("a,b\n1,2", "azure", 2),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,-1", "azure", 2),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5", "azure", 2),
    ],
)
def test_a_bad_row_is_named(tmp_path, text, trace_format, line):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(UserError, match=f"line {line}"):
        read_trace(path, trace_format)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="cannot read trace"):
        read_trace(tmp_path / "none", "azure")
