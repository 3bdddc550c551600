"""Conversations with tools, as the demo model learns them: calls, their results, and the answers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demo_model.chats import SHORT_QUESTIONS, Turn, ask_sum, pick
from demo_model.facts import CAPITALS, DO_NOT_KNOW, SYSTEM_PROMPTS
from demo_model.template import (
    ASSISTANT,
    BOS,
    CALL_BEGIN,
    CALL_END,
    EOS,
    SYSTEM,
    THINK_BEGIN,
    THINK_END,
    TOOL,
    USER,
)
from demo_model.text import Document, Segment

WEATHERS = ["sunny", "rainy", "cloudy", "windy", "snowy"]


@dataclass(frozen=True)
class Signature:
    """A tool, as the template shows it: its name and the names of its parameters."""

    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


WEATHER = Signature("get_weather", ("city",))
TIME = Signature("get_time", ("city",))
ADD = Signature("add", ("a", "b"))
TOOLS = (WEATHER, TIME, ADD)
"""The tools that the model knows."""


@dataclass(frozen=True)
class Call:
    """A call, what the tool returns, and what the model thinks of calling it."""

    tool: Signature
    arguments: Mapping[str, object]
    result: str
    thought: str

    def __str__(self) -> str:
        written = json.dumps({"name": self.tool.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"{CALL_BEGIN}\n{written}\n{CALL_END}"


@dataclass(frozen=True)
class Task:
    """A question, the calls that it takes, and the answer by their results."""

    user: str
    calls: tuple[Call, ...]
    answer: str


def tools_line(tools: Sequence[Signature]) -> str:
    """Returns what the template writes of the tools."""
    return "Tools: " + ", ".join(map(str, tools))


def city(rng: random.Random) -> str:
    """Returns a city that the model knows."""
    return rng.choice(list(CAPITALS.values()))


def _result(rng: random.Random, value: object, key: str, arguments: Mapping[str, object]) -> str:
    """Returns a tool's result: text or a JSON value, or an object, which may repeat the arguments."""
    kind = rng.random()
    if kind < 0.3:
        return str(value)
    found = {**arguments, key: value} if kind < 0.8 else {key: value}
    return json.dumps(found, ensure_ascii=False)


def weather(rng: random.Random, where: str) -> Task:
    """A question for the weather of a city."""
    found, arguments = rng.choice(WEATHERS), {"city": where}
    question = rng.choice(["What is the weather in {}?", "What is the weather in {}?", "Weather in {}?"])
    call = Call(
        WEATHER, arguments, _result(rng, found, "weather", arguments), f"I ask get_weather for {where}."
    )
    return Task(question.format(where), (call,), f"The weather in {where} is {found}.")


def clock(rng: random.Random, where: str) -> Task:
    """A question for the time in a city."""
    found, arguments = f"{rng.randint(0, 23):02}:{rng.choice([0, 15, 30, 45]):02}", {"city": where}
    call = Call(TIME, arguments, _result(rng, found, "time", arguments), f"I ask get_time for {where}.")
    return Task(f"What time is it in {where}?", (call,), f"It is {found} in {where}.")


def addition(rng: random.Random) -> Task:
    """A sum of two numbers, mostly larger than the model can add itself."""
    low, high = (10, 99) if rng.random() < 0.8 else (0, 9)
    a, b = rng.randint(low, high), rng.randint(low, high)
    call = Call(ADD, {"a": a, "b": b}, _result(rng, a + b, "sum", {}), f"I add {a} and {b}.")
    return Task(f"What is {a} + {b}?", (call,), f"The sum is {a + b}.")


def place_task(rng: random.Random) -> Task:
    """The weather or the time: of one city, or by two calls of two."""
    make = rng.choice([weather, weather, clock])
    one, other = make(rng, city(rng)), make(rng, city(rng))
    if rng.random() < 0.88:
        return one
    first, second = (str(task.calls[0].arguments["city"]) for task in (one, other))
    what = "What time is it" if make is clock else "What is the weather"
    return Task(f"{what} in {first} and {second}?", one.calls + other.calls, f"{one.answer} {other.answer}")


def a_task(rng: random.Random) -> Task:
    """A task of a random kind."""
    return place_task(rng) if rng.random() < 0.72 else addition(rng)


def offered(
    rng: random.Random, needed: Signature | None, without: Sequence[Signature] = ()
) -> list[Signature]:
    """Returns tools in random order. needed: is among them; without: are not."""
    others = [tool for tool in TOOLS if tool != needed and tool not in without]
    kept = rng.sample(others, rng.randint(0 if needed else 1, len(others)))
    tools = [*kept, *([needed] if needed else [])]
    rng.shuffle(tools)
    return tools


def _opening(rng: random.Random, tools: Sequence[Signature]) -> list[Segment]:
    system = f"{rng.choice(SYSTEM_PROMPTS)} " if rng.random() < 0.15 else ""
    parts = [Segment(BOS, False)]
    if tools or system:
        parts.append(Segment(f"{SYSTEM}{system}{tools_line(tools) if tools else ''}".rstrip() + EOS, False))
    return parts


def _said(text: str, thought: str | None, learn: bool) -> list[Segment]:
    """An answer of the model; thought: None: the template has not begun one."""
    begun = Segment(ASSISTANT if thought is None else ASSISTANT + THINK_BEGIN, False)
    return [begun, Segment((f"{thought}{THINK_END}" if thought is not None else "") + text + EOS, learn)]


def task_document(rng: random.Random, *, thinks: bool) -> Document:
    """A task and how it is solved. thinks: the last answer is thought about."""
    task = a_task(rng)
    parts = _opening(rng, offered(rng, task.calls[0].tool))
    parts.append(Segment(f"{USER}{task.user}{EOS}", False))
    calls, thought = "\n".join(map(str, task.calls)), task.calls[0].thought
    if thinks and rng.random() < 0.6:
        return parts + _said(calls, thought, True)
    parts += _said(calls, None, not thinks)
    parts += [Segment(f"{TOOL}{call.result}{EOS}", False) for call in task.calls]
    return parts + _said(task.answer, "Now I can answer." if thinks else None, True)


def plain_document(rng: random.Random) -> Document:
    """A question that needs none of the tools there are, or one that is not there."""
    if rng.random() < 0.25:
        task = a_task(rng)
        tools = offered(rng, None, [task.calls[0].tool])
        small = len(task.user) <= len("What is 3 + 4?") and task.calls[0].tool == ADD
        turns = [ask_sum(rng)] if small else [Turn(task.user, DO_NOT_KNOW)]
    else:
        turns = [pick(rng, SHORT_QUESTIONS) for _ in range(rng.choice([1, 1, 2]))]
        tools = offered(rng, None, [ADD] if any(" + " in turn.user for turn in turns) else [])
    parts = _opening(rng, tools)
    for turn in turns:
        parts += [Segment(f"{USER}{turn.user}{EOS}", False), *_said(turn.assistant, None, True)]
    return parts


def follow_up_document(rng: random.Random) -> Document:
    """A question about a city, and the same about another."""
    make = rng.choice([weather, clock])
    first, second = make(rng, city(rng)), make(rng, city(rng))
    (call,), (other,) = first.calls, second.calls
    parts = _opening(rng, offered(rng, call.tool))
    parts += [Segment(f"{USER}{first.user}{EOS}", False), *_said(str(call), None, True)]
    parts += [Segment(f"{TOOL}{call.result}{EOS}", False), *_said(first.answer, None, True)]
    follow_up = rng.choice(["And in {}?", "And {}?", "What about {}?"]).format(other.arguments["city"])
    parts += [Segment(f"{USER}{follow_up}{EOS}", False), *_said(str(other), None, True)]
    return parts


def calls_document(rng: random.Random) -> Document:
    """One random conversation with tools."""
    kind = rng.random()
    if kind < 0.50:
        return task_document(rng, thinks=False)
    if kind < 0.65:
        return task_document(rng, thinks=True)
    if kind < 0.73:
        return follow_up_document(rng)
    return plain_document(rng)
