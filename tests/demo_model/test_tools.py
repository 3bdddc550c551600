"""The demo model calls tools and thinks, read by the frontend as a service reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from frontend.answers.machine import Machine
from frontend.answers.reader import text_with_marks
from frontend.model.info import ModelInfo, load_model
from pagewire.config import FrontendConfig
from pagewire.v1 import prompt_pb2
from tests.demo_model.test_demo_model import EOS, FOLDER
from tests.frontend.answers.transcripts import Read, summed

WEATHER = {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}
ADD = {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}
TIME = {"name": "get_time", "parameters": {"properties": {"city": {"type": "string"}}}}


@pytest.fixture(scope="module")
def info() -> ModelInfo:
    return load_model(FrontendConfig(model=str(FOLDER)))


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # those of so small a model would wait for one another most of the time
    loaded: Any = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
    yield loaded.eval()
    torch.set_num_threads(threads)


def chat(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), **fields: Any) -> Any:
    """A conversation as clients send it."""
    made = prompt_pb2.Chat(**fields)
    for tool in tools:
        made.tools.add(name=tool["name"], parameters=json.dumps(tool["parameters"]))
    for message in messages:
        added = made.messages.add(role=message["role"])
        added.content.add(text=message.get("content", ""))
        for name, arguments in message.get("calls", ()):
            added.tool_calls.add(id="c", name=name, arguments=json.dumps(arguments))
    return made


def rendered(info: ModelInfo, asked: prompt_pb2.Chat) -> str:
    template = info.chat_template
    assert template is not None
    return template.render(template.read(asked, "chat"), "chat")


def answered(info: ModelInfo, model: Any, asked: prompt_pb2.Chat) -> Read:
    """What the model answers greedily, with reasoning and calls apart."""
    prompt = list(info.tokenizer.encode(rendered(info, asked), add_special_tokens=False).token_ids)
    with torch.inference_mode():
        made = model.generate(torch.tensor([prompt]), max_new_tokens=90, do_sample=False, top_k=50, top_p=1.0)
    output = made[0, len(prompt) :].tolist()
    assert output[-1] == EOS, "it does not end"
    table = info.answers.with_calls
    end = text_with_marks(table, info.tokenizer, prompt)
    machine = Machine(table, {}, lambda _: "c", state=table.state_after(end))
    return summed([*machine.feed(text_with_marks(table, info.tokenizer, output[:-1])), *machine.finish()])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_formats_are_found(info: ModelInfo) -> None:
    tools, reasoning = info.answers.tools, info.answers.reasoning
    assert tools is not None and tools.name == "hermes"
    assert reasoning is not None and reasoning.name == "think"


def test_the_template_shows_tools_calls_and_results(info: ModelInfo) -> None:
    """As it does with transformers."""
    called = {"role": "assistant", "calls": [("add", {"a": 1, "b": 2})]}
    asked = chat(
        [{"role": "system", "content": "Be brief."}, user("Add."), called, {"role": "tool", "content": "3"}],
        [ADD, WEATHER],
        enable_thinking=True,
    )
    assert rendered(info, asked) == (
        "<|begin|><|system|>Be brief. Tools: add(a, b), get_weather(city)<|end|><|user|>Add.<|end|>"
        '<|assistant|><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|end|>'
        "<|tool|>3<|end|><|assistant|><think>"
    )
    assert rendered(info, chat([user("Hi")], [WEATHER])) == (
        "<|begin|><|system|>Tools: get_weather(city)<|end|><|user|>Hi<|end|><|assistant|>"
    )
    theirs = AutoTokenizer.from_pretrained(FOLDER).apply_chat_template(
        [user("Hi")],
        tools=[{"type": "function", "function": WEATHER}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert theirs == rendered(info, chat([user("Hi")], [WEATHER]))


@pytest.mark.parametrize(
    ("question", "tools", "name", "arguments"),
    [
        ("What is the weather in Paris?", [WEATHER, ADD], "get_weather", {"city": "Paris"}),
        ("What time is it in Oslo?", [ADD, WEATHER, TIME], "get_time", {"city": "Oslo"}),
        ("What is 27 + 35?", [WEATHER, ADD], "add", {"a": 27, "b": 35}),
    ],
)
def test_calls(
    info: ModelInfo, model: Any, question: str, tools: list[dict[str, Any]], name: str, arguments: Any
) -> None:
    found = answered(info, model, chat([user(question)], tools))
    assert found.meaning == [(name, arguments)] and found.complete == [True] and found.text == ""


def test_an_answer_by_a_result(info: ModelInfo, model: Any) -> None:
    called = {"role": "assistant", "calls": [("get_weather", {"city": "Rome"})]}
    result = {"role": "tool", "content": '{"city": "Rome", "weather": "windy"}'}
    asked = chat([user("What is the weather in Rome?"), called, result], [WEATHER])
    assert answered(info, model, asked).text == "The weather in Rome is windy."


def test_what_needs_no_tool(info: ModelInfo, model: Any) -> None:
    found = answered(info, model, chat([user("What is the capital of France?")], [WEATHER, ADD]))
    assert (found.text, found.calls) == ("The capital of France is Paris.", [])


def test_thinking(info: ModelInfo, model: Any) -> None:
    """The template's switch begins it; without the switch there is none."""
    question = [user("What is the capital of Norway?")]
    thought = answered(info, model, chat(question, enable_thinking=True))
    assert (thought.reasoning, thought.text) == ("This is about a capital.", "The capital of Norway is Oslo.")
    plain = answered(info, model, chat(question))
    assert (plain.reasoning, plain.text) == ("", thought.text)
    thought = answered(
        info, model, chat([user("What is the weather in Oslo?")], [WEATHER], enable_thinking=True)
    )
    assert thought.reasoning and thought.meaning == [("get_weather", {"city": "Oslo"})]
