"""RerankStream: each message of a stream is a pair that is scored by itself, and one response orders them."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from frontend.errors import InvalidRequest
from frontend.rpc.call_context import Context
from frontend.streams.pooling import PoolingUsage
from frontend.streams.scorer import Scored
from pagewire_gateways.protos import tei_pb2
from pagewire_gateways.tei.ordered import OrderedStream
from pagewire_gateways.tei.responses import metadata_of

MAX_TEXTS = 1 << 16
"""Texts of one stream."""
MAX_RETURNED_CHARS = 16 << 20
"""Of all texts that are returned."""


@dataclass(frozen=True, slots=True)
class RankedText:
    """A message and the score of its text."""

    message: tei_pb2.RerankStreamRequest
    found: Scored


class Ranking:
    """The texts of a stream so far. The first message says which scores and whether texts are wanted."""

    def __init__(self) -> None:
        self.num_chars = 0
        self._usages: list[PoolingUsage] = []
        self._ranks: list[tuple[float, tei_pb2.Rank]] = []
        self._raw_scores = self._returns_text = False

    def add(self, ranked: RankedText) -> None:
        """Adds the next text. Raises InvalidRequest when there are too many."""
        message, (document,) = ranked.message, ranked.found.documents
        if not self._ranks:
            self._raw_scores, self._returns_text = message.raw_scores, message.return_text
        self.num_chars += len(message.query) + len(message.text)
        if len(self._ranks) == MAX_TEXTS:
            raise InvalidRequest({"text": f"must be at most {MAX_TEXTS} in a stream"})
        if self._returns_text and self.num_chars > MAX_RETURNED_CHARS:
            problem = f"must be at most {MAX_RETURNED_CHARS} characters in all, with queries, to be returned"
            raise InvalidRequest({"text": problem})
        self._usages.append(ranked.found.usage)
        text = message.text if self._returns_text else None
        score = document.raw if self._raw_scores else document.score
        self._ranks.append((document.raw, tei_pb2.Rank(index=len(self._ranks), text=text, score=score)))

    @property
    def usage(self) -> PoolingUsage:
        """Of all texts, as if they were the inputs of one call."""
        count = len(self._usages) or 1
        return PoolingUsage(
            prompt_tokens=sum(each.prompt_tokens for each in self._usages),
            cached_prompt_tokens=sum(each.cached_prompt_tokens for each in self._usages),
            tokenization_ns=sum(each.tokenization_ns for each in self._usages),
            queue_ns=sum(each.queue_ns for each in self._usages) // count,
            inference_ns=sum(each.inference_ns for each in self._usages) // count,
        )

    def ranks(self) -> list[tei_pb2.Rank]:
        """Returns the texts, highest score first, equal ones in their order."""
        return [rank for _, rank in sorted(self._ranks, key=lambda each: -each[0])]


async def gathered(
    stream: OrderedStream[tei_pb2.RerankStreamRequest, RankedText],
    messages: AsyncIterator[tei_pb2.RerankStreamRequest],
    context: Context,
) -> tei_pb2.RerankResponse:
    """Returns the response to all messages of a stream. Raises ServiceError."""
    began, ranking = time.monotonic_ns(), Ranking()
    async with aclosing(stream.answers(messages, context)) as answers:
        async for ranked in answers:
            ranking.add(ranked)
    metadata = metadata_of(began, ranking.num_chars, ranking.usage)
    return tei_pb2.RerankResponse(ranks=ranking.ranks(), metadata=metadata)
