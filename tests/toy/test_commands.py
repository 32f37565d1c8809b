"""`prfaas ask` and `prfaas recall` through real worker processes, as a user runs them."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

import prfaas_ref
from prfaas_ref.commands import ask, recall
from prfaas_ref.errors import UserError

WEIGHTS = str(Path(prfaas_ref.__file__).parent / "weights")
TEXT = "the old baker slept near the mill. the code of the blue lamp is 48. the code of the red door is 12."


def parse(command, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def output(name, *words):
    """What a command prints, in a process of its own: it sets up torch for serving, for good."""
    program = (
        f"import argparse, sys, prfaas_ref.commands.{name} as m; p = argparse.ArgumentParser(); m.add_arguments(p); "
        "sys.exit(m.run(p.parse_args()))"
    )
    line = [sys.executable, "-c", program, *(str(word) for word in words), "--model", WEIGHTS, "--json"]
    return json.loads(subprocess.run(line, check=True, capture_output=True, timeout=120).stdout)


def test_ask_answers_from_the_document_with_its_route_and_verdict(tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    question = "what is the code of the blue lamp?"
    result = output("ask", tmp_path / "notes.txt", question, "--threshold", 50)
    assert (result["answer"], result["route"], result["exact"], result["note"]) == ("48.", "prfaas", True, "")
    assert result["bytes_sent"] > 0


def test_ask_is_honest_about_what_the_toy_does_not_know():
    assert "not a question the toy was trained for" in ask.note("who are you?", TEXT.encode())
    assert "never says" in ask.note("what is the code of the pink jar?", TEXT.encode())
    assert ask.note("What is the code of the red door?", TEXT.encode()) == ""


def test_ask_needs_a_question(tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    with pytest.raises(UserError, match="question is empty"):
        ask.run(parse(ask, tmp_path / "notes.txt", " "))


def test_recall_reports_every_context():
    result = output("recall", "--contexts", "128,200", "--facts", 2, "--samples", 1)
    assert (result["facts"], result["samples"], list(result["contexts"])) == (2, 1, ["128", "200"])
    for row in result["contexts"].values():
        assert row["exact"] is True
        assert {"accuracy", "state_zeroed", "pages_zeroed", "state_bfloat16"} < set(row)


def test_recall_hides_facts_in_a_text_of_ones_own(tmp_path):
    (tmp_path / "own.txt").write_text("Zebras quietly juggle xylophones; nobody pays. " * 9)
    result = output("recall", "--contexts", "200", "--facts", 2, "--samples", 1, "--text", tmp_path / "own.txt")
    assert result["contexts"]["200"]["exact"] is True
    with pytest.raises(UserError, match="cannot read"):
        recall.run(parse(recall, "--text", tmp_path / "none.txt"))


@pytest.mark.parametrize("bad", ["", "63", "512,512", "512,x", "1000000"])
def test_recall_refuses_odd_contexts(bad):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a list of different lengths"):
        recall.contexts(bad)
