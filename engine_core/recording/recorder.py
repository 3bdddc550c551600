"""A scheduler that records the calls that EngineCore makes to it, and the plans that it returns.

The recording has no texts, and token ids only on request: of tokens it has how many there are, which token
ended a sequence, and for each full block the hash under which the prefix cache knows it. The key of that hash
belongs to this process and is not in the file: a reader can tell which blocks are equal, and nothing else.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from os import urandom
from typing import Any

from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.kv_cache.prefix_cache import Contents, block_hash
from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.recording.file import FORMAT, RecordingWriter
from engine_core.recording.plans import PlanWriter, columns_of, requests_of
from engine_core.request import NO_TOKEN, FinishReason, Request, Sequence, Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.scheduler.states.beam_group import BeamGroup
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire import __version__
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import pack_u32

COPIED = (
    "arrival",
    "max_tokens",
    "max_model_len",
    "priority",
    "tenant",
    "tenant_weight",
    "cache_bypass",
    "max_drafts",
    "time_limit_at",
    "deadline_at",
)
"""Fields of Request that are recorded as they are. Of the others is recorded what plans depend on."""
HASH_BYTES = 8
"""Length of a block hash in the file. Among ten million blocks, two different blocks look equal once in 10^5
recordings."""


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
        self._key = urandom(32)  # of content hashes in the file: values of embeddings could be guessed
        self._num_requests = 0
        self._num_ended = 0  # sequences whose ends are recorded
        self._suspects: dict[int, int] = {}  # numbers by request key
        self._recorded: dict[Request, _Recorded] = {}
        self._plans = PlanWriter()
        self._media: dict[bytes, int] = {}  # numbers by digest
        recording.on_close = self._record_live_sequences
        start = recording.add().start
        start.format, start.version, start.has_tokens = FORMAT, __version__, with_tokens
        start.settings = json.dumps(settings, default=dataclasses.asdict)

    def track_cache(self, changes: KeptChanges, kept: KeptCache) -> tuple[Contents, Contents]:
        blocks, checkpoints = super().track_cache(changes, kept)
        if blocks or checkpoints:
            columns = {
                "blocks": pack_u32(list(blocks)),  # the least recently used first, as checkpoints
                "hashes": write_hashes(blocks.values()),
                "checkpoints": pack_u32(list(checkpoints)),
                "checkpoint_hashes": write_hashes(checkpoints.values()),
            }
            self._record("track_cache", columns=columns)
        return blocks, checkpoints

    def open(self, journal: CrashJournal) -> None:
        self._suspects = {key: number for number, key in enumerate(journal.suspects, start=1)}
        suspects = [
            (each.span.first, each.span.end, each.group, each.death, each.strikes)
            for each in journal.suspects.values()
        ]
        self._record("open", num_deaths=journal.num_deaths, suspects=suspects)
        super().open(journal)

    def refuses(self, key: int) -> bool:
        refused = super().refuses(key)
        if refused:
            self._record("refuses", suspect=self._suspects[key])
        return refused

    def add(self, request: Request, prepared: bool = True) -> None:
        self._num_requests += 1
        facts, sequences = self._facts_of(request), request.sequences.copy()  # before any of them ends
        super().add(request, prepared)
        hashes = sequences[0].hashes
        num_hashes = min(max(len(hashes) - 1, 0), len(request.prompt) // self.tables.block_size)
        self._recorded[request] = recorded = _Recorded(self._num_requests, num_hashes, sequences)
        columns = {"hashes": write_hashes(hashes[1 : 1 + num_hashes])}
        if self._with_tokens:
            columns["token_ids"] = pack_u32(request.prompt)
            namespace = self.prefix_cache.namespace(request)  # one that is preparing has no hashes yet
            facts["namespace"] = write_hashes([namespace]).hex()
        self._record("add", request, columns, prepared=prepared, **facts)
        for sequence in sequences:  # at the arrival, too: a core that is killed records no ends
            if sequence.output:
                self._record_output("delivered", recorded, sequence)
        self._record_ends(request)

    def prepared(self, request: Request) -> None:
        self._record("prepared", request)
        super().prepared(request)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        if request.num_live:
            self._record("abort", request, indexes=list(indexes))
        super().abort(request, indexes)
        self._record_ends(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        if request.num_live:
            self._record("finish", request, reason=reason)
        super().finish(request, reason)
        self._record_ends(request)

    def set_deadline(self, request: Request, deadline_at: float | None) -> None:
        self._record("set_deadline", request, deadline_at=deadline_at)
        super().set_deadline(request, deadline_at)

    def reset_cache(self) -> None:
        self._record("reset_cache")
        super().reset_cache()

    def schedule(self, now: float) -> Plan:
        plan = super().schedule(now)
        record = self._recording.add().plan
        record.now = now
        requests = requests_of(plan, self.states)
        numbers = {row: self._recorded[request].number for row, request in requests.items()}
        self._plans.write(columns_of(plan, numbers, self._media), record)
        if self.states.num_ended != self._num_ended:  # a time limit or a deadline has passed
            for request in list(self._recorded):
                self._record_ends(request)
        self._recording.flush_if_due(now)
        return plan

    def update(self, result: Result) -> list[Request]:
        sampling = self.in_flight[0].sampling
        searches = self._searches_of(sampling) if result.beam_token_ids else {}
        record = self._recording.add().result
        record.duration_us = result.duration_us
        if NO_TOKEN in result.token_ids:
            record.token_ids = pack_u32(token if token == NO_TOKEN else 0 for token in result.token_ids)
        if self.planner.draft_room.drafts:
            record.started_ns, record.draft_prefill = result.started_ns, result.draft_prefill
            record.draft_methods = result.draft_methods
        for name in ("sample_counts", "draft_counts", "next_draft_counts"):
            if column := getattr(result, name):
                setattr(record, name, pack_u32(column))
        failed = super().update(result)
        for request, (group, length) in searches.items():
            self._record_choice(request, group, length)
        if self.states.num_ended != self._num_ended:
            for sequence in sampling:
                if sequence.status is Status.ENDED:
                    self._record_ends(sequence.request)
        return failed

    def _record(
        self, name: str, request: Request | None = None, columns: dict[str, bytes] | None = None, **facts: Any
    ) -> None:
        event = self._recording.add().event
        event.name = name
        if request is not None:
            event.number = self._recorded[request].number
        if facts:
            event.facts = json.dumps(facts)
        for column, values in (columns or {}).items():
            event.columns[column] = values

    def _facts_of(self, request: Request) -> dict[str, Any]:
        """Returns what scheduling depends on, but for the tokens."""
        pending, search = request.prompt_logprobs, request.beam_search
        pooling, grammar = request.parameters.pooling, request.parameters.grammar
        return {name: getattr(request, name) for name in COPIED} | {
            "prompt_len": len(request.prompt),
            "n": len(request.sequences),
            "min_tokens": request.parameters.min_tokens,
            "has_grammar": bool(grammar),
            "content_hashes": {at: self._hash(content) for at, content in request.content_hashes.items()},
            "media": [[self._hash(item.digest), *item.positions] for item in request.parameters.media],
            "adapter": self._hash(request.parameters.adapter.digest) if request.parameters.adapter else "",
            "suspect": self._suspects.get(request.key, 0),
            "prompt_logprobs_start": 0 if pending is None else pending.next,
            "pooling_type": 0 if pooling is None else pooling.type,
            "num_vector_values": request.num_vector_values,
            "num_beam_results": 0 if search is None else search.num_results,
            "num_beam_candidates": 0 if search is None else search.num_candidates,
        }

    def _hash(self, content: bytes) -> str:
        return blake2b(content, digest_size=16, key=self._key).hexdigest()

    def _record_ends(self, request: Request) -> None:
        """Records the sequences of a request that have ended since the last call."""
        recorded = self._recorded.get(request)
        if recorded is None:
            return
        ended = [sequence for sequence in recorded.live if sequence.status is Status.ENDED]
        for sequence in ended:
            recorded.live.remove(sequence)
            self._record_output("ended", recorded, sequence)
        self._num_ended += len(ended)
        if not recorded.live:
            del self._recorded[request]

    def _record_live_sequences(self) -> None:
        """Records what is known of sequences that have not ended when the recording is closed."""
        for recorded in self._recorded.values():
            for sequence in recorded.live:
                self._record_output("ended", recorded, sequence)

    def _record_output(self, name: str, recorded: _Recorded, sequence: Sequence) -> None:
        """Records the output of a sequence, with the hashes of the blocks behind those of its prompt."""
        reason, _ = sequence.finish()
        columns = {"hashes": write_hashes(sequence.hashes[1 + recorded.num_hashes :])}
        if self._with_tokens:
            columns["token_ids"] = pack_u32(sequence.output)
        self._record(
            name,
            sequence.request,
            columns,
            index=sequence.index,
            num_output_tokens=len(sequence.output),
            reason=reason if reason in (FinishReason.EOS, FinishReason.STOP) else FinishReason.NONE,
            first_block=recorded.num_hashes,
        )

    def _searches_of(self, sampling: list[Sequence]) -> dict[Request, tuple[BeamGroup, int]]:
        """Returns the searches that are about to take candidates, with the length of their beams."""
        groups = {s.request: self.states.groups[s.request] for s in sampling if s.request.num_live}
        return {
            request: (group, group.search.length)
            for request, group in groups.items()
            if isinstance(group, BeamGroup) and not group.is_void
        }

    def _record_choice(self, request: Request, group: BeamGroup, length: int) -> None:
        """length: output tokens of the beams before the choice."""
        search, size = group.search, self.tables.block_size
        if search.done:
            self._record("chosen", request, length=length)
        elif search.length != length:  # else its request has failed
            columns = {"parents": pack_u32(search.parents)}
            num_blocks, rest = divmod(len(request.prompt) + search.length, size)
            if not rest:
                hashes = (_hash_of(carrier, num_blocks, size) for carrier in group.carriers)
                columns["hashes"] = write_hashes(hashes)
            self._record("chosen", request, columns, length=length)


def _hash_of(sequence: Sequence, num_blocks: int, block_size: int) -> bytes:
    """Returns the hash of the sequence's first blocks; empty where it does not use the prefix cache."""
    hashes = sequence.hashes[: num_blocks + 1]
    for block in range(len(hashes) - 1, num_blocks) if hashes else ():
        tokens = sequence.block_content(block * block_size, (block + 1) * block_size)
        hashes.append(block_hash(hashes[-1], tokens))
    return hashes[-1] if hashes else b""


def write_hashes(hashes: Iterable[bytes]) -> bytes:
    """Returns a column of the first HASH_BYTES of each hash."""
    return b"".join(block[:HASH_BYTES] for block in hashes)
