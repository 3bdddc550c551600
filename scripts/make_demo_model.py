"""Train the demo model that ships with pagewire, from text this script writes itself.

The result is a real, if very small, Llama checkpoint (grouped-query attention, tied embeddings, a
byte-level BPE tokenizer, a chat template), so that a fresh checkout can serve something sensible on any
CPU without a download:

    python scripts/make_demo_model.py                           # writes pagewire/demo_model/
    python scripts/make_demo_model.py --steps 20 --out /tmp/x   # a quick look at whether everything runs
    python scripts/make_demo_model.py --check-only              # asks the model that is there

Everything is seeded, uses one thread and runs a fixed number of steps, so the same versions of torch,
tokenizers and transformers on the same kind of CPU give the same files. No text, weights or tokenizer
from anyone else go in.

How the training text is laid out:

* A *document* is one plain sentence or one chat. Each begins with ``<|begin|>``, and each plain text and
  each chat message ends with ``<|end|>`` (the EOS token), which is just what ``CHAT_TEMPLATE`` renders.
* Several documents are packed into one window; attention stays within a document (a block-diagonal
  causal mask).
* In chats only the assistant's tokens count towards the loss: what a user asks is not for the model to
  predict.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "pagewire" / "demo_model"

# --------------------------------------------------------------------------------------------------
# Special tokens and the chat template
# --------------------------------------------------------------------------------------------------

PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, SYSTEM, USER, ASSISTANT]  # ids 0 to 5, in this order

CHAT_TEMPLATE = (
    "{{- bos_token -}}\n"
    "{%- for message in messages -%}\n"
    "    {%- if message['role'] not in ['system', 'user', 'assistant'] -%}\n"
    "        {{- raise_exception('unknown role: ' ~ message['role']) -}}\n"
    "    {%- endif -%}\n"
    "    {{- '<|' ~ message['role'] ~ '|>' ~ message['content'] | trim ~ eos_token -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '<|assistant|>' -}}\n"
    "{%- endif -%}\n"
)

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


# --------------------------------------------------------------------------------------------------
# Tokenizer
# --------------------------------------------------------------------------------------------------


def train_tokenizer(rng: random.Random, vocab_size: int, n_documents: int = 12000) -> Tokenizer:
    """A byte-level BPE tokenizer with single digits, which puts BOS before what it encodes.

    Merges are learned from the ASCII part only. Each emoji and each kana is thus several tokens, and
    whoever streams the model's output has to put characters together from pieces, as with large models.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()

    def texts() -> Iterator[str]:
        for _ in range(n_documents):
            for segment in document(rng):
                text = segment.text
                for token in SPECIAL_TOKENS:
                    text = text.replace(token, "\n")
                yield text.encode("ascii", "ignore").decode("ascii")

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


# --------------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------------

IGNORED = -100  # the label of a token that does not count towards the loss


@dataclass(frozen=True)
class Batch:
    """Packed windows: tokens, the tokens to predict after them, and the document each token belongs to."""

    tokens: torch.Tensor
    labels: torch.Tensor
    documents: torch.Tensor

    def attention_mask(self) -> torch.Tensor:
        """True where a token may look: back, within its document. Shape (rows, 1, length, length)."""
        same = self.documents[:, :, None] == self.documents[:, None, :]
        length = self.tokens.shape[1]
        return (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]


def make_batch(rng: random.Random, tokenizer: Tokenizer, rows: int, length: int) -> Batch:
    """``rows`` windows of ``length`` tokens, each filled with fresh documents, the last one cut to fit."""
    tokens, labels, documents = [], [], []
    for _ in range(rows):
        row: list[tuple[int, int, int]] = []
        index = 0
        while len(row) < length + 1:
            first_of_long = index == 0 and length >= 256 and rng.random() < 0.5
            for segment in long_document(rng) if first_of_long else document(rng):
                for token in tokenizer.encode(segment.text, add_special_tokens=False).ids:
                    row.append((token, token if segment.learn else IGNORED, index))
            index += 1
        tokens.append([entry[0] for entry in row[:length]])
        labels.append([entry[1] for entry in row[1 : length + 1]])
        documents.append([entry[2] for entry in row[:length]])
    return Batch(torch.tensor(tokens), torch.tensor(labels), torch.tensor(documents))


def learning_rate(step: int, steps: int, peak: float, warmup: int = 60) -> float:
    """A short linear warm-up, then a cosine down to 2 % of the peak."""
    ramp = min(1.0, (step + 1) / warmup)
    return peak * ramp * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(
    model: Any, tokenizer: Tokenizer, rng: random.Random, args: argparse.Namespace, save: Callable[[], None]
) -> float:
    """Train in place for a fixed number of steps; returns the seconds it took.

    Every third step uses windows of 256 tokens (and half as many of them), the others 128: short ones are
    cheaper, long ones keep long outputs in order.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    began = time.monotonic()
    seen, running = 0, 0.0
    model.train()
    for step in range(args.steps):
        rows, length = (8, 256) if step % 3 == 2 else (16, 128)
        batch = make_batch(rng, tokenizer, rows, length)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        hidden = model.model(
            input_ids=batch.tokens, attention_mask=batch.attention_mask(), use_cache=False
        ).last_hidden_state
        wanted = batch.labels != IGNORED
        loss: Any = torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), batch.labels[wanted])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += batch.tokens.numel()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0 or step == args.steps - 1:
            elapsed = time.monotonic() - began
            print(f"step {step} loss {running:.4f} {elapsed:.0f} s {seen / elapsed:.0f} tokens/s", flush=True)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < args.steps:
            save()
    model.eval()
    return time.monotonic() - began


# --------------------------------------------------------------------------------------------------
# Checking what was learned
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A prompt (its text after BOS) and what a greedy continuation must be.

    With ``to_the_end`` the answer has to stop right there; otherwise more may follow.
    """

    kind: str
    prompt: str
    expected: str
    to_the_end: bool = True


def chat_prompt(*messages: str) -> str:
    """A prompt of user and assistant messages in turn, up to where the assistant is to speak, without BOS."""
    roles = [USER, ASSISTANT] * len(messages)
    body = "".join(f"{role}{message}{EOS}" for role, message in zip(roles, messages, strict=False))
    return body + ASSISTANT


def probes() -> list[Probe]:
    """Everything the model is supposed to get right."""
    found: list[Probe] = []
    countries = list(CAPITALS)
    for i, (country, capital) in enumerate(CAPITALS.items()):
        question, answer = f"What is the capital of {country}?", capital_answer(country)
        other = countries[(i + 7) % len(countries)]
        found += [
            Probe("capital, plain", f"The capital of {country} is", f" {capital}."),
            Probe("capital, chat", chat_prompt(question), answer),
            Probe("country as JSON", chat_prompt(f"Give me JSON for {country}."), country_json(country)),
            Probe("follow-up", chat_prompt(question, answer, f"And of {other}?"), capital_answer(other)),
            Probe(
                "that as JSON", chat_prompt(question, answer, "Give me that as JSON."), country_json(country)
            ),
        ]
    for name in NAMES:
        hello = (f"My name is {name}.", f"Hello, {name}!")
        between = ("What is the capital of Italy?", "The capital of Italy is Rome.")
        found += [
            Probe("name, hello", chat_prompt(hello[0]), hello[1]),
            Probe("name, asked", chat_prompt(*hello, "What is my name?"), f"Your name is {name}."),
            Probe("name, kept", chat_prompt(*hello, *between, "What is my name?"), f"Your name is {name}."),
            Probe(
                "person as JSON",
                chat_prompt(f"Give me JSON for a person named {name}, age 42."),
                json.dumps({"name": name, "age": 42}),
            ),
        ]
    for pair in OPPOSITES.items():
        for word, other in (pair, pair[::-1]):
            answer = f"The opposite of {word} is {other}."
            found.append(Probe("opposite, plain", f"The opposite of {word} is", f" {other}."))
            found.append(Probe("opposite, chat", chat_prompt(f"What is the opposite of {word}?"), answer))
    for thing, color in COLORS.items():
        found.append(Probe("color", chat_prompt(f"What color is the {thing}?"), f"The {thing} is {color}."))
    for animal, sound in SOUNDS.items():
        found.append(
            Probe("sound", chat_prompt(f"What does the {animal} say?"), f"The {animal} says {sound}.")
        )
    for language, hello_there in HELLOS.items():
        found.append(Probe("hello in", chat_prompt(f"Say hello in {language}."), f"{hello_there}!"))
    for thing, emoji in EMOJI.items():
        found.append(Probe("emoji", chat_prompt(f"Show me a {thing}."), f"Here is a {thing}: {emoji}"))
    for a in range(10):
        for b in range(10):
            found.append(Probe("sum", f"{a} + {b} =", f" {a + b}"))
    for first in [1, *range(0, 98, 7)]:
        found.append(Probe("count", count(first, first + 3) + ",", " " + count(first + 4, first + 8), False))
    found.append(Probe("long count", "1, 2, 3, 4,", " " + count(5, 50) + "."))
    for first, last in [(1, 5), (1, 10), (1, 12), (3, 9), (5, 12), (10, 20)]:
        found.append(Probe("count to", chat_prompt(f"Count from {first} to {last}."), count(first, last)))
    found += [
        Probe("alphabet", "a b c d e", " " + " ".join(ALPHABET[5:])),
        Probe("alphabet", "m n o p", " " + " ".join(ALPHABET[16:])),
        Probe("alphabet", chat_prompt("Say the alphabet."), " ".join(ALPHABET)),
        Probe("days", "Monday Tuesday", " " + " ".join(DAYS[2:])),
        Probe("months", chat_prompt("Name the months."), ", ".join(MONTHS) + "."),
        Probe("greeting", chat_prompt("Hello!"), GREETING),
        Probe("thanks", chat_prompt("Hello!", GREETING, "Thank you!"), "You are welcome!"),
        Probe("about", chat_prompt("Who are you?"), ABOUT_ME),
        Probe("unknown", chat_prompt("What is the meaning of life?"), DO_NOT_KNOW),
        Probe("repeat", chat_prompt("Repeat: fox apple river"), "fox apple river"),
        Probe("story", "Once upon a time", " there was a ", False),
    ]
    return found


UNFINISHED = -1  # stands at the end of an answer that reached its limit of tokens before EOS
GREEDY: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], limit: int, **options: Any
) -> list[list[int]]:
    """The new tokens for each prompt (up to and without EOS), in one left-padded batch."""
    rows = tokenizer(list(prompts), return_tensors="pt", padding=True)
    with torch.inference_mode():
        out = model.generate(
            input_ids=rows["input_ids"],
            attention_mask=rows["attention_mask"],
            max_new_tokens=limit,
            **options,
        )
    answers = []
    for row in out[:, rows["input_ids"].shape[1] :].tolist():
        stop = tokenizer.eos_token_id
        answers.append(row[: row.index(stop)] if stop in row else [*row, UNFINISHED])
    return answers


def is_right(probe: Probe, answer: list[int], tokenizer: Any) -> tuple[bool, str]:
    """Whether an answer is as the probe wants it, and the answer as text."""
    ended = answer[-1:] != [UNFINISHED]
    text = tokenizer.decode(answer if ended else answer[:-1], skip_special_tokens=False)
    return (text == probe.expected and ended) if probe.to_the_end else text.startswith(probe.expected), text


def evaluate(out: Path) -> None:
    """Load what was written, as a user would, and print how the probes come out, greedy and sampled."""
    model: Any = LlamaForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    model.eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out, padding_side="left")
    asked = probes()
    for label, options in (("greedy", GREEDY), ("with the defaults of generation_config.json", {})):
        torch.manual_seed(0)
        wrong: list[tuple[str, str]] = []
        for at in range(0, len(asked), 32):
            chunk = asked[at : at + 32]
            answers = generate(model, tokenizer, [probe.prompt for probe in chunk], 240, **options)
            for probe, answer in zip(chunk, answers, strict=True):
                fine, text = is_right(probe, answer, tokenizer)
                if not fine:
                    line = f"  {probe.prompt!r}: wanted {probe.expected!r}, got {text[:100]!r}"
                    wrong.append((probe.kind, line))
        print(f"probes, {label}: {len(asked) - len(wrong)} of {len(asked)} right")
        if wrong:
            print(f"  wrong by kind: {dict(Counter(kind for kind, _ in wrong))}")
            print("\n".join(line for _, line in wrong[:30]))
    for prompt in [
        "1, 2, 3, 4,",
        "95, 96, 97,",
        "Once upon a time",
        chat_prompt("Tell me a story about a fox."),
    ]:
        (answer,) = generate(model, tokenizer, [prompt], 400, **GREEDY)
        text = tokenizer.decode([token for token in answer if token != UNFINISHED])
        print(f"{prompt!r} ({len(answer)} tokens) -> {text!r}")


# --------------------------------------------------------------------------------------------------
# Writing the checkpoint
# --------------------------------------------------------------------------------------------------

FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The shape of the model: 1.8 million parameters, six query heads on two key-value heads of 32."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
        dtype="bfloat16",
    )


def write(out: Path, model: Any, config: LlamaConfig, tokenizer: Tokenizer) -> None:
    """Write the checkpoint in the layout of the Hugging Face hub, weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    copy: Any = LlamaForCausalLM(config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    make_defaults: Any = GenerationConfig
    copy.generation_config = make_defaults(
        do_sample=True,
        temperature=0.6,
        top_k=40,
        top_p=0.9,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    copy.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8"
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    for name in FILES:
        (out / name).chmod(0o644)


def main() -> None:
    """Make the corpus, the tokenizer and the model, write them, and check the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="folder to write (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=3400, help="training steps of 2048 tokens (default: %(default)s)"
    )
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of text and weights (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=1024, help="tokenizer size (default: %(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=0, metavar="N", help="also write after every N steps"
    )
    parser.add_argument(
        "--check-only", action="store_true", help="do not train: check the model that is in --out"
    )
    args = parser.parse_args()

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if args.check_only:
        evaluate(args.out)
        return
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(random.Random(args.seed), args.vocab)
    config = model_config(tokenizer)
    model: Any = LlamaForCausalLM(config)
    model.float()
    print(
        f"vocabulary {config.vocab_size}, parameters {sum(p.numel() for p in model.parameters()):,}",
        flush=True,
    )
    seconds = train(
        model,
        tokenizer,
        random.Random(args.seed + 1),
        args,
        save=lambda: write(args.out, model, config, tokenizer),
    )
    write(args.out, model, config, tokenizer)
    print(f"trained {args.steps} steps in {seconds:.0f} s on one thread")
    print({path.name: path.stat().st_size for path in sorted(args.out.iterdir())})
    evaluate(args.out)


if __name__ == "__main__":
    main()
