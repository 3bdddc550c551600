"""Where the time of an answer went, in one line."""

import dataclasses

from pagewire.cli.common.tables import short_seconds
from pagewire.client.results import Generation


def timings_line(result: Generation) -> str:
    """Returns the phases of an answer and its causes of waiting that are not 0, its tokens and its id."""
    timings, tokens = result.timings, result.usage.completion_tokens
    about = (
        f"request {result.request_id}, {result.usage.prompt_tokens} tokens of prompt "
        f"({result.usage.cached_prompt_tokens} cached), {tokens} of output"
    )
    if timings is None:
        return f"[{about}; the answer was broken off]"
    names = ("preprocess", "queue", "prefill", "decode", "preempted", "total")
    phases = [
        f"{name} {short_seconds(getattr(timings, name))}"
        for name in names
        if name != "preempted" or timings.preempted
    ]
    waits = [
        f"{field.name} {short_seconds(waited)}"
        for field in dataclasses.fields(timings.waits)
        if (waited := getattr(timings.waits, field.name)) and field.name != "queue"
    ]
    per_token = timings.decode / (tokens - 1) if tokens > 1 else 0.0
    parts = [about, ", ".join(phases), f"{short_seconds(per_token)} per token"]
    if waits:
        parts.append(f"waited for {', '.join(waits)}")
    return f"[{'; '.join(parts)}]"
