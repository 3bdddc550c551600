"""Mistral's formats of calls, judged by the package of their authors (mistral-common) where it is installed:
what it renders of a conversation is read here as it reads it, whole and character by character."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from frontend.answers.binding import BoundFormat
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from tests.frontend.answers.transcripts import read

TEXTS = (
    *("Paris", "", "null", "{", "}]", "]", "é🙂東", "\n\ttab", 'a"b\\c', '[{"name": "x"}]', "</s>"),
    *("[TOOL_CALLS]", '[ARGS]{"a": 1}', "[CALL_ID]x", "[THINK]", "[/THINK] x"),
)
NUM_ANSWERS = 60
ROOT = "mistral_common.tokens.tokenizers"


@pytest.fixture(scope="module")
def tekken() -> Any:
    pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    return import_module(f"{ROOT}.tekken")


def tokenizer_of(tekken: Any, version: str, folder: Path) -> Any:
    """Returns a tokenizer of this version over the vocabulary that the package brings."""
    (file,) = Path(tekken.__file__).parents[2].glob("data/tekken_240911.json")
    content = json.loads(file.read_text())
    content["config"]["version"], content["image"] = version, None
    special = list(tekken.Tekkenizer.DEPRECATED_SPECIAL_TOKENS)
    marks = ("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]") if int(version[1:]) >= 11 else ()
    for mark in marks:
        special.append({"rank": len(special), "token_str": mark, "is_control": True})
    path = folder / "tekken.json"
    path.write_text(json.dumps(content | {"special_tokens": special}))
    return tekken.Tekkenizer.from_file(path)


def random_value(draw: random.Random, depth: int = 0) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: draw.choice(TEXTS),
        lambda: draw.choice(TEXTS) + draw.choice(TEXTS),
        lambda: draw.randrange(-5, 10**6),
        draw.random,
        lambda: draw.choice((True, False, None)),
        lambda: [random_value(draw, depth + 1) for _ in range(draw.randrange(3))],
        lambda: {draw.choice(TEXTS): random_value(draw, depth + 1) for _ in range(draw.randrange(3))},
    ]
    return draw.choice(makers[: 7 if depth < 3 else 5])()


def random_calls(draw: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    for _ in range(draw.randrange(1, 4)):
        keys = (draw.choice(("city", "k", "é", 'q"')) for _ in range(draw.randrange(4)))
        yield (
            draw.choice(("get_weather", "now", "a.b-c_d", "x")),
            {key: random_value(draw) for key in keys},
        )


@pytest.mark.parametrize(
    ("version", "name"),
    [("v3", "mistral-list"), ("v7", "mistral-list"), ("v11", "mistral"), ("v13", "mistral")],
)
def test_calls_are_read_as_their_authors_read_them(tekken: Any, version: str, name: str, tmp_path: Path):
    tools: Any = import_module("mistral_common.experimental.tools")
    messages: Any = import_module("mistral_common.protocol.instruct.messages")
    protocol: Any = import_module("mistral_common.protocol.instruct.tool_calls")
    policy = import_module(f"{ROOT}.base").SpecialTokenPolicy.IGNORE
    tokenizer = tokenizer_of(tekken, version, tmp_path)
    encoder = getattr(import_module(f"{ROOT}.instruct"), f"InstructTokenizer{version.upper()}")(tokenizer)
    special = {rank: tokenizer.id_to_piece(rank) for rank in range(tokenizer.num_special_tokens)}
    table = BoundFormat(TOOL_FORMATS[name], REASONING_FORMATS["mistral"], special)
    draw = random.Random(3)
    for _ in range(NUM_ANSWERS):
        calls = list(random_calls(draw))
        content = draw.choice((None, "Let me look.", "é🙂 [TOOL_CALLS] as text")) if version != "v3" else None
        written = [
            protocol.FunctionCall(name=each, arguments=json.dumps(value, ensure_ascii=draw.random() < 0.5))
            for each, value in calls
        ]
        message = messages.AssistantMessage(
            content=content, tool_calls=[protocol.ToolCall(id="abcdefgh1", function=each) for each in written]
        )
        tokens = [t for t in encoder.encode_assistant_message(message, False) if t != tokenizer.eos_id]
        _, parts = tools._split_content_and_tool_calls(tokens, tokenizer.get_special_token("[TOOL_CALLS]"))
        theirs = [each.function for each in tools._decode_tool_calls(parts, tokenizer)]
        answer = _answer(tokens, table, special, partial(tokenizer.decode, special_token_policy=policy))
        found = read(table, [answer])
        assert found.meaning == [(each.name, json.loads(each.arguments)) for each in theirs] == calls
        assert all(found.complete) and found.text == (content or "")
        assert read(table, list(answer)) == found


def _answer(
    tokens: list[int], table: BoundFormat, special: dict[int, str], decode: Callable[[list[int]], str]
) -> str:
    """Returns the text that the machine reads: marks as their characters, the rest decoded between them."""
    text, plain = "", list[int]()
    for token in tokens:
        if token in special:
            text, plain = text + decode(plain) + table.spelled(special[token]), []
        else:
            plain.append(token)
    return text + decode(plain)
