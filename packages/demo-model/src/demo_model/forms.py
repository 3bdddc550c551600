"""Answers as JSON of any schema, which a mask holds to it.

The first key, which the mask chooses, does not count towards the loss. So what the model writes without a
schema does not change.
"""

from __future__ import annotations

import json
import random

from demo_model.calls import city
from demo_model.chats import ask_capital
from demo_model.facts import CAPITALS, COLORS, NAMES, OPPOSITES, SOUNDS, SYSTEM_PROMPTS
from demo_model.template import ASSISTANT, BOS, EOS, SYSTEM, USER
from demo_model.text import Document, Segment

Members = dict[str, object]


def _country(rng: random.Random) -> tuple[str, Members]:
    country, capital = rng.choice(list(CAPITALS.items()))
    question = f"Give me JSON for {country}." if rng.random() < 0.5 else ask_capital(rng, country).user
    return question, {"country": country, "capital": capital}


def _person(rng: random.Random) -> tuple[str, Members]:
    name, age, home = rng.choice(NAMES), rng.randint(1, 99), city(rng)
    if rng.random() < 0.4:
        return f"Give me JSON for a person named {name}, age {age}.", {"name": name, "age": age}
    said = rng.choice(
        [f"{name} is {age} years old and lives in {home}.", f"{name} lives in {home} and is {age} years old."]
    )
    return said, {"name": name, "age": age, "city": home}


def _fact(rng: random.Random) -> tuple[str, Members]:
    kind = rng.randrange(4)
    if kind == 0:
        thing, color = rng.choice(list(COLORS.items()))
        return f"What color is the {thing}?", {"thing": thing, "color": color}
    if kind == 1:
        pair = rng.choice(list(OPPOSITES.items()))
        word_, other = pair if rng.random() < 0.5 else pair[::-1]
        return f"What is the opposite of {word_}?", {"word": word_, "opposite": other}
    if kind == 2:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return f"What does the {animal} say?", {"animal": animal, "sound": sound}
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return f"What is {a} + {b}?", {"a": a, "b": b, "sum": a + b}


def form_segments(rng: random.Random, members: Members) -> list[Segment]:
    """Returns a JSON object without spaces: some of the members in random order."""
    kept = dict(rng.sample(list(members.items()), rng.choice([len(members), len(members), 1])))
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    key, value = next(iter(kept.items()))
    begin = f'{{"{key}":' + ('"' if isinstance(value, str) else "")
    return [Segment(begin, False), Segment(text.removeprefix(begin) + EOS, True)]


def forms_document(rng: random.Random) -> Document:
    """One question that is answered by a JSON object."""
    kind = rng.random()
    question, members = (_country if kind < 0.35 else _person if kind < 0.75 else _fact)(rng)
    parts = [Segment(BOS, False)]
    if rng.random() < 0.15:
        parts.append(Segment(f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{EOS}", False))
    parts.append(Segment(f"{USER}{question}{EOS}{ASSISTANT}", False))
    return parts + form_segments(rng, members)
