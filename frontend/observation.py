"""One request as an operator sees it: what became of it, and where its time went."""

import asyncio
from types import TracebackType
from typing import Self

from frontend.errors import ServiceError
from frontend.stats import Counters
from frontend.stream import Stream
from frontend.timings import Ledger
from pagewire.v1 import generation_pb2


class Observation:
    """From the arrival of a request to its end, as a context; what it raises says how it ended."""

    def __init__(self, counters: Counters) -> None:
        self.ledger = Ledger(counters)
        self._counters = counters
        self._stream: Stream | None = None

    def begin(self, stream: Stream) -> None:
        """The request has a stream."""
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._counters.outcomes[self._outcome(error)] += 1
        if self._stream is not None:
            self._count_tokens(self._stream)
            if self.ledger.has_tokens:
                self._count_times()

    def _outcome(self, error: BaseException | None) -> str:
        if error is None:
            return "finished"
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return "cancelled"
        reason = error.reason if isinstance(error, ServiceError) else "INTERNAL"
        if self.ledger.num_messages:
            self._counters.failures[reason] += 1
            return "failed"
        self._counters.refusals[reason] += 1
        return "refused"

    def _count_tokens(self, stream: Stream) -> None:
        counters, usage = self._counters, stream.usage()
        counters.prompt_tokens += usage.prompt_tokens
        counters.cached_tokens += usage.cached_prompt_tokens
        counters.request_prompt_tokens.observe(usage.prompt_tokens)
        counters.request_generated_tokens.observe(usage.completion_tokens)
        for reason in stream.finish_reasons():
            name = generation_pb2.FinishReason.Name(reason)
            counters.finishes[name.removeprefix("FINISH_REASON_").lower()] += 1

    def _count_times(self) -> None:
        counters, seconds = self._counters, self.ledger.parts()
        counters.request_seconds.observe(seconds["total"] / 1e9)
        counters.first_token_seconds.observe((seconds["total"] - seconds["decode"]) / 1e9)
        counters.preprocess_seconds.observe(seconds["preprocess"] / 1e9)
        counters.queue_seconds.observe(seconds["queue"] / 1e9)
        counters.prefill_seconds.observe(seconds["prefill"] / 1e9)
        counters.decode_seconds.observe(seconds["decode"] / 1e9)
