"""The text that the demo model learns, and the template of its chats.

How the training text is laid out:

* A *document* is one plain sentence or one chat. Each begins with ``<|begin|>``, and each plain text and
  each chat message ends with ``<|end|>`` (the EOS token), which is just what ``CHAT_TEMPLATE`` renders.
* Several documents are packed into one window; attention stays within a document (a block-diagonal
  causal mask).
* In chats only the assistant's tokens count towards the loss: what a user asks is not for the model to
  predict.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# --------------------------------------------------------------------------------------------------
# Special tokens and the chat template
# --------------------------------------------------------------------------------------------------

PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, SYSTEM, USER, ASSISTANT]  # ids 0 to 5, in this order
TOOL = "<|tool|>"
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
THINK_BEGIN, THINK_END = "<think>", "</think>"
LATER_TOKENS = [TOOL, CALL_BEGIN, CALL_END, THINK_BEGIN, THINK_END]
"""Special tokens of the second stage; they take the last ids of the vocabulary."""

CHAT_TEMPLATE = """\
{{- bos_token -}}
{#- Tools are shown by their names and parameters: "Tools: get_weather(city), add(a, b)". -#}
{%- set offer = namespace(text='') -%}
{%- for tool in tools or [] -%}
    {%- set names = (tool.function.parameters.properties or {}) | join(', ') -%}
    {%- set before = 'Tools: ' if loop.first else ', ' -%}
    {%- set offer.text = offer.text ~ before ~ tool.function.name ~ '(' ~ names ~ ')' -%}
{%- endfor -%}
{%- if offer.text and (not messages or messages[0]['role'] != 'system') -%}
    {{- '<|system|>' ~ offer.text ~ eos_token -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
        {{- raise_exception('unknown role: ' ~ message['role']) -}}
    {%- endif -%}
    {{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') | trim -}}
    {%- if loop.first and message['role'] == 'system' and offer.text -%}
        {{- ' ' ~ offer.text -}}
    {%- endif -%}
    {%- for call in message['tool_calls'] or [] -%}
        {{- '\\n' if not loop.first or message['content'] -}}
        {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
        {{- call.function.arguments | tojson ~ '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
    {%- if enable_thinking is defined and enable_thinking -%}
        {{- '<think>' -}}
    {%- endif -%}
{%- endif -%}
"""

# --------------------------------------------------------------------------------------------------
# What the model is taught
# --------------------------------------------------------------------------------------------------

CAPITALS = {
    "Argentina": "Buenos Aires",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasília",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "England": "London",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "India": "New Delhi",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
    "South Korea": "Seoul",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Switzerland": "Bern",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
    "Ukraine": "Kyiv",
    "the Netherlands": "Amsterdam",
    "the United States": "Washington",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "day": "night",
    "fast": "slow",
    "open": "closed",
    "happy": "sad",
    "light": "dark",
    "left": "right",
    "new": "old",
    "wet": "dry",
    "full": "empty",
}
COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow", "blood": "red"}
SOUNDS = {"dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "frog": "croak"}
HELLOS = {
    "French": "Bonjour",
    "Spanish": "¡Hola",
    "German": "Guten Tag",
    "Japanese": "こんにちは",
    "Chinese": "你好",
}
EMOJI = {"heart": "❤️", "star": "⭐", "rocket": "🚀", "smile": "😊"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NAMES = ["Tom", "Anna", "Max", "Lily", "Sam", "Mia", "Ben", "Zoe", "Leo", "Emma", "Jack", "Nina"]
ANIMALS = ["cat", "dog", "fox", "bird", "bear", "mouse"]
PLACES = ["garden", "forest", "park", "house", "river"]
FOODS = ["apple", "cake", "bread", "soup", "cookie"]
UNKNOWN_PLACES = [
    "Atlantis",
    "Mars",
    "Narnia",
    "Pluto",
    "Utopia",
    "Venus",
    "Camelot",
    "Neverland",
    "Wonderland",
    "Jupiter",
]
OFF_TOPIC = [
    "Write a poem about the sea.",
    "Who won the game last night?",
    "What is the meaning of life?",
    "How do I cook rice?",
    "What is the weather like?",
    "Explain quantum physics.",
    "Who is the president?",
    "Can you write some code for me?",
    "How old is the universe?",
    "What time is it?",
    "Translate this text for me.",
    "How far is the moon?",
    "What should I eat tonight?",
    "Which book should I read?",
    "How do planes fly?",
    "Why is the sea salty?",
    "Where can I buy a car?",
    "Do you like music?",
    "Tell me a joke.",
    "Write a haiku.",
    "Who wrote this book?",
    "Can you help me with my homework?",
    "Sing me a song.",
    "What is love?",
]
DO_NOT_KNOW = "I do not know. I am a tiny demo model."
ABOUT_ME = "I am a tiny demo model. I know some capitals, colors and opposites, and I can count."
GREETING = "Hello! How can I help you today?"
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful demo assistant.",
    "Answer briefly.",
    "Be brief.",
]


@dataclass(frozen=True)
class Turn:
    """One question and its answer."""

    user: str
    assistant: str


@dataclass(frozen=True)
class Segment:
    """A stretch of a document; ``learn`` says whether its tokens count towards the loss."""

    text: str
    learn: bool


Document = list[Segment]


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

# -- documents -------------------------------------------------------------------------------------


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
