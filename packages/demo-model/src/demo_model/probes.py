"""What the demo model must say, and how it is asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model.chats import capital_answer, count, country_json
from demo_model.facts import (
    ABOUT_ME,
    ALPHABET,
    CAPITALS,
    COLORS,
    DAYS,
    DO_NOT_KNOW,
    EMOJI,
    GREETING,
    HELLOS,
    MONTHS,
    NAMES,
    OPPOSITES,
    SOUNDS,
)
from demo_model.later_probes import Probe, later_probes
from demo_model.template import ASSISTANT, EOS, USER


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
    asked = probes() + later_probes()
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
