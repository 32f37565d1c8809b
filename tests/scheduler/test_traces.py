import json

import pytest

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
