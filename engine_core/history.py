"""What operators are told of a request's past: noted when it happens, read only when it is asked for."""

from dataclasses import dataclass


@dataclass(slots=True)
class History:
    """A request's past. Times are in seconds on the core's monotonic clock."""

    age: float = 0.0
    """Seconds from its arrival at its frontend to that at this core."""
    began: float | None = None
    """When it was first scheduled."""
    waits: tuple[float, ...] = ()
    """Seconds that it had waited until then, by cause; see scheduler/wait_causes.py."""
    num_cached_tokens: int = 0
    """Tokens of its prompt that the prefix cache had then."""
    prefill: float | None = None
    """Seconds from then to the plan that completes its prompt, without pauses; None: it is not complete."""
    paused: float = 0.0
    """Seconds of its pauses by preemption that are over."""
