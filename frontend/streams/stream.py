"""A request's outputs on their way to the client: one slot into which everything merges.

Outputs of the core go into the sequences; a message is made when the client is ready for one. So a slow
client gets larger messages, never a longer queue.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial

from frontend.engine.logprobs import PromptScores, Scores, TokenBytes
from frontend.errors import ProtocolError, ServiceError
from frontend.streams.pacing import DeliveryPacer
from frontend.streams.sequence import Sequence, most_probable
from frontend.telemetry.timings import DraftCounts, RequestTimings
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES
from pagewire.v1 import generation_pb2

ABORTED = generation_pb2.FINISH_REASON_ABORTED
TIME_LIMIT = generation_pb2.FINISH_REASON_TIME_LIMIT


@dataclass(frozen=True, slots=True)
class Header:
    """What the first message says about the request."""

    request_id: str
    model: str
    seed: int
    prompt_tokens: int
    prompt_token_ids: Items[int] = ()
    prompt_token_bytes: Items[bytes] = ()
    prompt_scores: PromptScores | None = None
    token_bytes: TokenBytes | None = None
    """Returns the bytes of log-probability candidates; None: not requested."""
    num_truncated: int = 0
    """Tokens of the prompt that truncate_to removed."""
    parameters: Callable[[], generation_pb2.EffectiveParameters] | None = None
    """Returns what the request runs with; None: not known."""
    shows_parameters: bool = False
    """In the first message."""
    adapter: generation_pb2.AppliedAdapter | None = None
    media_tokens: int = 0
    hears: bool = False
    """The media are sounds, not images."""
    media_digests: Items[bytes] = ()
    """SHA-256 of the media that were fetched."""


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """When messages are made, and what they contain."""

    final_only: bool = False
    interval: int = 1
    """Minimum number of tokens per message after the first."""
    continuous_usage: bool = False
    timings: bool = False
    num_returned: int | None = None
    """Number of most probable sequences that the last message returns; None: all sequences are returned."""


def wake(due: "asyncio.Future[None]") -> None:
    """Resolves a future, unless its waiter has been cancelled."""
    if not due.done():
        due.set_result(None)


class Stream:
    """The slot. The engine client puts output in, one handler takes messages out; both on the event loop."""

    def __init__(
        self,
        header: Header,
        delivery: DeliveryMode,
        sequences: Items[Sequence],
        timings: RequestTimings,
        pacer: DeliveryPacer | None = None,
    ) -> None:
        """pacer: of the event loop; None: messages are never held back to be merged."""
        self._pacer = pacer
        self._held = False  # until the pacer's next round
        self._released = False  # by a round, since the last message
        self._header = header
        self._delivery = delivery
        self._sequences = sequences
        self._timings = timings
        self._num_open = len(sequences)
        self._dirty: list[Sequence] = []
        self._num_new = 0  # tokens since the last message
        self._ending = False  # a sequence has ended since the last message
        self._begun = False
        self.vector: bytes | None = None
        """Of a request that pools: its float32 column, once it has ended."""
        self._cached_tokens = 0
        self._drafts = DraftCounts()
        self._error: ServiceError | None = None
        self._when_due: Callable[[], None] | None = None
        self._response = generation_pb2.GenerateResponse()  # reused for each message

    def resume(self, index: int, token_ids: "array[int]", reason: int, matched: int) -> None:
        """Restores what the client holds of a sequence of a broken stream; called before anything else.

        reason: why these tokens ended it, as the core would see it; 0: they did not. Raises ValueError when
        they continue after a stop string.
        """
        sequence = self._sequences[index]
        if sequence.resume(token_ids, reason, matched):
            self._num_open -= 1
            self._ending = True
            sequence.dirty = True
            self._dirty.append(sequence)

    # Called by the engine client.

    @property
    def ended(self) -> bool:
        """True when all sequences have ended."""
        return self._num_open == 0

    @property
    def num_open(self) -> int:
        """Sequences that have not ended."""
        return self._num_open

    def started(self, queue_us: int, cached_tokens: int, waits_us: Items[int] = ()) -> None:
        self._timings.started(queue_us, waits_us)
        if not self._begun:  # later, output may count as cached too
            self._cached_tokens = min(cached_tokens, self._header.prompt_tokens)

    def drafted(self, method: int, num_drafted: int, num_accepted: int) -> None:
        self._drafts.add(method, num_drafted, num_accepted)

    @property
    def phases(self) -> dict[str, int]:
        """Nanoseconds by phase until the last token, as in pagewire.v1.Timings."""
        return self._timings.parts()

    def paused(self, pause_us: int, now: int) -> None:
        self._timings.paused(pause_us, now)

    @property
    def missing_prompt_logprobs(self) -> int | None:
        scores = self._header.prompt_scores
        return scores.missing if scores is not None else None

    def push_prompt_logprobs(self, start: int, scores: Scores) -> None:
        if self._header.prompt_scores is None:
            raise ProtocolError("log-probabilities of a prompt that were not requested")
        try:
            self._header.prompt_scores.add(start, scores)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def delivered(self) -> Iterator[tuple[int, "array[int]", bool]]:
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
        """Appends output of one sequence; see frontend.engine.core.Sink. Raises ProtocolError."""
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
        num_tokens = len(token_ids)
        self._num_new += num_tokens
        self._timings.progressed(now, tokens=num_tokens > 0)
        if ended:
            self._num_open -= 1
            self._ending = True
        if not sequence.dirty:
            sequence.dirty = True
            self._dirty.append(sequence)
        if self._due():
            self._wake()
        return ended and not reason

    def fail(self, error: ServiceError) -> None:
        """Ends the request with an error, which follows the output that the client has not received yet."""
        self._error = error
        self._wake()

    def abort(self) -> None:
        """Ends all sequences as they are, without the core."""
        self._end(ABORTED)

    def run_out(self) -> None:
        """Ends all sequences because the request's time limit has passed."""
        self._end(TIME_LIMIT)

    def _end(self, reason: int) -> None:
        now = time.monotonic_ns()
        for sequence in self._sequences:
            self.push(sequence.index, len(sequence.tokens), array("I"), reason, 0, now)

    # Called by the handler.

    async def take(self) -> generation_pb2.GenerateResponse | None:
        """Returns the next message as soon as there is one; None after the last. Raises ServiceError.

        The message is valid until the next call.
        """
        response = self._response
        response.Clear()
        while not self.put(response):
            if self.over:
                return None
            due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_due(partial(wake, due))
            await due
        return response

    def put(self, response: generation_pb2.GenerateResponse) -> bool:
        """Fills an empty message if one is due and there is something to send. Raises ServiceError once all
        output has been sent."""
        if not self._due():
            return False
        if self._make(response):
            return True
        if self._error is not None:
            raise self._error
        return False

    def when_due(self, call: Callable[[], None]) -> None:
        """Sets a function to be called once, when a message may be due; replaces the one set before."""
        self._when_due = call

    @property
    def over(self) -> bool:
        """True when the last message has been made."""
        return self.ended and not self.has_more

    @property
    def has_more(self) -> bool:
        """True when another message, or an error, follows immediately."""
        return bool(self._dirty) or self._error is not None

    def _due(self) -> bool:
        """True when a message may be sent now, if there is anything to send."""
        if not self._num_open or self._error is not None:
            return True
        if self._delivery.final_only:
            return False
        if self._ending or not self._begun:
            return self._ending or self._num_new > 0
        return not self._held and self._num_new >= self._delivery.interval

    def release(self) -> None:
        """A round of the pacer begins: what has come may leave."""
        self._held, self._released = False, True
        if self._due():
            self._wake()

    def _wake(self) -> None:
        """Wakes the handler, for a message that is due; the pacer may hold it."""
        may_wait = self._begun and not (self._ending or self._released or self._error is not None)
        if may_wait and self._pacer is not None and self._pacer.holds(self):
            self._held = True
            return
        self._timings.ready()
        if self._when_due is not None:
            call, self._when_due = self._when_due, None
            call()

    def _make(self, response: generation_pb2.GenerateResponse) -> bool:
        """Fills a message with everything new. Returns False when there is nothing to send."""
        if self._error is not None and self._delivery.final_only:
            return False
        if not (num_sequences := self._put(response)):
            return False
        if not self._begun:
            self._begun = True
            self._introduce(response)
        is_last = self.ended and not self._dirty
        if is_last or self._delivery.continuous_usage:
            response.usage.CopyFrom(self.usage())
        if is_last and self._delivery.timings:
            response.timings.CopyFrom(self._timings.timings())
        self._timings.told(self._num_new, num_sequences)
        self._num_new, self._released = 0, False
        self._ending = bool(self._dirty)  # the rest follows at once
        return True

    @property
    def request_id(self) -> str:
        return self._header.request_id

    @property
    def model(self) -> str:
        return self._header.model

    @property
    def adapter(self) -> str:
        """The name of the request's adapter; empty: it has none."""
        return self._header.adapter.name if self._header.adapter is not None else ""

    def parameters(self) -> generation_pb2.EffectiveParameters | None:
        """Returns what the request runs with; None: not known."""
        return self._header.parameters() if self._header.parameters is not None else None

    def usage(self) -> generation_pb2.Usage:
        """The request's token counts so far."""
        usage = generation_pb2.Usage(
            prompt_tokens=self._header.prompt_tokens,
            image_tokens=0 if self._header.hears else self._header.media_tokens,
            audio_tokens=self._header.media_tokens if self._header.hears else 0,
            cached_prompt_tokens=self._cached_tokens,
            completion_tokens=sum(len(sequence.tokens) for sequence in self._sequences),
            reasoning_tokens=sum(sequence.num_reasoning_tokens for sequence in self._sequences),
        )
        self._drafts.put(usage)
        return usage

    def finish_reasons(self) -> "list[generation_pb2.FinishReason]":
        """Returns the reasons of the sequences that have ended."""
        return [sequence.finish.reason for sequence in self._sequences if sequence.finish is not None]

    def _put(self, response: generation_pb2.GenerateResponse) -> int:
        """Adds what is new, of as many sequences as fit into a message; returns how many had anything."""
        dirty, self._dirty = self._dirty, []
        if dirty and self._delivery.num_returned is not None:
            dirty = most_probable(self._sequences, self._delivery.num_returned)
            for place, sequence in enumerate(dirty):
                sequence.index = place
        num_put = num_scores = 0
        for place, sequence in enumerate(dirty):
            num_scores += sequence.num_scores
            if place and num_scores > MAX_OUTPUT_VALUES and not self._delivery.final_only:
                self._dirty = dirty[place:]
                break
            sequence.dirty = False
            num_put += sequence.put(response)
        return num_put

    def _introduce(self, response: generation_pb2.GenerateResponse) -> None:
        header = self._header
        response.request_id = header.request_id
        response.model = header.model
        response.seed = header.seed
        response.prompt.tokens = header.prompt_tokens
        response.prompt.cached_tokens = self._cached_tokens
        response.prompt.truncated_tokens = header.num_truncated
        if header.adapter is not None:
            response.adapter.CopyFrom(header.adapter)
        response.media_digests.extend(header.media_digests)
        if header.shows_parameters and (parameters := self.parameters()) is not None:
            response.parameters.CopyFrom(parameters)
        response.prompt.token_ids.extend(header.prompt_token_ids)
        response.prompt.token_bytes.extend(header.prompt_token_bytes)
        if header.prompt_scores is not None:
            header.prompt_scores.take(response.prompt.logprobs, header.token_bytes)
