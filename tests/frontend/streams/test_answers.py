"""Reasoning and calls as clients see them: streamed, as one message, cumulative, and continued."""

import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest

from frontend.model.info import ModelInfo, load_model
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2, model_pb2, prompt_pb2
from tests.frontend.fakes import (
    END,
    Output,
    Script,
    Service,
    details_of,
    encode,
    run_service,
    text_of,
    tokens_of,
    write_checkpoint,
)

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}{% endfor %}"
    "<|assistant|>{# answers have <think></think> and <tool_call>{'name', 'arguments'}</tool_call> #}"
)
ANSWER = (
    "<think>\nhm 🙂\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
TOKENS = [*encode(ANSWER), END]
TOOLS = [{"name": "get_weather"}, {"name": "now"}]
MESSAGE = {"role": "user", "content": [{"text": "hi"}]}
EOS, MAX_TOKENS = generation_pb2.FINISH_REASON_EOS, generation_pb2.FINISH_REASON_MAX_TOKENS
TOOL_CALLS = generation_pb2.FINISH_REASON_TOOL_CALLS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tools"), chat_template_jinja=TEMPLATE)


@pytest.fixture(scope="module")
def tools_model(folder: Path) -> ModelInfo:
    return load_model(FrontendConfig(model=str(folder), served_model_name=("fake",)))


def script(request: engine_pb2.AddRequest) -> Iterable[Output]:
    """A token per step, from where the request is; max_tokens holds."""
    delivered = [list(unpack_u32(part.token_ids)) for part in request.delivered] or [[]]
    for position in range(len(delivered[0]), len(TOKENS)):
        token = TOKENS[position]
        if token == END:
            yield Output([token], EOS, END, position=position)
        elif position + 1 == request.stopping.max_tokens:
            yield Output([token], MAX_TOKENS, position=position)
            return
        else:
            yield Output([token], position=position)


def fields(**changes) -> dict:
    chat = {"messages": [MESSAGE], "tools": TOOLS, **changes.pop("chat", {})}
    return {"prompt": {"chat": chat}, "sampling": {"seed": 5}, "output": {"token_ids": True}, **changes}


def calls_of(messages: Iterable[generation_pb2.GenerateResponse]) -> list[tuple[str, str, str]]:
    calls: dict[int, tuple[str, str, str]] = {}
    for message in messages:
        for output in message.sequences:
            for part in output.tool_calls:
                assert bool(part.name) == (part.index not in calls) == bool(part.id)
                before = calls.get(part.index, ("", "", ""))
                calls[part.index] = (before[0] + part.id, before[1] + part.name, before[2] + part.arguments)
    return [calls[index] for index in sorted(calls)]


def reasoning_of(messages: Iterable[generation_pb2.GenerateResponse]) -> str:
    return "".join(output.reasoning for message in messages for output in message.sequences)


def finish_of(messages: list[generation_pb2.GenerateResponse]) -> generation_pb2.Finish:
    return messages[-1].sequences[0].finish


def serve(folder: Path, script: Script, model: ModelInfo) -> AbstractAsyncContextManager[Service]:
    return run_service(folder, script, model=model, engine_options={"max_model_len": 2000})


async def test_calls_and_reasoning_arrive_typed(folder, tools_model):
    async with serve(folder, script, model=tools_model) as service:
        messages = await service.generate(**fields())
        calls = calls_of(messages)
        assert [(name, json.loads(text)) for _, name, text in calls] == [
            ("get_weather", {"city": "Köln"}),
            ("now", {}),
        ]
        assert text_of(messages) == "Let me look." and reasoning_of(messages) == "hm 🙂"
        assert finish_of(messages).reason == TOOL_CALLS and finish_of(messages).token_id == END
        usage = messages[-1].usage
        assert usage.completion_tokens == len(TOKENS)
        assert usage.reasoning_tokens == len(
            encode(">\nhm 🙂\n</think>")
        )  # from the token that completes the mark
        assert tokens_of(messages) == TOKENS
        whole = await service.generate(**fields(output={"token_ids": True, "mode": "MODE_FINAL"}))
        assert len(whole) == 1 and calls_of(whole) == calls and whole[0].usage == usage
        growing = await service.generate(**fields(output={"mode": "MODE_CUMULATIVE"}))
        last = growing[-1].sequences[0]
        assert (last.text, last.reasoning) == ("Let me look.", "hm 🙂")
        assert [(part.id, part.name, part.arguments) for part in last.tool_calls] == calls


async def test_continued_after_every_token(folder, tools_model):
    """Whatever process dies: both parts, joined, are the answer, with the same ids."""
    async with serve(folder, script, model=tools_model) as service:
        reference = await service.generate(**fields())
        for cut in range(1, len(reference) + 1):
            before = reference[:cut]
            sequences = [{"index": 0, "token_ids": tokens_of(before)}]
            after = await service.generate(**fields(continuation={"sequences": sequences}))
            joined = [*before[: cut - (cut == len(reference))], *after]
            assert text_of(before) + text_of(after) == "Let me look."
            assert reasoning_of(before) + reasoning_of(after) == "hm 🙂"
            assert _joined(before, after) == calls_of(reference)
            assert finish_of(joined) == finish_of(reference)
            assert after[-1].usage == reference[-1].usage


def _joined(*parts: list[generation_pb2.GenerateResponse]) -> list[tuple[str, str, str]]:
    return calls_of(message for part in parts for message in part)


@pytest.mark.parametrize(
    ("changes", "text", "reason"),
    [
        ({"chat": {"tools": []}}, ANSWER.split("</think>\n\n")[1], EOS),
        ({"chat": {"tool_choice": {"mode": "MODE_NONE"}}}, ANSWER.split("</think>\n\n")[1], EOS),
        ({"prompt": {"text": "hi"}}, ANSWER, EOS),
        ({"stopping": {"max_tokens": 80}}, "Let me look.", MAX_TOKENS),
        ({"stopping": {"stop": ["me"]}}, "Let ", generation_pb2.FINISH_REASON_STOP),
        ({"stopping": {"stop": ["hm", "get_weather"]}}, "Let me look.", TOOL_CALLS),
        ({"output": {"text": False, "token_ids": True}}, "", EOS),
    ],
    ids=["no-tools", "none", "text-prompt", "cut", "stop", "stop-elsewhere", "no-text"],
)
async def test_what_is_text_and_how_it_ends(folder, tools_model, changes, text, reason):
    async with serve(folder, script, model=tools_model) as service:
        messages = await service.generate(**fields(**changes))
        assert text_of(messages) == text
        assert finish_of(messages).reason == reason


async def test_tools_need_a_known_format(checkpoint, folder):
    silent = load_model(FrontendConfig(model=str(folder), served_model_name=("fake",), tool_format="none"))
    async with serve(folder, script, model=silent) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(**fields())
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "prompt.chat.tools" in str(details_of(caught.value))


def test_get_model_says_what_is_told_apart(tools_model, model):
    welcome = engine_pb2.Welcome()
    welcome.model.vocab_size = 512
    config = FrontendConfig()
    both = {model_pb2.CAPABILITY_TOOLS, model_pb2.CAPABILITY_REASONING}
    assert both <= set(tools_model.describe(welcome, config).capabilities)
    assert not both & set(model.describe(welcome, config).capabilities)


def test_the_prompt_has_the_tools(tools_model):
    template = tools_model.chat_template
    assert template is not None
    conversation = template.read(prompt_pb2.Chat(messages=[MESSAGE], tools=TOOLS), "c")
    assert '"name": "get_weather"' in template.render(conversation, "c")
