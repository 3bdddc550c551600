"""Answers over token ids: special tokens by id, ids of calls, counts of reasoning, continuation."""

import re

import pytest
import tokenizers
from tokenizers import AddedToken

from frontend.answers.answer import Answer, AnswerContext, CallIds
from frontend.answers.binding import BoundFormat
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.answers.reader import text_with_marks
from frontend.streams.sequence import OutputFields, Sequence
from frontend.text.stop_strings import StopMatcher, StopStrings
from frontend.text.tokenizer import Tokenizer
from pagewire.v1 import generation_pb2
from tests.frontend.answers.transcripts import CALLS, SCHEMAS, TRANSCRIPTS, Read
from tests.frontend.fakes import SPECIAL, byte_level_tokenizer

KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


def tokenizer_with(*special: str) -> Tokenizer:
    tokenizer: tokenizers.Tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return Tokenizer(tokenizer)


def answer(tokenizer: Tokenizer, tools: str | None, reasoning: str | None = None, **options) -> Answer:
    special = {token: added.content for token, added in tokenizer.special_tokens.items()}
    table = BoundFormat(
        TOOL_FORMATS[tools] if tools else None,
        REASONING_FORMATS[reasoning] if reasoning else None,
        special,
    )
    prompt = options.pop("prompt", "")
    end = text_with_marks(table, tokenizer, ids_of(tokenizer, prompt))
    ids = CallIds(options.pop("seed", 7), 12, short=options.pop("short", False))
    skip = not options.get("keep_marks", False)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    index = options.pop("index", 0)
    return Answer(AnswerContext(table, SCHEMAS, ids, end, **options), index, detokenizer)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).token_ids)


def taken(text: str, answer: Answer) -> Read:
    output = generation_pb2.SequenceOutput()
    answer.put(output)
    calls: dict[int, tuple[str, str, str]] = {}
    for part in output.tool_calls:
        before = calls.get(part.index, ("", "", ""))
        calls[part.index] = (before[0] + part.id, before[1] + part.name, before[2] + part.arguments)
    return Read(text, output.reasoning, [calls[index] for index in sorted(calls)], [])


def test_special_tokens_are_found_by_id_and_their_text_is_text() -> None:
    tokenizer = tokenizer_with(*KIMI)
    real = answer(tokenizer, "kimi-k2")
    text = real.push(ids_of(tokenizer, TRANSCRIPTS["kimi-k2"])) + real.flush()
    found = taken(text, real)
    assert found.meaning == CALLS and found.text == "Let me look."
    assert [call[0] for call in found.calls] == ["functions.get_weather:0", "functions.now:1"]
    faked = answer(tokenizer, "kimi-k2")
    letters = [token for letter in TRANSCRIPTS["kimi-k2"] for token in ids_of(tokenizer, letter)]
    text = faked.push(letters) + faked.flush()
    assert text == TRANSCRIPTS["kimi-k2"] and taken(text, faked).calls == []


@pytest.mark.parametrize("keep", [False, True])
def test_a_mark_that_is_no_call_is_shown_only_on_request(keep: bool) -> None:
    tokenizer = tokenizer_with(*KIMI)
    reading = answer(tokenizer, "kimi-k2", keep_marks=keep)
    text = reading.push(ids_of(tokenizer, "a<|tool_calls_section_begin|>b")) + reading.flush()
    assert text == ("a<|tool_calls_section_begin|>b" if keep else "ab")


def test_half_a_code_point_before_a_mark_is_decided_by_it() -> None:
    tokenizer = tokenizer_with(*KIMI)
    reading = answer(tokenizer, "kimi-k2")
    half = ids_of(tokenizer, "🙂")[:1]
    assert reading.push([*half, *ids_of(tokenizer, KIMI[0] + KIMI[4])]) == "\ufffd"


@pytest.mark.parametrize("prompt", ["<|assistant|>", "<|assistant|><think>\n"])
def test_reasoning_is_counted_by_token(prompt: str) -> None:
    tokenizer = tokenizer_with()
    opened = prompt.endswith("\n")
    reading = answer(tokenizer, None, "think", prompt=prompt)
    thought = ids_of(tokenizer, ("" if opened else "<think>") + "hm so</think>")
    text = reading.push([*thought, *ids_of(tokenizer, "\n\nYes.")]) + reading.flush()
    assert (text, taken(text, reading).reasoning) == ("Yes.", "hm so")
    assert reading.num_reasoning_tokens == len(thought)


def test_ids_are_a_function_of_seed_sequence_and_call() -> None:
    tokenizer = tokenizer_with()

    def ids(**options) -> list[str]:
        reading = answer(tokenizer, "hermes", **options)
        reading.push(ids_of(tokenizer, TRANSCRIPTS["hermes"]))
        return [call[0] for call in taken("", reading).calls]

    first = ids()
    assert first == ids() and len(set(first)) == 2
    assert all(call.startswith("call_") and len(call) == 29 for call in first)
    others = [ids(seed=8), ids(index=1), ids(short=True)]
    assert len({*first, *(call for each in others for call in each)}) == 8
    assert all(len(call) == 9 and call.isalnum() for call in ids(short=True))


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "llama-4", "glm-4.5", "mistral"])
def test_killed_and_continued_at_every_token(name: str) -> None:
    """What was sent before, and what a continuation sends, are the answer."""
    tokenizer = tokenizer_with("[TOOL_CALLS]", "[ARGS]")
    tokens = ids_of(tokenizer, "<think>hm 🙂</think>" + TRANSCRIPTS[name])
    whole = answer(tokenizer, name, "think")
    expected = taken(whole.push(tokens) + whole.flush(), whole)
    assert expected.meaning == CALLS
    for cut in range(0, len(tokens) + 1):
        before = answer(tokenizer, name, "think")
        sent = taken("".join(before.push((token,)) for token in tokens[:cut]), before)
        after = answer(tokenizer, name, "think")
        after.push(tokens[:cut])
        after.forget()
        rest = taken(after.push(tokens[cut:]) + after.flush(), after)
        calls = [*sent.calls]
        for call in rest.calls:
            if call[1]:
                calls.append(call)
            else:
                calls[-1] = (*calls[-1][:2], calls[-1][2] + call[2])
        joined = Read(sent.text + rest.text, sent.reasoning + rest.reasoning, calls, [])
        assert joined == expected
        assert after.num_reasoning_tokens == whole.num_reasoning_tokens


def test_special_tokens_of_the_fakes_are_not_marks() -> None:
    """Only special tokens that a table names become characters."""
    table = BoundFormat(TOOL_FORMATS["hermes"], None, dict(enumerate(SPECIAL)))
    assert table.marks == {}


@pytest.mark.parametrize(("stop", "ends"), [("1\n2", False), ("12", False), ("2 m", True), ("found 1", True)])
def test_a_stop_does_not_reach_across_a_call(stop: str, ends: bool) -> None:
    tokenizer = tokenizer_with()
    text = 'I found 1 <tool_call>{"name": "now", "arguments": {}}</tool_call> 2 more'
    for regexes in ((), (re.escape(stop),)):
        stops = StopStrings([] if regexes else [stop], include=True, regexes=regexes)
        sequence = Sequence(0, OutputFields(), answer(tokenizer, "hermes"), StopMatcher(stops))
        stopped = sequence.accept(ids_of(tokenizer, text), 0, 0)
        assert stopped == ends
        if not ends:
            sequence.accept([], generation_pb2.FINISH_REASON_ABORTED, 0)
            response = generation_pb2.GenerateResponse()
            assert sequence.put(response) and response.sequences[0].text == "I found 1\n2 more"
