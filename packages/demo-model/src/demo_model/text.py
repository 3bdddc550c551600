"""The text that the demo model learns.

How the training text is laid out:

* A *document* is one plain sentence or one chat. Each begins with ``<|begin|>``, and each plain text and
  each chat message ends with ``<|end|>`` (the EOS token), which is just what ``CHAT_TEMPLATE`` renders.
* Several documents are packed into one window; attention stays within a document (a block-diagonal
  causal mask).
* In chats only the assistant's tokens count towards the loss: what a user asks is not for the model to
  predict.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model.chats import (
    CONVERSATIONS,
    QUESTIONS,
    Turn,
    ask_opposite,
    ask_small_fact,
    capital_answer,
    chat_capitals,
    chat_mixed,
    count,
    pick,
    story,
)
from demo_model.facts import ALPHABET, ANIMALS, CAPITALS, COLORS, DAYS, MONTHS, SOUNDS, SYSTEM_PROMPTS
from demo_model.template import ASSISTANT, BOS, EOS, SYSTEM, USER


@dataclass(frozen=True)
class Segment:
    """A stretch of a document; ``learn`` says whether its tokens count towards the loss."""

    text: str
    learn: bool


Document = list[Segment]


def chat_document(turns: Sequence[Turn], system: str | None = None) -> Document:
    """A chat exactly as ``CHAT_TEMPLATE`` renders it."""
    parts = [Segment(BOS, False)]
    if system is not None:
        parts.append(Segment(f"{SYSTEM}{system}{EOS}", False))
    for turn in turns:
        parts.append(Segment(f"{USER}{turn.user}{EOS}{ASSISTANT}", False))
        parts.append(Segment(f"{turn.assistant}{EOS}", True))
    return parts


def plain_text(rng: random.Random) -> str:
    """One sentence, list or story outside any chat."""
    kind = rng.random()
    if kind < 0.34:
        country, capital = rng.choice(list(CAPITALS.items()))
        return rng.choice(
            [
                capital_answer(country),
                capital_answer(country),
                f"{capital} is the capital of {country}.",
                f"Question: What is the capital of {country}?\nAnswer: {capital}",
            ]
        )
    if kind < 0.50:
        return long_count(rng)
    if kind < 0.56:
        first = rng.choice([0, 0, rng.randint(0, 20)])
        return " ".join(ALPHABET[first:])
    if kind < 0.63:
        day = rng.randrange(7)
        return rng.choice(
            [
                " ".join(DAYS[(day + i) % 7] for i in range(7)),
                f"The day after {DAYS[day]} is {DAYS[(day + 1) % 7]}.",
                "The months are " + ", ".join(MONTHS) + ".",
            ]
        )
    if kind < 0.76:
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        return f"{a} + {b} = {a + b}"
    if kind < 0.85:
        return ask_opposite(rng).assistant
    if kind < 0.94:
        return ask_small_fact(rng).assistant if rng.random() < 0.3 else small_sentence(rng)
    return story(rng, rng.choice(ANIMALS))


def long_count(rng: random.Random) -> str:
    """Counting from anywhere below 200, always to the next 50, 100, 150 or 200: 260 tokens at most."""
    first = rng.choice([1, 1, *(rng.randint(0, 190) for _ in range(3))])
    last = 50 * (first // 50 + 1)
    return count(first, last if last - first > 1 else last + 50) + "."


def small_sentence(rng: random.Random) -> str:
    """A colour or a sound as a plain sentence."""
    if rng.random() < 0.5:
        thing, color = rng.choice(list(COLORS.items()))
        return f"The {thing} is {color}."
    animal, sound = rng.choice(list(SOUNDS.items()))
    return f"The {animal} says {sound}."


def document(rng: random.Random) -> Document:
    """One random training document."""
    kind = rng.random()
    if kind < 0.34:
        return [Segment(BOS, False), Segment(plain_text(rng) + EOS, True)]
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else None
    if kind < 0.66:
        return chat_document([pick(rng, QUESTIONS)], system)
    (make_turns,) = rng.choices([c[0] for c in CONVERSATIONS], [c[1] for c in CONVERSATIONS])
    return chat_document(make_turns(rng), system)


def long_document(rng: random.Random) -> Document:
    """One that is usually too long for a short window."""
    kind = rng.random()
    if kind < 0.3:
        return chat_document(chat_mixed(rng) + chat_capitals(rng))
    text = long_count(rng) if kind < 0.8 else story(rng, rng.choice(ANIMALS))
    return [Segment(BOS, False), Segment(text + EOS, True)]
