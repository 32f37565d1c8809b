"""The toy's world is deterministic, and what a lesson marks as an answer can be read off its own text."""

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from prfaas_ref.model import facts
from prfaas_ref.model.config import END

seeds = st.integers(0, 2**32)
THING = rf"(?:{'|'.join(facts.COLOURS)}) (?:{'|'.join(facts.THINGS)})"
STATED = re.compile(rf"({THING})(?: is)? (\d+)\.")
NAMED = re.compile(rf"({THING})(?: is|\?)? $")


@given(seeds, st.integers(500, 3000), st.integers(1, 12))
def test_a_document_has_its_length_and_every_fact_once(seed, n_bytes, n_facts):
    text = facts.document(Random(seed), n_bytes, n_facts)
    assert n_bytes - 70 < len(text.text.encode()) <= n_bytes
    assert sorted(STATED.findall(text.text)) == sorted((fact.thing, str(fact.code)) for fact in text.facts)
    assert len(text.facts) == n_facts == len({fact.thing for fact in text.facts})
    assert text == facts.document(Random(seed), n_bytes, n_facts)


@given(seeds, st.sampled_from([256, 512, 1024]), st.integers(2, 6), st.booleans())
def test_answers_are_what_the_text_before_them_says(seed, n_tokens, n_facts, as_dialogue):
    random = Random(seed)
    made = facts.dialogue(random, n_tokens, n_facts) if as_dialogue else facts.lesson(random, n_tokens, n_facts, 2)
    assert len(made.tokens) == len(made.kinds) == n_tokens
    text = "".join("$" if t == END else chr(t) for t in made.tokens)
    first_digits = [i for i in range(n_tokens) if made.kinds[i] == facts.ANSWER and made.kinds[i - 1] != facts.ANSWER]
    assert first_digits
    for i in first_digits:
        thing = NAMED.search(text[:i])[1]
        code = dict(STATED.findall(text[:i]))[thing]
        assert code.startswith(text[i : i + 2])  # the last answer may be cut off by the lesson's end


@given(seeds)
def test_only_a_facts_own_digits_are_left_to_chance(seed):
    made = facts.lesson(Random(seed), 512, 4, 3)
    for token, kind in zip(made.tokens, made.kinds, strict=True):
        assert (kind == facts.PLAIN) == (not (token < 256 and chr(token).isdigit()))


def test_questions_the_toy_knows_and_others():
    assert facts.asked_thing("What is the code of the blue lamp? ") == "blue lamp"
    assert facts.asked_thing("what is the code of the mauve lamp?") is None
    assert facts.asked_thing("who carried the blue lamp?") is None


def test_the_code_that_a_text_tells():
    text = "the code of the blue lamp is 48. the code of the red lamp is 12. the code of the blue lamp is 50."
    assert facts.told_code("blue lamp", text) == 50
    assert facts.told_code("red door", text) is None
