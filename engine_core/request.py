"""Requests and their sequences, as the core sees them: token ids, limits, blocks.

A request is born whole (see validation.py) and has `n` sequences. A sequence has `num_tokens`
(prompt and output) and `num_computed_tokens` (those whose keys and values are in its blocks); all
that scheduling does is to move the second toward the first.

A plan counts ahead of its result: from the plan on that samples a token, `num_tokens` counts the token,
and `num_computed_tokens` what the plan computes. The token itself, until it comes, is pending.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_core.beam_search.sequences import BeamRows
    from engine_core.step.plan import RowParameters
    from pagewire.v1.generation_pb2 import LogprobOptions

NO_ROW = -1
NO_TOKEN = (1 << 32) - 1
"""What a worker answers for a row whose logits leave nothing to choose from (NaN)."""


class FinishReason(IntEnum):
    """Why a sequence ended; the numbers of pagewire.v1.FinishReason."""

    NONE = 0
    EOS = 1
    STOP = 2
    MAX_TOKENS = 3
    CONTEXT_LENGTH = 4
    TIME_LIMIT = 5
    ABORTED = 6


class Status(IntEnum):
    """Where a sequence is.

    WAITING ──> RUNNING ──> ENDED      WAITING: in the queue, without row and blocks
       ^           │                   FORKING: waits for the prompt that its leader computes;
       └─preempted─┘                            has a row (reserved) while the leader runs;
    FORKING ──> RUNNING                         of beams: goes where the leader goes (beam_rows.py)
                                       RUNNING: has a row and blocks
    """

    WAITING = 0
    FORKING = 1
    RUNNING = 2
    ENDED = 3


@dataclass(slots=True)
class PendingPromptLogprobs:
    """The log-probabilities of the prompt that are still to come."""

    options: LogprobOptions
    next: int
    """Position in the prompt, at least 1; those before it have come, or are not wanted."""


@dataclass(slots=True, eq=False)
class Request:
    """A request in flight. Times are in seconds on the core's monotonic clock."""

    frontend: bytes  # identity of its socket
    handle: int  # the frontend's number for it
    request_id: str
    prompt: array[int]
    parameters: RowParameters
    max_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int]  # empty when EOS is ignored
    stop_token_ids: frozenset[int]
    arrival: float
    key: int = 0  # its name in notes: see suspects.py
    group: str = ""  # public id of several requests, of which this is one
    priority: int = 0  # its class: lower is sooner
    tenant: str = ""
    tenant_weight: float = 0.0  # share of the tenant, from here on; 0: as it was
    cache_salt: str = ""
    cache_bypass: bool = False  # neither reads nor writes the prefix cache
    prompt_logprobs: PendingPromptLogprobs | None = None
    time_limit_at: float | None = None
    deadline_at: float | None = None
    sequences: list[Sequence] = field(default_factory=list)
    forking: dict[Sequence, None] = field(default_factory=dict)  # in order; removal in O(1)
    num_live: int = 0  # sequences that have not ended
    num_running: int = 0  # sequences that are RUNNING
    num_preemptions: int = 0  # of its sequences
    num_made: int = 0  # tokens of output of those that have ended, less what was delivered before
    scheduled: bool = False  # was scheduled at least once
    beams: BeamRows | None = None  # of a beam search: its sequences are the beams

    def start_sequences(self, n: int, delivered: dict[int, array[int]]) -> None:
        """Makes the sequences 0 to n - 1.

        The first one leads: it computes the prompt, then the others fork from it. Where output was
        delivered before (index -> token ids) they differ from the start, and each goes its own way.
        """
        stops = self.eos_token_ids | self.stop_token_ids
        limit = min(len(self.prompt) + self.max_tokens, self.max_model_len)
        for index in range(n):
            output = delivered.get(index) or array("I")
            self.sequences.append(Sequence(self, index, output, len(self.prompt) + len(output), limit, stops))
            self.num_made -= len(output)
        if not delivered:
            self.sequences[0].leads = n > 1
            for sequence in self.sequences[1:]:
                sequence.status = Status.FORKING
                self.forking[sequence] = None
        self.num_live = n

    def start_beams(self, beams: BeamRows) -> None:
        """The sequences are the beams of a search. (The first one leads even if it is the only one.)"""
        self.beams = beams
        self.sequences[0].leads = True

    def ending(self, output: array[int]) -> tuple[FinishReason, int]:
        """Why a sequence ends after this output, and the token that matched (0: none).

        A token at a position below min_tokens ends nothing: the worker does not allow stop tokens
        there, and a delivered one is taken as it is.
        """
        if len(output) > self.parameters.min_tokens:
            token = output[-1]
            if token in self.eos_token_ids:
                return FinishReason.EOS, token
            if token in self.stop_token_ids:
                return FinishReason.STOP, token
        if len(output) >= self.max_tokens:
            return FinishReason.MAX_TOKENS, 0
        if len(self.prompt) + len(output) >= self.max_model_len:
            return FinishReason.CONTEXT_LENGTH, 0
        return FinishReason.NONE, 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One output of a request."""

    request: Request
    index: int
    output: array[int]  # token ids
    num_tokens: int  # prompt and output, pending tokens included
    limit: int  # num_tokens at which it ends
    stops: frozenset[int]  # tokens that may end it
    num_computed_tokens: int = 0
    num_slots: int = 0  # it may have so many tokens without asking for blocks; below `limit`
    blocks: list[int] = field(default_factory=list)  # block table
    num_committed: int = 0  # blocks that the prefix cache knows, or knows others like
    hashes: list[bytes] = field(default_factory=list)  # of its first 0, 1, 2 ... blocks; see prefix_cache.py
    row: int = NO_ROW
    status: Status = Status.WAITING
    num_charged: int = 0  # its first tokens: its tenant need not pay for them (again); see tenants.py
    leads: bool = False  # others fork from it when its prompt is computed

    @property
    def num_new_tokens(self) -> int:
        """Tokens that are still to be computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def may_grow(self) -> bool:
        """Whether its next token can be computed; not when it is pending whether it ends before, nor, of
        beams, while their last tokens are."""
        if self.request.beams is not None and self.num_tokens > self.num_known_tokens:
            return False
        return self.num_tokens < self.limit

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output without pending tokens."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_skippable_tokens(self) -> int:
        """Tokens at the beginning whose keys and values suffice: the logits of all others are needed.

        Those of the last token for the next one, and those of a position for the log-probability of the
        token after it.
        """
        wish = self.request.prompt_logprobs
        return (self.num_tokens if wish is None else wish.next) - 1

    def token_ids(self) -> array[int]:
        """Prompt and output, as far as they are known."""
        return self.request.prompt + self.output

    def token_bytes(self, start: int, end: int) -> bytes:
        """Some of token_ids(), without looking at the others."""
        prompt, first = self.request.prompt, len(self.request.prompt)
        if start >= first:
            return self.output[start - first : end - first].tobytes()
        if end <= first:
            return prompt[start:end].tobytes()
        return (prompt[start:] + self.output[: end - first]).tobytes()

    def finish(self) -> tuple[FinishReason, int]:
        """Why the sequence ends after its last known token; see Request.ending()."""
        return self.request.ending(self.output)
