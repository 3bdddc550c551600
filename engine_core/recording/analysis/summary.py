"""What a run of a recording's requests comes to, in figures that can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_core.scheduler.outputs import Outputs
from engine_core.step.plan import Plan


@dataclass(slots=True)
class Figures:
    """Of one run. Times in seconds."""

    queued: dict[str, list[float]] = field(default_factory=dict)  # by tenant: of each request that ran
    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    began: float | None = None
    ended: float = 0.0

    def planned(self, plan: Plan, now: float) -> None:
        """A plan was made."""
        if self.began is None:
            self.began = now
        self.num_steps += 1
        self.num_computed_tokens += sum(plan.counts)

    def told(self, outputs: Outputs, now: float) -> None:
        """Something became of requests."""
        for start in outputs.started:
            self.queued.setdefault(start.request.tenant, []).append(start.queued)
            self.num_cached_tokens += start.num_cached_tokens
        tokens = sum(outputs.counts)
        if tokens:
            self.num_output_tokens += tokens
            self.ended = max(self.ended, now)

    @property
    def seconds(self) -> float:
        """From the first plan to the last token."""
        return max(self.ended - (self.began or 0.0), 0.0) if self.num_output_tokens else 0.0

    def rows(self) -> dict[str, str]:
        """Names and figures, to be printed."""
        everybody = [queued for of_tenant in self.queued.values() for queued in of_tenant]
        rows = {"requests that ran": str(len(everybody))} | _waits("", everybody)
        if len(self.queued) > 1:
            for tenant, queued in sorted(self.queued.items()):
                rows |= _waits(f" of {tenant or '(no tenant)'}", queued)
        rows["steps"] = str(self.num_steps)
        rows["preemptions"] = str(self.num_preemptions)
        rows["cached prompt tokens"] = str(self.num_cached_tokens)
        rows["computed tokens"] = str(self.num_computed_tokens)
        rows["output tokens"] = str(self.num_output_tokens)
        rows["seconds"] = f"{self.seconds:.3f}"
        rows["output tokens/s"] = f"{self.num_output_tokens / self.seconds:.0f}" if self.seconds else "-"
        return rows


def _waits(of_whom: str, queued: Sequence[float]) -> dict[str, str]:
    return {
        f"queue time{of_whom}, p{percent}": f"{1000 * percentile(queued, percent):.1f} ms"
        for percent in (50, 99)
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))] if ordered else 0.0
