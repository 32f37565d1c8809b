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
def test_only_what_nobody_can_foresee_is_left_to_chance(seed):
    made = facts.lesson(Random(seed), 512, 4, 3)
    asked_from = bytes(t for t in made.tokens if t < 256).index(b"\nwhat is the code of")
    document, questions = made.kinds[:asked_from], made.kinds[asked_from:]
    digits = [token < 256 and chr(token).isdigit() for token in made.tokens]
    babble = facts.PLAIN not in document
    assert babble or document == [facts.CHANCE if digit else facts.PLAIN for digit in digits[:asked_from]]
    assert questions == [facts.ANSWER if digit else facts.PLAIN for digit in digits[asked_from:]]


def test_facts_for_practice_are_harder_to_tell_apart():
    def shared(draw):
        things = [fact.thing.split() for seed in range(200) for fact in draw(Random(seed), 6)]
        groups = [things[i : i + 6] for i in range(0, len(things), 6)]
        return sum(12 - len({c for c, _ in group}) - len({t for _, t in group}) for group in groups)

    assert shared(facts.confusable) > 1.5 * shared(facts.draw_facts)
    assert all(len({f.thing for f in facts.confusable(Random(seed), 24)}) == 24 for seed in range(50))


@given(seeds, st.text(min_size=1))
def test_a_document_may_quote_any_text(seed, text):
    made = facts.document(Random(seed), 700, 5, facts.quoting(text))
    assert len(made.text.encode()) <= 700 and len(made.facts) == 5
    assert all(made.text.count(fact.sentence) == 1 for fact in made.facts)


def test_questions_the_toy_knows_and_others():
    assert facts.asked_thing("What is the code of the blue lamp? ") == "blue lamp"
    assert facts.asked_thing("what is the code of the mauve lamp?") is None
    assert facts.asked_thing("who carried the blue lamp?") is None


def test_the_code_that_a_text_tells():
    text = "the code of the blue lamp is 48. the code of the red lamp is 12. the code of the blue lamp is 50."
    assert facts.told_code("blue lamp", text) == 50
    assert facts.told_code("red door", text) is None
