"""The trained toy that ships with the package has read what it was given, in this process alone."""

import re
from pathlib import Path
from random import Random

import pytest

import prfaas_ref
from prfaas_ref.model import facts
from prfaas_ref.model.checkpoint import load_model
from prfaas_ref.model.config import TOY
from prfaas_ref.model.generation import generate
from prfaas_ref.serving import recall

WEIGHTS = Path(prfaas_ref.__file__).parent / "weights"
CONTENT = facts.COLOURS + facts.THINGS + facts.PEOPLE + facts.MOODS + facts.MOVED + facts.RESTED + facts.PLACES
GLUE = {"the", "to", "in", "near", "stood", "code", "of", "is", "what", "at"} | set(" ".join(facts.TIMES).split())


@pytest.fixture(scope="module")
def model():
    return load_model(WEIGHTS)


def test_it_has_the_toys_shape_and_its_promised_size(model):
    assert model.config == TOY
    assert (WEIGHTS / "model.safetensors").stat().st_size < 8e6


def test_it_answers_from_a_document(model):
    samples = recall.draw_samples([512], 4, 8, seed=77)
    answers = [
        (recall.says(answer["accuracy"].tokens), recall.says(answer["state_zeroed"].tokens), str(fact.code))
        for sample in samples
        for fact, answer in zip(sample.document.facts, recall.ask_alone(model, sample.document), strict=True)
    ]
    assert sum(said == code for said, _, code in answers) >= 0.9 * len(answers)
    assert sum(blank == code for _, blank, code in answers) <= 0.2 * len(answers)


def test_it_answers_from_a_text_that_is_not_of_its_grammar(model):
    text = facts.document(Random(5), 1000, 6, facts.quoting(recall.__doc__))
    said = [recall.says(answer["accuracy"].tokens) for answer in recall.ask_alone(model, text)]
    assert sum(a == str(fact.code) for a, fact in zip(said, text.facts, strict=True)) >= 5


def test_what_it_writes_reads_as_sentences(model):
    begun = facts.document(Random(3), 300, 0).text.encode()
    written = bytes(t for t in generate(model, begun + b" the ", 160).tokens if t < 256).decode()
    words = re.findall(r"[^\s.?]+", written)[:-1]  # the last may be cut off
    known = [word in GLUE or word in CONTENT or word.isdigit() for word in words]
    assert len(known) > 15 and sum(known) >= 0.9 * len(known)
    assert 2 <= written.count(".") <= 10
