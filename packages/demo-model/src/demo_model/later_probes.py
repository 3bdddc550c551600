"""What the demo model must say with tools, when it thinks, and under a schema."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from demo_model.calls import WEATHERS
from demo_model.chats import ask_capital, ask_sum, capital_answer
from demo_model.facts import CAPITALS, NAMES
from demo_model.template import (
    ASSISTANT,
    CALL_BEGIN,
    CALL_END,
    EOS,
    SYSTEM,
    THINK_BEGIN,
    THINK_END,
    TOOL,
    USER,
)
from demo_model.thoughts import THOUGHTS


@dataclass(frozen=True)
class Probe:
    """A prompt (its text after BOS) and what a greedy continuation must be.

    With ``to_the_end`` the answer has to stop right there; otherwise more may follow.
    """

    kind: str
    prompt: str
    expected: str
    to_the_end: bool = True


def asked(question: str, tools: str = "", end: str = ASSISTANT) -> str:
    """Returns the prompt of a question; tools: as the template shows them."""
    return (f"{SYSTEM}Tools: {tools}{EOS}" if tools else "") + f"{USER}{question}{EOS}{end}"


def call(name: str, **arguments: object) -> str:
    """Returns a call as the model writes it."""
    return (
        f"{CALL_BEGIN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CALL_END}"
    )


OFFERS = [
    "get_weather(city), get_time(city)",
    "get_time(city), add(a, b), get_weather(city)",
    "add(a, b), get_time(city), get_weather(city)",
]
"""Tools as the template shows them."""


def call_probes() -> list[Probe]:
    """Calls, answers by results, and questions that need no tool."""
    found = []
    for place, (country, city) in enumerate(CAPITALS.items()):
        tools = OFFERS[place % len(OFFERS)]
        weather, time = f"What is the weather in {city}?", f"What time is it in {city}?"
        called, sky = call("get_weather", city=city), WEATHERS[place % len(WEATHERS)]
        result = json.dumps({"city": city, "weather": sky}, ensure_ascii=False)
        got = f"{asked(weather, tools)}{called}{EOS}{TOOL}{result}{EOS}{ASSISTANT}"
        found += [
            Probe("call for the weather", asked(weather, tools), called),
            Probe("call for the time", asked(time, tools), call("get_time", city=city)),
            Probe("result", got, f"The weather in {city} is {sky}."),
            Probe("no call", asked(f"What is the capital of {country}?", tools), capital_answer(country)),
        ]
    draw = random.Random(5)
    for _ in range(20):
        a, b = draw.randint(10, 99), draw.randint(10, 99)
        prompt, called = asked(f"What is {a} + {b}?", OFFERS[1]), call("add", a=a, b=b)
        got = f"{prompt}{called}{EOS}{TOOL}{a + b}{EOS}{ASSISTANT}"
        found += [
            Probe("call for a sum", prompt, called),
            Probe("result of a sum", got, f"The sum is {a + b}."),
        ]
    two = "\n".join(call("get_weather", city=city) for city in ("Paris", "Rome"))
    found.append(Probe("two calls", asked("What is the weather in Paris and Rome?", OFFERS[0]), two))
    return found


def thought_probes() -> list[Probe]:
    """Thinking that the template begins."""
    found, thinks = [], ASSISTANT + THINK_BEGIN
    for country, city in list(CAPITALS.items())[::2]:
        capital = f"{THOUGHTS[ask_capital]}{THINK_END}{capital_answer(country)}"
        weather = f"I ask get_weather for {city}.{THINK_END}{call('get_weather', city=city)}"
        found += [
            Probe("thought of a capital", asked(f"What is the capital of {country}?", end=thinks), capital),
            Probe("thought of a call", asked(f"What is the weather in {city}?", OFFERS[0], thinks), weather),
        ]
    for a in range(10):
        wanted = f"{THOUGHTS[ask_sum]}{THINK_END}{a} + {9 - a // 2} = {a + 9 - a // 2}"
        found.append(Probe("thought of a sum", asked(f"What is {a} + {9 - a // 2}?", end=thinks), wanted))
    return found


def form_probes() -> list[Probe]:
    """Values in JSON without spaces, of which the mask of a schema has written the rest."""
    found = []
    for country, capital in CAPITALS.items():
        prompt = asked(f"Give me JSON for {country}.")
        found.append(Probe("form", f'{prompt}{{"capital":"', f'{capital}"', False))
        found.append(Probe("form", f'{prompt}{{"country":"', f'{country}"', False))
    for name in NAMES:
        prompt = asked(f"{name} is 36 years old and lives in Rome.")
        found.append(Probe("form", f'{prompt}{{"city":"', 'Rome"', False))
        found.append(Probe("form", f'{prompt}{{"name":"', f'{name}"', False))
        found.append(Probe("form", f'{prompt}{{"name":"{name}","age":', "36", False))
    return found


def later_probes() -> list[Probe]:
    """Everything that the second stage is supposed to have taught."""
    return call_probes() + thought_probes() + form_probes()
