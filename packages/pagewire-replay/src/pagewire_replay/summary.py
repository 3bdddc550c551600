"""Figures of a run of recorded requests, to compare runs by."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_core.scheduler.outputs.outputs import Outputs
from engine_core.step.plan import Plan
from engine_core.step.result import Result


@dataclass(slots=True)
class Figures:
    """Figures of one run. Times in seconds."""

    queued: dict[str, list[float]] = field(default_factory=dict)  # by tenant; one per request that ran
    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: Counter[str] = field(default_factory=Counter)  # by method
    num_accepted_drafts: Counter[str] = field(default_factory=Counter)
    began: float | None = None
    ended: float = 0.0

    def add_plan(self, plan: Plan, now: float) -> None:
        """Counts a plan with rows."""
        if self.began is None:
            self.began = now
        self.num_steps += 1
        self.num_computed_tokens += sum(plan.counts)

    def add_result(self, result: Result) -> None:
        """Counts what was drafted in a step."""
        for draft in result.drafts():
            self.num_draft_tokens[draft.method] += draft.num_tokens
            self.num_accepted_drafts[draft.method] += draft.num_accepted

    def add_outputs(self, outputs: Outputs, now: float) -> None:
        """Counts what a step has done for requests."""
        for start in outputs.started:
            self.queued.setdefault(start.request.tenant, []).append(start.queued)
            self.num_cached_tokens += start.num_cached_tokens
        tokens = sum(outputs.counts)
        if tokens:
            self.num_output_tokens += tokens
            self.ended = max(self.ended, now)

    @property
    def seconds(self) -> float:
        """Time from the first plan to the last token."""
        return max(self.ended - (self.began or 0.0), 0.0) if self.num_output_tokens else 0.0

    def rows(self) -> dict[str, str]:
        """Returns the figures as text, by name."""
        total = [queued for of_tenant in self.queued.values() for queued in of_tenant]
        rows = {"requests that ran": str(len(total))} | _queue_times("", total)
        if len(self.queued) > 1:
            for tenant, queued in sorted(self.queued.items()):
                rows |= _queue_times(f" of {tenant or '(no tenant)'}", queued)
        rows["steps"] = str(self.num_steps)
        rows["preemptions"] = str(self.num_preemptions)
        rows["cached prompt tokens"] = str(self.num_cached_tokens)
        rows["computed tokens"] = str(self.num_computed_tokens)
        rows["output tokens"] = str(self.num_output_tokens)
        for method, num_tokens in sorted(self.num_draft_tokens.items()):
            rows[f"draft tokens, {method}"] = str(num_tokens)
            rows[f"accepted draft tokens, {method}"] = str(self.num_accepted_drafts[method])
        rows["seconds"] = f"{self.seconds:.3f}"
        rows["output tokens/s"] = f"{self.num_output_tokens / self.seconds:.0f}" if self.seconds else "-"
        return rows


def _queue_times(suffix: str, queued: Sequence[float]) -> dict[str, str]:
    return {
        f"queue time{suffix}, p{percent}": f"{1000 * percentile(queued, percent):.1f} ms"
        for percent in (50, 99)
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the percentile by nearest rank; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))] if ordered else 0.0
