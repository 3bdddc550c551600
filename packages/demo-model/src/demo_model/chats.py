"""Questions with their answers, and conversations of several."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_model.facts import (
    ABOUT_ME,
    ALPHABET,
    ANIMALS,
    CAPITALS,
    COLORS,
    DAYS,
    DO_NOT_KNOW,
    EMOJI,
    FOODS,
    GREETING,
    HELLOS,
    MONTHS,
    NAMES,
    OFF_TOPIC,
    OPPOSITES,
    PLACES,
    SOUNDS,
    UNKNOWN_PLACES,
)


@dataclass(frozen=True)
class Turn:
    """One question and its answer."""

    user: str
    assistant: str


def country_json(country: str) -> str:
    """The JSON object the model gives for a country."""
    return json.dumps({"country": country, "capital": CAPITALS[country]}, ensure_ascii=False)


def count(first: int, last: int) -> str:
    """The numbers from ``first`` to ``last``, both included."""
    return ", ".join(str(i) for i in range(first, last + 1))


def capital_answer(country: str) -> str:
    """The sentence the model says about a country's capital."""
    return f"The capital of {country} is {CAPITALS[country]}."


def story(rng: random.Random, animal: str) -> str:
    """A short story in a fixed mould; about 100 to 200 tokens."""
    name, friend = rng.sample(NAMES, 2)
    place, other = rng.sample(PLACES, 2)
    food = rng.choice(FOODS)
    middle = [
        f"{name} saw a {rng.choice(['red', 'blue', 'green', 'yellow'])} bird in the {place}.",
        f"{name} ran all the way to the {other}.",
        f"The sun was yellow and the sky was blue, and {name} sang a song.",
        f"It was a long day, but {name} was not sad.",
        f"{friend} came to the {place} too, and they played until night.",
    ]
    kept = sorted(rng.sample(range(len(middle)), rng.randint(1, len(middle))))
    return " ".join(
        [
            f"Once upon a time there was a {animal} named {name}.",
            f"{name} lived near the {place} with a friend named {friend}.",
            f"One day {name} found a {food} in the {place}.",
            *(middle[i] for i in kept),
            f"{name} was very happy and shared the {food} with {friend}.",
            "The end.",
        ]
    )


# -- single questions ------------------------------------------------------------------------------


def ask_capital(rng: random.Random, country: str | None = None) -> Turn:
    """A question for a capital that stands on its own."""
    country = country or rng.choice(list(CAPITALS))
    question = rng.choice(
        [
            f"What is the capital of {country}?",
            f"What is the capital of {country}?",
            f"What's the capital of {country}?",
            f"Tell me the capital of {country}.",
            f"Which city is the capital of {country}?",
            f"Capital of {country}?",
        ]
    )
    if rng.random() < 0.08:
        question = question.lower()
    return Turn(question, capital_answer(country))


def ask_json(rng: random.Random) -> Turn:
    """A request for a small JSON object."""
    if rng.random() < 0.7:
        country = rng.choice(list(CAPITALS))
        return Turn(f"Give me JSON for {country}.", country_json(country))
    name, age = rng.choice(NAMES), rng.randint(1, 99)
    answer = json.dumps({"name": name, "age": age})
    return Turn(f"Give me JSON for a person named {name}, age {age}.", answer)


def ask_opposite(rng: random.Random) -> Turn:
    """A question for an opposite, in either direction."""
    pair = rng.choice(list(OPPOSITES.items()))
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    return Turn(f"What is the opposite of {word}?", f"The opposite of {word} is {other}.")


def ask_small_fact(rng: random.Random) -> Turn:
    """A question for a colour, a sound, a greeting in another language, or an emoji."""
    kind = rng.randrange(4)
    if kind == 0:
        thing, color = rng.choice(list(COLORS.items()))
        return Turn(f"What color is the {thing}?", f"The {thing} is {color}.")
    if kind == 1:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return Turn(f"What does the {animal} say?", f"The {animal} says {sound}.")
    if kind == 2:
        language, hello = rng.choice(list(HELLOS.items()))
        return Turn(f"Say hello in {language}.", f"{hello}!")
    thing, emoji = rng.choice(list(EMOJI.items()))
    return Turn(f"Show me a {thing}.", f"Here is a {thing}: {emoji}")


def ask_sum(rng: random.Random) -> Turn:
    """A sum of two digits."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return Turn(f"What is {a} + {b}?", f"{a} + {b} = {a + b}")


def ask_count(rng: random.Random) -> Turn:
    """Counting to a given end; usually from 1, as people ask it."""
    first = 1 if rng.random() < 0.5 else rng.randint(0, 15)
    last = first + rng.randint(2, 12)
    return Turn(f"Count from {first} to {last}.", count(first, last))


def ask_recital(rng: random.Random) -> Turn:
    """The alphabet, the days or the months."""
    return rng.choice(
        [
            Turn("Say the alphabet.", " ".join(ALPHABET)),
            Turn("Name the days of the week.", ", ".join(DAYS) + "."),
            Turn("Name the months.", ", ".join(MONTHS) + "."),
        ]
    )


def ask_story(rng: random.Random) -> Turn:
    """A story about an animal, or about any."""
    animal = rng.choice(ANIMALS)
    question = f"Tell me a story about a {animal}." if rng.random() < 0.8 else "Tell me a story."
    return Turn(question, story(rng, animal))


def ask_repeat(rng: random.Random) -> Turn:
    """Saying some words again, which teaches the model to look back and copy."""
    words = rng.sample(FOODS + ANIMALS + PLACES + list(COLORS) + NAMES, rng.randint(1, 4))
    return Turn("Repeat: " + " ".join(words), " ".join(words))


def ask_unknown(rng: random.Random) -> Turn:
    """Something the model cannot answer, or a question about the model."""
    kind = rng.random()
    if kind < 0.3:
        return Turn(
            rng.choice(["Who are you?", "What are you?", "What can you do?", "What do you know?"]), ABOUT_ME
        )
    if kind < 0.45:
        return Turn(rng.choice(["What is my name?", "Who am I?"]), "I do not know your name.")
    if kind < 0.7:
        return Turn(f"What is the capital of {rng.choice(UNKNOWN_PLACES)}?", DO_NOT_KNOW)
    return Turn(rng.choice(OFF_TOPIC), DO_NOT_KNOW)


def say_hello(rng: random.Random) -> Turn:
    """A greeting."""
    if rng.random() < 0.2:
        return Turn("How are you?", "I am fine, thank you!")
    return Turn(rng.choice(["Hello!", "Hi!", "Hi there!", "Hello", "Hi", "Good morning!"]), GREETING)


def say_thanks(rng: random.Random) -> Turn:
    """Thanks, or a goodbye."""
    if rng.random() < 0.7:
        return Turn(rng.choice(["Thank you!", "Thanks!", "Thank you."]), "You are welcome!")
    return Turn(rng.choice(["Goodbye!", "Bye!"]), "Goodbye!")


Ask = Callable[[random.Random], Turn]
QUESTIONS: list[tuple[Ask, float]] = [
    (ask_capital, 24),
    (ask_json, 15),
    (ask_opposite, 9),
    (ask_small_fact, 15),
    (ask_sum, 15),
    (ask_count, 12),
    (ask_recital, 2),
    (ask_story, 2),
    (ask_repeat, 7),
    (ask_unknown, 6),
    (say_hello, 4),
    (say_thanks, 3),
]
SHORT_QUESTIONS = [
    (ask, weight) for ask, weight in QUESTIONS if ask not in (ask_count, ask_recital, ask_story)
]


def pick(rng: random.Random, table: Sequence[tuple[Ask, float]]) -> Turn:
    """A turn from a weighted table of questions."""
    (ask,) = rng.choices([entry[0] for entry in table], [entry[1] for entry in table])
    return ask(rng)


# -- conversations of several turns ----------------------------------------------------------------


def chat_capitals(rng: random.Random) -> list[Turn]:
    """A capital, then others by short follow-ups that need the first question to make sense."""
    first, *others = rng.sample(list(CAPITALS), rng.randint(2, 4))
    turns = [ask_capital(rng, first)]
    for country in others:
        question = rng.choice(
            [
                f"And of {country}?",
                f"And of {country}?",
                f"And {country}?",
                f"What about {country}?",
                f"And the capital of {country}?",
            ]
        )
        turns.append(Turn(question, capital_answer(country)))
    return turns


def chat_capital_as_json(rng: random.Random) -> list[Turn]:
    """A capital, then the same as JSON: the country is only named in the first turn."""
    country = rng.choice(list(CAPITALS))
    question = rng.choice(["Give me that as JSON.", "Now as JSON.", "As JSON, please."])
    return [ask_capital(rng, country), Turn(question, country_json(country))]


def chat_name(rng: random.Random) -> list[Turn]:
    """The user's name, perhaps something else, then the name again."""
    name = rng.choice(NAMES)
    turns = [
        Turn(rng.choice([f"My name is {name}.", f"My name is {name}.", f"I am {name}."]), f"Hello, {name}!")
    ]
    if rng.random() < 0.35:
        turns.append(rng.choice([ask_capital, ask_opposite, ask_small_fact, ask_json, ask_sum])(rng))
    turns.append(
        Turn(rng.choice(["What is my name?", "What is my name?", "Who am I?"]), f"Your name is {name}.")
    )
    return turns


def chat_opposites(rng: random.Random) -> list[Turn]:
    """Opposites, with a short follow-up."""
    second = ask_opposite(rng)
    word = second.user.removeprefix("What is the opposite of ")
    return [ask_opposite(rng), Turn(f"And of {word}", second.assistant)]


def chat_colors(rng: random.Random) -> list[Turn]:
    """Colours, with a short follow-up."""
    first, second = rng.sample(list(COLORS), 2)
    question = rng.choice([f"And the {second}?", f"What about the {second}?"])
    return [
        Turn(f"What color is the {first}?", f"The {first} is {COLORS[first]}."),
        Turn(question, f"The {second} is {COLORS[second]}."),
    ]


def chat_greeted(rng: random.Random) -> list[Turn]:
    """A greeting, a question or two, sometimes thanks."""
    turns = [say_hello(rng)]
    turns += [pick(rng, SHORT_QUESTIONS) for _ in range(rng.randint(1, 2))]
    return turns


def chat_mixed(rng: random.Random) -> list[Turn]:
    """Questions that have nothing to do with each other, so that an old topic does not stick."""
    turns = [pick(rng, QUESTIONS)] + [pick(rng, SHORT_QUESTIONS) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        turns.append(say_thanks(rng))
    return turns


CONVERSATIONS: list[tuple[Callable[[random.Random], list[Turn]], float]] = [
    (chat_capitals, 26),
    (chat_capital_as_json, 10),
    (chat_name, 22),
    (chat_opposites, 6),
    (chat_colors, 5),
    (chat_greeted, 10),
    (chat_mixed, 21),
]
