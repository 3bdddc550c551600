"""Brief thinking before an answer, as the demo model learns it where the template begins it."""

from __future__ import annotations

import random

from demo_model.chats import (
    QUESTIONS,
    Ask,
    Turn,
    ask_capital,
    ask_count,
    ask_json,
    ask_opposite,
    ask_recital,
    ask_repeat,
    ask_small_fact,
    ask_story,
    ask_sum,
    ask_unknown,
    chat_capitals,
    chat_name,
    say_hello,
    say_thanks,
)
from demo_model.facts import SYSTEM_PROMPTS
from demo_model.template import ASSISTANT, BOS, EOS, SYSTEM, THINK_BEGIN, THINK_END, USER
from demo_model.text import Document, Segment

THOUGHTS: dict[Ask, str] = {
    ask_capital: "This is about a capital.",
    ask_json: "The answer is a JSON object.",
    ask_opposite: "This is about an opposite.",
    ask_small_fact: "This is a small fact.",
    ask_sum: "This is a sum.",
    ask_count: "I count.",
    ask_recital: "I know this by heart.",
    ask_story: "I tell a story.",
    ask_repeat: "I repeat the words.",
    ask_unknown: "I look for what I know.",
    say_hello: "The user greets me.",
    say_thanks: "The user is polite.",
}
"""What the model thinks of a question, by its kind."""


def think_question(rng: random.Random) -> tuple[list[Turn], str]:
    """Any question, and what kind of question it is."""
    known = [(ask, weight) for ask, weight in QUESTIONS if ask in THOUGHTS]
    (ask,) = rng.choices([entry[0] for entry in known], [entry[1] for entry in known])
    return [ask(rng)], THOUGHTS[ask]


def think_chat(rng: random.Random) -> tuple[list[Turn], str]:
    """A conversation, of which the last answer is thought about."""
    if rng.random() < 0.5:
        return chat_name(rng), "The user has told me the name."
    return chat_capitals(rng)[:3], THOUGHTS[ask_capital]


def thoughts_document(rng: random.Random) -> Document:
    """One random conversation; its last answer is thought about, as the template drops earlier thoughts."""
    kind = rng.random()
    make = think_question if kind < 0.85 else think_chat
    turns, thought = make(rng)
    parts = [Segment(BOS, False)]
    if rng.random() < 0.15:
        parts.append(Segment(f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{EOS}", False))
    for turn in turns[:-1]:
        parts.append(Segment(f"{USER}{turn.user}{EOS}{ASSISTANT}{turn.assistant}{EOS}", False))
    parts.append(Segment(f"{USER}{turns[-1].user}{EOS}{ASSISTANT}{THINK_BEGIN}", False))
    return [*parts, Segment(f"{thought}{THINK_END}{turns[-1].assistant}{EOS}", True)]
