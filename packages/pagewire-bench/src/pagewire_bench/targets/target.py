"""The interface of what is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from pagewire_bench.prompts import BenchRequest

OnTokens = Callable[[int], None]
"""Called for each message with output, with its number of tokens."""


class RequestFailed(Exception):
    """A request failed. kind: a short name to count it by. message: one line of the service."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind


@dataclass(frozen=True)
class ServedModel:
    """What a target says of itself. vocab_size, max_model_len: None where the API does not tell them."""

    name: str
    server: str
    vocab_size: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of one answer, as the service counts. completion_tokens: None if the number of tokens of each
    message was known."""

    prompt_tokens: int
    completion_tokens: int | None = None


@dataclass(frozen=True)
class OutputOptions:
    """How answers are made. ignore_eos: every answer has exactly as many tokens as its maximum."""

    temperature: float
    ignore_eos: bool


class Target(Protocol):
    """A service that is measured. An asynchronous context manager."""

    async def open(self) -> ServedModel:
        """Waits until the service answers and returns what it serves. Raises PagewireError."""
        ...

    async def send(self, request: BenchRequest, on_tokens: OnTokens) -> TokenCounts:
        """Streams one answer. Raises RequestFailed."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
