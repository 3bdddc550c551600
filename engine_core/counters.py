"""Figures about the core: the recent hit rate of its cache, and counters since the start."""

from collections import Counter, deque
from dataclasses import dataclass, field

from engine_core.step.plan import Plan
from engine_core.step.result import Draft, Result
from pagewire.retry_after import Rate
from pagewire.telemetry.figures import REQUEST_SECONDS, TOKEN_SECONDS, Histogram, counter, counters, histogram

_QUERIES = 1000
_POSITIONS = 8
"""Of a draft, that are counted one by one."""


class HitRate:
    """Tokens found over tokens asked for, in the last thousand queries."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, int]] = deque()  # (asked, found)
        self._asked = self._found = 0
        self.num_asked = self.num_found = 0  # since the start

    def add(self, asked: int, found: int) -> None:
        """Registers one query."""
        self._last.append((asked, found))
        self._asked += asked
        self._found += found
        self.num_asked += asked
        self.num_found += found
        if len(self._last) > _QUERIES:
            asked, found = self._last.popleft()
            self._asked -= asked
            self._found -= found

    @property
    def ratio(self) -> float:
        """The hit rate, 0 to 1; 0 before the first query."""
        return self._found / self._asked if self._asked else 0.0


@dataclass(slots=True)
class Counters:
    """Counters of the step loop. A new one is a field here, and a row in docs/metrics.md."""

    bad_messages: int = counter(
        "pagewire_core_bad_messages_total", "Messages of frontends, well-formed but against the contract."
    )
    internal_errors: int = counter(
        "pagewire_core_internal_errors_total",
        "Exceptions about one message or request: bugs.",
    )
    broken_invariants: int = counter(
        "pagewire_core_broken_invariants_total", "Times that an invariant of the scheduler did not hold."
    )
    requests: int = counter("pagewire_core_requests_total", "Requests that were admitted.")
    refused: Counter[str] = counters(
        "pagewire_core_refusals_total", "Requests that were refused on arrival.", "reason"
    )
    handovers: Counter[str] = counters(
        "pagewire_core_handovers_total",
        "Requests in flight that a later call with their id and content took over, by whether they went on.",
        "went_on",
    )
    failures: Counter[str] = counters(
        "pagewire_core_failures_total", "Admitted requests that ended by an error.", "reason"
    )
    frontends_lost: int = counter(
        "pagewire_core_frontends_lost_total", "Frontends that went away or stopped reading with requests."
    )
    planned_tokens: Counter[str] = counters(
        "pagewire_core_planned_tokens_total",
        "Tokens computed: one in each row counts as decode, what a row computes beyond that as prefill.",
        "phase",
    )
    sampled_tokens: int = counter("pagewire_core_sampled_tokens_total", "Tokens that steps have sampled.")
    draft_tokens: Counter[tuple[str, str]] = counters(
        "pagewire_core_draft_tokens_total",
        "Tokens that the worker drafted, by what drafted them and what became of them: accepted or refused.",
        "method",
        "outcome",
    )
    draft_positions: Counter[tuple[str, str]] = counters(
        "pagewire_core_draft_positions_total",
        "The same tokens by their position in the draft, from 1 to 8, or more.",
        "position",
        "outcome",
    )
    kv_pulls: Counter[str] = counters(
        "pagewire_core_kv_pulls_total",
        "Requests whose prefix another engine core holds, by what became of pulling its blocks.",
        "outcome",
    )
    kv_pulled_blocks: int = counter(
        "pagewire_core_kv_pulled_blocks_total", "KV blocks that were copied from other engine cores."
    )
    step_seconds: Histogram = histogram(
        "pagewire_core_step_seconds", "Duration of a step, as measured by the worker.", TOKEN_SECONDS
    )
    encode_seconds: Histogram = histogram(
        "pagewire_core_encode_seconds",
        "Of the duration of a step that encodes media: what that took.",
        REQUEST_SECONDS,
    )
    worker_phases: dict[str, float] = counters(
        "pagewire_worker_phase_seconds_total",
        "Seconds of steps by phase: encode (media), prepare (rows and inputs), forward, sample (and"
        " log-probabilities).",
        "phase",
    )
    worker_waiting: float = counter(
        "pagewire_worker_waiting_seconds_total",
        "Seconds between steps while there was work: transfer of results and plans, scheduling.",
    )
    output_rate: Rate = field(default_factory=Rate)
    _step_ended_ns: int = 0  # on the worker's clock; 0: the core was idle since then

    def step_planned(self, plan: Plan) -> None:
        """Counts a step that is sent to the worker."""
        decoded = len(plan.rows) + plan.num_extra_samples
        self.planned_tokens["decode"] += decoded
        self.planned_tokens["prefill"] += sum(plan.counts) - decoded

    def step_done(self, result: Result) -> None:
        """Counts the result of a step."""
        self.sampled_tokens += len(result.token_ids)
        for draft in result.drafts():
            self._count_draft(draft)
        self.step_seconds.observe(result.duration_us / 1e6)
        if result.encode_us:
            self.encode_seconds.observe(result.encode_us / 1e6)
            self.worker_phases["encode"] += result.encode_us / 1e6
        if self._step_ended_ns:
            self.worker_waiting += max(0, result.started_ns - self._step_ended_ns) / 1e9
        self._step_ended_ns = result.started_ns + 1000 * result.duration_us
        if result.forward_us:  # a simulated device has no phases
            self.worker_phases["prepare"] += result.prepare_us / 1e6
            self.worker_phases["forward"] += result.forward_us / 1e6
            self.worker_phases["sample"] += result.sample_us / 1e6

    def _count_draft(self, draft: Draft) -> None:
        self.draft_tokens[draft.method, "accepted"] += draft.num_accepted
        self.draft_tokens[draft.method, "refused"] += draft.num_tokens - draft.num_accepted
        for position in range(1, draft.num_tokens + 1):
            outcome = "accepted" if position <= draft.num_accepted else "refused"
            self.draft_positions[str(position) if position <= _POSITIONS else "more", outcome] += 1

    def idle(self) -> None:
        """Registers that there is nothing to do: the time until the next step does not count as waiting."""
        self._step_ended_ns = 0
