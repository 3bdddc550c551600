"""Writes the tables of docs/metrics.md; --check says whether they are fresh."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from engine_core import metrics as engine_core
from frontend import metrics as frontend
from pagewire.supervisor import metrics as supervisor
from pagewire.telemetry.figures import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
TABLES: dict[str, Sequence[Metric]] = {
    "Frontend": frontend.METRICS,
    "Engine core and worker": engine_core.METRICS,
    "Supervisor": supervisor.METRICS,
}
VLLM = {
    "pagewire_frontend_refusals_total": "admission_rejections",
    "pagewire_frontend_sequences_finished_total": "request_success",
    "pagewire_frontend_prompt_tokens_total": "prompt_tokens",
    "pagewire_frontend_cached_prompt_tokens_total": "prompt_tokens_cached",
    "pagewire_frontend_generated_tokens_total": "generation_tokens",
    "pagewire_frontend_request_seconds": "e2e_request_latency_seconds",
    "pagewire_frontend_time_to_first_token_seconds": "time_to_first_token_seconds",
    "pagewire_frontend_inter_token_seconds": "inter_token_latency_seconds",
    "pagewire_frontend_queue_seconds": "request_queue_time_seconds",
    "pagewire_frontend_prefill_seconds": "request_prefill_time_seconds",
    "pagewire_frontend_decode_seconds": "request_decode_time_seconds",
    "pagewire_frontend_request_prompt_tokens": "request_prompt_tokens",
    "pagewire_frontend_request_generated_tokens": "request_generation_tokens",
    "pagewire_core_refusals_total": "admission_rejections",
    "pagewire_core_planned_tokens_total": "iteration_tokens_total (its sum)",
    "pagewire_core_requests_running": "num_requests_running",
    "pagewire_core_requests_waiting": "num_requests_waiting",
    "pagewire_core_kv_usage": "kv_cache_usage_perc",
    "pagewire_core_prefix_cache_queries_total": "prefix_cache_queries",
    "pagewire_core_prefix_cache_hits_total": "prefix_cache_hits",
    "pagewire_core_preemptions_total": "num_preemptions",
}
"""The name in vLLM, without its prefix, where it has such a metric."""
BEGIN, END = "<!-- Written by python -m scripts.metrics_page -->", "<!-- until here -->"


def row(metric: Metric) -> str:
    """One line of a table."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    theirs = f"`{VLLM[metric.name]}`" if metric.name in VLLM else ""
    cells = (f"`{metric.name}`", metric.kind, labels, metric.help, theirs)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def tables() -> str:
    """All tables, with their headings."""
    parts = []
    for title, metrics in TABLES.items():
        head = ["| name | kind | labels | what | vLLM |", "| --- | --- | --- | --- | --- |"]
        parts.append("\n".join([f"### {title}\n", *head, *map(row, metrics)]))
    return "\n\n".join(parts)


def page(old: str) -> str:
    """The page with fresh tables between the two marks."""
    pattern = re.compile(f"(?<={BEGIN}\n\n).*?(?=\n\n{END})", re.DOTALL)
    fresh, count = pattern.subn(lambda match: tables(), old)
    if count != 1:
        raise ValueError(f"docs/metrics.md has {count} parts between {BEGIN!r} and {END!r}")
    return fresh


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    old = PAGE.read_text(encoding="utf-8")
    fresh = page(old)
    if "--check" in arguments and fresh != old:
        print("docs/metrics.md is stale: run python -m scripts.metrics_page", file=sys.stderr)
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
