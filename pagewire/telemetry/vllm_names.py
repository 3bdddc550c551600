"""vLLM's names of our metrics, under which dashboards and endpoint pickers of others read them.

With --metrics-names vllm each series of the table is served again, under the prefix `vllm:` and with vLLM's
labels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pagewire.telemetry.figures import Histogram, Metric, Value

PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class Series:
    """What vLLM calls a metric.

    names:  without the prefix; a counter's end in _total.
    labels: vLLM's; none: values of a metric with labels are summed.
    values: our value of a label -> vLLM's; others are the same in both.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


_FINISHED = {
    "eos": "stop",
    "tool_calls": "stop",
    "max_tokens": "length",
    "context_length": "length",
    "time_limit": "length",
    "aborted": "abort",
}
VLLM: Mapping[str, Series] = {
    "pagewire_frontend_sequences_finished_total": Series(
        ("request_success_total",), ("finished_reason",), _FINISHED
    ),
    "pagewire_frontend_prompt_tokens_total": Series(("prompt_tokens_total",)),
    "pagewire_frontend_cached_prompt_tokens_total": Series(("prompt_tokens_cached_total",)),
    "pagewire_frontend_generated_tokens_total": Series(("generation_tokens_total",)),
    "pagewire_frontend_request_seconds": Series(("e2e_request_latency_seconds",)),
    "pagewire_frontend_time_to_first_token_seconds": Series(("time_to_first_token_seconds",)),
    "pagewire_frontend_inter_token_seconds": Series(
        ("inter_token_latency_seconds", "time_per_output_token_seconds")
    ),
    "pagewire_frontend_queue_seconds": Series(("request_queue_time_seconds",)),
    "pagewire_frontend_prefill_seconds": Series(("request_prefill_time_seconds",)),
    "pagewire_frontend_decode_seconds": Series(("request_decode_time_seconds",)),
    "pagewire_frontend_request_prompt_tokens": Series(("request_prompt_tokens",)),
    "pagewire_frontend_request_generated_tokens": Series(("request_generation_tokens",)),
    "pagewire_core_requests_running": Series(("num_requests_running",)),
    "pagewire_core_requests_waiting": Series(("num_requests_waiting",)),
    "pagewire_core_kv_usage": Series(("kv_cache_usage_perc", "gpu_cache_usage_perc")),
    "pagewire_core_cache_info": Series(("cache_config_info",), ("block_size", "num_gpu_blocks")),
    "pagewire_core_prefix_cache_queries_total": Series(("prefix_cache_queries_total",)),
    "pagewire_core_prefix_cache_hits_total": Series(("prefix_cache_hits_total",)),
    "pagewire_core_preemptions_total": Series(("num_preemptions_total",)),
}
"""Our name -> vLLM's, where a metric counts the same. An engine core has lora_requests_info beside them."""


def vllm_series(metric: Metric, value: Value) -> Iterator[tuple[Metric, Value]]:
    """Yields a metric under vLLM's names, if it has any."""
    series = VLLM.get(metric.name)
    if series is None:
        return
    for name in series.names:
        yield replace(metric, name=PREFIX + name, labels=series.labels), _regrouped(value, series)


def _regrouped(value: Value, series: Series) -> Value:
    """Returns the value by vLLM's labels."""
    if isinstance(value, float | int | Histogram):
        return value
    groups: Counter[tuple[str, ...]] = Counter()
    for key, number in value.items():
        labels = (key,) if isinstance(key, str) else key
        groups[tuple(series.values.get(each, each) for each in labels) if series.labels else ()] += number
    return groups if series.labels else groups.total()
