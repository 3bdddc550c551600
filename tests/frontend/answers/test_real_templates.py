"""Round trip: a conversation with calls is rendered by the template of a real checkpoint, and what it puts in
the assistant's place is read as an answer. The calls come back."""

import copy
import os.path
from pathlib import Path
from typing import Any

import pytest

from frontend.answers.binding import BoundFormat
from frontend.answers.formats import reasoning_format_of, tool_format_of
from frontend.errors import ServiceError
from frontend.templates.chat_template import ChatTemplate
from pagewire.v1 import prompt_pb2
from tests.frontend.answers.real_templates import PACKAGE, VERSION, folder_of_templates
from tests.frontend.answers.transcripts import read

FORMATS = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "tool-calls-list",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "glm-4.5",
    "GLM-4.7-Flash": "glm-4.5",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "LFM2.5-8B-A1B": "lfm-2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "tool-calls-list",
    "MiniMax-M2": "minimax-m2",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm-4.5",
    "StepFun3.5-Flash": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-v3",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4": "deepseek-v3.2",
    "google-gemma-4-31B-it-interleaved": "gemma-4",
    "google-gemma-4-31B-it": "gemma-4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm-4.5",
    "llama-cpp-deepseek-r1": "deepseek-v3",
    "meetkai-functionary-medium-v3.1": "function-tag",
    "meta-llama-Llama-3.1-8B-Instruct": "llama-3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama-3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama-3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-list",
    "moonshotai-Kimi-K2": "kimi-k2",
    "openai-gpt-oss-120b": "harmony",
    "poolside-Laguna-S-2.1": "glm-4.5",
    "poolside-Laguna-XS-2.1": "glm-4.5",
    "poolside-Laguna-XS.2": "glm-4.5",
    "unsloth-Apriel-1.5": "tool-calls-list",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}
"""Template -> the format that it is recognized by."""
NO_CALLS = {
    "NVIDIA-Nemotron-Nano-v2",  # leaves the reasoning of its prompt open
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
}
"""Of these, templates that do not render calls, or not within the sandbox's rules: only recognized."""
ARGUMENTS = '{"city": "Paris", "days": 3, "opts": {"ok": true, "x": [1, "two"]}}'
SCHEMA = '{"type": "object", "properties": {}}'
CALLS: list[tuple[str, Any]] = [
    ("get_weather", {"city": "Paris", "days": 3, "opts": {"ok": True, "x": [1, "two"]}}),
    ("now", {}),
]


@pytest.fixture(scope="module")
def templates() -> Path:
    folder = folder_of_templates()
    if folder is None:
        pytest.skip(f"the source distribution of {PACKAGE} {VERSION} cannot be downloaded here")
    return folder


def conversation(*, reasoning: bool, calls: int, text: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": [{"text": "Let me look."}] if text else []}
    if reasoning:
        message["reasoning"] = "Hmm, weather."
    message["tool_calls"] = [
        {"id": "a1b2c3d4e", "name": "get_weather", "arguments": ARGUMENTS},
        {"id": "b1b2c3d4e", "name": "now", "arguments": "{}"},
    ][:calls]
    tools = [
        {
            "name": "get_weather",
            "description": "Weather.",
            "parameters": '{"type": "object", "properties": {}}',
        },
        {"name": "now", "description": "The time."},
    ]
    user = {"role": "user", "content": [{"text": "Hi"}]}
    return {"messages": [user, message], "tools": tools, "add_generation_prompt": False}


VARIANTS = [
    {"reasoning": reasoning, "calls": calls, "text": text}
    for text in (True, False)
    for calls in (2, 1)
    for reasoning in (True, False)
]


def rendered(template: ChatTemplate, chat: dict[str, Any]) -> str | None:
    try:
        return template.render(template.read(prompt_pb2.Chat(**chat), "chat"), "chat")
    except ServiceError:
        return None


def end_of_header(whole: str, prompt: str) -> int:
    """Where the assistant's part begins: what both have in common, up to the end of a mark or a line."""
    end = len(os.path.commonprefix([whole, prompt]))
    while end < len(prompt) and prompt[end - 1] not in ">\n]:":
        end -= 1
    return end


@pytest.mark.parametrize("name", FORMATS)
def test_calls_come_back(templates: Path, name: str) -> None:
    source = (templates / f"{name}.jinja").read_text(encoding="utf-8")
    tools, reasoning = tool_format_of(source), reasoning_format_of(source)
    assert tools is not None and tools.name == FORMATS[name]
    if name in NO_CALLS:
        return
    template = ChatTemplate(
        source, {"bos_token": "<s>", "eos_token": "</s>"}, max_bytes=1 << 20, time_limit=30
    )
    found = 0
    for variant in VARIANTS:
        chat = conversation(**variant)
        before = copy.deepcopy(chat) | {"messages": chat["messages"][:1], "add_generation_prompt": True}
        whole, prompt = rendered(template, chat), rendered(template, before)
        if whole is None or prompt is None:
            continue  # this template refuses reasoning, several calls, or text beside them
        begin = end_of_header(whole, prompt)
        table = BoundFormat(tools, None if tools.always else reasoning, {9: "</s>"})
        answer = whole[begin:].removesuffix("</s>")
        reading = read(table, [answer], prompt[:begin])
        expected = CALLS[: 1 if tools.always else variant["calls"]]
        assert reading.meaning == expected, answer
        assert all(reading.complete)
        assert read(table, list(answer), prompt[:begin]) == reading
        found += 1
    assert found
