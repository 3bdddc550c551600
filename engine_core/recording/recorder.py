"""A scheduler that records the calls that EngineCore makes to it, and the plans that it returns.

The recording has no texts, and token ids only on request: of tokens it has how many there are, which token
ended a sequence, and for each full block the hash under which the prefix cache knows it. The key of that hash
belongs to this process and is not in the file: a reader can tell which blocks are equal, and nothing else.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from engine_core.beam_search.sequences import BeamGroup
from engine_core.kv_cache.kept_cache import Contents
from engine_core.kv_cache.kept_changes import KeptChanges
from engine_core.kv_cache.prefix_cache import block_hash
from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.recording.beams import HASH_BYTES
from engine_core.recording.file import FORMAT, RecordingWriter
from engine_core.recording.kept_blocks import write_kept
from engine_core.recording.plans import PlanWriter, columns_of
from engine_core.recording.settings import write_settings
from engine_core.request import MAX_DRAFTS, NO_TOKEN, FinishReason, Request, Sequence, Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import NewRow, Plan
from engine_core.step.result import Result
from pagewire import __version__
from pagewire.internal.v1.recording_pb2 import RecordedArrival, RecordedResult
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import pack_u32


@dataclass(slots=True)
class _Recorded:
    """A request whose arrival is recorded and whose end is not."""

    number: int
    num_hashes: int  # of blocks of its prompt
    live: list[Sequence]


class RecordedScheduler(Scheduler):
    """A Scheduler whose public methods record their calls. A replay schedules and updates, too: what
    ends within these calls is not recorded as a call."""

    def __init__(self, recording: RecordingWriter, *, with_tokens: bool = False, **settings: Any) -> None:
        """settings: those of Scheduler."""
        super().__init__(**settings)
        self._recording = recording
        self._with_tokens = with_tokens
        self._num_requests = 0
        self._num_ended = 0  # sequences whose ends are recorded
        self._suspects: dict[int, int] = {}  # numbers by request key
        self._recorded: dict[int, _Recorded] = {}  # by id() of Request.parameters, which rows have, too
        self._plans = PlanWriter()
        recording.on_close = self._record_live_sequences
        start = recording.add().start
        start.format, start.version, start.has_tokens = FORMAT, __version__, with_tokens
        start.settings = write_settings(settings)

    def track_cache(self, changes: KeptChanges, secret: bytes, kept: KeptCache) -> tuple[Contents, Contents]:
        blocks, checkpoints = super().track_cache(changes, secret, kept)
        if blocks or checkpoints:
            write_kept(blocks, checkpoints, self._recording.add().kept)
        return blocks, checkpoints

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

    def add(self, request: Request, prepared: bool = True) -> None:
        self._num_requests += 1
        first, sequences = request.sequences[0], request.sequences.copy()
        arrival = self._recording.add().arrival
        self._write_arrival(request, arrival)
        arrival.preparing = not prepared
        super().add(request, prepared)
        num_hashes = min(max(len(first.hashes) - 1, 0), len(request.prompt) // self.tables.block_size)
        arrival.block_hashes = _shortened(first.hashes[1 : 1 + num_hashes])
        if arrival.delivered:
            self._write_deliveries(sequences, arrival, num_hashes)
        if self._with_tokens:
            arrival.prompt_token_ids = pack_u32(request.prompt)
            namespace = self.prefix_cache.namespace(request)  # one that is preparing has no hashes yet
            arrival.namespace = int.from_bytes(_shortened([namespace]), "little")
        self._recorded[id(request.parameters)] = _Recorded(self._num_requests, num_hashes, sequences)
        self._record_ends(request)

    def prepared(self, request: Request) -> None:
        self._recording.add().prepared.number = self._recorded[id(request.parameters)].number
        super().prepared(request)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        if request.num_live:
            abort = self._recording.add().abort
            abort.number = self._recorded[id(request.parameters)].number
            abort.indexes.extend(indexes)
        super().abort(request, indexes)
        self._record_ends(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        if request.num_live:
            finish = self._recording.add().finish
            finish.number, finish.reason = self._recorded[id(request.parameters)].number, reason
        super().finish(request, reason)
        self._record_ends(request)

    def set_deadline(self, request: Request, deadline_at: float | None) -> None:
        change = self._recording.add().deadline
        change.number = self._recorded[id(request.parameters)].number
        if deadline_at is not None:
            change.deadline_at = deadline_at
        super().set_deadline(request, deadline_at)

    def reset_cache(self) -> None:
        self._recording.add().reset.SetInParent()
        super().reset_cache()

    def schedule(self, now: float) -> Plan:
        plan = super().schedule(now)
        record = self._recording.add().plan
        record.now = now
        self._plans.write(columns_of(plan, self._number_of), record)
        if self.states.num_ended != self._num_ended:  # a time limit or a deadline has passed
            for key in list(self._recorded):
                self._record_ends_of(key)
        self._recording.flush_if_due(now)
        return plan

    def update(self, result: Result) -> list[Request]:
        sampling = self.in_flight[0].sampling
        searches = self._searches_of(sampling) if result.beam_token_ids else {}
        record = self._recording.add().result
        record.duration_us = result.duration_us
        if NO_TOKEN in result.token_ids:
            record.without_token.extend(result.entries_with(NO_TOKEN))
        if self.planner.draft_room.drafts:
            record.started_ns, record.draft_prefill = result.started_ns, result.draft_prefill
            record.draft_methods = result.draft_methods
        for name in ("sample_counts", "draft_counts", "next_draft_counts"):
            if column := getattr(result, name):
                setattr(record, name, pack_u32(column))
        failed = super().update(result)
        for request, (group, length) in searches.items():
            self._write_choice(request, group, length, record)
        if self.states.num_ended != self._num_ended:
            for sequence in sampling:
                if sequence.status is Status.ENDED:
                    self._record_ends(sequence.request)
        return failed

    def _record_ends(self, request: Request) -> None:
        self._record_ends_of(id(request.parameters))

    def _record_ends_of(self, key: int) -> None:
        """Records the sequences of a request that have ended since the last call."""
        recorded = self._recorded.get(key)
        if recorded is None:
            return
        ended = [sequence for sequence in recorded.live if sequence.status is Status.ENDED]
        for sequence in ended:
            recorded.live.remove(sequence)
            self._record_end(recorded, sequence)
        self._num_ended += len(ended)
        if not recorded.live:
            del self._recorded[key]

    def _record_live_sequences(self) -> None:
        """Records what is known of sequences that have not ended when the recording is closed."""
        for recorded in self._recorded.values():
            for sequence in recorded.live:
                self._record_end(recorded, sequence)

    def _record_end(self, recorded: _Recorded, sequence: Sequence) -> None:
        reason, _ = sequence.finish()
        end = self._recording.add().end
        end.number, end.index, end.num_output_tokens = recorded.number, sequence.index, len(sequence.output)
        if reason in (FinishReason.EOS, FinishReason.STOP):
            end.reason = reason
        end.block_hashes = _shortened(sequence.hashes[1 + recorded.num_hashes :])
        end.first_block = recorded.num_hashes
        if self._with_tokens:
            end.output_token_ids = pack_u32(sequence.output)

    def _searches_of(self, sampling: list[Sequence]) -> dict[Request, tuple[BeamGroup, int]]:
        """Returns the searches that are about to take candidates, with the length of their beams."""
        groups = {s.request: self.states.groups[s.request] for s in sampling if s.request.num_live}
        return {
            request: (group, group.search.length)
            for request, group in groups.items()
            if isinstance(group, BeamGroup) and not group.is_void
        }

    def _write_choice(self, request: Request, group: BeamGroup, length: int, record: RecordedResult) -> None:
        """length: output tokens of the beams before the choice."""
        search, size = group.search, self.tables.block_size
        if not search.done and search.length == length:
            return  # its request has failed
        number = self._recorded[id(request.parameters)].number
        choice = record.choices.add(number=number, length=length, is_over=search.done)
        num_blocks, rest = divmod(len(request.prompt) + search.length, size)
        if search.done:
            return
        choice.parents = pack_u32(search.parents)
        if not rest:
            choice.block_hashes = _shortened(
                _hash_of(carrier, num_blocks, size) for carrier in group.carriers
            )

    def _write_arrival(self, request: Request, arrival: RecordedArrival) -> None:
        arrival.number = self._num_requests
        arrival.arrival = request.arrival
        arrival.prompt_len = len(request.prompt)
        arrival.n = len(request.sequences)
        arrival.max_tokens, arrival.min_tokens = request.max_tokens, request.parameters.min_tokens
        arrival.max_model_len = request.max_model_len
        arrival.has_grammar = bool(request.parameters.grammar)
        arrival.priority = request.priority
        arrival.tenant, arrival.cache_bypass = request.tenant, request.cache_bypass
        if request.max_drafts != MAX_DRAFTS:
            arrival.max_draft_tokens = request.max_drafts
        arrival.tenant_weight = request.tenant_weight
        arrival.suspect = self._suspects.get(request.key, 0)
        if request.time_limit_at is not None:
            arrival.time_limit_at = request.time_limit_at
        if request.deadline_at is not None:
            arrival.deadline_at = request.deadline_at
        if request.prompt_logprobs is not None:
            arrival.prompt_logprobs_start = request.prompt_logprobs.next
        if request.parameters.pooling is not None:
            arrival.pooling_type = request.parameters.pooling.type
        if request.beam_search is not None:
            parameters = request.beam_search
            arrival.num_beam_results = parameters.num_results
            arrival.num_beam_candidates = parameters.num_candidates
        if any(sequence.output for sequence in request.sequences):
            arrival.delivered = pack_u32(len(sequence.output) for sequence in request.sequences)

    def _write_deliveries(self, sequences: list[Sequence], arrival: RecordedArrival, num_hashes: int) -> None:
        """At the arrival, not at the ends: a core that is killed records no ends."""
        for sequence in sequences:
            delivery = arrival.deliveries.add(block_hashes=_shortened(sequence.hashes[1 + num_hashes :]))
            if self._with_tokens:
                delivery.token_ids = pack_u32(sequence.output)

    def _number_of(self, new: NewRow) -> int:
        return self._recorded[id(new.parameters)].number


def _hash_of(sequence: Sequence, num_blocks: int, block_size: int) -> bytes:
    """Returns the hash of the sequence's first blocks; empty where it does not use the prefix cache."""
    hashes = sequence.hashes[: num_blocks + 1]
    for block in range(len(hashes) - 1, num_blocks) if hashes else ():
        tokens = sequence.block_content(block * block_size, (block + 1) * block_size)
        hashes.append(block_hash(hashes[-1], tokens))
    return hashes[-1] if hashes else b""


def _shortened(hashes: Iterable[bytes]) -> bytes:
    return b"".join(block[:HASH_BYTES] for block in hashes)
