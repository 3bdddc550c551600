"""The requests of a load test: of given lengths, of a fixed workload, or from a file."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pagewire.flags import UsageError
from pagewire_bench.workloads import ALL, random_ids

MAX_FILE_BYTES = 1 << 30
_TEXT = """
    time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work government number night point
    home water room mother area money story fact month lot right study book eye job word business issue
"""
_WORDS = _TEXT.split()

Conversation = Sequence[Mapping[str, Any]]
Prompt = list[int] | str | Conversation


@dataclass(frozen=True)
class BenchRequest:
    """A prompt (token ids, a text, or the messages of a conversation), and the maximum number of tokens."""

    prompt: Prompt
    max_tokens: int


class RequestSource(Protocol):
    """Requests by number. The same number gives the same request."""

    def request(self, number: int) -> BenchRequest:
        """Returns one request."""
        ...


@dataclass(frozen=True)
class LengthRange:
    """Numbers of tokens from `low` to `high`, equally probable."""

    low: int
    high: int

    @classmethod
    def parse(cls, option: str, text: str) -> "LengthRange":
        """Reads "128" or "16..512". Raises UsageError."""
        low, _, high = text.partition("..")
        try:
            found = cls(int(low), int(high or low))
        except ValueError:
            found = cls(0, 0)
        if not 1 <= found.low <= found.high:
            raise UsageError(
                f"wrong {option} {text!r}", "it is a number of tokens, or a range such as 16..512"
            )
        return found

    def draw(self, draw: random.Random) -> int:
        """Returns one of them."""
        return draw.randint(self.low, self.high)


@dataclass(frozen=True)
class RandomText:
    """Prompts that no cache has seen: random token ids, or random words where the vocabulary is not known.

    seed: two runs with the same seed send the same prompts. vocab_size: None: words, of which many tokenizers
    make a token each.
    """

    seed: int
    vocab_size: int | None

    def prompt(self, number: int, prefix: int, own: int) -> list[int] | str:
        """Returns a prompt whose first `prefix` tokens are common to all."""
        common, rest = random.Random(f"{self.seed} prefix"), random.Random(f"{self.seed} {number}")
        if self.vocab_size is None:
            return " ".join([*common.choices(_WORDS, k=prefix), *rest.choices(_WORDS, k=own)])
        return random_ids(common, prefix, self.vocab_size) + random_ids(rest, own, self.vocab_size)


@dataclass(frozen=True)
class LengthSource:
    """Requests whose lengths are drawn. prefix: tokens that all prompts begin with, besides `input`."""

    text: RandomText
    prefix: int
    input: LengthRange
    output: LengthRange

    def request(self, number: int) -> BenchRequest:
        """Returns one request."""
        draw = random.Random(f"{self.text.seed} lengths {number}")
        prompt = self.text.prompt(number, self.prefix, self.input.draw(draw))
        return BenchRequest(prompt, self.output.draw(draw))


@dataclass(frozen=True)
class WorkloadSource:
    """Requests with the lengths of a fixed workload (pagewire_bench.workloads), over and over."""

    text: RandomText
    name: str
    max_model_len: int

    def request(self, number: int) -> BenchRequest:
        """Returns one request."""
        lengths = ALL[self.name].lengths(self.max_model_len)
        prefix, own, output = lengths[number % len(lengths)]
        return BenchRequest(self.text.prompt(number, prefix, own), output)


@dataclass(frozen=True)
class FileSource:
    """The requests of a file, over and over."""

    requests: Sequence[BenchRequest]

    def request(self, number: int) -> BenchRequest:
        """Returns one request."""
        return self.requests[number % len(self.requests)]


def is_conversation(prompt: Prompt) -> bool:
    """True for the messages of a conversation."""
    return not isinstance(prompt, str) and isinstance(prompt[0], Mapping)


def is_token_ids(prompt: Prompt) -> bool:
    """True for token ids."""
    return not isinstance(prompt, str) and isinstance(prompt[0], int)


def read_prompts(path: Path, max_tokens: int) -> list[BenchRequest]:
    """Reads a JSONL file. A line has "prompt" (a text), "token_ids" or "messages", and may have "max_tokens";
    a line that is a JSON string is a prompt. Raises UsageError with the number of a wrong line."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"cannot read --prompts {path}", f"it has more than {MAX_FILE_BYTES} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read --prompts {path}", str(why)) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_read_line(json.loads(line), max_tokens))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"wrong --prompts {path}", f"line {number}: {error}") from None
    if not found:
        raise UsageError(f"wrong --prompts {path}", "it has no line with a prompt")
    return found


def _read_line(line: Any, max_tokens: int) -> BenchRequest:
    """Raises ValueError."""
    if isinstance(line, str):
        line = {"prompt": line}
    if not isinstance(line, dict):
        raise ValueError("it is neither an object nor a string")
    known = {"prompt": _is_text, "token_ids": _is_ids, "messages": _is_messages}
    given = [name for name in known if name in line]
    if len(given) != 1:
        raise ValueError(f"it needs one of {', '.join(known)}")
    (name,) = given
    if not known[name](line[name]):
        raise ValueError(f"{name} is not what it should be")
    output = line.get("max_tokens", max_tokens)
    if not isinstance(output, int) or isinstance(output, bool) or output < 1:
        raise ValueError("max_tokens is not a number of at least 1")
    return BenchRequest(line[name], output)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_ids(value: Any) -> bool:
    return _is_list(value, lambda each: type(each) is int and each >= 0)


def _is_messages(value: Any) -> bool:
    return _is_list(value, lambda each: isinstance(each, dict) and isinstance(each.get("role"), str))


def _is_list(values: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and bool(values) and all(map(holds, values))
