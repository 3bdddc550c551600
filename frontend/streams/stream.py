"""A request's outputs on their way to its client: one slot, into which everything merges.

What the core sends is put into the sequences; a message is made when the client is ready to take
one. So a slow client gets larger messages, never a longer queue.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial

from frontend.errors import ProtocolError, ServiceError
from frontend.logprobs import PromptScores, Scores, TokenBytes
from frontend.streams.sequence import Sequence, likeliest
from frontend.telemetry.timings import RequestTimings
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES
from pagewire.v1 import generation_pb2

ABORTED = generation_pb2.FINISH_REASON_ABORTED
TIME_LIMIT = generation_pb2.FINISH_REASON_TIME_LIMIT


@dataclass(frozen=True, slots=True)
class Header:
    """What the first message says of the request."""

    request_id: str
    model: str
    seed: int
    prompt_tokens: int
    prompt_token_ids: Items[int] = ()
    prompt_token_bytes: Items[bytes] = ()
    prompt_scores: PromptScores | None = None
    token_bytes: TokenBytes | None = None
    """Of the candidates in them; None: not wanted."""


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """When messages are made, and what goes with them."""

    final_only: bool = False
    interval: int = 1
    """Tokens per message after the first, at least."""
    continuous_usage: bool = False
    timings: bool = False
    num_returned: int | None = None
    """Only the likeliest sequences are returned, so many, with the last message; None: all are."""


def settle(due: "asyncio.Future[None]") -> None:
    """Whoever waits for it goes on, unless that has left."""
    if not due.done():
        due.set_result(None)


class Stream:
    """The slot. The engine client puts into it, one handler takes from it; both on the event loop."""

    def __init__(
        self, header: Header, delivery: DeliveryMode, sequences: Items[Sequence], timings: RequestTimings
    ) -> None:
        self._header = header
        self._delivery = delivery
        self._sequences = sequences
        self._timings = timings
        self._num_open = len(sequences)
        self._dirty: list[Sequence] = []
        self._num_new = 0  # tokens since the last message
        self._ending = False  # a sequence has ended since the last message
        self._begun = False
        self._cached_tokens = 0
        self._error: ServiceError | None = None
        self._when_due: Callable[[], None] | None = None
        self._response = generation_pb2.GenerateResponse()  # used again for each message

    def resume(self, index: int, token_ids: "array[int]", reason: int, matched: int) -> None:
        """Before anything else: what the client holds of a sequence from a stream that broke off.

        reason: why these tokens have ended it, as the core would see it; 0: they have not. Raises
        ValueError when they go on after a stop string.
        """
        sequence = self._sequences[index]
        if sequence.resume(token_ids, reason, matched):
            self._num_open -= 1
            self._ending = True
            sequence.dirty = True
            self._dirty.append(sequence)

    # The engine client's side.

    @property
    def ended(self) -> bool:
        """Whether all sequences have ended."""
        return self._num_open == 0

    def started(self, queue_us: int, cached_tokens: int) -> None:
        """The request was scheduled for the first time; again, when it was sent again."""
        self._timings.started(queue_us)
        if not self._begun:  # later, output may count as cached too
            self._cached_tokens = min(cached_tokens, self._header.prompt_tokens)

    @property
    def missing_prompt_logprobs(self) -> int | None:
        """See frontend.engine.journal.Sink."""
        scores = self._header.prompt_scores
        return scores.missing if scores is not None else None

    def push_prompt_logprobs(self, start: int, scores: Scores) -> None:
        """A part of the prompt's log-probabilities. Raises ProtocolError."""
        if self._header.prompt_scores is None:
            raise ProtocolError("log-probabilities of a prompt that nobody asked for")
        try:
            self._header.prompt_scores.add(start, scores)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def delivered(self) -> Iterator[tuple[int, "array[int]", bool]]:
        """(index, token ids so far, whether it has ended) of each sequence."""
        for sequence in self._sequences:
            yield sequence.index, sequence.tokens, sequence.finish is not None

    def push(
        self,
        index: int,
        position: int,
        token_ids: "array[int]",
        reason: int,
        matched: int,
        now: int,
        scores: Scores | None = None,
    ) -> bool:
        """Output of one sequence; see frontend.engine.client.Sink. Raises ProtocolError."""
        if index >= len(self._sequences):
            raise ProtocolError(f"there is no sequence {index}")
        sequence = self._sequences[index]
        if sequence.finish is not None:
            return False  # a stop string ended it before the core knew
        if position != len(sequence.tokens):
            raise ProtocolError(f"position {position} does not follow {len(sequence.tokens)} tokens")
        if token_ids and sequence.wants_scores and (scores is None or len(scores) != len(token_ids)):
            raise ProtocolError(f"{len(token_ids)} tokens do not have their log-probabilities")
        ended = sequence.accept(token_ids, reason, matched, scores)
        self._num_new += len(token_ids)
        self._timings.progressed(now, tokens=len(token_ids) > 0)
        if ended:
            self._num_open -= 1
            self._ending = True
        if not sequence.dirty:
            sequence.dirty = True
            self._dirty.append(sequence)
        self._wake()
        return ended and not reason

    def fail(self, error: ServiceError) -> None:
        """The request ended by an error, which follows what the client has not received yet."""
        self._error = error
        self._wake()

    def abort(self) -> None:
        """Ends all sequences as they are, without the core."""
        self._end(ABORTED)

    def run_out(self) -> None:
        """The same, because the request's time limit has passed."""
        self._end(TIME_LIMIT)

    def _end(self, reason: int) -> None:
        now = time.monotonic_ns()
        for sequence in self._sequences:
            self.push(sequence.index, len(sequence.tokens), array("I"), reason, 0, now)

    # The handler's side.

    async def take(self) -> generation_pb2.GenerateResponse | None:
        """The next message, as soon as there is one; None after the last. Raises ServiceError.

        The message is valid until the next call.
        """
        response = self._response
        response.Clear()
        while not self.put(response):
            if self.over:
                return None
            due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_due(partial(settle, due))
            await due
        return response

    def put(self, response: generation_pb2.GenerateResponse) -> bool:
        """Makes an empty message the next one, if it is time for one and there is something to say. Raises
        ServiceError, after everything else has been said."""
        if not self._due():
            return False
        if self._make(response):
            return True
        if self._error is not None:
            raise self._error
        return False

    def when_due(self, call: Callable[[], None]) -> None:
        """Calls it, once, when it may be time for a message. It is forgotten when another one is given."""
        self._when_due = call

    @property
    def over(self) -> bool:
        """Whether the last message has been made."""
        return self.ended and not self.has_more

    @property
    def has_more(self) -> bool:
        """Whether another message, or an error, follows the last one at once."""
        return bool(self._dirty) or self._error is not None

    def _due(self) -> bool:
        """Whether it is time for a message, if there is anything to say."""
        if self.ended or self._error is not None:
            return True
        if self._delivery.final_only:
            return False
        return self._ending or self._num_new >= (self._delivery.interval if self._begun else 1)

    def _wake(self) -> None:
        if self._when_due is not None and self._due():
            call, self._when_due = self._when_due, None
            call()

    def _make(self, response: generation_pb2.GenerateResponse) -> bool:
        """A message of everything that is new. False when there is nothing to say."""
        if self._error is not None and self._delivery.final_only:
            return False
        self._put(response)
        if not response.sequences:
            return False
        if not self._begun:
            self._begun = True
            self._introduce(response)
        is_last = self.ended and not self._dirty
        if is_last or self._delivery.continuous_usage:
            response.usage.CopyFrom(self.usage())
        if is_last and self._delivery.timings:
            response.timings.CopyFrom(self._timings.timings())
        self._timings.told(self._num_new, len(response.sequences))
        self._num_new = 0
        self._ending = bool(self._dirty)  # the rest follows at once
        return True

    @property
    def model(self) -> str:
        """That answers."""
        return self._header.model

    def usage(self) -> generation_pb2.Usage:
        """What the request has cost so far."""
        return generation_pb2.Usage(
            prompt_tokens=self._header.prompt_tokens,
            cached_prompt_tokens=self._cached_tokens,
            completion_tokens=sum(len(sequence.tokens) for sequence in self._sequences),
        )

    def finish_reasons(self) -> "list[generation_pb2.FinishReason]":
        """Of the sequences that have ended."""
        return [sequence.finish.reason for sequence in self._sequences if sequence.finish is not None]

    def _put(self, response: generation_pb2.GenerateResponse) -> None:
        """Adds what is new, of as many sequences as fit into a message."""
        dirty, self._dirty = self._dirty, []
        if dirty and self._delivery.num_returned is not None:
            dirty = likeliest(self._sequences, self._delivery.num_returned)
            for place, sequence in enumerate(dirty):
                sequence.index = place
        num_scores = 0
        for place, sequence in enumerate(dirty):
            num_scores += sequence.num_scores
            if place and num_scores > MAX_OUTPUT_VALUES and not self._delivery.final_only:
                self._dirty = dirty[place:]
                return
            sequence.dirty = False
            sequence.put(response)

    def _introduce(self, response: generation_pb2.GenerateResponse) -> None:
        header = self._header
        response.request_id = header.request_id
        response.model = header.model
        response.seed = header.seed
        response.prompt.tokens = header.prompt_tokens
        response.prompt.cached_tokens = self._cached_tokens
        response.prompt.token_ids.extend(header.prompt_token_ids)
        response.prompt.token_bytes.extend(header.prompt_token_bytes)
        if header.prompt_scores is not None:
            header.prompt_scores.take(response.prompt.logprobs, header.token_bytes)
