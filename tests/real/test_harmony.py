"""gpt-oss's harmony, judged by the package of its authors: the same tokens of a conversation, and the same
messages out of an answer's tokens, however they arrive."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyEncodingName,
    Message,
    ReasoningEffort,
    Role,
    StreamableParser,
    StreamState,
    SystemContent,
    ToolDescription,
    load_harmony_encoding,
)

from frontend.answers.answer import Answer, AnswerContext, CallIds
from frontend.answers.binding import BoundFormat
from frontend.answers.events import BREAK, SEPARATOR
from frontend.answers.formats import TOOL_FORMATS
from frontend.prompts.prompt_encoding import PromptEncoder
from frontend.templates.chat_template import ChatTemplate
from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import load_tokenizer
from pagewire.errors import StartupError
from pagewire.v1 import generation_pb2, prompt_pb2
from tests.real.gpt_oss import gpt_oss_folder, vocabulary_file

FUNCTIONS = [
    ("get_weather", '{"city": "Paris", "days": 3}'),
    ("now", "{}"),
    ("find-it_2", '{"q": "<|call|> é🙂"}'),
]
TEXTS = [
    "Sure, here it is.",
    "élan, 東京, 🙂🙂 and\n\n\tindented  code",
    "It spells <|end|><|start|>assistant<|channel|>analysis<|message|> as text.",
    "to=functions.f <|constrain|>json",
    '{"answer": [1, 2, {"deep": null}]}',
    "x",
]
PREFIX = "<|start|>assistant"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return gpt_oss_folder()
    except StartupError as error:
        pytest.skip(f"the tokenizer is not here and cannot be downloaded: {error}")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, {})


@pytest.fixture(scope="module")
def harmony(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarmonyEncoding]:
    """It compares the vocabulary with its own digest: the two tokenizers have the same ordinary tokens."""
    path = vocabulary_file(tokenizer, tmp_path_factory.mktemp("vocabulary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(path.parent))
        yield load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@dataclass
class Said:
    """What an answer says."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def of_messages(messages: list[Message]) -> Said:
    said = Said()
    for message in messages:
        content = "".join(part.text for part in message.content)
        if message.recipient is not None:
            said.calls.append((message.recipient.removeprefix("functions."), content))
        elif message.channel == "analysis":
            said.reasoning += SEPARATOR + content if said.reasoning and content else content
        else:
            said.text += SEPARATOR + content if said.text and content else content
    return said


def theirs(harmony: HarmonyEncoding, tokens: list[int]) -> Said:
    parser = StreamableParser(harmony, Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    if parser.state is StreamState.CONTENT:
        parser.process_eos()
    return of_messages(parser.messages)


def ours(tokenizer: Tokenizer, pieces: list[list[int]]) -> Said:
    special = {token: added.content for token, added in tokenizer.special_tokens.items()}
    table = BoundFormat(TOOL_FORMATS["harmony"], None, special)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    answer = Answer(AnswerContext(table, {}, CallIds(0, 0, short=False), PREFIX), 0, detokenizer)
    said = Said()
    for piece in [*pieces, None]:
        text = answer.flush() if piece is None else answer.push(piece)
        said.text += text.replace(BREAK, SEPARATOR)  # as frontend.streams.sequence does
        output = generation_pb2.SequenceOutput()
        answer.put(output)
        said.reasoning += output.reasoning
        for part in output.tool_calls:
            if part.index == len(said.calls):
                said.calls.append((part.name, ""))
            name, arguments = said.calls[part.index]
            said.calls[part.index] = (name, arguments + part.arguments)
    return said


def random_answer(draw: random.Random) -> list[Message]:
    """Messages of one turn: reasoning, text before calls, then calls or the answer, each there or not."""
    messages = []
    for _ in range(draw.randrange(3)):
        messages.append(assistant(draw.choice(TEXTS)).with_channel("analysis"))
        if draw.random() < 0.4:
            messages.append(assistant(draw.choice(TEXTS)).with_channel("commentary"))
    if draw.random() < 0.5:
        messages.append(assistant(draw.choice(TEXTS)).with_channel("final"))
        return messages
    for _ in range(draw.randrange(1, 3)):
        name, arguments = draw.choice(FUNCTIONS)
        call = assistant(arguments).with_channel(draw.choice(("commentary", "analysis")))
        call = call.with_recipient(f"functions.{name}")
        kind = draw.choice(("json", "<|constrain|>json", None))
        messages.append(call if kind is None else call.with_content_type(kind))
    return messages


def assistant(text: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text)


def answer_tokens(harmony: HarmonyEncoding, messages: list[Message], draw: random.Random) -> list[int]:
    """The tokens that the model writes behind `<|start|>assistant`. It may name a call's recipient behind the
    channel, where the package's own rendering has it before."""
    tokens = []
    for message in messages:
        written = harmony.render(message)
        if message.recipient is not None and draw.random() < 0.5:
            header = f"<|channel|>commentary to={message.recipient} <|constrain|>json"
            begin = written.index(*harmony.encode("<|message|>", allowed_special="all"))
            written = harmony.encode(PREFIX + header, allowed_special="all") + written[begin:]
        tokens += written
    start = harmony.encode(PREFIX, allowed_special="all")
    assert tokens[: len(start)] == start
    return tokens[len(start) :]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_messages_out_of_an_answer(harmony: HarmonyEncoding, tokenizer: Tokenizer, seed: int):
    draw = random.Random(seed)
    for _ in range(40):
        tokens = answer_tokens(harmony, random_answer(draw), draw)
        cut = draw.choice((len(tokens), draw.randrange(len(tokens) + 1)))  # by max_tokens
        expected = theirs(harmony, tokens[:cut])
        cuts = sorted(draw.randrange(cut + 1) for _ in range(draw.randrange(6)))
        pieces = [tokens[start:end] for start, end in zip([0, *cuts], [*cuts, cut], strict=True)]
        assert ours(tokenizer, pieces) == expected, harmony.decode_utf8(tokens[:cut])
        assert ours(tokenizer, [[token] for token in tokens[:cut]]) == expected


def test_calls_that_are_enforced_are_calls(harmony: HarmonyEncoding):
    """What the grammar of calls writes around a name and its arguments is what the model is trained on."""
    writing = TOOL_FORMATS["harmony"].writing
    assert writing is not None
    for name, _ in FUNCTIONS:
        text = f"{writing.before}{name}{writing.behind}{{}}"
        (message,) = harmony.parse_messages_from_completion_tokens(
            harmony.encode(text, allowed_special="all"), Role.ASSISTANT
        )
        assert (message.recipient, message.channel) == (f"functions.{name}", "commentary")
        assert message.content_type == "<|constrain|>json" and message.content[0].text == "{}"


TOOLS = [
    {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
    {"name": "now", "description": "The time."},
]


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer, llama_cpp: Path) -> PromptEncoder:
    source = (llama_cpp / "openai-gpt-oss-120b.jinja").read_text(encoding="utf-8")
    return PromptEncoder(tokenizer, ChatTemplate(source, {}, max_bytes=1 << 20, time_limit=30))


def conversation(draw: random.Random) -> tuple[list[dict[str, Any]], list[Message]]:
    """Turns of user, assistant and tools, for us and for them. The template itself refuses answers that
    spell <|channel|>."""
    answers = [text for text in TEXTS if "<|channel|>" not in text]
    turns: list[dict[str, Any]] = []
    messages: list[Message] = []
    for _ in range(draw.randrange(1, 4)):
        asked, said = draw.choice(TEXTS), draw.choice(answers)
        turns.append({"role": "user", "content": asked})
        messages.append(Message.from_role_and_content(Role.USER, asked))
        for name, arguments in draw.sample(FUNCTIONS[:2], draw.randrange(3)):
            call = {"id": "c", "name": name, "arguments": arguments}
            turns.append({"role": "assistant", "tool_calls": [call]})
            turns.append({"role": "tool", "tool_call_id": "c", "content": "sunny"})
            call_message = assistant(arguments).with_channel("commentary").with_content_type("json")
            messages.append(call_message.with_recipient(f"functions.{name}"))
            result = Message.from_author_and_content(Author.new(Role.TOOL, f"functions.{name}"), '"sunny"')
            messages.append(result.with_recipient("assistant").with_channel("commentary"))
        if draw.random() < 0.7:
            turns.append({"role": "assistant", "content": said})
            messages.append(assistant(said).with_channel("final"))
    return turns, messages


def prompt_of(turns: list[dict[str, Any]], effort: str, *, has_tools: bool) -> prompt_pb2.Prompt:
    prompt = prompt_pb2.Prompt()
    for turn in turns:
        text = turn.pop("content", None)
        message = prompt.chat.messages.add(**turn)
        if text is not None:
            message.content.add(text=text)
    for tool in TOOLS if has_tools else ():
        prompt.chat.tools.add(**{**tool, "parameters": json.dumps(tool.get("parameters", {}))})
    prompt.chat.template_kwargs["reasoning_effort"] = effort
    prompt.chat.add_generation_prompt = True
    return prompt


def test_the_same_tokens_of_a_conversation(harmony: HarmonyEncoding, encoder: PromptEncoder):
    """Behind instructions without tools the checkpoint's template has a blank line that the package has not:
    conversations with instructions have tools here."""
    draw = random.Random(5)
    functions = [
        ToolDescription.new(each["name"], each["description"], each.get("parameters")) for each in TOOLS
    ]
    for number in range(16):
        turns, messages = conversation(draw)
        effort = draw.choice(("Low", "Medium", "High"))
        system = SystemContent.new().with_conversation_start_date(date.today().isoformat())
        first = [
            Message.from_role_and_content(Role.SYSTEM, system.with_reasoning_effort(ReasoningEffort(effort)))
        ]
        has_tools = number % 2 == 1 or any("tool_calls" in turn for turn in turns)
        if has_tools:
            developer = DeveloperContent.new().with_function_tools(functions)
            if number % 3:
                developer = developer.with_instructions("Be brief.")
                turns.insert(0, {"role": "system", "content": "Be brief."})
            first.append(Message.from_role_and_content(Role.DEVELOPER, developer))
        expected = harmony.render_conversation_for_completion(
            Conversation.from_messages([*first, *messages]), Role.ASSISTANT
        )
        prompt = prompt_of(turns, effort.lower(), has_tools=has_tools)
        found = encoder.read(prompt, "prompt", vocab_size=201_088)
        assert harmony.decode_utf8(list(found.token_ids)) == harmony.decode_utf8(expected)
        assert list(found.token_ids) == expected
