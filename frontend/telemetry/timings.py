"""Where a request spends its time: phases that sum to the total, to the nanosecond, and causes of waiting.
And what was drafted for it."""

import time
from collections.abc import Sequence

from frontend.telemetry.counters import Counters
from pagewire.speculation import METHOD_NAMES
from pagewire.v1 import generation_pb2

QUEUE_CAUSES = "rows", "blocks", "budget", "trial", "adapter", "kv_transfer", "encoder"
"""In the order of StepOutputs.started_waits_us."""
_KV_TRANSFER = QUEUE_CAUSES.index("kv_transfer")
_MAX_PAUSES = 64
"""Pauses that are kept one by one, for traces."""


class RequestTimings:
    """Timestamps of one request, on the monotonic clock. A phase that never began has length 0."""

    __slots__ = (
        "arrival",
        "num_messages",
        "pauses",
        "_client",
        "_counters",
        "_first",
        "_last",
        "_moving",
        "_paused",
        "_queue",
        "_ready",
        "_sent",
        "_told",
        "_waits",
    )

    def __init__(self, counters: Counters | None = None) -> None:
        """Starts now, at the request's arrival. counters: of the process."""
        self.arrival = time.monotonic_ns()
        self.num_messages = 0
        """Messages sent to the client."""
        self.pauses: list[tuple[int, int]] = []
        """Begin and end of the first pauses by preemption, in nanoseconds since arrival."""
        self._counters = counters or Counters()
        self._told = 0  # arrival of the last token in them
        self._sent: int | None = None
        self._queue: int | None = None
        self._waits = (0,) * len(QUEUE_CAUSES)  # of the queue
        self._moving = 0  # kv_transfer of later cores, in nanoseconds
        self._paused = [0, 0]  # before the first token, after it
        self._ready: int | None = None  # since when there is output for the client
        self._client = 0
        self._first: int | None = None
        self._last = self.arrival

    def seconds(self) -> float:
        """Returns the seconds since arrival."""
        return (time.monotonic_ns() - self.arrival) / 1e9

    def sent(self) -> None:
        """Marks the submission to the core."""
        self._sent = self._last = time.monotonic_ns()

    def started(self, queue_us: int, waits_us: Sequence[int] = ()) -> None:
        """Records how long the request waited in the core's queue; again when another core goes on with it.
        waits_us: of that, by QUEUE_CAUSES."""
        if self._queue is None:
            self._queue = queue_us * 1000
            if waits_us:
                self._waits = tuple(each * 1000 for each in waits_us)
        elif waits_us:
            self._moving += waits_us[_KV_TRANSFER] * 1000

    def paused(self, pause_us: int, now: int) -> None:
        """Records a pause by preemption that ends at `now` (time.monotonic_ns())."""
        self._paused[self.has_tokens] += 1000 * pause_us
        if len(self.pauses) < _MAX_PAUSES:
            end = now - self.arrival
            self.pauses.append((max(end - 1000 * pause_us, 0), end))

    def progressed(self, now: int, *, tokens: bool) -> None:
        """Marks the arrival of tokens, or of an end without tokens, at `now` (time.monotonic_ns())."""
        if tokens and self._first is None:
            self._first = now
        self._last = now

    def ready(self) -> None:
        """Marks that there is output for the client, unless there was."""
        if self._ready is None:
            self._ready = time.monotonic_ns()

    def told(self, num_tokens: int, num_sequences: int) -> None:
        """Records a message to the client, with its new tokens and the number of their sequences."""
        counters, last = self._counters, self._last
        counters.messages += 1
        counters.generated_tokens += num_tokens
        if self.num_messages and num_tokens:
            steps = max(num_tokens // num_sequences, 1)
            counters.inter_token_seconds.observe((last - self._told) * 1e-9 / steps, num_tokens)
        self.num_messages += 1
        self._told = last
        if self._ready is not None:
            self._client += time.monotonic_ns() - self._ready
            self._ready = None

    @property
    def has_tokens(self) -> bool:
        """True when a token has arrived."""
        return self._first is not None

    def parts(self, now: int | None = None) -> dict[str, int]:
        """Returns the phases in nanoseconds until the last token, or until `now` (time.monotonic_ns()).

        Without a token, the time since submission is queue, then prefill.
        """
        last = self._last if now is None else now
        first = last if self._first is None else self._first
        sent = first if self._sent is None else self._sent
        wait = first - sent
        queue = wait if self._queue is None else min(self._queue, wait)
        before, after = min(self._paused[0], wait - queue), min(self._paused[1], last - first)
        return {
            "preprocess": sent - self.arrival,
            "queue": queue,
            "prefill": wait - queue - before,
            "decode": last - first - after,
            "preempted": before + after,
            "total": last - self.arrival,
        }

    @property
    def until_first_token(self) -> int:
        """Nanoseconds from arrival to the first token; to the end, where there is none."""
        return (self._last if self._first is None else self._first) - self.arrival

    def waits(self, now: int | None = None) -> dict[str, int]:
        """Returns the causes of waiting in nanoseconds, as in pagewire.v1.Waits. now: as in parts()."""
        left = self.parts(now)["queue"]
        found = {}
        for name, waited in zip(QUEUE_CAUSES, self._waits, strict=True):
            found[name] = min(waited, left)
            left -= found[name]
        found["kv_transfer"] += self._moving
        return {"queue": left, **found, "client": self._client}

    def timings(self, now: int | None = None) -> generation_pb2.Timings:
        """Returns phases and causes as a message for the client. now: as in parts()."""
        timings = generation_pb2.Timings()
        for name, nanoseconds in self.parts(now).items():
            getattr(timings, name).FromNanoseconds(nanoseconds)
        for name, nanoseconds in self.waits(now).items():
            getattr(timings.waits, name).FromNanoseconds(nanoseconds)
        return timings


class DraftCounts:
    """Drafted and accepted tokens of one request, by what drafted them, for its usage."""

    def __init__(self) -> None:
        self._by_method: dict[str, tuple[int, int]] = {}

    def add(self, method: int, num_drafted: int, num_accepted: int) -> None:
        """Counts a draft. method: a DraftMethod of engine.proto; unknown ones are unspecified."""
        name = METHOD_NAMES.get(method, METHOD_NAMES[0])
        drafted, accepted = self._by_method.get(name, (0, 0))
        self._by_method[name] = drafted + num_drafted, accepted + num_accepted

    def put(self, usage: generation_pb2.Usage) -> None:
        """Writes the counts into an answer."""
        for name, (drafted, accepted) in sorted(self._by_method.items()):
            usage.draft_tokens += drafted
            usage.accepted_draft_tokens += accepted
            usage.drafters.add(drafter=name, draft_tokens=drafted, accepted_draft_tokens=accepted)
