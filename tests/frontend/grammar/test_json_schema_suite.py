"""The official JSON Schema suite, draft 2020-12: what is not refused gives valid documents.

The judge is `jsonschema`, whose source distribution has the suite: pip downloads it, and where it cannot, the
tests are skipped.
"""

import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from frontend.errors import InvalidRequest
from frontend.grammar.judge import GrammarJudge, byte_tokenizer
from pagewire.v1.generation_pb2 import StructuredOutput

SOURCE = "jsonschema==4.26.0"
FOLDER = "json/tests/draft2020-12/"
LONGEST = 300
DOCUMENTS = 3
END = 256
CLOSING = frozenset(b'"]}')
"""Chosen more often, so that documents end."""


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("suite")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "jsonschema",
        SOURCE,
    ]
    run = subprocess.run(command, cwd=folder, capture_output=True, timeout=200, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if run.returncode or not archives:
        pytest.skip("pip cannot download the suite here")
    return list(read_groups(archives[0]))


def read_groups(archive: Path) -> Iterator[dict[str, Any]]:
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            folder, _, name = member.name.partition(FOLDER)
            if name.endswith(".json") and "/" not in name and folder:
                content = files.extractfile(member)
                assert content is not None
                yield from json.load(content)


def accepted(groups: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """The groups whose schemas are not refused, with their grammars."""
    judge = GrammarJudge({})
    for group in groups:
        try:
            yield group, judge.compile(StructuredOutput(json_schema=json.dumps(group["schema"])))
        except InvalidRequest as refusal:
            assert list(refusal.violations) == ["structured_output.json_schema"]


def documents(grammar: str, rng: random.Random) -> Iterator[str]:
    """Random documents that the masks allow, as far as they end."""
    tokenizer = byte_tokenizer([])
    for _ in range(DOCUMENTS):
        matcher, output = LLMatcher(tokenizer, grammar, log_level=0), bytearray()
        while len(output) < LONGEST:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [token for token in range(END + 1) if mask >> token & 1]
            if END in allowed and rng.random() < 0.5 or allowed == [END]:
                yield output.decode()
                break
            ends = [token for token in allowed if token in CLOSING]
            token = rng.choice(ends if ends and rng.random() < 0.4 else allowed)
            if token == END:
                yield output.decode()
                break
            assert matcher.consume_token(token) and not matcher.is_error()
            output.append(token)


def test_no_invalid_document_is_accepted(groups: list[dict[str, Any]]) -> None:
    tokenizer = byte_tokenizer([])
    taken = list(accepted(groups))
    assert len(taken) > 100, f"{len(taken)} of {len(groups)} schemas"
    for group, grammar in taken:
        for test in group["tests"]:
            if test["valid"]:
                continue
            text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            matcher = LLMatcher(tokenizer, grammar, log_level=0)
            fits = matcher.consume_tokens(tokenizer.tokenize_str(text)) and matcher.is_accepting()
            assert not fits, (group["description"], text)


def test_random_documents_under_the_mask_are_valid(groups: list[dict[str, Any]]) -> None:
    rng, number = random.Random(1), 0
    for group, grammar in accepted(groups):
        if not isinstance(group["schema"], bool) and "$schema" not in group["schema"]:
            continue
        validator = jsonschema.Draft202012Validator(group["schema"])
        for document in documents(grammar, rng):
            problems = [error.message for error in validator.iter_errors(json.loads(document))]
            assert not problems, (group["description"], document, problems)
            number += 1
    assert number > 150, number
