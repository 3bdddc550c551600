"""Requests of given lengths, of workloads and of files."""

import json
from pathlib import Path

import pytest

from pagewire.flags import UsageError
from pagewire_bench.prompts import (
    BenchRequest,
    FileSource,
    LengthRange,
    LengthSource,
    RandomText,
    WorkloadSource,
    is_conversation,
    is_token_ids,
    read_prompts,
)

IDS = RandomText(7, vocab_size=1000)
WORDS = RandomText(7, vocab_size=None)


def test_lengths_are_drawn_and_prompts_are_new():
    source = LengthSource(IDS, prefix=4, input=LengthRange(16, 32), output=LengthRange(8, 8))
    requests = [source.request(number) for number in range(40)]
    assert requests == [source.request(number) for number in range(40)]
    lengths = {len(each.prompt) - 4 for each in requests}
    assert min(lengths) >= 16 and max(lengths) <= 32 and len(lengths) > 5
    assert {each.max_tokens for each in requests} == {8}
    assert len({tuple(each.prompt[:4]) for each in requests}) == 1
    assert len({tuple(each.prompt[:12]) for each in requests}) == 40
    assert all(16 <= each < 1000 for request in requests for each in request.prompt)


def test_words_where_the_vocabulary_is_not_known():
    source = LengthSource(WORDS, prefix=2, input=LengthRange(6, 6), output=LengthRange(1, 1))
    first, second = (source.request(number).prompt for number in range(2))
    assert isinstance(first, str) and isinstance(second, str)
    assert len(first.split()) == 8 and first != second and first.split()[:2] == second.split()[:2]


def test_a_workload_comes_over_and_over_with_new_prompts():
    source = WorkloadSource(IDS, "prefix", max_model_len=4096)
    first, again = source.request(0), source.request(32)
    assert len(first.prompt) == len(again.prompt) == 544 and first.max_tokens == 32
    assert first.prompt[:512] == again.prompt[:512] and first.prompt != again.prompt


@pytest.mark.parametrize("text", ["0", "5..4", "x", "", "1..", "..3", "1..2..3"])
def test_wrong_lengths_name_their_flag(text: str):
    if text == "1..":
        assert LengthRange.parse("--input-len", text) == LengthRange(1, 1)
        return
    with pytest.raises(UsageError, match="--input-len"):
        LengthRange.parse("--input-len", text)


def test_a_file_of_prompts(tmp_path: Path):
    message = [{"role": "user", "content": "hi"}]
    lines = ["hello", {"prompt": "a", "max_tokens": 3}, {"token_ids": [1, 2]}, {"messages": message}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    requests = read_prompts(path, 9)
    assert requests == [
        BenchRequest("hello", 9),
        BenchRequest("a", 3),
        BenchRequest([1, 2], 9),
        BenchRequest(message, 9),
    ]
    assert [is_conversation(each.prompt) for each in requests] == [False, False, False, True]
    assert [is_token_ids(each.prompt) for each in requests] == [False, False, True, False]
    assert FileSource(requests).request(5) == requests[1]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "{}",
        '{"prompt": ""}',
        '{"prompt": "a", "token_ids": [1]}',
        '{"token_ids": []}',
        '{"token_ids": [true]}',
        '{"token_ids": [-1]}',
        '{"messages": ["hi"]}',
        '{"messages": [{"content": "hi"}]}',
        '{"prompt": "a", "max_tokens": 0}',
        '{"prompt": "a", "max_tokens": true}',
        "[" * 100_000,
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(UsageError, match="line 2"):
        read_prompts(path, 9)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        read_prompts(tmp_path / "none", 9)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="no line"):
        read_prompts(tmp_path / "empty", 9)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_prompts(tmp_path / "bytes", 9)
