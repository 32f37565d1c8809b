"""The toy's world: short sentences, facts scattered in them, and questions about the facts. Deterministic, no torch.

    the tired baker carried a chair to the market. the code of the blue lamp is 48. in the evening the farmer slept. ...
    what is the code of the blue lamp? 48.

One token is one byte, and token 256 ends an answer. `examples/train_toy.py` learns from such text; `prfaas recall` and
`prfaas ask` examine what was learned. Every function takes a `random.Random`, so a seed names a text for good.
"""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from prfaas_ref.model.config import END

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey", "pink", "orange", "purple", "silver")
THINGS = (
    "lamp", "door", "box", "key", "boat", "chair", "clock", "bell", "cart", "coat", "drum", "flag",
    "gate", "jar", "kite", "ladder", "map", "pot", "ring", "rope", "table", "tent", "vase", "wheel",
)  # fmt: skip
PEOPLE = (
    "baker", "farmer", "teacher", "sailor", "doctor", "painter",
    "singer", "miller", "hunter", "tailor", "guard", "child",
)  # fmt: skip
MOODS = ("old", "young", "tired", "happy", "quiet", "clever", "tall", "kind")
MOVED = ("carried", "brought", "took", "moved", "pulled", "sold")
RESTED = ("slept", "waited", "sang", "rested", "worked", "read")
PLACES = ("market", "river", "garden", "house", "school", "harbour", "forest", "bridge", "church", "mill")
TIMES = ("in the morning", "in the evening", "at noon", "after the rain", "before dinner", "last night")

CODES = range(10, 100)
Filler = Callable[[Random], str]
QUESTION = re.compile(r"what is the code of the (\w+) (\w+)\?")


@dataclass(frozen=True)
class Fact:
    """The code of one coloured thing, two digits."""

    thing: str
    code: int

    @property
    def sentence(self) -> str:
        return f"the code of the {self.thing} is {self.code}."

    @property
    def note(self) -> str:
        return f"{self.thing} {self.code}."

    @property
    def question(self) -> str:
        return f"what is the code of the {self.thing}?"

    @property
    def answer(self) -> str:
        """What follows the question."""
        return f" {self.code}."


@dataclass(frozen=True)
class Document:
    """Some text and the facts that stand in it."""

    text: str
    facts: tuple[Fact, ...]

    def prompt(self, fact: Fact) -> bytes:
        """The document and one question about it: what the model gets, and goes on from with `fact.answer`."""
        return f"{self.text}\n{fact.question}".encode()


def sentence(random: Random) -> str:
    """One sentence without a fact in it."""
    mood = f"{random.choice(MOODS)} " if random.random() < 0.5 else ""
    who = f"the {mood}{random.choice(PEOPLE)}"
    thing = random.choice(THINGS) if random.random() < 0.7 else f"{random.choice(COLOURS)} {random.choice(THINGS)}"
    kind = random.random()
    if kind < 0.45:
        return f"{who} {random.choice(MOVED)} the {thing} to the {random.choice(PLACES)}."
    if kind < 0.7:
        return f"{random.choice(TIMES)} {who} {random.choice(RESTED)} near the {random.choice(PLACES)}."
    if kind < 0.85:
        return f"the {thing} stood in the {random.choice(PLACES)}."
    return f"{who} {random.choice(RESTED)} in the {random.choice(PLACES)}."


def quoting(text: str) -> Filler:
    """A filler that quotes some words of a text, from anywhere in it."""
    words = text.encode("ascii", "ignore").decode().split() or [""]

    def quote(random: Random) -> str:
        start = random.randrange(len(words))
        return " ".join(words[start : start + random.randint(4, 12)])[:80]

    return quote


def babble(random: Random) -> str:
    """Some words of no language, in place of a sentence: facts are to be found in any text."""
    letters = string.ascii_lowercase if random.random() < 0.6 else string.ascii_letters + string.digits + "-,;:()\n"
    words = ["".join(random.choices(letters, k=random.randint(1, 9))) for _ in range(random.randint(3, 10))]
    return " ".join(words) + "."


def draw_facts(
    random: Random, n: int, colours: Sequence[str] = COLOURS, things: Sequence[str] = THINGS
) -> tuple[Fact, ...]:
    """n facts about different things; two may share their colour, their noun or their code."""
    named = random.sample([f"{colour} {thing}" for colour in colours for thing in things], n)
    return tuple(Fact(thing, random.choice(CODES)) for thing in named)


def document(random: Random, n_bytes: int, n_facts: int, filler: Filler = sentence) -> Document:
    """A text of at most n_bytes, and nearly so, with n_facts scattered in it (fewer only if they do not fit)."""
    return write_document(random, n_bytes, draw_facts(random, n_facts), filler)


def write_document(random: Random, n_bytes: int, facts: tuple[Fact, ...], filler: Filler) -> Document:
    """The document with these facts, and what the filler writes between them."""
    while facts and sum(len(f.sentence) + 1 for f in facts) > n_bytes:
        facts = facts[:-1]
    sentences = [fact.sentence for fact in facts]
    room = n_bytes - sum(len(s) + 1 for s in sentences)
    while len(other := filler(random)) < room:
        sentences.append(other)
        room -= len(other) + 1
    random.shuffle(sentences)
    return Document(" ".join(sentences), facts)


def asked_thing(question: str) -> str | None:
    """The coloured thing that a question is about, or None where it is not a question the toy was trained for."""
    match = QUESTION.fullmatch(question.strip().lower())
    if match is None or match[1] not in COLOURS or match[2] not in THINGS:
        return None
    return f"{match[1]} {match[2]}"


def told_code(thing: str, text: str) -> int | None:
    """The code that a text gives to a thing, the last one if there are several; None if it gives none."""
    found = re.findall(rf"the code of the {re.escape(thing)} is (\d+)\.", text)
    return int(found[-1]) if found else None


# For training: token ids, and which of them are digits to be recalled -------------------------------------------------

PLAIN, ANSWER, CHANCE = 0, 1, 2
"""What a token is: text; a digit that a fact decides; a fact's own digit, which nothing before it can tell."""


class Lesson:
    """Token ids and their kinds, growing piece by piece."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.kinds: list[int] = []

    def say(self, text: str, digits: int = PLAIN) -> None:
        self.tokens += text.encode()
        self.kinds += [digits if c.isdigit() else PLAIN for c in text]

    def ask(self, fact: Fact) -> None:
        self.say(f"\n{fact.question}")
        self.say(fact.answer, ANSWER)
        self.tokens.append(END)
        self.kinds.append(PLAIN)


def confusable(random: Random, n: int) -> tuple[Fact, ...]:
    """n facts for practice. In many, nouns or colours are shared by several things, so that half a name is no use."""
    form, colours, things, shared = random.random(), COLOURS, THINGS, -(-n // 2)
    if form < 0.4:
        things = random.sample(THINGS, random.randint(-(-n // len(COLOURS)), min(shared, len(THINGS))))
    elif form < 0.6:
        colours = random.sample(COLOURS, random.randint(-(-n // len(THINGS)), min(shared, len(COLOURS))))
    return draw_facts(random, n, colours, things)


def lesson(random: Random, n_tokens: int, n_facts: int, n_questions: int) -> Lesson:
    """A document with its facts, then questions about any of them, n_tokens in all.

    Each question may be about any fact, asked already or not: otherwise the last answers could be found by elimination.
    """
    made, width = Lesson(), len("\nwhat is the code of the purple ladder? 48.") + 1
    room, told = n_tokens - n_questions * width, confusable(random, n_facts)
    strange = random.random() < 0.1
    text = write_document(random, room, told, babble if strange else sentence)
    made.say(text.text, CHANCE)
    if strange:
        made.kinds = [CHANCE] * len(made.tokens)
    while len(made.tokens) < n_tokens:
        made.ask(random.choice(text.facts))
    return cut(made, n_tokens)


def notes(random: Random, n_tokens: int, n_facts: int) -> Lesson:
    """Facts in the shortest form, again and again in any order: where binding a code to its thing is learned."""
    made, untold, known = Lesson(), list(confusable(random, n_facts)), []
    while len(made.tokens) < n_tokens:
        new = untold and (len(known) < 2 or random.random() < 0.3)
        if new:
            known.append(untold.pop())
        fact = known[-1] if new else random.choice(known)
        made.say(f"{fact.note} ", CHANCE if new else ANSWER)
    return cut(made, n_tokens)


def dialogue(random: Random, n_tokens: int, n_facts: int) -> Lesson:
    """Facts as notes and as sentences, told, said again and asked about, other sentences between: dense practice."""
    made, untold, known = Lesson(), list(confusable(random, n_facts)), []
    while len(made.tokens) < n_tokens:
        kind = random.random()
        if kind < 0.1:
            made.say(f"{sentence(random)} ")
        elif untold and (len(known) < 2 or kind < 0.35):
            known.append(untold.pop())
            made.say(f"{random.choice((known[-1].sentence, known[-1].note))} ", CHANCE)
        elif kind < 0.6:
            fact = random.choice(known)
            made.say(f"{random.choice((fact.sentence, fact.note))} ", ANSWER)
        else:
            made.ask(random.choice(known))
            made.say("\n")
    return cut(made, n_tokens)


def cut(made: Lesson, n_tokens: int) -> Lesson:
    del made.tokens[n_tokens:], made.kinds[n_tokens:]
    return made
