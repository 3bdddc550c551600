"""A scheduler that writes down what it is told and what it decides.

No texts, and no token ids unless asked for: of tokens the recording has how many there are, which of
them ended a sequence, and for each full block the hash under which the prefix cache knows it. That hash
has a key of this process, which is not in the file: equal blocks can be told, and nothing else.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.recording.file import FORMAT, RecordingWriter
from engine_core.recording.plans import PlanWriter
from engine_core.recording.searches import ObservedSearch, observe
from engine_core.recording.settings import write_settings
from engine_core.request import NO_TOKEN, FinishReason, Request, Sequence, Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import NewRow, Plan
from engine_core.step.result import Result
from pagewire import __version__
from pagewire.internal.v1.recording_pb2 import RecordedArrival, RecordedResult
from pagewire.ipc.columns import pack_u32

HASH_BYTES = 8
"""Of each hash, in the file. Among ten million blocks, two different ones look equal once in 10^5 times."""


class _Known(NamedTuple):
    """What the recording has said of a request."""

    number: int
    num_hashes: int  # of blocks of its prompt


class RecordedScheduler(Scheduler):
    """A Scheduler, and its recording."""

    def __init__(self, recording: RecordingWriter, *, with_tokens: bool = False, **settings: Any) -> None:
        """settings: those of Scheduler."""
        super().__init__(**settings)
        self._recording = recording
        self._with_tokens = with_tokens
        self._num_requests = 0
        self._suspects: dict[int, int] = {}  # their numbers, by key
        self._known: dict[int, _Known] = {}  # by id() of Request.parameters: rows have them, too
        self._plans = PlanWriter(self._number_of)
        self._result = RecordedResult()  # of the update() that is under way
        self._in_step = False  # what it calls itself now, a replay will call itself
        self.states.on_end, recording.on_close = self._on_end, self._on_close
        start = recording.add().start
        start.format, start.version, start.has_tokens = FORMAT, __version__, with_tokens
        start.settings.extend(write_settings(settings))

    # Calls.

    def open(self, page: CrashJournal) -> None:
        record = self._recording.add().suspects
        record.num_deaths = page.num_deaths
        for number, (key, suspect) in enumerate(page.suspects.items(), start=1):
            self._suspects[key] = number
            record.suspects.add(
                first=suspect.span.first,
                end=suspect.span.end,
                group=suspect.group,
                death=suspect.death,
                strikes=suspect.strikes,
            )
        super().open(page)

    def refuses(self, key: int) -> bool:
        refused = super().refuses(key)
        if refused:
            self._recording.add().verdict.suspect = self._suspects[key]
        return refused

    def add(self, request: Request) -> None:
        self._num_requests += 1
        self._known[id(request.parameters)] = _Known(self._num_requests, 0)
        first = request.sequences[0]
        if request.beams is not None:
            observe(request.beams)
        arrival = self._recording.add().arrival
        self._write_arrival(request, arrival)
        super().add(request)
        num_hashes = min(max(len(first.hashes) - 1, 0), len(request.prompt) // self.tables.block_size)
        arrival.block_hashes = _cut(first.hashes[1 : 1 + num_hashes])
        if arrival.delivered:
            self._write_deliveries(request, arrival, num_hashes)
        if self._with_tokens:
            arrival.prompt_token_ids = pack_u32(request.prompt)
            arrival.namespace = int.from_bytes(_cut(first.hashes[:1]), "little")
        if request.num_live:
            self._known[id(request.parameters)] = _Known(self._num_requests, num_hashes)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        if request.num_live and not self._in_step:
            abort = self._recording.add().abort
            abort.number = self._known[id(request.parameters)].number
            abort.indexes.extend(indexes)
        super().abort(request, indexes)

    def finish(self, request: Request, reason: FinishReason) -> None:
        if request.num_live and not self._in_step:
            finish = self._recording.add().finish
            finish.number, finish.reason = self._known[id(request.parameters)].number, reason
        super().finish(request, reason)

    def reset_cache(self) -> None:
        self._recording.add().reset.SetInParent()
        super().reset_cache()

    def schedule(self, now: float) -> Plan:
        self._in_step = True
        plan = super().schedule(now)
        self._in_step = False
        record = self._recording.add().plan
        record.now = now
        self._plans.write(plan, record)
        self._recording.flush_if_due(now)
        return plan

    def update(self, result: Result) -> list[Request]:
        self._result = self._recording.add().result
        self._result.duration_us = result.duration_us
        self._in_step = True
        failed = super().update(result)
        self._in_step = False
        return failed

    # What they do.

    def _on_close(self) -> None:
        """Writes down what is known of sequences that have not ended."""
        for request in self.requests:
            for sequence in request.sequences:
                if sequence.status is not Status.ENDED:
                    self._record_end(sequence)

    def _abort_without_token(self, sequences: list[Sequence], token_ids: list[int]) -> list[Request]:
        self._result.without_token.extend(i for i, token in enumerate(token_ids) if token == NO_TOKEN)
        return super()._abort_without_token(sequences, token_ids)

    def _advance_beams(self, sampling: list[Sequence], result: Result) -> tuple[list[Sequence], list[int]]:
        searching = {sequence.request for sequence in sampling if sequence.request.beams is not None}
        numbers = {each: self._known[id(each.parameters)].number for each in searching if each.num_live}
        taken = super()._advance_beams(sampling, result)
        for request, number in sorted(numbers.items(), key=lambda pair: pair[1]):
            self._record_choice(request, number)
        return taken

    def _record_choice(self, request: Request, number: int) -> None:
        beams, size = request.beams, self.tables.block_size
        assert beams is not None and isinstance(beams.search, ObservedSearch)
        parents, beams.search.parents = beams.search.parents, None
        if parents is None:
            return  # the result was of a search that was given up
        choice = self._result.choices.add(number=number, parents=pack_u32(parents))
        choice.is_over = beams.search.done
        choice.length = beams.search.length - (not choice.is_over)
        num_tokens = len(request.prompt) + beams.search.length
        if parents and num_tokens % size == 0:
            choice.block_hashes = _cut(
                [self.prefix_cache.hash_of(carrier, num_tokens // size) for carrier in beams.carriers]
            )

    def _on_end(self, sequence: Sequence) -> None:
        self._record_end(sequence)
        if not sequence.request.num_live:
            del self._known[id(sequence.request.parameters)]

    def _record_end(self, sequence: Sequence) -> None:
        number, num_hashes = self._known[id(sequence.request.parameters)]
        reason, _ = sequence.finish()
        end = self._recording.add().end
        end.number, end.index, end.num_output_tokens = number, sequence.index, len(sequence.output)
        if reason in (FinishReason.EOS, FinishReason.STOP):
            end.reason = reason
        end.block_hashes = _cut(sequence.hashes[1 + num_hashes :])
        end.first_block = num_hashes
        if self._with_tokens:
            end.output_token_ids = pack_u32(sequence.output)

    def _write_arrival(self, request: Request, arrival: RecordedArrival) -> None:
        arrival.number = self._num_requests
        arrival.arrival = request.arrival
        arrival.prompt_len = len(request.prompt)
        arrival.n = len(request.sequences)
        arrival.max_tokens, arrival.min_tokens = request.max_tokens, request.parameters.min_tokens
        arrival.max_model_len = request.max_model_len
        arrival.priority = request.priority
        arrival.tenant, arrival.cache_bypass = request.tenant, request.cache_bypass
        arrival.tenant_weight = request.tenant_weight
        arrival.suspect = self._suspects.get(request.key, 0)
        if request.time_limit_at is not None:
            arrival.time_limit_at = request.time_limit_at
        if request.deadline_at is not None:
            arrival.deadline_at = request.deadline_at
        if request.prompt_logprobs is not None:
            arrival.prompt_logprobs_start = request.prompt_logprobs.next
        if request.beams is not None:
            parameters = request.beams.parameters
            arrival.beam_width, arrival.num_beam_results = parameters.width, parameters.num_results
            arrival.num_beam_offers = parameters.num_offers
        if any(sequence.output for sequence in request.sequences):
            arrival.delivered = pack_u32(len(sequence.output) for sequence in request.sequences)

    def _write_deliveries(self, request: Request, arrival: RecordedArrival, num_hashes: int) -> None:
        """Now, and not with the ends: a core that is killed leaves none."""
        for sequence in request.sequences:
            delivery = arrival.deliveries.add(block_hashes=_cut(sequence.hashes[1 + num_hashes :]))
            if self._with_tokens:
                delivery.token_ids = pack_u32(sequence.output)

    def _number_of(self, new: NewRow) -> int:
        return self._known[id(new.parameters)].number


def _cut(hashes: list[bytes]) -> bytes:
    """As they are in the file."""
    return b"".join(block[:HASH_BYTES] for block in hashes)
