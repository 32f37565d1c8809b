"""`prfaas recall`: its single-process answers are `generate`'s, and its controls lack what they say they lack."""

from random import Random
from types import SimpleNamespace

import pytest
import torch

from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.facts import document
from prfaas_ref.model.generation import generate
from prfaas_ref.serving import recall

TEXT = document(Random(1), 300, 3)


@pytest.fixture(scope="module")
def model():
    return load_model("toy")


def test_samples_are_named_by_seed_and_do_not_depend_on_each_other():
    some, more = recall.draw_samples([256], 2, 3, seed=5), recall.draw_samples([128, 256], 2, 3, seed=5)
    assert some == more[2:] and some[0].document != some[1].document
    assert some != recall.draw_samples([256], 2, 3, seed=6)


def test_the_full_answer_is_what_generate_gives(model):
    for fact, answers in zip(TEXT.facts, recall.ask_alone(model, TEXT), strict=True):
        alone = generate(model, TEXT.prompt(fact), recall.ANSWER_TOKENS)
        assert answers["accuracy"].tokens == alone.tokens
        assert answers["accuracy"].digest.hexdigest() == alone.logits_sha256


def test_controls_share_the_first_logits_and_then_part(model):
    for answers in recall.ask_alone(model, TEXT):
        assert len({answer.tokens[0] for answer in answers.values()}) == 1
        assert len({answer.digest.digest() for answer in answers.values()}) == len(recall.CONTROLS)


@pytest.mark.parametrize(("control", "kept"), [("state_zeroed", "pages"), ("pages_zeroed", "state")])
def test_a_control_blanks_one_half_and_keeps_the_other(model, control, kept):
    table = recall.PageTable(model, 130, 140, 2)
    asked = model.new_state()
    asked.tables[0] = table.own()
    model.forward(torch.arange(130)[None], asked, table.pages)
    part = recall.part_at_hand_off(control, asked, table, model)
    pages = [table.pages[state.tables[0]] for state in (part, asked)]
    states = [torch.cat([layer.S.flatten() for layer in state.layers.values()]) for state in (part, asked)]
    halves = {"pages": pages, "state": states}
    assert torch.equal(*halves.pop(kept)) and states[1].any() and pages[1].any()
    ((blank, _full),) = halves.values()
    assert not blank.any()


def test_the_report_counts_every_digit_and_every_byte():
    sample = recall.Sample("a", 300, TEXT)

    def answer(text):
        made = recall.Answer.start(torch.zeros(4))
        made.tokens = list(text.encode())
        return made

    right = [answer(f" {fact.code}.") for fact in TEXT.facts]
    almost = [answer(f" {fact.code + 1}.") for fact in TEXT.facts]
    alone = [dict.fromkeys(recall.CONTROLS, r) | {"state_zeroed": a} for r, a in zip(right, almost, strict=True)]
    record = SimpleNamespace(status="completed")
    served = [SimpleNamespace(record=record, tokens=r.tokens, digest=r.digest) for r in right]
    row = recall.report([sample], [served], [alone])["300"]
    assert (row["accuracy"], row["state_zeroed"], row["exact"]) == (1.0, 0.0, True)
    served[1].digest = recall.Answer.start(torch.ones(4)).digest
    assert recall.report([sample], [served], [alone])["300"]["exact"] is False


def test_the_first_number_of_an_answer_counts():
    assert recall.says(list(b" 48.")) == "48"
    assert recall.says([256, *b"the code is 7"]) == "7"
    assert recall.says(list(b"the")) == ""
